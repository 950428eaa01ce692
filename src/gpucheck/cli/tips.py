"""Wrong usage: Typer's errors in our words, and what to type in place of a wrong line. Loaded once there is an error.

A line is proposed only where the command would take it: each is read as if it had been typed. Of several the first
that is taken is the tip; where none is, the usage names the help page.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator, Sequence
from pkgutil import resolve_name
from typing import Any

from typer.exceptions import TyperException

from gpucheck import naming
from gpucheck.cli import commands
from gpucheck.cli.commands import parameters
from gpucheck.cli.parse import HelpCommand, UnexpectedArguments, UnknownCommand, name_of
from gpucheck.errors import UsageError
from gpucheck.machine import choose
from gpucheck.options import read

Line = list[str]

# As like as this is a slip of the keyboard: `list` is 0.75 like `lint`, `monitor` 0.62 like `doctor`.
LIKENESS = 0.8
# So many letters of the beginning name what begins with them, if nothing else does.
BEGINNING = 3

# Words that people use for ours, with the line that they want.
_WATCH = "devices --watch 2s"
WORDS: dict[str, str] = {
    **dict.fromkeys(("gpu", "health", "overview", "state", "stat", "available"), "status"),
    **dict.fromkeys(("gpus", "info", "list", "ls", "show", "device", "cards", "query", "smi", "nvidia-smi"), "devices"),
    **dict.fromkeys(("rocm-smi", "amd-smi", "temp", "temperature", "power", "clocks", "topology", "topo"), "devices"),
    **dict.fromkeys(("top", "watch", "monitor", "live", "htop", "nvtop", "nvitop", "gpustat", "dmon"), _WATCH),
    **dict.fromkeys(("ps", "process", "processes", "procs", "pmon", "who"), "devices --processes"),
    **dict.fromkeys(("test", "tests", "check", "verify", "validate", "selftest", "self-test", "sanity"), "smoke"),
    **dict.fromkeys(("diagnose", "diag", "diagnostics", "diagnosis", "debug", "fix", "repair", "why"), "doctor"),
    **dict.fromkeys(("cuda", "torch", "pytorch", "driver", "drivers", "nvcc", "troubleshoot"), "doctor"),
    **dict.fromkeys(
        ("env", "environment", "collect-env", "collect_env", "bug", "bundle"), "doctor --bundle report.zip"
    ),
    **dict.fromkeys(("burn", "burn-in", "burnin", "gpu-burn", "gpu_burn", "torture", "load", "soak"), "stress"),
    **dict.fromkeys(("mem", "vram", "ram", "usage"), "memory"),
    **dict.fromkeys(("benchmark", "benchmarks", "speed", "speedtest", "perf", "performance"), "bench all"),
    **dict.fromkeys(("copy", "copies", "pcie", "h2d", "d2h", "bandwidthtest"), "bench transfer"),
    **dict.fromkeys(("gemm", "flops", "tflops", "matrix"), "bench matmul"),
    **dict.fromkeys(("nccl", "allreduce", "all-reduce", "nvlink", "p2p"), "bench collective"),
    **dict.fromkeys(("profile", "profiler", "trace", "exec", "python", "python3"), "run train.py"),
    **dict.fromkeys(("dry", "dry-run", "dryrun", "simulate"), "run --dry cuda train.py"),
    **dict.fromkeys(("batch", "batchsize", "batch-size", "max-batch", "find-batch", "bs"), "find-batch-size"),
    **dict.fromkeys(("summary", "summarize", "torchsummary", "params"), "model net.py:make"),
    **dict.fromkeys(("error", "errors", "oom", "decode"), "explain oom.cuda"),
    **dict.fromkeys(("diff", "cmp", "regression"), "compare old.json new.json"),
    **dict.fromkeys(("html", "page"), "report result.json --output page.html"),
    **dict.fromkeys(("cluster", "nodes", "node", "slurm"), "fleet check"),
    **dict.fromkeys(("json",), "status --json"),
    **dict.fromkeys(("version", "ver"), "--version"),
    **dict.fromkeys(("commands", "usage", "man", "docs", "options"), "--help"),
    **dict.fromkeys(("completion", "completions"), "--show-completion"),
}
# Arguments of these lines that stand for the user's own.
EXAMPLES = ("train.py", "net.py:make", "oom.cuda", "old.json", "new.json", "result.json")
# The same behind `bench`.
OF_BENCH: dict[str, str] = {
    **dict.fromkeys(("memory", "mem", "vram", "hbm", "dram", "stream", "bw"), "bandwidth"),
    **dict.fromkeys(("copy", "copies", "pcie", "h2d", "d2h", "host", "p2p"), "transfer"),
    **dict.fromkeys(("gemm", "mm", "matrix", "flops", "tflops", "compute", "gpu-burn", "dtype"), "matmul"),
    **dict.fromkeys(("nccl", "allreduce", "all-reduce", "nvlink", "network", "collectives"), "collective"),
    **dict.fromkeys(("full", "gpu", "everything", "quick", "run", "cuda"), "all"),
    **dict.fromkeys(("list", "ls", "show"), "--help"),
    **dict.fromkeys(("cpu",), "all --device cpu"),
}
# torchrun's and mpirun's own options, which no program takes.
LAUNCHERS = ("--nproc", "--nproc-per-node", "--nproc_per_node", "--np", "--world-size")
# Options of other tools; `{}` is the value that was given. The first that the command takes is proposed.
OPTIONS: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("--gpu", "--gpus", "--id", "-i", "-g", "--index", "--gpu-id", "--device-id"), ("--device {}",)),
    **dict.fromkeys(("--cuda", "--use-cuda"), ("--device cuda",)),
    **dict.fromkeys(("--cpu", "--no-cuda"), ("--device cpu",)),
    **dict.fromkeys(("--all", "-a"), ("--device all", "--verbose")),
    **dict.fromkeys(
        ("--time", "--seconds", "--timeout", "--limit", "-t", "--max-time"),
        ("--duration {}", "--time-budget {}", "--within {}", "--watch {}"),
    ),
    **dict.fromkeys(("-d",), ("--duration {}", "--device {}")),
    **dict.fromkeys(("--loop", "-l", "--interval", "--refresh", "-n", "--every"), ("--watch {}", "--watch 2s")),
    **dict.fromkeys(("--repeat", "--repeats", "--iterations", "--iters", "--count"), ("--runs {}",)),
    **dict.fromkeys(("--format", "--output-format", "-f"), ("--{}", "--output result.{}")),
    **dict.fromkeys(("--csv", "--html", "--xml", "--md", "--svg", "--prom", "--sarif"), ("--output result.{0}",)),
    **dict.fromkeys(("--junit", "--junit-xml", "--junitxml"), ("--output result.xml",)),
    **dict.fromkeys(("--file", "--out", "--save", "--log", "--output-file", "--filename"), ("--output {}",)),
    **dict.fromkeys(("-j", "--to-json"), ("--json",)),
    **dict.fromkeys(("--silent", "-s"), ("--quiet",)),
    **dict.fromkeys(("--ps", "--procs", "-p"), ("--processes",)),
    **dict.fromkeys(("--fp16", "--half", "--amp-fp16"), ("--dtype float16", "--amp float16")),
    **dict.fromkeys(("--bf16",), ("--dtype bfloat16", "--amp bfloat16")),
    **dict.fromkeys(("--precision", "--type"), ("--dtype {}", "--amp {}")),
    **dict.fromkeys(("--bs", "--batch"), ("--max-batch-size {}", "--batch-size {}")),
    **dict.fromkeys(LAUNCHERS, ("--ranks {}",)),
    **dict.fromkeys(("--query-gpu", "--query"), ("--json",)),
    **dict.fromkeys(("--memory", "--vram", "--max-memory", "--mem"), ("--memory-limit {}", "--fill {}")),
    **dict.fromkeys(("--shape", "--input-size", "--input-shape"), ("--input x:{}:float32",)),
    **dict.fromkeys(("--tests", "--checks", "--filter", "-k"), ("--only {}",)),
    **dict.fromkeys(("--exclude", "--ignore"), ("--skip {}",)),
    **dict.fromkeys(("--interpreter", "--venv"), ("--python {}",)),
    **dict.fromkeys(("--fail-on-warning", "--warnings-as-errors"), ("--strict",)),
}
# Left out: the line says or does without it what it asks for.
FLAGS = ("--fix", "--no-color", "--color", "--yes", "-y", "--force", "--run", "--start")
NEEDLESS = (*FLAGS, "--device", "--gpu")
# The arguments that a command does not take although people ask for it in this way.
NOTHING = ("list", "ls", "show", "info", "run", "start", "now", "all", "print", "get")

# Where a value belongs that stands alone, the likeliest first.
_AMOUNT = re.compile(r"[\d.]+ ?([kmgt]i?b?|%)", re.IGNORECASE)
SHAPES = ("--size", "--shape")
PLACES = (*SHAPES, "--duration", "--watch", "--within", "--fill", "--memory-limit", "--time-budget")
LATER = ("--runs", "--max-batch-size", "--batch-size", "--dry")
# So many GPUs a machine has at most: a larger number is no index.
MOST_DEVICES = 16
OUTPUTS = (".json", ".html", ".xml", ".md", ".csv", ".prom", ".sarif", ".svg")

# Other spellings of a value, with what our options take.
_SPELLINGS: tuple[tuple[str, str], ...] = (
    (r"(\d+)[kK]", "{k}"),
    (r"(\d+)x(\d+)", "{0}x{1}x{1}"),
    (r"([\d.]+) ?(?:s|secs?|seconds?)", "{0}s"),
    (r"([\d.]+) ?(?:m|mins?|minutes?)", "{0}m"),
    (r"([\d.]+) ?(?:h|hrs?|hours?)", "{0}h"),
    (r"(?:gpu|cuda|nvidia|device)? ?[:=]?(\d{1,2})", "cuda:{0}"),
    (r"(?:gpus?|nvidia|rocm|hip|amd)", "cuda"),
    (r"(?:metal|apple)", "mps"),
    (r"(\d+(?:x\d+)+)", "x:{0}:float32"),
    (r"(\w+:\d+(?:x\d+)*)", "{0}:float32"),
)


def spellings(value: str) -> Iterator[str]:
    """Return how else our options may have the value: `1k`, `1024x1024`, `60 seconds`, `gpu0`, `fp16`."""
    for pattern, form in _SPELLINGS:
        if match := re.fullmatch(pattern, value, re.ASCII | re.IGNORECASE):
            groups = match.groups()
            yield form.replace("{k}", str(int(groups[0]) * 1024)) if "{k}" in form else form.format(*groups)
    if value.lower() in naming.DTYPES:
        yield naming.DTYPES[value.lower()]


# -- what would be taken -----------------------------------------------------------------------------------------------


def split(line: Sequence[str]) -> tuple[str, Line]:
    """The command that a line begins with, empty for none, and its arguments."""
    for words in (2, 1):
        if " ".join(line[:words]) in commands.names():
            return " ".join(line[:words]), list(line[words:])
    return "", list(line)


def is_taken(line: Sequence[str]) -> bool:
    """Return whether a command reads this line without an error. Nothing of it is run."""
    command, arguments = split(line)
    if line[1:] == ["--help"] and commands.find(line[0]) is not None:
        return True
    if not command:
        return list(line) in (["--help"], ["--version"], ["--show-completion"])
    row = commands.find(command)
    assert row is not None
    if {"--help", "-h"} & {*arguments}:
        return len(arguments) == 1
    try:
        typed: dict[str, Any] = HelpCommand(row).make_context(command, list(arguments)).params
        for one in parameters(command):
            if one.repeat:
                typed[one.key] = list(typed[one.key] or ())
        if typed.get("device"):
            choose.check(typed["device"])
        for kind in filter(None, (row.options, row.beside)):
            chosen: Any = read(resolve_name(kind), typed)
            if hasattr(chosen, "names"):  # what --only and --skip leave
                chosen.names()
    except (UsageError, TyperException):
        return False
    return True


def typed(line: Sequence[str]) -> str:
    """The line as it is pasted into a shell."""
    return shlex.join([naming.PROGRAM, *line])


def first_taken(lines: Iterator[Line], given: Sequence[str]) -> str:
    """The first of the lines that is taken, as it is typed; empty for none."""
    return next((typed(line) for line in lines if line != list(given) and is_taken(line)), "")


# -- Typer's errors ----------------------------------------------------------------------------------------------------

# Proposes lines in place of one that is wrong: of a command, the name that is wrong, and what was given.
Proposing = Callable[[str, str, Sequence[str]], Iterator[Line]]


def _of_typer(error: TyperException, given: Sequence[str]) -> UsageError:
    """Return Typer's error in our words, with a line to type in place of what was `given`."""
    context = getattr(error, "ctx", None)
    # Typer names no command where an option's value is missing or too many: it is the one that `given` begins with.
    command = split(given)[0] if context is None else name_of(context)
    name, what = "", " ".join(error.format_message().split())
    proposing: Proposing | None = None
    if isinstance(error, UnknownCommand):
        name, proposing = error.words, _for_argument if isinstance(error, UnexpectedArguments) else _for_command
    elif (option := getattr(error, "option_name", None)) is not None:
        name = option
        if hasattr(error, "possibilities"):  # only an option that is not there has some
            what, proposing = f"unknown option {name!r}", _for_option
        elif any(name in known.names and not known.is_flag for known in parameters(command)):
            what, proposing = f"option {name!r} needs a value", _for_nothing
        else:
            what, proposing = f"option {name!r} takes no value", _for_value
    elif (missing := getattr(error, "param", None)) is not None:
        name = missing.metavar
        what, proposing = f"missing argument {name}", _example
    tip = _in_words(command, name, proposing, given)
    if not tip and proposing is not None:
        tip = first_taken(proposing(command, name, given), given)
    wrong = UsageError(what, "", tip)
    wrong.command = command
    return wrong


