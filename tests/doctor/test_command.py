"""`gpucheck doctor` from the adapters to its findings: fakes of both libraries, a torch of a few lines, a Python."""

from __future__ import annotations

import json
import re
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_machine import FakeMachine
from shown import sentence

sys.path.insert(0, str(Path(__file__).parent))

from whole import TWO_GPUS, diagnosed, interpreter, root, told, torch_of, worst

from gpucheck.cli.app import main
from gpucheck.doctor import command as doctor
from gpucheck.doctor.options import DoctorOptions
from gpucheck.errors import UsageError
from gpucheck.machine import driver_reads
from gpucheck.machine.choose import UsableDevices
from gpucheck.machine.stack import TorchProbe
from gpucheck.report.results.short import StageStanding

__all__ = ["root"]
Fake = Callable[..., Path]


# --- whole machines ---------------------------------------------------------------------------------------------------


def test_a_healthy_machine(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(TWO_GPUS)
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path))))
    assert worst(report) == []
    assert ("doctor.healthy", "pass") in told(report)
    assert report.summary.exit == 0 and report.summary.verdict == "pass"
    answer = report.results["doctor"]
    assert (answer.first, answer.broken, answer.torch_works) == (None, None, True)
    assert answer.rungs[-1] == StageStanding("run", "held", "kernel and matrix product correct on cuda:0, cuda:1")


def test_a_machine_without_a_gpu_is_no_fault_unless_one_is_required(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(nvml=False, cuda=False)
    python = interpreter(tmp_path, torch_of(tmp_path, **NO_CUDA))
    bare = FakeMachine(tmp_path / "bare").root
    report = diagnosed(DoctorOptions(python=python, root=bare))
    assert told(report) == [("torch.cpu_build", "info"), ("doctor.no_gpu", "info")]
    assert report.summary.exit == 0
    required = diagnosed(DoctorOptions(python=python, require="cuda", root=bare))
    assert told(required)[0] == ("device.required", "fail")
    assert required.summary.exit == 1
    assert required.findings[0].fix is None  # nothing is broken that could be mended


def test_what_is_required_and_missing_is_sent_to_what_is_broken_here(
    fake_driver: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fake_driver(TWO_GPUS)
    python = interpreter(tmp_path, torch_of(tmp_path, **NO_CUDA))
    assert main(["doctor", "--python", python, "--require", "cuda"]) == 1
    printed = capsys.readouterr().out
    assert "→ fix torch.cpu_build first" in printed and "gpucheck doctor" not in printed


def test_what_is_required_is_judged_by_the_torch_that_was_asked(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(TWO_GPUS)
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path)), require="cuda"))
    assert told(report)[0] == ("device.required", "pass") and report.summary.exit == 0


NO_CUDA: dict[str, Any] = {"cuda": None, "count": 0, "architectures": ()}


@pytest.mark.parametrize(
    ("script", "torch", "found", "consequences"),
    [
        ("", NO_CUDA, ["torch.cpu_build"], []),
        ("", {"cuda": "14.0", "count": 0}, ["torch.driver_too_old"], []),
        ("", {"count": 0}, ["torch.sees_none"], []),
        ("", {"architectures": ("sm_50",), "kernel": "1 / 0"}, ["architecture.missing"], []),
        ("", {"kernel": "1 / 0"}, ["run.kernel_failed"], []),
        ("", {"kernel": "__import__('os').abort()"}, ["run.kernel_failed"], []),
        ("", {"top": "import os; os.abort()"}, ["torch.import_broken"], []),
        ("", {"top": "raise ImportError('libcublas.so.12: undefined symbol: x')"}, ["torch.undefined_symbol"], []),
        ("", {"top": "raise ImportError('broken')"}, ["torch.import_broken"], []),
        # A torch that prints is no trouble.
        ("", {"top": "print('{\"stage\": 1}')"}, [], []),
        # A lower rung is named, and torch is its consequence.
        ("cuda.init=!34\n", NO_CUDA, ["library.stub"], ["torch.cpu_build"]),
    ],
    ids=lambda value: value[0] if isinstance(value, list) and value else "",
)
def test_the_first_broken_rung_is_told_alone(
    fake_driver: Fake,
    tmp_path: Path,
    script: str,
    torch: dict[str, Any],
    found: list[str],
    consequences: list[str],
) -> None:
    fake_driver(TWO_GPUS + script)
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path, **torch))))
    answer = report.results["doctor"]
    assert worst(report) == [(name, "fail") for name in found]
    assert answer.first == (found[0] if found else None)
    assert list(answer.consequences) == consequences
    assert report.summary.exit == (1 if found else 0)


