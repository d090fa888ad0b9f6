"""A script for each chapter about several GPUs: what it teaches, by as many ranks as there are, on any backend.

    python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples                        all, one after another
    python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples.digits                 one of them
    python -m pmpp.parallel.run -n 2 --backend peer -m pmpp.parallel.examples.digits  on two GPUs
    torchrun --nproc-per-node 2 -m pmpp.parallel.examples.digits

    sums       chapter 99: every algorithm for an all-reduce
    digits     chapter 100: one network, trained on parts of each batch
    layers     chapter 101: layers that are cut, and a loss over cut classes
    stages     chapter 102: a network that is cut between its layers
    plate      chapter 103: a stencil, and its halos
    machines   chapter 104: a sum on two levels of links

Each compares what the ranks found with what one rank finds, within a bound, and raises RuntimeError if that fails.
`on_fsdp` is PyTorch's engine with our operators inside, and needs PyTorch and torchrun.
"""
