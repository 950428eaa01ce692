"""Wrong usage: reword Typer's errors, and propose a valid command line. This module is loaded only after an error."""

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

# The least number of letters that may abbreviate a name.
BEGINNING = 3


def _by_word(lines: str) -> dict[str, str]:
    """Return the command line for each word of a table. A row has a command line, a colon, and words that mean it."""
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
# Placeholders for the user's arguments in these lines.
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
# The options of torchrun and mpirun, which a program does not take.
LAUNCHERS = ("--nproc", "--nproc-per-node", "--nproc_per_node", "--np", "--world-size")
# Options of other tools, then gpucheck's equivalents. The first accepted equivalent is proposed. `{}` is the value.
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
# Options that are dropped, because the command works without them.
LEFT_OUT = ["--fix", "--no-color", "--color", "--yes", "-y", "--force", "--run", "--start", "--device"]
# For a value without an option, these options are tried first.
_LIKELIEST = ("--size", "--duration", "--watch", "--time-budget")
OUTPUTS = (".json", ".html", ".xml", ".md", ".prom", ".sarif", ".svg")

# Other spellings of a value, each with the spelling of gpucheck's options.
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
    """Yield spellings of a value for gpucheck's options, such as `cuda:0` for `gpu0` and `float16` for `fp16`."""
    for pattern, form in _SPELLINGS:
        if match := re.fullmatch(pattern, value, re.ASCII | re.IGNORECASE):
            yield form.format(*match.groups())
    if value.lower() in naming.DTYPES:
        yield naming.DTYPES[value.lower()]


def split(line: Sequence[str]) -> tuple[str, CommandLine]:
    """Return the command at the beginning of a line, which may be empty, and the remaining arguments."""
    for words in (2, 1):
        if " ".join(line[:words]) in commands.names():
            return " ".join(line[:words]), list(line[words:])
    return "", list(line)


def is_accepted(line: Sequence[str]) -> bool:
    """Return whether a command accepts this line, without running the command."""
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
        if not all(path.lower().endswith(OUTPUTS) for path in typed.get("output") or ()):
            return False
        if device := typed.get("device"):
            choose.check(device)
            if row.one_device and device == "all":
                return False
        for path in filter(None, (row.options, row.extra_options)):
            options: Any = read(resolve_name(path), typed)
            if hasattr(options, "names"):  # this method checks --only and --skip
                options.names()
    except (UsageError, TyperException):
        return False
    return True


def first_accepted(lines: Iterator[CommandLine], typed: Sequence[str]) -> str:
    """Return the first accepted line other than `typed` in shell syntax, or an empty string."""
    accepted = (line for line in lines if line != list(typed) and is_accepted(line))
    return next((shlex.join([naming.PROGRAM, *line]) for line in accepted), "")


# An example value for each metavariable.
_VALUES = {"TIME": "30s", "FILE": "result.json", "DEVICE": "cuda:0", "N": "1", "PERCENT": "5%", "SIZE": "64MiB"}

# The tip for an option that a command does not have, if no valid line is found.
_TIPS = {
    **{("judge", row.option): "set thresholds in a file and give it with --config FILE" for row in config.THRESHOLDS},
    ("run", "--devices"): "give the number of GPUs with the device, as in --dry cuda:80GiBx2",
}


def _of_typer(error: TyperException, typed: Sequence[str]) -> UsageError:
    context = getattr(error, "ctx", None)
    # If an option lacks a value or takes none, Typer does not name the command.
    command = split(typed)[0] if context is None else name_of(context)
    options, row = parameters(command or "status"), commands.find(command)
    what, tip = " ".join(error.format_message().split()), ""
    missing: Any = getattr(error, "param", None)
    lines: Iterator[CommandLine] = iter(())
    if isinstance(error, UnknownWords):
        is_group = row is None or bool(row.commands)
        lines = (_for_command if is_group else _for_argument)(command, error.words, typed)
    elif (name := getattr(error, "option_name", None)) is not None:
        if hasattr(error, "possibilities"):  # only an unknown option has this attribute
            what, lines = f"unknown option {name!r}", _for_option(command, name, typed)
            tip = _TIPS.get((command, name), "")
        elif option := next((option for option in options if name in option.names and not option.is_flag), None):
            value = "report.zip" if name == "--bundle" else (*option.choices, _VALUES.get(option.metavar, ""))[0]
            what, lines = f"option {name!r} needs a value", iter([[*typed, value]] if value else [])
        else:
            what = f"option {name!r} takes no value"
            lines = iter([[name if word.startswith(f"{name}=") else word for word in typed]])
    elif getattr(missing, "required", False):
        what = f"missing argument {missing.metavar}"
        before_last = {*typed[-2:-1]}
        if option := next((option for option in options if not option.is_flag and before_last & {*option.names}), None):
            tip = f"{typed[-1]!r} is the value of {option.name} {option.metavar}; put {missing.metavar} after it"
        examples = map(shlex.split, row.examples if row is not None else ())
        lines = (words[1:] for words in examples if words[0] == naming.PROGRAM)
    reworded = UsageError(what, "", tip or first_accepted(lines, typed))
    reworded.command = command
    return reworded


