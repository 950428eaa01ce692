"""The HTML page: whole without a request or a script, harmless whatever a document says, small, and readable."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pages
import pytest

from gpucheck.render import html
from gpucheck.report.codec import from_json
from gpucheck.report.facts import Device
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report

REPORTS = pages.everything()
# One report of each command.
EACH = sorted({report.command: name for name, report in REPORTS.items()}.values())


class Parsed(HTMLParser):
    """The tags of a page, its texts, and where each stands."""

    VOID = ("meta", "link", "input")

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))


@pytest.mark.parametrize("name", REPORTS)
def test_a_page_is_well_formed_and_small(name: str) -> None:
    text = html.document(REPORTS[name])
    parsed = Parsed(text)
    assert text.startswith("<!doctype html>\n") and parsed.open == []
    assert len(text.encode()) < 1_000_000
    headings = [tag for tag, _ in parsed.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == "h1" and headings.count("h1") == 1
    named = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(named) == len(set(named))


def test_the_answer_and_its_fix_come_first() -> None:
    seen = text_of(html.document(REPORTS["doctor"]))
    answer = seen.index("driver libraries and loaded kernel module differ in version")
    assert seen.index("fail") < answer < seen.index("→ ") < seen.index("took ")


def test_no_script_and_no_request_is_allowed() -> None:
    parsed = Parsed(html.document(REPORTS["run"]))
    (policy,) = [a["content"] for tag, a in parsed.tags if tag == "meta" and "http-equiv" in a]
    assert policy == "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'"
    assert "</" not in html.STYLE and "url(" not in html.STYLE and "@import" not in html.STYLE


@functools.cache
def every() -> set[tuple[str, ...]]:
    """Every tag of a page with the attributes that it may have."""
    return {(tag, *sorted(a)) for report in REPORTS.values() for tag, a in Parsed(html.document(report)).tags}


@pytest.mark.slow
@pytest.mark.parametrize("name", EACH)
def test_hostile_text_stays_text(name: str) -> None:
    """The tags of the page are those of the harmless one: what a document says makes no tag and no attribute."""
    made = html.document(pages.hostile(REPORTS[name], html.document))
    parsed = Parsed(made)
    assert {(tag, *sorted(a)) for tag, a in parsed.tags} <= every()
    assert "owned=1" in made
    assert not any(key.startswith("on") for _, a in parsed.tags for key in a)
    links = [a["href"] for tag, a in parsed.tags if a.get("href")]
    assert all(re.fullmatch(r"#d\d+", str(link)) for link in links)
    assert "\x00" not in made and "\x1b" not in made and "\u202e" not in made


RESULTS = Path(__file__).parents[2] / "benchmarks" / "results" / "nvidia-h200-2026-11-27"


def twelve() -> list[tuple[str, Report]]:
    """What was measured on one machine, by the paths of whoever sends it."""
    files = sorted(RESULTS.glob("*.json"))
    return [
        (f"/home/alice/secret/{one.name}", from_json(Report, json.loads(one.read_text(encoding="utf-8"))))
        for one in files
    ]


def text_of(page: str) -> str:
    return " ".join(" ".join(text for tag, text in Parsed(page).texts if tag not in ("style", "script")).split())


def test_twelve_documents_name_their_machine_once_and_the_worst_first() -> None:
    page = html.sheet(twelve())
    parsed, seen = Parsed(page), text_of(page)
    assert "10 pass, 1 warn, 1 inconclusive" in seen
    outside = " ".join(text for tag, text in parsed.texts if tag not in ("style", "script", "pre"))
    assert outside.count("VBIOS 96.00.A5.00.1A") == 1 and outside.count("Linux 6.18") == 1
    links = [str(a["href"]) for tag, a in parsed.tags if tag == "a"]
    assert links == [f"#d{place}" for place in range(1, 13)]
    order = [text for tag, text in parsed.texts if tag == "a"]
    assert order[:2] == ["1. gpucheck find-batch-size", "2. gpucheck run"]
    assert "174 recommended: 152" in seen


def test_a_page_has_no_folder_of_its_sender_and_a_serial_number_only_on_request() -> None:
    lost = Finding("devices.answers", "fail", "lost", "cuda:0: gone (0000:31:00.0, serial 165492200433)")
    gpu = Device(kind="cuda", id="cuda:0", name="NVIDIA H200", serial="165492200433", pci_address="0000:31:00.0")
    first = twelve()[0][1]
    facts = replace(first.facts, devices=(gpu,))
    said = r"File '/home/alice/job/train.py' and C:\Users\alice\job\x.py, /usr/lib/libcuda.so.1, 690 / 700 W, GB/s"
    trace = Finding("x.y", "warn", "see", said)
    report = replace(first, command="devices", facts=facts, findings=(lost, trace))
    page = html.sheet([("/home/alice/secret/devices.json", report)])
    for ours in ("alice", "secret", "165492200433"):
        assert ours not in page
    for kept in ("devices.json", "train.py", "/usr/lib/libcuda.so.1", "690 / 700 W", "GB/s"):
        assert kept in page
    assert text_of(html.sheet([("x.json", report)], serials=True)).count("serial 165492200433") >= 2
