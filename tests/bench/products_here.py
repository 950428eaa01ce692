"""Which kinds of products this torch has on a CPU, and rows of several runs as one document."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from judged import Document

from gpucheck.bench.dtypes import Dtype
from gpucheck.bench.judge import judge
from gpucheck.bench.matmul import product
from gpucheck.machine import accel
from gpucheck.measure import runs
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Answered, Began, Finished, Measured, Planned
from gpucheck.report.measurement import Measurement
from gpucheck.report.report import Report
from gpucheck.report.results.bench import SearchResult


def needs(dtype: Dtype) -> None:
    """Skip the test where there is no product of this dtype here: of float8 not every torch has them."""
    cpu, kind = accel.open_device("cpu"), product.KINDS[dtype]
    flat = product.allocate(kind, (256, 256, 256), cpu.device)
    product.fill(flat)
    one = product.view(kind, flat, (16, 16, 16))
    try:
        product.try_once(kind.bind(one.a, one.b, one.out), kind, cpu)
    except product.NoKernel as error:
        pytest.skip(str(error))


def one_run(*rows: Measurement, searches: Sequence[SearchResult] = ()) -> Report:
    """The document of one run of `bench matmul` on cuda:0, as a child writes it."""
    document = Document("bench matmul")
    document(Planned(("matmul",), ("cuda:0",)))
    document(Began("matmul", "cuda:0"))
    for row in rows:
        document(Measured(row))
    if searches:
        document(Answered("bench_matmul_search", tuple(searches)))
    document(Finished("matmul", "cuda:0"))
    return from_json(Report, json.loads(json.dumps(to_json(document.judged()), allow_nan=False)))


def together(*documents: Report) -> Report:
    """Several runs as one document, judged."""
    merged = runs.merge(documents)
    return merged.concluded(judge(merged))
