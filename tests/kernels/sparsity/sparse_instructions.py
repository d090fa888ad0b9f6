"""Makes the instructions of `pmpp.runtime.hopper_sparse` known to the compiler to PTX that the tests share.

Whoever compiles a kernel that uses them without a GPU imports this module. It stands here and not in
tests/support/compiled.py, because every test file depends on that one.
"""

from pmpp.runtime import hopper_sparse
from tests.support import compiled

if hopper_sparse not in compiled.INTRINSICS:
    compiled.INTRINSICS = (*compiled.INTRINSICS, hopper_sparse)
