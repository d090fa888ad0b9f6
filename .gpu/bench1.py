"""Batch 1: every algorithm that is in question, beside cuDNN, with floors and guesses. argv: worker, workers, out."""

import fcntl, json, os, sys, time, warnings, dataclasses

warnings.filterwarnings("ignore")
began = time.time()
import numpy as np
from types import SimpleNamespace as S

worker, workers, out = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
from pmpp.kernels.convolution_layer import cost_model, dispatch
from pmpp.kernels.convolution_layer.definition import Layer, arguments
from pmpp.kernels.convolution_layer.find import samples_of
from pmpp.kernels.convolution_layer.measured_layers import torch_conv2d
from pmpp.kernels.instruments.shapes.convolution_layer import layer_of
from pmpp.lab.measure import timing
from pmpp.lab.measure.arrays import normal
from pmpp.lab.measure.bench import adapter, fill_with_nan
from pmpp.lab.measure.shapes import drawing
from pmpp.runtime import device


def L(n, c, h, k, r, s=1, p=0, g=1):
    return Layer(n, c, h, h, k, r, r, (s, s), (p, p), groups=g)


SLOW = [
    L(4, 8, 89, 652, 1),
    L(1, 244, 150, 196, 1, 2),
    L(27, 140, 91, 231, 1, 2),
    L(61, 448, 12, 344, 7, 1, 3),
    L(61, 568, 10, 12, 3, 1, 1),
    L(6, 8, 184, 24, 3),
    L(35, 80, 132, 8, 1),
    L(4, 160, 59, 704, 1, 2),
    L(27, 280, 91, 280, 5, 2, 2, 280),
    L(2, 392, 98, 704, 3, 1, 1),
    L(41, 1728, 17, 1728, 7, 1, 3, 1728),
    L(32, 128, 56, 128, 3, 1, 1, 32),
]


def fresh(draw, count, seed):
    dice, found = drawing.Dice(seed), []
    while len(found) < count:
        s = draw(dice)
        if s is not None and drawing.least_seconds(s) > 5e-6 and s.bytes < 2**28:
            found.append(layer_of(s))
    return found


layers = SLOW + fresh(drawing._convolution, 22, 77) + fresh(drawing._depthwise, 6, 77)
torch, as_tensor = adapter("torch")
torch.backends.cudnn.benchmark = True
rule = timing.Rule(spread=0.03, min_repeats=5, max_repeats=9, max_seconds=0.02)
lock = open(os.environ["LOCK"], "w")
print(cost_model.rates(), flush=True) if worker == 0 else None
for place in range(worker, len(layers), workers):
    if time.time() - began > float(os.environ.get("LIMIT", "75")):
        print("LEFT OUT", layers[place], flush=True)
        continue
    a = layers[place]
    x, w = normal((a.n, a.c, a.h, a.w), 1), normal((a.k, a.c // a.groups, a.r, a.s), 2)
    p = arguments(x, w, None, a.stride, a.padding, a.dilation, a.groups)
    tensors, library = (as_tensor(x), as_tensor(w)), next(iter(torch_conv2d(a).values()))
    samples, guesses = samples_of(p), dispatch.expected_times(a)
    best = min(guesses.values())

    def check(result):
        return samples.error(device.as_input("out", result, dtypes=np.float32)), 1e-4

    contenders = {}
    for name, ms in guesses.items():
        if ms < 2.5 * best:
            call = lambda name=name: dispatch.run(name, p)
            try:
                call()
            except Exception as e:
                print("FAILED", a, name, repr(e)[:200], flush=True)
                continue
            contenders[name] = timing.Contender(
                call, [()], check, poison=lambda: fill_with_nan(p.result), set_bytes=a.cost.bytes
            )
    cudnn = lambda: library(torch, *tensors, None)
    cudnn()
    torch.cuda.synchronize()
    contenders["cudnn"] = timing.Contender(
        cudnn, [()], lambda r: check(r.contiguous()), poison=lambda: fill_with_nan(p.result), set_bytes=a.cost.bytes
    )
    fcntl.flock(lock, fcntl.LOCK_EX)
    found = timing.measure_together(contenders, timer=timing.gpu_timer(), rule=rule)
    fcntl.flock(lock, fcntl.LOCK_UN)
    ms = {n: (round(f.median * 1e3, 5) if not isinstance(f, Exception) else repr(f)[:100]) for n, f in found.items()}
    r = cost_model.rates()
    row = {
        "place": place,
        "layer": str(a),
        "ms": ms,
        "guess": {n: round(g, 5) for n, g in guesses.items()},
        "memory": a.cost.bytes / r.bandwidth * 1e3,
        "flops": a.cost.flops / (2 * 128 * r.multiprocessors * r.clock) * 1e3,
    }
    with open(f"{out}/rows{worker}.jsonl", "a") as f:
        f.write(json.dumps(row) + "\n")
    times = {n: t for n, t in ms.items() if isinstance(t, float)}
    ours = {n: t for n, t in times.items() if n != "cudnn"}
    chosen = min(guesses, key=guesses.get)
    lib = times.get("cudnn", float("nan"))
    print(
        f"{place:2} {a!s:38} chosen {chosen:9} {lib / ours.get(chosen, float('nan')):5.2f} best {min(ours, key=ours.get):9} {lib / min(ours.values()):5.2f} cudnn {lib:.4f} floors {row['memory']:.4f} {row['flops']:.4f} | "
        + " ".join(f"{n} {t:.4f}({guesses[n]:.4f})" for n, t in ours.items()),
        flush=True,
    )
    del x, w, p, tensors, samples, contenders
    torch.cuda.empty_cache()
