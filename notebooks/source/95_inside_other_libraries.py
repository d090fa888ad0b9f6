# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 95. Your kernel inside PyTorch, JAX and CuPy
#
# *Arrays that are lent without a copy, DLPack byte by byte, who frees and who waits, a kernel as an operator of PyTorch
# with autograd and under `torch.compile`, gradients checked in float32, a kernel within JAX, one file of weights for
# two libraries. You need chapters 22, 84, 86 and 88; it takes 80 minutes. PMPP 4e: chapters 16, 20 and 22; 5e: chapters
# 19 and 23. The code is [pmpp/nn/interop/dlpack.py](../pmpp/nn/interop/dlpack.py),
# [operators.py](../pmpp/nn/interop/operators.py) and [jax_functions.py](../pmpp/nn/interop/jax_functions.py).*
#
# You have written a kernel that is faster than the library's. The network in which it is needed was written by somebody
# else, in PyTorch, and it will not be rewritten. So the kernel has to go there. Three things stand between: the arrays
# belong to another library, which has its own allocator and its own streams; its autograd does not know your gradient;
# and its compiler does not know what your kernel does.
#
# **The questions of this chapter: how does an array go from one library to another without being copied, what must be
# agreed on about it, and what does a library want to know of a foreign kernel?**
#
# PyTorch and JAX need not be installed here. The protocols are shown with NumPy and with our own arrays, to the last
# byte. What PyTorch and JAX say of our operators is found out in this notebook if they are there; if not, it is taken
# from a record.

# %%
import ctypes
import gc
import json
import struct
import tempfile
import time
import weakref
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from pmpp import check, cuda, nn, predict
from pmpp.kernels import normalisation
from pmpp.lab.draw import palette
from pmpp.lab.draw.style import STYLE
from pmpp.lab.teach.exercise import exercise
from pmpp.lab.teach.source import show
from pmpp.nn.interop import checks, dlpack, jax_functions, lend, look, operators
from pmpp.nn.measure import frameworks
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## What one library must know of another's array
#
# An array is memory, and a description of it. NumPy gives both to whoever asks for `__array_interface__`: the address
# of the first element, whether it may be written to, the shape, the dtype, and the strides in bytes. `None` for the
# strides stands for C order.

# %%
x = np.arange(24, dtype=np.float32).reshape(4, 6)
view = x[1:, ::2]
interface = view.__array_interface__
print({key: interface[key] for key in ("shape", "typestr", "strides", "version")})

# %% [markdown]
# **Predict, then run.** `view` is `x[1:, ::2]`, and a row of `x` has 6 elements of 4 bytes. How many bytes lie between
# the address of `x` and the address of `view`?

# %%
guess = None  # bytes

predict(guess, interface["data"][0] - x.__array_interface__["data"][0], unit="bytes")

# %% [markdown]
# One row: 24 bytes. So a view is not special. It is another address with other strides, and whoever can read strides
# can read a view. This is why slicing costs nothing in every library.
#
# On a GPU there is the same under another name, `__cuda_array_interface__`. It was invented for Numba. CuPy, PyTorch
# and JAX have it, and so have the arrays of this workbook. The address is one of the device's memory: on the host
# nobody may follow it. There is one new entry, `stream`, to which we shall come.

# %%
on_device = device.to_device(x)
interface = on_device.__cuda_array_interface__
print({key: value for key, value in interface.items() if key != "data"}, "read-only:", interface["data"][1])

# %% [markdown]
# Any object with this attribute can be given to a rung. So a kernel of this workbook takes a CuPy array or a PyTorch
# tensor as it is, and `cupy.asarray(array)` and `torch.as_tensor(array)` take ours. Nothing is copied in either
# direction.
#
# ## DLPack, byte by byte
#
# The interface is a Python dictionary. Libraries that are not written in Python need something else, and it should also
# say who frees the memory. *DLPack* is a C structure, which all array libraries have agreed on. It reaches Python as a
# *capsule*, an object around one address. At this address lies the description of the array. It has these parts:

# %%
for name, kind in dlpack.Tensor._fields_:
    place = getattr(dlpack.Tensor, name)
    print(f"byte {place.offset:2}, {place.size} bytes: {name:12} {kind.__name__}")

# %% [markdown]
# **Predict, then run.** Read the table from its end. How many bytes describe an array, be it one of a gigabyte?

# %%
guess = None  # bytes

