"""GPUs by name, how many blocks fit on their multiprocessors, and how fast they can be at best.

What depends on the compute capability is in ARCHITECTURES: limits from the table "Technical specifications per compute
capability" of the CUDA C++ programming guide, units of allocation from NVIDIA's cuda_occupancy.h, and operations a
cycle from the guide's table "Throughput of native arithmetic instructions".  What belongs to one product is in GPUS,
with its source.  Peaks follow from both: 2 operations a multiply-add x lanes x multiprocessors x boost clock.
"""

from __future__ import annotations

import html
from dataclasses import dataclass

from pmpp.simt.machine.lanes import WARP
from pmpp.simt.values.errors import LaunchError

KIB, MIB = 1 << 10, 1 << 20

#: Schedulers of a multiprocessor, each with a quarter of its registers; each issues one instruction a cycle.
SCHEDULERS = 4

#: Registers are given to a warp in units of this many.
REGISTER_UNIT = 256

#: The most registers that one thread can have.
MAX_REGISTERS = 255

#: The most threads of a block.
MAX_THREADS = 1024

#: Shared memory that a block gets without asking for more, in bytes, on every GPU so far.
SHARED_LIMIT = 48 * KIB

#: Dynamic shared memory that a block can be given at a launch, on an H200: `pmpp.runtime.launcher` asks for it.
DYNAMIC_LIMIT = 227 * KIB


@dataclass(frozen=True)
class Architecture:
    """One multiprocessor (SM) of a compute capability.

    warps, blocks        the most that can be resident
    registers            32-bit registers
    shared               bytes of shared memory
    shared_block         bytes that one block can have, if it opts in beyond 48 KiB
    shared_unit          bytes in which shared memory is given to a block
    reserved             bytes of it that the system takes for each block
    fp64, fp32, fp16     multiply-adds a cycle outside of tensor cores
    special              special functions a cycle: MUFU, of which an exponential or a division needs one or two
    """

    warps: int
    blocks: int
    registers: int
    shared: int
    shared_block: int
    shared_unit: int
    reserved: int
    fp64: int
    fp32: int
    fp16: int
    special: int = 16

    @property
    def threads(self) -> int:
        """The most threads that can be resident."""
        return self.warps * WARP


ARCHITECTURES: dict[tuple[int, int], Architecture] = {
    (7, 0): Architecture(64, 32, 65536, 96 * KIB, 96 * KIB, 256, 0, fp64=32, fp32=64, fp16=128),
    (7, 5): Architecture(32, 16, 65536, 64 * KIB, 64 * KIB, 256, 0, fp64=2, fp32=64, fp16=128),
    (8, 0): Architecture(64, 32, 65536, 164 * KIB, 163 * KIB, 128, KIB, fp64=32, fp32=64, fp16=256),
    (8, 6): Architecture(48, 16, 65536, 100 * KIB, 99 * KIB, 128, KIB, fp64=2, fp32=128, fp16=128),
    (8, 9): Architecture(48, 24, 65536, 100 * KIB, 99 * KIB, 128, KIB, fp64=2, fp32=128, fp16=128),
    (9, 0): Architecture(64, 32, 65536, 228 * KIB, 227 * KIB, 128, KIB, fp64=64, fp32=128, fp16=256),
}


@dataclass(frozen=True)
class Gpu:
    """One product.

    name                 as nvidia-smi says it
    compute_capability   (major, minor)
    sms                  multiprocessors
    clock                Hz, the boost clock
    bandwidth            byte/s of device memory by the datasheet; a kernel reaches some 90 % of it
    l2                   bytes of second-level cache
    source               where these figures are published
    """

    name: str
    compute_capability: tuple[int, int]
    sms: int
    clock: float
    bandwidth: float
    l2: int
    source: str

    @property
    def architecture(self) -> Architecture:
        """What its compute capability says about a multiprocessor."""
        return ARCHITECTURES[self.compute_capability]

    @property
    def fp64(self) -> float:
        """FLOP/s in float64, tensor cores apart."""
        return 2 * self.architecture.fp64 * self.sms * self.clock

    @property
    def fp32(self) -> float:
        """FLOP/s in float32."""
        return 2 * self.architecture.fp32 * self.sms * self.clock

    @property
    def fp16(self) -> float:
        """FLOP/s in float16, two to a register, tensor cores apart."""
        return 2 * self.architecture.fp16 * self.sms * self.clock


#: From a laptop to a data centre.
GPUS: tuple[Gpu, ...] = (
    Gpu("GTX 1650 Laptop", (7, 5), 16, 1.56e9, 128e9, 1 * MIB, "NVIDIA, GeForce GTX 16 series laptops; TU117"),
    Gpu("RTX 4060 Laptop", (8, 9), 24, 2.37e9, 256e9, 32 * MIB, "NVIDIA, GeForce RTX 40 series laptops; AD107"),
    Gpu("T4", (7, 5), 40, 1.59e9, 320e9, 4 * MIB, "NVIDIA T4 datasheet; Turing architecture whitepaper, TU104"),
    Gpu("RTX 2080 Ti", (7, 5), 68, 1.545e9, 616e9, 5632 * KIB, "NVIDIA Turing architecture whitepaper, reference card"),
    Gpu("V100", (7, 0), 80, 1.53e9, 900e9, 6 * MIB, "NVIDIA Tesla V100 architecture whitepaper, SXM2"),
    Gpu("RTX 3090", (8, 6), 82, 1.695e9, 936e9, 6 * MIB, "NVIDIA Ampere GA102 architecture whitepaper"),
    Gpu("L4", (8, 9), 58, 2.04e9, 300e9, 48 * MIB, "NVIDIA L4 datasheet; Ada architecture whitepaper, appendix"),
    Gpu("RTX 4090", (8, 9), 128, 2.52e9, 1008e9, 72 * MIB, "NVIDIA Ada architecture whitepaper, appendix A"),
    Gpu("A100 40GB", (8, 0), 108, 1.41e9, 1555e9, 40 * MIB, "NVIDIA A100 architecture whitepaper, SXM4 40 GB"),
    Gpu("A100 80GB", (8, 0), 108, 1.41e9, 2039e9, 40 * MIB, "NVIDIA A100 80 GB datasheet, SXM4"),
    Gpu("H100", (9, 0), 132, 1.98e9, 3350e9, 50 * MIB, "NVIDIA H100 datasheet, SXM5; Hopper architecture whitepaper"),
    Gpu("H200", (9, 0), 132, 1.98e9, 4800e9, 60 * MIB, "NVIDIA H200 datasheet, SXM; L2 as its driver reports it"),
)


