"""Every kernel of every room is compiled to PTX, for the types that it is launched with. No GPU is needed.

It is compiled for the oldest GPU alone: that one can do least, and later ones run what was made for it. A room whose
instructions came later says so by its ``CAPABILITY``, and of a kernel by ``CAPABILITY_OF``, which has the name of what
makes it. Compiling takes long. So of kernels that one function makes with other constants, and of types that differ
only in the order of an array's axes, one is enough here. So is one of the dtypes that a kernel is launched with. The
kernels of a room take turns: one is compiled for 32 bits, the next one for 64. What two parts launch is compiled in
one. NVVM's optimiser is left out, which takes a fifth of the time: what it makes is read by tests of the rooms. A GPU
compiles all, with it.

What a GPU has compiled, and nothing has changed since, is not compiled again: see `tests.contract.attested`.
"""

import collections
import functools
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import pytest

import tests.support.clusters  # noqa: F401 (lets Numba compile kernels of clusters without a GPU)
from pmpp import cuda, parallel
from pmpp.kernels import (
    activation,
    attention,
    compression,
    convolution,
    convolution_layer,
    dropout,
    elementwise,
    fft,
    graph,
    matmul,
    mri,
    optimiser,
    pooling,
    potential,
    quantisation,
    random,
    reduction,
    scan,
    softmax,
    sort,
    sparse,
    sparsity,
    stencil,
    vector_add,
    wavefront,
)
from pmpp.kernels.attention import cached, decode, heads, masked
from pmpp.kernels.convolution import dimensions
from pmpp.kernels.convolution_layer import definition, find, mixed_boxes
from pmpp.kernels.convolution_layer import mixed as mixed_layer
from pmpp.kernels.fft import any_length, any_length_planes, any_length_real, one_trip, one_trip_real, real
from pmpp.kernels.graph.by_launches import levels_by_launches
from pmpp.kernels.graph.pagerank import pagerank
from pmpp.kernels.matmul import batched, fused, mixed, products, tensor_cores, warpgroups
from pmpp.kernels.matmul.warpgroups import Cut, Tile
from pmpp.kernels.mri import cosines_alone
from pmpp.kernels.optimiser import copies as many_copies
from pmpp.kernels.potential import roots_alone
from pmpp.kernels.reduction import over_axes
from pmpp.kernels.reduction.operators import operator_of
from pmpp.kernels.scan.segmented import segmented_scan
from pmpp.kernels.sparse import conjugate_gradient, formats, gathers_alone, propagation_blocking
from pmpp.kernels.sparsity import ladder as sparse_products
from pmpp.kernels.wavefront import roofs, traceback
from pmpp.lab.rooms import BESIDE, rooms, subject_of
from pmpp.parallel import halo, plates
from pmpp.runtime import device
from pmpp.runtime.dtypes import known
from pmpp.runtime.rung import room_name
from pmpp.runtime.views import strided
from tests.contract.attested import skip_if_attested
from tests.support.compiled import OLDEST, launches_of, reached_by
from tests.support.mutants import first_line, kernels_in

ROOMS = rooms()
SUBJECTS = sorted({subject_of(room) for room in ROOMS})
KERNELS = Path(__file__).parents[2] / "pmpp" / "kernels"
FURTHER = {}  # functions by the name of their subject: see `further`


def further(subject):
    """The decorated function launches what a subject launches beyond what its rungs make of their room's inputs."""

    def note(function):
        FURTHER[subject.__name__.rpartition(".")[2]] = function
        return function

    return note


@further(vector_add)
def copies():
    for dtype in known(vector_add.DTYPES):
        vector_add.copy(np.ones(4, dtype))


@further(matmul)
def products_of_batches():
    a, b = np.ones((2, 3, 8), np.float32), np.ones((2, 8, 5), np.float32)
    for tiles, one in ((batched.TILES, np.ones((2, 8, 4), np.float32)), (batched.GUARDED, b)):
        for tile in tiles[::-1]:  # the smallest first: it is compiled fastest
            with mock.patch.object(batched, "tile_for", lambda *_, tile=tile: tile):
                batched.multiply(a, one)
    every_second = strided(device.to_device(np.ones(6 * 32, np.float32)), (3, 16), (64, 2))
    fused.batched(every_second, np.ones((16, 4), np.float32))
    products_of_16_bits()
    products_on_hopper()
    with (
        mock.patch.object(tensor_cores, "is_for_engine", return_value=True),
        mock.patch.object(tensor_cores, "FED", tensor_cores.Tile(64, 256, 64, 2, 2)),
    ):
        tensor_cores.fed(np.ones((8, 8), np.float16), np.ones((8, 8), np.float16))


