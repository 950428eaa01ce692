"""Real launchers: torchrun with each rank as a node of its own, or all ranks on one, one of them in trouble; two hosts
as network namespaces, which share nothing but the launcher's log; mpirun."""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from gpucheck.cli.app import main
from gpucheck.machine import child

pytest.importorskip("torch")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="torchrun with signals, as on clusters"),
]

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def loaded_already(request: pytest.FixtureRequest) -> None:
    """Let torchrun have torch as it begins, but for one case, which goes the whole way."""
    if not request.node.name.endswith("[2]"):
        request.getfixturevalue("forked_children")


# What a rank runs: the command itself, with what goes wrong planted where a child is started.
RANK = """
import os, signal, sys, time
from gpucheck.cli.app import main
from gpucheck.fleet import documents
from gpucheck.machine import child

folder, fault, hosts = sys.argv[1:]
rank = os.environ["RANK"]
host = "one" if hosts == "one" else f"n{rank}"
if hosts != "one":
    os.environ["LOCAL_RANK"] = "0"  # each rank is a node of its own
run = child.run

def until(done):
    while not done():
        time.sleep(0.1)

def has_ended():
    path = documents.place(__import__("pathlib").Path(folder), "n0", os.environ["TORCHELASTIC_RUN_ID"])
    return path.exists() and b'"exit":null' not in path.read_bytes()

def faulty(*given, **more):
    if "gpucheck.cli.app" not in " ".join(given[0]):
        return run(*given, **more)  # the child that writes the document
    if fault in ("killed", "raises"):
        until(has_ended)  # torchrun ends the others with it
    if fault == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "culprit":
        until(lambda: len([one for one in os.listdir(folder) if one.startswith("begun")]) == 2)
        os.kill(os.getpid(), signal.SIGKILL)
    if fault == "stopped":
        open(os.path.join(folder, "pid"), "w").write(str(os.getpid()))
        os.kill(os.getpid(), signal.SIGSTOP)
    if fault == "raises":
        raise RuntimeError("planted")
    if fault == "slow":
        time.sleep(6)
    return run(*given, **more)

def waiting(*given, **more):
    if "gpucheck.cli.app" not in " ".join(given[0]):
        return run(*given, **more)
    open(os.path.join(folder, "begun" + rank), "w").close()
    time.sleep(600)  # torchrun ends it

if rank == "1":
    child.run = faulty
elif fault == "culprit":
    child.run = waiting
given = ["--only", "devices", "--devices", "0", "--gather", folder, "--host", host, "--within", "60s", "--quiet"]
code = main(["fleet", "check", *given])
if rank == "1" and fault == "half":
    path = documents.place(__import__("pathlib").Path(folder), host, os.environ["TORCHELASTIC_RUN_ID"])
    path.write_bytes(path.read_bytes()[:200])
sys.exit(code)
"""


def start(tmp_path: Path, ranks: int, fault: str = "", hosts: str = "many") -> tuple[subprocess.Popen[bytes], Path]:
    """torchrun with so many ranks; the folder of the documents."""
    script, folder = tmp_path / "rank.py", tmp_path / "documents"
    script.write_text(RANK)
    folder.mkdir()
    argv = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(ranks), "--rdzv-backend", "c10d"]
    argv += ["--rdzv-endpoint", "127.0.0.1:0", "--rdzv-id", "tonight", str(script), str(folder), fault, hosts]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path), "OMP_NUM_THREADS": "1"}
    return child._popen(argv, environment, wants_stdin=False), folder


def ended(process: subprocess.Popen[bytes], timeout_s: float = 240.0) -> bytes:
    """Wait for torchrun's end, and return what it and its ranks have printed."""
    return b"".join(process.communicate(timeout=timeout_s))


def judged(folder: Path, ranks: int, *more: str) -> tuple[int, dict[str, Any]]:
    """The exit status of `fleet judge`, and of each node its row."""
    argv = ["fleet", "judge", str(folder), "--json", "--quiet", "--max-bad", "50%"]
    with contextlib.redirect_stdout(io.StringIO()) as said:
        code = main([*argv, "--expect", f"n[0-{ranks - 1}]", *more])
    return code, {row["host"]: row for row in json.loads(said.getvalue())["results"]["fleet_judge"]["nodes"]}


@pytest.mark.parametrize("ranks", [4])
def test_all_is_well(tmp_path: Path, ranks: int) -> None:
    process, folder = start(tmp_path, ranks)
    said = ended(process)
    assert process.returncode == 0, said
    code, rows = judged(folder, ranks)
    assert code == 0
    assert {host: row["state"] for host, row in rows.items()} == {f"n{rank}": "good" for rank in range(ranks)}


def test_of_four_ranks_on_a_node_one_works(tmp_path: Path) -> None:
    process, folder = start(tmp_path, 4, hosts="one")
    said = ended(process)
    assert process.returncode == 0, said
    assert said.count(b"another rank of one checks it") == 3
    assert len(list(folder.rglob("*.json"))) == 1


