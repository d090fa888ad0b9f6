"""Answers to the exercises of chapter 44: wrong ones with their mistakes, and other right ones."""

from tests.support.wrong import WrongAnswer

ANSWERS: tuple[WrongAnswer, ...] = ()  # EMPTY: at least five for each exercise, with three kinds of mistakes
ALSO_RIGHT: tuple[tuple[str, object], ...] = ()  # EMPTY: right answers unlike the exercise's own, by name; may be none
