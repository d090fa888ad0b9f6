"""Arrays handed to other libraries and back, and kernels as operators of PyTorch and JAX."""

import ctypes
import gc
import warnings

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn import interop, tape
from pmpp.nn.interop import dlpack
from pmpp.runtime import device

on_cpu = pytest.mark.skipif(device.on_gpu(), reason="here the tensors would have to be on the GPU")


def address(x):
    return x.__array_interface__["data"][0]


# -------------------------------------------------------------------------------------------------------------- DLPack


def test_the_structures_are_those_of_dlpack_h():
    """On a machine of 64 bits, as a C compiler lays them out."""
    assert ctypes.sizeof(dlpack.Tensor) == 48
    assert ctypes.sizeof(dlpack.ManagedTensor) == 64
    offsets = {name: getattr(dlpack.Tensor, name).offset for name, _ in dlpack.Tensor._fields_}
    assert offsets == {"data": 0, "device": 8, "ndim": 16, "dtype": 20, "shape": 24, "strides": 32, "byte_offset": 40}


@pytest.mark.parametrize("dtype", ["bool", "uint8", "int16", "int64", "float16", "float32", "float64", "complex64"])
@pytest.mark.parametrize("cut", [np.s_[:], np.s_[1:, ::2], np.s_[::-1, 3], np.s_[2:2], np.s_[1, 1]], ids=str)
def test_what_numpy_borrows_is_the_same_memory(dtype, cut):
    whole = np.arange(20).reshape(4, 5).astype(dtype)
    x = whole[cut] if isinstance(whole[cut], np.ndarray) else whole[1:2, 1:2].reshape(())
    y = np.from_dlpack(interop.lend(x))
    assert (y.shape, y.dtype) == (x.shape, x.dtype)
    assert x.size == 0 or address(y) == address(x)
    whole[...] = 1
    np.testing.assert_array_equal(y, x)


def test_bfloat16_has_a_code_of_its_own():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = np.arange(6).astype(ml_dtypes.bfloat16).reshape(2, 3)
    assert interop.look(interop.lend(x)) == (address(x), (2, 3), (3, 1), "bfloat16", (1, 0), 0)
    torch = pytest.importorskip("torch")
    y = torch.from_dlpack(interop.lend(x))
    assert y.dtype == torch.bfloat16
    assert y.float().numpy().tolist() == x.astype(np.float32).tolist()


def test_looking_reads_what_numpy_lends():
    x = np.zeros((6, 4), np.int16)[::2, 1:]
    assert interop.look(x) == (address(x), (3, 3), (8, 1), "int16", (1, 0), 0)
    assert interop.look(interop.lend(x)) == interop.look(x)
    with pytest.raises(TypeError, match=r"x must have __dlpack__, was builtins\.list"):
        interop.look([1.0])


def test_memory_is_kept_until_the_borrower_is_done():
    before, x = len(dlpack._lent), np.zeros(100, np.float32)
    owner = interop.lend(x)
    y = np.from_dlpack(owner)
    del owner
    view = y[::2]
    del y
    gc.collect()
    assert len(dlpack._lent) == before + 1
    del view
    gc.collect()
    assert len(dlpack._lent) == before
    capsule = interop.lend(x).__dlpack__()  # nobody takes it
    assert len(dlpack._lent) == before + 1
    del capsule
    assert len(dlpack._lent) == before


def test_a_capsule_is_taken_once():
    class Once:
        def __init__(self, x):
            self.capsule = interop.lend(x).__dlpack__()

        def __dlpack_device__(self):
            return (1, 0)

        def __dlpack__(self, **_):
            return self.capsule

    once = Once(np.ones(3))
    np.from_dlpack(once)
    with pytest.raises((ValueError, BufferError)):
        np.from_dlpack(once)