@pytest.mark.parametrize("fault", ["killed", "raises"])
def test_a_rank_that_dies_is_silent_with_its_step(tmp_path: Path, fault: str) -> None:
    process, folder = start(tmp_path, 2, fault)
    said = ended(process)
    assert process.returncode != 0, said
    code, rows = judged(folder, 2)
    assert code == 1
    assert (rows["n0"]["state"], rows["n1"]["state"], rows["n1"]["step"]) == ("good", "silent", "devices")


def test_a_rank_that_is_killed_differs_from_those_that_end_with_it(tmp_path: Path) -> None:
    process, folder = start(tmp_path, 3, "culprit")
    said = ended(process)
    assert process.returncode != 0, said
    code, rows = judged(folder, 3)
    assert code == 4  # all are silent, and the check is suspect
    assert {(row["state"], row["step"]) for row in rows.values()} == {("silent", "devices")}
    assert next(iter(rows)) == "n1" and rows["n1"]["cause"].startswith("stopped at devices")
    assert {rows[host]["cause"].partition(",")[0] for host in ("n0", "n2")} == {"ended by SIGTERM at devices"}


def test_a_rank_that_is_stopped_is_silent_and_the_judge_does_not_hang(tmp_path: Path) -> None:
    process, folder = start(tmp_path, 2, "stopped")
    pid = folder / "pid"
    deadline = time.monotonic() + 120
    try:
        while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
            time.sleep(0.2)
        code, rows = judged(folder, 2, "--wait", "4s")
    finally:
        if pid.exists() and pid.read_text():
            os.kill(int(pid.read_text()), signal.SIGKILL)
        ended(process, 120.0)
    assert code == 1
    assert (rows["n1"]["state"], rows["n1"]["step"]) == ("silent", "devices")


# Two hosts with a name, a network and a temporary folder of their own. The namespaces end with this script.
HOSTS = """
set -e
mount -t tmpfs tmpfs /run
printf '127.0.0.1 localhost\\n10.77.0.1 node0\\n10.77.0.2 node1\\n' > /run/hosts
mount --bind /run/hosts /etc/hosts
ip netns add h0
ip netns add h1
ip link add v0 netns h0 type veth peer name v1 netns h1
for n in 0 1; do
    ip -n h$n addr add 10.77.0.$((n + 1))/24 dev v$n
    ip -n h$n link set v$n up
    ip -n h$n link set lo up
    mkdir tmp$n
done
pids=
for n in 0 1; do
    TMPDIR=$PWD/tmp$n ip netns exec h$n unshare --uts sh -c "hostname node$n; exec $LAUNCH" &
    pids="$pids $!"
done
for pid in $pids; do wait $pid; done
"""


def _has_namespaces() -> bool:
    try:
        made = "mount -t tmpfs tmpfs /run && ip netns add h0"
        return subprocess.run(["unshare", "-rmn", "sh", "-c", made], capture_output=True, check=False).returncode == 0
    except OSError:
        return False


def test_two_hosts_that_share_a_log_alone(tmp_path: Path) -> None:
    if not _has_namespaces():
        pytest.skip("no namespaces here: unshare and ip have to be there and allowed")
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", "--nproc-per-node", "2"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "10.77.0.1:29611", "--rdzv-id", "tonight", "--no-python"]
    check = [sys.executable, "-m", "gpucheck", "fleet", "check", "--only", "devices", "--devices", "0"]
    check += ["--within", "60s", "--gather", "-"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "LAUNCH": shlex.join([*torchrun, *check])}
    done = subprocess.run(
        ["unshare", "-rmn", "sh", "-c", HOSTS], cwd=tmp_path, env=environment, capture_output=True, timeout=240,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count(b"another rank of node") == 2
    (tmp_path / "job.log").write_bytes(done.stderr)
    code, rows = judged(tmp_path / "job.log", 2, "--expect", "node[0-1]")
    assert (code, [row["state"] for row in rows.values()]) == (0, ["good", "good"])


@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed")
def test_of_four_ranks_of_mpirun_one_works(tmp_path: Path) -> None:
    # Root and more ranks than cores are for tests alone; as variables both are known to Open MPI 3 and later.
    allowed = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    environment = {**os.environ, **allowed, "PYTHONPATH": str(ROOT / "src"), "TMPDIR": str(tmp_path)}
    argv = ["mpirun", "--oversubscribe", "-n", "4", sys.executable, "-m", "gpucheck", "fleet", "check"]
    argv += ["--only", "devices", "--devices", "0", "--host", "n0", "--gather", str(tmp_path / "documents"), "--quiet"]
    done = subprocess.run(argv, env=environment, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count(b"another rank of n0 checks it") == 3
    code, rows = judged(tmp_path / "documents", 1)
    assert (code, rows["n0"]["state"]) == (0, "good")
