"""What a reader gets from find-batch-size, smoke, doctor, explain and compare: first lines, then whole screens."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from answer_scenes import SCENES

from gpucheck.render import terminal, text
from gpucheck.report.report import Report

KEPT = Path(__file__).parent / "answers"
WIDTHS = (120, 80, 60, 40, None)


def shown(made: Report, width: int | None, monkeypatch: pytest.MonkeyPatch, *, verbose: bool = False) -> str:
    """The screen in so many columns; None is a pipe."""
    monkeypatch.delenv("COLUMNS", raising=False)
    if width:
        monkeypatch.setenv("COLUMNS", str(width))
    stream = io.StringIO()
    terminal.show(terminal.console(stream), text.blocks(made, verbose=verbose))
    return stream.getvalue()


FIRST: dict[str, list[str]] = {
    "search_healthy": [
        "✓ largest that trains: 116   recommended: 104 (12 % headroom, same speed)",
        "models.py:make_gpt, training on H200 (cuda:0) · AdamW · budget 138 GiB",
        "",
    ],
    "search_time": [
        "? at least 9773 fits (0.510 of 2.00 GiB); time ran out, predicted about 39 000",
        "mlp, training on Intel Xeon (cpu) · AdamW · budget 2 GiB",
        "→ --time-budget 5m",
    ],
    "search_nothing": [
        "✗ not even a batch of 1 fits: needs 150 GiB, budget 138 GiB",
        "models.py:make_gpt, training on H200 (cuda:0) · AdamW · budget 138 GiB",
        "→ raise --memory-limit, or use a smaller model or input",
    ],
    "search_disturbed": [
        "✓ largest that trains: 116   recommended: 104 (12 % headroom, same speed)",
        "models.py:make_gpt, training on H200 (cuda:0) · AdamW · budget 138 GiB",
        "! confidence: medium (a trial was disturbed)",
    ],
    "search_cut": [
        "? at least 9773 fits (0.510 of 2.00 GiB); interrupted",
        "mlp, training on Intel Xeon (cpu) · AdamW · budget 2 GiB",
        "→ run the same command again",
    ],
    "search_once": [
        "! largest that trains: 116 (passed once)",
        "models.py:make_gpt, training on H200 (cuda:0) · AdamW · budget 138 GiB",
        "! a batch of 116 passed once: its run in a fresh process was inconclusive",
    ],
    "search_devices": [
        "✓ every device trains a batch of 104 (least: cuda:1)   recommended: 96",
        "models.py:make_gpt, training · AdamW",
        "",
    ],
    "search_one_device_bad": [
        "✗ cuda:1 trains no batch size; cuda:0 trains 116",
        "models.py:make_gpt, training · AdamW",
        "✗ cuda:1: not even a batch of 1 fits: needs 150 GiB, budget 22 GiB",
    ],
    "estimate": [
        "· estimate for 80 GiB CUDA: largest that trains 765 (expect 666 to 773)",
        "models.py:make_gpt, training · bfloat16 autocast · nothing was run",
        "",
    ],
    "estimate_unknown_error": [
        "· estimate for 80 GiB CUDA: largest that trains 765",
        "models.py:make_gpt, training · bfloat16 autocast · nothing was run",
        "! error unknown: estimates for CUDA were never compared with a search",
    ],
    "estimate_nothing": [
        "✗ estimate: not even a batch of 1 fits 80 GiB: tensors take 92 GiB",
        "models.py:make_gpt, training · bfloat16 autocast · nothing was run",
        "→ use a smaller model, or estimate for a larger --memory-limit",
    ],
    "smoke_healthy": [
        "✓ 16 passed · H200 (cuda:0)",
        "",
        "driver 580.159.04 (CUDA 13.0) · torch 2.11.0+cu130 (CUDA 13.0) · Python 3.12.3",
    ],
    "smoke_cpu": [
        "✓ 16 passed, 2 skipped (not on cpu) · Intel Xeon (cpu)",
        "",
        "no NVIDIA driver · torch 2.13.0+cpu (CPU build) · Python 3.12.3",
    ],
    "smoke_failing": [
        "✗ 2 failed, 16 passed · H200 (cuda:0)",
        "✗ copies.pinned: 3 of 1048576 elements wrong on the device",
        "→ gpucheck bench transfer",
    ],
    "smoke_dead_card": [
        "✗ 1 failed, 3 passed, 4 skipped (device unusable) · H200 (cuda:0)",
        "✗ copies.pinned: 3 of 1048576 elements wrong on the device",
        "→ gpucheck bench transfer",
    ],
    "smoke_cpu_build": [
        "✗ torch cannot use NVIDIA H200: torch 2.13.0+cpu is a CPU-only build",
        "→ gpucheck doctor, or use the CPU with --device cpu",
        "",
    ],
    "smoke_cut": [
        "? 2 passed · H200 (cuda:0)",
        "! not complete: the command was cut off",
        "",
    ],
    "smoke_time": [
        "? 1 inconclusive, 2 passed, 2 skipped (--time-budget ended) · H200 (cuda:0)",
        "? data.n0: --time-budget ended",
        "→ use a longer --time-budget",
    ],
    "smoke_no_memory": [
        "? 1 inconclusive, 2 passed · H200 (cuda:0)",
        "? numerics.matmul: OutOfMemoryError: CUDA out of memory",
        "→ gpucheck devices --processes shows which processes use memory; then run again",
    ],
    "doctor_healthy": [
        "✓ torch can use 2 GPUs: kernel and matrix product correct on cuda:0, cuda:1",
        "",
        " stage          state",
    ],
    "doctor_cpu_build": [
        "✗ this torch is a CPU-only build and cannot use the GPU",
        "torch 2.13.0+cpu contains no CUDA (proven, torch.cpu_build)",
        "→ python -m pip install --force-reinstall torch",
    ],
    "doctor_mask": [
        "✗ CUDA_VISIBLE_DEVICES hides every GPU",
        "CUDA_VISIBLE_DEVICES='-1' (proven, mask.hides_all)",
        "→ unset CUDA_VISIBLE_DEVICES",
    ],
    "doctor_no_driver": [
        "✗ NVIDIA's driver is not installed",
        "1 NVIDIA GPU on the PCI bus, no kernel module (proven, driver.not_installed)",
        "→ sudo ubuntu-drivers install --gpgpu (Ubuntu), and reboot",
    ],
    "doctor_lost_card": [
        "✗ cuda:1  a GPU does not answer its driver: GPU is lost",
        "→ power-cycle the node",
        "! Xid errors in the kernel log: Xid 31",
    ],
    "doctor_throttled": [
        "! torch can use 2 GPUs; 1 warning",
        "! cuda:0  the hardware lowers the clock under load: 345 of 1980 MHz, 92 °C",
        "→ nvidia-smi -q -d PERFORMANCE,TEMPERATURE,POWER",
    ],
    "doctor_no_gpu": [
        "· no NVIDIA GPU here: PCI bus, /dev and driver show none",
        "",
        " stage   state   shown by",
    ],
    "doctor_unknown": [
        "? no known cause found, and torch was not seen to use the GPU",
        "→ gpucheck smoke --device cuda",
        "",
    ],
    "doctor_cut": [
        "! not complete: the command was cut off",
    ],
    "explain_full": [
        "GPU memory is full: GPU 79.15 GiB, your tensors 4.04 GiB, torch's cache 5 GiB,",
        "process 1234 60 GiB",
        "→ use another GPU, or end process 1234 if it is not part of your job",
    ],
    "explain_xid": [
        "Xid 79: the GPU has fallen off the bus: GPU 0000:3b:00",
        "→ drain the node",
        "→ power-cycle the machine",
    ],
    "explain_unknown": [
        "? unknown text: it contains no known error; paste the whole traceback",
        "→ gpucheck doctor on the machine where it happened",
    ],
    "compare_slower": [
        "✗ 2 of 14 rows are slower: transfer host to device 1 MiB ×0.76 (0.74 to 0.78)",
        "bench transfer on cuda:0, host to device, 7 runs each, limit 5 %",
        "",
    ],
    "compare_same": [
        "· no change in 12 rows",
        "bench transfer on cuda:0, host to device, 7 runs each",
        "",
    ],
    "compare_few": [
        "? inconclusive: 1 of 13 rows; none shown to be slower",
        "bench transfer on cuda:0, host to device, 7 old and 1 to 7 new runs",
        "→ measure both with --runs 7",
    ],
    "compare_other_machine": [
        "! no change in 12 rows",
        "bench transfer on cuda:0, host to device, 7 runs each",
        "! the machines differ: cuda:0 is NVIDIA H200 → NVIDIA L4",
    ],
    "compare_nothing": [
        "? no row in common: old: gpucheck smoke",
        "→ compare documents of the same command",
    ],
}


def test_why_checks_were_skipped_is_said_whatever_the_mix() -> None:
    from gpucheck.render import doctor
    from gpucheck.report.finding import Finding

    of_cpu = [Finding(f"a.{n}", "skip", "", "not on cpu: no events") for n in range(3)]
    of_time = [Finding(f"b.{n}", "skip", "", "device unusable: b") for n in range(2)]
    assert doctor._counts(of_cpu) == "3 skipped (not on cpu)"
    assert doctor._counts([*of_cpu, *of_time]) == "5 skipped (3 not on cpu, 2 device unusable)"


@pytest.mark.parametrize("scene", SCENES)
def test_the_first_three_lines_are_the_answer(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = shown(SCENES[scene], 80, monkeypatch).splitlines()
    assert lines[:3] == FIRST[scene]


@pytest.mark.parametrize("scene", [name for name in SCENES if "healthy" in name or name.endswith("_cpu")])
def test_a_healthy_screen_fits_24_lines(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(shown(SCENES[scene], 80, monkeypatch).splitlines()) <= 24


@pytest.mark.parametrize("scene", SCENES)
def test_the_whole_screen_at_every_width(
    scene: str, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Kept in `answers/`; `--write-record` writes it again."""
    parts = []
    for width in WIDTHS:
        screen = shown(SCENES[scene], width, monkeypatch)
        assert width is None or max(map(len, screen.splitlines())) <= width
        parts.append(f"== {f'{width} columns' if width else 'a pipe'}\n{screen}")
    parts.append(f"== a pipe, with -v\n{shown(SCENES[scene], None, monkeypatch, verbose=True)}")
    whole, path = "\n".join(parts), KEPT / f"{scene}.txt"
    if request.config.getoption("--write-record", False):
        path.parent.mkdir(exist_ok=True)
        path.write_text(whole, encoding="utf-8")
    assert whole == path.read_text(encoding="utf-8")


@pytest.mark.parametrize("scene", SCENES)
def test_no_colour_stands_alone(scene: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """In ASCII and without colours the first line still begins with its verdict's sign or with words."""
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.delenv("COLUMNS", raising=False)
    terminal.show(terminal.console(stream), text.blocks(SCENES[scene]))
    stream.flush()
    first = stream.buffer.getvalue().decode("ascii").splitlines()[0]
    assert first.startswith(("+ ", "x ", "! ", "? ", "- ")) or first[0].isalpha()
