"""The command; see `pmpp.lab.teach.grade`."""

import os
import sys

if __name__ == "__main__":
    # Before NumPy is imported: the grader makes processes by fork, which threads and a GPU's context do not survive.
    os.environ |= {"PMPP_BACKEND": "simt", "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    from pmpp.lab.teach.grade.command import main

    sys.exit(main())
