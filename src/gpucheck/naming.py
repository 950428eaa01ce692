"""Find the name that a user meant, select rows by prefixes, and show the program's own name. No I/O."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from gpucheck.errors import UsageError

Item = TypeVar("Item")
Prefixes = Sequence[str]
# Names at least this similar are a typing error. difflib's default, 0.6, takes `nope` for `copies`.
SLIP = 0.7
# Other names of torch's dtypes. By similarity of spelling, `float` would mean float64.
DTYPES = {
    "float": "float32",
    "double": "float64",
    "half": "float16",
    "fp16": "float16",
    "fp32": "float32",
    "fp64": "float64",
    "bf16": "bfloat16",
}


def slip(name: str, known: Iterable[str], cutoff: float = SLIP) -> str | None:
    """Return the known name that was probably meant; None where no name is similar."""
    import difflib  # imported late: most commands get only known names

    # `hang` does not mean `hang-after`: a much longer name that continues with a dash is not a typing error.
    others = [other for other in known if 2 * len(name) >= len(other) or not other.startswith(f"{name}-")]
    return next(iter(difflib.get_close_matches(DTYPES.get(name, name), others, n=1, cutoff=cutoff)), None)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    meant = slip(name, known)
    return f"did you mean {meant}?" if meant else ""


def hint(name: str, known: Sequence[str]) -> str:
    """Return the advice for an unknown name: the name that was probably meant, or all names."""
    return did_you_mean(name, known) or f"give {', '.join(known)}"


def select(
    rows: Sequence[Item], name_of: Callable[[Item], str], only: Prefixes, skip: Prefixes, *, noun: str, nothing: str
) -> list[Item]:
    """Return the rows whose name begins with a prefix in `only` (all rows if it is empty) and with none in `skip`.
    Raises UsageError for a prefix that matches no `noun`, and with the reason `nothing` if no row is left."""
    names = [name_of(row) for row in rows]
    for option, prefixes in (("--only", only), ("--skip", skip)):
        for prefix in prefixes:
            if not prefix or not any(name.startswith(prefix) for name in names):
                # Propose the nearest name or group of names, else list all names.
                groups = [name.partition(".")[0] for name in names]
                listed = f"the {noun}s are {', '.join(names)}" if len(names) <= 8 else "--list shows all"
                fix = did_you_mean(prefix, dict.fromkeys([*names, *groups])) or listed
                raise UsageError(f"{option} {prefix!r} matches no {noun}", "", fix)
    chosen = [row for row in rows if not only or name_of(row).startswith(tuple(only))]
    if not (remaining := [row for row in chosen if not name_of(row).startswith(tuple(skip))]):
        raise UsageError(f"--only and --skip leave no {noun}", nothing, "skip fewer")
    return remaining


# Findings, pages and saved files write commands as `gpucheck …`. Only screens replace `gpucheck` with the text that the
# user has to type, which depends on how the program was started.
PROGRAM = "gpucheck"
# A launcher that the process cannot see sets this variable to the text to type, such as "python3 gpucheck.pyz".
STARTED_AS = "GPUCHECK_PROGRAM"
# A function that returns a text with each gpucheck command written as the user has to type it.
as_typed: Callable[[str], str] = str


def start_as(program: str, commands: Iterable[str]) -> None:
    """Make `as_typed` replace `gpucheck` by `program`: in backticks, and before an option, `…` or one of `commands`."""
    global as_typed
    follows = rf"--?[a-z]|\[OPTIONS\]|…|(?:help|{'|'.join(commands)})(?![\w-])"
    if program != PROGRAM:
        command = re.compile(rf"(?<![\w./-])(?<!-m )gpucheck(?= (?:{follows}))|(?<=`)gpucheck(?=`)")
        as_typed = functools.partial(command.sub, lambda _: program)