def near(name: str, known: Sequence[str]) -> str | None:
    """Return the similar known name, or the only known name that begins with `name`; else None."""
    longer = [other for other in known if other.startswith(name)] if len(name) >= BEGINNING else []
    # The similarity of `list` to `lint` is 0.75, and that of `monitor` to `doctor` is 0.62.
    return longer[0] if len(longer) == 1 else naming.slip(name, known, 0.8)


def _for_command(group: str, name: str, typed: Sequence[str]) -> Iterator[CommandLine]:
    """Yield lines for an unknown command: another name of a command, a typing error, or a value without a command."""
    index = typed.index(name) if name in typed else 0
    rest, word = list(typed[index + 1 :]), name.lower().strip("-/")
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
    in_groups = [row for row in commands.names() if " " in row and (not group or row.startswith(f"{group} "))]
    candidates = [row for row in in_groups if row.endswith(f" {word}")]
    candidates += [word] if group and word in commands.commands_in() else []
    if similar := near(word, list(commands.commands_in(group))):
        candidates.append(f"{group} {similar}".strip())
    elif similar := near(word, [row.split()[1] for row in in_groups]):
        candidates += [row for row in in_groups if row.endswith(f" {similar}")]
    for row in candidates:
        yield from ([*row.split(), *rest], row.split(), [*row.split(), "--help"])
    if not group:
        yield from _of_value([], [name, *rest])
        if " " in name:
            yield ["explain", name]


def _of_value(base: CommandLine, extra: CommandLine) -> Iterator[CommandLine]:
    """Yield lines for values in the wrong position. `base` is the line without the values `extra`; it may be empty."""
    value, suffix = extra[0], os.path.splitext(extra[0])[1].lower()
    if suffix == ".py":
        yield ["run", *extra]
    elif suffix in OUTPUTS:
        if suffix == ".json" and all(map(os.path.isfile, extra)):
            yield ["report", *extra, "--output", "page.html"]
        if not os.path.exists(value) and not any(option.positional for option in parameters(split(base)[0])):
            yield [*base, "--output", value]  # an existing file is never proposed as output
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
                texts = [text if word == value else word for word in extra]
                yield [*base, *(word for text in texts for word in (option.name, text))]
    for line in ([value], [base[0], value]):
        if " ".join(line) in commands.names():
            yield line
    yield [*base, "--only", ",".join(extra)]
    if value in WORDS and not WORDS[value].startswith("-"):
        yield WORDS[value].split() if WORDS[value].split()[0] != base[0] else base


def _for_argument(command: str, name: str, typed: Sequence[str]) -> Iterator[CommandLine]:
    words, start = name.split(" "), len(command.split())
    extra = [word for word in typed[start:] if word in words or word == name] or [name]
    base = [word for index, word in enumerate(typed) if index < start or word not in extra]
    if extra[0] == "help":
        yield [*command.split(), "--help"]
    yield from _of_value(base, extra)
    flag = near(extra[0], [option.name.strip("-") for option in parameters(command) if option.is_flag])
    if flag and "." not in extra[0]:
        yield [*base, f"--{flag}"]


