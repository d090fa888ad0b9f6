"""Our operators inside an engine that others have built: PyTorch's FSDP trains a network with them.

    torchrun --nproc-per-node 2 -m pmpp.parallel.examples.on_fsdp

FSDP divides parameters, gradients and the optimiser's state among the ranks, as `pmpp.parallel.sharded` does: before a
layer is computed it gathers the layer's parameters, and behind it lets them go. Three things in this training are ours
(`pmpp.nn.interop.operators`), and FSDP knows of none of them:

    layer_norm       in the network. FSDP gathers its weight and bias, and our kernels get plain tensors.
    cross_entropy    behind the network.
    sgd_             the optimiser. It changes this rank's part of each parameter alone, which is a plain tensor, too.

An operator of PyTorch's dispatcher is all that an engine asks for: so DeepSpeed, or Ray around it, would run the same
network.

At the end the losses are compared with those of PyTorch alone: the whole network on each rank, the joined batch, and
PyTorch's own normalisation, loss and optimiser. On a machine with a GPU for each rank the ranks use these and NCCL.
Elsewhere tensors are on the CPU, and Gloo carries the parameters; without a GPU the operators run in the interpreter.

Source: PyTorch's documentation of torch.distributed.fsdp.fully_shard.
"""

from __future__ import annotations

import os
import typing

import numpy as np

from pmpp.nn.examples import digits
from pmpp.nn.interop import operators
from pmpp.runtime import device

BATCH, STEPS, RATE, MOMENTUM = 32, 20, 0.1, 0.9
WIDTH, LAYERS = 64, 2
APART = 1e-4  # how far a loss may be from PyTorch's, of its size: sums of float32 are rounded in another order


def network() -> typing.Any:
    """Blocks of layer normalisation, a linear layer and ReLU; the same numbers on all ranks."""
    import torch

    torch.manual_seed(0)
    blocks = [
        torch.nn.Sequential(torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, WIDTH), torch.nn.ReLU())
        for _ in range(LAYERS)
    ]
    return torch.nn.Sequential(*blocks, torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 10))


def batches() -> list[tuple[np.ndarray, np.ndarray]]:
    """The joined batches of all steps: digits of 8 x 8 as rows of 64, and their labels."""
    images, labels = digits.datasets()[0][: BATCH * STEPS]
    rows = images.reshape(STEPS, BATCH, WIDTH).astype(np.float32)
    return list(zip(rows, labels.reshape(STEPS, BATCH).astype(np.int64), strict=True))


def alone(where: typing.Any) -> list[float]:
    """The losses of PyTorch without FSDP and without us."""
    import torch

    net = network().to(where)
    optimizer = torch.optim.SGD(net.parameters(), lr=RATE, momentum=MOMENTUM)
    losses = []
    for images, labels in batches():
        optimizer.zero_grad()
        scores = net(torch.from_numpy(images).to(where))
        loss = torch.nn.functional.cross_entropy(scores, torch.from_numpy(labels).to(where))
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def together(where: typing.Any, rank: int, size: int) -> tuple[list[float], typing.Any]:
    """The mean losses of all ranks with FSDP and our operators, and the network. Each rank has a part of each batch."""
    import torch
    from torch.distributed.fsdp import fully_shard

    ours = operators.register()
    mesh = torch.distributed.device_mesh.init_device_mesh(where.type, (size,))
    net = operators.use_layer_norm(network().to(where))
    for block in net[:LAYERS]:
        fully_shard(block, mesh=mesh)  # gathered one at a time
    fully_shard(net, mesh=mesh)
    parts = [parameter.to_local() for parameter in net.parameters()]
    momenta = [torch.zeros_like(part) for part in parts]
    mine, losses = slice(rank * BATCH // size, (rank + 1) * BATCH // size), []
    for images, labels in batches():
        scores = net(torch.from_numpy(images[mine]).to(where))
        loss, _ = ours.cross_entropy(scores, torch.from_numpy(labels[mine]).to(where))
        loss.backward()
        gradients = [parameter.grad.to_local() for parameter in net.parameters()]
        ours.sgd_([part.detach() for part in parts], gradients, momenta, RATE, MOMENTUM)
        net.zero_grad()
        mean = loss.detach().clone()
        torch.distributed.all_reduce(mean)
        losses.append(mean.item() / size)
    return losses, net


def main() -> int:
    """A rank of torchrun."""
    try:
        import torch
    except ImportError:
        print("PyTorch is needed: its FSDP is the engine")
        return 2
    if "LOCAL_RANK" not in os.environ:
        print("start it as ranks: torchrun --nproc-per-node 2 -m pmpp.parallel.examples.on_fsdp")
        return 2
    rank, size, local = (int(os.environ[name]) for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK"))
    if BATCH % size:
        print(f"the ranks must divide a batch of {BATCH} examples, were {size}")
        return 2
    where = torch.device("cpu")
    if device.on_gpu() and torch.cuda.device_count() >= int(os.environ["LOCAL_WORLD_SIZE"]):
        where = torch.device("cuda", local)
        torch.cuda.set_device(where)
        device.backend().cuda.select_device(local)
    torch.distributed.init_process_group("gloo" if where.type == "cpu" else "nccl")
    try:
        wanted = alone(where)
        found, net = together(where, rank, size)
        farthest = max(abs(a - b) / b for a, b in zip(found, wanted, strict=True))
        kept = sum(parameter.to_local().numel() for parameter in net.parameters())
        count = sum(parameter.numel() for parameter in net.parameters())
        said = [f"rank {rank} of {size} on {where}: keeps {kept:,} of {count:,} parameters"]
        if rank == 0:
            for step in range(0, STEPS, 5):
                said.append(f"step {step:2}: loss {found[step]:.6f}, PyTorch alone {wanted[step]:.6f}")
            said.append(f"losses differ by at most {farthest:.1e}")
        # In one piece: all ranks print now. With PYTHONUNBUFFERED a print writes its end of line by itself.
        print("".join(f"{line}\n" for line in said), end="", flush=True)
        if not farthest <= APART:
            raise RuntimeError(f"losses differ by {farthest:.1e}, more than {APART:g}: {found}, {wanted}")
    finally:
        torch.distributed.destroy_process_group()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
