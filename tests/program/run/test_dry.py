"""`gpucheck run --dry`: ordinary scripts are judged to the end in silence, mistakes are found at their lines."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from preloaded import Gpucheck

from gpucheck.cli import app

PROGRAMS = Path(__file__).parent.parent.parent / "programs" / "dry"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix", reason="memory is shared as POSIX has it"),
]
NEEDS = {"trainer.py": "transformers", "light.py": "lightning", "accelerated.py": "accelerate"}
ORDINARY = sorted(entry.name for entry in PROGRAMS.glob("*.py") if entry.name != "mistakes.py")
# gloo sends bytes, which a tensor without values has not.
NEED_VALUES = {"distributed.py": "= DistributedDataParallel("}
MISTAKES = re.findall(r"# (\w+)$", (PROGRAMS / "mistakes.py").read_text(), re.MULTILINE)


# Most programs run in a process forked from one that has loaded torch. These go the whole way of a user's, as does one
# test of each other kind.
WHOLE = ("compiled.py",)
WHOLE_WITHOUT_VALUES = ("resume.py",)
WITHOUT_VALUES = ("distributed.py", "gan.py", "mlp.py", "resume.py", "transformer.py")
Dry = Callable[..., dict[str, Any]]


@pytest.fixture
def dry(tmp_path: Path, gpucheck: Gpucheck) -> Dry:
    """`dry(program, …)`: the document of a dry run, with the screen in `screen` and the program's own output in
    `stdout`."""

    def document_of(
        *given: str, status: int | None = 0, cwd: Path = PROGRAMS, device: str = "cuda", whole: bool = False
    ) -> dict[str, Any]:
        file = tmp_path / "dry.json"
        done = gpucheck("run", "--dry", device, "--output", str(file), *given, cwd=cwd, whole=whole)
        assert status is None or done.returncode == status, done.stderr
        document: dict[str, Any] = json.loads(file.read_text())
        # A fork whose import of torch was not noticed is a fault of the test's.
        assert whole or "run_dry" in document["results"]
        return {**document, "screen": done.stderr, "stdout": done.stdout, "status": done.returncode}

    return document_of


def line_of(program: str, text: str) -> int:
    """The first line of a program that holds the text."""
    return next(n for n, line in enumerate((PROGRAMS / program).read_text().splitlines(), 1) if text in line)


def wrong(document: dict[str, Any]) -> list[tuple[str, str]]:
    return [
        (entry["id"], entry["title"]) for entry in document["findings"] if entry["verdict"] in ("fail", "inconclusive")
    ]


@pytest.mark.parametrize("name", ORDINARY)
def test_an_ordinary_script_is_judged_to_its_end(name: str, dry: Dry) -> None:
    if name in NEEDS and importlib.util.find_spec(NEEDS[name]) is None:
        pytest.skip(f"{NEEDS[name]} is not installed")
    assert wrong(dry(name, whole=name in (*WHOLE, *NEEDS))) == []


@pytest.mark.parametrize("name", WITHOUT_VALUES)
def test_without_values_a_script_is_judged_or_says_where_it_needs_them(name: str, dry: Dry) -> None:
    document = dry("--no-values", name, status=None, whole=name in WHOLE_WITHOUT_VALUES)
    if name in NEED_VALUES:
        place = f"{name}:{line_of(name, NEED_VALUES[name])}"
        assert wrong(document) == [("run.dry.followed", f"not judged from {place} on")]
    else:
        assert wrong(document) == []


@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_is_found_at_its_line(name: str, dry: Dry) -> None:
    line = line_of("mistakes.py", f"# {name}")
    ((identifier, title),) = wrong(dry("mistakes.py", name, status=1))
    assert identifier == ("run.dry.dtype" if name == "half_input" else "run.dry.mismatch")
    assert title.startswith(f"mistakes.py:{line}")


def test_the_corrected_twins_of_all_mistakes_are_silent(dry: Dry) -> None:
    assert wrong(dry("mistakes.py", *MISTAKES, "twin")) == []


def test_a_warning_names_the_programs_line(dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "warns.py").write_text(
        'import torch\nx = torch.ones(3, device="cuda", requires_grad=True) * 2\nx.sum().backward()\nx.grad\n'
    )
    screen = dry("warns.py", cwd=tmp_path, status=None)["screen"]
    assert "warns.py:4: UserWarning: The .grad attribute" in screen


def test_parameters_gradients_and_states_are_exact(dry: Dry) -> None:
    memory = dry("mlp.py")["results"]["run_dry"]["memory"]
    size = 4 * (16 * 32 + 32 + 32 * 4 + 4)
    seen = (memory["parameters_bytes"], memory["gradients_bytes"], memory["optimizer_bytes"])
    assert seen == (size, size, 2 * size)
    assert memory["peak"]["allocated_bytes"] % 512 == 0


LARGE = """
import torch
kept = []
for _ in range(5):
    kept.append(torch.empty(2**20, device="cuda"))  # 4 MiB
