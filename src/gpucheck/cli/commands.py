"""The table of commands and their options. The modules that a row names are loaded only if its command is chosen."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from inspect import cleandoc
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from gpucheck.options import COMMON, LIMITS, Option, declared, grouped, option

if TYPE_CHECKING:  # the overview needs no settings
    from gpucheck.config import Limit, Settings


@dataclass(frozen=True, slots=True)
class Command:
    """A command, or a group whose rows are in `commands`.

    `about` is the description and the examples. The overview shows the first sentence of `about`, and `heading` above
    it. A text `module:name` names an object of a module that is loaded once the command is chosen. A `function` in
    gpucheck.cli takes `(common, options)` and returns the exit status. Any other `function` takes `(options, emit)` and
    runs in a session. `options` and `extra_options` are dataclasses, and the function gets both. `device` is the
    default of `--device`, or None without this option. With `one_device`, `--device all` is refused. Without
    `loads_torch`, the command also works if the current folder was deleted. `other_python` adds `--python`.
    """

    name: str
    about: str
    function: str = ""
    options: str = ""
    device: str | None = None
    one_device: bool = False
    loads_torch: bool = True
    other_python: bool = False
    extra_options: str = ""
    heading: str = ""
    commands: str = ""

    @property
    def paragraphs(self) -> list[str]:
        return [part for part in cleandoc(self.about).split("\n\n") if not part.startswith("$ ")]

    @property
    def examples(self) -> tuple[str, ...]:
        return tuple(line.removeprefix("$ ") for line in cleandoc(self.about).splitlines() if line.startswith("$ "))


PROGRAM = Command(
    "",
    """Diagnose the GPUs that PyTorch uses: what is there, what is wrong, how fast, how much fits.

    $ gpucheck status
    $ gpucheck doctor
    $ gpucheck smoke --output smoke.xml
    """,
    commands="gpucheck.cli.commands:COMMANDS",
)


# The overview has the same order.
COMMANDS: tuple[Command, ...] = (
    Command(
        "status",
        """Show whether torch can use the GPUs, and each GPU in a line.

        `gpucheck` without a command does the same. Reads the same data as `devices` and `doctor --skip load`, in at
        most 10 s, or longer while the driver starts its GPUs.

        $ gpucheck status
        $ gpucheck --python ~/venv/bin/python
        $ gpucheck status --json --output status.json
        """,
        "gpucheck.devices.command:status",
        "gpucheck.devices.options:StatusOptions",
        heading="Health",
    ),
    Command(
        "devices",
        """Show each device: memory, load, power, temperature, link.

        Also shows the index that CUDA and NVML use for each device, and which devices are hidden.

        $ gpucheck devices
        $ gpucheck devices --processes --device cuda:1
        $ gpucheck devices --watch 2s
        """,
        "gpucheck.cli.health:devices",
        "gpucheck.devices.options:DevicesOptions",
        device="all",
    ),
    Command(
        "doctor",
        """Find out why torch does not use the GPU, and how to fix it.

        Shows the first broken stage between the hardware and torch, the evidence and the fix.

        $ gpucheck doctor
        $ gpucheck doctor --python ~/venv/bin/python --skip load
        $ gpucheck doctor --require cuda --bundle report.zip
        """,
        "gpucheck.cli.health:doctor",
        "gpucheck.doctor.options:DoctorOptions",
    ),
    Command(
        "explain",
        """Explain an error message and how to fix it.

        Also explains an ID, such as oom.cuda.

        $ gpucheck explain "CUDA out of memory"
        $ python train.py 2>&1 | gpucheck explain
        $ gpucheck explain oom.cuda
        """,
        "gpucheck.cli.health:explain",
        "gpucheck.cli.health:ExplainOptions",
        loads_torch=False,
    ),
    Command(
        "smoke",
        """Test that everything a training job needs works.

        Each check runs on the device and its result is verified. Suitable for CI.

        $ gpucheck smoke
        $ gpucheck smoke --require cuda --min-devices 8 --output smoke.xml
        $ gpucheck smoke --only training --skip training.autocast
        """,
        "gpucheck.cli.health:smoke",
        "gpucheck.smoke.options:SmokeOptions",
        device="auto",
        other_python=True,
    ),
    Command(
        "stress",
        """Load every device at once and verify every result.

        Every result is compared bit for bit with the first one and with devices of the same model.

        $ gpucheck stress --duration 10m
        $ gpucheck stress --only products,memory --dtype float16 --fill 80%
        $ gpucheck stress --device cuda:3 --duration 1h --output stress.json
        """,
        "gpucheck.cli.health:stress",
        "gpucheck.stress.options:StressOptions",
        device="all",
    ),
    Command(
        "memory",
        """Show who uses GPU memory and what torch's figures mean.

        Shows total, free and used memory, the processes that hold it, and torch's four memory figures by example.

        $ gpucheck memory
        $ gpucheck memory --device cuda:1
        $ gpucheck memory --device cuda:1 --json
        """,
        "gpucheck.memory.command:command",
        "gpucheck.memory.options:MemoryOptions",
        device="auto",
        other_python=True,
    ),
    Command(
        "bench",
        """Measure speed: copies, memory bandwidth, matrix products.

        $ gpucheck bench all --output today.json
        $ gpucheck bench transfer --device cuda:0
        $ gpucheck bench matmul --dtype bfloat16 --search
        """,
        commands="gpucheck.cli.bench:COMMANDS",
        heading="Speed and memory",
    ),
    Command(
        "find-batch-size",
        """Find the largest batch size that trains.

        Runs each size in a separate process and confirms the answer with a second run.

        $ gpucheck find-batch-size models.py:make_gpt --input ids:1024:int64:0..50256
        $ gpucheck find-batch-size convnet --amp bfloat16 --effective-batch 512
        $ gpucheck find-batch-size transformer --estimate --memory-limit 80GiB --device cuda
        """,
        "gpucheck.batch_size.command:command",
        "gpucheck.batch_size.options:FindBatchSizeOptions",
        device="auto",
        one_device=True,
    ),
    Command(
        "run",
        """Show where a program's time and memory go.

        Runs it as python does. The report goes to stderr.

        $ gpucheck run train.py --epochs 1
        $ gpucheck run --output run.json -m package.train
        $ gpucheck run --dry cuda:80GiB train.py
        """,
        "gpucheck.cli.run:run",
        "gpucheck.program.options:RunOptions",
        heading="My program",
    ),
    Command(
        "model",
        """Show which tensors `model.to("cuda")` misses.

        Also shows the weights, the memory that a training step adds, and the line that mixes devices. Needs no GPU.

        $ gpucheck model net.py:make --input image:3x224x224:float32
        $ gpucheck model net.py:make --input ids:1024:int64:0..50256 --train
        $ gpucheck model transformer --depth 2
        """,
        "gpucheck.program.command:command",
        "gpucheck.program.options:ModelOptions",
    ),
    Command(
        "lint",
        """Find lines of source that misuse the GPU.

        Reads the source and runs nothing.

        $ gpucheck lint .
        $ gpucheck lint train.py --output lint.sarif
        $ git show HEAD:train.py | gpucheck lint -
        """,
        "gpucheck.program.lint.command:command",
        "gpucheck.program.lint.options:LintOptions",
        loads_torch=False,
    ),
    Command(
        "compare",
        """Compare two saved results: what became slower or faster.

        Each row is slower, faster, the same or inconclusive, with the confidence interval of the ratio.

        $ gpucheck compare old.json new.json
        $ gpucheck compare old.json new.json --fail-if-slower 5%
        $ gpucheck compare old.json new.json --output changes.md
        """,
        "gpucheck.cli.results:compare",
        "gpucheck.cli.results:CompareOptions",
        loads_torch=False,
        heading="Saved results",
    ),
    Command(
        "judge",
        """Judge a saved benchmark by other thresholds, without measuring.

        The thresholds come from --config. If --config has none for this benchmark, the document's own thresholds apply.

        $ gpucheck judge result.json
        $ gpucheck judge result.json --config strict.toml
        $ gpucheck judge result.json --config strict.toml --output result.xml
        """,
        "gpucheck.cli.results:judge",
        "gpucheck.cli.results:JudgeOptions",
        loads_torch=False,
    ),
    Command(
        "report",
        """Make one HTML page of saved results, to send to somebody.

        The page shows verdicts and fixes first, then tables, and needs no network. The exit status is 0 once the page
        is written, even if the results have failures.

        $ gpucheck report result.json --output page.html
        $ gpucheck report smoke.json bench.json --output page.html
        $ gpucheck report /shared/checks --output fleet.html
        """,
        "gpucheck.cli.results:report",
        "gpucheck.cli.results:ReportOptions",
        loads_torch=False,
    ),
    Command(
        "schema",
        """Print the JSON Schema of the `--json` documents.

        $ gpucheck schema > gpucheck.schema.json
        $ gpucheck schema | python -m json.tool
        $ gpucheck schema | less
        """,
        "gpucheck.cli.results:schema",
    ),
    Command(
        "fleet",
        """Find the bad nodes of a cluster.

        $ srun --ntasks-per-node=1 gpucheck fleet check --gather /shared/checks
        $ gpucheck fleet judge /shared/checks
        $ gpucheck fleet judge /shared/checks --expect node[001-064] --into lists
        """,
        commands="gpucheck.cli.fleet:COMMANDS",
        heading="Cluster",
    ),
)

# The environment variable for each of these options, by the option's key. The command line takes precedence.
VARIABLES = {"device": "GPUCHECK_DEVICE", "strict": "GPUCHECK_STRICT", "time_budget": "GPUCHECK_TIME_BUDGET"}
# The variable does not set the doctor's limit: with a benchmark's budget, a slow import of torch would seem to hang.
OWN_LIMIT = "doctor", "time_budget"


@functools.cache
def commands_in(group: str = "") -> dict[str, Command]:
    """Return the rows of a group, or of the program, by the last word of their names. Other names have no rows."""
    row = find(group)
    rows = resolve_name(row.commands) if row is not None and row.commands else ()
    return {row.name.split()[-1]: row for row in rows}


def find(name: str) -> Command | None:
    """Return the row of a command, or of the program if `name` is empty, or None for an unknown command."""
    group, _, last_word = name.rpartition(" ")
    return commands_in(group).get(last_word) if name else PROGRAM


def names() -> list[str]:
    groups = (commands_in(row.name).values() if row.commands else (row,) for row in COMMANDS)
    return [row.name for rows in groups for row in rows]


def is_in(text: str) -> bool:
    first_words = "|".join(row.name for row in COMMANDS)
    return re.search(rf"\bgpucheck (--?[a-zA-Z]|({first_words})\b)", text) is not None


@dataclass(frozen=True, slots=True)
class Common:
    """The options of every command. `settings` has the thresholds of the options and of the file `config`. `given` has
    the command's own options as typed, so that another process can repeat them."""

    command: str
    device: str = "auto"
    verbose: bool = option("Show details: passed checks, methods and remarks.", False, short="-v", group=COMMON)
    json: bool = option("Print the result as one JSON document on stdout.", False, group=COMMON)
    output: tuple[str, ...] = option(
        "Also write the result to FILE: .json, .html, .xml (JUnit), .md, .prom, .sarif or .svg. Repeatable.",
        metavar="FILE",
        repeat=True,
        commas=False,
        short="-o",
        group=COMMON,
    )
    strict: bool = option("Treat warnings as failures.", False, group=COMMON)
    quiet: bool = option("Hide progress.", False, short="-q", group=COMMON)
    config: str | None = option(
        "Read thresholds from FILE.", metavar="FILE", shown="gpucheck.toml, if it exists", group=COMMON
    )
    debug: bool = option("Show the traceback of an error.", False, group=COMMON)
    python: str | None = None
    settings: Settings | None = None
    given: Mapping[str, Any] = field(default_factory=dict)

    @property
    def thresholds(self) -> tuple[Limit, ...]:
        return self.settings.thresholds if self.settings is not None else ()