def _in_words(command: str, name: str, proposing: Proposing | None, given: Sequence[str]) -> str:
    """Advice where no line can be proposed that would do what was meant; mostly empty."""
    from gpucheck.config import THRESHOLDS

    own = parameters(command or "status")
    if proposing is _for_option and command == "judge" and any(name == one.option for one in THRESHOLDS):
        return "set thresholds in a file and give it with --config FILE"
    if proposing is _example:
        taker = next((one for one in own if given[-2:-1] in ([one.name], [one.short]) and not one.is_flag), None)
        return f"{given[-1]!r} is the value of {taker.name} {taker.metavar}; put {name} after it" if taker else ""
    return ""


def near(name: str, known: Sequence[str]) -> str | None:
    """The known name that was meant: a slip of the keyboard, or the beginning of one alone."""
    begun = [one for one in known if one.startswith(name)] if len(name) >= BEGINNING else []
    return begun[0] if len(begun) == 1 else naming.slip(name, known, LIKENESS)


def _for_command(group: str, name: str, given: Sequence[str]) -> Iterator[Line]:
    """Lines in place of one whose command is unknown: what people call ours, a slip, a value without its command."""
    place = given.index(name) if name in given else 0
    rest, word = list(given[place + 1 :]), name.lower().strip("-/")
    known = commands.below(group)
    for words in ((OF_BENCH, WORDS) if group == "bench" else (WORDS,)) if group != "fleet" else ():
        if word in words:
            line = [*(group.split() if words is OF_BENCH else []), *words[word].split()]
            if not word.endswith("-smi"):  # whose options have other meanings
                yield [*(one for one in line if not rest or one not in EXAMPLES), *rest]
            if len(rest) == 1 and re.search(r"\d", rest[0]):
                yield [*line[:-1], rest[0]]
                yield from _of_value(line, rest)
            yield line
            yield [*split(line)[0].split(), "--help"]
    others = [one for one in commands.names() if " " in one and (not group or one.startswith(f"{group} "))]
    meant = [one for one in others if one.endswith(f" {word}")] + ([word] if group and word in commands.below() else [])
    if likely := near(word, list(known)):
        meant.append(f"{group} {likely}".strip())
    elif likely := near(word, [one.split()[1] for one in others]):
        meant += [one for one in others if one.endswith(f" {likely}")]
    for one in meant:
        yield from ([*one.split(), *rest], one.split())
        yield [*one.split(), "--help"]
    if not group:
        yield from _of_value([], [name, *rest])
        if " " in name:
            yield ["explain", name]


