"""A small transformer that learns to write Python: ``python -m pmpp.nn.examples.transformer``.

It is a decoder as GPT-2's: the embedding of a byte and that of its place are added; blocks follow, of attention and of
two linear layers with a GELU between them, each behind a layer normalisation and beside a shortcut; and the head is the
table of embeddings once more. It is trained on the source of some modules of Python's standard library, which every
machine has, with a byte as token. `generate` then writes, with a cache of keys and values.

Source: A. Vaswani and others, Attention Is All You Need (2017); A. Radford and others, Language Models are Unsupervised
Multitask Learners (2019), section 2.3; O. Press and L. Wolf, Using the Output Embedding to Improve Language Models
(2017), for the tied head.
"""

from __future__ import annotations

import argparse
import functools
import importlib.util
import math
import time
import typing
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from pmpp import nn
from pmpp.kernels import attention
from pmpp.kernels.attention import cached
from pmpp.nn import functional as F
from pmpp.nn import init
from pmpp.nn.tape import Tensor, state
from pmpp.runtime import device
from pmpp.runtime.check import as_integer, as_number

__all__ = ["Block", "Cache", "Transformer", "generate", "perplexity", "recorded", "text", "train"]

MODULES = ("argparse", "ast", "difflib", "heapq", "inspect", "pathlib", "random", "statistics", "textwrap", "typing")
BYTES = 256
FEW = 8  # steps, for which it does not pay to record one
HELD_OUT = 16  # the last part of so many of the text is kept for evaluation


def text(modules: typing.Sequence[str] = MODULES) -> np.ndarray:
    """The source of modules of the standard library, one after another, as bytes: int64."""
    found = []
    for name in modules:
        spec = importlib.util.find_spec(name)
        if spec is None or not spec.origin or not spec.origin.endswith(".py"):
            raise ValueError(f"modules must be modules whose source is here, {name!r} is not")
        found.append(Path(spec.origin).read_bytes())
    return np.frombuffer(b"\n".join(found), np.uint8).astype(np.int64)


