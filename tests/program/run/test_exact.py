"""A program runs under `gpucheck run` as it runs under `python`: what it writes, what it reads, how it ends."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from preloaded import IS_POSSIBLE, SOURCE, Preloaded

PROGRAMS = Path(__file__).parent.parent.parent / "programs"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="signals and forks are those of a POSIX system"),
]
GPUCHECK = (sys.executable, "-m", "gpucheck", "run", "--quiet")
# Here `python` alone is a fork of a process that has loaded torch: these show nothing of how Python itself begins.
FORKED = (
    *("run_arguments.py --help", "run_arguments.py", "run_raise.py", "run_fork.py", "run_spawn.py", "run_killed.py"),
    "run_compiled.py",
)
End = tuple[int, bytes, bytes]
# What differs from run to run in a plain program too.
ADDRESS = re.compile(rb"0x[0-9a-f]{6,}")


def environ(**more: str) -> dict[str, str]:
    """The same for both: where gpucheck lies must not make a difference, so both find it."""
    return {**os.environ, "PYTHONPATH": str(SOURCE), **more}


@pytest.fixture
def forked(request: pytest.FixtureRequest) -> Callable[..., End]:
    """As `ended`, in a process forked from one that has loaded torch, which begins as a started one does: test_dry."""

    def ended_so(*argv: str, **more: str) -> End:
        if not IS_POSSIBLE:
            return ended([sys.executable, *argv], b"", **more)
        preloaded: Preloaded = request.getfixturevalue("preloaded")
        done = preloaded.python(*argv, cwd=PROGRAMS, **more)
        return done.returncode, ADDRESS.sub(b"0x", done.stdout.encode()), ADDRESS.sub(b"0x", done.stderr.encode())

    return ended_so


def ended(argv: Sequence[str], stdin: bytes = b"", **more: str) -> End:
    # gpucheck keeps from a program how it was started itself.
    env = {name: value for name, value in environ(**more).items() if name != "GPUCHECK_PROGRAM"}
    done = subprocess.run(argv, input=stdin, capture_output=True, timeout=120, env=env, cwd=PROGRAMS)
    return done.returncode, ADDRESS.sub(b"0x", done.stdout), ADDRESS.sub(b"0x", done.stderr)


@pytest.mark.parametrize(
    "given",
    [
        "run_arguments.py --rate 0.5 -- --help -m x",
        "run_arguments.py --help",
        "run_arguments.py",  # argparse's own usage error
        "run_exit_number.py",
        "run_raise.py",
        "run_fork.py",
        "run_spawn.py",
        "run_killed.py",
        "run_patches.py",
        "run_compiled.py",
        "run_threads.py",
        "-m run_package --flag value",
        "-m no_such_module_at_all",
    ],
)
def test_it_ends_and_writes_as_python_has_it(given: str, forked: Callable[..., End]) -> None:
    plain = forked(*given.split()) if given in FORKED else ended([sys.executable, *given.split()])
    assert ended([*GPUCHECK, *given.split()]) == plain
    assert plain[1] or plain[2]


@pytest.mark.parametrize("name", ["SIGINT", "SIGSEGV"])
def test_a_signal_ends_both_alike(name: str, forked: Callable[..., End]) -> None:
    # What Python does about SIGINT has a traceback.
    plain = ended([sys.executable, "run_killed.py"], BY=name) if name == "SIGINT" else forked("run_killed.py", BY=name)
    assert plain[0] == -getattr(signal, name)
    assert ended([*GPUCHECK, "run_killed.py"], BY=name) == plain


def test_files_standard_input_and_a_closed_stream(tmp_path: Path) -> None:
    wrote: list[tuple[End, dict[str, bytes]]] = []
    for start in ((sys.executable,), GPUCHECK):
        folder = tmp_path / str(len(wrote))
        folder.mkdir()
        end = ended([*start, "run_chdir.py", str(folder)], b"some text\n")
        wrote.append((end, {path.name: path.read_bytes() for path in folder.iterdir()}))
    assert wrote[0] == wrote[1]
    assert set(wrote[0][1]) == {"saved.pt", "text"}


def test_a_sitecustomize_of_the_users_is_read(tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text("print('customized', __file__)\n")
    path = os.pathsep.join([str(tmp_path), str(SOURCE)])
    plain = ended([sys.executable, "run_exit_number.py"], PYTHONPATH=path)
    assert b"customized" in plain[1]
    assert ended([*GPUCHECK, "run_exit_number.py"], PYTHONPATH=path) == (
        plain[0],
        # gpucheck's own process reads it as well.
        plain[1].splitlines(keepends=True)[0] + plain[1],
        plain[2],
    )


@pytest.mark.parametrize("program", ["run_signals.py", "run_interrupted.py"])
def test_signals_sent_to_gpucheck_reach_the_program_once(program: str) -> None:
    ends = []
    for start in ((sys.executable,), GPUCHECK):
        process = subprocess.Popen(
            [*start, program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environ(), cwd=PROGRAMS
        )
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready")
        numbers = (signal.SIGUSR1, signal.SIGTERM) if program == "run_signals.py" else (signal.SIGINT,)
        for number in numbers:
            process.send_signal(number)
            time.sleep(0.3)  # two at once may be handled in either order
        out, err = process.communicate(timeout=60)
        ends.append((process.returncode, out, err))
    assert ends[1] == ends[0]


@pytest.mark.parametrize("compiler", ["", "import torch._dynamo\n"])
def test_libraries_say_at_the_end_what_they_say_under_python(compiler: str, tmp_path: Path) -> None:
    """Libraries of C++ report what is never freed, as triton does."""
    program = tmp_path / "program.py"
    program.write_text(
        f"import torch\n{compiler}layer = torch.nn.Linear(2, 2)\noptimizer = torch.optim.SGD(layer.parameters())\n"
        "layer(torch.ones(1, 2)).sum().backward()\noptimizer.step()\nprint('done')\n"
    )
    _, *plain = ended([sys.executable, str(program)])
    for more in ((), ("--dry", "cuda")):
        _, *seen = ended([*GPUCHECK, *more, str(program)])
        assert seen == plain