def test_what_cannot_be_lent_is_refused_by_name():
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match="x must be writable, was a read-only array"):
        interop.lend(frozen)
    with pytest.raises(TypeError, match=r"x must be a NumPy array, or on a GPU a device array, was builtins\.list"):
        interop.lend([1.0])
    with pytest.raises(TypeError, match="x must be of numbers in this machine's byte order, was >f4"):
        interop.lend(np.zeros(3, ">f4"))
    with pytest.raises(TypeError, match="was datetime64"):
        interop.lend(np.zeros(3, "datetime64[s]"))
    records = np.zeros(3, [("a", "f4"), ("b", "i1")])
    with pytest.raises(ValueError, match=r"x must have strides of whole elements of 4 bytes, had \(5,\)"):
        interop.lend(records["a"])
    for wanted in ({"copy": True}, {"dl_device": (2, 0)}):
        with pytest.raises(BufferError, match=r"lent where it is, on \(1, 0\)"):
            interop.lend(np.zeros(3)).__dlpack__(**wanted)


@on_cpu
def test_an_array_of_the_interpreter_has_no_address_to_lend():
    with pytest.raises(TypeError, match=r"was pmpp\.simt\..*DeviceArray: pass x\.copy_to_host\(\)"):
        interop.lend(device.to_device(np.zeros(3)))


def test_a_tensor_keeps_foreign_memory(monkeypatch):
    """What a rung is given need not be kept. A tensor is used later, when its maker may be gone."""

    class View:
        owner, size = None, 3

        def owned_by(self, owner):
            kept = View()
            kept.owner = owner
            return kept

    class Foreign:
        dtype = np.dtype("float32")
        __cuda_array_interface__ = None

    foreign = Foreign()
    monkeypatch.setattr(device, "as_input", lambda name, x, **_: View())
    assert tape.as_array(foreign).owner is foreign


@pytest.mark.gpu
def test_a_tensor_of_freed_pytorch_memory_keeps_its_numbers():
    torch = pytest.importorskip("torch")
    x = torch.ones(1 << 20, device="cuda")
    tensor = nn.Tensor(x)
    del x
    others = [torch.zeros(1 << 20, device="cuda") for _ in range(4)]  # the allocator hands freed memory out again
    assert (tensor.numpy() == 1).all()
    del others


@pytest.mark.gpu
@pytest.mark.parametrize("library", ["torch", "cupy"])
def test_a_library_on_the_gpu_borrows_a_device_array(library):
    module = pytest.importorskip(library)
    x = device.to_device(np.arange(12, dtype=np.float32).reshape(3, 4))
    y = module.from_dlpack(interop.lend(x))
    assert interop.look(y).address == device.address(x)
    y += 1
    module.cuda.synchronize() if library == "torch" else module.cuda.Device().synchronize()
    np.testing.assert_array_equal(device.to_host(x), np.arange(1, 13).reshape(3, 4))


# ------------------------------------------------------------------------------------------------------------- PyTorch


@pytest.fixture
def torch():
    return pytest.importorskip("torch")


@pytest.fixture
def ops(torch):
    from pmpp.nn.interop import operators

    return operators.register()


def made(torch, *shapes):
    from pmpp.nn.interop import checks

    return checks.tensors(*shapes)


@pytest.mark.parametrize("shape", [(1, 1), (3, 33), (257, 5), (0, 4)], ids=str)
def test_layer_norm_is_pytorchs(torch, ops, shape):
    x, weight, bias, upstream = made(torch, shape, shape[1:], shape[1:], shape)
    wide = [one.detach().double().requires_grad_() for one in (x, weight, bias)]
    y, exact = (
        ops.layer_norm(x, weight, bias, 1e-5),
        torch.nn.functional.layer_norm(wide[0], shape[1:], *wide[1:], 1e-5),
    )
    torch.testing.assert_close(y.double(), exact, rtol=1e-5, atol=1e-5)
    found = torch.autograd.grad(y, (x, weight, bias), upstream)
    wanted = torch.autograd.grad(exact, wide, upstream.double())
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-4, atol=1e-4)