def test_a_missing_torch_is_a_fault_without_a_gpu_too(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(nvml=False, cuda=False)
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path), root=FakeMachine(tmp_path / "bare").root))
    assert worst(report) == [("torch.missing", "fail")] and report.summary.exit == 1


def test_a_stray_file_in_the_folder(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(TWO_GPUS)
    Path("timeit.py").write_text("raise SystemExit('stray')")
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path, top="import timeit"))))
    assert worst(report) == [("torch.shadowed", "fail")]
    assert report.findings[0].fix == "rename timeit.py, or run from another folder"


@pytest.mark.slow
def test_a_torch_that_hangs_as_it_is_imported(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(TWO_GPUS)
    site = torch_of(tmp_path, top="import time; time.sleep(600)")
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, site), time_budget_s=5.0))
    assert worst(report) == [("torch.hung", "fail")]
    assert report.findings[0].message == "importing torch did not finish within 5.00 s (raise it with --time-budget)"
    assert report.findings[0].evidence["limit_s"] == 5.0


def test_a_missing_part_of_cudnn_is_told_of_a_torch_that_works(fake_driver: Fake, tmp_path: Path) -> None:
    """No kernel of the doctor's convolves: what a training's first convolution would meet is read from the files."""
    fake_driver(TWO_GPUS)
    site = torch_of(tmp_path)
    record = site / "nvidia_cudnn_cu12-9.10.2.21.dist-info"
    record.mkdir()
    (record / "METADATA").write_text("Metadata-Version: 2.1\nName: nvidia-cudnn-cu12\nVersion: 9.10.2.21\n")
    (record / "RECORD").write_text("nvidia/cudnn/lib/libcudnn_cnn.so.9,sha256=x,1\n")
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, site), skip=("load.",)))
    assert worst(report) == [("torch.missing_libraries", "fail")] and report.summary.exit == 1
    (found,) = [finding for finding in report.findings if finding.id == "torch.missing_libraries"]
    assert found.message == "missing: libcudnn_cnn.so.9, of nvidia-cudnn-cu12==9.10.2.21"
    # Where this is the system's Python, into a new environment.
    assert re.search(r" (--no-deps|torch==\S+) nvidia-cudnn-cu12==9\.10\.2\.21( \(a new|$)", found.fix or "")


STARTS_CUDA = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0)"


@pytest.mark.slow
@pytest.mark.parametrize("where", ["cuda.init", "libcuda"], ids=["as CUDA starts", "before that"])
def test_a_driver_that_hangs_is_told_without_waiting_for_torch(
    fake_driver: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    """torch starts the same driver: its own two minutes are not awaited, and what is known says so."""
    fake_driver(f"{TWO_GPUS}{where}=hang\n")
    monkeypatch.setattr(driver_reads, "ANSWER_S", 1.0)
    monkeypatch.setattr(doctor, "TORCH_GRACE_S", 0.5)
    call = STARTS_CUDA if where == "cuda.init" else STARTS_CUDA.replace("cuInit(0)", "cuDriverGetVersion(b'1234')")
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path, top=call)), require="cuda"))
    answer = report.results["doctor"]
    assert (answer.first, answer.consequences) == ("driver.hung", ())
    said = {finding.id: finding for finding in report.findings}
    why = said["driver.hung"].evidence["torch_not_awaited"]
    assert why.startswith("libcuda did not answer within ") and why.endswith(" s, and torch waits for it too")
    states = {stage.rung: (stage.state, stage.shown_by) for stage in answer.rungs}
    assert states["torch"] == ("unreached", f"not checked: {why}")
    assert states["run"] == ("unreached", "not checked: cuinit is broken")
    assert said["device.required"].verdict == "fail" and "torch.hung" not in said