def gpu(name: str | Gpu) -> Gpu:
    """The GPU of this name, with or without "NVIDIA" and "GeForce": "H200", "NVIDIA H200", "geforce rtx 4090".

    Raises LaunchError for a name that GPUS does not have; make a `Gpu` of your own for another one.
    """
    if isinstance(name, Gpu):
        return name
    plain = _plain(str(name))
    for each in GPUS:
        if _plain(each.name) == plain:
            return each
    known = ", ".join(each.name for each in GPUS)
    raise LaunchError(f"gpu is {name!r}; it must be one of {known}, or a simt.Gpu")


def _plain(name: str) -> str:
    words = name.lower().replace("-", " ").split()
    return "".join(w for w in words if w not in ("nvidia", "geforce", "tesla", "gpu", "sxm", "sxm2", "sxm4", "sxm5"))


@dataclass(frozen=True)
class Occupancy:
    """How many blocks of a launch are resident on a multiprocessor at a time.

    blocks, warps    resident on one SM
    occupancy        warps over the most that an SM can hold
    limits           the blocks that each resource would allow: "threads", "blocks", "shared memory", "registers"
    limiter          the resource that allows fewest; of several the first
    """

    gpu: str
    threads: int
    shared_bytes: int
    registers: int | None
    blocks: int
    warps: int
    occupancy: float
    limits: dict[str, int]
    limiter: str

    def __str__(self) -> str:
        what = f"{self.threads} threads, {self.shared_bytes:,} bytes of shared memory"
        what += f", {self.registers} registers a thread" if self.registers is not None else ", registers not counted"
        allows = ", ".join(f"{name} {n}" for name, n in self.limits.items())
        return (
            f"{self.gpu}: {self.blocks} blocks = {self.warps} warps an SM, occupancy {self.occupancy:.0%}, "
            f"limited by {self.limiter}\n  a block: {what}\n  blocks that fit: {allows}"
        )

    def _repr_html_(self) -> str:
        # Pages made by nbconvert let <pre> inherit its font.
        return f"<div style='font-family:monospace'><pre>{html.escape(str(self))}</pre></div>"


def occupancy(threads: int, shared_bytes: int = 0, registers: int | None = None, gpu: str | Gpu = "H200") -> Occupancy:
    """Resident blocks of a launch on a multiprocessor, from what each block takes.

    threads        a block, 1 to 1024
    shared_bytes   of shared memory a block, static and dynamic
    registers      a thread, as the compiler reports them; None if that is not known: then they limit nothing
    gpu            a name from `simt.GPUS`, or a `simt.Gpu`

    The rules are those of NVIDIA's cuda_occupancy.h, with the largest carve-out of shared memory.  Warps are whole.
    A warp's registers come in units of 256, from the quarter of the SM that the warp belongs to.  Shared memory comes
    in units of 128 bytes (256 before compute capability 8.0), with 1 KiB a block on top from 8.0 on.

    Raises LaunchError where no block fits, as a launch would.
    """
    chosen = _gpu(gpu)
    arch = chosen.architecture
    if not 1 <= threads <= MAX_THREADS:
        raise LaunchError(f"threads is {threads}; a block has 1 to {MAX_THREADS}")
    if not 0 <= shared_bytes <= arch.shared_block:
        raise LaunchError(f"shared_bytes is {shared_bytes:,}; on {chosen.name} a block has 0 to {arch.shared_block:,}")
    if registers is not None and not 0 <= registers <= MAX_REGISTERS:
        raise LaunchError(f"registers is {registers}; a thread has 0 to {MAX_REGISTERS}")
    warps = -(-threads // WARP)
    limits = {"threads": arch.warps // warps, "blocks": arch.blocks}
    taken = _round_up(shared_bytes + arch.reserved, arch.shared_unit)
    if taken:
        limits["shared memory"] = arch.shared // taken
    if registers:
        a_warp = _round_up(registers * WARP, REGISTER_UNIT)
        if a_warp * _round_up(warps, SCHEDULERS) > arch.registers:
            raise LaunchError(
                f"{threads} threads of {registers} registers do not fit: {chosen.name} has {arch.registers:,} a block"
            )
        limits["registers"] = arch.registers // SCHEDULERS // a_warp * SCHEDULERS // warps
    limiter = min(limits, key=limits.__getitem__)
    blocks = limits[limiter]
    share = blocks * warps / arch.warps
    return Occupancy(chosen.name, threads, shared_bytes, registers, blocks, blocks * warps, share, limits, limiter)


_gpu = gpu  # the parameter of the same name hides it


def _round_up(n: int, unit: int) -> int:
    return -(-n // unit) * unit
