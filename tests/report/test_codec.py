from __future__ import annotations

import json
import math
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import pytest

import document_schema as schema
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.events import Answered, Judged, Measured, Notice, Started
from gpucheck.report.facts import ClockReasons, Device, Facts, Host, Link, Process, Python, TorchBuild
from gpucheck.report.finding import Finding
from gpucheck.report.measurement import DeviceRef, Measurement, MemoryFigures, Method, Rate, Run, TimeStats
from gpucheck.report.report import Collector, Report
from gpucheck.report.results.short import FigureCheck, MemoryStep

FACTS = Facts(
    host=Host(system="Linux", nvidia_pci_addresses=("0000:17:00.0",)),
    python=Python("3.11.7", "CPython", "/usr/bin/python3"),
    torch=TorchBuild(version="2.13.0", built_for="cuda", toolkit_version="13.0"),
    devices=(
        Device(
            kind="cuda",
            id="cuda:0",
            pcie=Link(5, 16, 5, 16),
            clock_reasons=ClockReasons(0x1, ("gpu_idle",)),
            processes=(Process(7, "compute", "python", 1024),),
        ),
    ),
    unknown={"/devices/0/power_w": "not supported"},
)
MEASUREMENT = Measurement(
    name="transfer",
    device=DeviceRef("cuda:0", "GPU-1", "H200"),
    case={"direction": "host_to_device", "size_bytes": 1024},
    runs=(Run("2026-01-31T12:00:00Z", 16, (0.001, 0.002), (1.0, 1.1)),),
    time_s=TimeStats(median=0.0001, n=2),
    work={"bytes": 1024.0},
    rate=Rate(1.0e7, "B/s"),
    memory=MemoryFigures(1, 2, 3, 4, source="torch.cuda"),
    method=Method("device events", "held", "cold"),
    flags=("noisy",),
)
STEP = MemoryStep(
    step="allocate",
    does="allocate a tensor",
    explanation="memory becomes resident when it is written to",
    exact=False,
    figures=(FigureCheck("resident_bytes", "≥", 2**25, 2**26, True),),
    verdict="pass",
    reason=None,
)


def made(**changes: object) -> Report:
    collector = Collector()
    for event in (
        Started(FACTS),
        Measured(MEASUREMENT),
        Judged(Finding("transfer.gain", "pass", "pinned is faster", evidence={"gain": 4.5})),
        Answered("memory", (STEP,)),
        Notice("working on the CPU"),
    ):
        collector(event)
    return collector.report(
        version="0.1.0", command="bench transfer", argv=("bench",), started="2026-01-31T12:00:00Z", elapsed_s=3.2
    )


def test_a_report_survives_json() -> None:
    text = json.dumps(to_json(made()))
    assert from_json(Report, json.loads(text)) == made()


def test_numbers_that_are_not_finite_are_null() -> None:
    assert to_json({"a": math.inf, "b": [math.nan, 1.5]}) == {"a": None, "b": [None, 1.5]}


def test_a_set_is_a_list_in_order() -> None:
    @dataclass(frozen=True)
    class Named:
        names: frozenset[str] | None = None

    assert to_json(Named(frozenset(("b", "a")))) == {"names": ["a", "b"]}
    assert from_json(Named, {"names": ["a", "b"]}) == Named(frozenset(("a", "b")))
    assert from_json(Named, {"names": None}) == Named()


def test_only_plain_data_is_written() -> None:
    with pytest.raises(TypeError, match=r"not plain data: (Posix|Windows)Path"):
        to_json({"path": Path("x")})


def test_readers_ignore_unknown_keys_and_miss_none() -> None:
    assert from_json(Finding, {"id": "a", "verdict": "pass", "title": "t", "new": 1}) == Finding("a", "pass", "t")
    with pytest.raises(KeyError):
        from_json(Finding, {"id": "a"})
    with pytest.raises(TypeError, match="Finding needs an object"):
        from_json(Finding, 3)


def test_results_are_read_as_their_types_and_those_of_a_later_version_as_they_are() -> None:
    data = to_json(made())
    data["results"]["later"] = [{"x": 1}]
    read = from_json(Report, data)
    assert read.results["memory"] == (STEP,)
    assert to_json(read) == data
    with pytest.raises(KeyError, match="figures"):
        from_json(Report, {**data, "results": {"memory": [{"step": "free"}]}})
    with pytest.raises(TypeError, match="BenchAll needs an object"):
        from_json(Report, {**data, "results": {"bench_all": []}})


def test_the_shipped_schema_is_the_one_of_the_types_and_accepts_a_report() -> None:
    import jsonschema

    shipped = json.loads(resources.files("gpucheck.report").joinpath("schema.json").read_text(encoding="utf-8"))
    assert shipped == schema.schema(), "stale: run scripts/docs"
    jsonschema.Draft202012Validator.check_schema(shipped)
    validator = jsonschema.Draft202012Validator(shipped)
    validator.validate(to_json(made()))
    broken = to_json(made())
    broken["measurements"][0]["rate"]["median"] = "fast"
    assert not validator.is_valid(broken)
    later, broken = to_json(made()), to_json(made())
    later["results"]["later"] = 1
    assert validator.is_valid(later)
    broken["results"]["memory"][0]["figures"] = "none"
    assert not validator.is_valid(broken)
