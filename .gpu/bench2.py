"""Real FFTs beside cuFFT, and plans of matrix-vector products beside cuBLAS. argv: what, lock by LOCK."""

import fcntl, os, sys, time, warnings

warnings.filterwarnings("ignore")
import numpy as np, cupy, torch
from pmpp import cuda
from pmpp.kernels import fft, matmul
from pmpp.kernels.fft import any_length_real, one_trip_real
from pmpp.kernels.matmul import matvec
from pmpp.lab.measure import timing
from pmpp.runtime import device
from pmpp.runtime.views import strided

rule = timing.Rule(spread=0.02, min_repeats=7, max_repeats=15, max_seconds=0.04)
lock = open(os.environ["LOCK"], "w")


def together(contenders):
    fcntl.flock(lock, fcntl.LOCK_EX)
    found = timing.measure_together(contenders, timer=timing.gpu_timer(), rule=rule)
    fcntl.flock(lock, fcntl.LOCK_UN)
    return {n: (f.median * 1e3 if not isinstance(f, Exception) else repr(f)[:150]) for n, f in found.items()}


def show(ms):
    return " ".join(f"{n} {t:.4f}" if isinstance(t, float) else f"{n} {t}" for n, t in ms.items())


def ffts():
    for n in (256, 1024, 4096, 16384, 65536, 2**18, 2**20, 2**22):
        lines = 2**26 // n
        x = cupy.random.default_rng(1).standard_normal((lines, n), dtype=cupy.float32)
        few = min(lines, 3)
        right = cupy.fft.rfft(x[-few:].astype(cupy.float64))
        size = float(cupy.linalg.norm(right))

        def check(result):
            got = (
                cupy.asarray(result)[-few:] if not isinstance(result, torch.Tensor) else cupy.from_dlpack(result)[-few:]
            )
            return float(cupy.linalg.norm(got - right)) / size, 2e-6

        t = torch.from_dlpack(x)
        calls = {"ours": lambda: fft.rfft(x), "cupy": lambda: cupy.fft.rfft(x), "torch": lambda: torch.fft.rfft(t)}
        if n <= 8192:
            calls["before"] = lambda: any_length_real.rfft(x)
        for call in calls.values():
            call()
        ms = together({name: timing.Contender(call, [()], check, set_bytes=8 * 2**26) for name, call in calls.items()})
        lib = min(ms["cupy"], ms["torch"])
        print(
            f"rfft {lines}x{n}: {lib / ms['ours'] if isinstance(ms['ours'], float) else 0:.2f} of the library; memory {8 * 2**26 / 4.1e9:.4f} (H200) {8 * 2**26 / 2.85e9:.4f} (H100) | {show(ms)}",
            flush=True,
        )
        del x, t, right


low_registers = cuda.jit(max_registers=64)(matvec.odd_rows_kernel.py_func)


def vectors():
    for m, n, row in (
        (1918, 4521, False),
        (7234, 1934, False),
        (5429, 1325, False),
        (12001, 3011, False),
        (2678, 5138, True),
        (6341, 5805, True),
        (1325, 7786, True),
        (3001, 2999, True),
    ):
        sets = max(2, int(2 * 64e6 // (4 * m * n)) + 1)
        gen = cupy.random.default_rng(3)
        As = [gen.standard_normal((m, n), dtype=cupy.float32) for _ in range(sets)]
        x = gen.standard_normal(m if row else n, dtype=cupy.float32)
        wide = False
        y, vector = device.empty(n if row else m, np.float32), matvec.memory(x)
        M, N = (n, m) if row else (m, n)  # the product is (M, N) by N
        args = [(A,) for A in As]

        def problem(A):
            a = strided(matvec.memory(A), (M, N), (1, M) if row else (N, 1))
            return matvec.Problem(y, stream=0, a=a, x=vector, by_rows=not row)

        def check(result, A):
            right = (A.T if row else A).astype(cupy.float64) @ x.astype(cupy.float64)
            got = cupy.asarray(result) if not isinstance(result, torch.Tensor) else cupy.from_dlpack(result)
            return float(abs(got.reshape(-1) - right).max() / abs(right).max()), 1e-4

        calls = {
            "torch": (lambda A: torch.matmul(torch.from_dlpack(x)[None], torch.from_dlpack(A)))
            if row
            else (lambda A: torch.matmul(torch.from_dlpack(A), torch.from_dlpack(x)[:, None])),
            "cupy": (lambda A: x[None] @ A) if row else (lambda A: A @ x[:, None]),
            "ours": lambda A: matmul.matmul(x[None], A) if row else matmul.matmul(A, x[:, None]),
        }
        sms = device.limits()["multiprocessors"]
        plan = matvec.plan_of(M, N, not row, False, sms, matvec.PARTS)
        found = []
        if row:
            for across in (8, 16, 32, 64, 128):
                for along in (4, 8, 16, 32, 64):
                    if 128 <= across * along <= 512 and 4 * across <= 2 * M:
                        for parts in (1, 2, 3, 4, 6):
                            found.append((across, along, parts))
        else:
            for across in (32, 64, 128, 256, 512):
                for parts in (1, 2):
                    if across <= n // 4:
                        found.append((across, 128 // across if across <= 32 else 1, parts))

        def run(A, plan, kernel=None):
            old = matvec.odd_rows_kernel
            if kernel is not None:
                matvec.odd_rows_kernel = kernel
            try:
                matvec.launch(problem(A), plan)
            finally:
                matvec.odd_rows_kernel = old
            return y

        for across, along, parts in found:
            part = matvec.round_up(matvec.blocks(N, parts), 4)
            one = matvec.Plan(across, along, matvec.blocks(N, part), part, False)
            calls[f"{across}x{along}/{parts}"] = lambda A, one=one: run(A, one)
            if not row:
                calls[f"{across}x{along}/{parts} low"] = lambda A, one=one: run(A, one, low_registers)
        for name, call in list(calls.items()):
            try:
                call(As[0])
            except Exception as e:
                print("FAILED", name, repr(e)[:100])
                del calls[name]
        ms = together({name: timing.Contender(call, args, check, set_bytes=4 * m * n) for name, call in calls.items()})
        lib = min(ms["cupy"], ms["torch"])
        good = sorted(
            (t, name) for name, t in ms.items() if isinstance(t, float) and name not in ("cupy", "torch", "ours")
        )
        print(
            f"{'1x' if row else ''}{m}x{n}{'' if row else 'x1'} ours {lib / ms['ours']:.2f} best {lib / good[0][0]:.2f} plan {plan[:4]} memory {4 * m * n / 4.1e9:.4f} | torch {ms['torch']:.4f} cupy {ms['cupy']:.4f} ours {ms['ours']:.4f} | "
            + " ".join(f"{name} {t:.4f}" for t, name in good[:8])
            + f" ... {good[-1][1]} {good[-1][0]:.4f}",
            flush=True,
        )


{"ffts": ffts, "vectors": vectors}[sys.argv[1]]()
