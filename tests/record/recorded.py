"""Runs a command as a case says and holds all that it writes against the record."""

from __future__ import annotations

import json
import re
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from failing_card import Plan
from written import differences, document, page

from gpucheck.cli.app import main


@pytest.fixture(autouse=True)
def threads() -> Iterator[None]:
    """Give torch back the threads that a recorded machine has not."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


RECORDS = Path(__file__).with_name("records")
TESTS = Path(__file__).parents[1]
SOURCE = str(TESTS.parent / "src")
FORMS = ("json", "md", "xml")


@dataclass(frozen=True)
class Case:
    """A command line and the cards that it meets.

    By the steady clock its figures are the same every time and stand in the record; where another clock or this
    machine has a part in them, they are left out.
    """

    line: str
    plans: Callable[[], Sequence[Plan]] = lambda: (Plan(), Plan())
    figures: bool = True
    # Whether the names of this run's folders stand in it, and make columns wider.
    ragged: bool = False
    note: str = ""
    # The forms beside text.
    forms: tuple[str, ...] = ()

    @property
    def title(self) -> str:
        return f"$ gpucheck {self.line}" + (f"  # {self.note}" if self.note else "")


def failing(call: str, after: int, error: BaseException, *, poisons: bool = False) -> Callable[[], Sequence[Plan]]:
    """Cards of which the first raises an error."""
    return lambda: (Plan(call, after, error, poisons), Plan())


def cut(call: str, after: int, number: int = signal.SIGINT) -> Callable[[], Sequence[Plan]]:
    """Cards of which the first brings a signal, as if a person had typed Ctrl-C there."""

    def plans() -> Sequence[Plan]:
        plan = Plan()

        def seen(name: str) -> None:
            if name == call and plan.calls.get(name, 0) == after:
                signal.raise_signal(number)

        plan.seen = seen
        return plan, Plan()

    return plans


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended: its exit code and what it wrote to the standard streams."""

    code: int
    out: str
    err: str


def words_of(case: Case, folder: Path) -> list[str]:
    """The command line of a case, which also writes every form of the report into the folder."""
    parts = case.line.replace("{folder}", str(folder)).split("`")
    words = [word for place, part in enumerate(parts) for word in ([part] if place % 2 else part.split())]
    outputs = [word for path in _files(case, folder) for word in ("--output", str(path))]
    # Behind the script of `run` all belongs to the script.
    behind = 1 if words[:1] == ["run"] else len(words)
    return [*words[:behind], *outputs, *words[behind:]]


def _files(case: Case, folder: Path) -> list[Path]:
    return [folder / f"x.{form}" for form in case.forms]


def wrote(case: Case, capsys: pytest.CaptureFixture[str], patches: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """All that the command writes in this process, line by line, each with where it stands."""
    words = words_of(case, folder)
    patches.setattr(sys, "argv", ["gpucheck", *words])
    capsys.readouterr()
    code = main(words)
    captured = capsys.readouterr()
    return written(case, Ended(code, captured.out, captured.err), folder)


def written(case: Case, ended: Ended, folder: Path) -> list[str]:
    """The lines that a command has written to the standard streams and into files, each with where it stands."""
    lines = [f"exit {ended.code}"]
    # An error is broken where the name of a folder ends, which is another in each run.
    err = re.sub(r"\n {7}(?=\S)", " ", ended.err)
    for name, said in (("out", ended.out), ("err", err)):
        is_document = "--json" in case.line.split() and said.startswith("{")
        lines += [f"{name}| {line}".rstrip() for line in _lines(said, case, folder, is_document=is_document)]
    for path in (one for one in _files(case, folder) if one.exists()):
        said = path.read_text(encoding="utf-8")
        lines += [
            f"{path.suffix[1:]}| {line}" for line in _lines(said, case, folder, is_document=path.suffix == ".json")
        ]
    return lines


def _lines(said: str, case: Case, folder: Path, *, is_document: bool) -> list[str]:
    for place, name in ((str(folder), "{folder}"), (str(folder.parent), "{tmp}"), (str(TESTS), "{tests}")):
        for spelled in (place, place.replace("_", "\\_")):  # as Markdown has it
            said = said.replace(spelled, name)
    return (
        document(json.loads(said), figures=case.figures)
        if is_document
        else page(said, figures=case.figures, ragged=case.ragged)
    )


def hold(name: str, found: dict[str, list[str]], *, write: bool) -> None:
    """Compare what was written with the record of that name, or write it anew."""
    path = RECORDS / f"{name}.txt"
    lines = [line for title, said in found.items() for line in (title, *said, "")]
    if write:
        RECORDS.mkdir(exist_ok=True)
        path.write_text("\n".join(lines), encoding="utf-8")
    told = differences(path.read_text(encoding="utf-8").split("\n"), lines)
    assert not told, f"`gpucheck` writes something else now (`--write-record` accepts it):\n{told}"
