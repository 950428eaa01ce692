"""Every command for real on a CUDA device, small, as users start it; and planted faults are found."""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from judged import run

import document_schema as schema
from gpucheck.bench.buffers import Copies
from gpucheck.bench.matmul import MatmulOptions
from gpucheck.bench.matmul import work as matmul
from gpucheck.bench.transfer import TransferOptions
from gpucheck.bench.transfer import work as transfer
from gpucheck.machine import accel
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.report import Report

pytestmark = [pytest.mark.gpu, pytest.mark.long]

ON_CUDA = ("--device", "cuda")
PRODUCTS = ("bench", "matmul", *ON_CUDA, "--size", "1024", "--dtype", "float32", "--dtype", "tf32")
# Enough for the context and the libraries (up to 1 GiB on large cards), little enough for trials of milliseconds.
SEARCH = ("find-batch-size", "convnet", "--mode", "infer", *ON_CUDA, "--memory-limit", "2GiB")

# What the parent of the trials leaves in its own process.
WITHOUT_CONTEXT = """
import sys
from gpucheck.cli.app import main
code = main(sys.argv[1:])
torch = sys.modules.get("torch")
if torch is not None and torch.cuda.is_initialized():
    sys.exit("this process made a device context")
sys.exit(code)
"""


@functools.cache
def document(*arguments: str, code: int = 0) -> dict[str, Any]:
    """What the command prints with --json, seen to be valid; it runs once for all tests that ask for it."""
    child = subprocess.run(
        [sys.executable, "-c", WITHOUT_CONTEXT, *arguments, "--json"]
        if arguments[0] == "find-batch-size"
        else [sys.executable, "-m", "gpucheck", *arguments, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert child.returncode == code, child.stderr[-2000:] + child.stdout[-2000:]
    read: dict[str, Any] = json.loads(child.stdout)
    assert to_json(from_json(Report, read)) == read
    assert (read["summary"]["exit"], read["summary"]["complete"]) == (code, True)
    validate(read)
    return read


def validate(read: dict[str, Any]) -> None:
    try:
        import jsonschema  # noqa: F401
    except ImportError:  # a machine with a GPU need not have it: the types above hold the same
        return
    schema.validator().validate(read)


def cuda_devices(read: dict[str, Any]) -> list[dict[str, Any]]:
    return [device for device in read["facts"]["devices"] if device["cuda_index"] is not None]


def test_devices_lists_what_torch_sees() -> None:
    listed = cuda_devices(document("devices", "--processes"))
    assert [device["id"] for device in listed] == [f"cuda:{n}" for n in range(torch.cuda.device_count())]
    opened = accel.open_device("cuda:0")
    assert listed[0]["name"] == opened.name
    assert listed[0]["memory_total_bytes"] == pytest.approx(opened.memory_total_bytes, rel=0.03)
    # torch tells the bytes alone; NVML's word begins with what kind of device it is.
    assert listed[0]["uuid"].partition("-")[2] == (opened.uuid or "").partition("-")[2]


def test_smoke_gives_a_document() -> None:
    read = document("smoke", *ON_CUDA, "--require", "cuda", "--only", "device", "--only", "tensors.round_trip")
    assert {finding["verdict"] for finding in read["findings"]} == {"pass"}


def test_float32_and_tf32_are_what_they_are_called() -> None:
    if (accel.open_device("cuda:0").compute_capability or (0, 0)) < (8, 0) or torch.version.cuda is None:
        pytest.skip("this device has no TF32")
    rows = {row["case"]["dtype"]: row for row in document(*PRODUCTS, "--time-budget", "3s")["measurements"]}
    assert {dtype: row["method"]["precision_observed"] for dtype, row in rows.items()} == {
        "float32": "float32",
        "tf32": "tf32",
    }
    for row in rows.values():
        assert row["method"]["clock"] == "device events"
        assert row["memory"]["max_memory_reserved_bytes"] >= row["memory"]["memory_allocated_bytes"] > 0


def test_transfer_times_pinned_copies_on_both_clocks() -> None:
    read = document("bench", "transfer", *ON_CUDA, "--size", "16MiB", "--only", "copies", "--time-budget", "4s")
    seen = {
        (row["case"]["direction"], row["case"]["host_memory"], row["case"]["timed"]): row["method"]["clock"]
        for row in read["measurements"]
    }
    assert seen == {
        (way, memory, timed): "device events" if timed == "link" else "host"
        for way in ("host_to_device", "device_to_host")
        for memory, timed in (("pageable", "as_called"), ("pinned", "link"), ("pinned", "as_called"))
    }


def verdicts(command: Any, options: Any) -> dict[str, str]:
    return {finding.id: finding.verdict for finding in run(lambda emit: command(options, emit)).findings}


def test_a_wrong_byte_on_the_device_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real = Copies.call

    def spoiled(copies: Copies) -> None:
        real(copies)
        copies.destination.words[3:4].fill_(-1)  # no pattern holds it

    monkeypatch.setattr(Copies, "call", spoiled)
    options = TransferOptions(
        sizes=(2**20,),
        directions=("host_to_device",),
        memories=("pinned",),
        device="cuda:0",
        time_budget_s=2.0,
        only=("copies",),
    )
    assert verdicts(transfer.command, options)["transfer.corrupt"] == "fail"


def test_a_wrong_element_of_a_product_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    real, calls = torch.mm, iter(range(10**9))

    def spoiled(a: torch.Tensor, b: torch.Tensor, *, out: torch.Tensor) -> torch.Tensor:
        made = real(a, b, out=out)
        if next(calls) and len(out):  # the first observes the precision
            out[0, 3].add_(1000.0)
        return made

    monkeypatch.setattr(torch, "mm", spoiled)
    options = MatmulOptions(("float32",), (512,), device="cuda:0", time_budget_s=1.0)
    found = verdicts(matmul.command, options)
    assert (found["matmul.precision"], found["matmul.result"]) == ("pass", "fail")


def test_two_searches_agree_and_their_parent_makes_no_context() -> None:
    first = document(*SEARCH)["results"]["find_batch_size"]
    # Another text of the same limit, so that it is not the same run.
    second = document(*SEARCH[:-1], "2048MiB")["results"]["find_batch_size"]
    for found in (first, second):
        assert found["confirmed"] and found["peak_bytes"] <= found["budget_bytes"] == 2 * 2**30
        assert found["max_batch_size"] > 1
        assert found["first_failing"] is None or found["first_failing"] > found["max_batch_size"]
        searched = [trial for trial in found["trials"] if trial["purpose"] != "recommended"]
        assert len(searched) <= 2 * torch.tensor(float(found["max_batch_size"])).log2().item() + 4
        recommended = found["recommended"]
        assert recommended["batch_size"] < found["max_batch_size"]
        assert recommended["peak_bytes"] <= 0.92 * found["budget_bytes"]  # 10 % of headroom, less what repeats differ
    # Each is within 2 % of the true one from below; libraries' own memory differs a little from process to process.
    assert first["max_batch_size"] == pytest.approx(second["max_batch_size"], rel=0.05)


def test_a_search_without_time_is_undecided() -> None:
    read = document("find-batch-size", "mlp", *ON_CUDA, "--time-budget", "1s", code=4)
    assert {finding["id"]: finding["verdict"] for finding in read["findings"]} == {"batch_size.fits": "inconclusive"}
