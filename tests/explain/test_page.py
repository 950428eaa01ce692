"""Pages of smoke's checks and of the benchmarks' findings: none is missing, none is of nothing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import gpucheck
from gpucheck import messages
from gpucheck.bench import ids as bench
from gpucheck.config import THRESHOLDS
from gpucheck.explain import command
from gpucheck.explain.command import PAGES
from gpucheck.fleet import ids as fleet
from gpucheck.program import judge as program
from gpucheck.report.finding import Id
from gpucheck.smoke.options import CHECKS
from gpucheck.stress import judge as stress

SOURCE = Path(gpucheck.__file__).parent


def written_ids(*places: str) -> set[str]:
    """The ids that stand in the source as the first thing of a Finding, or as `finding=`."""
    found: set[str] = set()
    for place in places:
        for path in SOURCE.glob(place):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if not isinstance(node, ast.Call):
                    continue
                named = [keyword.value for keyword in node.keywords if keyword.arg == "finding"]
                first = node.args[:1] if getattr(node.func, "id", "") == "Finding" else []
                judged = node.args[:1] if getattr(node.func, "attr", "") == "judge" else []
                found |= {
                    row.value
                    for row in [*named, *first, *judged]
                    if isinstance(row, ast.Constant) and isinstance(row.value, str) and "." in row.value
                }
    return found


def test_every_check_of_smoke_has_its_page() -> None:
    titles = {check.id: check.title for check in CHECKS}
    assert {name: page.title for name, page in PAGES.items() if name in titles} == titles


def test_every_finding_of_the_benchmarks_has_its_page() -> None:
    written = written_ids("bench/**/*.py")
    assert len(written) > 30
    assert sorted(written - set(PAGES)) == []


@pytest.mark.parametrize(("room", "prefixes", "least"), [("program", "model|run", 25), ("fleet", "fleet", 15)])
def test_every_finding_of_these_has_its_page(room: str, prefixes: str, least: int) -> None:
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.glob(f"{room}/**/*.py")]
    written = {found for text in texts for found in re.findall(rf'"((?:{prefixes})\.[a-z_.]+)"', text)}
    assert len(written) > least
    assert sorted(written - set(PAGES)) == []


def test_every_finding_of_stress_has_its_page() -> None:
    written = written_ids("stress/*.py")
    assert {"stress.wrong", "stress.slow", "stress.errors"} <= written
    assert sorted(written - set(PAGES)) == []


@pytest.mark.parametrize(("room", "ids"), [("fleet", fleet.IDS), ("program", program.IDS), ("stress", stress.IDS)])
def test_an_id_that_is_declared_is_that_of_a_finding(room: str, ids: tuple[Id, ...]) -> None:
    """It stands in the package a second time, where the finding is made."""
    texts = [path.read_text(encoding="utf-8") for path in SOURCE.glob(f"{room}/**/*.py")]
    assert [name.id for name in ids if sum(text.count(f'"{name.id}"') for text in texts) < 2] == []


def test_every_id_in_a_role_is_a_verification_or_an_advice() -> None:
    assert {"transfer.corrupt", "matmul.result", "bandwidth.result"} <= set(bench.OF_ROLE["verifies"])
    assert bench.OF_ROLE["advises"][:2] == ("transfer.pinned_speedup", "transfer.idioms")


def test_every_threshold_has_its_page() -> None:
    assert [threshold.id for threshold in THRESHOLDS if threshold.id not in PAGES] == []


def test_a_page_is_whole() -> None:
    for name, page in PAGES.items():
        assert page.id == name and page.title and page.meaning.endswith("."), name


def test_every_cause_of_a_devices_error_has_its_page() -> None:
    assert [name for name in messages.BY_ID if name not in command.entries()] == []