def _of_value(base: Line, extra: Line) -> Iterator[Line]:
    """Lines for values that stand where none is taken; `base` is the line without them, empty without a command."""
    value, suffix = extra[0], os.path.splitext(extra[0])[1].lower()
    if suffix == ".py":
        yield ["run", *extra]
    elif (
        not base
        and suffix not in OUTPUTS
        and (os.path.isfile(value) or value in resolve_name("gpucheck.explain.command:entries")())
    ):
        yield ["explain", value]
    if suffix in OUTPUTS:
        if suffix == ".json" and all(map(os.path.isfile, extra)):
            yield ["report", *extra, "--output", "page.html"]
        if not os.path.exists(value) and not any(one.positional for one in parameters(split(base)[0])):
            yield [*base, "--output", value]  # nothing that is there is overwritten, no result taken for a page
    for device in (value, *spellings(value)) if not value.isdigit() else ():
        yield [*base, "--device", device]
        if base[:1] == ["doctor"] and _is_device(device):  # it looks at every device
            yield base
        if _is_device(device):
            yield ["devices", "--device", device]
    if not base:
        return
    if extra[0] in NOTHING and len(extra) == 1:
        yield base
    if value.startswith("-"):
        return
    yield [*base, f"--{value}", *extra[1:]]
    values = [value, *spellings(value)]
    for text in values:
        yield from ([*base, "--dtype", text], [*base, "--amp", text])
    for place in (*PLACES[:3], "--device", *PLACES[3:], *LATER):
        for text in values:
            if place in ("--fill", "--memory-limit") and not _AMOUNT.fullmatch(text):
                continue
            if place != "--device":
                yield [*base, *(word for one in extra for word in (place, text if one == value else one))]
            elif not value.isdigit() or int(value) < MOST_DEVICES:
                yield from ([*base, place, text],) if _is_device(text) else ()
    if value in commands.names():
        yield extra
    if f"{base[0]} {value}" in commands.names():
        yield [base[0], value]
    yield [*base, "--only", ",".join(extra)]
    if value in WORDS:
        yield WORDS[value].split()


