"""Prepare an environment beside the project, once, and start a script of this folder in it. Standard library only.

The environment is a venv in `.gpucheck-env/`. Where the starting Python has torch, a .pth file adds that Python's
packages to the venv, so that only what is missing there is installed, and nothing outside `.gpucheck-env/` changes.
Without torch there, the venv gets the one that constraints.txt pins. `ready.json` is written last. A start that was
cut off leaves what it has: pip's cache keeps the files, and the next start continues in the same venv.

Python 2.7 and 3.6 must be able to read this file, to say that they are too old: types are comments.
"""

import hashlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import contextmanager

if sys.version_info < (3, 5):
    sys.stderr.write("gpucheck: %s is too old; start this script with Python 3.10 or newer.\n" % sys.executable)
    sys.exit(2)

from typing import Any, Dict, Iterator, List, NoReturn, Optional, Sequence

ROOT = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
ENVIRONMENTS = os.path.join(ROOT, ".gpucheck-env")
WINDOWS = os.name == "nt"
OLDEST_PYTHON = (3, 10)  # requires-python in pyproject.toml; a test compares the two
USAGE, COULD_NOT_PREPARE, INTERRUPTED, TERMINATED = 2, 3, 130, 143  # gpucheck's exit codes; a test compares them
EXACT = ("ruff", "mypy")  # their answers change with each version, so another one in the starting Python is no use
# Settings that send pip's packages elsewhere, or do not keep what was fetched. Vendors' containers set PIP_CONSTRAINT
# to the versions of their own Python.
DROPPED = (
    "PYTHONPATH",
    "PIP_TARGET",
    "PIP_PREFIX",
    "PIP_ROOT",
    "PIP_REQUIREMENT",
    "PIP_CONSTRAINT",
    "PIP_NO_CACHE_DIR",
)

# Runs in the starting Python. The current folder is not looked into: a folder named torch there is not torch.
PROBE = r"""
import sys
sys.path[:] = [folder for folder in sys.path if folder]
import json, os
seen = {"version": list(sys.version_info[:3])}
if sys.version_info >= (3, 10):
    import importlib.metadata, importlib.util, site, sysconfig
    folders = site.getsitepackages() + [sysconfig.get_path("purelib"), sysconfig.get_path("platlib")]
    if site.ENABLE_USER_SITE:
        folders.append(site.getusersitepackages())
    torch, pip = importlib.util.find_spec("torch"), importlib.util.find_spec("pip")
    seen["torch"] = os.path.dirname(torch.origin) if torch and torch.origin else None
    if seen["torch"]:
        folders.append(os.path.dirname(seen["torch"]))
    seen["folders"] = [f for f in dict.fromkeys(folders) if f in sys.path and os.path.isdir(f)]
    seen["installed"] = {str(d.metadata["Name"]): d.version for d in importlib.metadata.distributions()}
    seen["pip"] = os.path.dirname(os.path.dirname(pip.origin)) if pip and pip.origin else None
    seen["venv"] = bool(importlib.util.find_spec("venv"))
    seen["ensurepip"] = bool(importlib.util.find_spec("ensurepip"))
sys.stdout.write("\n<probe>" + json.dumps(seen) + "</probe>\n")
"""


def enter(tests=False, torch=None):
    # type: (bool, Optional[str]) -> None
    """Return if this process runs in the environment, else prepare it if needed and become the same script in it.

    With `tests` it also holds the tests' tools. With `torch` it holds that version, whatever the starting Python has.
    """
    try:
        python = starting_python()
        folder = home(python, torch)
        if not is_ready(folder, tests):
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
            with locked():
                if not is_ready(folder, tests):
                    prepare(folder, python, tests, torch)
    except KeyboardInterrupt:
        fail("stopped while preparing; the next start continues", INTERRUPTED)
    except OSError as error:
        fail("preparing {} failed: {}".format(ENVIRONMENTS, error))
    if os.path.realpath(sys.prefix) != os.path.realpath(folder):
        become([str(python_of(folder)), os.path.realpath(sys.argv[0])] + sys.argv[1:])  # noqa: RUF005


