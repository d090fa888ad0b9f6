"""The page for practitioners, of what was measured: ``python -m pmpp.nn.measure.practitioners_page``.

It is written anywhere, to docs/practitioners/README.md, from the record that `pmpp.nn.measure.practitioners` makes. Its
text stands here, so that a word changed makes no measurement stale.
"""

from __future__ import annotations

import argparse
import typing
from collections.abc import Mapping
from pathlib import Path

from pmpp.lab.measure import record
from pmpp.nn.measure import recorded
from pmpp.nn.measure.practitioners import TOOLS

PAGE = Path(__file__).parents[3] / "docs" / "practitioners" / "README.md"

INTRODUCTION = """# What to write kernels in next

Written by `python -m pmpp.nn.measure.practitioners_page` from what was measured on an {gpu} on {date}. Change the
command, not this page.

This workbook's kernels say what every thread does. That is how one learns what a GPU does, and how one gets at
instructions that no compiler uses by itself. Most other tools say less and leave more to a compiler. Here three
problems are computed by PyTorch's own function, by this workbook's kernel, and by what can be written in
[Triton](../../pmpp/nn/measure/practitioners_triton.py), with
[nvmath-python](../../pmpp/nn/measure/practitioners_nvmath.py), with
[cuda.compute](../../pmpp/nn/measure/practitioners_compute.py) and in the
[CuTe DSL](../../pmpp/nn/measure/practitioners_cute.py). Not every tool suits every problem. Each result was compared
with PyTorch's in float64.

*Kernel* is the time of one call among many in a CUDA graph, *call* what a call costs the host, and *first call* how
long the first one takes, with all that is compiled.
"""

REMARKS = """## What to read from the figures

*The softmax* is bound by the memory. A kernel of this workbook, one in Triton and one in the CuTe DSL read the matrix
once and write it once. With cuda.compute the softmax is put together from two of its algorithms, a reduction of rows
and a transformation of elements, so the matrix is read twice. That is not all of the difference, and the rest was not
looked into.

*The running sum* is one of the algorithms that cuda.compute has: it is CUB's scan.

*The product* with nvmath is a loop over tiles as plain as it can be written. Its machine code shows what it lacks. No
warp has only the task of fetching: a warp that also multiplies starts the copies of each step, and since B lies in C
order, these are dozens of small ones. The compiler lets each `wgmma` wait until the one before is done. Each result
leaves by a store of its own, of two bytes.

The product in the CuTe DSL has a warp that only fetches, keeps the `wgmma` of two steps under way, and chooses how B
lies in shared memory, so that its copies are few. All of that is written out, and yours to get right. A first version
of the softmax in the CuTe DSL never ended: the index of a warp is found by a shuffle of all its lanes, and the kernel
asked for it where only one lane was.

*The first call* of nvmath compiles NVIDIA's templates in C++, one function after the other. It takes minutes, in each
process anew. A kernel in the CuTe DSL or in Triton takes seconds.

All first calls came before any time of a kernel or a call was taken, while other programs compiled on the same
machine: alone they may be shorter. Then nothing else ran. Calls were timed one after the other, in the order of the
tables, and nvmath's in a process of its own. Under full load the clock of a GPU falls, so small differences between
products say little.
"""

CLOSING = """A tool that is not there was not measured, and nothing is said of its speed.

How to choose: an operation that a library has is the library's. Several elementwise operations and reductions in a row
are a compiler's, such as PyTorch's, or a short kernel in Triton. An algorithm of CUB with an operator of your own is
`cuda.compute`. A product with something before or behind it that no library offers is Triton, or `nvmath` in a kernel
of Numba where a slow first call does no harm and the product is a small part of the kernel. What is left is a kernel
whose threads, copies and barriers you decide yourself: Numba or the CuTe DSL.
"""


def page(found: Mapping[str, typing.Any]) -> str:
    """The page of a record."""
    about = found["about"]
    made = [INTRODUCTION.format(gpu=about["gpu"]["name"], date=about["run"]["date"][:10])]
    for name, rows in found["problems"].items():
        made += [
            f"## {name[0].upper()}{name[1:]}\n",
            "| written in | kernel | of PyTorch's speed | call | first call |",
        ]
        made.append("|---|---|---|---|---|")
        base = rows.get("PyTorch", {}).get("kernel_ms")
        for who, row in rows.items():
            if "error" in row:
                made.append(f"| {who} | failed: {row['error']} | | | |")
                continue
            share = f"{base / row['kernel_ms']:.2f}" if base else ""
            words = f"{row['kernel_ms']:.3f} ms | {share} | {row['call_us']:.0f} us | {row['first_call_s']:.1f} s"
            made.append(f"| {who} | {words} |")
        made.append("")
    made += [REMARKS, "## The tools\n", "| tool | version there | what it is |", "|---|---|---|"]
    for name, tool in TOOLS.items():
        version = found["tools"].get(name)
        made.append(f"| {name} (`{tool.package}`) | {version or 'not there'} | {tool.what} |")
    return "\n".join([*made, "", CLOSING])


def main(argv: typing.Sequence[str] | None = None) -> int:
    """Write the page of the record."""
    parser = argparse.ArgumentParser(
        prog="python -m pmpp.nn.measure.practitioners_page", description=__doc__.split("\n")[0]
    )
    parser.parse_args(argv)
    try:
        PAGE.write_text(page(recorded("practitioners")), encoding="utf-8")
    except record.RecordError as error:
        print(error)
        return 1
    print(f"written: {PAGE}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
