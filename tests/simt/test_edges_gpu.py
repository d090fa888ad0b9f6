"""What one NVIDIA H200 gave at the edges of arithmetic, expression by expression (numba-cuda 0.30.4, 2026-11-21).

Rows picked from 821 outputs of 810 expressions on 4,096 arguments each, where NumPy's or SciPy's answer is another
one: infinities, overflow, huge quotients and exponents, phases of huge arguments, the smallest numbers.  A complex
number is a pair.  The letters are NumPy's type codes.  tests/simt/test_edges.py states the rules.
"""

import importlib.util
import math

import numpy as np
import pytest

from pmpp.simt.values import dtypes

TABLE = """
x.bit_count() i->i
    -18 = 30
cuda.libdevice.erfcinv(x) d->d
    5e-324 = 27.21329321081295
cuda.libdevice.normcdf(x) d->d
    -38.136746810504675 = 1.57701e-318
cuda.libdevice.tgamma(x) d->d
    -174.05082206555386 = -2.365683337e-315
cuda.libdevice.j0(x) d->d
    -18936492275735.953 = -4.355913056890217e-09
    9.223372036854776e+18 = 1.8795116531898912e-10
cuda.libdevice.j1(x) d->d
    -156646788552229.47 = -4.300892123830365e-08
    9.223372036854776e+18 = 1.8356691826236764e-10
cuda.libdevice.y0(x) d->d
    9.223372036854776e+18 = 1.83566918259682e-10
cuda.libdevice.y1(x) d->d
    9.223372036854776e+18 = -1.8795116531985797e-10
cuda.libdevice.j0f(x) f->f
    -4.69417655717974e+32 = 2.330010828040647e-18
cuda.libdevice.j1f(x) f->f
    -4.69417655717974e+32 = 3.675270995052734e-17
cuda.libdevice.y0f(x) f->f
    9.223372036854776e+18 = 1.8356691167120687e-10
cuda.libdevice.y1f(x) f->f
    9.223372036854776e+18 = -1.8795114076208819e-10
cuda.libdevice.hypot(x,y) dd->d
    1.7976931348623157e+308, -2.5 = inf
    10., 1.7976931348623157e+308 = inf
cuda.libdevice.fast_powf(x,y) ff->f
    0., 0. = nan
cuda.libdevice.fast_fdividef(x,y) ff->f
    3., 3.4028234663852886e+38 = 0.
cuda.libdevice.powif(x,y) fi->f
    103282.875, -9 = 0.
cuda.libdevice.jn(x,y) id->d
    5, 0. = nan
    0, inf = 0.
    2, inf = 0.
cuda.libdevice.yn(x,y) id->d
    0, inf = 0.
    2, inf = 0.
cuda.libdevice.jnf(x,y) if->f
    6, inf = 0.
    2, 0. = nan
    0, inf = 0.
cuda.libdevice.ynf(x,y) if->f
    6, inf = 0.
    0, inf = 0.
x//y ee->f
    0., inf = nan
x%y ee->f
    0., inf = nan
    2072., -7.092952728271484e-06 = 5.9664249420166016e-05
x//y ff->f
    0., inf = nan
x%y ff->f
    0., inf = nan
    5.5, 1.401298464324817e-45 = -inf
x//y dd->d
    7., -inf = nan
    1.7976931348623157e+308, -1.5 = -inf
x%y dd->d
    7., -inf = nan
    1.5, 5e-324 = -inf
    2.5, 1.490411809687644e-43 = 1.1429536028894215e-16
x**y ii->l
    0, -8 = -9223372036854775808
    4, 9851056 = 9223372036854775807
x**y fi->f
    103282.875, -9 = 0.
    -inf, 68147255 = -inf
x*y FF->F
    (-3.4028234663852886e+38, -875300.875), (-inf, 7.631927490234375) = (inf, nan)
    (2.651127815246582, 3.4028234663852886e+38), (-5.688056945800781, inf) = (-inf, inf)
x**y FF->F
    (0., inf), (8.5, 7.387747764587402) = (nan, nan)
    (0.01024605892598629, inf), (1., -0.) = (-inf, inf)
cmath.acos(x) F->F
    (0., nan) = (nan, nan)
cmath.asin(x) F->F
    (0., nan) = (nan, nan)
cmath.atan(x) F->F
    (1., nan) = (1.5707963705062866, nan)
cmath.atanh(x) F->F
    (nan, 8.) = (nan, 1.5707963705062866)
cmath.cos(x) F->F
    (0., nan) = (nan, nan)
    (-0., -780010.875) = (inf, nan)
cmath.exp(x) F->F
    (441885.15625, -0.) = (inf, nan)
    (9.223372036854776e+18, -0.) = (inf, nan)
cmath.log(x) F->F
    (0.007103424984961748, 1.) = (2.5152843591058627e-05, 1.5636930465698242)
cmath.sin(x) F->F
    (0., nan) = (nan, nan)
    (-0., -780010.875) = (nan, -inf)
cmath.sqrt(x) F->F
    (0.5, 3.4028234663852886e+38) = (1.3043817602097349e+19, 6.521908801048674e+18)
cmath.tan(x) F->F
    (0., nan) = (nan, nan)
cmath.cosh(x) F->F
    (0., inf) = (nan, nan)
    (-257902.875, 0.) = (inf, nan)
cmath.sinh(x) F->F
    (0., inf) = (nan, nan)
    (-257902.875, 0.) = (-inf, nan)
cmath.acosh(x) F->D
    (0., nan) = (nan, nan)
cmath.log10(x) F->D
    (0.007103424984961748, 1.) = (1.0923741175772334e-05, 0.6791032615157592)
cmath.tanh(x) F->D
    (0., inf) = (nan, nan)
    (201.2757110595703, -0.5) = (1., -0.)
cmath.rect(x,y) ff->F
    inf, 1.5 = (inf, inf)
    0., inf = (0., 0.)
x*y DD->D
    (-11.5, 8.979008311720698), (-inf, -1.7976931348623157e+308) = (inf, nan)
x**y DD->D
    (2., 0.19061320646835545), (-inf, -13.5) = (nan, nan)
abs(x) D->d
    (0.5, -1.7976931348623157e+308) = inf
cmath.acos(x) D->D
    (1., -5e-324) = (0., inf)
    (5e-324, -5e-324) = (1.5707963267948966, 0.)
cmath.asin(x) D->D
    (1., -5e-324) = (nan, -inf)
    (5e-324, -5e-324) = (5e-324, -0.)
cmath.asinh(x) D->D
    (-5e-324, -1.) = (-inf, nan)
    (5e-324, -5e-324) = (0., -5e-324)
cmath.atan(x) D->D
    (2.5, nan) = (1.5707963267948966, nan)
cmath.atanh(x) D->D
    (nan, 7.) = (nan, 1.5707963267948966)
cmath.cos(x) D->D
    (0., 3793.359139190302) = (inf, nan)
    (-5e-324, -758.4480858872796) = (inf, -inf)
cmath.exp(x) D->D
    (1000000000., 0.) = (inf, nan)
cmath.log(x) D->D
    (0.5, -1.7976931348623157e+308) = (inf, -1.5707963267948966)
cmath.sin(x) D->D
    (0., 3793.359139190302) = (nan, inf)
    (-5e-324, -758.4480858872796) = (-inf, -inf)
cmath.sqrt(x) D->D
    (-0.5, 5e-324) = (5e-324, 0.7071067811865476)
    (5e-324, -5e-324) = (2.2227587494850775e-162, -1.1113793747425387e-162)
cmath.tan(x) D->D
    (-5e-324, -1.) = (-5e-324, -0.7615941559557649)
cmath.cosh(x) D->D
    (1000000000., 0.) = (inf, nan)
    (-841.021132849609, 1.2305569607856198e-240) = (inf, -inf)
cmath.sinh(x) D->D
    (1000000000., 0.) = (inf, nan)
    (-841.021132849609, 1.2305569607856198e-240) = (-inf, inf)
cmath.acosh(x) D->D
    (1., -5e-324) = (nan, -3.141592653589793)
    (5e-324, -5e-324) = (0., -1.5707963267948966)
cmath.log10(x) D->D
    (0.5, -1.7976931348623157e+308) = (inf, -0.6821881769209206)
cmath.tanh(x) D->D
    (1., -5e-324) = (0.7615941559557649, -5e-324)
cmath.rect(x,y) dd->D
    -inf, 15. = (inf, -inf)
    -inf, 9.77127750501569e-125 = (-inf, -inf)
cuda.bf16.bfloat16_as_short(cuda.bf16.float2bfloat16(x)) f->h
    nan = 32767
"""

