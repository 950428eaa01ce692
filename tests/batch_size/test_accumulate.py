from __future__ import annotations

import pytest

from gpucheck.batch_size.answer import accumulate
from gpucheck.report.results.find_batch_size import Accumulation


@pytest.mark.parametrize(
    ("effective", "limit", "micro", "steps", "smaller"),
    [
        (512, 104, 64, 8, 0),
        (512, 512, 512, 1, 0),
        (100, 512, 100, 1, 0),
        (96, 20, 16, 6, 0),
        (10, 1, 1, 10, 0),
        (509, 104, 102, 5, 1),  # prime: 4 × 102 + 101
        (7, 3, 3, 3, 2),  # 3 + 2 + 2: no part of one sample, which batch normalisation refuses
        (26, 4, 2, 13, 0),  # half of what fits is still taken where it is even
        (26, 5, 5, 6, 4),  # less than half is not: 2 × 5 + 4 × 4
    ],
)
def test_the_parts_make_the_whole(effective: int, limit: int, micro: int, steps: int, smaller: int) -> None:
    assert accumulate(effective, limit) == Accumulation(effective, micro, steps, smaller, limit)


def test_every_sum_is_whole_and_within_the_limit() -> None:
    for effective in range(1, 200):
        for limit in range(1, 40):
            found = accumulate(effective, limit)
            assert found.micro_batch * found.steps - found.smaller == effective
            assert found.micro_batch <= limit
            assert found.smaller < found.steps
