"""More answers to the exercises on implicit GEMM: right in another way, or wrong for a reason easily mistaken."""

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()
TABLE = "implicit/table"


@right(TABLE)
@cuda.jit
def table_read_back(table, window, dilation, image):
    k = cuda.grid(1)
    if k < len(table):
        rows, columns = window
        table[k, 1] = k // columns % rows * dilation[0]
        table[k, 2] = k % columns * dilation[1]
        table[k, 0] = (k // (rows * columns) * image[0] + table[k, 1]) * image[1] + table[k, 2]


@wrong(TABLE, "extents exchanged", r"S = window\[1\]")
@cuda.jit
def table_by_loops_exchanged(table, window, dilation, image):
    c, (rows, columns) = cuda.grid(1), window
    if c < len(table) // (rows * columns):
        k = c * rows * columns
        for r in range(columns):
            for s in range(rows):
                table[k, 0] = (c * image[0] + r * dilation[0]) * image[1] + s * dilation[1]
                table[k, 1], table[k, 2] = r * dilation[0], s * dilation[1]
                k += 1


@wrong(TABLE, "index out of bounds", "look at how this one is computed")
@cuda.jit
def table_with_places_of_its_own(table, window, dilation, image):
    c, (rows, columns) = cuda.grid(1), window
    if c < len(table) // (rows * columns):
        for r in range(columns):
            for s in range(rows):
                k = (c * rows + r) * columns + s
                table[k, 0] = (c * image[0] + r * dilation[0]) * image[1] + s * dilation[1]
                table[k, 1], table[k, 2] = r * dilation[0], s * dilation[1]


@wrong(TABLE, "accidental float64", "or // for a whole number.*indices take k // n")
@cuda.jit
def table_by_quotients(table, window, dilation, image):
    k, (rows, columns) = cuda.grid(1), window
    if k < table.shape[0]:
        down, across = int(k / columns) % rows * dilation[0], k % columns * dilation[1]
        table[k, 0] = (int(k / (rows * columns)) * image[0] + down) * image[1] + across
        table[k, 1], table[k, 2] = down, across


@wrong(TABLE, "outputs exchanged", r"table\[:, 1\] holds what belongs into table\[:, 2\]")
@cuda.jit
def table_right_before_down(table, window, dilation, image):
    k = cuda.grid(1)
    if k < table.shape[0]:
        rest, s = k // window[1], k % window[1]
        down, right_ = rest % window[0] * dilation[0], s * dilation[1]
        table[k, 0] = (rest // window[0] * image[0] + down) * image[1] + right_
        table[k, 1], table[k, 2] = right_, down


@wrong(TABLE, "inputs exchanged", "with window and dilation exchanged")
@cuda.jit
def table_of_the_dilation(table, window, dilation, image):
    k = cuda.grid(1)
    if k < table.shape[0]:
        rest, s = k // dilation[1], k % dilation[1]
        down, across = rest % dilation[0] * window[0], s * window[1]
        table[k, 0] = (rest // dilation[0] * image[0] + down) * image[1] + across
        table[k, 1], table[k, 2] = down, across
