"""What the inputs of a room may cost: a budget in thread-instructions, which are the same on every machine.

A test of the contract notes what its launches took (`note`). Where all reports arrive, the controller under xdist, they
are summed by room, and the run fails with the name of a room that is over.
"""

from __future__ import annotations

import collections

import pytest

#: Thread-instructions of all rungs of a room on all its inputs. Six minutes on two cores are 720 s. Half of them are
#: for this contract, with room for twice the 17 rooms: 10 s each, in which the interpreter does 50 million a second.
BUDGET = 500_000_000

_NAME = "thread-instructions"


def note(record_property, room: str, reports: list) -> None:
    """Count the launches of a test for a room; ``record_property`` is pytest's fixture of that name."""
    record_property(_NAME, (room, sum(report.counters["thread_instructions"] for report in reports)))


class Budget:
    """The plugin that sums and judges."""

    def __init__(self) -> None:
        self.spent: collections.Counter[str] = collections.Counter()

    def over(self) -> dict[str, int]:
        return {room: spent for room, spent in sorted(self.spent.items()) if spent > BUDGET}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            for name, value in report.user_properties:
                if name == _NAME:
                    self.spent[value[0]] += value[1]

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if self.over() and session.exitstatus == pytest.ExitCode.OK:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        for room, spent in self.over().items():
            terminalreporter.write_line(
                f"{room} is over its budget: {spent:,} of {BUDGET:,} thread-instructions. Make its inputs() smaller.",
                red=True,
            )
