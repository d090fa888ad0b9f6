"""Answers to the exercises of chapter 51: wrong ones with their mistakes, and other right ones."""

from pmpp import cuda
from tests.support.wrong import collectors

ANSWERS, ALSO_RIGHT, wrong, right = collectors()

# -- torus


@right("game_of_life/torus")
@cuda.jit
def torus_by_rows(board, out):
    """Above and below, left and right, each found once."""
    j, i = cuda.grid(2)
    if i < board.shape[0] and j < board.shape[1]:
        up = i - 1 if i > 0 else board.shape[0] - 1
        down = i + 1 if i + 1 < board.shape[0] else 0
        left = j - 1 if j > 0 else board.shape[1] - 1
        right_of = j + 1 if j + 1 < board.shape[1] else 0
        count = board[up, left] + board[up, j] + board[up, right_of] + board[i, left] + board[i, right_of]
        count += board[down, left] + board[down, j] + board[down, right_of]
        out[i, j] = count == 3 or (count == 2 and board[i, j] != 0)


@right("game_of_life/torus")
@cuda.jit
def torus_with_three_stores(board, out):
    j, i = cuda.grid(2)
    h, w = board.shape
    if i < h and j < w:
        count = 0
        for y in range(-1, 2):
            for x in range(-1, 2):
                if y != 0 or x != 0:
                    count += board[(i + y) % h, (j + x) % w]
        if count == 3:
            out[i, j] = 1
        elif count == 2:
            out[i, j] = board[i, j]
        else:
            out[i, j] = 0


@wrong("game_of_life/torus", "input changed")
@cuda.jit
def torus_in_place(board, out):
    j, i = cuda.grid(2)
    h, w = board.shape
    if i < h and j < w:
        count = 0
        for y in range(-1, 2):
            for x in range(-1, 2):
                if y != 0 or x != 0:
                    count += board[(i + y) % h, (j + x) % w]
        board[i, j] = 1 if count == 3 or (count == 2 and board[i, j] == 1) else 0
        out[i, j] = board[i, j]


@wrong("game_of_life/torus", "border not joined")
@cuda.jit
def torus_with_a_border(board, out):
    j, i = cuda.grid(2)
    if i < board.shape[0] and j < board.shape[1]:
        count = 0
        for y in range(max(i - 1, 0), min(i + 2, board.shape[0])):
            for x in range(max(j - 1, 0), min(j + 2, board.shape[1])):
                if y != i or x != j:
                    count += board[y, x]
        out[i, j] = count == 3 or (count == 2 and board[i, j] == 1)


@wrong("game_of_life/torus", "itself counted")
@cuda.jit
def torus_with_itself(board, out):
    j, i = cuda.grid(2)
    h, w = board.shape
    if i < h and j < w:
        count = 0
        for y in range(-1, 2):
            for x in range(-1, 2):
                count += board[(i + y) % h, (j + x) % w]
        out[i, j] = count == 3 or (count == 2 and board[i, j] == 1)


@wrong("game_of_life/torus", "corners left out")
@cuda.jit
def torus_of_four(board, out):
    j, i = cuda.grid(2)
    h, w = board.shape
    if i < h and j < w:
        count = board[(i - 1) % h, j] + board[(i + 1) % h, j] + board[i, (j - 1) % w] + board[i, (j + 1) % w]
        out[i, j] = count == 3 or (count == 2 and board[i, j] == 1)


@wrong("game_of_life/torus", "negative index", "use % on both sides")
@cuda.jit
def torus_one_side_joined(board, out):
    """A negative index counts from the end, but one beyond the end is none."""
    j, i = cuda.grid(2)
    if i < board.shape[0] and j < board.shape[1]:
        count = 0
        for y in range(-1, 2):
            for x in range(-1, 2):
                if y != 0 or x != 0:
                    count += board[i + y, j + x]
        out[i, j] = count == 3 or (count == 2 and board[i, j] == 1)


@wrong("game_of_life/torus", "missing guard")
@cuda.jit
def torus_unguarded(board, out):
    j, i = cuda.grid(2)
    h, w = board.shape
    count = 0
    for y in range(-1, 2):
        for x in range(-1, 2):
            if y != 0 or x != 0:
                count += board[(i + y) % h, (j + x) % w]
    out[i, j] = count == 3 or (count == 2 and board[i % h, j % w] == 1)


# -- adder


@right("game_of_life/adder")
@cuda.jit
def adder_by_pairs(a, b, c, ones, twos):
    """The majority of three, as the pairs that are both set."""
    i = cuda.grid(1)
    if i < ones.size:
        x, y, z = a[i], b[i], c[i]
        ones[i] = x ^ (y ^ z)
        twos[i] = (x & y) | (y & z) | (x & z)


@wrong("game_of_life/adder", "all three only")
@cuda.jit
def adder_of_all(a, b, c, ones, twos):
    i = cuda.grid(1)
    if i < a.size:
        ones[i], twos[i] = a[i] ^ b[i] ^ c[i], a[i] & b[i] & c[i]


@wrong("game_of_life/adder", "any of them")
@cuda.jit
def adder_of_any(a, b, c, ones, twos):
    i = cuda.grid(1)
    if i < a.size:
        ones[i], twos[i] = a[i] | b[i] | c[i], a[i] & b[i] | c[i] & (a[i] ^ b[i])


@wrong("game_of_life/adder", "words added")
@cuda.jit
def adder_of_words(a, b, c, ones, twos):
    i = cuda.grid(1)
    if i < a.size:
        ones[i], twos[i] = a[i] + b[i] + c[i], a[i] & b[i] | c[i] & (a[i] ^ b[i])


@wrong("game_of_life/adder", "words added")
@cuda.jit
def adder_of_two_digits(a, b, c, ones, twos):
    i = cuda.grid(1)
    if i < a.size:
        total = a[i] + b[i] + c[i]
        ones[i], twos[i] = total & 1, total >> 1


@wrong("game_of_life/adder", "missing guard")
@cuda.jit
def adder_unguarded(a, b, c, ones, twos):
    i = cuda.grid(1)
    ones[i], twos[i] = a[i] ^ b[i] ^ c[i], a[i] & b[i] | c[i] & (a[i] ^ b[i])


@wrong("game_of_life/adder", "output not written")
@cuda.jit
def adder_without_twos(a, b, c, ones, twos):
    i = cuda.grid(1)
    if i < a.size:
        ones[i] = a[i] ^ b[i] ^ c[i]