def products_on_hopper():
    """Rows that do not begin at multiples of 16 bytes, sums in parts, recorded ones too, and results of both widths."""
    tile = Tile(64, 64, 2)
    for rounded in (False, True):
        with mock.patch.object(products, "plan_for", return_value=Cut(tile, 8, 1)):
            products.product(np.ones((5, 9), np.float16), np.ones((9, 5), np.float16), rounded=rounded)
        with (
            mock.patch.object(products, "plan_for", return_value=Cut(tile, 8, 0, 2)),
            mock.patch.object(warpgroups, "is_recorded", return_value=True),
        ):
            products.product(np.ones((8, 72), np.float16), np.ones((72, 8), np.float16), rounded=rounded)
    with mock.patch.object(products, "plan_for", return_value=Cut(tile, 8, 1)):
        products.product(np.ones((8, 32), np.int8), np.ones((8, 32), np.int8).T)


def products_of_16_bits():
    """Each order of the operands, results of 16 and of 32 bits, in vectors and one by one; copies; parts of a sum."""
    for dtype in known(mixed.DTYPES):
        a, b = np.ones((8, 16), dtype), np.ones((16, 8), dtype)
        by_columns = strided(device.to_device(b), (8, 16), (1, 8))
        for wanted in (None, "float32"):
            mixed.multiply(a, b, np.ones(8, dtype), dtype=wanted)
            mixed.multiply(by_columns, strided(device.to_device(a), (16, 8), (1, 16)), dtype=wanted)
            mixed.multiply(a[:, :5], b[:5, :3], dtype=wanted)
        with mock.patch.object(mixed, "cut_for", return_value=(mixed.TILES[-1], 2)):
            mixed.multiply(a, b)
        with mock.patch.object(mixed, "by_warpgroups", return_value=True):
            mixed.multiply(a, b, np.ones(8, dtype))
            mixed.multiply(a, b, dtype="float32")
            mixed.multiply(by_columns, b)
            mixed.multiply(a, strided(device.to_device(b), (16, 8), (1, 16)))


@further(attention)
def weights_of_masked_scores():
    for given in known(masked.DTYPES):
        masked.masked_softmax(np.ones((1, 2, 3), given), causal=True)
    for size in (1, 8):
        heads.together(heads.apart(np.ones((1, 2, 3 * size), np.float16), 1))
    kept = [device.to_device(np.zeros((1, 1, 2, 3), np.float32)) for _ in range(2)]
    cached.join(*kept, *np.ones((2, 1, 1, 3), np.float32), np.int32([1]))
    for given in known(decode.DTYPES[1:]):  # a rung leaves few texts to the one before
        q, k = np.ones((1, 1, 64), given), np.ones((1, 1, 1, 64), given)
        few = decode.arguments(q, k, k, np.int32([1]))
        if decode.can_feed(few):
            decode.launch_fed(few)


@further(convolution)
def other_dimensions():
    x = np.ones((3, 4, 5), np.float32)
    dimensions.tiled_1d(x[0, 0], x[0, 0, :3])
    dimensions.tiled_3d(x, x)


@further(reduction)
def other_operators():
    for rung in reduction.LADDER:
        for dtype in reduction.DTYPES:
            for op in reduction.OPERATORS:
                rung(np.ones(5, dtype), op)
    over_axes.planned(np.ones(5, np.int32), 0, operator_of(common_bits, np.int32(-1)))
    reduction.sum(np.ones(5, np.float32))


@cuda.jit(device=True)
def common_bits(a, b):
    return a & b


@further(compression)
def codes_and_signs():
    x = np.ones(300, np.float32)
    for bits in compression.BITS:
        compression.decompress(np.zeros(compression.words_of(300, bits), np.uint32), 300, bits)
    compression.masked(x, np.zeros(10, np.uint32))
    compression.signs(x)


@further(quantisation)
def the_way_back():
    for columns in (3, 4):
        quantisation.dequantise(np.ones((2, columns), np.int8), np.ones(2, np.float32))
    with mock.patch.object(quantisation.weight_only, "shares", return_value=4):  # as for 8192 rows of W on an H200
        quantisation.multiply(np.ones((1, 8), np.float16), np.ones((3, 64), np.uint8), np.ones((3, 1), np.float32))