print(torch.cuda.memory_allocated(), torch.cuda.mem_get_info())
"""


def test_more_than_the_memory_is_found_at_the_line_that_asked(dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "large.py").write_text(LARGE)
    document = dry("large.py", cwd=tmp_path, device="cuda:10MiB", status=1, whole=True)
    assert wrong(document) == [("run.dry.memory", "out of memory")]
    exceeded = document["results"]["run_dry"]["memory"]["exceeded"]
    assert (exceeded["place"], exceeded["asked_bytes"], exceeded["allocated_bytes"]) == (
        "large.py:5",
        4 * 2**20,
        12 * 2**20,
    )
    assert document["stdout"].split()[0] == str(20 * 2**20)
    assert wrong(dry("large.py", cwd=tmp_path, device="cuda:32MiB")) == []


def test_it_ends_after_the_steps_that_were_asked_for(dry: Dry) -> None:
    document = dry("--steps", "3", "mlp.py", whole=True)
    assert document["results"]["run_dry"]["steps"] == 3
    assert document["results"]["run_dry"]["ended_after_steps"]
    assert [line.split()[0] for line in document["stdout"].splitlines()] == ["0", "1", "2"]


LOOPS = """
import torch
from torch.utils.data import DataLoader, TensorDataset
model = torch.nn.Linear(4, 2).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
data = DataLoader(TensorDataset(torch.randn(64, 4)), 4)
def train():
    rounds = 0
    for (x,) in data:
        model(x.cuda()).sum().backward()
        optimizer.step()
        rounds += 1
    return rounds
def evaluate(where):
    for (x,) in data:
        model(x.to(where))
"""


def test_what_follows_a_loop_over_a_loader_is_judged(dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(LOOPS + "for _ in range(2):\n    print(train())\nevaluate('cpu')\n")
    document = dry("prog.py", cwd=tmp_path, status=1)
    assert document["stdout"] == "2\n2\n"
    assert [name for name, _ in wrong(document)] == ["run.dry.mismatch"]


def test_gathered_gradients_make_their_steps(dry: Dry, tmp_path: Path) -> None:
    gathered = LOOPS.replace(
        "        optimizer.step()\n", "        if rounds % 4 == 3:\n            optimizer.step()\n"
    )
    (tmp_path / "prog.py").write_text(gathered + "print(train())\nevaluate('cuda')\n")
    document = dry("prog.py", cwd=tmp_path)
    assert (document["stdout"], document["results"]["run_dry"]["steps"]) == ("8\n", 2)


GATHERED = """
import torch
model = torch.nn.Linear(64, 64, bias=False).cuda()
optimizer = torch.optim.SGD(model.parameters(), 0.1)
kept, x = [], torch.randn(256, 64, device="cuda")
for part in range(4):
    kept.append(model(x).relu())  # forward
    kept[-1].sum().backward()
