"""A quiz bank for learning platforms, made from the predictions of the chapters, with other numbers each time.

::

    make quiz                                                the bank, in build/quiz/
    python -m pmpp.lab.publish.quiz                          the same without make
    python -m pmpp.lab.publish.quiz 04_vector_add 08_warps   only these chapters
    python -m pmpp.lab.publish.quiz --variants 20 --seed 7   more variants of each question, with other numbers

The folder gets ``pmpp.gift``, which Moodle imports (*Question bank*, *Import*, *GIFT format*), and ``pmpp.html``, in
which a teacher reads every question with its answer and what is said to each wrong one. Each question has a category of
its own with its variants in it: a *random question* of that category gives every student other numbers.

A `Template` is a function that draws numbers, and returns a `Number` or a `Choice`. Its answer is computed: either from
the counters of the interpreter, which runs the kernel that the question shows, or by a formula.
``tests/lab/test_quiz.py`` computes what formulas say in another way. Who reads a question has no notebook beside it, so
the text says everything that is needed. The same seed gives the same file.

Only GIFT is written. No settled library on PyPI writes QTI 2: qti-package-maker calls itself beta, and has been tried
on one platform alone. text2qti is well kept, and writes QTI 1.2 for Canvas.
"""

from pmpp.lab.publish.quiz.model import Choice, Number, Template, bank

__all__ = ["Choice", "Number", "Template", "bank"]