def _for_option(command: str, name: str, typed: Sequence[str]) -> Iterator[CommandLine]:
    """Yield lines with an equivalent or similar option, with the option elsewhere in the line, or without it."""
    line = list(typed)
    # For `-device`, Typer names only `-d`, and gives no value.
    index = next((at for at, word in enumerate(line) if word.partition("=")[0] == name or word.startswith(name)), None)
    if index is None:
        return
    word, equals, value = line[index].partition("=")
    before, after = line[:index], line[index + 1 :]
    next_value = [] if equals else [argument for argument in after[:1] if not argument.startswith("-")]
    value, rest = value or "".join(next_value), after[len(next_value) :]
    if similar := near(word, ["--version", "--help"]):
        yield [similar]
    if not command:
        for option_value, following in ((next_value, rest), ([], after)):
            # Move the option behind the command. Without a command, try `devices`.
            target, arguments = split(following)
            moved = [*(target or "devices").split(), *before, line[index], *option_value, *arguments]
            yield moved
            yield from _for_option(split(moved)[0], name, moved)
        return
    for text in OPTIONS.get(word, ()):
        if "{}" not in text:
            yield from ([*before, *text.split(), *after], [*before, *text.split(), *rest])
            yield [*command.split(), *text.split()]
        for spelling in (value, *spellings(value)) if value and "{}" in text else ():
            yield [*before, *text.format(spelling).split(), *rest]
    names = [option.name for option in parameters(command) if not option.positional]
    dashed = f"--{word.lstrip('-').replace('_', '-')}"
    # A first word alone is not an abbreviation: `--hang` does not mean `--hang-after`.
    likely = dashed if dashed in names else near(dashed, [name for name in names if not name.startswith(f"{dashed}-")])
    if likely is not None:
        yield [*before, likely + equals + (value if equals else ""), *after]
        yield from ([*before, likely, spelling, *rest] for spelling in (value, *spellings(value)) if value)
        yield [*before, likely, *rest]
    if word in ("-V", "--version"):
        yield ["--version"]
    if command == "run" and word not in LAUNCHERS:  # the program may take this option
        yield [*before, *rest, line[index], *next_value]
    if command == "status":  # people expect the options of `devices` here
        yield from (["devices", *before[1:], *line[index:]], WORDS.get(word.strip("-"), "").split())
    if word in LEFT_OUT:
        yield from ([*before, *after], [*before, *rest])


_MEANT = re.compile(r"did you mean '?(.+?)'?\?|write it like (\S+)")
_ADDED = re.compile(r"add ((?: ?--[a-z-]+(?: [^-\s]\S*)?)+)")
# The option and the value in an error text. The value of an argument has no option.
_VALUE = re.compile(r"(?:(--[a-z-]+) )?.*?'([^']+)'")


def completed(error: TyperException | UsageError, typed: Sequence[str]) -> UsageError:
    """Return the error with a valid command line, which corrects a value or adds a missing option."""
    if isinstance(error, TyperException):
        return _of_typer(error, typed)
    error.command = error.command or split(typed)[0]
    wrong, suggested = _VALUE.search(error.what), _MEANT.fullmatch(error.fix)
    if (added := _ADDED.fullmatch(error.fix)) and not re.search(r"\b[A-Z]{3,}\b", error.fix):
        error.fix = first_accepted(iter([[*typed, *added[1].split()]]), typed) or error.fix
    elif wrong is not None and not commands.is_in(error.fix):
        is_device = wrong[1] == "--device"
        others = [text for text in spellings(wrong[2]) if wrong[1] and (is_device or not text.startswith("cuda:"))]
        proposed = [text for text in (suggested and suggested[1], *others, suggested and suggested[2]) if text]
        error.fix = first_accepted(_by_value(wrong[1] or "", wrong[2], proposed, typed), typed) or error.fix
    return error


def _by_value(option: str, value: str, proposed: Sequence[str], typed: Sequence[str]) -> Iterator[CommandLine]:
    """Yield the line with each proposed value for the option, or for an option with the same values."""
    shapes = ("--size", "--shape")
    for text in proposed:
        for name in (option, *(shapes if option in shapes else ())):
            line: CommandLine = []
            for word in typed:
                head, equals, tail = word.rpartition("=")
                changed = ",".join(text if item == value else item for item in tail.split(","))
                if not equals:
                    line.append(name if word == option else changed)
                else:
                    line.append(f"{name}={changed}" if head == option else word)
            yield line