predict(guess, ctypes.sizeof(dlpack.Tensor), unit="bytes")

# %% [markdown]
# Let us read them as a library written in C would, without the structure's help: the bytes at the address in the
# capsule. `device` is a pair, the kind (1 is the CPU, 2 is CUDA) and the number of the device. The dtype is a code (2
# is float), the bits, and how many of these are one element. Shape and strides are arrays of their own, at the last
# addresses.

# %%
capsule = view.__dlpack__()
get = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.py_object, ctypes.c_char_p)(("PyCapsule_GetPointer", ctypes.pythonapi))
raw = ctypes.string_at(get(capsule, b"dltensor"), 48)
data, kind, number, ndim, code, bits, lanes, shape, strides, offset = struct.unpack("=QiiiBBHQQQ", raw)
print(f"device {kind, number}, {ndim} dimensions, code {code}, {bits} bits, {lanes} lane")
print("shape", struct.unpack(f"={ndim}q", ctypes.string_at(shape, 8 * ndim)))
print("the same address as NumPy's:", data + offset == view.__array_interface__["data"][0])

# %% [markdown]
# **Predict, then run.** In NumPy the strides of `view` are (24, 8) bytes. What does DLPack say for the second one?

# %%
guess = None  # the second stride

predict(guess, struct.unpack(f"={ndim}q", ctypes.string_at(strides, 8 * ndim))[1], exact=True)

# %% [markdown]
# DLPack counts elements. So it cannot describe a field of a record, whose stride is no multiple of its size. Such small
# differences are what goes wrong when a protocol is implemented from memory. `look(x)` reads the structure for any
# library, with the right units:

# %%
print(look(view)[1:])

# %% [markdown]
# ### Lending
#
# The other direction is an object with two methods. `__dlpack_device__` says where the memory is, so that the borrower
# can refuse before anything is done. `__dlpack__` fills the structure in and wraps it.

# %%
show(dlpack.Loan.__dlpack__)

# %% [markdown]
# `lend` makes such an object of a NumPy array, or on a GPU of a device array. It gives `torch.from_dlpack`,
# `jax.dlpack.from_dlpack`, `cupy.from_dlpack` and `np.from_dlpack` what they want. Is anything copied? We write to the
# lender's memory, and look at the borrower's array.

# %%
lent = np.zeros((2, 3), np.float32)
borrowed = np.from_dlpack(lend(lent))
lent[1, 2] = 7
print(borrowed, "\nwriteable:", borrowed.flags.writeable)

# %% [markdown]
# The last line is a lesson, too. DLPack before version 1 cannot say that memory is read-only. NumPy is careful, and
# writes to nothing that it has borrowed that way. PyTorch takes all it is given as writeable. `lend` refuses what is
# read-only.

# %%
frozen = np.broadcast_to(np.float32(1), (3, 4))
print(checks.error_of(lambda: lend(frozen)))
print(checks.error_of(lambda: look(frozen)))

# %% [markdown]
# ### What a copy would cost
#
# A loan takes the same time for a kilobyte and for a gigabyte. A copy is bound by memory. We measure both with NumPy on
# the CPU.

# %%
sizes, times = 4 ** np.arange(4, 12), {"a copy": [], "a loan": []}


def fastest(call):
    def once():
        began = time.perf_counter()
        call()
        return time.perf_counter() - began

    return min(once() for _ in range(15))


# %%
for n in sizes:
    x = np.ones(n, np.float32)
    times["a copy"].append(fastest(x.copy))
    times["a loan"].append(fastest(lambda x=x: np.from_dlpack(x)))

# %%
figure, ax = plt.subplots(figsize=(7, 3.2), layout="constrained")
for (name, seconds), colour, marker in zip(times.items(), palette.COLOURS, "os", strict=False):
    ax.plot(4 * sizes, 1e6 * np.array(seconds), color=colour, marker=marker, label=f"{name} (NumPy, this CPU)")
ax.set(xscale="log", yscale="log", xlabel="bytes", ylabel="microseconds")
ax.legend()
None

# %% [markdown]
# The time of a loan does not depend on the size. A copy is as cheap at first, where both are calls of Python, and then
# grows with the bytes. A computer that is busy with other programs adds a peak here and there.
#
# On a GPU the array below has 65536 x 1024 elements. `torch, x + 1` reads it and writes one as large, as a copy within
# the device's memory would. The line after it copies it to the host and back, over the bus. All others are loans. They
# differ, because each library does other work in Python for one, and none of them touches the elements.

