"""The commands, a row each, and their options: what a row names is loaded once its command is chosen."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from gpucheck.options import COMMON, LIMITS, Option, declared, grouped, option

if TYPE_CHECKING:  # an overview needs no settings
    from gpucheck.config import Settings


@dataclass(frozen=True, slots=True)
class Command:
    """A command or a group of commands, by its whole name. What is written `module:name` is loaded once it is chosen.

    `about` is its description, whose first sentence is its line in the overview, below `heading`. A `function` of
    gpucheck.cli takes `(common, options)` and returns the exit status; any other takes `(options, emit)` and is the
    work of a session. `options` is a dataclass, as is what stands `beside` it and goes to the function too; a command
    that has none takes nothing. `device` is the default of `--device`, None for a command that takes none; with
    `one_device` it does not take `all`. What never `loads_torch` works in a folder that was removed too. `other_python`
    gives it `--python`: another Python runs it. A group has only the rows of its `commands`.
    """

    name: str
    about: str
    function: str = ""
    options: str = ""
    device: str | None = "auto"
    one_device: bool = False
    loads_torch: bool = True
    other_python: bool = False
    beside: str = ""
    heading: str = "Commands:"
    examples: tuple[str, ...] = ()
    commands: str = ""


PROGRAM = Command(
    "",
    "Diagnose the GPUs that PyTorch uses: what is there, what is wrong, how fast, how much fits.",
    commands="gpucheck.cli.commands:COMMANDS",
    examples=(
        "gpucheck status",
        "gpucheck doctor",
        "gpucheck smoke --output smoke.xml",
    ),
)


_HEALTH, _SPEED, _PROGRAM = "Is my GPU all right?", "How fast, how much?", "My program:"
_SAVED, _CLUSTER = "Saved results:", "Cluster:"

# In the order of the overview.
COMMANDS: tuple[Command, ...] = (
    Command(
        "status",
        """Show whether torch can use the GPUs, and each GPU in a line.

        The same as `gpucheck` without a command. Reads what `devices` and `doctor --skip load` read, in at most 10 s,
        or longer while the driver starts its GPUs.
        """,
        "gpucheck.devices.command:status",
        "gpucheck.devices.options:StatusOptions",
        device=None,
        heading=_HEALTH,
        examples=(
            "gpucheck status",
            "gpucheck --python ~/venv/bin/python",
            "gpucheck status --json --output status.json",
        ),
    ),
    Command(
        "devices",
        """Show each device: memory, load, power, temperature, link.

        Also shows the index that CUDA and NVML use for each device, and which devices are hidden.
        """,
        "gpucheck.cli.health:devices",
        "gpucheck.devices.options:DevicesOptions",
        device="all",
        heading=_HEALTH,
        examples=(
            "gpucheck devices",
            "gpucheck devices --processes --device cuda:1",
            "gpucheck devices --watch 2s",
        ),
    ),
    Command(
        "doctor",
        """Find out why torch does not use the GPU, and how to fix it.

        Shows the first broken stage between the hardware and torch, the evidence and the fix.
        """,
        "gpucheck.cli.health:doctor",
        "gpucheck.doctor.options:DoctorOptions",
        device=None,
        heading=_HEALTH,
        examples=(
            "gpucheck doctor",
            "gpucheck doctor --python ~/venv/bin/python --skip load",
            "gpucheck doctor --require cuda --bundle report.zip",
        ),
    ),
    Command(
        "explain",
        """Explain an error message and say what to do.

        Also prints the entry of an ID, such as oom.cuda.
        """,
        "gpucheck.cli.health:explain",
        "gpucheck.cli.health:ExplainOptions",
        device=None,
        loads_torch=False,
        heading=_HEALTH,
        examples=(
            'gpucheck explain "CUDA out of memory"',
            "python train.py 2>&1 | gpucheck explain",
            "gpucheck explain oom.cuda",
        ),
    ),
    Command(
        "smoke",
        """Test that everything a training job needs works.

        Each check runs on the device and its result is verified. Suitable for CI.
        """,
        "gpucheck.cli.health:smoke",
        "gpucheck.smoke.options:SmokeOptions",
        other_python=True,
        heading=_HEALTH,
        examples=(
            "gpucheck smoke",
            "gpucheck smoke --require cuda --min-devices 8 --output smoke.xml",
            "gpucheck smoke --only training --skip training.autocast",
        ),
    ),
    Command(
        "stress",
        """Load every device at once and verify every result.

        Every result is compared bit for bit with the first one and with devices of the same model.
        """,
        "gpucheck.cli.health:stress",
        "gpucheck.stress.options:StressOptions",
        device="all",
        heading=_HEALTH,
        examples=(
            "gpucheck stress --duration 10m",
            "gpucheck stress --only products,memory --dtype float16 --fill 80%",
            "gpucheck stress --device cuda:3 --duration 1h --output stress.json",
        ),
    ),
    Command(
        "memory",
        """Show who uses GPU memory and what torch's figures mean.

        Shows total, free and used memory, the processes that hold it, and torch's four memory figures by example.
        """,
        "gpucheck.memory.command:command",
        "gpucheck.memory.options:MemoryOptions",
        other_python=True,
        heading=_HEALTH,
        examples=(
            "gpucheck memory",
            "gpucheck memory --device cuda:1",
            "gpucheck memory --device cuda:1 --json",
        ),
    ),
    Command(
        "bench",
        "Measure speed: copies, memory bandwidth, matrix products.",
        commands="gpucheck.cli.bench:COMMANDS",
        heading=_SPEED,
        examples=(
            "gpucheck bench all --output today.json",
            "gpucheck bench transfer --device cuda:0",
            "gpucheck bench matmul --dtype bfloat16 --search",
        ),
    ),
    Command(
        "find-batch-size",
        """Find the largest batch size that trains.

        Runs each size in a separate process and confirms the answer with a second run.
        """,
        "gpucheck.batch_size.command:command",
        "gpucheck.batch_size.options:FindBatchSizeOptions",
        one_device=True,
        heading=_SPEED,
        examples=(
            "gpucheck find-batch-size models.py:make_gpt --input ids:1024:int64:0..50256",
            "gpucheck find-batch-size convnet --amp bfloat16 --effective-batch 512",
            "gpucheck find-batch-size transformer --estimate --memory-limit 80GiB --device cuda",
        ),
    ),
    Command(
        "run",
        """Show where a program's time and memory go.

        Runs it as python does. The report goes to stderr.
        """,
        "gpucheck.cli.run:run",
        "gpucheck.program.options:RunOptions",
        device=None,
        heading=_PROGRAM,
        examples=(
            "gpucheck run train.py --epochs 1",
            "gpucheck run --output run.json -m package.train",
            "gpucheck run --dry cuda:80GiB train.py",
        ),
    ),
    Command(
        "model",
        """Show which tensors `model.to("cuda")` misses.

        Also shows the weights, the memory that a training step adds, and the line that mixes devices. Needs no GPU.
        """,
        "gpucheck.program.command:command",
        "gpucheck.program.options:ModelOptions",
        device=None,
        heading=_PROGRAM,
        examples=(
            "gpucheck model net.py:make --input image:3x224x224:float32",
            "gpucheck model net.py:make --input ids:1024:int64:0..50256 --train",
            "gpucheck model transformer --depth 2",
        ),
    ),
    Command(
        "lint",
        """Find lines of source that misuse the GPU.

        Reads the source and runs nothing.
        """,
        "gpucheck.program.lint.command:command",
        "gpucheck.program.lint.options:LintOptions",
        device=None,
        loads_torch=False,
        heading=_PROGRAM,
        examples=(
            "gpucheck lint .",
            "gpucheck lint train.py --output lint.sarif",
            "git show HEAD:train.py | gpucheck lint -",
        ),
    ),
    Command(
        "compare",
        """Compare two saved results: what became slower or faster.

        Each row is slower, faster, the same or inconclusive, with the confidence interval of the ratio.
        """,
        "gpucheck.cli.results:compare",
        "gpucheck.cli.results:CompareOptions",
        device=None,
        loads_torch=False,
        heading=_SAVED,
        examples=(
            "gpucheck compare old.json new.json",
            "gpucheck compare old.json new.json --fail-if-slower 5%",
            "gpucheck compare old.json new.json --output changes.md",
        ),
    ),
    Command(
        "judge",
        """Judge saved benchmarks by other thresholds, without measuring.

        The thresholds come from --config; if it sets none for this benchmark, from the first document. Several
        documents of the same command and machine count as runs of one benchmark: rates are computed over all runs, and
        one wrong result stays wrong.
        """,
        "gpucheck.cli.results:judge",
        "gpucheck.cli.results:JudgeOptions",
        device=None,
        loads_torch=False,
        heading=_SAVED,
        examples=(
            "gpucheck judge result.json",
            "gpucheck judge run1.json run2.json run3.json",
            "gpucheck judge result.json --config strict.toml --output result.xml",
        ),
    ),
    Command(
        "report",
        """Make one HTML page of saved results, to send to somebody.

        It has the verdicts and fixes first, then tables, and needs no network. Two results of the same
        command are compared. Exits with 0 once the page is written, whatever the results say.
        """,
        "gpucheck.cli.results:report",
        "gpucheck.cli.results:ReportOptions",
        device=None,
        loads_torch=False,
        heading=_SAVED,
        examples=(
            "gpucheck report result.json --output page.html",
            "gpucheck report before.json after.json --output page.html",
            "gpucheck report /shared/checks --output fleet.html",
        ),
    ),
    Command(
        "schema",
        "Print the JSON Schema of the `--json` documents.",
        "gpucheck.cli.results:schema",
        heading=_SAVED,
        examples=(
            "gpucheck schema > gpucheck.schema.json",
            "gpucheck schema | python -m json.tool",
            "gpucheck schema | less",
        ),
    ),
    Command(
        "fleet",
        "Find the bad nodes of a cluster.",
        commands="gpucheck.cli.fleet:COMMANDS",
        heading=_CLUSTER,
        examples=(
            "srun --ntasks-per-node=1 gpucheck fleet check --gather /shared/checks",
            "gpucheck fleet judge /shared/checks",
            "gpucheck fleet judge /shared/checks --expect node[001-064] --into lists",
        ),
    ),
)


@functools.cache
def below(group: str = "") -> dict[str, Command]:
    """Return the rows of a group, or of the program, by their own names; none for what is no group."""
    row = find(group)
    rows = resolve_name(row.commands) if row is not None and row.commands else ()
    return {row.name.split()[-1]: row for row in rows}


def find(name: str) -> Command | None:
    """Return the row of a whole name, that of the program for an empty one; None where there is no such command."""
    if not name:
        return PROGRAM
    group, _, own = name.rpartition(" ")
    return below(group).get(own)


def names() -> list[str]:
    """Return the whole name of every command, those of the groups too."""
    groups = (below(row.name).values() if row.commands else (row,) for row in COMMANDS)
    return [row.name for rows in groups for row in rows]


def is_in(text: str) -> bool:
    """Return whether the text has a command line of ours, as it can be typed."""
    begins = "|".join(row.name for row in COMMANDS)
    return re.search(rf"\bgpucheck (--?[a-zA-Z]|({begins})\b)", text) is not None


@dataclass(frozen=True, slots=True)
class Common:
    """The options that every command takes, with the command's whole name and the settings that it has.

    `config` is the option as it was given; what the file, variables and defaults say is in the rest already. `given`
    holds the command's own options as they were typed, for a run in another process.
    """

    command: str
    device: str = "auto"
    verbose: bool = option("Show details: passed checks, methods and remarks.", False, short="-v", group=COMMON)
    json: bool = option("Print the result as one JSON document on stdout.", False, group=COMMON)
    output: tuple[str, ...] = option(
        "Also write the result to FILE: .json, .html, .xml (JUnit), .md, .csv, .prom, .sarif or .svg. Repeatable.",
        metavar="FILE",
        repeat=True,
        commas=False,
        short="-o",
        group=COMMON,
    )
    strict: bool = option("Treat warnings as failures.", False, group=COMMON)
    quiet: bool = option("Hide progress.", False, short="-q", group=COMMON)
    config: str | None = option(
        "Read settings from FILE.",
        metavar="FILE",
        shown="gpucheck.toml, else [tool.gpucheck] in pyproject.toml",
        group=COMMON,
    )
    debug: bool = option("Show the traceback of an error.", False, group=COMMON)
    python: str | None = None
    settings: Settings | None = None
    given: Mapping[str, Any] = field(default_factory=dict)


@functools.cache
def parameters(name: str) -> tuple[Option, ...]:
    """Return all that a command takes, in the order of its help page: its options, its thresholds, and what is shared.

    A group takes nothing.
    """
    row = find(name)
    if row is None or not row.options:
        return ()
    from gpucheck import config

    own = [*declared(resolve_name(row.options), *([resolve_name(row.beside)] if row.beside else []))]
    # A benchmark that may have a baseline may be judged by how it compares.
    for command in (name, "compare") if row.beside else (name,):
        for threshold in config.THRESHOLDS:
            if threshold.command == command:
                own.append(
                    Option(
                        threshold.help,
                        field=threshold.key,
                        name=threshold.option,
                        metavar=threshold.metavar,
                        group=LIMITS,
                        range=config.range_of(threshold.kind),
                    )
                )
    return tuple(each for _, members in grouped([*own, *shared(row)]) for each in members)


def shared(row: Command) -> list[Option]:
    """Return what a command takes as others do, `--device` among it where it has a default."""
    if row.device is None:
        return [*declared(Common)]
    text = f"Device: auto, cpu, cuda, cuda:1, mps, xpu{'' if row.one_device else ', all'} or a UUID."
    python = "Run with another Python interpreter, and its torch."
    return [
        *([Option(python, field="python", name="--python", metavar="PATH")] if row.other_python else []),
        Option(text, field="device", name="--device", metavar="DEVICE", shown=row.device, group=COMMON),
        *declared(Common),
    ]


def retyped(name: str, given: Mapping[str, Any]) -> list[str]:
    """Return a command's options as they are typed, from their values by key."""
    words = []
    for parameter in parameters(name):
        value = given.get(parameter.key)
        for text in value if isinstance(value, list) else [value] if value else []:
            words += [parameter.name] if parameter.is_flag else [f"{parameter.name}={text}"]
    return words


def usage(name: str) -> str:
    """Return how a command is called; for the program and its groups with `COMMAND` behind."""
    row = find(name)
    called = f"gpucheck {name}".strip()
    if row is None or row.commands:
        return f"{called} [OPTIONS] COMMAND [ARGS]..."
    # The arguments as their options name them: typer's brackets differ by version.
    arguments = [argument for argument in parameters(name) if argument.positional]
    return " ".join(
        [called, "[OPTIONS]", *(one.metavar if one.required else f"[{one.metavar.strip('[]')}]" for one in arguments)]
    )