def test_a_gradient_that_is_not_contiguous_is_taken(torch, ops):
    x, weight, bias = made(torch, (3, 8), (8,), (8,))
    y = ops.layer_norm(x, weight, bias, 1e-5)
    y.sum().backward()  # hands over one number, repeated with strides of 0
    assert (bias.grad == 3).all()
    (wanted,) = torch.autograd.grad(torch.nn.functional.layer_norm(x, (8,), weight, bias, 1e-5).sum(), x)
    torch.testing.assert_close(x.grad, wanted, rtol=1e-4, atol=1e-5)


def test_a_network_of_pytorchs_uses_our_layer_norm(torch):
    from pmpp.nn.interop import checks, operators

    parts = torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.Linear(8, 3)
    net, (x,) = torch.nn.Sequential(*parts).to(checks.here()), made(torch, (2, 5, 6))
    wanted, names = net(x), list(net.state_dict())
    wanted_gradients = torch.autograd.grad(wanted.square().sum(), list(net.parameters()))
    assert operators.use_layer_norm(net) is net
    found = net(x)
    waiting, seen = [found.grad_fn], []
    while waiting:
        node = waiting.pop()
        seen.append(node.name())
        waiting += [following for following, _ in node.next_functions if following is not None]
    assert any("pmpp_layer_norm" in name for name in seen), seen
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    for one, other in zip(
        torch.autograd.grad(found.square().sum(), list(net.parameters())), wanted_gradients, strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)
    assert list(net.state_dict()) == names
    with pytest.raises(ValueError, match="net must have layer normalisations with weight and bias, 0 was"):
        operators.use_layer_norm(torch.nn.Sequential(torch.nn.LayerNorm(8, elementwise_affine=False)))


def test_cross_entropy_is_pytorchs(torch, ops):
    (logits,) = made(torch, (37, 11))
    labels = torch.arange(37, device=logits.device) % 11
    labels[3] = -100
    loss, by_product = ops.cross_entropy(logits, labels)
    assert not by_product.requires_grad
    exact = torch.nn.functional.cross_entropy(logits.double(), labels)
    torch.testing.assert_close(loss.double(), exact, rtol=1e-6, atol=1e-6)
    (found,) = torch.autograd.grad(3 * loss, logits)
    (wanted,) = torch.autograd.grad(3 * exact, logits)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-7)


def test_sgd_changes_parameters_and_momenta_in_place(torch, ops):
    parameters, gradients = ([x.detach() for x in made(torch, (5,), (3, 2))] for _ in range(2))
    theirs = [x.clone().requires_grad_() for x in parameters]
    momenta = [torch.zeros_like(x) for x in parameters]
    optimizer = torch.optim.SGD(theirs, lr=0.1, momentum=0.9)
    addresses = [x.data_ptr() for x in parameters]
    for _ in range(3):
        for x, gradient in zip(theirs, gradients, strict=True):
            x.grad = gradient.clone()
        optimizer.step()
        ops.sgd_(parameters, gradients, momenta, 0.1, 0.9)
    assert [x.data_ptr() for x in parameters] == addresses
    for x, other in zip(parameters, theirs, strict=True):
        torch.testing.assert_close(x, other.detach())
    assert all(m.abs().max() > 0 for m in momenta)


def test_wrong_arguments_are_refused_by_name(torch, ops):
    x, weight, bias = made(torch, (3, 8), (8,), (8,))
    with pytest.raises(TypeError, match="x must be float32, float16 or bfloat16, was float64"):
        ops.layer_norm(x.double(), weight, bias, 1e-5)
    with pytest.raises(ValueError, match="x must be contiguous in C order"):
        ops.layer_norm(x.new_zeros(8, 3).T, weight, bias, 1e-5)
    with pytest.raises(ValueError, match=r"weight must have shape \(8,\), had \(7,\)"):
        ops.layer_norm(x, weight[:7], bias, 1e-5)
    with pytest.raises(ValueError, match=r"parameters must be a list with one or more, was \[\]"):
        ops.sgd_([], [], [], 0.1, 0.9)
    with pytest.raises(ValueError, match="gradients must be an array or a list with one or more"):
        ops.sgd_([weight.detach()], [], [bias.detach()], 0.1, 0.9)


