"""`gpucheck doctor --bundle FILE` through the command line: a hundred secrets go in and none comes out."""

from __future__ import annotations

import errno
import json
import os
import random
import stat
import string
import sys
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import pytest
from fake_machine import FakeMachine
from healthy import HEALTHY
from shown import sentence
from whole import elsewhere

from gpucheck.cli.app import main
from gpucheck.doctor import bundle
from gpucheck.doctor.condition import Evidence
from gpucheck.machine import host, inventory, stack
from gpucheck.report.codec import to_json
from gpucheck.report.events import Started
from gpucheck.report.report import Collector, Report

Fake = Callable[..., Path]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the driver is faked as Linux has it")

MEMBERS = {"README.txt", "diagnosis.json"}
# A torch that tells all that it finds in a file and in variables as it is asked, and is built for no GPU.
TORCH = """
import json, os, types, warnings
for line in json.load(open({lines!r})):
    warnings.warn(line)
for name in {variables!r}:
    warnings.warn(f"{{name}} was read: {{os.environ[name]}}, and that is strange")
version = types.SimpleNamespace(cuda=None, hip=None, xpu=None)
__version__ = "2.11.0+cpu"
backends = types.SimpleNamespace()
class cuda:
    get_arch_list = staticmethod(lambda: [])
    is_available = staticmethod(lambda: False)
    device_count = staticmethod(lambda: 0)
"""


# --- what is planted --------------------------------------------------------------------------------------------------

_draw = random.Random(100)


def _word(length: int, letters: str = string.ascii_lowercase) -> str:
    return "".join(_draw.choices(letters, k=length))


# A hundred secrets by where they lie, all different. The archive has listed fields alone: of tokens one shape stands
# for all.
TOKENS = [_word(40, string.ascii_letters + string.digits) for _ in range(30)]
VARIABLES = {f"PLANTED_{n}": f"{_word(7)}-{_word(6)}" for n in range(10)}
PATHS = [f"/srv/{_word(8)}/{_word(7)}" for _ in range(10)]
USERS = [_word(8) for _ in range(15)]
HOSTS = [f"{_word(6)}{n}" for n in range(3)] + [f"{_word(7)}.example" for _ in range(2)]
MAILS = [f"{_word(5)}.{_word(6)}@{_word(7)}.example" for _ in range(8)]
ADDRESSES = [f"10.{n + 1}.{_draw.randrange(250)}.7" for n in range(8)] + ["2001:db8::a1:b2", "02:11:22:33:44:55"]
UUIDS = [f"{_word(8, string.hexdigits)}-0000-1111-2222-{n:012}" for n in range(4)]
NAMES = [_word(12, string.digits) for _ in range(2)] + [f"{_word(6).title()} {_word(8).title()}" for _ in range(6)]
SECRETS = [*TOKENS, *VARIABLES.values(), *PATHS, *USERS, *HOSTS, *MAILS, *ADDRESSES, *UUIDS, *NAMES]


def lines() -> list[str]:
    """Sentences that hold the secrets that programs print."""
    parts = [f"the request with token={secret} was refused" for secret in TOKENS]
    parts += [f"cannot write to {mail}" for mail in MAILS]
    parts += [f"no route to {address}, port 29500" for address in ADDRESSES]
    parts += [f"device {uuid} is gone" for uuid in UUIDS[2:]]
    parts += [f"{path}/x.so is not readable" for path in PATHS]
    return parts + [f"started by {name}" for name in NAMES]