def become(command):
    # type: (Sequence[str]) -> NoReturn
    """Run the command in place of this process; where the system cannot do that, wait for it and pass its code on."""
    sys.stdout.flush()
    if not WINDOWS:
        os.execv(command[0], list(command))
    sys.exit(call(command))


def call(command):
    # type: (Sequence[str]) -> int
    """Run the command and return its exit code. Ctrl-C reaches the command too, which decides how it ends."""
    child = subprocess.Popen(command)
    while True:
        try:
            return child.wait()
        except KeyboardInterrupt:
            continue


def starting_python():
    # type: () -> str
    """The Python of GPUCHECK_PYTHON (a path, a name or an environment's folder), else of the active environment, else
    the one that runs this. Of an environment made here, the Python that it was made from."""
    wanted = os.environ.get("GPUCHECK_PYTHON", "")
    path = os.path.expanduser(wanted)
    active = [os.environ.get(name, "") for name in ("VIRTUAL_ENV", "CONDA_PREFIX")]
    if wanted:
        python = python_of(path) if os.path.isdir(path) else shutil.which(path)
        if not python:
            fail(
                "GPUCHECK_PYTHON={} is no program; give the path of a Python {}.{} or newer.".format(
                    wanted, *OLDEST_PYTHON
                ),
                USAGE,
            )
    else:
        python = next((found for found in map(python_of, filter(None, active)) if found), sys.executable)
    folder = os.path.dirname(os.path.dirname(os.path.abspath(python)))
    if os.path.realpath(os.path.dirname(folder)) == ENVIRONMENTS:
        return str(stamp_of(folder).get("python", os.path.realpath(python)))
    return os.path.abspath(python)


def python_of(environment):
    # type: (str) -> Optional[str]
    """The interpreter in an environment's folder, venv or conda; None where it has none."""
    places = ("Scripts/python.exe", "python.exe") if WINDOWS else ("bin/python", "bin/python3")
    paths = [os.path.join(environment, *place.split("/")) for place in places]
    return next((path for path in paths if os.path.isfile(path)), None)


def home(python, torch):
    # type: (str, Optional[str]) -> str
    """The folder of the environment made from this Python."""
    real = os.path.realpath(python)
    digest = hashlib.sha256("\0".join((ROOT, python, real)).encode("utf-8", "surrogateescape")).hexdigest()[:12]
    name = "{}-{}".format(os.path.splitext(os.path.basename(real))[0] if WINDOWS else os.path.basename(real), digest)
    return os.path.join(ENVIRONMENTS, name + ("-torch-" + torch if torch else ""))


def inputs():
    # type: () -> str
    """A digest of the files that decide what is installed."""
    return hashlib.sha256((text_of("pyproject.toml") + text_of("constraints.txt")).encode("utf-8")).hexdigest()


def text_of(name):
    # type: (str) -> str
    with open(os.path.join(ROOT, name), encoding="utf-8") as file:
        return file.read()


def stamp_of(folder):
    # type: (str) -> Dict[str, Any]
    try:
        with open(os.path.join(folder, "ready.json"), encoding="utf-8") as file:
            stamp = json.load(file)
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def is_ready(folder, tests):
    # type: (str, bool) -> bool
    """Return whether the environment is complete and torch is where it was. It looks at a few files only.

    A torch that the starting Python got since makes it incomplete: from then on that one is the one to use."""
    stamp = stamp_of(folder)
    if stamp.get("inputs") != inputs() or not python_of(folder) or (tests and not stamp["tests"]):
        return False
    if stamp["torch"]:
        return os.path.isdir(stamp["torch"])
    return not any(os.path.isfile(os.path.join(path, "torch", "__init__.py")) for path in stamp["folders"])


