"""The HTML page: whole without a request or a script, harmless whatever a document says, small, and readable."""

from __future__ import annotations

import functools
import json
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import browser as chromium
import pages
import pytest

from gpucheck.render import html
from gpucheck.report.codec import from_json, to_json
from gpucheck.report.facts import Device, Driver, Python
from gpucheck.report.finding import Finding
from gpucheck.report.report import Report

REPORTS = pages.everything()
# An axe-core that npm installed, as `.ci/run` does.
AXE = Path(os.environ.get("AXE_CORE", "axe.min.js"))
needs_chromium = pytest.mark.skipif(bool(chromium.WHY_NOT), reason=chromium.WHY_NOT)


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
    texts = Parsed(html.document(REPORTS["doctor"])).texts
    seen = " ".join(" ".join(text for tag, text in texts if tag not in ("style", "script")).split())
    answer = seen.index("driver libraries and loaded kernel module differ in version")
    assert seen.index("fail") < answer < seen.index("To do:") < seen.index("Devices") < seen.index("Origin")


def test_no_script_and_no_request_is_allowed() -> None:
    parsed = Parsed(html.document(REPORTS["run"]))
    (policy,) = [a["content"] for tag, a in parsed.tags if tag == "meta" and "http-equiv" in a]
    assert str(policy).startswith("default-src 'none'; style-src 'unsafe-inline'; ") and "script" not in str(policy)
    style = (html.FOLDER / "page.css").read_text(encoding="utf-8")
    assert "</" not in style and "url(" not in style and "@import" not in style


@functools.cache
def every() -> set[tuple[str, ...]]:
    """Every tag of a page with the attributes that it may have."""
    return {(tag, *sorted(a)) for report in REPORTS.values() for tag, a in Parsed(html.document(report)).tags}


@pytest.mark.parametrize("name", REPORTS)
def test_hostile_text_stays_text(name: str) -> None:
    """The tags of the page are those of the harmless one: what a document says makes no tag and no attribute."""
    made = html.document(pages.hostile(REPORTS[name], html.document))
    parsed = Parsed(made)
    assert {(tag, *sorted(a)) for tag, a in parsed.tags} <= every()
    assert "owned=1" in made
    assert not any(key.startswith("on") for _, a in parsed.tags for key in a)
    links = [a["href"] for tag, a in parsed.tags if a.get("href")]
    assert all(re.fullmatch(r"data:,|#d\d+", str(link)) for link in links)
    assert "\x00" not in made and "\x1b" not in made and "\u202e" not in made
    assert "49" not in re.findall(r"owned=1&gt;(\S{2})", made)


def test_the_json_on_the_page_is_the_document() -> None:
    (raw,) = [text for tag, text in Parsed(html.document(REPORTS["find-batch-size"])).texts if tag == "pre"]
    assert json.loads(raw) == to_json(html.to_send(REPORTS["find-batch-size"], serials=False))


def test_json_that_is_too_long_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(html, "MOST_RAW", 100)
    texts = Parsed(html.document(REPORTS["bench copies that reach the link"])).texts
    assert "The JSON is too long for a page: see the JSON file." in [text for _, text in texts]
    assert not any(tag == "pre" for tag, _ in texts)


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
    assert "174 · recommended: 152" in seen


def test_a_page_has_no_folder_of_its_sender_and_a_serial_number_only_on_request() -> None:
    lost = Finding("devices.answers", "fail", "lost", "cuda:0: gone (0000:31:00.0, serial 165492200433)")
    gpu = Device(kind="cuda", id="cuda:0", name="NVIDIA H200", serial="165492200433", pci_address="0000:31:00.0")
    first = twelve()[0][1]
    python = replace(first.facts.python or Python("3.12", "CPython", ""), executable="/opt/torch/.venv/bin/python3")
    library = replace(first.facts.driver or Driver(), libcuda_path="/usr/lib/x86_64-linux-gnu/libcuda.so.1")
    facts = replace(first.facts, devices=(gpu,), python=python, driver=library)
    said = r"File '/home/alice/job/train.py' and C:\Users\alice\job\x.py, 690 / 700 W, GB/s"
    trace = Finding("x.y", "warn", "see", said)
    report = replace(first, command="devices", facts=facts, findings=(lost, trace))
    page = html.sheet([("/home/alice/secret/devices.json", report)])
    for ours in ("alice", "secret", "/opt", "165492200433"):
        assert ours not in page
    for kept in ("devices.json", "train.py", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "690 / 700 W", "GB/s"):
        assert kept in page
    assert text_of(html.sheet([("x.json", report)], serials=True)).count("serial 165492200433") >= 2


