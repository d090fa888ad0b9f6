"""What PyTorch and JAX say of our operators, and of arrays that were handed over: small checks that return lines.

Chapter 95 shows each and what it found: here, where the libraries are installed, else in the record that
``python -m pmpp.nn.measure.frameworks`` wrote.

Chapter: notebooks/95_inside_other_libraries.ipynb.
"""

from __future__ import annotations

import contextlib
import tempfile
import typing
import warnings
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.nn.interop import dlpack
from pmpp.runtime import device

__all__ = ["CHECKS", "arrays_of", "error_of", "here"]


def here() -> str:
    """Where PyTorch's tensors have to be for a kernel: "cuda" or, for the interpreter, "cpu"."""
    return "cuda" if device.on_gpu() else "cpu"


def error_of(call: typing.Callable) -> str:
    """The error that a call raises, in one line of at most 200 characters; "no error" if it raises none."""
    try:
        call()
    except Exception as error:  # whatever a library raises is what is to be shown
        words = " ".join(str(error).split())
        return f"{type(error).__name__}: {words[:200]}{'…' * (len(words) > 200)}"
    return "no error"


def tensors(*shapes: tuple[int, ...], seed: int = 0) -> list:
    """Tensors of standard normal numbers that require a gradient."""
    import torch

    generator = torch.Generator(here()).manual_seed(seed)
    return [torch.randn(shape, generator=generator, device=here()).requires_grad_() for shape in shapes]


# ------------------------------------------------------------------------------------------------------------ gradients


def gradcheck() -> list[str]:
    """PyTorch's check by differences, with its own step, and with one that suits float32."""
    import torch

    from pmpp.nn.interop import operators

    ops, arguments, lines = operators.register(), tensors((2, 4), (4,), (4,)), []

    def layer_norm(*x):
        return ops.layer_norm(*x, 1e-5)

    for step in (1e-6, 1e-2):
        how = {"eps": step, "atol": 1e-3, "rtol": 1e-3, "raise_exception": False}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it warns that the arguments are not float64
            right = torch.autograd.gradcheck(layer_norm, arguments, **how)
        lines.append(f"differences with a step of {step:g}: {'passes' if right else 'fails'}")
    return lines


def formula() -> list[str]:
    """The formula in float64 passes gradcheck as it is; then our gradient is compared with the formula's."""
    import torch

    from pmpp.nn.interop import operators

    x, weight, bias, upstream = tensors((5, 40), (40,), (40,), (5, 40))
    wide = [one.detach().double().requires_grad_() for one in (x, weight, bias)]

    def exact(x, weight, bias):
        return torch.nn.functional.layer_norm(x, weight.shape, weight, bias, 1e-5)

    lines = [f"the formula in float64: {'passes' if torch.autograd.gradcheck(exact, wide) else 'fails'}"]
    mine = torch.autograd.grad(operators.register().layer_norm(x, weight, bias, 1e-5), (x, weight, bias), upstream)
    right = torch.autograd.grad(exact(*wide), wide, upstream.double())
    for name, one, other in zip(("x", "weight", "bias"), mine, right, strict=True):
        lines.append(
            f"gradient of {name}: off by {float((one - other).abs().max() / other.abs().max()):.0e} of the largest"
        )
    return lines


# ------------------------------------------------------------------------------------------------------------ operators


def opcheck() -> list[str]:
    """PyTorch's tests of what an operator says of itself: ours, and three that are declared wrongly."""
    import torch

    from pmpp.nn.interop import operators

    ops, (x, weight, bias) = operators.register(), tensors((3, 8), (8,), (8,))
    lists = [[one.detach().clone() for one in (weight, bias)] for _ in range(3)]
    labels = torch.tensor([1, 7, 0], device=here())
    given = {"layer_norm": (x, weight, bias, 1e-5), "cross_entropy": (x, labels), "sgd_": (*lists, 0.1, 0.9)}
    lines = []
    for name, arguments in given.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of PyTorch, about its own tests
            found = torch.library.opcheck(getattr(ops, name).default, arguments)
        passed = ", ".join(test.removeprefix("test_") for test, result in found.items() if result == "SUCCESS")
        lines.append(f"{name:14} passes {passed}")
    for name, operator in wrong_operators().items():
        found = torch.library.opcheck(operator, (x.detach(),), raise_exception=False)
        failed = [test.removeprefix("test_") for test, result in found.items() if result != "SUCCESS"]
        lines.append(f"{name:14} fails {', '.join(failed)}")
    return lines


