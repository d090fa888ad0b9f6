# ---
# jupyter:
#   jupytext:
#     text_representation:
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 104. Thousands of GPUs
#
# *Several GPUs: two kinds of links, all-reduce on two levels, what fits, where a step's time goes, failures. You need
# chapters 99 to 102; it takes 60 minutes. PMPP 4e: chapter 20; 5e: chapter 23. The code is
# [pmpp/parallel/scaling.py](../pmpp/parallel/scaling.py),
# [pmpp/parallel/examples/on_fsdp.py](../pmpp/parallel/examples/on_fsdp.py) and
# [pmpp/parallel/exercises/scaling.py](../pmpp/parallel/exercises/scaling.py).*
#
# A language model of 65 billion parameters is trained on a text of 15 trillion tokens. **The questions of this chapter:
# how long does that take on 4,096 GPUs? How much of that time do they compute? And what breaks first?**
#
# Nobody lends you 4,096 GPUs for a lesson. We compute the answers from what one GPU and one message cost, with the
# alpha-beta model of [chapter 99](99_all_reduce.ipynb). Where simulated ranks can check a formula, they do. The rest is
# a model, and it says what it leaves out. (As before, ranks are threads, so this chapter does not run in the browser
# edition.)

# %%
import time

import numpy as np

from pmpp import parallel, predict
from pmpp.lab.draw import knobs
from pmpp.lab.measure import record
from pmpp.lab.teach.source import show
from pmpp.parallel import Links, Nodes, all_reduce, scaling, scaling_figures
from pmpp.parallel.examples import on_fsdp
from pmpp.parallel.exercises import check, exercise
from pmpp.parallel.scaling import Machine, Network, Plan
from pmpp.runtime import device

print(device.describe().splitlines()[0])

# %% [markdown]
# ## What is trained
#
# Our network has 80 layers that are 8,192 wide, and texts of 8,192 tokens. A layer has $12 \cdot \text{width}^2$
# parameters. A token takes six operations for each parameter: two forward, a multiplication and an addition, and twice
# as many backward. Attention adds a little.

# %%
network = Network(layers=80, width=8192, vocabulary=128_256, length=8192)
TEXT = 15e12  # tokens
print(f"{network.parameters / 1e9:.1f} billion parameters, {network.flops / 1e9:.0f} GFLOP for each token")

# %% [markdown]
# How fast is one GPU? We take what a library reached for a product of float16 matrices, from the record of a real GPU.
# Everything in a step that is no product is left out, so a real step takes longer. NumPy on this machine's CPU stands
# beside it, with a product in float32.

# %%
tensor_cores = record.load("nvidia-h200").entries("tensor_cores", kind="library", design=True)
rate = max(entry.flops / entry.seconds for entry in tensor_cores)
print(f"{rate / 1e12:.0f} TFLOP/s. {record.load('nvidia-h200').footer('tensor_cores')}")


def on_the_cpu(n=1024):
    a = np.random.default_rng(0).normal(size=(n, n)).astype(np.float32)
    a @ a
    begin = time.perf_counter()
    for _ in range(5):
        a @ a
    return 5 * 2 * n**3 / (time.perf_counter() - begin)


cpu = on_the_cpu()

# %% [markdown]
# **Predict, then run.** How many days does the text take on one GPU, at that rate?

# %%
guess = None  # days

predict(guess, TEXT * network.flops / rate / 86400, unit="days")

# %%
per_token = {"NumPy, this CPU": network.flops / cpu} | {
    f"{n:,} GPUs, if all goes well" if n > 1 else "1 GPU": network.flops / rate / n for n in (1, 8, 512, 4096)
}
scaling_figures.machines(per_token, TEXT)

# %% [markdown]
# These bars divide by the number of GPUs, as if none ever waited. The rest of the chapter is about that *if*.
#
# ## Two kinds of links
#
# GPUs stand in machines, eight in each. Inside a machine they have NVLink. Each GPU also has a network adapter of its
# own, for the other machines: InfiniBand, or Ethernet. By their data sheets NVLink of an H200 carries 450 GB/s in
# each direction, and an adapter of 400 Gbit/s carries 50 GB/s. We take 3 and 6 µs for the alphas, which are
# assumptions. Data sheets are upper limits: the figure of two H200 in chapter 99 has what an all-reduce really got.
# You can turn the speed of the adapters below.

# %%
links = Nodes(8, inside=Links(3e-6, 450e9), between=Links(6e-6, 50e9))
gpu = Machine(rate, memory=record.load("nvidia-h200").data["gpu"]["memory_bytes"], links=links)

