"""The options and the rules of `lint`. Each rule has a message, a fix, a wrong and a right example. No I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpucheck import naming
from gpucheck.errors import UsageError
from gpucheck.options import list_all, only, skip, words

if TYPE_CHECKING:  # `--help` starts faster without the report's types
    from gpucheck.report.finding import Verdict


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule of lint. In the templates `message` and `fix`, `{name}` is the source text of the value. `example` has two
    programs in one: lines with a minus are only in the wrong program, and lines with a plus only in the right."""

    id: str
    title: str
    message: str
    meaning: str
    example: str
    fix: str = "{fix}"  # the function that reports the finding fills it in
    verdict: Verdict = "fail"  # `info` if the mistake only costs time

    @property
    def wrong(self) -> str:
        return re.sub(r"(?m)^-|^\+.*\n", "", self.example)

    @property
    def right(self) -> str:
        return re.sub(r"(?m)^\+|^-.*\n", "", self.example)


RULES: tuple[Rule, ...] = (
    Rule(
        "lint.discarded_move",
        "the result of a tensor's .to() is discarded",
        "`{name}` does not change: a tensor's .to() and .cuda() return a new tensor",
        "`tensor.to()` and `tensor.cuda()` return a new tensor; only a module moves in place.",
        "import torch\n\nx = torch.zeros(8)\n-x.cuda()\n+x = x.cuda()\n",
    ),
    Rule(
        "lint.module_in_list",
        "a module is kept in a plain list, tuple or dict",
        "modules in `{name}` are not registered, so .to(), parameters() and state_dict() miss them",
        "A module registers the modules that are its attributes, and those in `ModuleList`, `ModuleDict` and "
        "`Sequential`. It does not search lists, tuples and dicts.",
        "from torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
        "-        self.layers = [nn.Linear(8, 8) for _ in range(4)]\n"
        "+        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(4))\n",
        fix="use nn.ModuleList, or nn.ModuleDict, whose keys are strings without a dot",
    ),
    Rule(
        "lint.plain_tensor",
        "a tensor that forward uses is a plain attribute",
        "`{name}` does not move with the module, and line {line} combines `{name}` with tensors that move",
        "`Module.to()` moves parameters and buffers. A tensor in a plain attribute stays behind.",
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self):\n"
        "        super().__init__()\n-        self.scale = torch.ones(8)\n"
        '+        self.register_buffer("scale", torch.ones(8))\n\n    def forward(self, x):\n'
        "        return x * self.scale\n",
    ),
    Rule(
        "lint.moved_parameter",
        "a parameter is moved after it was wrapped",
        "`{name}` is not a parameter: the move returns a plain tensor, which optimizers and state_dict() do not see",
        "`nn.Parameter(t).to(device)` is the result of an operation, not a parameter. The move of a leaf with "
        "`requires_grad=True` returns no leaf either: its `.grad` stays None.",
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def __init__(self, device):\n"
        "        super().__init__()\n-        self.scale = nn.Parameter(torch.ones(8)).to(device)\n"
        "+        self.scale = nn.Parameter(torch.ones(8, device=device))\n",
        fix="move the tensor first, then make it a parameter or call .requires_grad_()",
    ),
    Rule(
        "lint.cpu_in_forward",
        "forward creates a CPU tensor and uses it with the inputs",
        "`{name}` is on the CPU, and line {line} combines it with tensors on the module's device",
        "A factory without `device=` creates its tensor on the CPU. An operation on this tensor and an input on a GPU "
        "raises an error.",
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
        "-        return x + torch.randn(x.shape)\n+        return x + torch.randn(x.shape, device=x.device)\n",
    ),
    Rule(
        "lint.device_in_worker",
        "a forked process uses the GPU",
        "{name}: CUDA cannot be used in a process that was forked",
        "DataLoader workers are forked on Linux. If the parent has started CUDA, CUDA fails in the workers. If not, "
        "each worker creates its own context. Return CPU tensors and move the batch in the main process.",
        "import torch\nfrom torch.utils.data import DataLoader, Dataset\n\n\nclass Rows(Dataset):\n"
        "    def __len__(self):\n        return 8\n\n    def __getitem__(self, index):\n"
        '-        return torch.zeros(8, device="cuda")\n+        return torch.zeros(8)\n\n\n'
        "-loader = DataLoader(Rows(), num_workers=4)\n"
        "+loader = DataLoader(Rows(), num_workers=4, pin_memory=True)\n+for rows in loader:\n"
        '+    rows = rows.to("cuda", non_blocking=True)\n',
    ),
    Rule(
        "lint.late_visible_devices",
        "CUDA_VISIBLE_DEVICES is set after CUDA has started",
        "CUDA has already started (line {line}): the variable no longer has an effect",
        "The driver reads the variable once, when CUDA starts. `torch.cuda.is_available()` starts it.",
        'import os\n\nimport torch\n\n+os.environ["CUDA_VISIBLE_DEVICES"] = "1"\nprint(torch.cuda.is_available())\n'
        '-os.environ["CUDA_VISIBLE_DEVICES"] = "1"\n',
        fix="set it before the first use of CUDA, best in the shell: CUDA_VISIBLE_DEVICES=… python …",
    ),
    Rule(
        "lint.hidden_device",
        "CUDA_VISIBLE_DEVICES hides the device that is used",
        "`{name}` does not exist: line {line} leaves {count} visible, numbered from 0",
        "`CUDA_VISIBLE_DEVICES` names the physical GPUs that a process can use. torch numbers them from 0, in "
        "the order of the list.",
        'import os\n\nos.environ["CUDA_VISIBLE_DEVICES"] = "2"\nimport torch\n\n'
        '-x = torch.zeros(8, device="cuda:2")\n+x = torch.zeros(8, device="cuda:0")\n',
        fix="use cuda:0{last}",
    ),
    Rule(
        "lint.unwaited_copy",
        "a non-blocking copy to the host is read without a wait",
        "line {line} reads `{name}` before the copy is known to be complete",
        "A non-blocking copy to the host returns before the data has arrived, and a read does not wait for the data.",
        'import torch\n\nx = torch.zeros(8, device="cuda")\ny = x.to("cpu", non_blocking=True)\n'
        "+torch.cuda.synchronize()\nprint(y.numpy())\n",
        fix="torch.cuda.synchronize() before the read, or remove non_blocking=True",
    ),
    Rule(
        "lint.empty_cache_in_loop",
        "empty_cache() in a loop",
        "each call waits for the GPU, and the next step allocates its memory again",
        "`empty_cache()` returns cached memory to the driver. In a loop the next pass must request it again.",
        "import torch\n\n\ndef train(model, loader):\n    for x in loader:\n        model(x).sum().backward()\n"
        "-        torch.cuda.empty_cache()\n+    torch.cuda.empty_cache()\n",
        fix="call it once, after the loop; gpucheck run shows what it costs",
        verdict="info",
    ),
    Rule(
        "lint.kept_graph",
        "a loss is kept with its graph",
        "`{name}` keeps the autograd graph of every step: memory grows",
        "A tensor with a graph keeps the tensors that its backward needs. A sum of losses keeps the graphs of all "
        "steps. A list of losses does not, if their backward has freed the graphs.",
        "def train(model, loader, optimizer):\n    total = 0.0\n    for x in loader:\n"
        "        loss = model(x).mean()\n        loss.backward()\n        optimizer.step()\n"
        "-        total += loss\n+        total += loss.item()\n    print(total)\n",
    ),
)
BY_ID = {rule.id: rule for rule in RULES}


@dataclass(frozen=True, slots=True)
class LintOptions:
    """The user's options. `only` and `skip` are prefixes of rule ids."""

    paths: tuple[str, ...] = words(
        "Files and folders with Python source; - reads standard input. [default: .]", name="PATH", metavar="[PATH...]"
    )
    only: tuple[str, ...] = only("rules", named="ID")
    skip: tuple[str, ...] = skip("rules", named="ID")
    list_all: bool = list_all("rules")

    @property
    def rules(self) -> list[Rule]:
        """Return the selected rules. Raise UsageError if a prefix matches no rule or no rule is left."""
        nothing = "nothing would be checked"
        return naming.select(RULES, lambda rule: rule.id, self.only, self.skip, noun="rule", nothing=nothing)

    def names(self) -> list[tuple[str, str]]:
        return [(rule.id, rule.title) for rule in self.rules]

    def check(self) -> None:
        self.rules  # noqa: B018
        if self.list_all and self.paths:
            raise UsageError("--list takes no path", "", "leave one of them out")
