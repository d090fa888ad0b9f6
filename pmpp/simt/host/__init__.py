"""The host side: `cuda` as a program outside of kernels sees it, launches, and reports of them."""
