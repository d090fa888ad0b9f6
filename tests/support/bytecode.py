"""Where Python's compiler puts one call of a kernel into several branches.

From Python 3.12 on, CPython copies a block of at most four instructions that ends in ``return`` to each place that
jumps to it. So ``return warp_sum(a if here else b)`` becomes two calls, one in each branch. On a GPU these are two
different exchanges, and the lanes of a warp wait for each other forever.
"""

import dis
import types

MOST_COPIED = 4  # MAX_COPY_SIZE in CPython's compiler
UNSEEN = {"CACHE", "NOP", "PRECALL", "PUSH_NULL", "RESUME"}  # not there, or not there yet, where CPython counts
FORWARD = {"JUMP_FORWARD", "JUMP_ABSOLUTE"}


def copied_calls(function: types.FunctionType | types.CodeType) -> list[int]:
    """The lines of calls that are copied to several branches by Python 3.12, or have been by the Python that runs."""
    instructions = list(dis.get_instructions(function))
    after_jump = {one.argval for one in instructions if one.opname in FORWARD}
    blocks, jumped_to = [[]], []
    for one in instructions:
        if one.is_jump_target:
            blocks.append([])
        if one.offset in after_jump:
            jumped_to.append(blocks[-1])
        if one.opname not in UNSEEN:
            blocks[-1].append(one)
        if one.opname.startswith(("RETURN", "JUMP", "POP_JUMP", "FOR_ITER")):
            blocks.append([])
    ends = [block for block in blocks if block and block[-1].opname.startswith("RETURN") and calls_of(block)]
    to_be = [block for block in ends if len(block) <= MOST_COPIED and any(block is other for other in jumped_to)]
    found = {calls_of(block)[-1].lineno for block in to_be}
    places = [place for block in ends for place in calls_of(block)]
    return sorted(found | {place.lineno for place in places if places.count(place) > 1})


def calls_of(block: list[dis.Instruction]) -> list[dis.Positions]:
    """Where in the source the calls of a block are: copies of a call are all in one place."""
    return [one.positions for one in block if one.opname.startswith("CALL")]