def test_two_documents_are_compared_above_both() -> None:
    first, second = REPORTS["smoke"], REPORTS["devices"]
    compared = (
        REPORTS["answer compare_open"]
        if "answer compare_open" in REPORTS
        else next(report for name, report in REPORTS.items() if report.command == "compare")
    )
    parsed = Parsed(html.sheet([("a.json", first), ("b.json", second)], compared))
    titles = [text for tag, text in parsed.texts if tag == "h2" and text.strip()]
    assert titles[:2] == ["Machine", "Machine"]
    titles = titles[2:]
    assert [title.partition(" on ")[0].strip() for title in titles] == [
        "1. gpucheck compare",
        "2. gpucheck smoke",
        "3. gpucheck devices",
    ]
    # The page's own verdict is the worse of the two documents'.
    assert [text for tag, text in parsed.texts if tag == "title"] == ["fail: gpucheck: 2 results"]


def test_jinja_waits_for_the_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "jinja2", raising=False)
    html.require()
    assert "jinja2" not in sys.modules


# -- in a browser ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def window(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    with chromium.browser(tmp_path_factory.mktemp("browser")) as one:
        yield one


def kept(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "page.html"
    path.write_text(text, encoding="utf-8")
    return path


SHOWN = [
    "doctor",
    "find-batch-size",
    "run",
    "fleet",
    "bench copies that reach the link",
    "stress wrong, falling and hung",
]
SIZES = [(1280, False), (1280, True), (320, False), (320, True)]


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("name", SHOWN)
def test_a_browser_asks_for_nothing_and_complains_of_nothing(
    name: str, window: chromium.Browser, tmp_path: Path
) -> None:
    page = kept(tmp_path, html.document(REPORTS[name]))
    for width, dark in SIZES:
        window.open(page, width, dark=dark)
        assert window.requests() == [page.as_uri()]
        assert window.complaints() == []
        # Nothing sticks out to the side: what is too wide scrolls in its own frame.
        assert window.run("return document.documentElement.scrollWidth") <= width
        window.picture(tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000
        paper = window.run("return getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(13, 17, 23)" if dark else "rgb(255, 255, 255)")


@pytest.mark.slow
@needs_chromium
@pytest.mark.parametrize("name", SHOWN)
def test_hostile_text_does_nothing_in_a_browser(name: str, window: chromium.Browser, tmp_path: Path) -> None:
    page = kept(tmp_path, html.document(pages.hostile(REPORTS[name], html.document)))
    window.open(page)
    assert window.run("return [typeof owned, document.scripts.length, document.images.length]") == ["undefined", 0, 0]
    assert (window.requests(), window.complaints()) == ([page.as_uri()], [])


@needs_chromium
def test_a_browser_would_have_told_of_a_script_and_a_request(window: chromium.Browser, tmp_path: Path) -> None:
    """The two tests above can fail: the same text as markup is refused by the policy, and without one it runs."""
    page = html.document(REPORTS["smoke"]).replace("</main>", "<script>owned=1</script><img src=x:y></main>")
    window.open(kept(tmp_path, page))
    assert window.run("return typeof owned") == "undefined"
    assert any("Content Security Policy" in complaint for complaint in window.complaints())
    window.open(kept(tmp_path, re.sub("<meta http-equiv[^>]*>", "", page)))
    assert window.run("return typeof owned") == "number"


@pytest.mark.slow
@needs_chromium
@pytest.mark.skipif(not AXE.exists(), reason="no axe-core here: npm install axe-core, and AXE_CORE=…/axe.min.js")
@pytest.mark.parametrize("name", [*SHOWN, "several"])
def test_axe_finds_no_violation(name: str, window: chromium.Browser, tmp_path: Path) -> None:
    named = [(f"{key}.json", REPORTS[key]) for key in SHOWN]
    page = kept(tmp_path, html.sheet(named) if name == "several" else html.document(REPORTS[name]))
    for width, dark in SIZES:
        window.open(page, width, dark=dark)
        window.run("for (const one of document.querySelectorAll('details')) one.open = true")
        window.run(AXE.read_text(encoding="utf-8"))
        found = window.later(
            "const done = arguments[arguments.length - 1];"
            "axe.run(document).then(seen => done(seen.violations.map(one => [one.id, one.nodes.map(n => n.html)])))"
        )
        assert found == []