optimizer.step()
"""


def test_a_forward_pass_after_gathered_gradients_is_no_step(dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(GATHERED)
    held = dry("prog.py", cwd=tmp_path)["results"]["run_dry"]["memory"]["peak"]["held"]
    line = 1 + GATHERED[: GATHERED.index("# forward")].count("\n")
    assert {entry["phase"] for entry in held if entry["place"] == f"prog.py:{line}"} == {"forward"}


def test_a_loop_without_an_end_is_ended_and_what_follows_it_is_named(dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(
        LOOPS + "while True:\n    train()\n    if optimizer is None:\n        break\nevaluate('cpu')\n"
    )
    document = dry("prog.py", cwd=tmp_path)
    result = document["results"]["run_dry"]
    assert (result["steps"], result["ended_after_steps"], result["not_reached"]) == (6, True, ["evaluate()"])
    first = "✓ cuda:0 (simulated GPU): no tensor was on the wrong device in what ran; evaluate() was not reached"
    assert first in " ".join(document["screen"].split())


def test_an_error_after_a_loop_was_ended_early_is_a_remark(dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(LOOPS + "rounds = train()\nassert rounds == 16, rounds\nevaluate('cpu')\n")
    document = dry("prog.py", cwd=tmp_path)
    assert document["results"]["run_dry"]["not_reached"] == ["evaluate()"]
    (said,) = [entry for entry in document["findings"] if entry["id"] == "run.dry.remark"]
    assert said["title"] == "the program ended with AssertionError"


SAVING = """
torch.save(model.state_dict(), "new.pt")
before = torch.load("new.pt")
train()
torch.save(model.state_dict(), "best.pt")
with open("log.txt", "w") as file:
    file.write("new")
os.replace("new.pt", "older.pt")
torch.save(1, "made.pt")
torch.save(2, "made.pt")
print(torch.load("made.pt"))
"""


def test_no_file_from_before_is_written_over_once_a_loop_was_ended(dry: Dry, tmp_path: Path) -> None:
    kept = ("best.pt", "log.txt", "older.pt")
    for name in kept:
        (tmp_path / name).write_text("kept")
    (tmp_path / "prog.py").write_text("import os" + LOOPS + SAVING)
    document = dry("prog.py", cwd=tmp_path)
    assert [(tmp_path / name).read_text() for name in kept] == ["kept"] * 3
    assert document["stdout"] == "2\n"
    seen = [entry["title"] for entry in document["findings"] if entry["id"] == "run.dry.remark"]
    assert seen == [f"not overwritten, because loops were ended early: {name}" for name in kept]


CAUGHT = """
import torch
x = torch.ones(2, device="cuda")
try:
    x + torch.ones(2)
except RuntimeError as error:
    print(type(error).__name__, "same device" in str(error))
"""


GROUP = """
import os, torch, torch.distributed as dist
os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0", RANK="0", WORLD_SIZE="1")
dist.init_process_group("{backend}")
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(2, 2).cuda())
model(torch.ones(2, 2, device="cuda")).sum().backward()
objects = [None]
dist.all_gather_object(objects, {{"a": 1}})
dist.barrier()
on_host = dist.new_group(backend="gloo")
dist.all_reduce(torch.ones(2), group=on_host)
group, x = dist.new_group([0]), torch.ones(2, device="cuda")
print(dist.get_backend(), dist.get_backend(group), dist.get_backend(on_host))
{call}
dist.destroy_process_group()
"""
SENT = {
    "all_reduce": "dist.all_reduce(x{cpu})",
    "broadcast": "dist.broadcast(x{cpu}, 0, group=group)",
    "gathered": "dist.all_gather([torch.zeros(2{device})], x)",
    "coalesced": "dist.all_gather_into_tensor(torch.zeros(2{device}), x)",
    "later": "dist.all_reduce(x{cpu}, async_op=True).wait()",
}


@pytest.mark.parametrize("name", SENT)
def test_nccl_takes_no_tensor_of_the_cpu(name: str, dry: Dry, tmp_path: Path) -> None:
    def judged(status: int, backend: str = "nccl", **put: str) -> dict[str, Any]:
        (tmp_path / "sends.py").write_text(GROUP.format(call=SENT[name].format(**put), backend=backend))
        return dry("sends.py", cwd=tmp_path, status=status)

    document = judged(1, cpu=".cpu()", device="")
    ((identifier, title),) = wrong(document)
    assert (identifier, title.split()[0]) == ("run.dry.mismatch", "sends.py:14")
    assert "RuntimeError: No backend type associated with device type cpu" in document["screen"]
    right = judged(0, cpu="", device=", device='cuda'")
    assert wrong(right) == [] and right["stdout"].split() == ["nccl", "nccl", "gloo"]
    assert wrong(judged(0, "cpu:gloo,cuda:nccl", cpu=".cpu()", device=", device='cuda'")) == []


def test_what_the_program_catches_is_a_warning(dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "caught.py").write_text(CAUGHT)
    document = dry("caught.py", cwd=tmp_path)
    assert wrong(document) == []
    assert document["summary"]["verdict"] == "warn"
    seen = [entry for entry in document["findings"] if entry["id"] == "run.dry.mismatch"]
    assert [(entry["verdict"], entry["evidence"]["times"]) for entry in seen] == [("warn", 1)]


@pytest.mark.parametrize(("given", "code"), [((), 0), (("--strict",), 1)])
def test_strict_counts_a_warning_as_a_failure(
    given: tuple[str, ...], code: int, gpucheck: Gpucheck, tmp_path: Path
) -> None:
    (tmp_path / "prog.py").write_text(CAUGHT)
    done = gpucheck("run", "--dry", "cuda", *given, "--output", "run.json", "prog.py", cwd=tmp_path)
    summary = json.loads((tmp_path / "run.json").read_text())["summary"]
    assert (done.returncode, summary["exit"], summary["verdict"]) == (code, code, "fail" if code else "warn")


def test_a_gpu_that_is_not_there_raises_and_is_inconclusive(dry: Dry, tmp_path: Path) -> None:
    """How many GPUs the program will have, nobody said: one is simulated."""
    (tmp_path / "beyond.py").write_text("import torch\nx = torch.ones(2).cuda()\nx.to('cuda:1')\n")
    document = dry("beyond.py", cwd=tmp_path, status=1)
    assert wrong(document) == [("run.dry.followed", "not judged from beyond.py:3 on")]
    assert "the program needs 2 GPUs, simulate them with --dry cuda:SIZEx2" in document["screen"]


PARALLEL = """
import torch
from torch import nn
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 4)
        self.register_buffer("mean", torch.zeros(4))
    def forward(self, x):
        return {"loss": (self.inner(x) - self.mean + torch.ones(4, device="cuda")).sum()}