# %%
print(*frameworks.measured("handing_over"), sep="\n")

# %% [markdown]
# Which pairs of libraries hand an array over without a copy? For each pair we compare the address before and behind.
#
# Libraries that share arrays share a GPU's memory, too. JAX would take most of it at its first call and leave little to
# the others, so [pmpp.nn.interop](../pmpp/nn/interop/__init__.py) sets `XLA_PYTHON_CLIENT_PREALLOCATE` to `false` when
# it is imported.

# %%
print(*frameworks.said("addresses"), sep="\n")

# %% [markdown]
# Who borrows by DLPack may be able to write, and the lender does not learn of it. PyTorch borrows an array of JAX's,
# and writes to it:

# %%
print(*frameworks.said("written_behind"), sep="\n")

# %% [markdown]
# On a CPU there is one condition more. JAX uses memory as it is only if it begins at a multiple of 64 bytes, and copies
# it otherwise, without a word. NumPy's arrays often begin at a multiple of 16 only. So whether
# `jax.dlpack.from_dlpack` copies can differ from one array to the next. With `copy=False` it raises an error instead.
# If no copy is what you rely on, test the addresses.
#
# ### Exercise: borrow
#
# You are given what a lender says. Make the array.

# %%
exercise("interop/borrow")


# %%
def borrow(memory, byte_offset, shape, strides, code, bits):
    pass  # your code


check("interop/borrow", borrow)

# %% [markdown]
# ## Who frees the memory?
#
# The lender may die before the borrower. So the structure carries one more entry, the *deleter*: a function that the
# borrower calls when it is done. Until then the lender must keep the memory. `lend` keeps it in a dictionary.


# %%
class Watched(np.ndarray):
    """An array whose end can be seen."""


lent = np.zeros(4, np.float32).view(Watched)
seen = weakref.ref(lent)
borrowed = np.from_dlpack(lend(lent))
del lent
gc.collect()
print("the lender's name is gone, the borrower lives:", "kept" if seen() is not None else "freed")
del borrowed
gc.collect()
print("the borrower is gone:", "kept" if seen() is not None else "freed")

# %% [markdown]
# `__cuda_array_interface__` has no such entry. There the rule is: keep the *object*, not its address. As long as the
# object lives, so does its memory. What happens if only the address is kept? On a CPU the program often crashes. On a
# GPU it does not, and this is worse. Allocators there keep freed memory in a *pool*, and hand it to whoever asks next.
# The address stays valid. The numbers become somebody else's. Here is such a pool:


# %%
class Block:
    """Memory of the pool, which goes back when this object dies."""

    def __init__(self, pool, values):
        self.memory = pool.pop() if pool else np.empty(4, np.float32)
        self.memory[:] = values
        self.__array_interface__ = self.memory.__array_interface__
        weakref.finalize(self, pool.append, self.memory)


# %% [markdown]
# **Predict, then run.** `careless` is made from what lies behind the block, and `careful` from the block itself, which
# NumPy keeps. Then both blocks go out of sight, and somebody fills a new one with 9. What is `careless[0]`?

# %%
guess = None  # careless[0]

pool = []
first, second = Block(pool, 1), Block(pool, 2)
careless, careful = first.memory, np.asarray(second)
del first, second
gc.collect()
another = Block(pool, 9)
predict(guess, float(careless[0]), exact=True)

# %%
print("careful:", careful)

# %% [markdown]
# No error, no warning, and a wrong number that depends on what somebody else did later. This workbook had the mistake
# itself until this chapter was written. A rung makes a view of a CuPy array for one launch, and for that it need not
# keep the array. `nn.Tensor` made the same view, and lives longer. Now it keeps whom it has borrowed from. The test
# does what we did here.
#
# The pool of a GPU has one more trap. It frees in the order of *one* stream: the one that the memory was allocated on.
# If another stream still reads, it must be told: in PyTorch, by `tensor.record_stream(other)`.
#
# ### Exercise: which bytes?
#
# Two views of one block may overlap, or lie beside each other. Before a kernel writes to an `out` that the caller has
# given, our rooms compare the bytes of `out` with those of the inputs. For that they must know where a view begins and
# where it ends.

# %%
exercise("interop/extent")


# %%
def extent(address, shape, strides, itemsize):
    pass  # your code


