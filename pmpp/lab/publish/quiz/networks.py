"""Questions about networks: layers, gradients, optimisers, and what they keep in memory."""

from __future__ import annotations

import math
import random

from pmpp.lab.publish.quiz.model import Number, many, question, shown


@question("74_linear")
def one_row_through_a_layer(draw: random.Random) -> Number:
    """The intensity of a layer for a few rows."""
    rows, features, outputs = draw.choice((1, 2, 4, 8)), draw.choice((512, 1024, 4096)), draw.choice((512, 2048, 4096))
    flops = 2 * rows * features * outputs
    nbytes = 4 * (rows * features + features * outputs + rows * outputs)
    return Number(
        f"{many(rows, 'row')} of {features} float32 {'go' if rows > 1 else 'goes'} through a linear layer with "
        f"{outputs} outputs and without a bias. Inputs and weights are read once, and the results are written once. "
        "How many FLOP are there for each byte?",
        flops / nbytes,
        "FLOP/byte",
        f"{flops:,} FLOP and {nbytes:,} bytes. Nearly all bytes are weights, and each weight is used "
        f"{many(rows, 'time')}.",
        {
            flops / nbytes / 2: "A multiply-add counts as two FLOP.",
            4 * flops / nbytes: "A number has 4 bytes.",
            features / 6: "This is so for square matrices: n / 6.",
        },
        within=0.03,
        given={"rows": rows, "features": features, "outputs": outputs},
    )


