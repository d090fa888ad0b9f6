# seconds: 60
# gpus: 1
mkdir -p /tmp/rotation_trial
cat > /tmp/rotation_trial/trial2.py <<'EOF_TRIAL'
"""Private trial: rotation with dp2a, pairs in shared memory."""
import math, sys, time, functools
import numpy as np
from pmpp import cuda
from pmpp.runtime import device
from pmpp.runtime.vector import load128, store128
from pmpp.kernels.common import blocks
from pmpp.kernels.images import rotation as room
from pmpp.kernels.images.rotation import place, word_at, fraction, afresh, put_pairs, between, farthest, ZERO, APART, TOP

SIMT = device.backend().name == "simt"
if SIMT:
    @cuda.jit(device=True)
    def dp2a_lo(a, b, c):
        return np.uint32(np.uint32(c) + np.uint32(np.uint32(a) & np.uint32(65535)) * np.uint32(np.uint32(b) & np.uint32(255)) + np.uint32(np.uint32(a) >> np.uint32(16)) * np.uint32((np.uint32(b) >> np.uint32(8)) & np.uint32(255)))
    @cuda.jit(device=True)
    def dp2a_hi(a, b, c):
        return np.uint32(np.uint32(c) + np.uint32(np.uint32(a) & np.uint32(65535)) * np.uint32((np.uint32(b) >> np.uint32(16)) & np.uint32(255)) + np.uint32(np.uint32(a) >> np.uint32(16)) * np.uint32(np.uint32(b) >> np.uint32(24)))
else:
    from llvmlite import ir
    from numba.cuda import types
    from numba.cuda.extending import intrinsic
    def made(which):
        def dp2a(typingctx, a, b, c):
            def codegen(context, builder, signature, args):
                word = ir.IntType(32)
                args = [context.cast(builder, v, t, types.uint32) for v, t in zip(args, signature.args)]
                asm = ir.InlineAsm(ir.FunctionType(word, [word] * 3), f"dp2a.{which}.u32.u32 $0, $1, $2, $3;", "=r,r,r,r", side_effect=False)
                return builder.call(asm, args)
            return types.uint32(a, b, c), codegen
        return intrinsic(dp2a)
    dp2a_lo, dp2a_hi = made("lo"), made("hi")

room.steps = lambda angle: (2 * round(math.cos(angle) * 2**30), 2 * round(math.sin(angle) * 2**30))
U, U64 = np.uint32, np.uint64
P0, P1 = np.int32(0x3430), np.int32(0x3531)
S62, S5410 = np.int32(0x0062), np.int32(0x5410)
T0, T1, LO, HI = np.int32(0x5140), np.int32(0x7362), np.int32(0x5410), np.int32(0x7632)

@cuda.jit(device=True)
def prmt(a, b, s):
    return cuda.libdevice.byte_perm(np.int32(a), np.int32(b), s)