@further(elementwise)
def views_and_constants():
    x = elementwise.full((40, 36), 1)
    elementwise.copy(strided(x, (36, 40), (1, 36)))
    elementwise.indexed(x[::2, ::2], None, "copy")
    for given in known(elementwise.DTYPES):
        for wanted in known(elementwise.DTYPES):
            elementwise.cast(np.ones(16, given), wanted)
    for given in known(elementwise.widening.SHORT):
        elementwise.add_widened(np.ones(16, np.float32), np.ones(16, given))
        whole = device.to_device(np.ones(17, np.float32))[1:], device.to_device(np.ones(17, given))[1:]
        elementwise.add_widened(*whole)


@further(sort)
def the_longest_segment():
    sort.sort_segments(np.zeros(2049, np.int32), np.int32([0, 9, 2049]))


@further(sparse)
def a_solver_and_other_formats():
    with mock.patch.object(conjugate_gradient, "_total", return_value=1.0):  # as if something were left to do
        conjugate_gradient.solve(*sparse.poisson(3), np.ones(9, np.float32), most=1)
    with (  # nothing is computed here
        mock.patch.object(formats, "number_at", return_value=3),
        mock.patch.object(propagation_blocking, "number_at", return_value=3),
        mock.patch.object(propagation_blocking, "shares_of", return_value=(np.int32([0, 3]), np.int32([0]))),
    ):
        for make in (
            formats.to_coordinates, formats.to_columns, formats.to_padded, formats.to_hybrid, formats.to_jagged,
            formats.to_tiled,
        ):  # fmt: skip
            made = make(*sparse.poisson(3), 9)
            formats.multiply(made, np.ones(9, np.float32))
            formats.to_rows(made)
        with mock.patch.dict(propagation_blocking.CAPABILITY_OF, add_kernel_for=(99, 0), multiply_kernel_for=(99, 0)):
            formats.multiply(made, np.ones(9, np.float32))  # as if this GPU had no asynchronous copies
        formats.from_dense(formats.to_dense(*sparse.poisson(3), 9))
    values, columns, _ = map(device.to_device, sparse.poisson(3))
    gathers_alone.gathers_alone(values, columns, device.to_device(np.ones(9, np.float32)))


@further(sparsity)
def the_format_and_an_engine():
    values, metadata = sparsity.prune(np.ones((8, 8), np.float16))
    sparsity.decompress(values, metadata, 8)
    with mock.patch.object(sparse_products, "is_for_engine", return_value=True):
        sparse_products.fed(values, metadata, np.ones((8, 8), np.float16))


@further(potential)
def roots():
    threads = roots_alone.turns_of(1)[0] * roots_alone.BLOCK
    roots_alone.roots_alone(device.to_device(np.ones(threads, np.float32)), 1)


@further(mri)
def cosines():
    threads = cosines_alone.turns_of(1)[0] * cosines_alone.BLOCK
    cosines_alone.cosines_alone(device.to_device(np.ones(threads, np.float32)), 1)


@further(wavefront)
def a_table_and_roofs():
    traceback.table_of(np.ones(2, np.uint8), np.ones(3, np.uint8))  # `align` reads the table, which nobody fills here
    wavefront.shortest_paths.by_fours(np.ones((129, 129), np.float32))  # more than a tile
    with mock.patch.object(roofs, "_grid", return_value=1), mock.patch.object(roofs, "THREADS", 32):
        roofs.max_add(1)
        roofs.add_min(1)


@further(graph)
def ranks_and_a_launch_for_each_level():
    path = graph.both_ways([0, 1], [1, 2], vertices=3)
    for by in ("pull", "push"):
        pagerank(*path, by=by, most=1)
    with mock.patch.object(device, "to_host", return_value=np.zeros(1, np.int64)):  # as if nothing had been found
        levels_by_launches(*path)


@further(scan)
def segments():
    for x in [np.ones(3, dtype) for dtype in scan.DTYPES]:
        segmented_scan(x, np.ones(3, np.bool_))
    segmented_scan(np.ones(3, np.float32), np.ones(3, np.uint8))


@further(activation)
def gradients_of_biases():
    for rung in activation.activation_backward.LADDER:
        for shape in ((2, 2, 4), (2, 2, 40)):
            for dtype in known(activation.DTYPES):
                x = np.ones(shape, dtype)
                rung(x, x, "relu", return_bias_gradient=True)


