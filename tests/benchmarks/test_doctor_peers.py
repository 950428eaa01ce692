"""Doctor's peers before the same faults: how an answer is judged, and what each fault is made of."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import doctor_faults
import doctor_peers
from doctor_faults import CARD, CONTROL, FAULTS, Fault, torch_package
from doctor_peers import IMPORT, OURS, PEERS

linux = pytest.mark.skipif(sys.platform != "linux" or not shutil.which("cc"), reason="fakes need Linux and a compiler")


# --- judging ----------------------------------------------------------------------------------------------------------

FABRIC = "fabric|system not yet initialized"


@pytest.mark.parametrize(
    ("said", "named"),
    [
        ("✗ the fabric between the GPUs is not ready: cuInit returns 802", True),
        ("Cause: \x1b[31mFABRIC\x1b[0m not ready", True),
        ("│ Error 802: system   not yet initialized │", True),
        ("Is CUDA available: False", False),
        ("the fab\nric", False),
        ("", False),
    ],
)
def test_an_answer_names_the_cause_by_its_words(said: str, named: bool) -> None:
    assert doctor_peers.names(FABRIC, said, "Is CUDA available: False") is named


def test_what_is_said_without_the_fault_too_names_nothing() -> None:
    usual = "It may be the driver, the mask or the fabric. Cause: UNKNOWN"
    assert not doctor_peers.names(FABRIC, f"GPU 0. {usual}", usual)
    assert doctor_peers.names(FABRIC, f"{usual}. The fabric manager does not run.", usual)


def test_a_row_tells_who_named_it_who_let_torch_say_it_and_who_hung() -> None:
    answers = {
        "ours": doctor_peers.Answer(True, False, False, "", ""),
        "passes it on": doctor_peers.Answer(False, True, False, "", ""),
        "hangs": doctor_peers.Answer(False, False, True, "", ""),
    }
    told = doctor_peers.line(doctor_peers.Row(Fault("a fault", "x"), answers))
    assert told.split() == ["a", "fault", "named", "(torch)", "-,", "hung"]


def test_the_lines_below_the_table() -> None:
    silent = doctor_peers.Answer(False, False, False, "", "")
    named = doctor_peers.Answer(True, False, False, "", "")
    by_torch = doctor_peers.Answer(False, True, False, "", "")
    hung = doctor_peers.Answer(False, False, True, "", "")
    rows = [
        doctor_peers.Row(Fault("a", "x"), dict(zip((OURS, *PEERS), (named, by_torch, silent, silent), strict=True))),
        doctor_peers.Row(Fault("b", "x"), dict(zip((OURS, *PEERS), (named, hung, hung, named), strict=True))),
    ]
    timed = [
        doctor_peers.Timed("env-doctor", 4.0, 3.0, 0.75, 0.7, 0.8),
        doctor_peers.Timed(IMPORT, 4.0, 3.5, 0.9, 0.8, 1.0),
    ]
    assert doctor_peers.judge(rows, timed) == [
        ("2 of 2 faults named; by the best peer, env-doctor, 1", True),
        ("did not finish within 60 s: gpucheck 0, collect_env 1, cuda-doctor 1, env-doctor 0", True),
        ("without a GPU 4.00 s; env-doctor 3.00 s, 0.75x [0.70, 0.80]", False),
        ("0.50 s beside one import of torch (3.50 s), of 0.6 s", True),
    ]
    rows[1].answers[OURS] = hung
    assert [passed for _, passed in doctor_peers.judge(rows, [])] == [False, False]


@linux
def test_a_tool_that_does_not_end_is_ended_and_what_it_said_is_kept(tmp_path: Path) -> None:
    ended = tmp_path / "ended"
    program = f"(while sleep 0.1; do :; done; touch {ended}) & echo so far; echo beside >&2; wait"
    said = doctor_peers.ask(["sh", "-c", program], dict(os.environ), tmp_path, 1.0)
    assert said == ("so far\n", "beside\n", True)
    assert doctor_peers.ask(["true"], dict(os.environ), tmp_path, 60.0) == ("", "", False)


@pytest.mark.parametrize(
    ("told", "sentence"),
    [
        ("None\n/torch\n0.2.0 0.3.5", "has a torch without CUDA"),
        ("13.0\n/torch\n0.1.0 0.3.5", "has 0.1.0 0.3.5; the comparison is with cuda-doctor 0.2.0, env-doctor 0.3.5"),
    ],
)
@linux
def test_an_interpreter_that_is_not_what_is_compared_is_refused(tmp_path: Path, told: str, sentence: str) -> None:
    python = tmp_path / "python"
    python.write_text(f"#!/bin/sh\nprintf '{told}\\n'\n")
    python.chmod(0o755)
    with pytest.raises(doctor_peers.CannotCompare, match=re.escape(sentence)):
        doctor_peers.torch_of(str(python))


# --- the faults -------------------------------------------------------------------------------------------------------


def test_the_faults_are_whole() -> None:
    assert len(FAULTS) >= 20
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    for fault in FAULTS:
        assert re.compile(fault.words).search("") is None
        assert "/" not in fault.name


@pytest.fixture
def fakes(tmp_path: Path) -> Path:
    folder = tmp_path / "fakes"
    folder.mkdir()
    doctor_faults.compile_fakes(folder)
    return folder


@linux
def test_a_machine_without_a_driver_has_nothing_of_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    monkeypatch.setenv("LD_LIBRARY_PATH", "/somewhere")
    environment, here = doctor_faults.build(CONTROL, tmp_path / "fault", tmp_path, sys.executable, tmp_path)
    assert not {"CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "FAKE_DRIVER", "PYTHONPATH"} & set(environment)
    assert environment["PATH"] == os.environ["PATH"] and list(here.iterdir()) == []


@linux
def test_libraries_are_whole_damaged_or_missing(tmp_path: Path, fakes: Path) -> None:
    fault = Fault("a", "x", cuda=False, nvml=None, folder="lib/stubs", variables={"CUDA_VISIBLE_DEVICES": ""})
    environment, _ = doctor_faults.build(fault, tmp_path / "a", fakes, sys.executable, tmp_path)
    libraries = Path(environment["LD_LIBRARY_PATH"])
    assert libraries.parts[-2:] == ("lib", "stubs") and environment["CUDA_VISIBLE_DEVICES"] == ""
    assert {one.name: one.read_bytes()[:4] for one in libraries.iterdir()} == {"libcuda.so.1": b"not "}
    environment, here = doctor_faults.build(
        Fault("b", "x", files={"y.py": "x"}), tmp_path / "b", fakes, sys.executable, tmp_path
    )
    libraries = Path(environment["LD_LIBRARY_PATH"])
    assert {one.name for one in libraries.iterdir()} == {"libcuda.so.1", "libnvidia-ml.so.1"}
    assert [one.name for one in here.iterdir()] == ["y.py"]


@pytest.mark.parametrize(
    ("script", "arguments", "said"),
    [
        ("nvml.init=!18\n", (), "Failed to initialize NVML: Driver/library version mismatch\n"),
        ("handle=!15\n", (), "Unable to determine the device handle for GPU0: 0000:10:00.0: GPU is lost.  Reboot"),
        (
            "driver=550.54.15\ncuda=12040\n",
            (),
            "| NVIDIA-SMI 550.54.15   Driver Version: 550.54.15   CUDA Version: 12.4",
        ),
        ("", ("-L",), "GPU 0: NVIDIA Fake 100 (UUID: GPU-00000000-0000-0000-0000-000000000000)\n"),
        ("", ("--query-gpu=index,memory.total,compute_cap", "--format=csv,noheader"), "0, 81920 MiB, 9.0\n"),
        ("mig=1\n", (), "MIG Enabled | No MIG devices found"),
        ("compute_mode=3\n", (), "| E. Process |"),
    ],
)
@linux
def test_nvidia_smi_says_what_nvidias_says(
    tmp_path: Path, fakes: Path, script: str, arguments: tuple[str, ...], said: str
) -> None:
    fault = Fault("a", "x", script + CARD)
    environment, here = doctor_faults.build(fault, tmp_path / "a", fakes, sys.executable, tmp_path)
    program = shutil.which("nvidia-smi", path=environment["PATH"])
    assert program is not None
    ended = subprocess.run(
        [program, *arguments], env=environment, cwd=here, capture_output=True, text=True, check=False
    )
    assert said in ended.stdout, ended


@linux
def test_a_package_that_plays_torch_has_collect_env_and_its_metadata(tmp_path: Path) -> None:
    own = tmp_path / "own"
    (own / "utils").mkdir(parents=True)
    (own / "utils" / "collect_env.py").write_text(
        "import torch; print(torch.version.cuda, torch.cuda.is_available())\n"
    )
    write = torch_package(cuda=None, devices=0, also="2.6.0")
    environment, here = doctor_faults.build(
        Fault("a", "x", torch=write, driver=False), tmp_path / "a", tmp_path, sys.executable, own
    )
    program = "import importlib.metadata as m; print(sorted(d.version for d in m.distributions(path=[{!r}])))"
    told = [
        subprocess.run(
            [sys.executable, *one], env=environment, cwd=here, capture_output=True, text=True, check=True
        ).stdout
        for one in (("-m", "torch.utils.collect_env"), ("-c", program.format(environment["PYTHONPATH"])))
    ]
    assert told == ["None False\n", "['2.14.1+cpu', '2.6.0']\n"]
