"""`python -m tests.peer`: numba-cuda's own tests in the interpreter."""

from tests.peer.run import main

main()