@pytest.mark.slow
def test_an_interrupt_reaches_a_doctor_whose_driver_hangs(
    fake_driver: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither libcuda's time nor torch's is awaited then, and no child stays."""
    fake_driver(f"{TWO_GPUS}cuda.init=hang\n")
    monkeypatch.setattr(driver_reads, "ANSWER_S", 60.0)
    main_thread = threading.main_thread().ident
    assert main_thread is not None
    before = psutil.Process().children(recursive=True)
    threading.Timer(2.0, signal.pthread_kill, (main_thread, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path, top=STARTS_CUDA))))
    assert [row.cmdline() for row in psutil.Process().children(recursive=True) if row not in before] == []


@pytest.mark.slow
def test_a_driver_that_hangs_at_one_card_may_let_torch_use_another(
    fake_driver: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver(f"{TWO_GPUS}1.cuda.get=hang\n")
    monkeypatch.setattr(driver_reads, "ANSWER_S", 1.0)
    monkeypatch.setattr(doctor, "TORCH_GRACE_S", 0.0)
    site = torch_of(tmp_path, count=1, top="import time; time.sleep(3)")
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, site), skip=("load.",)))
    assert report.results["doctor"].torch_works is True
    # Where torch cannot, it is the driver.
    broken = torch_of(tmp_path / "broken", count=0)
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, broken), skip=("load.",)))
    assert worst(report)[0] == ("driver.hung", "fail")
    assert report.findings[0].message.startswith("cuInit returned; then libcuda did not answer within ")


def test_a_mask_does_not_hide_that_the_driver_asks_for_a_reset(
    fake_driver: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver(TWO_GPUS + "0.recovery_action=1\n")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path, count=0))))
    assert worst(report) == [("mask.hides_all", "fail"), ("devices.recovery_action", "fail")]


def test_a_mask_that_nothing_can_be_held_against_is_the_first_to_be_taken_away(
    fake_driver: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Jetson has no NVML, and a script for servers sets CUDA_VISIBLE_DEVICES=1."""
    fake_driver("nvml.init=!12\nintegrated=1\ncuda.init=!100\n")
    machine = FakeMachine(tmp_path / "jetson").write({"etc/nv_tegra_release": "# R38 (release), REVISION: 2.0\n"})
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    site = torch_of(tmp_path, count=0)
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, site), root=machine.root))
    assert report.results["doctor"].first == "driver.no_device"
    assert report.findings[0].message.endswith("CUDA_VISIBLE_DEVICES='1' may hide a GPU; NVML lists none")
    assert report.findings[0].fix == "unset CUDA_VISIBLE_DEVICES"


@pytest.mark.slow
def test_xid_errors_and_a_card_that_the_driver_does_not_list(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(TWO_GPUS)
    machine = FakeMachine(tmp_path / "other").card(0x10).card(0x11).card(0x12).module().on_disk()
    machine.nodes("nvidiactl", "nvidia-uvm", "nvidia0", "nvidia1").libraries()
    machine.log("NVRM: Xid (PCI:0000:11:00): 119, pid=77, Timeout")
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path)), root=machine.root))
    assert worst(report) == [("devices.unlisted", "inconclusive"), ("log.xid", "fail")]
    machine.log("NVRM: GPU 0000:12:00.0: GPU has fallen off the bus.", "NVRM: GPU at PCI:0000:11:00: GPU-1")
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path / "b")), root=machine.root))
    # Its Xid 79 is the failure, and a card that is known to be lost is no unlisted one.
    assert worst(report) == [("gpu.fallen_off", "warn"), ("log.xid", "fail")] and report.summary.exit == 1
    machine.log("NVRM: GPU 0000:12:00.0: RmInitAdapter failed! (0x62:0x65:1792)")
    report = diagnosed(DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path / "c")), root=machine.root))
    assert worst(report) == [("devices.unlisted", "fail")] and report.summary.exit == 1


# --- what is asked ----------------------------------------------------------------------------------------------------


def test_conditions_are_chosen_by_prefix(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(TWO_GPUS)
    python = interpreter(tmp_path, torch_of(tmp_path, **NO_CUDA))
    report = diagnosed(DoctorOptions(python=python, skip=("torch.",)))
    assert worst(report) == [("doctor.unknown", "inconclusive")]
    assert report.findings[-1].message == "no selected condition matches, or evidence was unreadable"
    only = diagnosed(DoctorOptions(python=python, only=("torch.cpu",)))
    assert worst(only) == [("torch.cpu_build", "fail")] and only.results["doctor"].asked == 1


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (DoctorOptions(only=("torch_",)), "--only 'torch_' matches no condition; did you mean "),
        (DoctorOptions(only=("torch.",), skip=("torch",)), "no condition would be checked"),
        (
            DoctorOptions(python="/no/such/python"),
            "--python /no/such/python cannot be started; No such file or directory",
        ),
        (DoctorOptions(python="/bin/false"), "--python /bin/false is not a Python interpreter; give the path"),
        (DoctorOptions(python="/bin/ls"), "--python /bin/ls is not a Python interpreter; give the path"),
        (DoctorOptions(python="/bin/echo"), "--python /bin/echo is not a Python interpreter; give the path"),
        (DoctorOptions(python="/etc"), "--python /etc cannot be started"),
    ],
)
def test_a_users_mistake_is_one_sentence(fake_driver: Fake, options: DoctorOptions, words: str) -> None:
    fake_driver(nvml=False, cuda=False)
    with pytest.raises(UsageError) as raised:
        diagnosed(options)
    assert words in str(raised.value)


