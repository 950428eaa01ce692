"""Wrong usage: reword Typer's errors, and propose the first command line that is valid. Loaded after an error."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from pkgutil import resolve_name
from typing import Any

from typer.exceptions import TyperException

from gpucheck import config, naming
from gpucheck.cli import commands
from gpucheck.cli.commands import parameters
from gpucheck.cli.parse import HelpCommand, UnknownWords, name_of
from gpucheck.errors import UsageError
from gpucheck.machine import choose
from gpucheck.options import read

CommandLine = list[str]

# This many letters may stand for a longer name, if only one name begins with them.
BEGINNING = 3


def _by_word(lines: str) -> dict[str, str]:
    """Return the command line for each word of a table: a line, a colon, and the words that people use instead."""
    rows = [row.split(": ") for row in lines.strip().splitlines()]
    return {word: line.strip() for line, words in rows for word in words.split()}


WORDS = _by_word("""
    status: gpu health overview state stat available
    devices: gpus info list ls show device query smi nvidia-smi rocm-smi amd-smi temp power topo
    devices --watch 2s: top watch monitor live htop nvtop nvitop gpustat dmon
    devices --processes: ps process processes procs pmon who
    smoke: test tests check verify validate selftest self-test sanity
    doctor: diagnose diag diagnostics diagnosis debug fix repair why cuda torch pytorch driver drivers nvcc
    doctor --bundle report.zip: env environment collect-env collect_env bug bundle
    stress: burn burn-in burnin gpu-burn gpu_burn torture load soak
    memory: mem vram ram usage
    bench all: benchmark benchmarks speed speedtest perf performance
    bench transfer: copy copies pcie h2d d2h bandwidthtest
    bench matmul: gemm flops tflops matrix
    bench collective: nccl allreduce all-reduce nvlink p2p
    run train.py: profile profiler trace exec python python3
    run --dry cuda train.py: dry dry-run dryrun simulate
    find-batch-size: batch batchsize batch-size max-batch find-batch bs
    model net.py:make: summary summarize torchsummary params
    explain oom.cuda: error errors oom decode
    compare old.json new.json: diff cmp regression
    report result.json --output page.html: html page
    fleet check: cluster nodes node slurm
    status --json: json
    --version: version ver
    --help: commands usage man docs options
    --show-completion: completion completions
""")
# Placeholders in these lines for the user's own arguments.
EXAMPLES = ("train.py", "net.py:make", "oom.cuda", "old.json", "new.json", "result.json")
# Words after `bench`.
OF_BENCH = _by_word("""
    bench bandwidth: memory mem vram hbm dram stream bw
    bench transfer: copy copies pcie h2d d2h host p2p
    bench matmul: gemm mm matrix flops tflops compute gpu-burn dtype
    bench collective: nccl allreduce all-reduce nvlink network collectives
    bench all: full gpu everything quick run cuda
    bench --help: list ls show
    bench all --device cpu: cpu
""")
# torchrun's and mpirun's own options, which no program takes.
LAUNCHERS = ("--nproc", "--nproc-per-node", "--nproc_per_node", "--np", "--world-size")
# Options of other tools, and gpucheck's equivalents, of which the first accepted is proposed. `{}` is the value.
_OPTIONS: tuple[tuple[str, ...], ...] = (
    ("--gpu --gpus --id -i -g --index --gpu-id --device-id", "--device {}"),
    ("--cuda --use-cuda", "--device cuda"),
    ("--cpu --no-cuda", "--device cpu"),
    ("--all -a", "--device all", "--verbose"),
    ("--time --seconds --timeout --limit -t --max-time", "--duration {}", "--time-budget {}", "--within {}"),
    ("-d", "--duration {}", "--device {}"),
    ("--loop -l --interval --refresh -n --every", "--watch {}", "--watch 2s"),
    ("--repeat --repeats --iterations --iters --count", "--runs {}"),
    ("--format --output-format -f", "--{}", "--output result.{}", "--json"),
    *((f"--{suffix}", f"--output result.{suffix}") for suffix in ("html", "xml", "md", "svg", "prom", "sarif")),
    ("--junit --junit-xml --junitxml", "--output result.xml"),
    ("--file --out --save --log --output-file --filename", "--output {}"),
    ("-j --to-json --query-gpu --query --csv", "--json"),
    ("--silent -s", "--quiet"),
    ("--ps --procs -p", "--processes"),
    ("--fp16 --half --amp-fp16", "--dtype float16", "--amp float16"),
    ("--bf16", "--dtype bfloat16", "--amp bfloat16"),
    ("--precision --type", "--dtype {}", "--amp {}"),
    ("--bs --batch", "--max-batch-size {}", "--batch-size {}"),
    (" ".join(LAUNCHERS), "--ranks {}"),
    ("--memory --vram --max-memory --mem", "--memory-limit {}", "--fill {}"),
    ("--shape --input-size --input-shape", "--input x:{}:float32"),
    ("--tests --checks --filter -k", "--only {}"),
    ("--exclude --ignore", "--skip {}"),
    ("--interpreter --venv", "--python {}"),
    ("--fail-on-warning --warnings-as-errors", "--strict"),
)
OPTIONS = {word: forms for words, *forms in _OPTIONS for word in words.split()}
# Options to leave out, because the command works without them.
LEFT_OUT = ["--fix", "--no-color", "--color", "--yes", "-y", "--force", "--run", "--start", "--device"]
# Options that are tried first for a value without an option.
_LIKELIEST = ("--size", "--duration", "--watch", "--time-budget")
OUTPUTS = (".json", ".html", ".xml", ".md", ".prom", ".sarif", ".svg")

# Other spellings of a value, and the form that gpucheck's options take.
_SPELLINGS: tuple[tuple[str, str], ...] = (
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
    """Yield other forms of a value for gpucheck's options, such as `cuda:0` for `gpu0` and `float16` for `fp16`."""
    for pattern, form in _SPELLINGS:
        if match := re.fullmatch(pattern, value, re.ASCII | re.IGNORECASE):
            yield form.format(*match.groups())
    if value.lower() in naming.DTYPES:
        yield naming.DTYPES[value.lower()]


