"""Grading: run students' notebooks, judge their answers, and say what each exercise earned and why.

::

    python -m pmpp.lab.teach.grade NOTEBOOK              one notebook
    python -m pmpp.lab.teach.grade FOLDER --jobs 2       all notebooks in a folder, two at a time
    make grade NOTEBOOKS=FOLDER                          the same with make

A student gets a notebook of `make release`, fills it in, and hands in the ``.ipynb``. In a folder the notebooks may lie
side by side, one for each student, or in a folder for each student.

**How a notebook is graded.** Its cells run in a process of their own, one by one, as a reader would run them: a cell
that fails stops no other. There `check` judges nothing. It takes apart what it is given, the source of the answer and
the values of the names in it (`pmpp.lab.teach.grade.capture`), and hands that over as JSON. When the notebook is done,
another process, in which no cell has ever run, puts the answer together (`pmpp.lab.teach.grade.rebuild`) and judges it
with the `check` of the workbook, on inputs that nobody has seen. So a verdict, or a patch of `pmpp`, that a notebook
makes in its own process changes nothing.

**What counts.** An exercise counts once, with its best answer among the last ten different ones that `check` was given:
who tries a wrong variant after a right one loses nothing. What an exercise is worth says `pmpp.lab.teach.points`. The
same notebook with the same ``--seed`` earns the same points: the inputs follow from the seed and from the answer.

**What is not there.** The student's process has a copy of the package without the answers and without the tests of the
exercises (`pmpp.lab.teach.grade.edition`). So ``check(name, exercise(name).answer)`` has nothing to pass on. An answer
that a student wrote earns its points, even if it reads like the shipped one.

**What is limited.** The seconds for a cell, for a notebook and for judging an answer, the memory of each process, and
what is printed. A cell that hangs is interrupted. A cell that ends the process costs itself: the others run again
without it. No other process is started, nothing is written outside of a folder that is deleted, and the network is
refused. Lines that begin with ``!`` do nothing; of ``%time``, ``%timeit`` and ``%prun`` the code runs once.

On Linux with Landlock, the operating system keeps the student's process from files that are hidden and from writing
elsewhere (`pmpp.lab.teach.grade.wall`), whatever the cell does. Without Landlock, on macOS for example, these refusals
are made by Python alone, and a cell that patches Python or calls C gets past them: it can read the shipped answers.

**On a GPU.** Notebooks and their judge use the interpreter, and neither opens a GPU. With ``--gpu`` each kernel that
passed is also measured on that of this machine, beside the shipped answer and an empty kernel, in a process of its own
(`pmpp.lab.teach.grade.gpu`). Times are for the rubric, and no points depend on them.

**What this does not protect against.** It is no sandbox. The student's process runs as you do, reads your other files,
and may use the network in another way than TCP. Code in C can start a process behind the same wall, which may outlive
the grader. Cells share a process, as in Jupyter: a cell that patches Python itself, such as ``builtins.len``, can cost
the cells after it. Other copies of this workbook on the computer are not hidden: have none there that the grader can
read. Grade notebooks of people whom you do not trust in a container, as a user without rights, without a network.

Three things remain even then:

- A kernel is interpreted and not run by Python, so it cannot reach its judge. An answer that is a Python function or a
  class runs beside its judge. Its source is screened, which is a fence and no wall; ``source`` in the JSON has what was
  judged.
- Predictions are what the notebook's process says of them, and are not graded.
- Nobody can tell who wrote an answer.
"""