check("interop/extent", extent)

# %% [markdown]
# ## Who waits?
#
# A kernel's result is there when the kernel has run, not when the launch returns. On one stream this never shows: work
# is done in the order in which it was queued. Between libraries it does, if they use two streams. Then somebody must
# make the second stream wait for the first. This is done by an *event*. It is recorded on the first stream, and the
# second waits for it. The host goes on at once.
#
# Who has to do it?
#
# | | says its stream | who waits |
# |---|---|---|
# | `__cuda_array_interface__`, version 3 | in the entry `stream`, if it is not None | the borrower |
# | the same of PyTorch, which is version 2 | nowhere | nobody: pass the stream on yourself |
# | DLPack | the borrower gives its own to `__dlpack__(stream=...)` | the lender makes that stream wait |
# | JAX | XLA has streams of its own | by DLPack the lender; else the host, in `block_until_ready()` |
#
# The third line is `begin_after` in `Loan.__dlpack__` above. The number 1 stands for the default stream, and -1 for a
# borrower who will see to it alone. For CuPy a rung does the same: it asks for CuPy's current stream.
#
# In PyTorch the simplest way is the best one. Launch on *its* current stream. Then there is one stream, the order is
# that of the program, and nobody waits. It also works within `torch.cuda.stream(...)`. A CUDA graph needs more. PyTorch
# keeps *its* memory for as long as its graph lives. Scratch memory that a kernel of ours takes from our pool is not
# among it, and would be handed to somebody else.

# %%
show(operators.stream)

# %% [markdown]
# ## What is refused
#
# An array that does not fit could be cast or copied. Then the program works, and is slow, and nobody knows why. Or it
# writes its result into the copy. So every room says what it was given, and what it takes.

# %%
rows, ones = np.ones((4, 8), np.float32), np.ones(8, np.float32)
for name, wrong in {
    "float64": rows.astype(np.float64),
    "transposed": device.to_device(np.ones((8, 4), np.float32).T),
    "masked": np.ma.masked_less(rows, 0),
    "a list": [[1.0, 2.0]],
}.items():
    print(f"{name}: {checks.error_of(lambda wrong=wrong: normalisation.layer_norm(wrong, ones, ones))}")

# %% [markdown]
# PyTorch's tensors have more ways to be unsuitable. One that requires a gradient is the most important: a kernel that
# took it would lose the gradient without a word. There is bfloat16, which NumPy and the interface have no name for.
# The room takes it nevertheless, if the package `ml_dtypes` is there to give NumPy a name. Where it says "no error"
# below, the package was there.

# %%
print(*frameworks.said("refusals"), sep="\n")

# %% [markdown]
# ## An operator for PyTorch
#
# Memory and streams are settled: on a GPU, a rung can be called with tensors. Now its gradient. PyTorch's oldest way is
# an `autograd.Function`, which looks as ours does in [chapter 88](88_a_tape.ipynb).

# %%
show(checks.as_function)

# %% [markdown]
# In eager mode this is all that is needed. But only autograd knows of it. `torch.compile` traces a program by running
# it with *fake* tensors, which have a shape and a dtype but no memory. It looks into `forward`, and finds a launch that
# it can neither run nor understand. The graph breaks, and nothing is fused across the break. An operator that is
# registered is opaque: the compiler puts one node into its graph. For this it has to be told four things.
#
# *What it computes.* PyTorch allocates the result, and the kernel writes to it. So the memory is PyTorch's from the
# start, and there is no question of who frees it.

# %%
show(operators.layer_norm_forward)
show(operators.written)

# %% [markdown]
# *What comes out*, for fake tensors: shape, dtype and layout. Nothing may be computed from values here.

# %%
show(operators.layer_norm_shapes)

# %% [markdown]
# *What is kept, and the gradient.* The gradient is an operator itself, or the compiler would stop there.

# %%
show(operators.layer_norm_save)
show(operators.layer_norm_gradient)
show(operators.layer_norm_backward)

# %% [markdown]
# `dy.contiguous()` is no decoration. The gradient of a `sum` is one number that is repeated with strides of 0, and our
# room refuses it.
#
# *What it changes.* This is said in the schema, a signature in a small language. `Tensor(a!)` is an argument that is
# written to. Layer normalisation changes nothing. A step of an optimiser does nothing else:

# %%
show(operators.register)