def prepare(folder, python, tests, torch):
    # type: (str, str, bool, Optional[str]) -> None
    """Make the environment, or continue one that was cut off or that other inputs made."""
    seen, before = probe(python), stamp_of(folder)
    tests = tests or before.get("tests", False)
    theirs = None if torch else seen["torch"]
    constraints = text_of("constraints.txt")
    needs = requirements("dependencies") + (requirements("test") if tests else [])
    installed = {}  # type: Dict[str, str]
    if theirs:
        installed = {name_of(name): version for name, version in seen["installed"].items()}
        needs = [need for need in needs if name_of(need) != "torch"]
        text = "preparing an environment (only once) that uses torch {} in {} and does not change it"
        say(text.format(installed.get("torch", "(version unknown)"), os.path.dirname(theirs)))
    else:
        if torch:  # another torch needs other versions of its dependencies, and names them
            constraints = re.sub(r"^# what torch needs\n(.+\n)+|^torch==.*\n", "", constraints, flags=re.MULTILINE)
            needs.append("torch==" + torch)
            reason = ""
        else:
            reason = "{} has no torch; to use one that you have, stop this and set GPUCHECK_PYTHON to its Python. "
        size = "about 3 GB with the CUDA libraries" if sys.platform.startswith("linux") else "about 200 MB"
        say("preparing an environment (only once). {}pip fetches torch: {}.".format(reason.format(python), size))
    if before.get("torch") != theirs:  # nothing of another torch may stay
        shutil.rmtree(folder, ignore_errors=True)
    make_venv(folder, seen)
    stamp = {"python": python, "torch": theirs, "folders": [] if torch else seen["folders"], "tests": tests}
    write_stamp(folder, stamp)
    limits = os.path.join(folder, "constraints.txt")
    with open(limits, "w", encoding="utf-8") as file:
        for line in constraints.splitlines():
            if name_of(line) not in installed or name_of(line) in EXACT:
                file.write(line + "\n")
    command = [str(python_of(folder)), "-B", "-m", "pip", "install", "--disable-pip-version-check", "-c", limits]
    trouble = "pip could not install everything; its output is above. The first start needs the network or pip's own "
    trouble += "settings for an index, or set GPUCHECK_PYTHON to a Python that has torch. What was downloaded is kept."
    run(command + (["--quiet"] if theirs else []) + needs, folder, trouble)
    write_stamp(folder, dict(stamp, inputs=inputs()))


def make_venv(folder, seen):
    # type: (str, Dict[str, Any]) -> None
    """An empty venv with a pip, and a .pth file with gpucheck's source and, beside a torch there, with its folders."""
    version = "{}.{}".format(*seen["version"])
    no_venv = (
        "the venv module of {} is missing or incomplete; install it (Debian, Ubuntu: sudo apt install python3-venv, "
    )
    no_venv += "or python{}-venv), or set GPUCHECK_PYTHON to another Python."
    no_venv = no_venv.format(seen["python"], version)
    if not seen["venv"] or not (seen["ensurepip"] or seen["pip"]):
        fail(no_venv)
    run(
        [seen["python"], "-B", "-m", "venv"] + ([] if seen["ensurepip"] else ["--without-pip"]) + [folder],
        ROOT,
        no_venv,
    )
    python = str(python_of(folder))
    ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = subprocess.check_output([python, "-c", ask], cwd=folder).decode("utf-8", "surrogateescape").strip()
    # Lines of code are ASCII whatever the path, and a folder's own .pth files are obeyed. A venv reads them twice.
    lines = ["import sys; {0} in sys.path or sys.path.append({0})\n".format(ascii(os.path.join(ROOT, "src")))]
    for path in seen["folders"] if seen["torch"] else []:
        lines.append("import sys, site; {0} in sys.path or site.addsitedir({0})\n".format(ascii(path)))
    with open(os.path.join(packages, "000-gpucheck.pth"), "w", encoding="ascii") as file:
        file.writelines(lines)
    if not seen["ensurepip"] and not seen["torch"]:  # Debian without python3-venv: the system's pip installs one here
        run([python, "-B", "-m", "pip", "install", "--ignore-installed", "pip"], folder, no_venv, seen["pip"])


