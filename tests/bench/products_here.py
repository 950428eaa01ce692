"""Which kinds of products this torch has on a CPU: of float8 not every one that gpucheck works with."""

from __future__ import annotations

import pytest

from gpucheck.bench.dtypes import Dtype
from gpucheck.bench.matmul import product
from gpucheck.machine import accel


def needs(dtype: Dtype) -> None:
    """Skip the test where there is no product of this dtype here."""
    cpu, kind = accel.open_device("cpu"), product.KINDS[dtype]
    flat = product.allocate(kind, (256, 256, 256), cpu.device)
    product.fill(kind, flat)
    one = product.view(kind, flat, (16, 16, 16))
    try:
        product.try_once(kind.bind(one.a, one.b, one.out), dtype, cpu)
    except RuntimeError as error:
        pytest.skip(str(error))