# %% [markdown]
# The compiler may reorder what the schema allows it to reorder, and drop what is not used. An operator that changes an
# argument and does not say so is right in eager mode, and wrong when compiled. Nor may a result be one of the
# arguments: the compiler would reuse the memory of one while the other is alive.
#
# `torch.library.opcheck` tests what an operator says of itself. We let it look at ours, and at three that double their
# argument, each with a lie: one changes it in place, one returns it, one announces another shape.

# %%
show(checks.wrong_operators)
print(*frameworks.said("opcheck"), sep="\n")

# %% [markdown]
# `schema` runs the operator, and looks for what has changed and for results that share memory with an argument.
# `faketensor` compares the announced shapes, strides and dtypes with the real ones. `aot_dispatch_dynamic` runs it
# under the compiler's front end, forward and backward, with sizes that are not known.
#
# And the compiler itself: `fullgraph=True` makes a graph break an error.

# %%
print(*frameworks.said("compiled"), sep="\n")

# %% [markdown]
# In a network the operator stands in a module. PyTorch's own has the parameters already, so only its `forward` is
# exchanged. The network's `state_dict` stays as it was, and whoever trains it need not know.

# %%
show(operators.use_layer_norm)

# %% [markdown]
# ### Is the gradient right, in float32?
#
# `torch.autograd.gradcheck` compares a gradient with differences, as [chapter 88](88_a_tape.ipynb) did. It wants
# float64: its step is $10^{-6}$. Our kernels are float32. We measure what that step does, with the kernel itself. Each
# row of a matrix is the same input with one element changed, so one launch gives all differences.

# %%
n, rng = 8, np.random.default_rng(0)
row, weight = rng.standard_normal((2, n)).astype(np.float32)
upstream = rng.standard_normal(n).astype(np.float32)
exact = device.to_host(normalisation.layer_norm_backward(upstream.reshape(1, n), row.reshape(1, n), weight)[0])[0]


def slopes(step):
    """Of (layer norm of the row * upstream).sum() with respect to each element, by differences."""
    h = np.float32(step) * np.eye(n, dtype=np.float32)
    both = np.concatenate([row + h, row - h])
    y = device.to_host(normalisation.layer_norm(both, weight, np.zeros(n, np.float32))).astype(np.float64)
    return ((y[:n] - y[n:]) * upstream).sum(axis=1) / (both[:n] - both[n:]).diagonal()


# %%
def off(found):
    """The largest error, as a part of the largest slope that the backward kernel finds."""
    return float(abs(found - exact).max() / abs(exact).max())


# %% [markdown]
# **Predict, then run.** The results are about 1 in size, and a float32 of that size is rounded by up to
# $6\cdot10^{-8}$. The difference of two results is divided by twice the step. By about how many percent of the largest
# slope are the differences off, with a step of $10^{-6}$?

# %%
guess = None  # percent

predict(guess, 100 * off(slopes(1e-6)), unit="percent", factor=2)

# %%
for step in (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1):
    print(f"step {step:g}: off by {off(slopes(step)):.0e}")

# %% [markdown]
# The step itself is rounded, too; this is why we divide by the difference of the inputs that the kernel has seen. With
# a small step rounding is what is wrong, with a large one the curvature. Between them a few digits are left, and how
# many depends on the function. For gradcheck that means: `eps=1e-2`, and a tolerance of $10^{-3}$.

# %%
print(*frameworks.said("gradcheck"), sep="\n")

# %% [markdown]
# Such a check finds a forgotten term. It does not find a sum that is rounded badly. The better test has two steps. The
# *formula*, written with PyTorch's operations in float64, is checked by differences with all rigour. Then the kernel's
# gradient is compared with the formula's, with a random gradient from above, and to the last digits of float32.

# %%
show(checks.formula)
print(*frameworks.said("formula"), sep="\n")

# %% [markdown]
# ### Exercise: a backward for a forward
#
# Somebody gives you an operator without a gradient: RMS normalisation, which large language models have in the place of
# layer normalisation. Write its gradient.

# %%
exercise("interop/backward")


# %%
@cuda.jit
def backward(dy, x, weight, inverse, out):
    pass  # your code


check("interop/backward", backward)

# %% [markdown]
# ## What is left of the speed
#
# A kernel inside another library pays for the way there: PyTorch's dispatcher, autograd's bookkeeping, our checks of
# the arguments. For a small matrix this is all there is to see.

# %%
print(*frameworks.measured("calls"), sep="\n")

