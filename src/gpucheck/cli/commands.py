"""The commands that measure, read or search, each as `function(common, options)`; what takes time to load is loaded
inside."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from gpucheck import errors
from gpucheck.cli.common import Common
from gpucheck.errors import UsageError

if TYPE_CHECKING:  # a help page needs no report
    from gpucheck.batch_size.options import FindBatchSizeOptions
    from gpucheck.devices.options import DevicesOptions, StatusOptions
    from gpucheck.doctor.condition import Evidence
    from gpucheck.doctor.options import DoctorOptions
    from gpucheck.memory.options import MemoryOptions
    from gpucheck.program.lint.options import LintOptions
    from gpucheck.program.options import ModelOptions
    from gpucheck.report.events import Emit
    from gpucheck.smoke.options import SmokeOptions
    from gpucheck.stress.options import StressOptions


def status(common: Common, options: StatusOptions) -> int:
    """Show whether torch can use the GPUs, and each GPU in a line.

    `gpucheck` without a command is this. It reads what `devices` and `doctor` read, once, without the load, in at most
    ten seconds.
    """
    from gpucheck.cli import session

    def look(emit: Emit) -> None:
        from gpucheck.devices import command

        command.status(options, emit)

    return session.run(common, look)


def devices(common: Common, options: DevicesOptions) -> int:
    """Show each device: memory, load, power, temperature, link.

    Also shows the index that CUDA and NVML use for each device, and which devices are hidden.
    """
    if options.watch_s is not None and (common.json or common.output):
        raise UsageError(
            "--watch refreshes the screen", "--json and --output write one result", "give one or the other"
        )
    from gpucheck.machine.child import LIBCUDA_READER, NVML_READER, Ahead
    from gpucheck.machine.kernel_driver import sleeping

    # They take as long to load as this process does from here on. There is no NVIDIA driver for macOS.
    readers = (NVML_READER, LIBCUDA_READER) if sys.platform != "darwin" and not sleeping() else ()
    with Ahead(*readers) as ahead:
        from gpucheck.cli import session
        from gpucheck.devices.command import command

        if options.watch_s is None:
            return session.run(common, lambda emit: command(options, emit, ahead=ahead))
        return session.watch(common, lambda emit: command(options, emit, ahead=ahead), options.watch_s)


def memory(common: Common, options: MemoryOptions) -> int:
    """Show who uses GPU memory and what torch's figures mean.

    Shows total, free and used memory, the processes that hold it, and torch's four memory figures by example.
    """
    from gpucheck.cli import session
    from gpucheck.memory.command import command

    return session.run(common, lambda emit: command(options, emit))


def doctor(common: Common, options: DoctorOptions) -> int:
    """Find out why torch does not use the GPU, and how to fix it.

    Shows the first broken layer from hardware to torch, the evidence and the fix.
    """
    from gpucheck.cli import session

    held: list[Evidence] = []  # none where the command is cut off before it has read the machine
    files = []
    if options.bundle:
        from gpucheck.cli.outputs import Wanted
        from gpucheck.doctor import bundle

        packed = bundle.formats(lambda: held[0] if held else None)
        files = [Wanted("--bundle", options.bundle, packed, mode=0o600)]

    def diagnose(emit: Emit) -> None:
        from gpucheck.doctor.command import command
        from gpucheck.report.events import Notice

        held.append(command(options, emit))
        if files:
            emit(Notice(f"{options.bundle} contains only listed fields; review it before you share it"))

    return session.run(common, diagnose, files)


def smoke(common: Common, options: SmokeOptions) -> int:
    """Test that everything a training job needs works.

    Each check runs on the device and its result is verified. Suitable for CI.
    """
    from gpucheck.cli import session

    def check(emit: Emit) -> None:
        from gpucheck.machine import installed_torch

        installed_torch.load(options.time_budget_s)  # Ctrl-C ends in a report from here on
        from gpucheck.smoke.command import command

        command(options, emit)

    return session.run(common, check)


def stress(common: Common, options: StressOptions) -> int:
    """Load every device at once and verify every result.

    Every result is compared bit for bit with the first one and with devices of the same model. On a CPU each core is
    tested.
    """
    from gpucheck.cli import session
    from gpucheck.stress.judge import judge

    def load(emit: Emit) -> None:
        from gpucheck.stress.command import command

        command(options, emit)

    return session.run(common, load, judge=judge)


def find_batch_size(common: Common, options: FindBatchSizeOptions) -> int:
    """Find the largest batch size that trains.

    Runs each size in a separate process and confirms the answer with a second run.
    """
    from gpucheck.batch_size.command import command
    from gpucheck.cli import session

    return session.run(common, lambda emit: command(options, emit))


def model(common: Common, options: ModelOptions) -> int:
    """Show which tensors `model.to("cuda")` misses.

    Its weights, what a training step adds to them, and every tensor on the wrong device, with its line. Needs no GPU.
    """
    from gpucheck.cli import session
    from gpucheck.program.command import command

    return session.run(common, lambda emit: command(options, emit))


def lint(common: Common, options: LintOptions) -> int:
    """Find lines of source that misuse the GPU.

    It reads source and runs nothing.
    """
    from gpucheck.cli import session
    from gpucheck.program.lint.command import command

    return session.run(common, lambda emit: command(options, emit))


def schema() -> int:
    """Print the JSON Schema of the `--json` documents."""
    from importlib import resources

    sys.stdout.write(resources.files("gpucheck.report").joinpath("schema.json").read_text(encoding="utf-8"))
    return errors.OK