def wrong_operators() -> dict[str, typing.Any]:
    """Three operators that double a tensor, each with a mistake in what it says of itself."""
    import torch

    def define(name, function, shapes):
        schema = "(Tensor x) -> Tensor"
        made = torch.library.custom_op(f"pmpp_wrong::{name}", function, mutates_args=(), schema=schema)
        made.register_fake(shapes)
        return made

    def doubles_in_place(x):
        return x.mul_(2).clone()

    def returns_its_argument(x):
        return x

    return {
        "changes x": define("changes", doubles_in_place, lambda x: x.new_empty(x.shape)),
        "returns x": define("returns", returns_its_argument, lambda x: x.new_empty(x.shape)),
        "wrong shape": define("shape", lambda x: 2 * x, lambda x: x.new_empty(x.shape[::-1])),
    }


def compiled() -> list[str]:
    """A function with our operators in one graph; and the same kernel as a plain `autograd.Function`."""
    import torch

    from pmpp.nn.interop import operators

    ops, (x, weight, bias) = operators.register(), tensors((3, 8), (8,), (8,))
    plain = as_function()

    def with_operator(x):
        return torch.relu(ops.layer_norm(2 * x, weight, bias, 1e-5)).sum()

    def with_function(x):
        return torch.relu(plain.apply(2 * x, weight, bias)).sum()

    lines = []
    for name, function in (("operator", with_operator), ("Function", with_function)):
        torch._dynamo.reset()
        whole = torch.compile(function, backend="aot_eager", fullgraph=True)
        said = error_of(lambda whole=whole: torch.autograd.grad(whole(x), x))
        lines.append(f"{name}, fullgraph=True: {said}")
    torch._dynamo.reset()
    made, wanted = (
        torch.autograd.grad(f(x), x)[0] for f in (torch.compile(with_operator, backend="aot_eager"), with_operator)
    )
    lines.append(f"the operator's gradients, compiled and not: equal is {bool(torch.equal(made, wanted))}")
    return lines


def as_function() -> typing.Any:
    """The same kernels as an `autograd.Function`: autograd knows them, and nobody else."""
    import torch

    from pmpp.nn.interop import operators

    class LayerNorm(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight, bias):
            ctx.save_for_backward(x, weight)
            return operators.layer_norm_forward(x, weight, bias, 1e-5)

        @staticmethod
        def backward(ctx, dy):
            return operators.layer_norm_backward(dy.contiguous(), *ctx.saved_tensors, 1e-5)

    return LayerNorm


# ----------------------------------------------------------------------------------------------------------- hand-overs


def arrays_of() -> dict[str, tuple[typing.Callable, typing.Callable, typing.Callable]]:
    """By library: make an array of some zeros, borrow what another lends, and find the address of the first element.

    On a GPU the first is this workbook's, else NumPy's. A library that is not installed is left out.
    """
    found, shape = {}, (64, 32)
    zeros = np.zeros(shape, np.float32)
    if device.on_gpu():
        ours = (lambda: dlpack.lend(device.to_device(zeros))), (lambda x: device.as_input("x", x, dtypes="float32"))
        found["pmpp"] = *ours, device.address
        with contextlib.suppress(ImportError):
            import cupy

            found["CuPy"] = (lambda: cupy.zeros(shape, "f4")), cupy.from_dlpack, lambda x: x.data.ptr
    else:
        found["NumPy"] = (
            (lambda: dlpack.lend(aligned(shape))),
            np.from_dlpack,
            lambda x: x.__array_interface__["data"][0],
        )
    with contextlib.suppress(ImportError):
        import torch

        found["PyTorch"] = (lambda: torch.zeros(shape, device=here())), torch.from_dlpack, lambda x: x.data_ptr()
    with contextlib.suppress(ImportError):
        import jax

        found["JAX"] = (lambda: jax.numpy.zeros(shape)), jax.dlpack.from_dlpack, lambda x: x.unsafe_buffer_pointer()
    return found


