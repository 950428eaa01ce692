"""What holds for every test: children import the source too, no settings leak in, the marker `gpu` is honest, and of
those marked `slow` a sample runs."""

from __future__ import annotations

import functools
import gc
import importlib
import os
import signal
import subprocess
import sys
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import ModuleType

import pytest
from fake_driver import fake_driver
from forks import fork_server, forked_children, run_forked

from gpucheck.machine import device_lifetime

# For any test that asks for them: NVIDIA's libraries, faked, and children that begin with torch loaded.
__all__ = ["fake_driver", "fork_server", "forked_children", "run_forked"]

SOURCE = Path(__file__).parent.parent / "src"
REQUIRE_GPU = "GPUCHECK_REQUIRE_GPU"
# A run of the whole suite takes one in so many of a file's slow tests, and at least one.
SAMPLED = 8
# A test says itself what it needs of these; what happens to be set around it must not decide.
SETTINGS = (
    "COLUMNS",
    "LINES",
    "NO_COLOR",
    "FORCE_COLOR",
    "CLICOLOR_FORCE",
    "PY_COLORS",
    "TTY_COMPATIBLE",
    "PYTHONPATH",
    "PYTHONDONTWRITEBYTECODE",  # each of a thousand children would compile the source, as no user's process does
)

# In a child: starting CUDA here would make every later fork of this process unable to use it.
DRIVER_PROBE = """
import ctypes, sys
try:
    driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
except OSError:
    sys.exit("there is no CUDA driver library")
code = driver.cuInit(0)
if code:
    sys.exit(f"the CUDA driver does not start (cuInit returned {code})")
count = ctypes.c_int()
driver.cuDeviceGetCount(ctypes.byref(count))
if not count.value:
    sys.exit("the CUDA driver sees no device")
"""


@pytest.fixture(scope="session")
def program() -> Callable[[str], ModuleType]:
    """Imports a program of `benchmarks/` or `scripts/` by its name."""
    return importlib.import_module


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--all",
        action="store_true",
        dest="every",
        help="run every slow test, not a sample of them (tests that are named or selected always run)",
    )
    parser.addoption("--one-in", type=int, default=1, metavar="N", help="run one in N of each file's tests")
    parser.addoption("--salt", default="", help="which tests a sample has: any word, such as a commit's hash")
    parser.addoption(
        "--write-record", action="store_true", help="write the record of every command anew (tests/record)"
    )


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config.option, "sampled"):  # xdist hands its workers what was found here
        config.option.sampled = is_sampled(config)
    for name in list(os.environ):
        ours = name.startswith("GPUCHECK_") and name != REQUIRE_GPU
        if ours or name.startswith("GITHUB_") or name in SETTINGS:
            del os.environ[name]
    for name in SETTINGS:  # readline, which a debugger loads, sets a width that Python does not see and children get
        os.unsetenv(name)
    os.environ["PYTHONPATH"] = str(SOURCE)
    os.environ["GPUCHECK_PROGRAM"] = "gpucheck"  # however a test starts it, in screens it has one name
    sys.dont_write_bytecode = False  # pytest keeps the tests as it rewrote them: half of what finding them takes
    # Tests and their children share the processors: threads of torch that wait for each other must not spin.
    os.environ["OMP_WAIT_POLICY"] = "passive"
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # a shell's background job; children would ignore it too
        signal.signal(signal.SIGINT, signal.default_int_handler)


def is_sampled(config: pytest.Config) -> bool:
    """Whether a sample stands for the slow tests: not under `--all`, nor where tests are named or selected."""
    named = config.args_source is not pytest.Config.ArgsSource.TESTPATHS
    return not (named or any(config.getoption(name, None) for name in ("every", "keyword", "markexpr", "lf")))


