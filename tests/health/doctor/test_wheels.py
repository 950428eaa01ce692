"""Which code runs on which hardware, held against torch's own rules, and which build fits."""

from __future__ import annotations

import pytest

from gpucheck.health.doctor import wheels

# Everything with a CUDA that torch was ever built for.
HARDWARE = (50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 110, 120, 121)


def test_code_runs_where_torch_says_that_it_does() -> None:
    cuda = pytest.importorskip("torch.cuda")
    if not hasattr(cuda, "DEVICE_REQUIREMENT"):
        pytest.skip("this torch has no table of hardware and code")
    differing = {
        (code, hardware)
        for code in HARDWARE
        for hardware in HARDWARE
        if wheels.runs_on(f"sm_{code}", hardware) != (hardware in cuda.DEVICE_REQUIREMENT[code])
    }
    # sm_101 and sm_110 are two names of Jetson Thor, by CUDA 12 and by CUDA 13.
    assert differing <= {(101, 110)}


@pytest.mark.parametrize(
    ("architecture", "capability", "runs"),
    [
        ("sm_90a", 90, True),
        ("sm_90a", 91, False),
        ("sm_100f", 103, True),
        ("compute_90", 120, True),
        ("compute_120", 90, False),
        ("gfx90a", 90, False),
    ],
)
def test_suffixes_and_ptx(architecture: str, capability: int, runs: bool) -> None:
    assert wheels.runs_on(architecture, capability) is runs


def test_the_newest_build_that_runs_on_all_is_chosen() -> None:
    assert wheels.tag_for(("9.0", "12.0"), 13) == "cu130"
    assert wheels.tag_for(("6.1", "9.0"), 13) == "cu126"
    assert wheels.tag_for(("6.1", "12.0"), 13) is None  # no one build has code for both
    assert wheels.tag_for((), 10) is None
    assert wheels.tag_for(("unknown",), None) == "cu130"


def test_the_line_quotes_the_interpreter() -> None:
    assert wheels.install("/my env/bin/python", "cu126").startswith("'/my env/bin/python' -m pip install ")
