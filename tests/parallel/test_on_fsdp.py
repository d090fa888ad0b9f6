"""Our operators inside PyTorch's FSDP: the example runs under torchrun, on GPUs or without, and says what it needs."""

import importlib.util
import os
import re
import socket
import subprocess
import sys

import pytest

from pmpp.parallel.examples import on_fsdp

pytestmark = pytest.mark.native("processes")
NO_TORCH = importlib.util.find_spec("torch") is None
MODULE = "pmpp.parallel.examples.on_fsdp"
HANG = 120  # seconds after which a run is ended


@pytest.mark.skipif(NO_TORCH, reason="needs PyTorch, whose FSDP is the engine")
def test_two_ranks_of_torchrun_have_the_losses_of_pytorch_alone():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--master-port", port]
    # Unbuffered, as in many containers, what two ranks print at the same time must not be mixed.
    given = {**os.environ, "PMPP_CHECK": "", "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    ended = subprocess.run(
        [*command, "-m", MODULE], env=given, capture_output=True, text=True, timeout=HANG, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    kept = re.findall(r"rank (\d) of 2 on (\w+).*: keeps ([\d,]+) of ([\d,]+) parameters", ended.stdout)
    assert sorted(rank for rank, *_ in kept) == ["0", "1"], ended.stdout + ended.stderr
    assert sum(int(part.replace(",", "")) for _, _, part, _ in kept) == int(kept[0][3].replace(",", ""))
    assert float(re.search(r"losses differ by at most (\S+)", ended.stdout)[1]) <= on_fsdp.APART


@pytest.mark.skipif(not NO_TORCH, reason="PyTorch is there")
def test_without_pytorch_it_is_said(capsys):
    assert on_fsdp.main() == 2
    assert "PyTorch is needed" in capsys.readouterr().out


@pytest.mark.skipif(NO_TORCH, reason="needs PyTorch, whose FSDP is the engine")
def test_alone_it_says_how_it_is_started(monkeypatch, capsys):
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    assert on_fsdp.main() == 2
    assert "torchrun --nproc-per-node 2" in capsys.readouterr().out


def test_the_batches_are_the_same_for_all_and_divisible():
    found = on_fsdp.batches()
    assert len(found) == on_fsdp.STEPS
    assert {(images.shape, labels.shape) for images, labels in found} == {
        ((on_fsdp.BATCH, on_fsdp.WIDTH), (on_fsdp.BATCH,))
    }
