"""Which code runs on which hardware, held against torch's own rules, and which build fits."""

from __future__ import annotations

import pytest

from gpucheck.doctor import fixes
from gpucheck.doctor.fixes import Installer

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
        if fixes.runs_on(f"sm_{code}", hardware) != (hardware in cuda.DEVICE_REQUIREMENT[code])
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
    assert fixes.runs_on(architecture, capability) is runs


def test_the_newest_build_that_runs_on_all_is_chosen() -> None:
    assert fixes.tag_for(("9.0", "12.0"), "13.0") == "cu130"
    assert fixes.tag_for(("6.1", "9.0"), "13.0") == "cu126"
    assert fixes.tag_for(("6.1", "12.0"), "13.0") is None  # no one build has code for both
    assert fixes.tag_for((), "10.2") is None
    assert fixes.tag_for(("unknown",), None) == "cu130"


def test_the_line_quotes_the_interpreter() -> None:
    line = Installer("/my env/bin/python").install("torch", index="cu126", reinstall=True)
    assert line.startswith("'/my env/bin/python' -m pip install ")


def test_every_release_names_builds_that_there_are() -> None:
    known = set(fixes.BUILDS)
    assert {tag for tags in fixes.RELEASES.values() for tag in tags} == known
    # 2.14's own table; and CUDA 11.8 ended with torch 2.7.
    assert fixes.RELEASES[2, 14] == ("cu134", "cu132", "cu130", "cu126")
    assert max(release for release, tags in fixes.RELEASES.items() if "cu118" in tags) == (2, 7)


@pytest.mark.parametrize(
    ("installed", "keep", "requirement", "tag"),
    [
        ("2.9.1+cu128", "12.8", "torch==2.9.1", "cu128"),
        ("2.9.1+cu126", "12.6", "torch==2.9.1", "cu126"),
        ("2.14.0+cu130", "13.0", "torch==2.14.0", "cu130"),
        # A CUDA of the driver's future is not kept.
        ("2.9.1+cu128", "14.0", "torch==2.9.1", "cu130"),
        # Newer than the table: what the newest here has.
        ("2.16.0+cu130", "13.0", "torch==2.16.0", "cu130"),
        ("1.13.1+cu117", "11.7", "torch", "cu130"),
        (None, None, "torch", "cu130"),
    ],
)
def test_what_is_installed_is_kept_where_it_fits(
    installed: str | None, keep: str | None, requirement: str, tag: str
) -> None:
    assert fixes.choose(("9.0",), "13.0", version=installed, keep=keep) == (requirement, tag)


@pytest.mark.parametrize(
    ("version", "text"),
    [
        ("2.9.1+cu128", "torch==2.9.1"),
        ("2.4.0.post1", "torch==2.4.0.post1"),
        ("2.15.0.dev20260908+cu134", "torch"),
        ("2.5.0a0+b465a5843b.nv24.9", "torch"),
        ("2.10.0rc4", "torch"),
        (None, "torch"),
    ],
)
def test_a_version_is_pinned_where_an_index_has_it(version: str | None, text: str) -> None:
    assert fixes.pinned(version) == text


def test_the_same_torch_comes_again_from_where_it_came_from() -> None:
    assert fixes.reinstall(Installer("p"), "2.9.1+cpu") == (
        "p -m pip install --force-reinstall torch==2.9.1 --index-url https://download.pytorch.org/whl/cpu"
    )
    assert fixes.reinstall(Installer("p"), "2.9.1") == "p -m pip install --force-reinstall torch==2.9.1"
    assert fixes.reinstall(Installer("p")) == "p -m pip install --force-reinstall torch"