# %% [markdown]
# PyTorch's own operator is C++ from end to end. Ours is Python twice, forward and backward. A registered operator costs
# as much as a Function, or more: what it says of itself is used at every call. `torch.compile` makes that hardly
# cheaper, or not at all. The compiled program calls the operator in the same way, and has work of its own at each call:
# PyTorch's operator takes longer compiled than called.
#
# A graph needs no Python at a replay. The two lines of graphs show how little of either time is the GPU's. In a
# graph our operator is many times as fast as PyTorch's own outside of one.
#
# Before anything is recorded the work runs a few times on a stream beside, as a *warm-up*: kernels are compiled then,
# and pools are filled. **Record a graph on the stream of its warm-up.** Our scratch memory comes from a pool that keeps
# memory by stream. Unless it is told otherwise, `torch.cuda.graph` records on a stream of its own. For that one our
# pool is empty, and asks the driver for more. The driver refuses while a graph is recorded. What you then read is that
# an operation failed during the capture, and not which one, nor why. The cure is one argument: `stream=side`, where
# `side` is the stream of the warm-up. See `graphed` in [frameworks.py](../pmpp/nn/measure/frameworks.py), by which both
# graphs were recorded. Afterwards leave that stream to the graph: the scratch memory is back in our pool, and each
# replay writes to it again.
#
# For matrices of the size that networks have, the kernel should count. Compare with the table above: where a time is
# little more than that of the small matrix, the GPU waits for the host. In a graph there is no host. All times are of a
# forward and a backward pass.

# %%
print(*frameworks.measured("layer_norm"), sep="\n")

# %% [markdown]
# In a graph our operator takes many times as long as for the small matrix. Called or compiled it takes somewhat longer
# than before, or no longer at all: the host needs about as long for the calls as the GPU for the kernels, or longer.
# The host's times differ from run to run, and on another host they are others. The two graphs compare the kernels. Ours
# are as fast as PyTorch's own, or a little faster. `torch, compiled` does not call PyTorch's own kernels: the compiler
# has written others, as in [chapter 91](91_a_fusing_compiler.ipynb).
#
# Cross-entropy is the operator with two results. Its kernel finds the loss and the gradient in one pass over the logits
# ([chapter 86](86_gradients_of_softmax.ipynb)). The second result is marked as not differentiable, and `backward` only
# multiplies it with what comes from above. The price is that the gradient is computed even if nobody asks for it.

# %%
show(operators.cross_entropy_save)
show(operators.cross_entropy_gradient)
print(*frameworks.measured("cross_entropy"), sep="\n")

# %% [markdown]
# The optimiser gets lists of tensors, and changes them in one launch. PyTorch's `fused=True` is the same idea. Here the
# host looks at three lists of a hundred tensors in Python, one by one, and that takes longer than the kernel.

# %%
show(operators.sgd_forward)
print(*frameworks.measured("sgd"), sep="\n")


# %%
def bars(parts):
    """Each way as a part of PyTorch's own time, from the record."""
    kept = frameworks.recorded("frameworks")
    _, ax = plt.subplots(figsize=(7, 3.6), layout="constrained")
    labels, values = [], []
    for part in (part for part in parts if part in kept):
        times = {name: row["ms"] for name, row in kept[part].items() if "ms" in row}
        own = next(iter(times.values()), None)
        labels += [f"{part}: {name}" for name in times]
        values += [ms / own for ms in times.values()]
    ax.barh(labels, values, color=[palette.COLOURS["ours" in label] for label in labels])
    ax.axvline(1, color="black", linewidth=1)
    ax.invert_yaxis()
    ax.set(xlabel=f"time, PyTorch's own is 1 ({kept['about']['gpu']['name']})")


# %%
try:
    bars(("layer_norm", "cross_entropy", "sgd"))
except frameworks.record.RecordError:
    print("nothing to draw: not recorded yet")

# %% [markdown]
# Where a bar of ours is much longer than that of our graph, the host needs more time for the calls than the GPU for the
# kernels. The optimiser's bar is the longest, for the same reason. Where the GPU has less to do than the host, the host
# decides, and Python loses to C++. A graph takes the host away, and leaves the kernels. So register an operator for
# what PyTorch does not have, or for a kernel that saves more than its calls cost. Measure first, in the network that
# needs it.
#
# ## Inside JAX
#
# JAX is stricter. A function is traced once, compiled by XLA, and from then on no Python runs. A kernel of ours is
# launched by Python. So it must be a *callback*: a node of the compiled program that calls back into Python. There are
# two.
#
# `jax.pure_callback` takes any Python function of NumPy arrays. XLA copies the arguments to the host, and the result
# from there to the device.

