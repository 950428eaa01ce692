"""The one finding that a fault comes to, judged by hand."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from gpucheck.explain import command
from gpucheck.explain.match import find
from gpucheck.messages import CAUSES
from gpucheck.report.events import Failed
from gpucheck.report.fault import Fault, judge, not_run
from gpucheck.report.report import Collector

FAULT = Fault(
    "device",
    "bench matmul",
    "cuda:0",
    "AcceleratorError",
    "CUDA error: uncorrectable ECC error encountered\nmore",
    "float32 512",
    "cuda.ecc",
    True,
)


def test_a_device_that_failed() -> None:
    finding = judge(FAULT)
    assert (finding.id, finding.verdict) == ("device.error", "fail")
    assert finding.title == "cuda:0 failed in bench matmul: its memory had an uncorrectable error (ECC)"
    assert finding.message == ("AcceleratorError: CUDA error: uncorrectable ECC error encountered (during float32 512)")
    assert finding.fix is not None and finding.fix.startswith(
        "drain the node, then sudo nvidia-smi --gpu-reset -i INDEX; "
    )
    assert finding.evidence["text"] == FAULT.text


@pytest.mark.parametrize(
    ("where", "memory", "error"),
    [
        ("bench matmul", "matmul.memory", "matmul.error"),
        ("bench all", "device.memory", "gpucheck.error"),
        ("memory", "device.memory", "gpucheck.error"),
    ],
)
def test_ids_by_where_it_was(where: str, memory: str, error: str) -> None:
    finding = judge(replace(FAULT, kind="memory", where=where, cause="oom.cuda"))
    assert (finding.id, finding.verdict) == (memory, "inconclusive")
    assert finding.title == f"memory ran out on cuda:0 in {where}"
    assert judge(replace(FAULT, kind="memory", cause="oom.cpu")).title == "memory ran out on the host in bench matmul"
    finding = judge(replace(FAULT, kind="error", where=where))
    assert (finding.id, finding.verdict, finding.title) == (error, "fail", f"{where} ended with an error")


def test_what_was_not_measured_because_of_it() -> None:
    finding = not_run("overlap", "bench overlap", FAULT)
    assert (finding.id, finding.verdict, finding.title) == ("overlap.skipped", "skip", "bench overlap was not measured")
    assert finding.message.startswith("cuda:0 failed in bench matmul: ")


def test_a_report_with_a_fault_is_not_complete() -> None:
    collector = Collector()
    collector(Failed(FAULT))
    report = collector.report(version="0", command="bench matmul", argv=(), started="", elapsed_s=1.0)
    assert (report.summary.complete, report.faults) == (False, (FAULT,))


def test_what_a_device_says_explain_knows_by_the_same_id() -> None:
    """A text alone may be any program's: beside it stands how torch begins such a message."""
    texts = {text.id: text for text in (*command.TEXTS, *command.OF_CONDITIONS)}
    shared = [cause for cause in CAUSES if cause.poisons and cause.id in texts and not cause.id.startswith("cuinit.")]
    assert len(shared) > 10
    for cause in shared:
        begins = "HIP" if cause.id.startswith("hip.") else "CUDA"
        for words in filter(re.compile(r"[\w ,.:'-]+").fullmatch, cause.patterns):
            pasted = f"RuntimeError: {begins} error: {words}"
            assert find(pasted, command.TEXTS, command.OF_CONDITIONS)[0].text.id == cause.id, pasted