def _is_device(text: str) -> bool:
    try:
        choose.check(text)
    except UsageError:
        return False
    return True


def _for_argument(command: str, name: str, given: Sequence[str]) -> Iterator[Line]:
    """Lines in place of one with arguments that the command does not take."""
    line, words = list(given), name.split(" ")
    extra = [one for one in line[len(command.split()) :] if one in words or one == name] or [name]
    base = [one for place, one in enumerate(line) if place < len(command.split()) or one not in extra]
    if extra[0] == "help":
        yield [*command.split(), "--help"]
    yield from _of_value(base, extra)
    row = commands.find(command)
    if row is not None and any(one.positional for one in parameters(command)):
        return
    meant = near(extra[0], [option.name.strip("-") for option in parameters(command) if option.is_flag])
    yield [*base, f"--{meant}" if meant else extra[0]]


def _for_option(command: str, name: str, given: Sequence[str]) -> Iterator[Line]:
    """Lines in place of one with an unknown option: with our name for it, with a near one, in its place, without it."""
    line = list(given)
    # typer names `-d` of `-device`, and no value.
    place = next((at for at, one in enumerate(line) if one.partition("=")[0] == name or one.startswith(name)), None)
    if place is None:
        return
    word, equals, value = line[place].partition("=")
    follows = [] if equals else [one for one in line[place + 1 : place + 2] if not one.startswith("-")]
    value = value or "".join(follows)
    before, after = line[:place], line[place + 1 :]
    if not command:
        for value_of, rest in ((follows, after[len(follows) :]), ([], after)):
            # Behind the command that follows; without one it is an option of `devices`.
            target, arguments = split(rest)
            moved = [*(target or "devices").split(), *before, line[place], *value_of, *arguments]
            yield moved
            yield from _for_option(split(moved)[0], name, moved)
        return
    own = {one.name: one for one in parameters(command)}
    for text in OPTIONS.get(word, ()):
        if word in ("--csv", "--html", "--xml", "--md", "--svg", "--prom", "--sarif"):
            yield [*before, *text.format(word[2:]).split(), *after]
        elif "{}" not in text:
            yield [*before, *text.split(), *after]
            yield [*before, *text.split(), *after[len(follows) :]]
            yield [*command.split(), *text.split()]
        for one in (value, *spellings(value)) if value and "{}" in text else ():
            yield [*before, *text.format(one).split(), *after[len(follows) :]]
    dashed = f"--{word.lstrip('-').replace('_', '-')}"
    meant = dashed if dashed in own or dashed == "--help" else None
    # The first word of a name is no beginning of it: `--device` is no `--device-arrival`.
    meant = meant or near(dashed, [one for one in own if one.startswith("--") and not one.startswith(f"{dashed}-")])
    if meant is not None:
        yield [*before, meant + equals + (value if equals else ""), *after]
        yield [*before, meant, *after[len(follows) :]]
        for one in spellings(value) if value else ():
            yield [*before, meant, one, *after[len(follows) :]]
    if word in ("-V", "--version"):
        yield ["--version"]
    if command == "run" and word not in LAUNCHERS:  # the program may know it
        yield [*before, *after[len(follows) :], line[place], *follows]
    if command in ("status", "devices") and word in ("-L", "--list", "--list-gpus"):
        yield ["devices"]
    if command in ("status", "devices"):  # of which people expect what others have
        for other in ("devices", "doctor", "smoke", "stress", "memory"):
            if any(word in (one.name, one.short) for one in parameters(other)):
                yield [other, *before[1:], *line[place:]]
    if word in NEEDLESS:
        yield [*before, *after] if word in FLAGS else [*before, *after[len(follows) :]]