# %%
show(jax_functions.through_host)

# %% [markdown]
# **Predict, then run.** Our kernel runs on the GPU as well, so inside the callback the arrays travel again. The matrix
# is 65536 x 1024 of float32, the result has the same size. How many MB ($10^6$ bytes) cross the bus in one call?

# %%
guess = None  # MB

argument = result = np.broadcast_to(np.float32(0), (65536, 1024)).nbytes
predict(guess, (2 * argument + 2 * result) / 1e6, unit="MB")

# %% [markdown]
# The argument crosses to the host and back, and so does the result: a gigabyte, for a kernel that moves half of that in
# the memory of the device. `jax.experimental.buffer_callback` copies nothing. The function is given XLA's buffers, with
# the interface that we know, and the stream that XLA works on. The results are buffers to be filled.

# %%
show(jax_functions.in_place)

# %% [markdown]
# It is marked as experimental, and Python still has to run at each call. The last
# step is `jax.ffi`, a function in C++ that XLA calls without Python. It would have to launch our kernel's machine code
# through the CUDA driver, and it is out of place in a workbook in Python.
#
# The gradient is a rule, as in PyTorch. `jax.custom_vjp` takes a function that says what is kept, and one that computes
# the gradients.

# %%
show(jax_functions.layer_norm)
print(*frameworks.said("in_jax"), sep="\n")

# %%
print(*frameworks.measured("in_jax"), sep="\n")

# %% [markdown]
# The way through the host takes hundreds of times as long as the others, or more: it is the time of the bus. In the
# first table, one array to the host and back was `through the host`; here there are two. JAX's own formula is the
# fastest row. Our kernel alone takes less than that: [chapter 91](91_a_fusing_compiler.ipynb) has it at the same size,
# in the column `layernorm` as `the room`. Most of what `in_place` takes is the way to the kernel.
#
# The line "outside of jit" uses no callback. JAX is waited for, the kernel is called with JAX's array, and JAX borrows
# the result by DLPack. Where a kernel stands between two large compiled functions, this is enough.
#
# ## One file of weights
#
# A trained network is a dictionary of arrays. Our layers have PyTorch's names, shapes and layouts, so the dictionary is
# the same. In the file there is no Python: *safetensors* begins with the length of a header, eight bytes, then the
# header in JSON, and then the numbers.

# %%
nn.manual_seed(0)
net = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
with tempfile.TemporaryDirectory() as folder:
    path = Path(folder) / "net.safetensors"
    nn.save(path, model=net)
    raw = path.read_bytes()
(length,) = struct.unpack("<Q", raw[:8])
header = json.loads(raw[8 : 8 + length])
for name in ("0.weight", "2.bias"):
    print(name, header[name])

# %%
first, last = header["2.bias"]["data_offsets"]
numbers = np.frombuffer(raw[8 + length :][first:last], np.float32)
print("the bytes are the numbers:", np.array_equal(numbers, net.state_dict()["2.bias"]))

# %% [markdown]
# So a network that was trained here is loaded by `torch_net.load_state_dict(safetensors.torch.load_file(path))`. And
# `nn.load` reads what PyTorch has written.

# %%
print(*frameworks.said("states"), sep="\n")

# %% [markdown]
# ## What to take along
#
# - An array is an address, a shape, strides, a dtype, a device, and somebody who keeps the memory. Two libraries that
#   agree on these need no copy. Strides count bytes in the interfaces, and elements in DLPack.
# - Keep the object, not the address. A pool hands memory out again, and then a wrong number is the only sign.
# - Either everything runs on one stream, or somebody waits for an event. PyTorch does not say which stream it uses:
#   pass its current one on.
# - Record a graph on the stream of its warm-up. Pools keep memory by stream, and an empty one cannot be filled while a
#   graph is recorded.
# - An operator is more than a function: its shapes without memory, its gradient, what it changes. A compiler believes
#   what it is told, so test that with `opcheck`.
# - In float32, check the formula in float64 by differences, and the kernel against the formula.
# - A callback through the host costs what the bus costs. Look for the way that is given memory and a stream.
#
# ## Exercises
#
# 1. *Find the alias.* An operator that is called in a loop allocates its result again and again. `Kept` saves that: it
#    allocates once. The verdict below says that something is wrong. What is it, when would it show in a training step,
#    and what is the smallest change that mends it and still saves the allocation where that is safe?