def sample(tests: Sequence[str], salt: str = "", one_in: int = SAMPLED) -> set[str]:
    """Return the ids of one in `one_in` of each file's tests, at least one: the smallest checksums with `salt`."""
    by_file: defaultdict[str, list[str]] = defaultdict(list)
    for test in tests:
        by_file[test.partition("::")[0]].append(test)
    kept = set()
    for ids in by_file.values():
        ids.sort(key=lambda test: zlib.crc32((test + salt).encode()))
        kept.update(ids[: -(-len(ids) // one_in)])
    return kept


def pytest_collectstart() -> None:
    """Do without the garbage collector until all is found: what is found stays, and looking for garbage among it took
    a quarter of the time."""
    gc.disable()


@pytest.hookimpl(trylast=True)  # a sample is one of what -m and -k left
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    left_out: set[str] = set()
    if config.option.sampled:
        slow = [item.nodeid for item in items if item.get_closest_marker("slow")]
        left_out |= set(slow) - sample(slow, config.getoption("salt"))
    if config.getoption("one_in") > 1:
        others = [item.nodeid for item in items if item.get_closest_marker("everything") is None]
        left_out |= set(others) - sample(others, config.getoption("salt"), config.getoption("one_in"))
    if left_out:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in left_out])
        items[:] = [item for item in items if item.nodeid not in left_out]
    if hasattr(config, "workerinput"):  # of several processes: a long file that begins last ends alone
        long = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path not in long)


def pytest_collection_finish() -> None:
    """Let the garbage collector pass over what is there for all of the run: modules, and thousands of tests."""
    gc.collect()
    gc.freeze()
    gc.enable()
    sys.dont_write_bytecode = True  # tests write one program after another under one name, as long, in one second


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """Name the slow tests that ran where they are a sample."""
    if not config.option.sampled:
        return
    entries = [entry for group in terminalreporter.stats.values() for entry in group]
    reports = [entry for entry in entries if isinstance(entry, pytest.TestReport)]
    ran = sorted({report.nodeid for report in reports if "slow" in report.keywords and report.when == "call"})
    if ran:
        terminalreporter.section("slow tests: a sample; scripts/test --all runs them all")
        terminalreporter.write_line("\n".join(ran))


@pytest.fixture(scope="module", autouse=True)
def what_a_file_loaded_is_passed_over() -> Iterator[None]:
    """The same again after each file: torch's compiler alone is a third of a second for each `gc.collect()` of a test
    of another file."""
    yield
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def no_command_is_late(monkeypatch: pytest.MonkeyPatch) -> None:
    """How busy this machine is decides no test: what is not begun in time is tested by a clock of the test's own."""
    monkeypatch.setattr("gpucheck.machine.watchdog.GRACE_S", float("inf"))


@pytest.fixture(autouse=True)
def no_device_stays_lost() -> Iterator[None]:
    """What a test lost is not lost to the next one of its process, whichever that is: work there would first settle it,
    and fail."""
    yield
    device_lifetime._LOST.clear()
    device_lifetime._OWNED.clear()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") is None:
        return
    reason = why_no_gpu()
    if reason and os.environ.get(REQUIRE_GPU) == "1":
        pytest.fail(f"{REQUIRE_GPU}=1, and {reason}", pytrace=False)
    if reason:
        pytest.skip(reason)


@functools.lru_cache(maxsize=1)
def why_no_gpu() -> str:
    """Why no test can use a CUDA device here; empty where one can. Imports torch only where the driver has a device."""
    try:
        driver = subprocess.run([sys.executable, "-c", DRIVER_PROBE], capture_output=True, text=True, timeout=30)
    except subprocess.TimeoutExpired:
        return "the CUDA driver does not answer within 30 s"
    if driver.returncode:
        return (driver.stderr.strip().splitlines() or [f"looking for the CUDA driver ended with {driver.returncode}"])[
            -1
        ]
    import torch

    return "" if torch.cuda.is_available() else f"torch {torch.__version__} cannot use the CUDA device that is there"