def split(line: Sequence[str]) -> tuple[str, CommandLine]:
    """Return the command at the beginning of a line, or an empty string, and the remaining arguments."""
    for words in (2, 1):
        if " ".join(line[:words]) in commands.names():
            return " ".join(line[:words]), list(line[words:])
    return "", list(line)


def is_taken(line: Sequence[str]) -> bool:
    """Return whether a command accepts this line. The command is not run."""
    command, arguments = split(line)
    row = commands.find(command)
    if line[-1:] == ["--help"]:
        return commands.find(" ".join(line[:-1])) is not None
    if not command or row is None:
        return list(line) in (["--version"], ["--show-completion"])
    if {"--help", "-h"} & {*arguments}:
        return False
    try:
        typed: dict[str, Any] = HelpCommand(row).make_context(command, list(arguments)).params
        for option in parameters(command):
            if option.repeat:
                typed[option.key] = list(typed[option.key] or ())
        if not all(path.lower().endswith(OUTPUTS) for path in typed.get("output") or ()):
            return False
        if device := typed.get("device"):
            choose.check(device)
            if row.one_device and device == "all":
                return False
        for kind in filter(None, (row.options, row.extra_options)):
            chosen: Any = read(resolve_name(kind), typed)
            if hasattr(chosen, "names"):  # selects by --only and --skip, and checks them
                chosen.names()
    except (UsageError, TyperException):
        return False
    return True


def first_taken(lines: Iterator[CommandLine], given: Sequence[str]) -> str:
    """Return the first accepted line in shell syntax, or an empty string."""
    taken = (line for line in lines if line != list(given) and is_taken(line))
    return next((shlex.join([naming.PROGRAM, *line]) for line in taken), "")


# -- Typer's errors ----------------------------------------------------------------------------------------------------

# An example value of each kind, by its name on help pages.
_VALUES = {"TIME": "30s", "FILE": "result.json", "DEVICE": "cuda:0", "N": "1", "PERCENT": "5%", "SIZE": "64MiB"}

# The advice on an option that a command does not have, for cases without a corrected line.
_TIPS = {
    **{("judge", row.option): "set thresholds in a file and give it with --config FILE" for row in config.THRESHOLDS},
    ("run", "--devices"): "give the number of GPUs with the device, as in --dry cuda:80GiBx2",
}


def _of_typer(error: TyperException, given: Sequence[str]) -> UsageError:
    """Return Typer's error reworded, with a line to type instead of `given`."""
    context = getattr(error, "ctx", None)
    # Typer does not name the command if an option lacks a value or takes none.
    command = split(given)[0] if context is None else name_of(context)
    own, row = parameters(command or "status"), commands.find(command)
    what, tip = " ".join(error.format_message().split()), ""
    missing: Any = getattr(error, "param", None)
    lines: Iterator[CommandLine] = iter(())
    if isinstance(error, UnknownWords):
        is_group = row is None or bool(row.commands)
        lines = (_for_command if is_group else _for_argument)(command, error.words, given)
    elif (name := getattr(error, "option_name", None)) is not None:
        if hasattr(error, "possibilities"):  # only an unknown option has this attribute
            what, lines = f"unknown option {name!r}", _for_option(command, name, given)
            tip = _TIPS.get((command, name), "")
        elif taker := next((known for known in own if name in known.names and not known.is_flag), None):
            value = "report.zip" if name == "--bundle" else (*taker.choices, _VALUES.get(taker.metavar, ""))[0]
            what, lines = f"option {name!r} needs a value", iter([[*given, value]] if value else [])
        else:
            what = f"option {name!r} takes no value"
            lines = iter([[name if word.startswith(f"{name}=") else word for word in given]])
    elif getattr(missing, "required", False):
        what = f"missing argument {missing.metavar}"
        if taker := next((known for known in own if not known.is_flag and {*given[-2:-1]} & {*known.names}), None):
            tip = f"{given[-1]!r} is the value of {taker.name} {taker.metavar}; put {missing.metavar} after it"
        examples = map(shlex.split, row.examples if row is not None else ())
        lines = (words[1:] for words in examples if words[0] == naming.PROGRAM)
    wrong = UsageError(what, "", tip or first_taken(lines, given))
    wrong.command = command
    return wrong