# %%
class Kept:
    """Layer normalisation of rows, with a result that is allocated once."""

    def __init__(self, shape):
        self.out = device.empty(shape, np.float32)

    def __call__(self, x, weight, bias):
        return normalisation.layer_norm(x, weight, bias, out=self.out)


# %%
def verdict(operator):
    """Call an operator twice, as two layers of a network would, and look at the first result again."""
    inputs = (device.to_device(np.arange(i, 8 + i, dtype=np.float32).reshape(2, 4) ** 2) for i in (0, 3))
    ones, zeros = (device.to_device(np.full(4, value, np.float32)) for value in (1, 0))
    first = operator(next(inputs), ones, zeros)
    before = device.to_host(first).copy()
    second = operator(next(inputs), ones, zeros)
    if device.address(first) == device.address(second):
        return (
            f"both results lie at one address: the first has changed by {abs(device.to_host(first) - before).max():.1g}"
        )
    return "right" if np.array_equal(device.to_host(first), before) else "the first result has changed"


print(verdict(Kept((2, 4))))

# %% [markdown]
# 2. *A third operator.* `elementwise.add` is a room. Which of the four things does its operator need, and which of them
#    are a single line?
#
# ## Answers
#
# *interop/borrow:* bytes for NumPy, and C order made from the end.


# %% jupyter={"source_hidden": true} tags=["answer"]
def borrow_answer(memory, byte_offset, shape, strides, code, bits):
    size = bits // 8
    if not len(strides):
        strides = [int(np.prod(shape[d + 1 :])) for d in range(len(shape))]
    dtype = np.dtype({0: "i", 1: "u", 2: "f"}[code] + str(size))
    return np.ndarray(tuple(shape), dtype, memory.data, byte_offset, tuple(size * int(step) for step in strides))


check("interop/borrow", borrow_answer)

# %% [markdown]
# *interop/extent:* each dimension moves either the first byte or the last.


# %% jupyter={"source_hidden": true} tags=["answer"]
def extent_answer(address, shape, strides, itemsize):
    if 0 in shape:
        return np.array([address, address])
    reach = (shape - 1) * strides
    return np.array([address + np.minimum(reach, 0).sum(), address + np.maximum(reach, 0).sum() + itemsize])


check("interop/extent", extent_answer)

# %% [markdown]
# *interop/backward:* the first part as if the root were a constant; from it the part of the row that changes the root.


# %% jupyter={"source_hidden": true} tags=["answer"]
@cuda.jit
def backward_answer(dy, x, weight, inverse, out):
    row = cuda.grid(1)
    if row < x.shape[0]:
        total = np.float32(0)
        for j in range(x.shape[1]):
            total += dy[row, j] * weight[j] * x[row, j]
        r = inverse[row]
        common = r * r * total / np.float32(x.shape[1])
        for j in range(x.shape[1]):
            out[row, j] = r * (dy[row, j] * weight[j] - x[row, j] * common)


check("interop/backward", backward_answer)

# %% [markdown]
# *Find the alias.* Every result is the same array. If two layers share the operator, or if one layer is used twice, the
# second call overwrites the activation that the first one's `backward` will read. In a loop that uses each result
# before the next call nothing shows, which is how such code survives its tests. The safe cache is the allocator's pool:
# it hands memory out again when nobody holds it any longer, and that is what the operator needs to know and cannot. So
# the operator allocates, and the allocation is cheap. A caller who knows better can give `out` for one call.


# %% jupyter={"source_hidden": true} tags=["answer"]
class Mended:
    """A result for each call; the caller may say where."""

    def __call__(self, x, weight, bias, out=None):
        return normalisation.layer_norm(x, weight, bias, out=out)


print(verdict(Mended()))

# %% [markdown]
# *A third operator.* The forward pass launches the room. The shapes are those of broadcasting, one line. Nothing is
# kept but two shapes. The gradient is what came from above, summed along the axes that were repeated; PyTorch's own
# `sum` does that, and the compiler may fuse it. The schema says that nothing is changed.
#
# Go on with [chapter 96](96_cpu_against_gpu.ipynb): when a CPU is enough.
