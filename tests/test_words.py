"""The words of screens, help, errors and documents: phrases that are out, and sentences with two semicolons."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
SOURCE = ROOT / "src" / "gpucheck"
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").glob("*.md")])

# What stands here has a plainer word: "inconclusive" for "cannot be told", "usually" for "mostly", "stage" for "rung",
# "GPU" for "card", "simulated" for "claimed".
OUT = re.compile(
    r"\b(?:is told|are told|be told|told apart|by itself|by themselves|of its own|of their own|anew|to be had"
    r"|so many|mostly|looks? so|stays? so|of now|off and on|reads? as|what it must|did not end well|no such thing"
    r"|claimed|rungs?|cards?|whatever there|that is no (?!longer)\w+|is no \w+'s)\b",
    re.IGNORECASE,
)
# Product names, and sentences of other programs that are quoted.
QUOTED = re.compile(
    r"`[^`]*`|\{\w+\}|\"[^\"]*\"|“[^”]*”|'[^' ]+ [^']*'|<[^>]*>|\bcards?/|/cards?\b|\$ .*|\bcards?\.\w+"
)
# Steps to type are separated by semicolons, and so are the sources of an entry.
COMMAND = re.compile(
    r"\b(?:sudo|nvidia-smi|ls -l|gpucheck|pip|import|dcgmi|wheel)\b|compute-sanitizer|\.clone\(\)|\bissues? \d"
    r"|register_buffer|[A-Z]{2,}_[A-Z_]+=|torch\.\w+|\bpython …|\bcompgen\b"
)
OPENINGS = re.compile(r"(?:What|Whether|How|Those)\b")
SENTENCE = re.compile(r"(?<=[.!?:])\s+|\n\s*\n|\n\s*(?=[-|#])| \| ")


def _is_prose(text: str) -> bool:
    return len(re.findall(r"[A-Za-z]{2,}[ ,.;:]", text)) >= 2 and not re.search(r"\\[bdswWS(]|\(\?|\)\?", text)


def _rendered(node: ast.JoinedStr) -> str:
    return "".join(part.value if isinstance(part, ast.Constant) else "`…`" for part in node.values)  # type: ignore[misc]


def _literals(path: Path) -> Iterator[tuple[int, str, bool]]:
    """Yield line, text and whether it is a docstring, for each literal of a module that reads as prose."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    docstrings: dict[int, bool] = {}
    parts: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and node.body:
            first = node.body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings[id(first.value)] = not getattr(node, "name", "").startswith("_")
        if isinstance(node, ast.JoinedStr):
            parts |= {id(part) for part in ast.walk(node) if part is not node}
    for node in ast.walk(tree):
        if id(node) in parts:
            continue
        text = (
            _rendered(node)
            if isinstance(node, ast.JoinedStr)
            else node.value
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
            else ""
        )
        if id(node) in docstrings:
            if docstrings[id(node)]:
                yield node.lineno, text, True  # type: ignore[attr-defined]
        elif _is_prose(text):
            yield node.lineno, text, False  # type: ignore[attr-defined]


def _prose(page: str) -> str:
    """A page without its blocks of code."""
    return re.sub(r"^    .*$", "", re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL), flags=re.MULTILINE)


def faults(text: str) -> list[str]:
    """Return the faults of a text: phrases that are out, and sentences with two semicolons."""
    bare = QUOTED.sub("`…`", text)
    found = [match[0] for match in OUT.finditer(bare)]
    sentences = [sentence for sentence in SENTENCE.split(bare) if not COMMAND.search(sentence)]
    return found + [f"two semicolons: {sentence.strip()[:60]}" for sentence in sentences if sentence.count(";") > 1]


PACKAGES = sorted({path.relative_to(SOURCE).parts[0] for path in SOURCE.rglob("*.py")})


def _modules(package: str) -> list[Path]:
    path = SOURCE / package
    return sorted(path.rglob("*.py")) if path.is_dir() else [path]


@pytest.mark.parametrize("package", PACKAGES)
def test_strings_of_a_package(package: str) -> None:
    wrong = [
        f"{path.name}:{line}: {fault}"
        for path in _modules(package)
        for line, text, is_docstring in _literals(path)
        if not is_docstring
        for fault in faults(text)
    ]
    assert wrong == []


@pytest.mark.parametrize("package", PACKAGES)
def test_docstrings_begin_with_a_verb_or_their_subject(package: str) -> None:
    wrong = [
        f"{path.name}:{line}: {text[:50]}"
        for path in _modules(package)
        for line, text, is_docstring in _literals(path)
        if is_docstring and OPENINGS.match(text)
    ]
    assert wrong == []


@pytest.mark.parametrize("page", PAGES, ids=[path.name for path in PAGES])
def test_pages(page: Path) -> None:
    assert faults(_prose(page.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize(
    "text",
    [
        "No times are told: a CPU does the work.",
        "the first broken part between the card and a kernel",
        "it is on the PCI bus; it has a driver; it has no power",
        "the rung that broke",
        "the transfer did not end well",
    ],
)
def test_it_finds_what_is_out(text: str) -> None:
    assert faults(text)