class Block(nn.Module):
    """Attention and two linear layers, each behind a normalisation and beside a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """x of shape (texts, length, width)."""
        x = x + self.out(F.self_attention(self.qkv(self.norm1(x)), self.heads))
        return x + self.down(F.gelu(self.up(self.norm2(x))))

    def step(self, x: Tensor, cache: Cache, i: int) -> Tensor:
        """The same for one more token of each text, x (texts, width), on the keys and values of layer i."""
        texts, width = x.shape
        qkv = self.qkv(self.norm1(x)).reshape(texts, 3, self.heads, width // self.heads)
        seen = Tensor(cache.attend(i, qkv)).reshape(texts, width)
        x = x + self.out(seen)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    """A decoder with ``layers`` blocks, for texts of at most ``length`` tokens.

    width is a multiple of heads. Linear layers and tables begin normal with a deviation of 0.02, as GPT-2's.
    """

    def __init__(
        self, layers: int = 6, width: int = 384, heads: int = 6, length: int = 256, vocabulary: int = BYTES
    ) -> None:
        layers, heads = as_integer("layers", layers, 0), as_integer("heads", heads, 1)
        if width % heads:
            raise ValueError(f"heads must divide width, {width}, was {heads}")
        self.layers, self.heads, self.length = layers, heads, length
        self.tokens, self.places = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        for i in range(layers):
            setattr(self, f"block{i}", Block(width, heads))
        self.norm = nn.LayerNorm(width)
        with nn.no_grad():
            for name, parameter in self.named_parameters():
                if parameter.ndim == 2:
                    deep = name.endswith(("out.weight", "down.weight"))  # what is added to the shortcut, twice a layer
                    parameter.copy_(init.normal(parameter.shape, 0.0, 0.02 / math.sqrt(2 * layers) if deep else 0.02))
                elif name.endswith("bias"):
                    parameter.copy_(np.zeros(parameter.shape, np.float32))

    def blocks(self) -> Iterator[Block]:
        """The blocks, the first one first."""
        return (getattr(self, f"block{i}") for i in range(self.layers))

    def forward(self, tokens: Tensor, places: Tensor | None = None) -> Tensor:
        """Scores (texts, length, vocabulary) of what comes next, for tokens (texts, length).

        ``places``: the numbers from 0 to length - 1, for a step that is recorded: it cannot bring them from the host.
        """
        if tokens.ndim != 2 or tokens.shape[1] > self.length:
            raise ValueError(f"tokens must have the shape (texts, at most {self.length}), had {tokens.shape}")
        if places is None:
            places = Tensor(np.arange(tokens.shape[1]))
        x = self.tokens(tokens) + self.places(places)
        for block in self.blocks():
            x = block(x)
        return F.linear(self.norm(x), self.tokens.weight)

    def step(self, tokens: Tensor, cache: Cache) -> Tensor:
        """Scores (texts, vocabulary) of what comes after one more token of each text. It joins the cache.

        ``tokens``: of the shape (texts,). A step that fails leaves the cache as it was.
        """
        if cache.sizes != self.sizes:
            raise ValueError(f"cache must be of a network with {self.sizes}, was of one with {cache.sizes}")
        return cache.with_room(tokens, lambda: self.newest(tokens, cache))

    @property
    def sizes(self) -> dict[str, int]:
        """What a cache depends on."""
        size = self.tokens.weight.shape[1] // self.heads
        return {"layers": self.layers, "heads": self.heads, "length": self.length, "size": size}

    def newest(self, tokens: Tensor, cache: Cache) -> Tensor:
        """The same for a cache that has grown: the launches are those of any other token, and can be recorded."""
        x = self.tokens(tokens) + self.places(cache.places)
        for i, block in enumerate(self.blocks()):
            x = block.step(x, cache, i)
        return F.linear(self.norm(x), self.tokens.weight)


class Cache:
    """The keys and values of each layer, of all tokens so far: what a further token looks at.

    Where the newest token stands is known on the device, too: a recorded step reads it there.
    """

    def __init__(self, net: Transformer, texts: int) -> None:
        self.sizes = net.sizes
        shape = texts, net.heads, net.length, net.sizes["size"]
        self.keys = [device.to_device(np.zeros(shape, np.float32)) for _ in range(net.layers)]
        self.values = [device.to_device(np.zeros(shape, np.float32)) for _ in range(net.layers)]
        self.used, self.length = 0, net.length
        self.places, self.lengths = Tensor(np.zeros(texts, np.int64)), Tensor(np.zeros(texts, np.int32))

    def grow(self) -> None:
        """Make room for a further token of each text."""
        if self.used == self.length:
            raise ValueError(f"the cache is full: it has {self.length} tokens")
        self.used += 1
        self.places.copy_(np.full(self.places.shape, self.used - 1, np.int64))
        self.lengths.copy_(np.full(self.lengths.shape, self.used, np.int32))

    def with_room(self, tokens: Tensor, step: typing.Callable[[], Tensor]) -> Tensor:
        """What ``step`` returns after the cache has grown. If it fails, the room is given back."""
        if tokens.shape != self.places.shape:
            raise ValueError(f"tokens must have shape {self.places.shape}, one for each text, had {tokens.shape}")
        self.grow()
        try:
            return step()
        except BaseException:
            self.used -= 1
            raise

    def attend(self, i: int, qkv: Tensor) -> typing.Any:
        """Attention of the newest token of each text, (texts, heads, size); its key and value join the cache."""
        q, k, v = (qkv[:, part].array for part in range(3))
        cached.join(self.keys[i], self.values[i], k, v, self.lengths.array, stream=state.stream)
        lengths = self.lengths.array
        return attention.attention_with_cache(q, self.keys[i], self.values[i], lengths, stream=state.stream)


def batches(data: np.ndarray, count: int, texts: int, length: int, seed: int = 0) -> Iterator[tuple]:
    """``count`` times tokens and what follows each, (texts, length), from random places."""
    if len(data) <= length:
        raise ValueError(f"data must have more than {length} tokens, had {len(data)}")
    rng = np.random.default_rng(seed)
    for _ in range(count):
        begins = rng.integers(0, len(data) - length, texts)[:, None]
        yield data[begins + np.arange(length)], data[begins + 1 + np.arange(length)]


def loss_of(net: Transformer, tokens: Tensor, following: Tensor, places: Tensor | None = None) -> Tensor:
    """The mean over all places of minus the logarithm of the share that the right token got."""
    scores = net(tokens, places)
    return F.cross_entropy(scores.reshape(-1, scores.shape[-1]), following.reshape(-1))


def train(
    net: Transformer,
    data: np.ndarray,
    steps: int,
    *,
    texts: int = 64,
    lr: float = 1e-3,
    dtype: str | None = None,
    seed: int = 0,
) -> Iterator[float]:
    """Train by AdamW with one cycle of the learning rate; ``dtype``: "float16" or "bfloat16" for mixed precision.

    Yields the loss of each step, of which there are at least 2.
    """
    steps, texts = as_integer("steps", steps, 2), as_integer("texts", texts, 1)
    optimizer = nn.optim.AdamW(net.parameters(), lr=lr, betas=(0.9, 0.95), weight_decay=0.1)
    schedule = nn.lr_scheduler.OneCycleLR(optimizer, lr, steps, pct_start=0.1)
    scaler = nn.amp.GradScaler(enabled=dtype == "float16")
    for given in batches(data, steps, texts, net.length, seed):
        tokens, following = map(Tensor, given)
        optimizer.zero_grad()
        with nn.amp.autocast(dtype="float16" if dtype is None else dtype, enabled=dtype is not None):
            loss = loss_of(net, tokens, following)
        scaler.scale(loss).backward()
        scaler.unscale_(optimizer)
        nn.clip_grad_norm_(net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        schedule.step()
        yield loss.item()


def perplexity(net: Transformer, data: np.ndarray, *, texts: int = 16, most: int = 8) -> float:
    """e to the mean loss of at most ``most`` batches of the data: among so many tokens the network wavers.

    ``data``: at least two tokens of the network's vocabulary.
    """
    texts, most = as_integer("texts", texts, 1), as_integer("most", most, 1)
    if len(data) < 2:
        raise ValueError(f"data must have at least 2 tokens, had {len(data)}")
    _known("data", data, net)
    length = min(net.length, len(data) - 1)
    begins = np.arange(0, len(data) - length, length)[: texts * most]
    losses = []
    with nn.no_grad():
        for some in (begins[i : i + texts, None] for i in range(0, len(begins), texts)):
            tokens, following = data[some + np.arange(length)], data[some + 1 + np.arange(length)]
            losses.append((loss_of(net, Tensor(tokens), Tensor(following)).item(), len(some)))
    mean, shares = zip(*losses, strict=True)
    return math.exp(float(np.average(mean, weights=shares)))


def _known(name: str, tokens: np.ndarray, net: Transformer) -> None:
    """Raises ValueError unless the network has all these tokens: its table would give NaN for others."""
    vocabulary = net.tokens.weight.shape[0]
    if tokens.size and not (tokens.min() >= 0 and tokens.max() < vocabulary):
        raise ValueError(f"{name} must be of tokens from 0 to {vocabulary - 1}, was {tokens.min()} to {tokens.max()}")


def generate(
    net: Transformer, prompt: np.ndarray, count: int, *, temperature: float = 0.0, seed: int = 0
) -> np.ndarray:
    """``count`` more tokens for each prompt (texts, n), with a cache: each costs one step for one token.

    With a temperature of 0 the likeliest token follows, else one drawn from softmax(scores / temperature). All is in
    float32, also under `autocast`. Returns the prompts and what follows, (texts, n + count).
    Raises TypeError or ValueError that names the argument at fault, what it was and what is accepted.
    """
    count, prompt = as_integer("count", count, 0), np.asarray(prompt)
    temperature = float(as_number("temperature", temperature, 0, dtype=np.float64))
    if prompt.ndim != 2 or not prompt.shape[1]:
        raise ValueError(f"prompt must have the shape (texts, 1 or more), had {prompt.shape}")
    _known("prompt", prompt, net)
    if prompt.shape[1] + count > net.length + 1:
        raise ValueError(f"prompt and count must be at most {net.length + 1} together, were {prompt.shape[1] + count}")
    rng, made = np.random.default_rng(seed), [*prompt.T]
    cache, steps = Cache(net, len(prompt)), prompt.shape[1] + count - 1
    step = recorded(net, cache) if steps > FEW else functools.partial(net.step, cache=cache)
    with nn.no_grad(), nn.amp.autocast(enabled=False):
        for i in range(steps):
            scores = step(Tensor(np.ascontiguousarray(made[i])))
            if i + 1 >= prompt.shape[1]:
                made.append(chosen(scores.numpy(), temperature, rng))
    return np.stack(made, axis=1)


def recorded(net: Transformer, cache: Cache) -> typing.Callable[[Tensor], Tensor]:
    """`net.step` on that cache as a CUDA graph, which is queued at once. Each call overwrites the scores of the last.

    A step for few texts is some seventy small launches, and the host takes longer to queue them than the GPU to carry
    them out. Without a GPU, or without CuPy, it is the step itself.
    """
    if not device.on_gpu() or importlib.util.find_spec("cupy") is None:
        return functools.partial(net.step, cache=cache)
    used = cache.used
    cache.grow()  # recording takes place on the next token, which the first call then overwrites
    with nn.no_grad(), nn.amp.autocast(enabled=False):
        graph = nn.capture(lambda tokens: net.newest(tokens, cache), Tensor(np.zeros(cache.places.shape, np.int64)))
    cache.used = used

    return lambda tokens: cache.with_room(tokens, lambda: graph(tokens))


def chosen(scores: np.ndarray, temperature: float, rng: np.random.Generator) -> np.ndarray:
    """A token for each row of scores."""
    if temperature == 0:
        return scores.argmax(axis=1)
    # The greatest of the scores with Gumbel noise is a draw from their softmax. Below the highest nothing overflows.
    below = scores.astype(np.float64) - scores.max(axis=1, keepdims=True)
    return (below / temperature + rng.gumbel(size=scores.shape)).argmax(axis=1)


def main(argv: typing.Sequence[str] | None = None) -> float:
    """Train, print perplexity and speed, and write something. Returns the perplexity of the text held out."""
    parser = argparse.ArgumentParser(prog="python -m pmpp.nn.examples.transformer", description=__doc__.split("\n")[0])
    small = not device.on_gpu()
    parser.add_argument("--steps", type=int, default=30 if small else 500)
    parser.add_argument("--layers", type=int, default=1 if small else 6)
    parser.add_argument("--width", type=int, default=32 if small else 384)
    parser.add_argument("--heads", type=int, default=2 if small else 6)
    parser.add_argument("--length", type=int, default=32 if small else 256)
    parser.add_argument("--texts", type=int, default=8 if small else 64, help="in a step")
    parser.add_argument("--dtype", choices=("float16", "bfloat16"), help="for mixed precision; else float32")
    options = parser.parse_args(argv)
    print(f"kernels run on: {device.describe()}")
    data = text()
    kept = len(data) // HELD_OUT
    training, held_out = data[:-kept], data[-kept:]
    nn.manual_seed(0)
    net = Transformer(options.layers, options.width, options.heads, options.length)
    print(f"{len(data):,} bytes, {sum(p.size for p in net.parameters()):,} parameters")
    began = time.perf_counter()
    for i, loss in enumerate(train(net, training, options.steps, texts=options.texts, dtype=options.dtype)):
        if (i + 1) % max(options.steps // 10, 1) == 0:
            print(f"step {i + 1}: loss {loss:.3f}, {time.perf_counter() - began:.1f} s", flush=True)
    seconds = time.perf_counter() - began
    print(f"{options.steps * options.texts * options.length / seconds:,.0f} tokens a second in training")
    found = perplexity(net, held_out)
    print(f"perplexity of the text held out: {found:.2f}")
    prompt = np.frombuffer(b"def ", np.uint8).astype(np.int64)[None]
    began, count = time.perf_counter(), options.length - prompt.shape[1]
    written = generate(net, prompt, count, temperature=0.7)
    print(f"{count / (time.perf_counter() - began):,.0f} tokens a second in generation")
    print(bytes(written[0].astype(np.uint8)).decode("utf-8", "replace"))
    return found


if __name__ == "__main__":
    main()