# %% [markdown]
# `Nodes` says which link two ranks have. `parallel.ranks` takes it, too, so simulated ranks can be in several machines.
# Take two machines with two ranks each, and slow links that are ten times as slow.
#
# **Predict, then run.** A ring of the four ranks sums arrays of 4 MB. Inside a machine a message of 1 MB takes 0.1 ms,
# and between machines 1 ms. How many ms does the all-reduce take?

# %%
guess = None  # ms


def summed(group, function, *args):
    return function(group, np.ones(1_000_000, np.float32), *args).copy_to_host()[0]


two = Nodes(2, inside=Links(0.0, 10e9), between=Links(0.0, 1e9))
ring = parallel.ranks(4, summed, all_reduce.ring, links=two)
predict(guess, 1e3 * max(ring.report.seconds), unit="ms")

# %%
ring.report

# %% [markdown]
# A ring has six steps, and in each of them a piece crosses a slow link. All others wait for it. The fast links help
# nobody.
#
# `two_levels` uses them. First the ranks of a machine sum their arrays, and each keeps the sum of one part. Then ranks
# with the same part sum it across machines, each over its own adapter. Last, the parts are handed round inside.

# %%
show(scaling.two_levels)

# %% [markdown]
# **Predict, then run.** The same arrays and links. How many ms now?

# %%
guess = None  # ms

levels = parallel.ranks(4, summed, scaling.two_levels, 2, links=two)
predict(guess, 1e3 * max(levels.report.seconds), unit="ms")

