"""One declaration of an option, and everything that is made from it."""

from __future__ import annotations

import re
from dataclasses import dataclass, fields
from typing import Any

import pytest
from shown import sentence
from taken import PARAMETERS

from gpucheck import units
from gpucheck.bench import crossover, dtypes, transfer
from gpucheck.bench.benchmarks import ALL, BENCHMARKS
from gpucheck.bench.crossover.work import OPERATIONS
from gpucheck.bench.matmul.product import KINDS
from gpucheck.bench.transfer import work as transfer_work
from gpucheck.cli import app as app_module
from gpucheck.errors import UsageError
from gpucheck.options import COMMON, Option, declared, grouped, option, read

EVERY = [(command, one) for command, rows in PARAMETERS.items() for one in rows]


@dataclass(frozen=True, slots=True)
class Asked:
    sizes: tuple[int, ...] = option(
        "Sizes.",
        name="--size",
        metavar="SIZE",
        parse=units.parse_size,
        repeat=True,
        fold=lambda sizes: tuple(sorted(sizes)),
    )
    way: str = option("The way.", "both", choices=("both", "h2d"))
    cold: bool = option("Cold.", False)
    files: tuple[str, ...] = option("Files.", repeat=True, commas=False)
    inside: int = 3

    def check(self) -> None:
        if self.cold and self.sizes:
            raise UsageError("--cold and --size exclude each other")


def test_what_is_declared_is_read_and_what_is_not_keeps_its_default() -> None:
    assert read(Asked, {}) == Asked()
    assert [one.name for one in declared(Asked)] == ["--size", "--way", "--cold", "--files"]
    given: dict[str, Any] = {"size": ["1MiB,64KiB", "3"], "way": "h2d", "cold": False, "files": ["a,b"]}
    assert read(Asked, given) == Asked((3, 64 * 2**10, 2**20), "h2d", files=("a,b",))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"size": [""]}, "--size is empty; an unset variable gives an empty value"),
        ({"size": ["1MiB,,2MiB"]}, "--size '1MiB,,2MiB' has a comma too many; give a value on each side of a comma"),
        ({"size": ["4KiB,"]}, "--size '4KiB,' has a comma too many"),
        ({"size": ["1MiB", " "]}, "--size is empty"),
        ({"way": ""}, "--way is empty"),
        ({"way": "h2dd"}, "--way 'h2dd' is unknown; did you mean h2d?"),
        ({"cold": True, "size": ["1"]}, "--cold and --size exclude each other"),
    ],
)
def test_what_cannot_be_is_told_by_the_options_name(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as raised:
        read(Asked, given)
    assert str(raised.value).startswith(words)


@pytest.mark.parametrize(("command", "one"), EVERY, ids=[f"{command} {one.name}" for command, one in EVERY])
def test_no_option_of_any_command_may_be_empty(command: str, one: Option, capsys: pytest.CaptureFixture[str]) -> None:
    """`--min-tflops "$LIMIT"` with LIMIT unset must not switch the gate off."""
    if one.is_flag:
        return
    required = [other.name for other in PARAMETERS[command] if other.required]
    name = one.name
    if not one.positional:
        arguments = [one.name, "", *required]
    elif one.required:  # all that must be given are empty: the first of them is told
        arguments, name = [""] * len(required), required[0]
    else:
        arguments = [""]
    assert app_module.main([*command.split(), *arguments]) == 2
    captured = capsys.readouterr()
    assert captured.out == "" and sentence(captured.err).startswith(f"{name} is empty: ")


def test_names_are_unique_and_told_in_the_same_words() -> None:
    for command, rows in PARAMETERS.items():
        names = [one.name for one in rows]
        assert len(names) == len(set(names)), command
    helps = {(one.name, one.help) for _, one in EVERY if one.name in ("--json", "--output", "--runs", "--baseline")}
    assert len(helps) == 4


def test_shared_options_have_one_order_behind_a_commands_own() -> None:
    shared = [
        *("--only", "--skip", "--list", "--time-budget", "--runs"),
        *("--device", "--verbose", "--json", "--output", "--strict", "--quiet", "--config", "--debug"),
    ]
    for command, rows in PARAMETERS.items():
        names = [one.name for one in rows]
        assert [name for name in names if name in shared] == [name for name in shared if name in names], command
        assert names[names.index("--verbose") :] == shared[shared.index("--verbose") :], command
        groups = [group for group, _ in grouped(rows)]
        assert groups[-1] == COMMON
        assert [one for _, members in grouped(rows) for one in members] == list(rows)


@pytest.mark.parametrize(("command", "one"), EVERY, ids=[f"{command} {one.name}" for command, one in EVERY])
def test_a_number_has_its_range_in_help_and_in_the_error(command: str, one: Option) -> None:
    numeric = one.metavar in ("N", "SIZE", "TIME", "PERCENT", "RANGE", "MxNxK", "LOW:HIGH:STEP", "LIMIT")
    assert numeric == bool(one.valid), f"{command} {one.name}"
    if not numeric:
        return
    assert re.search(rf"\[{re.escape(one.valid)}(; default: .+)?\]$", one.text)
    if one.parse is not None:
        with pytest.raises(UsageError) as raised:
            one.parse("zero", one.name)
        assert str(raised.value).startswith(f"{one.name} must ") and "'zero'" in str(raised.value)


def test_what_is_known_before_torch_is_what_torch_then_brings() -> None:
    worked = [part.id for part in transfer_work.PARTS] + [transfer_work.PAIRS]
    assert sorted(transfer.PARTS) == sorted(worked)
    assert tuple(one.id for one in OPERATIONS) == tuple(crossover.TITLES)
    assert set(dtypes.DTYPES) == set(KINDS)
    for one in BENCHMARKS:
        assert callable(one.command())
        assert "device" in {field.name for field in fields(one.options)}
    assert BENCHMARKS[-1].id == ALL
