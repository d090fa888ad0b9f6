"""Steps in mixed precision beside PyTorch's: what is said of a record, and that the twin is the same network."""

import numpy as np
import pytest

from pmpp import nn
from pmpp.nn.examples import transformer
from pmpp.nn.measure import mixed
from pmpp.nn.tape import Tensor
from pmpp.runtime import device


def row(ours, torch, wide):
    ms = {"ours, bfloat16": ours, "torch, bfloat16": torch, "ours, float32": wide, "torch, float32": 2.0}
    return {"ms": ms, "losses": {"bfloat16": [(1.0, 1.0), (2.0, 1.6)], "float32": [(1.0, 1.0)]}}


def test_the_table_says_what_was_met_and_what_was_missed():
    said = "\n".join(
        mixed.lines({"ResNet-18, batch 128": row(2.0, 1.9, 2.5), "transformer, batch 64": row(4.0, 2.0, 8.0)})
    )
    assert "0.95 x PyTorch, target 0.9: met; 1.25 x our float32, target 1.5: MISSED" in said
    assert "0.50 x PyTorch, target 0.8: MISSED" in said
    assert "2.5e-01" in said, "the losses that differ most"
    assert set(mixed.TARGETS) == set(mixed.CASES)


@pytest.mark.skipif(device.on_gpu(), reason="it would measure")
def test_without_a_gpu_nothing_is_measured(capsys):
    assert mixed.main([]) == 2
    assert "a GPU is needed" in capsys.readouterr().out


def test_the_twin_in_pytorch_is_the_same_network(unchecked):
    torch = pytest.importorskip("torch")
    nn.manual_seed(0)
    net = transformer.Transformer(1, 16, 2, 8)
    tokens, places = np.arange(8)[None] * 7, np.arange(8)
    with torch.no_grad():
        theirs = mixed.torch_transformer(net, "cpu")(torch.from_numpy(tokens), torch.from_numpy(places)).numpy()
    np.testing.assert_allclose(net(Tensor(tokens)).detach().numpy(), theirs, atol=1e-5)
