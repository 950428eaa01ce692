"""The layout of help pages and lists: text wrapped between words, at any width. Pure but for the terminal's width."""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Mapping, Sequence

from gpucheck.options import COMMON, Option, grouped

# Wider lines are hard to read. Below NARROW a description goes under its name, not beside it.
WIDEST, NARROW = 100, 60
# The widest name that a description stands beside.
_NAMES = 26


def width() -> int:
    """Return the width of a page: that of the terminal or COLUMNS, at most WIDEST; WIDEST in a pipe."""
    return min(shutil.get_terminal_size((WIDEST, 24)).columns, WIDEST)


def page(
    *,
    usage: str,
    about: str,
    parameters: Sequence[Option],
    extra: Sequence[tuple[str, str]],
    commands: Mapping[str, Sequence[tuple[str, str]]],
    examples: Sequence[str],
    exit_codes: Sequence[tuple[str, str]],
    foot: str,
    width: int,
) -> str:
    """A help page: usage, description, arguments and options by group, commands, exit codes, examples and a last line.

    `commands` are by their headings.
    """
    parts = [wrapped(usage, width, first="Usage: ", rest="    ")]
    for paragraph in about.strip().split("\n\n"):
        parts.append(wrapped(paragraph, width, first="  ", rest="  "))
    arguments = [(one.metavar, one.text) for one in parameters if one.positional]
    sections = [("Arguments", arguments)]
    sections += [
        (group, [(_label(one), one.text) for one in members])
        for group, members in grouped([one for one in parameters if not one.positional])
    ]
    if sections[-1][0] == COMMON:
        sections[-1][1].extend(extra)
    else:
        sections.append(("Options", list(extra)))
    column = _column(name for _, rows in sections for name, _ in rows)
    parts += [[f"{title}:", *definitions(rows, width, column)] for title, rows in sections if rows]
    column = _column(name for rows in commands.values() for name, _ in rows)
    parts += [[heading, *definitions(rows, width, column)] for heading, rows in commands.items()]
    if exit_codes:
        parts.append(["Exit codes:", *definitions(exit_codes, width, 3, beside=True)])
    if examples:
        parts.append(["Examples:", *(line for text in examples for line in command_lines(text, width))])
    parts += [[foot]] if foot else []
    return "\n\n".join("\n".join(lines) for lines in parts)


def _label(one: Option) -> str:
    names = f"{one.short}, {one.name}" if one.short else one.name
    return f"{names} {one.metavar}" if one.metavar else names


def summary(about: str) -> str:
    """The first sentence of a description, without its full stop."""
    first = " ".join(about.strip().split("\n\n")[0].split())
    return first.partition(". ")[0].rstrip(".")


def _column(names: Iterable[str]) -> int:
    """Return the width of the column of names: the longest of those that are not too long."""
    return max((len(name) for name in names if len(name) <= _NAMES), default=0)


def definitions(
    rows: Sequence[tuple[str, str]], width: int, column: int | None = None, *, beside: bool = False
) -> list[str]:
    """Names with their descriptions, beside each other where the width allows or `beside` asks, else below."""
    column = _column(name for name, _ in rows) if column is None else column
    lines: list[str] = []
    for name, text in rows:
        if beside or (width >= NARROW and len(name) <= column):
            lines += wrapped(text, width, first=f"  {name:<{column}}  ", rest=" " * (column + 4))
        else:
            lead = 6 if width < NARROW else column + 4
            lines += [f"  {name}", *wrapped(text, width, first=" " * lead, rest=" " * lead)]
    return lines


def wrapped(text: str | Sequence[str], width: int, *, first: str = "", rest: str = "", end: str = "") -> list[str]:
    """Text, or its words, in lines of at most `width`, broken between words only; `end` closes all but the last."""
    lines, line, words = [], first, 0
    for word in text.split() if isinstance(text, str) else text:
        if words and len(line) + 1 + len(word) + len(end) > width:
            lines.append(line + end)
            line, words = rest, 0
        line += f" {word}" if words else word
        words += 1
    return [*lines, line.rstrip() if not words else line]


def command_lines(text: str, width: int) -> list[str]:
    """A command to paste, continued with a backslash where it is longer than a line."""
    words: list[str] = []
    for word in text.split():
        # An option and its value stay together.
        if words and words[-1].startswith("--") and " " not in words[-1] and not word.startswith("-"):
            words[-1] += f" {word}"
        else:
            words.append(word)
    return wrapped(words, width, first="  ", rest="      ", end=" \\")