class Rig:
    """A machine on which all of that lies about, and the command run on it."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, fake_driver: Fake) -> None:
        self.folder, self.patch = folder, monkeypatch
        users, hosts = USERS, HOSTS
        script = "nvml.count=2\ncuda.order=0,1\npersistence=1\n0.processes=4242:50,4243:-\n1.processes=4244:7\n"
        script += "".join(f"{n}.uuid=GPU-{uuid}\n" for n, uuid in enumerate(UUIDS[:2]))
        fake_driver(script)
        self.machine = FakeMachine(folder / "root").card(0x10).card(0x11).module().on_disk()
        self.machine.nodes("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1").libraries()
        answer = lines()
        self.machine.log(
            f"NVRM: Xid (PCI:0000:10:00): 13, pid=77, name={users[0]}, Graphics Exception",
            f"NVRM: loaded by {users[1]} on {hosts[0]}.{hosts[3]}, not by malice, and {users[1]}hood is no user",
            *(f"NVRM: {line}" for line in answer[::2]),
        )
        accounts = "".join(
            f"{name}:x:{1000 + n}:100:{full},,,:/home/{name}:/bin/sh\n"
            for n, (name, full) in enumerate(zip(users[:6], NAMES[2:], strict=True))
        )
        self.machine.write(
            {
                "etc/passwd": f"root:x:0:0:root:/root:/bin/sh\n{accounts}",
                "etc/hostname": f"{hosts[0]}\n",
                "etc/hosts": f"10.0.0.1 {hosts[0]}.{hosts[3]} {hosts[0]} {hosts[1]}\n",
                "etc/resolv.conf": f"search {hosts[4]}\n",
                "proc/driver/nvidia/gpus/0000:10:00.0/information": f"GPU UUID: GPU-{UUIDS[0]}\n",
                "proc/driver/nvidia/params": f'RegistryDwords: "on {hosts[1]}.{hosts[4]} at {hosts[2]}"\n',
            }
        )
        for user in users[6:9]:
            (self.machine.root / "home" / user).mkdir(parents=True)
        self._adapters()
        site = self._torch([line for n, line in enumerate(answer) if n % 2])
        for name, value in {**VARIABLES, "SUDO_USER": users[9], "HOSTNAME": hosts[2]}.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(PATHS))
        monkeypatch.setenv("CUDA_MPS_PIPE_DIRECTORY", f"/home/{users[10]}/mps")
        self.python = folder / "home" / users[11] / "python"
        self.python.parent.mkdir(parents=True)
        self.python.write_text(f'#!/bin/sh\nPYTHONPATH="{site}" exec "{sys.executable}" -S "$@"\n')
        self.python.chmod(0o755)

    def _adapters(self) -> None:
        """The command line has no other root: the adapters are given this one."""
        for reader, name in ((inventory, "Inventory"), (stack, "read")):
            self.patch.setattr(reader, name, elsewhere(getattr(reader, name), self.machine.root))
        users = USERS
        # The kernel keeps 15 letters of a process's name.
        names = {4242: f"{users[12]}_train", 4243: f"py {users[0]}", 4244: USERS[13]}
        self.patch.setattr(host, "link_name", lambda path: host.HOST_NAMESPACE)
        self.patch.setattr(host, "process_name", names.get)

    def _torch(self, row: list[str]) -> Path:
        users = USERS
        # What a name stands in once is known for one everywhere.
        row = [*row, f"{users[14]} owns it: /data/home/{users[14]}/x", f"also {users[13]}: /Users/{users[13]}/y"]
        row += [f"{users[n]} and {users[n]}hood in /home/{users[n]}/z" for n in (2, 3, 4, 5, 6, 7, 8, 9, 12)]
        package = self.folder / "site" / "torch"
        package.mkdir(parents=True)
        (self.folder / "lines").write_text(json.dumps(row))
        package.joinpath("__init__.py").write_text(
            TORCH.format(lines=str(self.folder / "lines"), variables=list(VARIABLES))
        )
        package.joinpath("version.py").write_text("__version__ = '2.11.0+cpu'\ncuda = None\nhip = None\n")
        return package.parent

    def run(self, name: str = "bundle.zip", *more: str) -> dict[str, str]:
        """The members of the archive that the command writes."""
        path = self.folder / name
        arguments = ["doctor", "--python", str(self.python), "--bundle", str(path), "--quiet", *more]
        self.patch.setattr(sys, "argv", ["gpucheck", *arguments])
        assert main(arguments) == 1
        return unpacked(path)


def report_of(evidence: Evidence) -> Report:
    collector = Collector()
    collector(Started(evidence.facts))
    return collector.report(version="0", command="doctor", argv=(), started="", elapsed_s=0.0)


def unpacked(path: Path) -> dict[str, str]:
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name).decode() for name in archive.namelist()}


@pytest.fixture
def rig(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fake_driver: Fake) -> Iterator[Rig]:
    for name in ("VIRTUAL_ENV", "CONDA_PREFIX", "CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CC"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    yield Rig(tmp_path, monkeypatch, fake_driver)


# --- none of it comes out ---------------------------------------------------------------------------------------------


def found(files: dict[str, str]) -> set[str]:
    """Which secrets stand in the files, as they are or as JSON writes them."""
    whole = "\n".join(files.values())
    return {row for row in SECRETS if row in whole or json.dumps(row)[1:-1] in whole}


def test_a_hundred_secrets_go_in_and_none_comes_out(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    assert len(set(SECRETS)) == 100
    files = rig.run()
    assert set(files) == MEMBERS
    assert found(files) == set()
    # What it is made of holds them, but for users, hosts and variables that nobody reads.
    held: list[Evidence] = []

    def members(report: Report, evidence: Evidence) -> dict[str, str]:
        held.append(evidence)
        return {}

    monkeypatch.setattr(bundle, "members", members)
    rig.run()
    read = json.dumps(to_json(held[0]))
    assert len([row for row in SECRETS if json.dumps(row)[1:-1] in read]) > 60


def test_every_text_is_told_only_as_its_field_looks() -> None:
    """A text of another shape in any listed field is left out."""
    texts = [(path, name) for path, listed in bundle.LISTED.items() for name in listed.split()]
    assert len(texts) > 60
    for path, name in texts:
        secret = "me@example.org, /home/me/key"
        answer = bundle._listed({name.replace("*", "any"): secret}, path)
        assert list(answer.values()) == ["(left out)"], (path, name)
        assert bundle._listed({name.replace("*", "any"): [secret]}, path) == {name.replace("*", "any"): []}


def test_a_field_that_is_not_listed_is_not_told() -> None:
    answer = bundle._listed({"uuid": "GPU-1", "serial": 7, "name": "NVIDIA H200", "processes": [{"pid": 1}]}, "devices")
    assert answer == {"name": "NVIDIA H200"}


def test_the_archive_still_says_what_is_broken(rig: Rig) -> None:
    files = rig.run()
    assert set(files) == MEMBERS
    document = json.loads(files["diagnosis.json"])
    assert document["ladder"]["first"] == "torch.cpu_build"
    assert {"torch.cpu_build", "log.xid"} <= {row["id"] for row in document["findings"]}
    assert document["probe"]["version"] == "2.11.0+cpu" and document["driver"]["cuinit_code"] == 0
    assert [device["name"] for device in document["devices"]][:2] == ["NVIDIA Fake 100"] * 2
    assert document["driver"]["xids"][0]["number"] == 13
    assert document["processes"] == {"cuda:0": 2, "cuda:1": 1}
    assert document["variables"]["PYTHONPATH"] is None  # its name alone
    assert {row["path"] for row in document["stack"]["nodes"]} >= {"/dev/nvidiactl", "/dev/nvidia0"}
    assert "Please review it before you share it" in files["README.txt"]


def test_a_mask_is_told_without_uuids(monkeypatch: pytest.MonkeyPatch) -> None:
    facts = replace(HEALTHY.facts, environment={"CUDA_VISIBLE_DEVICES": "GPU-12345678-1234,1", "OMP_NUM_THREADS": "8"})
    files = bundle.members(report_of(HEALTHY), replace(HEALTHY, facts=facts))
    variables = json.loads(files["diagnosis.json"])["variables"]
    assert (variables["CUDA_VISIBLE_DEVICES"], variables["OMP_NUM_THREADS"]) == ("0,1", "8")


def test_what_was_cut_off_before_anything_was_read_says_so() -> None:
    report = Collector().report(version="0", command="doctor", argv=(), started="", elapsed_s=0.0, complete=False)
    document = json.loads(bundle.members(report, None)["diagnosis.json"])
    assert document == {"gpucheck": "0", "started": "", "findings": [], "ladder": None}


# --- the file ---------------------------------------------------------------------------------------------------------


def test_the_file_is_its_owners_and_replaces_an_old_one(rig: Rig) -> None:
    path = rig.folder / "bundle.zip"
    path.write_text("old")
    path.chmod(0o644)
    rig.run()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [row.name for row in rig.folder.iterdir() if "bundle" in row.name] == ["bundle.zip"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bundle", "--bundle 'bundle' has an unknown format; end the name in .zip"),
        (".zip", "--bundle '.zip' has an unknown format; end the name in .zip"),
        ("no/folder/x.zip", "--bundle 'no/folder/x.zip' cannot be written; No such file or directory"),
        ("folder.zip", "--bundle 'folder.zip' is a folder; give a file"),
    ],
)
def test_a_file_that_cannot_be_is_said_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder.zip").mkdir()
    assert main(["doctor", "--bundle", name]) == (3 if "cannot be written" in words else 2)
    assert words in sentence(capsys.readouterr().err)
    assert main(["doctor", "--python", "/no/such/python", "--bundle", "x.zip"]) == 2
    assert [row.name for row in tmp_path.iterdir()] == ["folder.zip"]


def test_a_full_disk_costs_neither_the_diagnosis_nor_the_old_file(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = rig.folder / "bundle.zip"
    path.write_text("old")

    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", full)
    # A failed check stays one.
    assert main(["doctor", "--python", str(rig.python), "--bundle", str(path)]) == 1
    assert main(["doctor", "--python", str(rig.python), "--skip", "torch.", "--bundle", str(path)]) == 3
    printed = capsys.readouterr()
    assert printed.out.startswith("✗ this torch is a CPU-only build")
    assert sentence(printed.err).startswith(
        f"--bundle '{path}' cannot be written; No space left on device; free disk space"
    )
    assert path.read_text() == "old"
    assert [row.name for row in rig.folder.iterdir() if "bundle" in row.name] == ["bundle.zip"]