def test_a_folder_with_a_python_in_it_names_that(fake_driver: Fake, tmp_path: Path) -> None:
    fake_driver(nvml=False, cuda=False)
    (tmp_path / "env" / "bin").mkdir(parents=True)
    (tmp_path / "env" / "bin" / "python").symlink_to(sys.executable)
    with pytest.raises(UsageError) as raised:
        diagnosed(DoctorOptions(python=str(tmp_path / "env")))
    assert raised.value.fix == f"gpucheck doctor --python {tmp_path}/env/bin/python"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("echo 'python 2 7'", "is Python 2.7; 3.8 is the oldest supported"),
        (
            "case \"$2\" in 'import sys; '*) printf 'python 3 12';; *) echo torn >&2; exit 1;; esac",
            "exit status 1: torn",
        ),
    ],
)
def test_a_python_that_is_too_old_or_broken_says_so(fake_driver: Fake, tmp_path: Path, body: str, message: str) -> None:
    fake_driver(nvml=False, cuda=False)
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\n{body}\n")
    python.chmod(0o755)
    with pytest.raises(UsageError) as raised:
        diagnosed(DoctorOptions(python=str(python)))
    assert message in str(raised.value) and "def " not in str(raised.value)


@pytest.mark.parametrize(
    ("probe", "usable"),
    [
        (TorchProbe(), UsableDevices(None, 0)),
        (TorchProbe(available=True, count=2, cuda="13.0"), UsableDevices("cuda", 2)),
        (TorchProbe(available=True, count=2, hip="7.0"), UsableDevices("cuda", 2, True)),
        (TorchProbe(available=False, count=2), UsableDevices(None, 0)),
        (TorchProbe(available=False, count=0, other="mps", other_count=1), UsableDevices("mps", 1)),
    ],
)
def test_what_torch_can_use(probe: TorchProbe, usable: UsableDevices) -> None:
    assert doctor.usable(probe) == usable


# --- secrets ----------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.usefixtures("forked_children")
def test_no_value_of_a_variable_that_is_not_on_the_list_is_told(
    fake_driver: Fake, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_driver(TWO_GPUS + "cuda.init=!999\n")
    names = ("CUDA_INJECTION64_PATH", "CUDA_COREDUMP_FILE", "VIRTUAL_ENV", "HF_TOKEN", "CUDA_PROFILE", "CC", "SECRET")
    for name in names:
        monkeypatch.setenv(name, f"hidden-value-of-{name.lower()}")
    from gpucheck.report.codec import to_json

    for options in (DoctorOptions(), DoctorOptions(python=interpreter(tmp_path, torch_of(tmp_path)))):
        document = json.dumps(to_json(diagnosed(options)))
        assert "hidden-value" not in document


# --- through the command line -----------------------------------------------------------------------------------------


def test_through_the_command_line(fake_driver: Fake, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fake_driver(TWO_GPUS)
    python = interpreter(tmp_path, torch_of(tmp_path, count=0, cuda=None, architectures=()))
    assert main(["doctor", "--python", python, "--json"]) == 1
    document = json.loads(capsys.readouterr().out)
    assert document["findings"][0]["id"] == "torch.cpu_build"
    # The interpreter of the tests gets its torch that way.
    assert document["findings"][0]["fix"] == f"remove {tmp_path}/site from PYTHONPATH (unset PYTHONPATH)"
    assert document["results"]["doctor"]["broken"] == "torch"
    assert main(["doctor", "--python", python, "--skip", "torch."]) == 4
    assert "? no known cause found, and torch was not seen to use the GPU" in capsys.readouterr().out
    assert main(["doctor", "--python", "/no/such/python"]) == 2
    assert sentence(capsys.readouterr().err) == (
        "--python /no/such/python cannot be started: No such file or directory; "
        "give the path of a Python interpreter, 3.8 or newer"
    )