EXAMPLES: dict[str, tuple[str, str, str]] = {
    "gpucheck": (
        "gpucheck status",
        "gpucheck doctor",
        "gpucheck smoke --output smoke.xml",
    ),
    "gpucheck status": (
        "gpucheck status",
        "gpucheck --python ~/venv/bin/python",
        "gpucheck status --json --output status.json",
    ),
    "gpucheck devices": (
        "gpucheck devices",
        "gpucheck devices --processes --device cuda:1",
        "gpucheck devices --watch 2s",
    ),
    "gpucheck memory": (
        "gpucheck memory",
        "gpucheck memory --device cuda:1",
        "gpucheck memory --device cuda:1 --json",
    ),
    "gpucheck doctor": (
        "gpucheck doctor",
        "gpucheck doctor --python ~/venv/bin/python --skip load",
        "gpucheck doctor --require cuda --bundle report.zip",
    ),
    "gpucheck explain": (
        'gpucheck explain "CUDA out of memory"',
        "python train.py 2>&1 | gpucheck explain",
        "gpucheck explain oom.cuda",
    ),
    "gpucheck smoke": (
        "gpucheck smoke",
        "gpucheck smoke --require cuda --min-devices 8 --output smoke.xml",
        "gpucheck smoke --only training --skip training.autocast",
    ),
    "gpucheck stress": (
        "gpucheck stress --duration 10m",
        "gpucheck stress --only products,memory --dtype float16 --fill 80%",
        "gpucheck stress --device cuda:3 --duration 1h --output stress.json",
    ),
    "gpucheck model": (
        "gpucheck model net.py:make --input image:3x224x224:float32",
        "gpucheck model net.py:make --input ids:1024:int64:0..50256 --train",
        "gpucheck model transformer --depth 2",
    ),
    "gpucheck run": (
        "gpucheck run train.py --epochs 1",
        "gpucheck run --output run.json -m package.train",
        "gpucheck run --dry cuda:80GiB train.py",
    ),
    "gpucheck lint": (
        "gpucheck lint .",
        "gpucheck lint train.py --output lint.sarif",
        "git show HEAD:train.py | gpucheck lint -",
    ),
    "gpucheck find-batch-size": (
        "gpucheck find-batch-size models.py:make_gpt --input ids:1024:int64:0..50256",
        "gpucheck find-batch-size convnet --amp bfloat16 --effective-batch 512",
        "gpucheck find-batch-size transformer --estimate --memory-limit 80GiB --device cuda",
    ),
    "gpucheck compare": (
        "gpucheck compare old.json new.json",
        "gpucheck compare old.json new.json --fail-if-slower 5%",
        "gpucheck compare old.json new.json --output changes.md",
    ),
    "gpucheck judge": (
        "gpucheck judge result.json",
        "gpucheck judge run1.json run2.json run3.json",
        "gpucheck judge result.json --config strict.toml --output result.xml",
    ),
    "gpucheck report": (
        "gpucheck report result.json --output page.html",
        "gpucheck report before.json after.json --output page.html",
        "gpucheck report /shared/checks --output fleet.html",
    ),
    "gpucheck fleet": (
        "srun --ntasks-per-node=1 gpucheck fleet check --gather /shared/checks",
        "gpucheck fleet judge /shared/checks",
        "gpucheck fleet judge /shared/checks --expect node[001-064] --into lists",
    ),
    "gpucheck fleet check": (
        "gpucheck fleet check",
        "srun --ntasks-per-node=1 gpucheck fleet check --gather /shared/checks",
        "gpucheck fleet check --prolog --within 60s --quiet",
    ),
    "gpucheck fleet judge": (
        "gpucheck fleet judge /shared/checks",
        "gpucheck fleet judge /shared/checks --expect node[001-064] --wait 10m --into lists",
        "gpucheck fleet judge job.log --expect 64 --output fleet.json",
    ),
    "gpucheck schema": (
        "gpucheck schema > gpucheck.schema.json",
        "gpucheck schema | python -m json.tool",
        "gpucheck schema | less",
    ),
    "gpucheck bench": (
        "gpucheck bench all --output today.json",
        "gpucheck bench transfer --device cuda:0",
        "gpucheck bench matmul --dtype bfloat16 --search",
    ),
    "gpucheck bench transfer": (
        "gpucheck bench transfer",
        "gpucheck bench transfer --size 64MiB,1GiB --direction h2d --host-memory pinned",
        "gpucheck bench transfer --min-gbps 20 --output transfer.xml",
    ),
    "gpucheck bench bandwidth": (
        "gpucheck bench bandwidth",
        "gpucheck bench bandwidth --size 256MiB,4GiB --device all",
        "gpucheck bench bandwidth --min-percent-of-peak 80%",
    ),
    "gpucheck bench matmul": (
        "gpucheck bench matmul --dtype bfloat16,float16",
        "gpucheck bench matmul --search --range 1024:16384:1024 --time-budget 2m",
        "gpucheck bench matmul --dtype bfloat16 --sustain 60s --min-tflops 400",
    ),
    "gpucheck bench overlap": (
        "gpucheck bench overlap",
        "gpucheck bench overlap --size 256MiB --direction h2d",
        "gpucheck bench overlap --device cuda:1 --output overlap.json",
    ),
    "gpucheck bench crossover": (
        "gpucheck bench crossover",
        "gpucheck bench crossover --only training --time-budget 1m",
        "gpucheck bench crossover --device cuda:1 --output crossover.json",
    ),
    "gpucheck bench collective": (
        "gpucheck bench collective",
        "gpucheck bench collective --only all-reduce --size 8GiB --min-busbw 400",
        "torchrun --nproc-per-node 8 --no-python gpucheck bench collective --only all-reduce",
    ),
    "gpucheck bench all": (
        "gpucheck bench all --output today.json",
        "gpucheck bench all --only transfer,bandwidth --time-budget 30s",
        "gpucheck bench all --baseline yesterday.json --fail-if-slower 5%",
    ),
}