def test_the_checks_of_pytorch_pass(torch):
    from pmpp.nn.interop import checks

    assert [line.rpartition(" ")[2] for line in checks.gradcheck()] == ["fails", "passes"]  # 1e-6 is too small a step
    first, *gradients = checks.formula()
    assert first.endswith("passes")
    assert len(gradients) == 3


def test_opcheck_passes_ours_and_finds_each_mistake(torch):
    from pmpp.nn.interop import checks

    *right, changes, returns, shape = checks.opcheck()
    assert len(right) == 3
    assert all("passes schema, autograd_registration, faketensor, aot_dispatch_dynamic" in line for line in right)
    assert changes.endswith("fails schema")
    assert "schema" in returns
    assert "faketensor" in shape
    assert "schema" not in shape


def test_the_compiler_takes_the_operators_in_one_graph_and_a_function_not(torch):
    from pmpp.nn.interop import checks

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        operator, function, same = checks.compiled()
    assert operator == "operator, fullgraph=True: no error"
    assert function.startswith("Function, fullgraph=True: ")
    assert not function.endswith("no error")
    assert same.endswith("equal is True")


def test_a_compiled_step_changes_the_parameters(torch, ops):
    parameter, gradient = (x.detach() for x in made(torch, (5,), (5,)))
    before, momentum = parameter.clone(), torch.zeros_like(parameter)

    @torch.compile(fullgraph=True, backend="aot_eager")
    def step(parameter, gradient, momentum):
        ops.sgd_([parameter], [2 * gradient], [momentum], 0.5, 0.9)
        return parameter + 1

    found = step(parameter, gradient, momentum)
    torch.testing.assert_close(parameter, before - gradient)
    torch.testing.assert_close(found, parameter + 1)


@on_cpu
def test_libraries_hand_arrays_over_without_a_copy(torch):
    from pmpp.nn.interop import checks

    said = checks.addresses()
    assert len(said) >= 2
    assert all(line.endswith("the same address") for line in said), said


@on_cpu
def test_pytorch_can_write_behind_jax(torch):
    pytest.importorskip("jax")
    from pmpp.nn.interop import checks

    assert checks.written_behind() == ["x[0] was 0; after PyTorch wrote, JAX says 42"]


@pytest.mark.gpu
def test_an_operator_follows_pytorchs_stream_into_a_graph(torch, ops):
    x, weight, bias = (one.detach() for one in made(torch, (64, 128), (128,), (128,)))
    ops.layer_norm(x, weight, bias, 1e-5)  # compiles
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        y = ops.layer_norm(x, weight, bias, 1e-5)
    x.copy_(2 * x + 1)
    graph.replay()
    torch.cuda.synchronize()
    torch.testing.assert_close(y, torch.nn.functional.layer_norm(x, (128,), weight, bias, 1e-5), rtol=1e-5, atol=1e-5)


def test_refusals_name_the_reason(torch):
    from pmpp.nn.interop import checks

    said = dict(line.split(": ", 1) for line in checks.refusals())
    assert "requires" in said["requires a gradient"]
    assert said["float64"] == "TypeError: x must be float32, float16 or bfloat16, was float64"
    assert "copy it first" in said["transposed"]


def test_states_go_both_ways(torch):
    from pmpp.nn.interop import checks

    before, there, back = (line.rpartition(" ")[2] for line in checks.states())
    assert float(before) > 0.1
    assert float(there) < 1e-5
    assert float(back) < 1e-5


# ----------------------------------------------------------------------------------------------------------------- JAX


def test_jax_computes_the_value_and_the_gradients():
    pytest.importorskip("jax")
    from pmpp.nn.interop import checks

    said = checks.in_jax()
    assert [line.split()[0] for line in said] == ["through_host", "in_place"]
    assert all(float(line.split("off by ")[1].split()[0]) < 1e-5 for line in said), said