# %%
for name, found, seconds in (
    ("one ring", ring, scaling.ring_seconds),
    ("two levels", levels, scaling.two_levels_seconds),
):
    slow = sum(n for (a, b), n in found.report.nbytes.items() if a // 2 != b // 2)
    print(
        f"{name:10} clocks {1e3 * max(found.report.seconds):.3f} ms, formula {1e3 * seconds(4e6, 4, two):.3f} ms, "
        f"{slow / 1e6:.1f} MB between the machines"
    )

# %% [markdown]
# Between the machines there are fewer bytes, and they use two adapters at a time where the ring uses one in each
# direction. (`split` sends a few hundred bytes, too, which the formula leaves out. They are too few to show in these
# digits.) NCCL does the same in another way: it makes several rings at once, and each of them leaves a machine by
# another adapter.
#
# Now thousands. The third algorithm of the next figure is a pair of trees. An array goes through them in many small
# pieces, so it takes about as long as its bytes, and the alphas grow with the logarithm of the number of ranks.

# %%
COUNTS = [2**k for k in range(1, 13)]
scaling_figures.collectives([2**20, 2**30], COUNTS, links)

# %% [markdown]
# Up to the dotted line all GPUs are in one machine. Beyond it a ring of all drops to the speed of an adapter. With
# the small array its alphas take over: 4,096 ranks have 8,190 steps. There two levels stay below both, since a
# machine's eight adapters work at the same time, and only one rank in eight is in a ring, or in a tree, between
# machines.
#
# ### Exercise: into each machine once

# %%
exercise("scaling/broadcast")


# %%
def broadcast(group, x, per_node):
    return group.broadcast(x)  # your code


check("scaling/broadcast", broadcast)

# %% [markdown]
# ## What fits
#
# Training keeps 16 bytes for each parameter: 2 for itself and 2 for its gradient, in bfloat16, and 12 for Adam, a copy
# and two moments in float32. Activations come on top.
#
# **Predict, then run.** How many GB do parameters, gradients and Adam's state of our network take?

# %%
guess = None  # GB

TOGETHER = 2**22  # tokens of a batch: 512 texts
alone = scaling.memory(network, Plan(), TOGETHER)
predict(guess, sum(alone[:3]) / 1e9, unit="GB")

# %% [markdown]
# One GPU has 150. So something has to be divided, and there are three ways. Replicas divide what all of them have, as
# in *ZeRO* ([chapter 100](100_data_parallelism.ipynb)): stage 1 the optimiser's state, stage 2 the gradients as well,
# stage 3 the parameters, too. Or GPUs share each layer ([chapter 101](101_tensor_parallelism.ipynb)). Or they have
# different layers ([chapter 102](102_pipeline_parallelism.ipynb)). Here are 512 GPUs in several plans.

# %%
plans = {f"512 replicas, ZeRO {shard}": Plan(512, shard=shard) for shard in range(4)}
plans["64 replicas of 8 that share layers, ZeRO 1"] = Plan(64, tensor=8, micro_batches=8, shard=1)
plans["16 of 8 x 4 stages, ZeRO 1"] = Plan(16, tensor=8, pipeline=4, micro_batches=32, shard=1)
scaling_figures.memories({name: scaling.memory(network, plan, TOGETHER) for name, plan in plans.items()}, gpu.memory)

# %% [markdown]
# ZeRO 3 divides the 16 bytes by all 512. But nothing of a text: the activations of one are too many for one GPU. GPUs
# that share layers divide these as well. The last two plans fit.
#
# ### Exercise: what has to be divided?

# %%
exercise("scaling/smallest_shard")


# %%
def smallest_shard(parameters, replicas, nbytes):
    return 3  # your code


check("scaling/smallest_shard", smallest_shard)

# %% [markdown]
# ## Where the time goes
#
# A step has 4 million tokens, that is 512 texts, whatever the number of GPUs: this is strong scaling. `step` adds up
# what a GPU does. It computes. It waits for the all-reduces of those that share its layers, for the bubble, for
# messages of other stages, and for the gradients of other replicas, as far as the backward pass does not hide them.
#
# For each number of GPUs we try all plans in powers of two, and keep the fastest one that fits.


# %%
def plans_of(gpus):
    for tensor in (1, 2, 4, 8):
        for stages in (1, 2, 4, 8, 16):
            replicas = gpus // (tensor * stages)
            if replicas >= 1 and 512 % replicas == 0 and 80 % stages == 0:
                texts = 512 // replicas
                yield from (
                    Plan(replicas, tensor, stages, 2**k, shard) for k in range(texts.bit_length()) for shard in (1, 3)
                )


def best(gpus, machine=gpu):
    fits = [p for p in plans_of(gpus) if scaling.memory(network, p, TOGETHER).total <= 0.9 * machine.memory]
    return min(fits, key=lambda p: scaling.step(network, p, machine, TOGETHER).total)


# %% [markdown]
# **Predict, then run.** With 256 GPUs the best plan computes 96% of the time. What is it with 4,096, in the same steps?

# %%
guess = None  # %

chosen = {gpus: best(gpus) for gpus in (64, 128, 256, 512, 1024, 2048, 4096, 8192)}
found = {gpus: scaling.step(network, plan, gpu, TOGETHER) for gpus, plan in chosen.items()}
predict(guess, 100 * found[4096].efficiency, unit="%")

# %%
for gpus, plan in chosen.items():
    cut = f"{plan.data:3} replicas of {plan.tensor} x {plan.pipeline}, {plan.micro_batches:2} micro-batches"
    print(
        f"{gpus:5,} GPUs: {cut}, ZeRO {plan.shard}: {found[gpus].total:6.2f} s, {found[gpus].efficiency:4.0%} computed"
    )

# %%
scaling_figures.steps(found)

# %% [markdown]
# Up to 1,024 GPUs there are enough texts for all: replicas take them, and each GPU has so much to compute that the
# gradients hide behind it. A step is compute-bound. With 1,024 a replica has a single text left. More GPUs have to
# share its layers, and their all-reduces cannot be hidden. At 8,192 even that is not enough: two stages halve the work
# of a GPU, and with one text in each pipeline one of the two always waits. The step is communication-bound, and twice
# as many GPUs save little.
#
# Turn the knobs. A larger batch? Slower adapters? A plan of your own?

# %%
gpus, texts, adapter, tensor, stages = 4096, 512, 50, 8, 1


def draw(gpus, texts, adapter, tensor, stages):
    machine = Machine(rate, gpu.memory, Nodes(8, links.inside, Links(6e-6, 1e9 * adapter)))
    shown = {}
    for n in (gpus // 4, gpus // 2, gpus):
        replicas = max(1, n // (tensor * stages))
        pieces = max(1, texts // replicas)
        shown[n] = scaling.step(network, Plan(replicas, tensor, stages, pieces, 1), machine, texts * network.length)
    return scaling_figures.steps(shown)


knobs.turn(
    draw,
    gpus=(gpus, (256, 1024, 4096, 16384)),
    texts=(texts, (512, 2048, 8192)),
    adapter=(adapter, (12, 25, 50, 100)),
    tensor=(tensor, (1, 2, 4, 8)),
    stages=(stages, (1, 2, 4, 8)),
)

# %% [markdown]
# With a batch of 2,048 texts the last bar computes longer again: that is weak scaling, and its price is a larger
# batch. In the plan of the figure gradients stick out a little with 1,024 GPUs already. With adapters of 12 GB/s,
# these wait for gradients nearly as long as they compute.
#
# ## What breaks first
#
# GPUs fail. In 54 days of training Llama 3 on 16,384 GPUs, there were 419 interruptions that nobody had planned
# (Grattafiori et al., *The Llama 3 herd of models*, 2024, section 3.3.4).

# %%
each = 54 * 86400 * 16_384 / 419  # seconds between two failures of one GPU
print(f"one GPU fails every {each / 86400 / 365.25:.1f} years")

# %% [markdown]
# **Predict, then run.** Any failure stops all GPUs, since every step needs them all. How many hours lie between two
# failures of 4,096?

# %%
guess = None  # hours

predict(guess, each / 4096 / 3600, unit="hours")

# %% [markdown]
# So a training writes *checkpoints*: parameters and Adam's state, from which it goes on. Frequent ones cost time.
# With rare ones a failure loses more work, half an interval on average. The losses are
#
# $$\frac{w}{t} + \frac{t}{2 T}$$
#
# for $w$ seconds to write, $t$ between checkpoints and $T$ between failures. They are least at $t = \sqrt{2 w T}$.

# %%
scaling_figures.checkpoints((512, 4096, 32_768, 131_072), each, writes=60, restart=600)

# %% [markdown]
# With 4,096 GPUs a checkpoint every 39 minutes keeps 94% of the time. With 131,072 a failure comes every 23 minutes,
# and no interval keeps 40%. Then a checkpoint has to be written faster, into the memory of other machines, or
# replicas have to go on without the one that failed. So what breaks first is no link. It is the assumption that all
# GPUs are there.
#
# How long does the training take on 4,096 GPUs, then? The 26 days of the first figure, divided by the 59% that are
# computed and by these 94%, are about a month and a half.
#
# The mark of 131,072 GPUs is not at the top of its curve. The curves also count the time of a restart, and that the
# two losses cannot both take the same minute. The formula leaves both out. That is harmless as long as failures are
# much rarer than checkpoints.
#
# ### Exercise: how often?

# %%
exercise("scaling/interval")


# %%
def interval(writes, each, gpus):
    return each * 3600 / gpus  # your code


check("scaling/interval", interval)

# %% [markdown]
# There is a milder kind of failure. A GPU that is slower than the others, or a computer that is busy for a moment,
# makes all wait. Let the time of a step vary by 2% from one GPU to the next.
#
# **Predict, then run.** A step ends when the last of n GPUs has finished. By how many percent is it longer than the
# mean with 4,096 GPUs?

# %%
guess = None  # %

rng = np.random.default_rng(0)
slowest = {n: 100 * rng.normal(0, 0.02, size=(200, n)).max(axis=1).mean() for n in (8, 64, 512, 4096)}
predict(guess, slowest[4096], unit="%")

# %%
print(", ".join(f"{n:,} GPUs: {percent:.1f}%" for n, percent in slowest.items()))

# %% [markdown]
# The slowest of many grows with the root of the logarithm of their number. It never gets much worse, and it is never
# gone.
#
# ## What the names mean
#
# Much of what is sold for large trainings changes one number of this model:
#
# - *NVLink* and *NVSwitch*: the bandwidth inside a machine. With a switch any two GPUs talk at full speed, so no order
#   of the ranks is bad.
# - *InfiniBand* and *RoCE*: bandwidth and alpha between machines.
# - *GPUDirect RDMA*: the same two numbers. An adapter reads a GPU's memory by itself, and nothing is copied through the
#   host.
# - *GPUDirect Storage*: the time that a checkpoint takes, and that of reading data.
# - *SHARP*, sums in the switch: the bytes. An array crosses an adapter once in each direction, and the switch adds.
# - *MIG*: a GPU is cut into up to seven, each with its own memory and a part of the rate. They are for small jobs side
#   by side; the model has nothing to gain from them.
#
# ## How to start it
#
# The program does not change. `pmpp.parallel.init()` reads the rank from the environment, whoever has started it:
# `torchrun`, `mpirun`, Slurm's `srun`. [docs/cluster](../docs/cluster/README.md) has recipes: a batch script for Slurm,
# a PyTorchJob and an MPIJob for Kubernetes, and a file for a container image.
#
# To try a machine, take a program that knows what is right. Each chapter from 99 to this one has a script in
# [pmpp/parallel/examples](../pmpp/parallel/examples/__init__.py), which compares what its ranks find with what one rank
# finds: `python -m pmpp.parallel.run -n 4 -m pmpp.parallel.examples` runs all of them.
#
# ## Inside another engine
#
# At this scale few people write the engine that divides a network. PyTorch's FSDP does it, and others. What they divide
# may still contain kernels of your own. In this training the normalisation, the loss and the optimiser's step are
# operators of [chapter 95](95_inside_other_libraries.ipynb), and the rest is PyTorch's:

# %%
show(on_fsdp.together)

# %% [markdown]
# FSDP gathers the parameters of a layer before it is computed, so `layer_norm` gets whole tensors and never learns that
# they were divided. The optimiser is the other way round: `to_local` is this rank's part, and `sgd_` changes that
# alone. Its rule treats each element alike, which is what makes this right.
#
# `torchrun --nproc-per-node 2 -m pmpp.parallel.examples.on_fsdp` runs it, with PyTorch installed: on two GPUs, or on
# the CPU. It compares the losses with those of PyTorch alone, and fails if they differ by more than rounding explains.
#
# ## What to take along
#
# - Links inside a machine are about ten times as fast as those between machines. An all-reduce on two levels sends each
#   adapter an eighth of the array.
# - Parameters, gradients and Adam take 16 bytes for each parameter. ZeRO divides them among replicas; activations need
#   GPUs that share a layer, or stages.
# - With enough texts for each GPU, replicas hide their sums. With fewer, the step waits for links: communication-bound.
# - More GPUs than texts need another plan or a larger batch.
# - The time between failures is divided by the number of GPUs. Young's interval is $\sqrt{2 w T}$.
# - A model that says what it leaves out is worth more than a guess. This one leaves out all that is no product, and
#   links that several jobs share.
#
# ## Exercises
#
# Besides the three above, without a check:
#
# 1. *Seventy-two in a machine.* Let NVLink join 72 GPUs in place of 8. Which bars of the figure of steps change?
# 2. *An hour.* Which number of GPUs keeps most work per hour, if a checkpoint takes 600 seconds?
#
# ## Answers

# %% [markdown]
# *scaling/broadcast:* the first ranks of the machines first, and then each machine for itself.


# %% jupyter={"source_hidden": true} tags=["answer"]
def broadcast_answer(group, x, per_node):
    machine = group.split(colour=group.rank // per_node)
    across = group.split(colour=group.rank % per_node)
    if group.rank % per_node == 0:
        x = across.broadcast(x)
    return machine.broadcast(x)


check("scaling/broadcast", broadcast_answer)

# %% [markdown]
# *scaling/smallest_shard:* 12, 2 and 2 bytes, each divided from its stage on.


# %% jupyter={"source_hidden": true} tags=["answer"]
def smallest_shard_answer(parameters, replicas, nbytes):
    for shard in range(4):
        share = [replicas if shard >= stage else 1 for stage in (1, 2, 3)]
        if parameters * (12 / share[0] + 2 / share[1] + 2 / share[2]) <= nbytes:
            return shard
    return None


check("scaling/smallest_shard", smallest_shard_answer)

# %% [markdown]
# *scaling/interval:* the time between failures in seconds, and the root.


# %% jupyter={"source_hidden": true} tags=["answer"]
def interval_answer(writes, each, gpus):
    between = each * 3600 / gpus
    return (2 * writes * between) ** 0.5


check("scaling/interval", interval_answer)

# %% [markdown]
# *Seventy-two in a machine:* those from 4,096 GPUs on, where gradients stuck out: nine replicas of eight GPUs sum
# theirs inside a machine first. All-reduces of those that share a layer were inside before, and stay as they are.

# %% jupyter={"source_hidden": true} tags=["answer"]
large = Machine(rate, gpu.memory, Nodes(72, links.inside, links.between))
scaling_figures.steps({n: scaling.step(network, chosen[n], large, TOGETHER) for n in (2048, 4096, 8192)})

# %% [markdown]
# *An hour:* work is the number of GPUs times the share of the time that is kept, until failures take it all.

# %% jupyter={"source_hidden": true} tags=["answer"]
for n in (4096, 16_384, 65_536, 131_072):
    share = scaling.kept(scaling.checkpoint_interval(600, each / n), 600, each / n, 600)
    print(f"{n:7,} GPUs keep {share:4.0%} of the time, as much as {share * n:9,.0f} that never fail")

# %% [markdown]
# The tests in `tests/parallel` have more programs of several ranks, right and wrong.
#
# Go on with [chapter 105](105_mixed_precision.ipynb): a training with numbers of 16 bits.
