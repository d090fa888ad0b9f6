"""The roof of the product by compressed rows: all products, added up by whoever has them."""

import numpy as np

from pmpp.kernels.sparse import gathers_alone
from pmpp.runtime import device

THREADS = 512


def test_each_thread_adds_up_every_so_many_of_the_products(monkeypatch):
    monkeypatch.setattr(gathers_alone, "threads", lambda: THREADS)
    rng, stored = np.random.default_rng(5), THREADS * gathers_alone.AT_ONCE + 1000  # a second round, which is short
    values, x = rng.standard_normal(stored, dtype=np.float32), rng.standard_normal(300, dtype=np.float32)
    columns = rng.integers(0, x.size, stored, dtype=np.int32)
    found = device.to_host(gathers_alone.gathers_alone(*map(device.to_device, (values, columns, x))))
    products = np.zeros(-(-stored // THREADS) * THREADS)
    products[:stored] = values.astype(np.float64) * x[columns]
    np.testing.assert_allclose(found, products.reshape(-1, THREADS).sum(axis=0), atol=1e-4)