net = nn.DataParallel(Net().to("cuda"))
optimizer = torch.optim.Adam(net.parameters())
for _ in range(2):
    loss = net(torch.randn(6, 4).to("cuda"))["loss"].mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(torch.cuda.device_count(), loss.device, net.module.inner.weight.grad.device)
with torch.no_grad():
    print(*net(torch.randn(6, 4).cuda())["loss"].shape)
"""


def test_several_gpus_of_a_kind(dry: Dry, tmp_path: Path) -> None:
    """Each replica has its own current device, and gradients come back to the first GPU without a copy to the host."""
    (tmp_path / "parallel.py").write_text(PARALLEL)
    document = dry("parallel.py", cwd=tmp_path, device="cuda:80GiBx2")
    assert wrong(document) == [] and document["stdout"].split() == ["2", "cuda:0", "cuda:0", "2"]
    assert "copy to host" not in document["screen"]
    (tmp_path / "masked.py").write_text(
        "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '2'\nimport torch\ntorch.zeros(3, device='cuda:2')\n"
    )
    screen = dry("masked.py", cwd=tmp_path, status=1)["screen"]
    assert "no cuda:2, CUDA_VISIBLE_DEVICES=2 leaves 1, numbered from 0" in screen


SKIPPED = """
import torch
from torch import nn
model, scale = nn.Linear(4, 4).cuda(), torch.ones(4)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for n in range(6):
    x = torch.randn(2, 4, device="cuda", dtype=torch.float16 if n % 2 else None)
    try:
        (model(x) + scale).sum().backward()
        optimizer.step()
    except RuntimeError:
        print("skipped")
"""


def test_a_loop_that_skips_every_batch_has_shown_nothing(dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "skipped.py").write_text(SKIPPED)
    document = dry("skipped.py", cwd=tmp_path, status=4)
    assert wrong(document) == [("run.dry.followed", "no step was judged")]
    seen = [(entry["id"], entry["evidence"]["times"]) for entry in document["findings"] if entry["verdict"] == "warn"]
    assert sorted(seen) == [("run.dry.dtype", 3), ("run.dry.mismatch", 3)]


WORKER = """
import sys
import torch
from torch.utils.data import DataLoader