def near(name: str, known: Sequence[str]) -> str | None:
    """Return the known name that was probably meant, by similarity or as the only one with this beginning."""
    begun = [each for each in known if each.startswith(name)] if len(name) >= BEGINNING else []
    # `list` is 0.75 similar to `lint`, and `monitor` 0.62 to `doctor`.
    return begun[0] if len(begun) == 1 else naming.slip(name, known, 0.8)


def _for_command(group: str, name: str, given: Sequence[str]) -> Iterator[CommandLine]:
    """Yield lines for a word that is another name for a command, a typing error, or a value without a command."""
    place = given.index(name) if name in given else 0
    rest, word = list(given[place + 1 :]), name.lower().strip("-/")
    for words in {"": (WORDS,), "bench": (OF_BENCH, WORDS)}.get(group, ()):
        if word in words:
            line = words[word].split()
            if not word.endswith("-smi"):  # options of those tools have other meanings
                yield [*(part for part in line if not rest or part not in EXAMPLES), *rest]
            if len(rest) == 1 and re.search(r"\d", rest[0]):
                yield [*line[:-1], rest[0]]
            yield line
            yield [*split(line)[0].split(), "--help"]
    if (row := word.replace("-", " ", 1)) in commands.names():
        yield from ([*row.split(), *rest], row.split())
    others = [row for row in commands.names() if " " in row and (not group or row.startswith(f"{group} "))]
    meant = [row for row in others if row.endswith(f" {word}")] + (
        [word] if group and word in commands.commands_in() else []
    )
    if likely := near(word, list(commands.commands_in(group))):
        meant.append(f"{group} {likely}".strip())
    elif likely := near(word, [row.split()[1] for row in others]):
        meant += [row for row in others if row.endswith(f" {likely}")]
    for row in meant:
        yield from ([*row.split(), *rest], row.split(), [*row.split(), "--help"])
    if not group:
        yield from _of_value([], [name, *rest])
        if " " in name:
            yield ["explain", name]


def _of_value(base: CommandLine, extra: CommandLine) -> Iterator[CommandLine]:
    """Yield lines for a value in the wrong place. `base` is the line without it, empty if there is no command."""
    value, suffix = extra[0], os.path.splitext(extra[0])[1].lower()
    if suffix == ".py":
        yield ["run", *extra]
    elif suffix in OUTPUTS:
        if suffix == ".json" and all(map(os.path.isfile, extra)):
            yield ["report", *extra, "--output", "page.html"]
        if not os.path.exists(value) and not any(option.positional for option in parameters(split(base)[0])):
            yield [*base, "--output", value]  # must not overwrite a file, nor turn a result into a page
    elif not base and (os.path.isfile(value) or value in resolve_name("gpucheck.explain.command:entries")()):
        yield ["explain", value]
    for device in (value, *spellings(value)) if not value.isdigit() else ():
        yield [*(base or ["devices"]), "--device", device]
    if not base or value.startswith("-"):
        return
    yield [*base, f"--{value}", *extra[1:]]
    for option in sorted(parameters(split(base)[0]), key=lambda option: option.name not in _LIKELIEST):
        if not option.positional and (option.parse is not None or option.choices):
            for text in (value, *spellings(value)):
                yield [*base, *(word for each in extra for word in (option.name, text if each == value else each))]
    for line in ([value], [base[0], value]):
        if " ".join(line) in commands.names():
            yield line
    yield [*base, "--only", ",".join(extra)]
    if value in WORDS and not WORDS[value].startswith("-"):
        yield WORDS[value].split() if WORDS[value].split()[0] != base[0] else base