@functools.cache
def parameters(name: str) -> tuple[Option, ...]:
    """Return all options of a command in the order of its help page: own options, thresholds and shared options."""
    if (row := find(name)) is None or not row.options:
        return ()
    from gpucheck import config

    own = [option for path in (row.options, row.extra_options) if path for option in declared(resolve_name(path))]
    # A benchmark with --baseline can also have the thresholds of `compare`.
    with_thresholds = (name, "compare") if row.extra_options else (name,)
    thresholds = [
        Option(limit.help, field=limit.key, name=limit.option, metavar=limit.metavar, group=LIMITS, range=limit.range)
        for limit in config.THRESHOLDS
        if limit.command in with_thresholds
    ]
    return tuple(option for _, members in grouped([*own, *thresholds, *shared(row)]) for option in members)


def shared(row: Command) -> list[Option]:
    """Return the options that a command shares with others, including `--device` and `--python` if it takes them."""
    options = [*declared(Common)]
    if row.device is not None:
        text = f"Device: auto, cpu, cuda, cuda:1, mps, xpu{'' if row.one_device else ', all'} or a UUID."
        device = Option(text, field="device", name="--device", metavar="DEVICE", shown=row.device, group=COMMON)
        options.insert(0, device)
    if row.other_python:
        text = "Run with another Python interpreter, and its torch."
        options.insert(0, Option(text, field="python", name="--python", metavar="PATH"))
    return options


def retyped(name: str, values: Mapping[str, Any]) -> list[str]:
    """Return a command's options as arguments of a command line, from their values by key."""
    words = []
    for parameter in parameters(name):
        value = values.get(parameter.key)
        for text in value if isinstance(value, list) else [value] if value else []:
            words.append(parameter.name if parameter.is_flag else f"{parameter.name}={text}")
    return words


def usage(name: str) -> str:
    row = find(name)
    program = f"gpucheck {name}".strip()
    if row is None or row.commands:
        return f"{program} [OPTIONS] COMMAND [ARGS]..."
    # The names of arguments come from the options, because Typer's brackets differ by version.
    arguments = [
        argument.metavar if argument.required else f"[{argument.metavar.strip('[]')}]"
        for argument in parameters(name)
        if argument.positional
    ]
    return " ".join([program, "[OPTIONS]", *arguments])