def _for_value(command: str, name: str, given: Sequence[str]) -> Iterator[Line]:
    """Lines in place of one with a value for an option that takes none."""
    yield [name if one.startswith(f"{name}=") else one for one in given]


# A value of each kind, by what help calls it.
_VALUES = {"TIME": "30s", "FILE": "result.json", "DEVICE": "cuda:0", "N": "1", "PERCENT": "5%", "SIZE": "64MiB"}


def _for_nothing(command: str, name: str, given: Sequence[str]) -> Iterator[Line]:
    """Lines in place of one that ends in an option without its value."""
    for one in parameters(command or "status"):
        if name in (one.name, one.short) and (value := (*one.choices, _VALUES.get(one.metavar, ""))[0]):
            yield [*given, "report.zip" if name == "--bundle" else value]


def _example(command: str, name: str, given: Sequence[str]) -> Iterator[Line]:
    """The first example of the command, for a line that lacks an argument."""
    row = commands.find(command)
    for text in row.examples if row is not None else ():
        words = shlex.split(text)
        if words[0] == naming.PROGRAM:
            yield words[1:]


# -- our own errors ----------------------------------------------------------------------------------------------------

_MEANT = re.compile(r"did you mean '?(.+?)'?\?|write it like (\S+)")
_ADDED = re.compile(r"add ((?: ?--[a-z-]+(?: [^-\s]\S*)?)+)")
_SEVERAL = re.compile(r"name one: (.+)")
# The option and the value that an error is about; an argument has no option.
_VALUE = re.compile(r"(?:(--[a-z-]+) )?.*?'([^']+)'")


