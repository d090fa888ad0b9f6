"""Answers to the exercises on the gradients of batch normalisation: wrong ones, and right ones written differently."""

import numpy as np

from pmpp import cuda
from pmpp.kernels.common import block_sum
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
SUMS, RELU = "batchnorm_backward/sums", "batchnorm_backward/relu"
BLOCK = 128
f0 = np.float32(0)


# -- sums


@right(SUMS)
@cuda.jit
def sums_by_a_tree(dy, x, mean, invstd, out):
    """Normalised term by term, and added in shared memory."""
    images, _, inner = x.shape
    c, thread, stride = cuda.blockIdx.x, cuda.threadIdx.x, BLOCK // 2
    table = cuda.shared.array((2, BLOCK), np.float32)
    table[0, thread] = table[1, thread] = f0
    for i in range(thread, images * inner, BLOCK):
        image, r = i // inner, i % inner
        table[0, thread] += dy[image, c, r] * ((x[image, c, r] - mean[c]) * invstd[c])
        table[1, thread] += dy[image, c, r]
    while stride > 0:
        cuda.syncthreads()
        if thread < stride:
            table[0, thread] += table[0, thread + stride]
            table[1, thread] += table[1, thread + stride]
        stride //= 2
    cuda.syncthreads()
    if thread < 2:
        out[thread, c] = table[thread, 0]


def sums(name, mistake, said="", *, centre=True, scale=True, share=False, second=1, limit=0):
    @cuda.jit
    def kernel(dy, x, mean, invstd, out):
        images, _, inner = x.shape
        c, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
        plain, weighted = f0, f0
        for i in range(cuda.threadIdx.x, images * inner + limit, BLOCK):
            given = dy[i // inner, c, i % inner]
            plain += given
            weighted += given * (x[i // inner, c, i % inner] - (mean[c] if centre else f0))
        plain = block_sum(plain, partial[0])
        weighted = block_sum(weighted, partial[second]) * (invstd[c] if scale else np.float32(1))
        if cuda.threadIdx.x == 0:
            count = np.float32(images * inner) if share else np.float32(1)
            out[0, c], out[1, c] = weighted / count, plain / count

    kernel.py_func.__name__ = name
    wrong(SUMS, mistake, said)(kernel)


sums("sums_not_centred", "x is not centred", centre=False)
sums("sums_not_scaled", "x is not scaled", scale=False)
sums("sums_as_means", "means instead of sums", share=True)
sums("sums_without_guard", "index out of bounds", limit=1)


@wrong(SUMS, "accidental float64")
@cuda.jit
def sums_in_float64(dy, x, mean, invstd, out):
    images, _, inner = x.shape
    c, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
    plain, weighted = f0, f0
    for i in range(cuda.threadIdx.x, images * inner, BLOCK):
        given = dy[i // inner, c, i % inner]
        plain += given
        weighted += np.float32(given * (x[i // inner, c, i % inner] - mean[c]) * 1.0)
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    if cuda.threadIdx.x == 0:
        out[0, c], out[1, c] = weighted * invstd[c], plain


# -- relu


@wrong(SUMS, "x is not centred", "around 1000.*subtract the mean first")
@cuda.jit
def sums_that_cancel(dy, x, mean, invstd, out):
    """The mean is taken off at the end: two large sums, of which little is left."""
    images, _, inner = x.shape
    c, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
    plain, weighted = f0, f0
    for i in range(cuda.threadIdx.x, images * inner, cuda.blockDim.x):
        plain += dy[i // inner, c, i % inner]
        weighted += dy[i // inner, c, i % inner] * x[i // inner, c, i % inner]
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    if cuda.threadIdx.x == 0:
        out[0, c], out[1, c] = (weighted - mean[c] * plain) * invstd[c], plain


@wrong(SUMS, "index out of bounds", "reads mean.*or it is computed wrongly")
@cuda.jit
def sums_with_the_image_for_the_channel(dy, x, mean, invstd, out):
    images, _, inner = x.shape
    c, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
    plain, weighted = f0, f0
    for i in range(cuda.threadIdx.x, images * inner, cuda.blockDim.x):
        plain += dy[i // inner, c, i % inner]
        weighted += dy[i // inner, c, i % inner] * (x[i // inner, c, i % inner] - mean[i // inner])
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1])
    if cuda.threadIdx.x == 0:
        out[0, c], out[1, c] = weighted * invstd[c], plain


@right(RELU)
@cuda.jit
def relu_by_a_factor(dy, y, x, weight, mean, invstd, out):
    """The ReLU as a factor of 0 or 1, and the sums before they are divided."""
    images, _, inner = x.shape
    c, partial = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32)
    plain, weighted, share = f0, f0, np.float32(1) / np.float32(images * inner)
    for i in range(cuda.threadIdx.x, images * inner, BLOCK):
        image, r = i // inner, i % inner
        given = dy[image, c, r] * np.float32(y[image, c, r] > f0)
        plain += given
        weighted += given * (x[image, c, r] - mean[c])
    plain = block_sum(plain, partial[0])
    weighted = block_sum(weighted, partial[1]) * invstd[c]
    scale = weight[c] * invstd[c]
    for i in range(cuda.threadIdx.x, images * inner, BLOCK):
        image, r = i // inner, i % inner
        given = dy[image, c, r] * np.float32(y[image, c, r] > f0)
        out[image, c, r] = scale * (given - share * (plain + (x[image, c, r] - mean[c]) * invstd[c] * weighted))


def relu(name, mistake, said="", *, first=True, own=True, cut=False, double=False, limit=0):
    @cuda.jit
    def kernel(dy, y, x, weight, mean, invstd, out):
        images, _, inner = x.shape
        c, partial, count = cuda.blockIdx.x, cuda.shared.array((2, 32), np.float32), np.float32(images * inner)
        plain, weighted = f0, f0
        for i in range(cuda.threadIdx.x, images * inner + limit, BLOCK):
            image, r = i // inner, i % inner
            given = dy[image, c, r] if y[image, c, r] > f0 or not first else f0
            plain += given
            weighted += given * (x[image, c, r] - mean[c]) * invstd[c]
        plain = block_sum(plain, partial[0]) / count
        weighted = block_sum(weighted, partial[1]) / count
        for i in range(cuda.threadIdx.x, images * inner, BLOCK):
            image, r = i // inner, i % inner
            given = dy[image, c, r] if y[image, c, r] > f0 or not own else f0
            value = given - plain - (x[image, c, r] - mean[c]) * invstd[c] * weighted
            if double:
                value = np.float32(value * 1.0)
            out[image, c, r] = f0 if cut and y[image, c, r] <= f0 else weight[c] * invstd[c] * value

    kernel.py_func.__name__ = name
    wrong(RELU, mistake, said)(kernel)


relu("relu_not_in_the_sums", "the ReLU is left out of the sums", first=False)
relu("relu_not_of_its_own", "the ReLU is left out of the element's own part", own=False)
relu("relu_cut_off", "the gradient is cut off, too", cut=True)
relu("relu_in_float64", "deliberate float64", double=True)
relu("relu_without_guard", "index out of bounds", limit=1)