def aligned(shape: tuple[int, ...], to: int = 64) -> np.ndarray:
    """Zeros that begin at a multiple of so many bytes: JAX on a CPU copies others."""
    n = int(np.prod(shape))
    room = np.zeros(n + to // 4, np.float32)
    first = -room.__array_interface__["data"][0] % to // 4
    return room[first : first + n].reshape(shape)


def addresses() -> list[str]:
    """Each library lends an array to each other: is the first element where it was?"""
    lines, libraries = [], arrays_of()
    for lender, (make, _, _) in libraries.items():
        for borrower, (_, borrow, where) in libraries.items():
            if lender == borrower:
                continue
            x = make()
            try:
                same = where(borrow(x)) == dlpack.look(x).address
                lines.append(f"{lender:8} -> {borrower:8} {'the same address' if same else 'a copy'}")
            except Exception as error:  # a pair that does not go together is worth knowing, too
                lines.append(f"{lender:8} -> {borrower:8} {type(error).__name__}: {' '.join(str(error).split())[:120]}")
    return lines


def written_behind() -> list[str]:
    """PyTorch writes into an array of JAX's, which is promised never to change."""
    import jax
    import torch

    x = jax.numpy.zeros(4)
    before = float(x[0])
    borrowed = torch.from_dlpack(x)
    borrowed[0] = 42
    if borrowed.is_cuda:
        torch.cuda.synchronize()
    return [f"x[0] was {before:g}; after PyTorch wrote, JAX says {float(np.asarray(x)[0]):g}"]


def refusals() -> list[str]:
    """Tensors that a room does not take, and what it says."""
    import torch

    from pmpp.kernels import normalisation

    x, weight, bias = (one.detach() for one in tensors((4, 8), (8,), (8,)))
    wrong = {
        "requires a gradient": x.clone().requires_grad_(),
        "float64": x.double(),
        "transposed": x.new_zeros(8, 4).T,
        "bfloat16": x.to(torch.bfloat16),
    }
    if device.on_gpu():
        wrong["on the CPU"] = x.cpu()
    took = (lambda y: y) if device.on_gpu() else (lambda y: y.numpy())
    return [
        f"{name}: {error_of(lambda y=y: normalisation.layer_norm(took(y), took(weight), took(bias)))}"
        for name, y in wrong.items()
    ]


def in_jax() -> list[str]:
    """A value and a gradient through `jax.jit`, in both ways, beside the formula."""
    import jax
    import jax.numpy as jnp

    from pmpp.nn.interop import jax_functions

    rng = np.random.default_rng(0)
    x, weight, bias = (jnp.asarray(rng.standard_normal(s, dtype=np.float32)) for s in ((5, 7), (7,), (7,)))

    def exact(x, weight, bias):
        return (x - x.mean(1, keepdims=True)) / jnp.sqrt(x.var(1, keepdims=True) + 1e-5) * weight + bias

    def loss(function):
        return jax.jit(jax.value_and_grad(lambda *a: jnp.sin(function(*a)).sum(), (0, 1, 2)))

    wanted, lines = loss(exact)(x, weight, bias), []
    for way in (jax_functions.through_host, jax_functions.in_place):
        found = loss(jax_functions.layer_norm(way))(x, weight, bias)
        off = [float(abs(a - b).max()) for a, b in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True)]
        lines.append(f"{way.__name__:13} off by {max(off):.0e} in the loss and three gradients")
    return lines


# --------------------------------------------------------------------------------------------------------------- states


def states() -> list[str]:
    """A network's file, written here, loads into PyTorch; and PyTorch's file loads here. Both compute the same."""
    import torch
    from safetensors.torch import load_file, save_file

    nn.manual_seed(0)
    mine = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 3))
    parts = torch.nn.Linear(6, 8), torch.nn.LayerNorm(8), torch.nn.ReLU(), torch.nn.Linear(8, 3)
    theirs, x = torch.nn.Sequential(*parts), np.random.default_rng(0).standard_normal((4, 6), dtype=np.float32)

    def differ() -> float:
        with nn.no_grad(), torch.no_grad():
            return float(np.abs(mine(nn.Tensor(x)).numpy() - theirs(torch.from_numpy(x)).numpy()).max())

    with tempfile.TemporaryDirectory() as folder:
        path, lines = Path(folder) / "net.safetensors", [f"as they were made: results differ by {differ():.1f}"]
        nn.save(path, model=mine)
        lines.append(f"ours into PyTorch: {theirs.load_state_dict(load_file(path))}, results differ by {differ():.0e}")
        with torch.no_grad():
            theirs[0].weight.mul_(-1)
        save_file(theirs.state_dict(), path)
        nn.load(path, model=mine)
        lines.append(f"PyTorch's here: results differ by {differ():.0e}")
    return lines


#: By name: the check, and the libraries that it needs.
CHECKS = {
    "gradcheck": (gradcheck, ("torch",)),
    "formula": (formula, ("torch",)),
    "opcheck": (opcheck, ("torch",)),
    "compiled": (compiled, ("torch",)),
    "addresses": (addresses, ("torch", "jax")),
    "written_behind": (written_behind, ("torch", "jax")),
    "refusals": (refusals, ("torch",)),
    "in_jax": (in_jax, ("jax",)),
    "states": (states, ("torch",)),
}