class Squares(torch.utils.data.Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        return torch.ones(2).cuda() * index

if sys.argv[1] == "fork":
    torch.ones(2).cuda()
for batch in DataLoader(Squares(), num_workers=1, multiprocessing_context="fork"):
    print(batch)
"""


@pytest.mark.parametrize(
    ("source", "title"),
    [
        # What was found is written by atexit, which os._exit passes by.
        (
            "import os, torch\nmodel = torch.nn.Linear(2, 2).cuda()\ntry:\n    model(torch.zeros(2, 2))\n"
            "except RuntimeError:\n    os._exit(0)\n",
            "not judged to the end: ended by os._exit, which discards what was found",
        ),
        ("print(1)\n", "the program did not load torch"),
    ],
)
def test_a_program_whose_end_was_not_seen_is_no_pass(source: str, title: str, dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "leaves.py").write_text(source)
    document = dry("leaves.py", cwd=tmp_path, status=4, whole=True)
    assert [entry["title"] for entry in document["findings"] if entry["verdict"] == "inconclusive"] == [title]
    assert document["summary"]["verdict"] == "inconclusive"
    assert document["screen"].count(title) == 1 and "whole program" not in document["screen"]


def test_a_worker_that_was_forked_after_cuda_was_used(dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "worker.py").write_text(WORKER)
    document = dry("worker.py", "fork", cwd=tmp_path, status=1, whole=True)
    assert wrong(document) == [("run.dry.fork", "worker.py:10")]


SWALLOWED = """
import sys
import torch
from torch.utils.data import DataLoader, Dataset

class Rows(Dataset):
    def __len__(self):
        return 4
    def __getitem__(self, index):
        try:
            return torch.ones(2).cuda() + torch.ones(2)
        except RuntimeError:
            return torch.zeros(2)

if sys.argv[1] == "used":
    torch.ones(2).cuda()
loader = DataLoader(Rows(), batch_size=2, num_workers=1, multiprocessing_context="fork")
total = sum(batch.sum() for batch in loader)
torch.ones(2).cuda()
"""


@pytest.mark.parametrize(("used", "name"), [("used", "run.dry.fork"), ("unused", "run.dry.mismatch")])
def test_what_a_forked_process_swallows_is_told(used: str, name: str, dry: Dry, tmp_path: Path) -> None:
    """Its own notes are lost with it, so that it leaves each in the shared counters."""
    (tmp_path / "swallowed.py").write_text(SWALLOWED)
    document = dry("swallowed.py", used, cwd=tmp_path)
    assert wrong(document) == [] and document["summary"]["verdict"] == "warn"
    (seen,) = [entry for entry in document["findings"] if entry["id"] in ("run.dry.fork", "run.dry.mismatch")]
    assert (seen["id"], seen["title"], seen["evidence"]["times"]) == (name, "swallowed.py:11", 4)


SPAWNED = """
import multiprocessing
import torch

def work():
    try:
        torch.ones(2, device="cuda") + torch.ones(2)
    except RuntimeError:
        pass

if __name__ == "__main__":
    torch.ones(2, device="cuda").sum()
    child = multiprocessing.get_context("spawn").Process(target=work)
    child.start()
    child.join()
"""


def test_a_process_started_by_spawn_is_said_not_to_be_judged(dry: Dry, tmp_path: Path) -> None:
    (tmp_path / "spawned.py").write_text(SPAWNED)
    document = dry("spawned.py", cwd=tmp_path)
    (seen,) = [entry for entry in document["findings"] if entry["id"] == "run.dry.remark"]
    assert "started by spawn" in seen["title"] and seen["message"].startswith("spawned.py:14")


@pytest.mark.parametrize("way", ["finalizer", "hook"])
def test_whoever_swallows_an_error_it_is_told(way: str, dry: Dry, tmp_path: Path) -> None:
    """No way through Python or autograd that an error can take ends in an all-clear."""
    (tmp_path / "swallower.py").write_text(SWALLOWERS)
    document = dry("swallower.py", way, cwd=tmp_path)
    seen = [(entry["id"], entry["verdict"]) for entry in document["findings"] if entry["id"].startswith("run.dry.m")]
    assert ("run.dry.mismatch", "warn") in seen


SWALLOWERS = """
import sys
import torch

x = torch.ones(2, device="cuda", requires_grad=True)

def wrong(gradient=None):
    try:
        return x + torch.ones(2)
    except RuntimeError:
        if gradient is not None:
            return gradient
        raise

class Finalized:
    def __del__(self):
        wrong()

match sys.argv[1]:
    case "finalizer":
        one = Finalized()
        del one
    case "hook":
        x.register_hook(wrong)
        x.sum().backward()
"""


def test_an_error_of_the_programs_own_is_where_judging_ends(dry: Dry, tmp_path: Path) -> None:
    text = "import torch\nx = torch.ones(2, device='cuda')\nraise ValueError('\\x1b[1mmine\\x1b[0m')\n"
    (tmp_path / "own.py").write_text(text)
    document = dry("own.py", cwd=tmp_path, status=1)
    assert wrong(document) == [("run.dry.followed", "not judged from own.py:3 on")]
    assert "ValueError: mine" in [found["message"] for found in document["findings"]]
    assert "gpucheck/program" not in document["screen"]


def test_a_device_by_number_says_how_to_write_it_for_a_build_for_the_cpu(dry: Dry, tmp_path: Path) -> None:
    """Python cannot stand in for `torch.device` itself: its type is asked for everywhere."""
    (tmp_path / "number.py").write_text("import torch\nx = torch.ones(2).to(0)\ny = x.to(torch.device(0))\n")
    document = dry("number.py", cwd=tmp_path, status=None)
    if torch.version.cuda is None:
        (found,) = [entry for entry in document["findings"] if entry["id"] == "run.dry.followed"]
        assert found["title"] == "not judged from number.py:3 on"
        assert found["fix"] == 'number.py:3: write torch.device("cuda", N) for torch.device(N)'
    else:
        assert wrong(document) == []


STEP = """
layer = torch.nn.Linear(4, 4).cuda()
layer(torch.ones(2, 4))  # wrong
"""
LOADED = {
    "looked for": 'import importlib.util\nassert importlib.util.find_spec("torch")\nimport torch',
    "lazily": "import importlib.util, sys\nspec = importlib.util.find_spec('torch')\n"
    "loader = spec.loader = importlib.util.LazyLoader(spec.loader)\n"
    "torch = sys.modules['torch'] = importlib.util.module_from_spec(spec)\nloader.exec_module(torch)",
    "by hand": "import importlib.util, sys\nspec = importlib.util.find_spec('torch')\n"
    "torch = sys.modules['torch'] = importlib.util.module_from_spec(spec)\nspec.loader.exec_module(torch)",
    "in a thread": "import threading\nthread = threading.Thread(target=__import__, args=('torch',))\n"
    "thread.start()\nthread.join()\nimport torch",
    "past all other finders": "import sys\nfrom importlib.machinery import PathFinder\n"
    "sys.meta_path.insert(0, PathFinder)\nimport torch",
}


@pytest.mark.parametrize("way", LOADED)
def test_torch_is_seen_in_whatever_way_it_is_loaded(way: str, dry: Dry, tmp_path: Path) -> None:
    if way == "lazily" and sys.version_info >= (3, 13):
        pytest.skip("this Python cannot load torch so")
    (tmp_path / "prog.py").write_text(text := LOADED[way] + STEP)
    document = dry("prog.py", cwd=tmp_path, status=1, whole=True)
    (found,) = wrong(document)
    assert found == ("run.dry.mismatch", f"prog.py:{text.count(chr(10))}")


def test_torch_is_seen_in_a_program_in_a_zip(dry: Dry, tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "app.pyz", "w") as file:
        file.writestr("__main__.py", "import part\n")
        file.writestr("part.py", "import torch" + STEP)
    assert [name for name, _ in wrong(dry("app.pyz", cwd=tmp_path, status=1, whole=True))] == ["run.dry.mismatch"]


LOADER = """
import sys
from importlib.machinery import PathFinder

class Loader:
    def __init__(self, loader):
        self.loader = loader
    def create_module(self, spec):
        return None
    def exec_module(self, module):
        exec(self.loader.get_code("torch"), vars(module))

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "torch":
            spec = PathFinder.find_spec(name, path)
            spec.loader = Loader(spec.loader)
            return spec

sys.meta_path.insert(0, Finder())
"""
UNSEEN = {
    "a loader of its own": LOADER + "import torch\nprint('trains')\n",
    "in its place another program": "import os, sys, time\nif len(sys.argv) == 1:\n"
    "    os.execv(sys.executable, [sys.executable, *sys.argv, 'again'])\n"
    "import torch\ntime.sleep(60)\nprint('trains')\n",
}


@pytest.mark.parametrize("way", UNSEEN)
def test_a_program_whose_torch_is_not_seen_is_stopped(way: str, gpucheck: Gpucheck, tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(UNSEEN[way])
    done = gpucheck("run", "--dry", "cuda", "prog.py", cwd=tmp_path, whole=True)
    assert (done.returncode, done.stdout) == (70, "")
    assert "a bug in gpucheck" in done.stderr


def test_a_program_whose_torch_is_not_seen_keeps_its_status(gpucheck: Gpucheck, tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(LOADER + "import torch\nprint('trains')\nsys.exit(5)\n")
    done = gpucheck("run", "prog.py", cwd=tmp_path, whole=True)
    assert (done.returncode, done.stdout) == (5, "trains\n")
    assert "a bug in gpucheck" in done.stderr


CHILD = {
    "forked": "import os\nif not os.fork():\n    import torch\n    os._exit(0)\nos.wait()\n",
    "started": "import subprocess, sys\nline = 'import torch, time; time.sleep(2)'\n"
    "subprocess.run([sys.executable, '-c', line])\n",
}


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells which libraries a process has loaded")
@pytest.mark.parametrize(("way", "is_dry"), [("forked", False), ("started", False), ("started", True)])
def test_torch_in_a_child_alone_is_said_so(way: str, is_dry: bool, gpucheck: Gpucheck, tmp_path: Path) -> None:
    (tmp_path / "prog.py").write_text(CHILD[way])
    done = gpucheck("run", *(("--dry", "cuda") if is_dry else ()), "prog.py", cwd=tmp_path, whole=True)
    assert done.returncode == (4 if is_dry else 0)
    assert re.search(r"^\? .*torch was loaded in child \d+, not measured", done.stderr, re.MULTILINE)


def test_a_traceback_shows_no_frame_of_ours(dry: Dry) -> None:
    screen = dry("mistakes.py", "joined", status=1, whole=True)["screen"]
    assert "RuntimeError: Expected all tensors to be on the same device" in screen
    assert "gpucheck/program" not in screen


@pytest.mark.parametrize(
    ("given", "seen"),
    [
        (("--dry", "gpu", "mlp.py"), "--dry must be cuda, cuda:SIZE or cuda:NAME"),
        (("--dry", "cuda:A100", "mlp.py"), "give a size, or one of A100-SXM4-80GB"),
        (("--steps", "3", "mlp.py"), "--steps needs --dry"),
        (("--dry", "cuda", "--trace", "3", "mlp.py"), "exclude each other"),
    ],
)
def test_a_slip_is_one_sentence(
    given: tuple[str, ...], seen: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(PROGRAMS)
    assert app.main(["run", *given]) == 2
    assert seen in capsys.readouterr().err


def test_a_loop_that_waits_for_a_value_ends(dry: Dry, tmp_path: Path) -> None:
    """Without values it would never end: the sum is 0 for ever."""
    script = tmp_path / "waits.py"
    script.write_text(
        "import torch\n\nx = torch.zeros(4, device='cuda')\n"
        "while not x.sum().item() > 3:\n    x = x + 1\nprint('end')\n"
    )
    assert dry(str(script))["stdout"] == "end\n"
    document = dry("--no-values", str(script), status=None)
    (found,) = [entry for entry in document["findings"] if entry["id"] == "run.dry.followed"]
    assert found["verdict"] == "inconclusive" and "waits.py:4" in found["title"]
    assert "the program read 5000 values" in found["message"]


BEGINNING = """
import os, sys, threading, warnings
import torch
print(sorted(name for name in sys.modules if name.startswith("torch")), torch.__spec__, torch.__loader__)
print(sys.argv, sys.path, sys.meta_path, sys.flags, sys.excepthook, warnings.filters)
print(__file__, __name__, __spec__, __loader__, sorted(name for name in dir() if name.startswith("__")), os.getcwd())
print(sorted(os.environ.items()), sys.stdin, sys.stdout, sys.stderr, torch.get_num_threads(), threading.active_count())
"""


def test_a_forked_program_begins_as_a_started_one(dry: Dry, tmp_path: Path) -> None:
    """A fork has the same modules of torch, arguments, paths and environment: the other tests rely on that."""
    (tmp_path / "beginning.py").write_text(BEGINNING)
    began = [
        re.sub(r"0x[0-9a-f]{6,}", "0x", dry("beginning.py", "a b", cwd=tmp_path, status=None, whole=whole)["stdout"])
        for whole in (True, False)
    ]
    assert began[1].splitlines() == began[0].splitlines() != []