def _for_argument(command: str, name: str, given: Sequence[str]) -> Iterator[CommandLine]:
    """Yield lines for arguments that the command does not take."""
    line, words, own = list(given), name.split(" "), len(command.split())
    extra = [word for word in line[own:] if word in words or word == name] or [name]
    base = [word for place, word in enumerate(line) if place < own or word not in extra]
    if extra[0] == "help":
        yield [*command.split(), "--help"]
    yield from _of_value(base, extra)
    meant = near(extra[0], [option.name.strip("-") for option in parameters(command) if option.is_flag])
    if meant and "." not in extra[0]:
        yield [*base, f"--{meant}"]


def _for_option(command: str, name: str, given: Sequence[str]) -> Iterator[CommandLine]:
    """Yield lines with an equivalent or similar option, with the option in another place, or without it."""
    line = list(given)
    # Typer names only `-d` of `-device`, and gives no value.
    place = next((at for at, word in enumerate(line) if word.partition("=")[0] == name or word.startswith(name)), None)
    if place is None:
        return
    word, equals, value = line[place].partition("=")
    before, after = line[:place], line[place + 1 :]
    follows = [] if equals else [part for part in after[:1] if not part.startswith("-")]
    value, rest = value or "".join(follows), after[len(follows) :]
    if likely := near(word, ["--version", "--help"]):
        yield [likely]
    if not command:
        for value_of, behind in ((follows, rest), ([], after)):
            # Move the option behind the command that follows; without a command it is tried with `devices`.
            target, arguments = split(behind)
            moved = [*(target or "devices").split(), *before, line[place], *value_of, *arguments]
            yield moved
            yield from _for_option(split(moved)[0], name, moved)
        return
    for text in OPTIONS.get(word, ()):
        if "{}" not in text:
            yield from ([*before, *text.split(), *after], [*before, *text.split(), *rest])
            yield [*command.split(), *text.split()]
        for each in (value, *spellings(value)) if value and "{}" in text else ():
            yield [*before, *text.format(each).split(), *rest]
    own = [option.name for option in parameters(command) if not option.positional]
    dashed = f"--{word.lstrip('-').replace('_', '-')}"
    # A first word alone is not an abbreviation: `--hang` does not stand for `--hang-after`.
    meant = dashed if dashed in own else near(dashed, [each for each in own if not each.startswith(f"{dashed}-")])
    if meant is not None:
        yield [*before, meant + equals + (value if equals else ""), *after]
        yield from ([*before, meant, each, *rest] for each in (value, *spellings(value)) if value)
        yield [*before, meant, *rest]
    if word in ("-V", "--version"):
        yield ["--version"]
    if command == "run" and word not in LAUNCHERS:  # the program may take this option
        yield [*before, *rest, line[place], *follows]
    if command == "status":  # people expect the options of `devices` here
        yield from (["devices", *before[1:], *line[place:]], WORDS.get(word.strip("-"), "").split())
    if word in LEFT_OUT:
        yield from ([*before, *after], [*before, *rest])


# -- our own errors ----------------------------------------------------------------------------------------------------

_MEANT = re.compile(r"did you mean '?(.+?)'?\?|write it like (\S+)")
_ADDED = re.compile(r"add ((?: ?--[a-z-]+(?: [^-\s]\S*)?)+)")
# The option and the value in an error text; an argument has no option.
_VALUE = re.compile(r"(?:(--[a-z-]+) )?.*?'([^']+)'")


def completed(error: TyperException | UsageError, given: Sequence[str]) -> UsageError:
    """Return the error with a line to type, which corrects a value or adds a missing option."""
    if isinstance(error, TyperException):
        return _of_typer(error, given)
    error.command = error.command or split(given)[0]
    wrong, meant = _VALUE.search(error.what), _MEANT.fullmatch(error.fix)
    if (added := _ADDED.fullmatch(error.fix)) and not re.search(r"\b[A-Z]{3,}\b", error.fix):
        error.fix = first_taken(iter([[*given, *added[1].split()]]), given) or error.fix
    elif wrong is not None and not commands.is_in(error.fix):
        may_be_device = wrong[1] == "--device"
        others = [text for text in spellings(wrong[2]) if wrong[1] and (may_be_device or not text.startswith("cuda:"))]
        proposed = [text for text in (meant and meant[1], *others, meant and meant[2]) if text]
        error.fix = first_taken(_by_value(wrong[1] or "", wrong[2], proposed, given), given) or error.fix
    return error


def _by_value(option: str, value: str, proposed: Sequence[str], given: Sequence[str]) -> Iterator[CommandLine]:
    """Yield the line with another value for the option, or for an option that takes the same kind of value."""
    shapes = ("--size", "--shape")
    for text in proposed:
        for name in (option, *(shapes if option in shapes else ())):
            line: CommandLine = []
            for word in given:
                head, equals, tail = word.rpartition("=")
                changed = ",".join(text if part == value else part for part in tail.split(","))
                if not equals:
                    line.append(name if word == option else changed)
                else:
                    line.append(f"{name}={changed}" if head == option else word)
            yield line