def make(side=64, threads=128, pieces=12, pitch=104, box_rows=92, dot=True, fill=True, inner=True, fillkind=0):
    AT_ONCE = threads // pieces
    DEEP = threads // 8
    STAGE = 2 * box_rows * pitch  # bytes
    PASSES = side // DEEP
    SEG = side // 32
    WARPS = threads // 32
    STAGE_WORDS = side * side // 4
    SHARED = STAGE + side * side
    ROWS_A_WARP = side // WARPS           # rows in a warp's staging
    MINE = ROWS_A_WARP * SEG * 8          # words of a warp
    ADDRESS = np.uint32(pitch << 16)

    @cuda.jit(device=True)
    def fill_box(pairs, flat, h, words, top, first, rows):
        row = np.int32(np.uint32(cuda.threadIdx.x) // np.uint32(pieces))
        word = np.int32(2 * (cuda.threadIdx.x - row * pieces))
        at = np.uint32(row * (pitch // 2) + 2 * word)
        if top >= 0 and np.int32(top + rows) <= h and first >= 0 and np.int32(first + 2 * pieces + 1) <= words:
            source = np.int64(np.int32(top + row)) * words + np.int32(first + word)
            while row < rows:
                a, b, c = flat[np.uint64(source)], flat[np.uint64(source + 1)], flat[np.uint64(source + 2)]
                put_pairs(pairs, at, np.int32(a), np.int32(b), np.int32(c))
                source += AT_ONCE * words
                at = np.uint32(at + np.uint32(AT_ONCE * pitch // 2))
                row = np.int32(row + AT_ONCE)
        else:
            while row < rows:
                i, j = np.int64(top) + row, np.int64(first) + word
                a, b = word_at(flat, h, words, i, j), word_at(flat, h, words, i, j + 1)
                put_pairs(pairs, at, a, b, word_at(flat, h, words, i, j + 2))
                at = np.uint32(at + np.uint32(AT_ONCE * pitch // 2))
                row = np.int32(row + AT_ONCE)

    @cuda.jit(device=True)
    def pixel_dot(box, down8, right):
        """down8 is 2^8 times the position down."""
        high = np.uint32(np.uint64(down8) >> np.uint64(32))
        at = np.uint64(dp2a_lo(ADDRESS, high, np.uint32(right >> 32)))
        weights = dp2a_hi(np.uint32(0xFFFF0000), np.uint32(fraction(right)), np.uint32(256))
        upper = dp2a_lo(weights, np.uint32(box[at]), np.uint32(128))
        lower = dp2a_lo(weights, np.uint32(box[at + np.uint64(pitch)]), np.uint32(128))
        return dp2a_lo(lower, high, dp2a_lo(upper, ~high, upper))

    @cuda.jit(device=True)
    def pixel_plain(box, down8, right):
        high = np.uint32(np.uint64(down8) >> np.uint64(32))
        at = np.uint64(high >> np.uint32(8)) * np.uint64(pitch) + np.uint64(right >> 32)
        beside = np.uint32(cuda.libdevice.byte_perm(fraction(right), ZERO, TOP))
        below = np.uint32(high & np.uint32(255))
        weights = np.uint32(np.uint32(256 << 16) - np.uint32(beside * np.uint32((1 << 16) - 1)))
        upper, lower = between(box[at], weights), between(box[at + np.uint64(pitch)], weights)
        return np.uint32(np.uint32(upper << np.uint32(8)) + np.uint32(below * np.uint32(lower - upper)))

    pixel_in = pixel_dot if dot else pixel_plain

    @cuda.jit
    def kernel(flat, out, h, words, cos, sin, highest, lowest, leftmost):
        box = cuda.shared.array(0, np.uint16, alignment=16)
        pairs = cuda.shared.array(0, np.uint32, alignment=16)
        found = cuda.local.array(4, np.uint32)
        tile_row, tile_word = np.int32(cuda.blockIdx.y * side), np.int32(cuda.blockIdx.x * (side // 4))
        down, right = place(tile_row, 4 * tile_word, h, 4 * words, cos, sin)
        top, first = np.int32((down + highest) >> 32), np.int32((right + leftmost) >> 34)
        if fill:
            if cuda.threadIdx.x < AT_ONCE * pieces:
                fill_box(pairs, flat, h, words, top, first, np.int32(np.int32((down + lowest) >> 32) - top + 2))
            cuda.syncthreads()
        if inner:
            lane, warp = np.int32(cuda.threadIdx.x & 31), np.int32(np.uint32(cuda.threadIdx.x) >> np.uint32(5))
            row, column = np.int32(np.uint32(cuda.threadIdx.x) >> np.uint32(3)), np.int32(cuda.threadIdx.x & 7)
            down += 2 * (row * cos + column * sin) - (np.int64(top) << 32)
            right += 2 * (column * cos - row * sin) - (np.int64(first) << 34)
            down = down << 8
            own = np.uint32(STAGE // 4 + warp * MINE + lane)
            for _ in range(PASSES):
                at_down, at_right = afresh(down), afresh(right)
                for k in range(SEG):
                    for j in range(4):
                        found[j] = pixel_in(box, at_down, at_right)
                        at_down += (16 * sin) << 8
                        at_right += 16 * cos
                    pairs[own] = np.uint32(prmt(prmt(found[0], found[1], S62), prmt(found[2], found[3], S62), S5410))
                    own = np.uint32(own + np.uint32(32))
                down += (2 * DEEP * cos) << 8
                right -= 2 * DEEP * sin
            cuda.syncwarp()
            # a lane: 32 pixels of a row.  words of the warp: [pass][seg][4 rows][8]
            for k in range(MINE // 256):
                unit = np.int32(lane + 32 * k)      # which row piece: pass, seg, row
                seg = np.int32((unit >> 2) % SEG)
                r = np.int32((unit >> 2) // SEG * DEEP + warp * 4 + (unit & 3))
                frm = np.uint32(STAGE // 4 + warp * MINE + unit * 8)
                a, b, c, d = load128(pairs, frm)
                e, f, g, i = load128(pairs, np.uint32(frm + np.uint32(4)))
                ab0, ab1, cd0, cd1 = prmt(a, b, T0), prmt(a, b, T1), prmt(c, d, T0), prmt(c, d, T1)
                ef0, ef1, gi0, gi1 = prmt(e, f, T0), prmt(e, f, T1), prmt(g, i, T0), prmt(g, i, T1)
                word = np.int32(tile_word + seg * 8)
                if tile_row + r < h:
                    target = np.int64(np.int32(tile_row + r)) * words + word
                    if word < words:
                        store128(out, target, (prmt(ab0, cd0, LO), prmt(ef0, gi0, LO), prmt(ab0, cd0, HI), prmt(ef0, gi0, HI)))
                    if word + 4 < words:
                        store128(out, target + 4, (prmt(ab1, cd1, LO), prmt(ef1, gi1, LO), prmt(ab1, cd1, HI), prmt(ef1, gi1, HI)))
        else:
            target = np.int64(np.int32(tile_row + cuda.threadIdx.x // 4)) * words + tile_word
            if tile_row + cuda.threadIdx.x // 4 < h:
                out[target] = pairs[cuda.threadIdx.x]

    def launch(p):
        h, w = p.x.shape
        cos, sin = 2 * int(p.cos), 2 * int(p.sin)
        far = lambda a, b: (sum(min((side - 1) * e, 0) for e in (a, b)), sum(max((side - 1) * e, 0) for e in (a, b)))
        (highest, lowest), (leftmost, _) = far(cos, sin), far(cos, -sin)
        places = np.int32(h), np.int32(w // 4), p.cos, p.sin, np.int64(highest), np.int64(lowest), np.int64(leftmost)
        flat, out = p.x.reshape(-1).view(np.uint32), p.result.reshape(-1).view(np.uint32)
        kernel[(blocks(w, side), blocks(h, side)), threads, p.stream, SHARED](flat, out, *places)
        return p.result
    launch.kernel, launch.shared = kernel, SHARED
    return launch

def lean(side=64, threads=128, pieces=12, pitch=104, box_rows=92, dot=True, fill=True, inner=True, lx=8, unroll=True):
    """Setup from the host, int32 places; lx lanes along x."""
    AT_ONCE = threads // pieces
    LY = 32 // lx
    ROWS_PASS = threads // lx
    STAGE = 2 * box_rows * pitch  # bytes
    PASSES = side // ROWS_PASS
    SEGW = lx * 4                          # columns of a segment
    SEG = side // SEGW
    WARPS = threads // 32
    SHARED = STAGE + side * side
    MINE = side // WARPS * side // 4           # words of a warp
    UNITS = MINE // 8                     # of 32 bytes
    ADDRESS = np.uint32(pitch << 16)

    @cuda.jit(device=True)
    def fill_box(pairs, flat, h, words, top, first, rows):
        row = np.int32(np.uint32(cuda.threadIdx.x) // np.uint32(pieces))
        word = np.int32(2 * (cuda.threadIdx.x - row * pieces))
        at = np.uint32(row * (pitch // 2) + 2 * word)
        if top >= 0 and np.int32(top + rows) <= h and first >= 0 and np.int32(first + 2 * pieces + 1) <= words:
            source = np.int64(np.int32(top + row)) * words + np.int32(first + word)
            while row < rows:
                a, b, c = flat[np.uint64(source)], flat[np.uint64(source + 1)], flat[np.uint64(source + 2)]
                put_pairs(pairs, at, np.int32(a), np.int32(b), np.int32(c))
                source += AT_ONCE * words
                at = np.uint32(at + np.uint32(AT_ONCE * pitch // 2))
                row = np.int32(row + AT_ONCE)
        else:
            while row < rows:
                i, j = np.int32(top + row), np.int32(first + word)
                a = b = c = ZERO
                if U(i) < U(h):
                    place = np.int64(i) * words + j
                    if U(j) < U(words):
                        a = np.int32(flat[U64(place)])
                    if U(np.int32(j + 1)) < U(words):
                        b = np.int32(flat[U64(place + 1)])
                    if U(np.int32(j + 2)) < U(words):
                        c = np.int32(flat[U64(place + 2)])
                put_pairs(pairs, at, a, b, c)
                at = np.uint32(at + np.uint32(AT_ONCE * pitch // 2))
                row = np.int32(row + AT_ONCE)

    @cuda.jit(device=True)
    def pixel_dot(box, down8, right):
        high = np.uint32(np.uint64(down8) >> np.uint64(32))
        at = np.uint64(dp2a_lo(ADDRESS, high, np.uint32(right >> 32)))
        weights = dp2a_hi(np.uint32(0xFFFF0000), np.uint32(fraction(right)), np.uint32(256))
        upper = dp2a_lo(weights, np.uint32(box[at]), np.uint32(128))
        lower = dp2a_lo(weights, np.uint32(box[at + np.uint64(pitch)]), np.uint32(128))
        return dp2a_lo(lower, high, dp2a_lo(upper, ~high, upper))

    @cuda.jit(device=True)
    def pixel_plain(box, down8, right):
        """Both rows in one word: upper row in the lower half."""
        high = np.uint32(np.uint64(down8) >> np.uint64(32))
        at = np.uint64(U(U(high >> U(8)) * U(pitch)) + U(right >> 32))
        beside = U(fraction(right)) >> U(24)
        below = high & U(255)
        up, lo = U(box[at]), U(box[at + np.uint64(pitch)])
        p, q = U(prmt(up, lo, P0)), U(prmt(up, lo, P1))
        both = U(U(U(p << U(8)) + U(0x00800080)) + U(beside * U(q - p)))
        upper, lower = both & U(65535), both >> U(16)
        return U(U(upper << U(8)) + U(below * U(lower - upper)))

    pixel_in = pixel_dot if dot else pixel_plain

    @cuda.jit
    def kernel(flat, out, h, words, start_down, start_right, c, s, highest, lowest, leftmost):
        box = cuda.shared.array(0, np.uint16, alignment=16)
        pairs = cuda.shared.array(0, np.uint32, alignment=16)
        found = cuda.local.array(4, np.uint32)
        tile_row, tile_word = np.int32(cuda.blockIdx.y * side), np.int32(cuda.blockIdx.x * (side // 4))
        down = start_down + np.int64(tile_row) * c + np.int64(np.int32(4 * tile_word)) * s
        right = start_right + np.int64(np.int32(4 * tile_word)) * c - np.int64(tile_row) * s
        top, first = np.int32((down + highest) >> 32), np.int32((right + leftmost) >> 34)
        if fill:
            if cuda.threadIdx.x < AT_ONCE * pieces:
                fill_box(pairs, flat, h, words, top, first, np.int32(np.int32((down + lowest) >> 32) - top + 2))
            cuda.syncthreads()
        if inner:
            thread = np.int32(cuda.threadIdx.x)
            lane, warp = np.int32(thread & 31), np.int32(U(thread) >> U(5))
            row, column = np.int32(U(thread) // U(lx)), np.int32(thread & (lx - 1))
            down += np.int64(row) * c + np.int64(column) * s - (np.int64(top) << 32)
            right += np.int64(column) * c - np.int64(row) * s - (np.int64(first) << 34)
            down = down << 8
            own = U(STAGE // 4 + warp * MINE + lane)
            for _ in range(PASSES):
                at_down, at_right = afresh(down), afresh(right)
                for k in range(SEG):
                    for j in range(4):
                        found[j] = pixel_in(box, at_down, at_right)
                        at_down += (lx * s) << 8
                        at_right += lx * c
                    pairs[own] = U(prmt(prmt(found[0], found[1], S62), prmt(found[2], found[3], S62), S5410))
                    own = U(own + U(32))
                down += (ROWS_PASS * c) << 8
                right -= ROWS_PASS * s
            cuda.syncwarp()
            for k in range((UNITS + 31) // 32):
                unit = np.int32(lane + 32 * k)
                if unit < UNITS:
                    frm = U(STAGE // 4 + warp * MINE + unit * 8)
                    a, b, cc, d = load128(pairs, frm)
                    e, f, g, i = load128(pairs, U(frm + U(4)))
                    ab0, ab1, cd0, cd1 = prmt(a, b, T0), prmt(a, b, T1), prmt(cc, d, T0), prmt(cc, d, T1)
                    ef0, ef1, gi0, gi1 = prmt(e, f, T0), prmt(e, f, T1), prmt(g, i, T0), prmt(g, i, T1)
                    if lx == 8:
                        # words of a warp: [pass][seg][4 rows][8]
                        x = np.int32(U(unit) >> U(2))
                        seg = np.int32(U(x) % U(SEG))
                        r = np.int32(np.int32(U(x) // U(SEG)) * ROWS_PASS + warp * LY + (unit & 3))
                        w0 = np.int32(tile_word + seg * 8)
                        first4 = (prmt(ab0, cd0, LO), prmt(ef0, gi0, LO), prmt(ab0, cd0, HI), prmt(ef0, gi0, HI))
                        second4 = (prmt(ab1, cd1, LO), prmt(ef1, gi1, LO), prmt(ab1, cd1, HI), prmt(ef1, gi1, HI))
                        r2 = r
                        w2 = np.int32(w0 + 4)
                    else:
                        # [pass][seg][8 rows][4]: two rows of 16 pixels
                        x = np.int32(U(unit) >> U(2))
                        seg = np.int32(U(x) % U(SEG))
                        r = np.int32(np.int32(U(x) // U(SEG)) * ROWS_PASS + warp * LY + (unit & 3) * 2)
                        w0 = np.int32(tile_word + seg * 4)
                        first4 = (prmt(ab0, cd0, LO), prmt(ab0, cd0, HI), prmt(ab1, cd1, LO), prmt(ab1, cd1, HI))
                        second4 = (prmt(ef0, gi0, LO), prmt(ef0, gi0, HI), prmt(ef1, gi1, LO), prmt(ef1, gi1, HI))
                        r2 = np.int32(r + 1)
                        w2 = w0
                    y = np.int32(tile_row + r)
                    y2 = np.int32(tile_row + r2)
                    target = np.int64(y) * words + w0
                    if y < h and w0 < words:
                        store128(out, target, first4)
                    target = np.int64(y2) * words + w2
                    if y2 < h and w2 < words:
                        store128(out, target, second4)
        else:
            target = np.int64(np.int32(tile_row + cuda.threadIdx.x // 4)) * words + tile_word
            if tile_row + cuda.threadIdx.x // 4 < h:
                out[target] = pairs[cuda.threadIdx.x]

    def launch(p):
        h, w = p.x.shape
        c, s = 2 * int(p.cos), 2 * int(p.sin)
        far = lambda a, b: (sum(min((side - 1) * e, 0) for e in (a, b)), sum(max((side - 1) * e, 0) for e in (a, b)))
        (highest, lowest), (leftmost, _) = far(c, s), far(c, -s)
        cc, ss = int(p.cos), int(p.sin)
        sd = -(h - 1) * cc - (w - 1) * ss + (h - 1) * 2**31
        sr = -(w - 1) * cc + (h - 1) * ss + (w - 1) * 2**31
        L = np.int64
        flat, out = p.x.reshape(-1).view(np.uint32), p.result.reshape(-1).view(np.uint32)
        kernel[(blocks(w, side), blocks(h, side)), threads, p.stream, SHARED](flat, out, np.int32(h), np.int32(w // 4), L(sd), L(sr), L(c), L(s), L(highest), L(lowest), L(leftmost))
        return p.result
    launch.kernel, launch.shared = kernel, SHARED
    return launch

def best(side=64, threads=128, pieces=12, pitch=104, box_rows=92, dot=True, fill=True, inner=True, lx=8, wide=False, twice=False, persistent=0, mulr=False, muld=False, ahead=0):
    """As lean, steps from the host; wide: 64-bit loads; twice: two passes at a time; persistent: blocks an SM."""
    AT_ONCE = threads // pieces
    LY = 32 // lx
    ROWS_PASS = threads // lx
    STAGE = 2 * box_rows * pitch  # bytes
    GOT = 5 * locals().get("ahead", 0)
    ALIGN = 4 if wide == 16 else 2 if wide else 1
    SHIFT = 36 if wide == 16 else 35 if wide else 34
    PIECE = 4 if wide == 16 else 2  # words
    PASSES = side // ROWS_PASS
    SEGW = lx * 4                          # columns of a segment
    SEG = side // SEGW
    WARPS = threads // 32
    SHARED = STAGE + side * side
    MINE = side // WARPS * side // 4           # words of a warp
    UNITS = MINE // 8                     # of 32 bytes
    ADDRESS = np.uint32(pitch << 16)

    @cuda.jit(device=True)
    def fill_box(pairs, flat, wide_flat, h, words, top, first, rows):
        row = np.int32(np.uint32(cuda.threadIdx.x) // np.uint32(pieces))
        word = np.int32(PIECE * (cuda.threadIdx.x - row * pieces))
        at = np.uint32(row * (pitch // 2) + 2 * word)
        if top >= 0 and np.int32(top + rows) <= h and first >= 0 and np.int32(first + PIECE * pieces + 1) <= words:
            source = np.int64(np.int32(top + row)) * words + np.int32(first + word)
            if ahead:
                got = cuda.local.array(GOT, np.uint32)
                frm = U64(np.int64(np.int32(top + row)) * words + np.int32(first + word))
                to, jump = U64(at), U64(AT_ONCE * words)
                left = np.int32(rows - row)
                while left > 0:
                    for r in range(ahead):
                        if left > AT_ONCE * r:
                            got[5 * r], got[5 * r + 1], got[5 * r + 2], got[5 * r + 3] = load128(flat, frm)
                            got[5 * r + 4] = flat[frm + U64(4)]
                        frm += jump
                    for r in range(ahead):
                        if left > AT_ONCE * r:
                            put_pairs(pairs, to + U64(AT_ONCE * pitch // 2 * r), got[5 * r], got[5 * r + 1], got[5 * r + 2])
                            put_pairs(pairs, to + U64(AT_ONCE * pitch // 2 * r + 4), got[5 * r + 2], got[5 * r + 3], got[5 * r + 4])
                    to += U64(AT_ONCE * pitch // 2 * ahead)
                    left = np.int32(left - AT_ONCE * ahead)
            elif wide == 16:
                frm = U64(np.int64(np.int32(top + row)) * words + np.int32(first + word))
                to, jump = U64(at), U64(AT_ONCE * words)
                while row < rows:
                    a, b, c, d = load128(flat, frm)
                    e = flat[frm + U64(4)]
                    put_pairs(pairs, to, a, b, c)
                    put_pairs(pairs, to + U64(4), c, d, e)
                    frm += jump
                    to += U64(AT_ONCE * pitch // 2)
                    row = np.int32(row + AT_ONCE)
            elif wide:
                source = (np.int64(np.int32(top + row)) * words + np.int32(first + word)) >> 1
                while row < rows:
                    ab, c = wide_flat[U64(source)], flat[U64(2 * source + 2)]
                    put_pairs(pairs, at, np.int32(U(ab)), np.int32(U(ab >> U64(32))), np.int32(c))
                    source += AT_ONCE * words // 2
                    at = np.uint32(at + np.uint32(AT_ONCE * pitch // 2))
                    row = np.int32(row + AT_ONCE)
            while row < rows:
                a, b, c = flat[np.uint64(source)], flat[np.uint64(source + 1)], flat[np.uint64(source + 2)]
                put_pairs(pairs, at, np.int32(a), np.int32(b), np.int32(c))
                source += AT_ONCE * words
                at = np.uint32(at + np.uint32(AT_ONCE * pitch // 2))
                row = np.int32(row + AT_ONCE)
        else:
            while row < rows:
                i, j = np.int32(top + row), np.int32(first + word)
                a = b = c = ZERO
                if U(i) < U(h):
                    place = np.int64(i) * words + j
                    if U(j) < U(words):
                        a = np.int32(flat[U64(place)])
                    if U(np.int32(j + 1)) < U(words):
                        b = np.int32(flat[U64(place + 1)])
                    if U(np.int32(j + 2)) < U(words):
                        c = np.int32(flat[U64(place + 2)])
                put_pairs(pairs, at, a, b, c)
                if wide == 16:
                    d = e = ZERO
                    if U(i) < U(h):
                        place = np.int64(i) * words + j
                        if U(np.int32(j + 3)) < U(words):
                            d = np.int32(flat[U64(place + 3)])
                        if U(np.int32(j + 4)) < U(words):
                            e = np.int32(flat[U64(place + 4)])
                    put_pairs(pairs, U(at + U(4)), c, d, e)
                at = np.uint32(at + np.uint32(AT_ONCE * pitch // 2))
                row = np.int32(row + AT_ONCE)

    @cuda.jit(device=True)
    def pixel_dot(box, down8, right):
        high = np.uint32(np.uint64(down8) >> np.uint64(32))
        at = np.uint64(dp2a_lo(ADDRESS, high, np.uint32(right >> 32)))
        weights = dp2a_hi(np.uint32(0xFFFF0000), np.uint32(fraction(right)), np.uint32(256))
        upper = dp2a_lo(weights, np.uint32(box[at]), np.uint32(128))
        lower = dp2a_lo(weights, np.uint32(box[at + np.uint64(pitch)]), np.uint32(128))
        return dp2a_lo(lower, high, dp2a_lo(upper, ~high, upper))

    @cuda.jit(device=True)
    def pixel_plain(box, down8, right):
        """Both rows in one word: upper row in the lower half."""
        high = np.uint32(np.uint64(down8) >> np.uint64(32))
        at = np.uint64(U(U(high >> U(8)) * U(pitch)) + U(right >> 32))
        beside = U(fraction(right)) >> U(24)
        below = high & U(255)
        up, lo = U(box[at]), U(box[at + np.uint64(pitch)])
        p, q = U(prmt(up, lo, P0)), U(prmt(up, lo, P1))
        both = U(U(U(p << U(8)) + U(0x00800080)) + U(beside * U(q - p)))
        upper, lower = both & U(65535), both >> U(16)
        return U(U(upper << U(8)) + U(below * U(lower - upper)))

    pixel_in = pixel_dot if dot else pixel_plain

    if not persistent:
        @cuda.jit
        def kernel(flat, wide_flat, out, h, words, start_down, start_right, c, s, highest, lowest, leftmost, next_down, next_right, pass_down, pass_right, across, tiles, fac_right, fac_down):
            box = cuda.shared.array(0, np.uint16, alignment=16)
            pairs = cuda.shared.array(0, np.uint32, alignment=16)
            found = cuda.local.array(4, np.uint32)
            tile_row, tile_word = np.int32(cuda.blockIdx.y * side), np.int32(cuda.blockIdx.x * (side // 4))
            down = start_down + np.int64(U64(U(tile_row)) * U64(c)) + np.int64(U64(U(4 * tile_word)) * U64(s))
            right = start_right + np.int64(U64(U(4 * tile_word)) * U64(c)) - np.int64(U64(U(tile_row)) * U64(s))
            top, first = np.int32((down + highest) >> 32), np.int32(np.int32((right + leftmost) >> SHIFT) * ALIGN)
            if fill:
                if cuda.threadIdx.x < AT_ONCE * pieces:
                    fill_box(pairs, flat, wide_flat, h, words, top, first, np.int32(np.int32((down + lowest) >> 32) - top + 2))
                cuda.syncthreads()
            if inner:
                thread = np.int32(cuda.threadIdx.x)
                lane, warp = np.int32(thread & 31), np.int32(U(thread) >> U(5))
                row, column = np.int32(U(thread) // U(lx)), np.int32(thread & (lx - 1))
                down += np.int64(row) * c + np.int64(column) * s - (np.int64(top) << 32)
                right += np.int64(column) * c - np.int64(row) * s - (np.int64(first) << 34)
                down = down << 8
                own = U(STAGE // 4 + warp * MINE + lane)
                for _ in range(PASSES // (2 if twice else 1)):
                    at_down, at_right = afresh(down), afresh(right)
                    for k in range(SEG):
                        for j in range(4):
                            found[j] = pixel_in(box, at_down, at_right)
                            at_down += (np.int64(fac_down) * np.int64(1024 * lx) if muld else next_down)
                            at_right += (np.int64(fac_right) * np.int64(4 * lx) if mulr else next_right)
                        pairs[own + U(32 * k)] = U(prmt(prmt(found[0], found[1], S62), prmt(found[2], found[3], S62), S5410))
                    down += pass_down
                    right += pass_right
                    if twice:
                        at_down, at_right = afresh(down), afresh(right)
                        for k in range(SEG):
                            for j in range(4):
                                found[j] = pixel_in(box, at_down, at_right)
                                at_down += (np.int64(fac_down) * np.int64(1024 * lx) if muld else next_down)
                                at_right += (np.int64(fac_right) * np.int64(4 * lx) if mulr else next_right)
                            pairs[own + U(32 * (SEG + k))] = U(prmt(prmt(found[0], found[1], S62), prmt(found[2], found[3], S62), S5410))
                        down += pass_down
                        right += pass_right
                    own = U(own + U(32 * SEG * (2 if twice else 1)))
                cuda.syncwarp()
                for k in range((UNITS + 31) // 32):
                    unit = np.int32(lane + 32 * k)
                    if unit < UNITS:
                        frm = U(STAGE // 4 + warp * MINE + unit * 8)
                        a, b, cc, d = load128(pairs, frm)
                        e, f, g, i = load128(pairs, U(frm + U(4)))
                        ab0, ab1, cd0, cd1 = prmt(a, b, T0), prmt(a, b, T1), prmt(cc, d, T0), prmt(cc, d, T1)
                        ef0, ef1, gi0, gi1 = prmt(e, f, T0), prmt(e, f, T1), prmt(g, i, T0), prmt(g, i, T1)
                        if lx == 8:
                            # words of a warp: [pass][seg][4 rows][8]
                            x = np.int32(U(unit) >> U(2))
                            seg = np.int32(U(x) % U(SEG))
                            r = np.int32(np.int32(U(x) // U(SEG)) * ROWS_PASS + warp * LY + (unit & 3))
                            w0 = np.int32(tile_word + seg * 8)
                            first4 = (prmt(ab0, cd0, LO), prmt(ef0, gi0, LO), prmt(ab0, cd0, HI), prmt(ef0, gi0, HI))
                            second4 = (prmt(ab1, cd1, LO), prmt(ef1, gi1, LO), prmt(ab1, cd1, HI), prmt(ef1, gi1, HI))
                            r2 = r
                            w2 = np.int32(w0 + 4)
                        else:
                            # [pass][seg][8 rows][4]: two rows of 16 pixels
                            x = np.int32(U(unit) >> U(2))
                            seg = np.int32(U(x) % U(SEG))
                            r = np.int32(np.int32(U(x) // U(SEG)) * ROWS_PASS + warp * LY + (unit & 3) * 2)
                            w0 = np.int32(tile_word + seg * 4)
                            first4 = (prmt(ab0, cd0, LO), prmt(ab0, cd0, HI), prmt(ab1, cd1, LO), prmt(ab1, cd1, HI))
                            second4 = (prmt(ef0, gi0, LO), prmt(ef0, gi0, HI), prmt(ef1, gi1, LO), prmt(ef1, gi1, HI))
                            r2 = np.int32(r + 1)
                            w2 = w0
                        y = np.int32(tile_row + r)
                        y2 = np.int32(tile_row + r2)
                        target = np.int64(y) * words + w0
                        if y < h and w0 < words:
                            store128(out, target, first4)
                        target = np.int64(y2) * words + w2
                        if y2 < h and w2 < words:
                            store128(out, target, second4)
            else:
                target = np.int64(np.int32(tile_row + cuda.threadIdx.x // 4)) * words + tile_word
                if tile_row + cuda.threadIdx.x // 4 < h:
                    out[target] = pairs[cuda.threadIdx.x]
    else:
        @cuda.jit
        def kernel(flat, wide_flat, out, h, words, start_down, start_right, c, s, highest, lowest, leftmost, next_down, next_right, pass_down, pass_right, across, tiles, fac_right, fac_down):
            box = cuda.shared.array(0, np.uint16, alignment=16)
            pairs = cuda.shared.array(0, np.uint32, alignment=16)
            found = cuda.local.array(4, np.uint32)
            for tile in range(np.int32(cuda.blockIdx.x), tiles, np.int32(cuda.gridDim.x)):
                ty = np.int32(U(tile) // U(across))
                tile_row, tile_word = np.int32(ty * side), np.int32(np.int32(tile - ty * across) * (side // 4))
                down = start_down + np.int64(U64(U(tile_row)) * U64(c)) + np.int64(U64(U(4 * tile_word)) * U64(s))
                right = start_right + np.int64(U64(U(4 * tile_word)) * U64(c)) - np.int64(U64(U(tile_row)) * U64(s))
                top, first = np.int32((down + highest) >> 32), np.int32(np.int32((right + leftmost) >> SHIFT) * ALIGN)
                if fill:
                    if cuda.threadIdx.x < AT_ONCE * pieces:
                        fill_box(pairs, flat, wide_flat, h, words, top, first, np.int32(np.int32((down + lowest) >> 32) - top + 2))
                    cuda.syncthreads()
                if inner:
                    thread = np.int32(cuda.threadIdx.x)
                    lane, warp = np.int32(thread & 31), np.int32(U(thread) >> U(5))
                    row, column = np.int32(U(thread) // U(lx)), np.int32(thread & (lx - 1))
                    down += np.int64(row) * c + np.int64(column) * s - (np.int64(top) << 32)
                    right += np.int64(column) * c - np.int64(row) * s - (np.int64(first) << 34)
                    down = down << 8
                    own = U(STAGE // 4 + warp * MINE + lane)
                    for _ in range(PASSES // (2 if twice else 1)):
                        at_down, at_right = afresh(down), afresh(right)
                        for k in range(SEG):
                            for j in range(4):
                                found[j] = pixel_in(box, at_down, at_right)
                                at_down += (np.int64(fac_down) * np.int64(1024 * lx) if muld else next_down)
                                at_right += (np.int64(fac_right) * np.int64(4 * lx) if mulr else next_right)
                            pairs[own + U(32 * k)] = U(prmt(prmt(found[0], found[1], S62), prmt(found[2], found[3], S62), S5410))
                        down += pass_down
                        right += pass_right
                        if twice:
                            at_down, at_right = afresh(down), afresh(right)
                            for k in range(SEG):
                                for j in range(4):
                                    found[j] = pixel_in(box, at_down, at_right)
                                    at_down += (np.int64(fac_down) * np.int64(1024 * lx) if muld else next_down)
                                    at_right += (np.int64(fac_right) * np.int64(4 * lx) if mulr else next_right)
                                pairs[own + U(32 * (SEG + k))] = U(prmt(prmt(found[0], found[1], S62), prmt(found[2], found[3], S62), S5410))
                            down += pass_down
                            right += pass_right
                        own = U(own + U(32 * SEG * (2 if twice else 1)))
                    cuda.syncwarp()
                    for k in range((UNITS + 31) // 32):
                        unit = np.int32(lane + 32 * k)
                        if unit < UNITS:
                            frm = U(STAGE // 4 + warp * MINE + unit * 8)
                            a, b, cc, d = load128(pairs, frm)
                            e, f, g, i = load128(pairs, U(frm + U(4)))
                            ab0, ab1, cd0, cd1 = prmt(a, b, T0), prmt(a, b, T1), prmt(cc, d, T0), prmt(cc, d, T1)
                            ef0, ef1, gi0, gi1 = prmt(e, f, T0), prmt(e, f, T1), prmt(g, i, T0), prmt(g, i, T1)
                            if lx == 8:
                                # words of a warp: [pass][seg][4 rows][8]
                                x = np.int32(U(unit) >> U(2))
                                seg = np.int32(U(x) % U(SEG))
                                r = np.int32(np.int32(U(x) // U(SEG)) * ROWS_PASS + warp * LY + (unit & 3))
                                w0 = np.int32(tile_word + seg * 8)
                                first4 = (prmt(ab0, cd0, LO), prmt(ef0, gi0, LO), prmt(ab0, cd0, HI), prmt(ef0, gi0, HI))
                                second4 = (prmt(ab1, cd1, LO), prmt(ef1, gi1, LO), prmt(ab1, cd1, HI), prmt(ef1, gi1, HI))
                                r2 = r
                                w2 = np.int32(w0 + 4)
                            else:
                                # [pass][seg][8 rows][4]: two rows of 16 pixels
                                x = np.int32(U(unit) >> U(2))
                                seg = np.int32(U(x) % U(SEG))
                                r = np.int32(np.int32(U(x) // U(SEG)) * ROWS_PASS + warp * LY + (unit & 3) * 2)
                                w0 = np.int32(tile_word + seg * 4)
                                first4 = (prmt(ab0, cd0, LO), prmt(ab0, cd0, HI), prmt(ab1, cd1, LO), prmt(ab1, cd1, HI))
                                second4 = (prmt(ef0, gi0, LO), prmt(ef0, gi0, HI), prmt(ef1, gi1, LO), prmt(ef1, gi1, HI))
                                r2 = np.int32(r + 1)
                                w2 = w0
                            y = np.int32(tile_row + r)
                            y2 = np.int32(tile_row + r2)
                            target = np.int64(y) * words + w0
                            if y < h and w0 < words:
                                store128(out, target, first4)
                            target = np.int64(y2) * words + w2
                            if y2 < h and w2 < words:
                                store128(out, target, second4)
                else:
                    target = np.int64(np.int32(tile_row + cuda.threadIdx.x // 4)) * words + tile_word
                    if tile_row + cuda.threadIdx.x // 4 < h:
                        out[target] = pairs[cuda.threadIdx.x]
                cuda.syncthreads()

    def launch(p):
        h, w = p.x.shape
        c, s = 2 * int(p.cos), 2 * int(p.sin)
        far = lambda a, b: (sum(min((side - 1) * e, 0) for e in (a, b)), sum(max((side - 1) * e, 0) for e in (a, b)))
        (highest, lowest), (leftmost, _) = far(c, s), far(c, -s)
        cc, ss = int(p.cos), int(p.sin)
        sd = -(h - 1) * cc - (w - 1) * ss + (h - 1) * 2**31
        sr = -(w - 1) * cc + (h - 1) * ss + (w - 1) * 2**31
        L = np.int64
        flat, out = p.x.reshape(-1).view(np.uint32), p.result.reshape(-1).view(np.uint32)
        across, down_tiles = blocks(w, side), blocks(h, side)
        grid = min(across * down_tiles, 132 * persistent) if persistent else (across, down_tiles)
        kernel[grid, threads, p.stream, SHARED](flat, flat.view(np.uint64), out, np.int32(h), np.int32(w // 4), L(sd), L(sr), L(c), L(s), L(highest), L(lowest), L(leftmost), L((lx * s) << 8), L(lx * c), L((ROWS_PASS * c) << 8), L(-ROWS_PASS * s), np.int32(across), np.int32(across * down_tiles), np.int32(c // 4), np.int32(s // 4))
        return p.result
    launch.kernel, launch.shared = kernel, SHARED
    return launch

def check(launch, shapes=((64, 64, .5), (65, 80, .9), (130, 208, -2.0), (187, 192, math.pi / 4), (187, 192, 2.2))):
    bad = 0
    for h, w, angle in shapes:
        x = np.random.default_rng(1).integers(0, 256, (h, w), dtype=np.uint8)
        p = room.arguments(device.to_device(x) if not SIMT else x, angle)
        r = launch(p)
        bad += int((device.to_host(r) != room.reference(x, angle)).sum())
    return bad

if __name__ == "__main__":
    print(check(best(wide=16, pieces=7, pitch=120, threads=64)), check(best(wide=16, pieces=7, pitch=120)), check(best(wide=True, pieces=13)))

EOF_TRIAL
cat > /tmp/rotation_trial/job1.py <<'EOF_JOB'
import sys, time, math, os
T0=time.time()
DEADLINE=float(sys.argv[1]) if len(sys.argv)>1 else 40
import numpy as np, cupy
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import trial2 as t
from pmpp.lab.measure import timing
from pmpp.runtime import device
room=t.room
N=16384
x=device.to_device(np.random.default_rng(0).integers(0,256,(N,N),dtype=np.uint8))
ref,out=device.empty((N,N),np.uint8),device.empty((N,N),np.uint8)
cref,cout,cx=cupy.asarray(ref),cupy.asarray(out),cupy.asarray(x)
def ms(fn,secs=.15):
    return 1e6*timing.measure(lambda _x: fn(), [(x,)], cache="cold", set_bytes=2*N*N, max_seconds=secs, min_repeats=8).median
def say(*a): print(f"{time.time()-T0:5.1f}s",*a,flush=True)
P={d:room.arguments(x,math.radians(d),out=out) for d in (0,30,45,90)}
R={d:room.arguments(x,math.radians(d),out=ref) for d in P}
if len(sys.argv)>2:   # for ncu
    v=eval(sys.argv[2],vars(t)); v(P[30]); cupy.cuda.runtime.deviceSynchronize(); sys.exit()
say("copy", round(ms(lambda: cupy.copyto(cout,cx)),1))
room.in_boxes.launch(R[30])
say("in_boxes", {d: round(ms(lambda: room.in_boxes.launch(R[d])),1) for d in R})
room.in_boxes.launch(R[30])
W="wide=16,pieces=7,pitch=120,twice=True"
ALL=[
 ("64 mulr",f"best(threads=64,{W},mulr=True)"),
 ("64 mulr a5",f"best(threads=64,{W},mulr=True,ahead=5)"),
 ("64 mulr a5 lx4",f"best(threads=64,lx=4,{W},mulr=True,ahead=5)"),
 ("64 mulrd a5",f"best(threads=64,{W},mulr=True,muld=True,ahead=5)"),
 ("64 plain a5",f"best(threads=64,{W},dot=False,ahead=5)"),
 ("128 mulr a3",f"best(threads=128,{W},mulr=True,ahead=3)"),
 ("64 a5 nofill",f"best(threads=64,{W},mulr=True,fill=False)"),
 ("64 a5 noinner",f"best(threads=64,{W},inner=False,ahead=5)"),
 ("64 mulr a10",f"best(threads=64,{W},mulr=True,ahead=10)"),
 ("twice64 mulr","best(threads=64,twice=True,mulr=True)"),
 ("64 a5",f"best(threads=64,{W},ahead=5)"),
 ("256 mulr a2",f"best(threads=256,{W},mulr=True,ahead=2)"),
 ("pers 128 mulr a3",f"best(threads=128,{W},persistent=8,mulr=True,ahead=3)"),
]
for name,what in ALL:
    if time.time()-T0>DEADLINE: break
    try:
        v=eval(what,vars(t))
        s=time.time(); v(P[30]); cupy.cuda.runtime.deviceSynchronize(); c=time.time()-s
        wrong="-" if name.startswith("no") else (int((cref!=cout).sum()), t.check(v))
        say(f"{name:16}", f"compile {c:4.1f}", "wrong",wrong, {d: round(ms(lambda: v(P[d])),1) for d in P})
    except Exception as e:
        say(name,"FAILED",type(e).__name__,str(e)[:300])
say("in_boxes", {d: round(ms(lambda: room.in_boxes.launch(R[d])),1) for d in R})

EOF_JOB
export PYTHONPATH=$PWD PMPP_BACKEND=numba
timeout 46 python3 /tmp/rotation_trial/job1.py 36 2>&1 | tee $OUT/table.txt
M=smsp__inst_executed.sum,smsp__issue_active.avg.pct_of_peak_sustained_active,smsp__inst_executed_pipe_alu.sum,smsp__inst_executed_pipe_fma.sum,smsp__inst_executed_pipe_fmaheavy.sum,smsp__inst_executed_pipe_alu.avg.pct_of_peak_sustained_active,smsp__inst_executed_pipe_fmaheavy.avg.pct_of_peak_sustained_active,l1tex__data_pipe_lsu_wavefronts.sum,l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_active,l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum,l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum,l1tex__lsuin_requests.avg.pct_of_peak_sustained_active,sm__warps_active.avg.pct_of_peak_sustained_active,gpu__time_duration.sum,smsp__average_warps_issue_stalled_long_scoreboard_per_issue_active.ratio,smsp__average_warps_issue_stalled_short_scoreboard_per_issue_active.ratio,smsp__average_warps_issue_stalled_mio_throttle_per_issue_active.ratio,smsp__average_warps_issue_stalled_math_pipe_throttle_per_issue_active.ratio,smsp__average_warps_issue_stalled_barrier_per_issue_active.ratio
timeout 20 ncu --clock-control none --csv --metrics $M -k regex:kernel -c 1 python3 /tmp/rotation_trial/job1.py 1 'best(threads=64,wide=16,pieces=7,pitch=120,twice=True,mulr=True,ahead=5)' 2>&1 | tail -40 > $OUT/ncu.txt
