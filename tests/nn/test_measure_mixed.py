"""Steps in mixed precision beside PyTorch's: what is said of a record, and that the twin is the same network."""

import contextlib
import json
import sys

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn.examples import transformer
from pmpp.nn.measure import mixed, processes
from pmpp.nn.tape import Tensor
from pmpp.runtime import device

RESNET, TEXT = mixed.CASES


def found(case, **ms):
    """What parts found: ``ours``, ``torch`` and ``wide`` in milliseconds."""
    names = {"ours": ("ours", mixed.DTYPE), "torch": ("torch", mixed.DTYPE), "wide": ("ours", "float32")}
    losses = {"ours": [1.0, 2.0], "torch": [1.0, 1.6], "wide": [1.0, 2.0]}
    return {
        mixed.Part(case, *names[name]): {"ms": one, "losses": losses[name], "first_step_s": 9.0}
        for name, one in ms.items()
    }


def test_the_table_says_what_was_met_and_what_was_missed():
    both = found(RESNET, ours=2.0, torch=1.9, wide=2.5) | found(TEXT, ours=4.0, torch=2.0)
    said = "\n".join(mixed.lines(mixed.rows_of(both)))
    assert "0.95 x PyTorch, target 0.9: met; 1.25 x our float32, target 1.5: MISSED" in said
    assert "0.50 x PyTorch, target 0.8: MISSED" in said
    assert "2.5e-01" in said, "the losses that differ most"
    assert set(mixed.TARGETS) == set(mixed.CASES)


def test_what_was_not_measured_is_said():
    said = "\n".join(mixed.lines(mixed.rows_of(found(RESNET, ours=2.0, wide=3.0))))
    assert "beside PyTorch not measured, target 0.9; 1.50 x our float32, target 1.5: met" in said


def test_parts_are_chosen_by_how_their_names_begin():
    assert len(mixed.chosen(None)) == 8
    assert [str(part) for part in mixed.chosen(["resnet-18-torch"])] == [
        "resnet-18-torch-bfloat16",
        "resnet-18-torch-float32",
    ]
    with pytest.raises(ValueError, match="was lenet"):
        mixed.chosen(["lenet"])


def children(monkeypatch, program):
    """From now on a part's process runs this program instead; ``part`` is its name."""
    started = processes.subprocess.Popen
    monkeypatch.setattr(
        processes.subprocess,
        "Popen",
        lambda command, **more: started([sys.executable, "-c", f"part = {command[-3]!r}\n{program}"], **more),
    )


def test_parts_that_fail_or_take_too_long_leave_the_others_what_they_found(monkeypatch, capsys):
    program = """
import json, sys, time
if "float32" in part:
    time.sleep(600)
if "torch" in part:
    raise SystemExit("no such library")
print("compiling", flush=True)
print(FOUND, flush=True)
"""
    row = {"ms": 2.0, "losses": [1.0], "first_step_s": 3.0}
    children(monkeypatch, program.replace("FOUND", repr(processes.RESULT + json.dumps(row))))
    parts = mixed.chosen(["transformer-ours", "transformer-torch-bfloat16"])
    with contextlib.closing(mixed.together(parts, 20.0)) as coming:
        part, one = next(coming)
        assert (str(part), one) == ("transformer-ours-bfloat16", row)
    with contextlib.closing(mixed.together(parts[-1:], 0.0)) as coming:
        assert list(coming) == []
    said = capsys.readouterr().out
    assert "transformer-ours-bfloat16: compiling" in said
    assert "not done after 0 s: transformer-ours-float32" in said


@pytest.mark.skipif(device.on_gpu(), reason="it would measure")
def test_without_a_gpu_nothing_is_measured(capsys):
    assert mixed.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out
    assert mixed.main(["--list"]) == 0
    assert "transformer-torch-bfloat16" in capsys.readouterr().out


def test_the_twin_in_pytorch_is_the_same_network(unchecked):
    torch = pytest.importorskip("torch")
    nn.manual_seed(0)
    net = transformer.Transformer(1, 16, 2, 8)
    tokens, places = np.arange(8)[None] * 7, np.arange(8)
    with torch.no_grad():
        theirs = mixed.torch_transformer(net, "cpu")(torch.from_numpy(tokens), torch.from_numpy(places)).numpy()
    np.testing.assert_allclose(net(Tensor(tokens)).detach().numpy(), theirs, atol=1e-5)
