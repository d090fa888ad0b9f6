"""The device API: what each name of `cuda` does in a kernel.  intrinsics.py has the table of all names."""
