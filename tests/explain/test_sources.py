"""The messages that libraries raise about devices, as their sources have them, get the answer of their condition."""

from __future__ import annotations

import csv
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import explain_corpus

from gpucheck.explain.command import OF_CONDITIONS, TEXTS
from gpucheck.explain.match import find

LIST = Path(__file__).parents[2] / "benchmarks" / "corpus" / "explain-sources.tsv"
# The id of a message that is not worth a row: it explains itself, or names no fault.
NONE = "-"


def rows() -> list[dict[str, str]]:
    """The list: repository, file, id, the condition under which the source raises it, and the message, filled in."""
    with LIST.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE))


def test_the_list_is_whole() -> None:
    known = {text.id for text in (*TEXTS, *OF_CONDITIONS)} | {NONE}
    assert len(rows()) >= 300
    assert len({row["message"] for row in rows()}) == len(rows())
    assert [row for row in rows() if not all(row.values()) or row["id"] not in known] == []


@pytest.mark.parametrize("row", rows(), ids=lambda row: f"{row['repository']}-{row['message'][:40]}")
def test_a_message_of_a_source_gets_its_id(row: dict[str, str]) -> None:
    found = find(row["message"], TEXTS, OF_CONDITIONS)
    assert (found[0].text.id if found else NONE) == row["id"], row["condition"]


# Rows without a text in the corpora or the list: of documented catalogues, of what ends a trial of find-batch-size, and
# of reports that no corpus holds.
DOCUMENTED = ("xid.", "nvswitch.", "nvml.", "cuda.", "xpu.call")
OTHERS = (
    "process.threads",
    "assert.library",
    "build.windows",
    "nvcc.old",
    "setup.",
    "windows.device",
    "build.setuptools",
    "build.lock",
    "nvcc.new",
    "power.",
    "vulkan.software",
    "memory.",
    "oom.grows",
    "numerics.nan_half",
    "program.waits",
    "build.torch",
    "tensorflow.no_gpu",
    "mig.one",
    "mps.none",
    "crash.illegal",
    "comfyui.ended",
    "import.",
    "llamacpp.model",
    "program.cpu",
    "link.slow",
    "host.memory",
    "cloud.quota",
    "disk.full",
    "container.mac",
    "tensorrt.arch",
    "triton.backend",
    "directml.failed",
    "llamacpp.output",
    "deepspeed.config",
    "process.pickle",
    "dist.nodes",
    "norm.one_value",
    "dist.rank_order",
    "download.failed",
    "file.truncated",
    "mps.wrong",
    "dist.one_gpu",
    "optimizer.before",
    "openmm.platform",
    "opencl.none",
    "gpu.wrong",
)


def test_every_row_is_expected_by_a_text_or_raised_by_a_source() -> None:
    expected = {
        name for chosen in explain_corpus.SETS for entrie in explain_corpus.entries(chosen) for name in entrie.expect
    }
    known = expected | {row["id"] for row in rows()}
    assert [text.id for text in TEXTS if text.id not in known and not text.id.startswith((*DOCUMENTED, *OTHERS))] == []