TYPES = {"e": np.float16, "f": np.float32, "d": np.float64, "i": np.int32, "l": np.int64, "h": np.int16,
         "F": np.complex64, "D": np.complex128}  # fmt: skip
#: Relative to the length of the result.
TOLERANCE = {"f": 1e-6, "F": 1e-6, "d": 4e-15, "D": 4e-15}
#: Bessel functions of float64: these differ by 9e-12 at most, and test_edges.py holds ours to 1e-13.
BESSEL = 2e-11


def _table():
    """(expression, types, rows of arguments, results)."""
    groups, known = [], {"inf": math.inf, "nan": math.nan}
    for line in TABLE.strip().splitlines():
        if not line.startswith(" "):
            expression, types = line.rsplit(" ", 1)
            groups.append((expression, types, [], []))
        else:
            arguments, result = (eval(f"({part},)", known) for part in line.split(" = "))
            groups[-1][2].append(arguments)
            groups[-1][3].append(result[0])
    return groups


def _number(value):
    return complex(*value) if isinstance(value, tuple) else value


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A kernel for each expression of the table."""
    lines = ["import cmath, math", "from pmpp.simt import cuda"]
    for k, (expression, types, _, _) in enumerate(_table()):
        inputs = "xyz"[: types.index("-")]
        lines += ["@cuda.jit", f"def k{k}({', '.join(f'a{v}' for v in inputs)}, out):", "    i = cuda.grid(1)"]
        lines += [f"    {v} = a{v}[i]" for v in inputs] + [f"    out[i] = {expression}"]
    path = tmp_path_factory.mktemp("edges") / "edge_kernels.py"
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    spec = importlib.util.spec_from_file_location("edge_kernels", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _same(got, wanted, tolerance):
    parts = [(got.real, wanted.real), (got.imag, wanted.imag)] if isinstance(wanted, complex) else [(got, wanted)]
    slack = tolerance * abs(wanted) if np.isfinite(wanted) else 0.0
    return all(g == w or (math.isnan(g) and math.isnan(w)) or abs(g - w) <= slack for g, w in parts)


@pytest.mark.parametrize("k", range(len(_table())), ids=[f"{e} {t}" for e, t, *_ in _table()])
def test_the_table_of_the_gpu(compiled, k):
    expression, types, rows, results = _table()[k]
    if "bf16" in expression and not dtypes.HAS_BFLOAT16:
        pytest.skip("ml_dtypes is not installed")
    inputs, output = types.split("->")
    columns = [np.array([_number(row[j]) for row in rows], TYPES[letter]) for j, letter in enumerate(inputs)]
    out = np.zeros(len(rows), TYPES[output])
    getattr(compiled, f"k{k}")[1, len(rows)](*columns, out)
    tolerance = TOLERANCE.get(output, 0)
    if output == "d" and any(name in expression for name in (".j", ".y")):
        tolerance = BESSEL
    for row, got, wanted in zip(rows, out, results, strict=True):
        assert _same(got, _number(wanted), tolerance), (row, got, wanted)