@further(pooling)
def positions_of_maxima():
    x = np.ones((1, 1, 4, 8), np.float32)
    for rung in pooling.LADDER:
        for options in (("max", 2), ("max", 3, 2, 1), ("max", 3)):
            rung(x, *options, return_positions=True)
            rung(x, *options, return_indices=True)


@further(fft)
def long_and_real_lines():
    fft.vectorised(np.ones(8192, np.complex64))
    any_length.fused(np.ones(6561, np.complex64))  # a matrix, and a convolution that is one
    any_length.fused(np.ones(3089, np.complex64))
    one_trip.two_trips(np.ones(4096, np.complex64))
    one_trip.in_rounds(np.ones(2**14, np.complex64))
    any_length_planes.fftn(np.ones((5, 3), np.complex64))
    for n in (7, 25, 50):  # by complex numbers in memory, and in a block an odd and an even number
        any_length_real.rfft(np.ones(n, np.float32))
        any_length_real.irfft(np.ones(n // 2 + 1, np.complex64), n)
    for n in (32, 128, 2**14, 2**15):  # a thread's, a block's in two ways, and a matrix
        one_trip_real.rfft(np.ones(n, np.float32))
        one_trip_real.irfft(np.ones(n // 2 + 1, np.complex64))
    with mock.patch.object(one_trip_real, "IN_BLOCK", 16):  # as if a line were longer than a matrix
        one_trip_real.rfft(np.ones(128, np.float32))
    real.rfft(np.ones((2, 8, 16), np.float32), 2)
    real.irfft(np.ones((2, 8, 9), np.complex64), 2)


@further(random)
def one_number_at_a_time():
    dropout.redrawn(np.ones(5, np.float32))


@further(optimiser)
def clipping_and_steps_that_the_device_counts():
    arrays = [device.to_device(np.ones(5, np.float32)) for _ in range(4)]
    optimiser.clip_norm_(arrays, 1.0)
    optimiser.adam_(*arrays, step=device.to_device(np.zeros(1, np.int64)))
    optimiser.tensors.put(np.arange(5), 0)
    many_copies.copy_(arrays[:1], arrays[1:2])


@further(softmax)
def gradients_of_shares():
    for shape, axis in (((2, 5), 1), ((2, 5), 0)):
        for dtype in (np.float32, np.float64):
            softmax.backward(np.ones(shape, dtype), np.ones(shape, dtype), axis)


@further(stencil)
def parts_of_a_plate():
    for way in plates.WAYS:
        plates.Plates(np.ones((8, 12), np.float32), [0, 0], way).run(1, changes=True)
    space = halo.Part(parallel.init(), np.ones((4, 5, 6), np.float32))
    space.compute()
    halo.move(space.old, space.new)
    halo.move(device.to_device(np.ones((4, 8), np.float32)), device.to_device(np.ones((4, 8), np.float32)))


@further(convolution_layer)
def sampled_errors_biases_and_tiles():
    problem = definition.arguments(*definition.inputs()["1x1 s2, bias"][:3], 2)
    find.samples_of(problem).error(problem.result)
    convolution_layer.bias_gradient(np.ones((2, 1, 50, 60), np.float32))
    for shape in ((1, 16, 16, 16), (1, 16, 18, 18)):  # read in vectors, and element by element
        x = np.ones(shape, np.float32)
        convolution_layer.weight_gradients.tiled(x, x, 3, 1, 1)
    layers_of_16_bits()
    gradients_with_channels_last()


def gradients_with_channels_last():
    """A filter for each channel, with and without a stride; products in vectors and one by one; places of a class."""
    of = convolution_layer.channels_last_gradients
    for channels, groups, stride in ((4, 4, 1), (4, 4, 2), (16, 1, 2), (3, 1, 2)):
        x, w = np.ones((1, 6, 6, channels), np.float32), np.ones((channels, 3, 3, channels // groups), np.float32)
        dy = np.ones((1, 6 // stride, 6 // stride, channels), np.float32)
        of.input_gradient(dy, w, x.shape, stride, 1, 1, groups)
        of.weight_gradient(dy, x, 3, stride, 1, 1, groups)


def layers_of_16_bits():
    """Both dtypes; results in vectors and one by one; with a bias; and a stride that is undone."""
    for dtype in known(mixed_layer.DTYPES):
        x, w = np.ones((1, 8, 5, 5), dtype), np.ones((8, 8, 3, 3), dtype)
        mixed_layer.convolution(x, w, np.ones(8, dtype), 2, 1)
        mixed_layer.convolution(np.ones((1, 8, 4, 4), dtype), w, None, 1, 1)
        mixed_layer.input_gradient(np.ones((1, 8, 3, 3), dtype), w, x.shape, 2, 1)
        mixed_layer.weight_gradient(np.ones((1, 8, 3, 3), dtype), x, 3, 2, 1)
        with mock.patch.object(mixed_layer, "by_warpgroups", return_value=64):
            mixed_layer.convolution(x, w, np.ones(8, dtype), 2, 1)
            mixed_layer.input_gradient(np.ones((1, 8, 3, 3), dtype), w, x.shape, 2, 1)
            mixed_layer.input_gradient(np.ones((1, 8, 3, 3), dtype), w[:, :, :1, :1].copy(), x.shape, 2)
        mixed_layer.weight_gradient(np.ones((1, 72, 4, 4), dtype), np.ones((1, 8, 4, 4), dtype), 1)
        x, w = np.ones((1, 64, 3, 3), dtype), np.ones((64, 64, 1, 1), dtype)
        with mock.patch.object(mixed_boxes, "_suits", return_value=True):  # images of 9 pixels, and of 8
            mixed_layer.convolution(x, w, np.ones(64, dtype))
            mixed_layer.input_gradient(x, w, x.shape)
            mixed_layer.weight_gradient(x[:, :, :2, :2].repeat(2, 3), x[:, :, :2, :2].repeat(2, 3), 1)
        rows = device.to_device(np.ones((64, 64), dtype))
        mixed_boxes.transposed_product(rows, rows, 0, counted=True)


PARTS = [*map(room_name, ROOMS), *(f"{subject}, further" for subject in FURTHER)]


@functools.cache
def inputs_of(room):
    """Its inputs, made once for all its rungs: nothing is computed here, so nothing writes to them."""
    return list(room.inputs().values())


@functools.cache
def launches(name):
    """Of a room by its rungs on its inputs, or of a subject beyond these: the types by kernel."""
    if name.endswith(", further"):
        calls = [FURTHER[name.removesuffix(", further")]]
    else:
        room = next(room for room in ROOMS if room_name(room) == name)
        calls = [functools.partial(rung, *case) for rung in room.LADDER for case in inputs_of(room)]
    with np.errstate(all="ignore"):  # what no kernel has written may hold any number
        return launches_of(calls)


@pytest.mark.parametrize("room", ROOMS, ids=room_name)
def test_every_kernel_of_a_rung_is_launched(room):
    """What `@rung` names is what runs. A kernel may also be made by a function that the rung names."""
    parts = [part for part in (room_name(room), f"{subject_of(room)}, further") if part in PARTS]
    launched = {function for part in parts for kernel in launches(part) for function in reached_by(kernel)}
    made_in = {function.__qualname__.partition(".")[0] for function in launched}
    for rung in room.LADDER:
        for kernel in rung.kernels:
            function = getattr(kernel, "py_func", kernel)
            assert function in launched or function.__name__ in made_in, f"{function.__name__} was never launched"


def launched_by(rung, room):
    """What a rung launches itself on its room's inputs. What `begin` and `finish` launch is every rung's."""
    problems = []

    def prepare():
        for problem in (rung.arguments(*arguments) for arguments in inputs_of(room)):
            if problem.begin is not None and rung.begins and not problem.done:
                problem.begin(problem)
            problems.append(problem)

    launches_of([prepare])
    return launches_of([functools.partial(rung.launch, problem) for problem in problems if not problem.done])


@pytest.mark.parametrize("room", ROOMS, ids=room_name)
def test_every_kernel_that_a_rung_launches_is_named(room):
    """`@rung` names it, or a function that makes it; or it belongs to a rung of another room, called as a whole."""
    elsewhere = {kernel for other in ROOMS if other is not room for rung in other.LADDER for kernel in rung.kernels}
    elsewhere = {getattr(kernel, "py_func", kernel) for kernel in elsewhere}
    for rung in room.LADDER:
        named = {getattr(kernel, "py_func", kernel) for kernel in rung.kernels}
        makers = {function.__name__ for function in named | elsewhere}
        for kernel in launched_by(rung, room):
            function = getattr(kernel, "py_func", kernel)
            known = function in named | elsewhere or function.__qualname__.partition(".<locals>")[0] in makers
            assert known, f"{rung.name} launches {function.__name__}, which @rung does not name"


STAND_FOR_OTHERS = ("float32", "int64")


def alike(argument):
    """What tells types apart here: of an array its rank, and whether elements are complex numbers or truth values."""
    from numba.cuda import types as nt

    if isinstance(argument, nt.BaseTuple):
        return tuple(map(alike, argument))
    element = getattr(argument, "dtype", argument)
    if not isinstance(element, nt.Integer | nt.Float | nt.Complex):
        return argument
    return getattr(argument, "ndim", 0), isinstance(element, nt.Complex)


def width(signature):
    """The bits of the widest element of an array; those of truth values do not count."""
    return max((getattr(one.dtype, "bitwidth", 0) for one in signature if hasattr(one, "layout")), default=0)


def code_of(kernel):
    return getattr(kernel, "py_func", kernel).__code__


def kind(launch):
    """What tells launches of two parts apart: the code, the types as far as they are not `alike`, and the width."""
    kernel, signature = launch
    return code_of(kernel), tuple(map(alike, signature)), width(signature)


@functools.cache
def chosen(part):
    """Of kernels with the same code one, and its types: of the launches with the most numbers and dimensions among
    their arguments those of the width that has been chosen least, and of these the first that stand for others.

    A GPU compiles each kernel for whatever it is launched with.
    """
    found, taken = {}, collections.Counter()
    for kernel, signatures in launches(part).items():
        found.setdefault(code_of(kernel), []).extend((kernel, signature) for signature in signatures)

    def cost(launch):
        others = [one for one in launch[1] if hasattr(one, "layout") and str(one.dtype) not in STAND_FOR_OTHERS]
        return -sum(map(parts_in, launch[1])), taken[width(launch[1])], len(others)

    made = []
    for group in found.values():
        made.append(min(group, key=cost))
        taken[width(made[-1][1])] += 1
    return made


def parts_in(argument):
    """The numbers in an argument of a kernel, and the dimensions of its arrays, by their types."""
    from numba.cuda import types as nt

    if isinstance(argument, nt.BaseTuple):
        return sum(map(parts_in, argument))
    return 1 + getattr(argument, "ndim", 0)


def parts_of(subject):
    return [part for part in PARTS if subject == subject_of_part(part)]


def subject_of_part(part):
    if part.endswith(", further"):
        return part.removesuffix(", further")
    return next(subject_of(room) for room in ROOMS if room_name(room) == part)


def to_compile(part):
    """What is chosen of a part, but not what another part has: one of the subject that the kernel is of, the first."""
    for launch in chosen(part):
        home = parts_of(launch[0].__module__.split(".")[2])
        others = home[: home.index(part)] if part in home else home
        if not any(kind(launch) in map(kind, chosen(other)) for other in others):
            yield launch


def launching(part):
    """The file that says what a part launches: of a room its own, and beyond the rooms this one."""
    return next((room.__file__ for room in ROOMS if room_name(room) == part), __file__)


@pytest.mark.parametrize("part", PARTS)
def test_every_kernel_compiles(part, ptx):
    skip_if_attested(__file__, launching(part))
    for kernel, signature in to_compile(part):
        module, maker = (
            sys.modules[kernel.__module__],
            getattr(kernel, "py_func", kernel).__qualname__.partition(".")[0],
        )
        oldest = getattr(module, "CAPABILITY_OF", {}).get(maker, getattr(module, "CAPABILITY", OLDEST))
        assert ".entry" in ptx(kernel, *signature, cc=oldest, opt=device.on_gpu())


@pytest.mark.parametrize("subject", SUBJECTS)
def test_no_kernel_is_left_out(subject):
    """Every ``@cuda.jit`` of a subject is among those that `test_every_kernel_compiles` compiles, or called by one."""
    parts = [room_name(room) for room in ROOMS if subject_of(room) == subject]
    parts += [part for part in PARTS if part == f"{subject}, further"]
    kernels = {kernel for part in parts for kernel in launches(part)}
    codes = [function.__code__ for kernel in kernels for function in reached_by(kernel)]
    compiled = {(code.co_filename, code.co_firstlineno) for code in codes}
    files = [path for path in (KERNELS / subject).glob("*.py") if not path.stem.endswith(BESIDE)]
    left_out = [
        f"{path.name}:{first_line(node)} {node.name}"
        for path in files
        for node in kernels_in(path)
        if (str(path), first_line(node)) not in compiled
    ]
    assert left_out == []
