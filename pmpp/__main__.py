"""``python -m pmpp``: which backend runs the kernels here, why, and what is missing."""

from __future__ import annotations

import sys

from pmpp.runtime import device


def main() -> int:
    try:
        print(device.describe())
    except device.BackendError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
