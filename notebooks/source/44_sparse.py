# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 44. Sparse
#
# *EMPTY: the subjects of the chapter, in a line.
# EMPTY: 'You need chapters 4 and 16; it takes 60 minutes.', with what stands in the file beside this one.
# PMPP 4e: EMPTY: chapters or sections, such as chapter 9;
# 5e: EMPTY: the same in the 5th edition.
# The code is [pmpp/kernels/sparse/ladder.py](../pmpp/kernels/sparse/ladder.py).*
#
# EMPTY: a situation that everybody knows, with real data in it.
#
# **The question of this chapter:** EMPTY: in one sentence.

# %%
import matplotlib.pyplot as plt

from pmpp import check, predict, show
from pmpp.kernels import sparse
from pmpp.lab.draw import plots
from pmpp.lab.draw.style import STYLE
from pmpp.lab.teach.exercise import exercise
from pmpp.runtime import device

plt.rcParams.update(STYLE)  # the workbook's look
print(device.describe().splitlines()[0])

# %% [markdown]
# ## The bound
#
# EMPTY: what the hardware allows: the least bytes, the least arithmetic, and which of them rules.
#
# **Predict, then run.** EMPTY: ask for one number that follows from what stands above.

# %%
guess = None  # EMPTY: the unit

predict(guess, sparse.cost(2**20).bytes / 1e6, unit="MB")  # EMPTY: what you ask for

# %% [markdown]
# EMPTY: why the answer is what it is.
#
# ## The reference
#
# EMPTY: what it does, and why it is obviously right.

# %%
show(sparse.reference)

# %% [markdown]
# ## The first rung
#
# EMPTY: the idea, before the code.

# %%
show(sparse.one_thread_each)

# %% [markdown]
# EMPTY: the measurement, what is still wrong, and the next rung, for each rung in turn. A small exercise follows every
# second rung.

# %% [markdown]
# EMPTY: the figures: one with NumPy, the CPU, in it; one that shows when memory and when arithmetic is the bound.

# %%
plots.drawn(plots.ladder, "sparse")

# %% [markdown]
# EMPTY: what the figure shows, in words, for readers who cannot see it. Such a cell follows each figure.

# %% [markdown]
# ## All rungs under the roof
#
# EMPTY: what the roofline of all rungs asks.

# %%
plots.drawn(plots.roofline, "sparse")

# %% [markdown]
# EMPTY: what the figure shows, in words.
#
# ## What to take along
#
# EMPTY: three to five sentences.
#
# ## Exercises

# %%
exercise("sparse/first")

# %%
# EMPTY: a kernel to complete, and check("sparse/first", kernel) after it.
check("sparse/first", None)

# %% [markdown]
# ## Answers
#
# The cells are folded. Open one when you have tried.

# %% jupyter={"source_hidden": true} tags=["answer"]
# EMPTY: the answer to each exercise, and assert check(...) of it.

# %% [markdown]
# Go on with [chapter 46](46_pooling_and_activations.ipynb).