@question("74_linear")
def idle_multiprocessors(draw: random.Random) -> Number:
    """Multiprocessors without a tile."""
    rows, outputs = draw.choice((32, 64, 128, 256, 512)), draw.choice((10, 84, 120, 200, 400, 1000))
    tile, sms = draw.choice((32, 64, 128)), draw.choice((58, 80, 108, 132, 144))
    tiles = -(-rows // tile) * -(-outputs // tile)
    return Number(
        f"A layer makes {rows} x {outputs} results, in tiles of {tile} x {tile}. A block computes one tile, and each "
        f"block gets a multiprocessor of its own as long as there is one; the GPU has {sms}. How many multiprocessors "
        "have nothing to do?",
        max(sms - tiles, 0),
        "multiprocessors",
        f"{-(-rows // tile)} x {-(-outputs // tile)} = {tiles} tiles for {sms} multiprocessors.",
        {
            min(tiles, sms): "These have something to do.",
            sms - rows * outputs // tile**2: "A part of a tile is a block as well.",
        },
        given={"rows": rows, "outputs": outputs, "tile": tile, "sms": sms},
    )


@question("76_convolution_gradients")
def products_with_zeros(draw: random.Random) -> Number:
    """What a strided layer's gradient costs with zeros."""
    stride, out, window = draw.choice((2, 3, 4)), draw.choice((14, 28, 56)), draw.choice((3, 5))
    wide = (out - 1) * stride + 1
    ratio = wide**2 / out**2
    return Number(
        f"A convolution layer with a stride of {stride} makes {out} x {out} outputs. To get the gradient of its input "
        f"by an ordinary convolution, one puts {stride - 1} zero{'s' if stride > 2 else ''} between neighbours of the "
        f"gradient, along both axes, and convolves what results with a window of {window} x {window} and padding, so "
        "that it keeps its size. How many times as many products as the forward layer does that compute?",
        ratio,
        "times as many",
        f"With zeros it is {wide} x {wide}, against {out} x {out} outputs of the forward layer, with as many products "
        "for each.",
        {float(stride): "There are two axes.", 1.0: "The products with zeros are computed as well."},
        within=0.03,
        given={"stride": stride, "out": out},
    )


@question("78_gradients_of_pooling_and_activations")
def windows_of_an_element(draw: random.Random) -> Number:
    """In how many windows an element lies."""
    window, stride = draw.choice([(w, s) for w in (2, 3, 4, 5, 7) for s in (1, 2, 3, 4) if s <= w])
    return Number(
        f"Pooling has windows of {window} x {window} and a stride of {stride} along both axes. In how many windows "
        "does an element lie on average, far from the edges?",
        (window / stride) ** 2,
        "windows",
        f"Along an axis it is {window} / {stride} on average: a window has {window} places, and a new one begins "
        f"every {stride}.",
        {
            window / stride: "This is along one axis.",
            float(window**2): "A window begins only at every stride.",
            1.0: "Windows overlap.",
        },
        given={"window": window, "stride": stride},
    )


@question("80_random_numbers")
def mask_that_is_stored(draw: random.Random) -> Number:
    """What a stored mask of dropout costs."""
    size, mask = draw.choice((2, 4)), draw.choice((1, 4))
    apart = 4 + 4 + mask + mask + 2 * size
    return Number(
        f"Dropout on a long array of numbers of {size} bytes. One program writes random numbers of 4 bytes; a second "
        f"kernel reads them and writes a mask of {mask} byte{'s' if mask > 1 else ''} an element; a third reads the "
        "mask and all of x, and writes y. Another program makes the random numbers in registers, reads x and writes "
        "y. How many times the bytes of the second program does the first one move?",
        apart / (2 * size),
        "times the bytes",
        f"4 + 4 + {mask} + {mask} + {size} + {size} = {apart} bytes an element, against {2 * size}.",
        {
            (apart - 4) / (2 * size): "The random numbers are written and read.",
            (apart - mask) / (2 * size): "The mask is written and read.",
        },
        given={"size": size, "mask": mask},
    )


@question("81_monte_carlo")
def samples_for_an_error(draw: random.Random) -> Number:
    """How many samples a smaller error takes."""
    samples, factor = draw.choice((500, 2000, 10_000, 40_000)), draw.choice((2, 3, 4, 5, 10))
    error = draw.choice((0.08, 0.12, 0.3, 0.6))
    return Number(
        f"The mean of {samples:,} independent random samples has a standard error of {error}. How many samples does "
        f"it take in all, if the standard error shall be {error / factor:.4g}?",
        samples * factor**2,
        "samples",
        f"The standard error is the spread over sqrt(N), so an error that is {factor} times as small takes "
        f"{factor**2} times the samples.",
        {
            samples * factor: "The error falls with the square root of the number of samples.",
            samples * (factor**2 - 1): "These are the samples that come to those which there are.",
        },
        given={"samples": samples, "factor": factor, "error": error},
    )


@question("82_optimisers")
def launches_of_an_optimiser(draw: random.Random) -> Number:
    """What many small launches cost."""
    tensors, kernels, launch = (
        draw.choice((20, 38, 62, 110, 161)),
        draw.choice((4, 6, 8, 10)),
        draw.choice((4, 5, 6, 8)),
    )
    return Number(
        f"A network has {tensors} tensors of parameters, all of them small. An optimiser has {kernels} operations for "
        f"each, with a kernel each, and a launch takes the host {launch} us. How many microseconds does the host "
        "spend more than if one launch did all of it?",
        (tensors * kernels - 1) * launch,
        "us",
        f"{tensors} x {kernels} = {tensors * kernels} launches against one.",
        {
            tensors * kernels * launch: "The one launch costs something, too.",
            tensors * launch: "Each operation has a kernel of its own.",
        },
        within=0.005,
        given={"tensors": tensors, "kernels": kernels, "launch": launch},
    )


@question("84_gradients_of_normalisation")
def read_once_or_twice(draw: random.Random) -> Number:
    """What reading two inputs twice costs."""
    inputs, again = draw.choice((1, 2, 3, 4)), draw.choice((1, 2, 3))
    ratio = (inputs * (1 + again) + 1) / (inputs + 1)
    return Number(
        f"A kernel needs {inputs} large array{'s' if inputs > 1 else ''} of the same size, and writes one more. It "
        f"reads the inputs once for sums, and then {again} time{'s' if again > 1 else ''} more, since no cache holds "
        "them. How many times the least bytes does it move? The least is to read each input once and to write the "
        "result.",
        ratio,
        "times the bytes",
        f"{inputs} x {1 + again} + 1 = {inputs * (1 + again) + 1} arrays move, and {inputs + 1} are the least.",
        {1.0 + again: "The result is written once in both.", float(inputs): "Count the reads of each input."},
        given={"inputs": inputs, "again": again},
    )


@question("85_compressed_activations")
def bytes_of_codes(draw: random.Random) -> Number:
    """What few bits leave of an activation, with the range of each group."""
    bits, group, size = draw.choice((1, 2, 4, 8)), draw.choice((32, 64, 128, 256, 512)), draw.choice((2, 4))
    each = bits + 2 * 8 * size / group
    return Number(
        f"A training keeps its activations as codes of {bits} bit{'s' if bits > 1 else ''}. Each {group} neighbours "
        f"have a least value and a step, of {size} bytes each. Which share of the bytes of float32 is that?",
        100 * each / 32,
        "percent",
        f"A code and its share of the two numbers are {bits} + {16 * size} / {group} = {shown(each)} bits, in the "
        "place of 32.",
        {
            100 * bits / 32: "The ranges of the groups count, too.",
            100 * (bits + 8 * size / group) / 32: "A group has two numbers: a least value and a step.",
            100 * (bits + 2 * size / group) / 32: "These are bits and bytes added up.",
        },
        within=0.01,
        given={"bits": bits, "group": group, "size": size},
    )


@question("88_a_tape")
def slope_of_a_square(draw: random.Random) -> Number:
    """A gradient by the chain rule."""
    w, x, b, t = (draw.choice([n for n in range(-5, 6) if n]) for _ in range(4))
    error = w * x + b - t
    return Number(
        f"L = (w x + b - t)^2 with w = {w}, x = {x}, b = {b}, t = {t}. What is the slope of L with respect to w?",
        2 * error * x,
        "slope",
        f"The error w x + b - t is {error}. The slope with respect to the error is 2 x {error}, and with respect to w "
        "it is that times x.",
        {
            2 * error: "This is the slope with respect to b.",
            error * x: "The slope of a square has a factor 2.",
            2 * error * w: "This is the slope with respect to x.",
            error**2: "This is L itself.",
        },
        given={"w": w, "x": x, "b": b, "t": t},
    )


@question("88_a_tape")
def gradient_of_a_broadcast(draw: random.Random) -> Number:
    """The gradient of what is broadcast."""
    rows, columns, factor = draw.randrange(2, 65), draw.randrange(2, 9), draw.randrange(2, 10)
    return Number(
        f"`x` has the shape ({rows}, {columns}), `bias` has the shape ({columns},), and the loss is the sum of all "
        f"elements of `(x + bias) * {factor}`. What is the gradient of one element of `bias`?",
        rows * factor,
        "gradient",
        f"Each element of `bias` is added in {rows} rows, and each of these has a slope of {factor}. The slopes add "
        "up.",
        {
            factor: "It is used in every row, and the slopes add up.",
            rows * columns * factor: "It is used in one column alone.",
            columns * factor: "It is used once in a row, and in every row.",
        },
        given={"rows": rows, "columns": columns, "factor": factor},
    )


@question("89_a_network_that_learns")
def first_loss(draw: random.Random) -> Number:
    """The loss before anything is learned."""
    classes = draw.choice((2, 3, 5, 8, 10, 20, 26, 100, 1000))
    return Number(
        f"A network that has not learned anything gives each of {classes} classes about the same share. The loss is "
        "minus the natural logarithm of the share of the right class. What is it?",
        math.log(classes),
        "loss",
        f"The share is 1 / {classes}, and -ln(1 / {classes}) = ln({classes}).",
        {
            math.log2(classes): "This is the logarithm to the base 2.",
            math.log10(classes): "This is to the base 10.",
            1 / classes: "This is the share.",
        },
        within=0.01,
        given={"classes": classes},
    )


@question("89_a_network_that_learns")
def parameters_of_a_convolution(draw: random.Random) -> Number:
    """The parameters of a convolution layer."""
    channels, filters, window = draw.choice((1, 3, 8, 16)), draw.choice((8, 16, 32, 64)), draw.choice((1, 3, 5, 7))
    return Number(
        f"A convolution layer has {channels} input channel{'s' if channels > 1 else ''}, {filters} filters and "
        f"windows of {window} x {window}, and a bias for each filter. How many parameters does it have?",
        filters * (channels * window**2 + 1),
        "parameters",
        f"{filters} x {channels} x {window} x {window} weights and {filters} biases.",
        {
            filters * channels * window**2: "The biases are missing.",
            filters * (window**2 + 1): "A filter has weights for each channel.",
            filters * channels * (window**2 + 1): "A filter has one bias, and not one for each channel.",
        },
        given={"channels": channels, "filters": filters, "window": window},
    )


@question("93_memory")
def state_of_adam(draw: random.Random) -> Number:
    """What training with Adam keeps."""
    features, hidden, classes = (
        draw.choice((64, 256, 784)),
        draw.choice((32, 100, 128, 256)),
        draw.choice((10, 26, 100)),
    )
    count = features * hidden + hidden + hidden * classes + classes
    return Number(
        f"A network is a linear layer from {features} to {hidden}, an activation, and a linear layer from {hidden} to "
        f"{classes}, both with a bias. It is trained with Adam, all in float32. How many bytes do the parameters, "
        "their gradients and the state of the optimiser take together?",
        16 * count,
        "bytes",
        f"There are {count:,} parameters. Each has its value, its gradient and two running means, of 4 bytes each.",
        {
            4 * count: "These are the parameters alone.",
            12 * count: "Adam keeps two means, or the gradients are missing.",
            8 * count: "This is the state of Adam alone, or parameters and gradients.",
            16 * (count - hidden - classes): "The biases are missing.",
        },
        given={"features": features, "hidden": hidden, "classes": classes},
    )


@question("93_memory")
def fragmented_pool(draw: random.Random) -> Number:
    """What a fragmented pool asks for."""
    pieces, wanted = draw.choice((8, 10, 12, 16, 20)), draw.choice((2, 3, 4))
    free = pieces // 2
    return Number(
        f"A pool of memory has asked the driver for {pieces} MiB in one piece and filled it with {pieces} arrays of 1 "
        f"MiB, in order. Every second one is freed. Then somebody wants an array of {wanted} MiB, in one piece. If "
        "nothing fits, the pool asks the driver for exactly as much as is wanted. How many MiB has it asked for in "
        "all?",
        pieces + wanted,
        "MiB",
        f"{free} MiB are free, but no two of them are neighbours.",
        {pieces: "No two free arrays are neighbours.", pieces + wanted - free: "What is free cannot be put together."},
        given={"pieces": pieces, "wanted": wanted},
    )


@question("94_incremental_learning")
def frozen_trunk(draw: random.Random) -> Number:
    """What is kept for a frozen trunk."""
    rows, features, classes = (
        draw.choice((16, 32, 64, 128)),
        draw.choice((64, 128, 256, 512)),
        draw.choice((10, 12, 20, 26)),
    )
    return Number(
        f"The trunk of a network is frozen, and only its head is trained, a linear layer from {features} features to "
        f"{classes} classes. For the backward pass the head keeps its input, and the loss keeps the gradients of its "
        f"scores, all in float32. How many bytes is that for a batch of {rows}?",
        4 * rows * (features + classes),
        "bytes",
        f"{rows} x {features} features and {rows} x {classes} gradients of 4 bytes. The trunk keeps nothing.",
        {
            4 * rows * features: "The loss keeps something, too.",
            rows * (features + classes): "A float32 has 4 bytes.",
            4 * features * classes: "These are the weights.",
        },
        given={"rows": rows, "features": features, "classes": classes},
    )


@question("97_choosing_a_gpu")
def when_the_other_is_faster(draw: random.Random) -> Number:
    """From which batch on arithmetic decides."""
    side = draw.choice((2048, 4096, 8192))
    wide, fast = draw.choice((1.6, 2.0, 3.4)), draw.choice((40, 60, 80))
    slow = draw.choice((10, 15, 20))

    def seconds(n: int, flops: float, bandwidth: float) -> float:
        return max(2 * n * side**2 / flops, 4 * (side**2 + 2 * side * n) / bandwidth)

    border = next(n for n in range(1, 10**5) if seconds(n, fast * 1e12, 1e12) < seconds(n, slow * 1e12, wide * 1e12))
    return Number(
        f"A linear layer of {side} x {side} in float32 takes the longer of two times: 2 n x {side}^2 operations for a "
        f"batch of n, and 4 bytes for each weight, input and output. One GPU does {slow} x 10^12 operations and moves "
        f"{shown(wide)} x 10^12 bytes a second; the other does {fast} x 10^12 operations and moves 1 x 10^12 bytes a "
        "second. From which n on is the other one faster?",
        border,
        "examples",
        "For small batches both wait for the weights, and the first one has more bandwidth. The other one is faster "
        "as soon as the first one's arithmetic takes longer than the other one's bytes.",
        {
            1: "A small batch waits for the weights.",
            round(slow / wide * 2): "Here the first one begins to wait for arithmetic.",
        },
        within=0.1,
        given={"side": side, "wide": wide, "fast": fast, "slow": slow},
    )


@question("99_all_reduce")
def bytes_around_a_ring(draw: random.Random) -> Number:
    """What a rank of a ring sends."""
    ranks, mib = draw.choice((2, 4, 5, 8, 10, 16)), draw.choice((80, 160, 240, 400, 560))
    return Number(
        f"{ranks} ranks each have an array of {mib} MiB, and all of them need the sum. The array is cut into {ranks} "
        "pieces of one length. Each piece goes once around the ring of ranks and is summed on its way. Then each sum "
        "goes around again, until all ranks have it. How many MiB does a rank send?",
        2 * mib * (ranks - 1) / ranks,
        "MiB",
        f"A piece has {shown(mib / ranks)} MiB. A rank sends {many(ranks - 1, 'piece')} while they are summed, and as "
        "many while the sums are told.",
        {
            mib * (ranks - 1) / ranks: "The sums have to be told, too.",
            2 * mib: "A piece has arrived after one step fewer than there are ranks.",
            2 * mib * (ranks - 1): "In a step a rank sends one piece, and not the whole array.",
        },
        within=0.01,
        given={"ranks": ranks, "mib": mib},
    )


@question("100_data_parallelism")
def bytes_of_a_sharded_optimiser(draw: random.Random) -> Number:
    """What a rank keeps if the optimiser's state is divided."""
    ranks, millions = draw.choice((2, 4, 5, 8, 16)), draw.choice((80, 240, 400, 800, 1600))
    whole, state = 8 * millions, 8 * millions / ranks
    return Number(
        f"A network has {millions} million parameters in float32, and is trained with Adam by {ranks} ranks. Each has "
        "all parameters and all gradients. The optimiser's state, two float32 numbers for each parameter, is divided "
        "among the ranks. How many MB (millions of bytes) does a rank keep of these three?",
        whole + state,
        "MB",
        f"Parameters and gradients are {shown(whole)} MB on each rank. The state is {shown(8 * millions)} MB, of which "
        f"a rank keeps {shown(state)}.",
        {
            16 * millions: "This is so if every rank keeps the whole state.",
            16 * millions / ranks: "Parameters and gradients are not divided.",
            whole + state / 2: "Adam keeps two numbers for each parameter.",
        },
        within=0.01,
        given={"ranks": ranks, "millions": millions},
    )


@question("101_tensor_parallelism")
def bytes_of_two_cut_layers(draw: random.Random) -> Number:
    """What a rank sends for a pair of layers, forward and backward."""
    ranks, width, rows = draw.choice((2, 4, 5, 8, 10)), draw.choice((1000, 2000, 4000)), draw.choice((250, 500, 2000))
    array = 4 * rows * width / 1e6
    sent = 2 * array * 2 * (ranks - 1) / ranks
    return Number(
        f"Two linear layers lead from {width} features to {4 * width} and back to {width}, with an activation between "
        f"them and without biases. {ranks} ranks divide them: the first by its outputs, the second by its inputs. All "
        f"ranks work on the same batch of {rows} rows in float32, and all-reduces go around a ring. How many MB "
        "(millions of bytes) does a rank send in a forward and a backward pass? The input needs a gradient.",
        sent,
        "MB",
        f"There are two all-reduces: of the result, and of the gradient of the input. Each of these arrays has "
        f"{shown(array)} MB, of which a rank of a ring sends 2 (p - 1)/p times as much.",
        {
            sent / 2: "There is an all-reduce in the forward pass, and one in the backward pass.",
            5 * sent: "The hidden features stay where they are.",
            2 * array: "An all-reduce around a ring sends 2 (p - 1)/p times the array.",
            2 * (ranks - 1) / ranks * 4 * 8 * width**2 / 1e6: "This is what the gradients of data parallelism take.",
        },
        within=0.01,
        given={"ranks": ranks, "width": width, "rows": rows},
    )


@question("102_pipeline_parallelism")
def step_of_a_pipeline(draw: random.Random) -> Number:
    """How long a step of a pipeline takes, with its bubble."""
    stages, count = draw.choice((3, 4, 5, 8)), draw.choice((6, 10, 12, 16, 20))
    forward, backward = draw.choice(((2, 4), (3, 6), (5, 10), (2, 5), (4, 9)))
    each = forward + backward
    return Number(
        f"A network is cut into {stages} stages on {stages} ranks, and a batch into {count} micro-batches. On each "
        f"stage a micro-batch takes {forward} ms forward and {backward} ms backward. First all go forward, and then "
        "all go back. Messages take no time. How many ms does the step take?",
        (count + stages - 1) * each,
        "ms",
        f"Each rank computes for {count * each} ms, and waits for as long as {stages - 1} micro-batches "
        f"take: {(stages - 1) * each} ms.",
        {
            count * each: "The stages wait for the first micro-batch, and for its gradients at the end.",
            (count + stages) * each: "One of the stages is the rank's own: it waits for the others.",
            count * stages * each: "The stages work at the same time, each on another micro-batch.",
        },
        within=0.01,
        given={"stages": stages, "count": count, "forward": forward, "backward": backward},
    )


@question("103_halo_exchange")
def step_of_a_halo_exchange(draw: random.Random) -> Number:
    """How long a step of a stencil over ranks takes if its messages are hidden."""
    ranks, rows, columns = draw.choice((4, 5, 8)), draw.choice((20, 30, 40)), draw.choice((200, 500, 1000))
    latency, cell = draw.choice((5, 8, 12)), draw.choice((1, 2))
    cells, border = rows * columns * cell / 1000, 2 * columns * cell / 1000
    messages = 2 * (latency + 4 * columns / 10_000)
    return Number(
        f"{ranks} ranks below each other share a grid of float32, whose cells become the mean of four neighbours. "
        f"Each has {rows} rows of {columns} cells, and a cell takes {cell} ns. A rank in the middle computes its first "
        f"and its last row. Then these rows travel to its neighbours: two messages, one after the other, each of which "
        f"takes {latency} us and 1 ns for every 10 bytes. Meanwhile it computes its other rows. How many us does its "
        "step take?",
        border + max(cells - border, messages),
        "us",
        f"The border takes {shown(border)} us, the other rows {shown(cells - border)}, and the messages "
        f"{shown(messages)}. The longer of the last two counts.",
        {
            cells + messages: "The messages travel while the other rows are computed.",
            max(cells, messages): "The messages begin when the border is there.",
            border + max(cells - border, messages / 2): "There are two messages, one after the other.",
        },
        within=0.01,
        given={"ranks": ranks, "rows": rows, "columns": columns, "latency": latency, "cell": cell},
    )


@question("104_thousands_of_gpus")
def checkpoints_of_many(draw: random.Random) -> Number:
    """How often a training on many GPUs writes a checkpoint."""
    gpus, years = draw.choice((1024, 2048, 4096, 8192, 16_384)), draw.choice((4, 5, 6, 8))
    writes = draw.choice((20, 45, 60, 90, 120))
    hours = years * 8766
    between = hours * 3600 / gpus
    return Number(
        f"One GPU fails every {hours:,} hours on average. A training on {gpus:,} GPUs stops when any of them fails, "
        f"and goes on from the last checkpoint. A checkpoint takes {writes} s. How many minutes should lie between two "
        "checkpoints?",
        (2 * writes * between) ** 0.5 / 60,
        "min",
        f"A failure comes every {shown(between / 60)} min. The loss w/t + t/(2T) is least at t = sqrt(2 w T).",
        {
            (2 * writes * hours * 3600) ** 0.5 / 60: "Any of the GPUs may fail, so failures come more often.",
            (writes * between) ** 0.5 / 60: "A failure loses half an interval on average: there is a factor of 2.",
            between / 60: "With one checkpoint between two failures half of all work is lost.",
        },
        within=0.02,
        given={"gpus": gpus, "years": years, "writes": writes},
    )


@question("105_mixed_precision")
def where_a_weight_stands_still(draw: random.Random) -> Number:
    """The first power of two that a step does not change any more."""
    name, bits = draw.choice((("float16", 11), ("bfloat16", 8)))
    k = draw.choice((12, 13, 14, 15))
    step = 1.25 * 2.0**-k
    last = 2.0 ** (bits + 1 - k)  # half its spacing, 2**(1 - k), is more than the step
    return Number(
        f"A weight is kept as a {name}, which has {bits} bits of precision. It begins at 0, and each step adds "
        f"{step:.6g} and rounds to the nearest {name}. At which number does it stop? It is a power of 2.",
        last,
        "",
        f"From {shown(last)} on, neighbours are {shown(last * 2.0 ** (1 - bits))} apart, and the step is less than "
        "half of that.",
        {
            last / 2: "There the step is still more than half a spacing, and is rounded up.",
            last * 2: "The step is lost if it is less than half a spacing, and this is a power of 2 earlier.",
        },
        within=0.01,
        given={"name": name, "k": k},
    )


@question("106_a_language_model")
def tokens_that_the_memory_allows(draw: random.Random) -> Number:
    """How fast one text can be written at most."""
    billions, bits = draw.choice((7, 8, 13, 34, 70)), draw.choice((16, 8, 4))
    rate = draw.choice((1.0, 2.0, 3.2, 4.8))
    gigabytes = billions * bits / 8
    return Number(
        f"A language model has {billions} billion weights of {bits} bits. A GPU reads {rate:.1f} TB/s from its memory, "
        "in which the whole model lies. How many tokens per second can it write at most, of one text? Leave the cache "
        "of keys and values out.",
        1000 * rate / gigabytes,
        "tokens/s",
        f"Each token needs all weights, {gigabytes:g} GB, so it takes at least {shown(gigabytes / rate)} ms.",
        {
            1000 * rate / billions: f"A weight has {bits} bits, which are {bits / 8:g} bytes.",
            1000 * rate / (billions * bits): "A byte has 8 bits.",
        }
        if bits != 8
        else {1000 * rate / (8 * billions): "A weight of 8 bits has one byte."},
        within=0.02,
        given={"billions": billions, "bits": bits, "rate": rate},
    )


@question("106_a_language_model")
def bytes_of_a_cache(draw: random.Random) -> Number:
    """How much memory the caches of many texts take."""
    layers, width = draw.choice(((12, 768), (24, 1024), (32, 4096), (40, 5120)))
    texts, length = draw.choice((4, 8, 16)), draw.choice((1024, 2048, 4096))
    made = 2 * layers * width * texts * length * 2 / 1e9
    return Number(
        f"A transformer has {layers} layers of width {width:,}, and each head has keys and values of its own. It "
        f"writes {texts} texts at a time, each of up to {length:,} tokens, with a cache of 16 bits. How many GB does "
        "the cache take?",
        made,
        "GB",
        f"For each token and layer a key and a value of {width:,} numbers are kept, of 2 bytes: "
        f"2 x {layers} x {width:,} x {texts} x {length:,} x 2 bytes.",
        {
            made / 2: "There are keys and values, and a number of 16 bits has 2 bytes: two factors of 2.",
            made / texts: f"Each of the {texts} texts has a cache of its own.",
            made / layers: f"Each of the {layers} layers has keys and values of its own.",
        },
        within=0.02,
        given={"layers": layers, "width": width, "texts": texts, "length": length},
    )
