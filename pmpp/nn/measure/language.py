"""A small language model on one GPU, trained and measured: ``python -m pmpp.nn.measure.language``.

The transformer of `pmpp.nn.examples.transformer`, 6 layers of width 384, is trained in bfloat16 on the source of
Python's standard library. Recorded are its losses, its perplexity on text that it has not seen beside that of a model
that only counts bytes, and what it then writes. *Reading* is a pass over whole texts of 256 tokens, and *writing* is a
step for one further token of each text, with a cache of keys and values. Both are in float32, as `generate` works,
and are timed for several numbers of texts; and for one text by NumPy on the CPU, from the same parameters.

Training and reading share few kernels. So two processes compile theirs at the same time, and take turns on the GPU: one
trains, and the other one reads and writes everything once meanwhile, with a network that has learned nothing. When the
first one has trained, the second one goes on with the parameters.

It prints what it found, and writes the record ``language.json`` after each part.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import statistics
import tempfile
import time
import typing
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from pmpp import cuda, nn
from pmpp.nn.examples import transformer
from pmpp.nn.examples.numpy_transformer import NumpyTransformer
from pmpp.nn.examples.transformer import Cache, Transformer
from pmpp.nn.measure import processes, write
from pmpp.nn.tape import Tensor
from pmpp.runtime import device

LAYERS, WIDTH, HEADS, LENGTH, TEXTS, STEPS = 6, 384, 6, 256, 64, 600
TOGETHER = 1, 8, 64  # texts that are read or written at a time
PROMPT = b"def "


class Work(typing.NamedTuple):
    """The least work of a pass: FLOP and bytes."""

    flops: int
    bytes: int

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes


def work_of(layers: int, width: int, vocabulary: int, texts: int, length: int, used: int = 0) -> Work:
    """The work of a pass over ``length`` further tokens of each text, which has ``used`` tokens already, in float32.

    A multiply-add for each weight and token, and one for each element of a key and of a value that a token sees. The
    weights are read once for all texts. Keys and values of each text are read, and those of its new tokens are written.

    >>> work_of(6, 384, 256, 1, 1, 255).flops, work_of(6, 384, 256, 1, 1, 255).bytes
    (23789568, 47579136)
    """
    weights = 12 * layers * width**2 + vocabulary * width
    seen = length * used + length * (length + 1) // 2
    flops = 2 * texts * (length * weights + 2 * layers * width * seen)
    return Work(flops, 4 * (weights + 2 * layers * width * texts * (used + length)))


def counting_perplexity(training: np.ndarray, held_out: np.ndarray, vocabulary: int = 256) -> float:
    """The perplexity of a model that knows only how often each byte occurs in the training text, plus one time each.

    >>> round(counting_perplexity(np.array([0, 0, 0, 1]), np.array([0, 1]), 2), 3)
    2.121
    """
    counts = np.bincount(training, minlength=vocabulary) + 1
    return math.exp(-float(np.log(counts[held_out] / counts.sum()).mean()))


def reading(net: Transformer, tokens: np.ndarray) -> Callable[[], typing.Any]:
    """A pass over whole texts."""
    given, places = Tensor(tokens), Tensor(np.arange(tokens.shape[1]))

    def read() -> Tensor:
        with nn.no_grad():
            return net(given, places)

    return read


def writing(net: Transformer, tokens: np.ndarray) -> Callable[[], typing.Any]:
    """A step for the last token of each text, on the keys and values of all before it."""
    cache, last = Cache(net, len(tokens)), Tensor(np.ascontiguousarray(tokens[:, -1]))
    step = transformer.recorded(net, cache)

    def write_one() -> Tensor:
        cache.used = tokens.shape[1] - 1
        with nn.no_grad():
            return step(last)

    return write_one


def seconds_of(call: Callable, at_least: float = 0.05, rounds: int = 7) -> float:
    """The median time of a call from host to host: many are queued, and waited for at the end."""

    def run(n: int) -> float:
        cuda.synchronize()
        began = time.perf_counter()
        for _ in range(n):
            call()
        cuda.synchronize()
        return (time.perf_counter() - began) / n

    run(2)  # compiles
    n = max(2, int(at_least / run(2)))
    return statistics.median(run(n) for _ in range(rounds))


def costs(
    net: Transformer, data: np.ndarray, seconds: Callable[[Callable], float] = seconds_of, together=TOGETHER
) -> Iterator[dict]:
    """Rows: what was done, by whom, of how many texts, in what time, with which least work."""
    vocabulary, width = net.tokens.weight.shape
    shape = net.layers, width, vocabulary
    for texts in together:
        begins = np.arange(texts)[:, None] * net.length % (len(data) - net.length)
        tokens = data[begins + np.arange(net.length)]
        for what, call, work in (
            ("read", reading(net, tokens), work_of(*shape, texts, net.length)),
            ("write", writing(net, tokens), work_of(*shape, texts, 1, net.length - 1)),
        ):
            count = texts * (net.length if what == "read" else 1)
            yield {
                "what": what,
                "who": "ours",
                "texts": texts,
                "seconds": seconds(call),
                "tokens": count,
                **work._asdict(),
            }
    other, tokens = NumpyTransformer(net.state_dict(), net.layers, net.heads), data[: net.length]
    work = work_of(*shape, 1, net.length)
    yield {
        "what": "read",
        "who": "NumPy",
        "texts": 1,
        "seconds": seconds(lambda: other.read(tokens)),
        "tokens": net.length,
        **work._asdict(),
    }

    def write_one() -> None:
        kept = [list(pair) for pair in other.cache]
        other.go_on(tokens[-1:])
        other.cache, other.used = kept, net.length - 1

    other.read(tokens[:-1])
    work = work_of(*shape, 1, 1, net.length - 1)
    yield {"what": "write", "who": "NumPy", "texts": 1, "seconds": seconds(write_one), "tokens": 1, **work._asdict()}


NETWORK = "layers", "width", "heads", "length", "texts", "steps"


def texts_of() -> tuple[np.ndarray, np.ndarray]:
    """The text to train on, and the text held out."""
    data = transformer.text()
    kept = len(data) // transformer.HELD_OUT
    return data[:-kept], data[-kept:]


def network(options: argparse.Namespace) -> Transformer:
    """The network before it has learned anything."""
    nn.manual_seed(0)
    return Transformer(options.layers, options.width, options.heads, options.length)


def trained(options: argparse.Namespace, state: Path, turn: contextlib.AbstractContextManager) -> dict[str, typing.Any]:
    """What was found in training. The parameters are in the file ``state`` then."""
    training, held_out = texts_of()
    with turn:
        net = network(options)
        found: dict[str, typing.Any] = {
            "network": {name: getattr(options, name) for name in NETWORK},
            "parameters": sum(p.size for p in net.parameters()),
            "bytes_of_text": len(training) + len(held_out),
            "counting_perplexity": counting_perplexity(training, held_out),
        }
        losses, times, began = [], [], time.perf_counter()
        for loss in transformer.train(net, training, options.steps, texts=options.texts, dtype="bfloat16"):
            losses.append(loss)
            times.append(time.perf_counter() - began)
            if len(losses) in (1, 2) or not len(losses) % max(options.steps // 10, 1):
                print(f"step {len(losses)}: loss {loss:.3f}, {times[-1]:.1f} s", flush=True)
        later = len(times) // 2  # the first steps compile
        rate = (len(times) - 1 - later) * options.texts * options.length / (times[-1] - times[later] or math.inf)
        parameters = net.state_dict()
    whole = state.with_suffix(".part.npz")
    np.savez(whole, **parameters)
    whole.rename(state)  # so that it is there as a whole or not at all
    return found | {"losses": losses, "seconds": times, "training_tokens_per_s": rate}


def read_and_written(
    options: argparse.Namespace, state: Path, turn: contextlib.AbstractContextManager
) -> Iterator[dict[str, typing.Any]]:
    """What was found with the parameters in the file ``state``, part by part, as soon as it is there."""
    _, held_out = texts_of()
    prompt = np.frombuffer(PROMPT, np.uint8).astype(np.int64)[None]
    with turn:
        net = network(options)
        transformer.perplexity(net, held_out, most=1)
        transformer.generate(net, prompt, 2, temperature=0.7)
        for _ in costs(net, held_out, once):
            pass
    print("all is compiled", flush=True)
    while not state.is_file():
        time.sleep(0.05)
    with turn:
        net.load_state_dict(dict(np.load(state)))
        yield {"perplexity": transformer.perplexity(net, held_out)}
        written = transformer.generate(net, prompt, options.length - len(PROMPT), temperature=0.7)
        yield {"written": bytes(written[0].astype(np.uint8)).decode("utf-8", "replace")}
        rows = []
        for row in costs(net, held_out):
            rows.append(row)
            print(line(row), flush=True)
        yield {"costs": rows}


def once(call: Callable) -> float:
    """A call, so that its kernels are compiled; no time."""
    call()
    return math.inf


def both(options: argparse.Namespace, seconds: float) -> Iterator[dict[str, typing.Any]]:
    """All that was found so far, after each part of both processes."""
    found: dict[str, typing.Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        own = ["--lock", str(Path(folder) / "gpu.lock"), "--state", str(Path(folder) / "state.npz")]
        own += [word for name in NETWORK for word in (f"--{name}", str(getattr(options, name)))]
        commands = {name: ["pmpp.nn.measure.language", "--here", name, *own] for name in ("training", "reading")}
        with contextlib.closing(processes.answers(commands, seconds)) as coming:
            for _, part in coming:
                found |= part
                if "perplexity" in part and "counting_perplexity" in found:
                    print(f"perplexity {found['perplexity']:.2f}, by counting {found['counting_perplexity']:.2f}")
                if "written" in part:
                    print(part["written"], flush=True)
                yield found


def line(row: dict[str, typing.Any]) -> str:
    """A row of the table."""
    rate, flops = row["tokens"] / row["seconds"], row["flops"] / row["seconds"]
    words = f"{1e3 * row['seconds']:10.3f} ms {rate:12,.0f} tokens/s {flops / 1e12:8.3f} TFLOP/s"
    return f"{row['what']:6}{row['who']:6}{row['texts']:4} texts {words} {row['flops'] / row['bytes']:8.1f} FLOP/byte"


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Measure, print and record."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.measure.language", description=__doc__.split("\n")[0])
    for name, value in (("layers", LAYERS), ("width", WIDTH), ("heads", HEADS), ("length", LENGTH)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--texts", type=int, default=TEXTS, help="in a step of training")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seconds", type=float, default=300.0, help="how long it may take (default: 300)")
    parser.add_argument("--out", type=Path, help="where to write the record; by default among those of this GPU")
    parser.add_argument("--here", choices=("training", "reading"), help=argparse.SUPPRESS)  # one part, in this process
    parser.add_argument("--lock", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--state", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if not device.on_gpu():
        print(f"a GPU is needed: {device.describe()}")
        return 2
    if options.here:
        turns = processes.turns(options.lock)
        if options.here == "training":
            processes.answer(trained(options, options.state, turns))
        else:
            for part in read_and_written(options, options.state, turns):
                processes.answer(part)
        return 0
    found, path = {}, None
    for found in both(options, options.seconds):
        path = write("language", "pmpp/nn/measure/language.py", found, options.out)
    print(f"recorded in {path}" if path else "nothing was found")
    return 0 if "costs" in found and "losses" in found else 1


if __name__ == "__main__":
    raise SystemExit(main())
