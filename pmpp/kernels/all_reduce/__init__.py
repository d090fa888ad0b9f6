"""All-reduce on several GPUs: kernels that read and write the memory of other GPUs.

There is no room, since what they are given are other ranks' addresses: `pmpp.parallel.peers` makes them a backend.
"""
