"""Runs a command as a case says and holds all that it writes against the record."""

from __future__ import annotations

import json
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
FORMS = ("json", "md", "csv", "xml")


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
    # The forms beside text; without, the text alone.
    forms: tuple[str, ...] = FORMS

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


def wrote(case: Case, capsys: pytest.CaptureFixture[str], patches: pytest.MonkeyPatch, folder: Path) -> list[str]:
    """All that the command writes, line by line, each with where it stands."""
    files = [folder / f"x.{form}" for form in case.forms]
    arguments = [*case.line.replace("{folder}", str(folder)).split("`")]
    words = [word for place, part in enumerate(arguments) for word in ([part] if place % 2 else part.split())]
    words += [word for path in files for word in ("--output", str(path))]
    patches.setattr(sys, "argv", ["gpucheck", *words])
    capsys.readouterr()
    code = main(words)
    captured = capsys.readouterr()
    lines = [f"exit {code}"]
    for name, said in (("out", captured.out), ("err", captured.err)):
        if name == "out" and "--json" in words and said:
            lines += [f"{name}| {line}" for line in document(json.loads(said), figures=case.figures)]
        else:
            lines += [f"{name}| {line}".rstrip() for line in page(said, figures=case.figures, ragged=case.ragged)]
    for path in files:
        lines += [f"{path.suffix[1:]}| {line}" for line in _file(path, case)] if path.exists() else []
    for path, name in ((folder, "{folder}"), (folder.parent, "{tmp}")):
        for spelled in (str(path), str(path).replace("_", "\\_")):  # as Markdown has it
            lines = [line.replace(spelled, name) for line in lines]
    return lines


def _file(path: Path, case: Case) -> list[str]:
    said = path.read_text(encoding="utf-8")
    if path.suffix == ".json":
        return document(json.loads(said), figures=case.figures)
    return page(said, figures=case.figures, ragged=case.ragged)


def hold(name: str, found: dict[str, list[str]], *, write: bool) -> None:
    """Compare what was written with the record of that name, or write it anew."""
    path = RECORDS / f"{name}.txt"
    lines = [line for title, said in found.items() for line in (title, *said, "")]
    if write:
        RECORDS.mkdir(exist_ok=True)
        path.write_text("\n".join(lines), encoding="utf-8")
    told = differences(path.read_text(encoding="utf-8").split("\n"), lines)
    assert not told, f"`gpucheck` writes something else now (`--write-record` accepts it):\n{told}"