def probe(python):
    # type: (str) -> Dict[str, Any]
    """Return what the starting Python has, without importing torch or writing anything there, not even bytecode."""
    try:
        ended = subprocess.run([python, "-B", "-c", PROBE], stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=60)
    except (OSError, subprocess.TimeoutExpired) as error:
        fail("{} cannot be started ({}); set GPUCHECK_PYTHON to another Python.".format(python, error), USAGE)
    found = re.search(r"<probe>(.*)</probe>", ended.stdout.decode("utf-8", "replace"))
    if not found:
        said = (ended.stderr.decode("utf-8", "replace").strip() or "exit {}".format(ended.returncode)).splitlines()[-1]
        fail("{} is no working Python ({}); set GPUCHECK_PYTHON to another one.".format(python, said), USAGE)
    seen = dict(json.loads(found.group(1)), python=python)
    if tuple(seen["version"]) < OLDEST_PYTHON:
        text = "{} is Python {}.{}, and gpucheck needs {}.{} or newer; set GPUCHECK_PYTHON to a newer one."
        fail(text.format(python, *(seen["version"][:2] + list(OLDEST_PYTHON))), USAGE)
    return seen


def requirements(key):
    # type: (str) -> List[str]
    """The strings of the list `key = [...]` in pyproject.toml, in the form that ours has: tomllib came with 3.11."""
    found = re.search(r"^" + key + r" = \[(.*?)^\]", text_of("pyproject.toml"), re.MULTILINE | re.DOTALL)
    assert found, key
    return [double or single for double, single in re.findall(r"\"([^\"]+)\"|'([^']+)'", found.group(1))]


def name_of(requirement):
    # type: (str) -> str
    return re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", requirement)[0]).lower()


def run(command, folder, trouble, path=None):
    # type: (Sequence[str], str, str, Optional[str]) -> None
    """Run one step, its output on stderr, for stdout belongs to the command. It is stopped when this is stopped."""
    environ = {name: value for name, value in os.environ.items() if name not in DROPPED}
    environ.update({"PIP_USER": "0"}, **({"PYTHONPATH": path} if path else {}))
    # The step inherits the lock: after a kill of this process, the next start waits until the step has ended.
    child = subprocess.Popen(command, env=environ, cwd=folder, stdin=subprocess.DEVNULL, stdout=2, close_fds=False)
    try:
        code = child.wait()
    except BaseException:
        child.terminate()
        child.wait()
        raise
    if code:
        fail(trouble)


@contextmanager
def locked():
    # type: () -> Iterator[None]
    """Hold the lock on preparing; wait for whoever has it. The system frees it when all who hold it have ended."""
    os.makedirs(ENVIRONMENTS, exist_ok=True)
    lock = os.open(os.path.join(ENVIRONMENTS, "lock"), os.O_RDWR | os.O_CREAT, 0o666)
    os.set_inheritable(lock, True)
    waiting = "waiting: another start is preparing the environment"
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(lock, msvcrt.LK_LOCK, 1)  # type: ignore[attr-defined,unused-ignore]
    else:
        import fcntl

        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(waiting)
            fcntl.flock(lock, fcntl.LOCK_EX)
        except OSError:
            say("this file system has no locks: let one start at a time prepare the environment")
    try:
        yield
    finally:
        os.close(lock)


def write_stamp(folder, stamp):
    # type: (str, Dict[str, Any]) -> None
    path = os.path.join(folder, "ready.json")
    with open(path + ".new", "w", encoding="utf-8") as file:
        json.dump(stamp, file, indent=1)
    os.replace(path + ".new", path)


def say(text):
    # type: (str) -> None
    sys.stderr.write("gpucheck: " + text + "\n")
    sys.stderr.flush()


def fail(text, code=COULD_NOT_PREPARE):
    # type: (str, int) -> NoReturn
    say(text)
    sys.exit(code)