def completed(error: TyperException | UsageError, given: Sequence[str]) -> UsageError:
    """The error with a line to type: Typer's; or ours, where its value is another spelling of one that is taken, or an
    option lacks."""
    from gpucheck.work.spec import SEVERAL

    if isinstance(error, TyperException):
        return _of_typer(error, given)
    wrong, meant = _VALUE.search(error.what), _MEANT.fullmatch(error.fix)
    if error.finding == SEVERAL and (several := _SEVERAL.fullmatch(error.fix)):
        file = several[1].partition(".py:")[0] + ".py"
        lines = [[target if one == file else one for one in given] for target in several[1].split(", ")]
        error.fix = " or ".join(map(typed, lines))
    elif (added := _ADDED.fullmatch(error.fix)) and not re.search(r"\b[A-Z]{3,}\b", error.fix):
        error.fix = first_taken(iter([[*given, *added[1].split()]]), given) or error.fix
    elif wrong is not None and not commands.is_in(error.fix):
        others = [*spellings(wrong[2])] if wrong[1] else []
        proposed = [one for one in (meant and meant[1], *others, meant and meant[2]) if one]
        error.fix = first_taken(_by_value(wrong[1] or "", wrong[2], proposed, given), given) or error.fix
    return error


def _by_value(option: str, value: str, proposed: Sequence[str], given: Sequence[str]) -> Iterator[Line]:
    """The line with another value for the option, or for one of those that take such values."""
    for text in proposed:
        for name in (option, *(SHAPES if option in SHAPES else ())):
            line: Line = []
            for one in given:
                head, equals, tail = one.rpartition("=")
                changed = ",".join(text if part == value else part for part in tail.split(","))
                if equals:
                    line.append(f"{name}={changed}" if head == option else one)
                else:
                    line.append(name if one == option else changed)
            yield line
