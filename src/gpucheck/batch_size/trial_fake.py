"""The child that predicts: steps on tensors without data, whose bytes are counted. Started by predictor.

One line in: a trial's setup, with the budget and the largest size. Out comes a line on the workload, then one for each
size asked for with the peaks of two steps (the optimizer makes its state in the first), then one that
says that these were all. Nothing of the batch's size is allocated, so any size takes the same time.

What is counted are tensors' storages. Left out is what is none of them: a device's context, libraries' workspaces and
scratch, and what an allocator rounds up or cannot reuse. One real trial tells how much that is.
"""

# mypy: disable-error-code="misc"
# torch's classes count as Any for the type checker, and one here derives from one.
from __future__ import annotations

import contextlib
import sys
import time
import traceback
from typing import Any

import torch

from gpucheck.batch_size.outcome import Setup, on_device
from gpucheck.batch_size.predict import MOST_SIZES, Point, next_size
from gpucheck.batch_size.trial import Channel, Json, load_for, set_guard
from gpucheck.errors import GpucheckError
from gpucheck.machine import torch_private
from gpucheck.report.codec import from_json
from gpucheck.work.storages import BLOCK_BYTES, Memory
from gpucheck.work.target import Batch, Workload, import_compiler, step

TorchDispatchMode: Any = torch_private.need("torch.utils._python_dispatch.TorchDispatchMode")
# The documented way to run a model without its memory, though private.
FakeTensorMode = torch_private.need("torch._subclasses.fake_tensor.FakeTensorMode")
tree_leaves = torch_private.need("torch.utils._pytree.tree_leaves")
tree_map_only = torch_private.need("torch.utils._pytree.tree_map_only")
for _table in ("_parameters", "_buffers"):  # a module's, which are given tensors without memory
    torch_private.need(f"torch.nn.Module().{_table}")


class Storages(TorchDispatchMode):
    """Counts each storage that an operation returns, once, until it is freed.

    The same figures as torch.distributed's memory tracker, whose import takes as long as torch's own, and with the
    peak of every phase. Storages that were there before count once they are added.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device
        # torch's caching allocators round every request up to a block; the CPU's takes them as they are.
        self.memory = Memory[None](block_bytes=1 if device.type == "cpu" else BLOCK_BYTES)

    def add(self, tensor: torch.Tensor) -> None:
        """Count a tensor's storage from now on."""
        if tensor.device.type == self.device.type and tensor.layout is torch.strided:
            self.memory.put(tensor.untyped_storage(), is_held=True)

    def mark(self) -> int:
        """The peak since the mark before, in bytes; a new phase begins."""
        peak, self.memory.peak_since_reset = self.memory.peak_since_reset, self.memory.allocated
        return peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation and count what it returns."""
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result


# The second step holds the optimizer's state from its beginning, as every later one does.
STEPS = 2
# torch/optim takes its foreach implementations by default on these; it does not know them for fake tensors.
FOREACH_DEVICES = ("cuda", "xpu")


def main() -> int:
    channel = Channel()
    request = channel.receive()
    import_compiler()
    setup = from_json(Setup, request)
    answer, begun = _prepared(setup, request["lowest"], on_host=request["on_host"])
    channel.send(answer)
    if begun is None:
        return 0
    fake, first = begun
    highest = int(request["highest"])
    budget, lowest = _budget(setup, request["known_bytes"], fake.device), min(first["size"], highest)
    points: list[Point] = []
    while len(points) < MOST_SIZES and (size := next_size(points, budget, lowest, highest)) is not None:
        answer = first
        if size != first["size"]:
            try:
                answer = _run(fake, size)
            except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything here
                answer = {"ok": False, "size": size, "why": _said(error)}
        channel.send(answer)
        if not answer["ok"] and not points:
            return 0
        points.append(from_json(Point, answer))
    channel.send({"ok": True, "done": True})
    return 0


def _prepared(setup: Setup, lowest: int | None, *, on_host: bool) -> tuple[Json, tuple[Fake, Json] | None]:
    """A workload that runs without memory, and what its smallest size takes.

    It is built without memory where that goes, else built on the host.
    """
    device = fake_device("cpu" if on_host else setup.device)
    why = ""
    for build_on in ("meta", "cpu"):
        try:
            if device.type != "cpu":
                # Backward of fake tensors needs the device's context. torch makes it itself, but for 2.13, where what
                # asks for that compares a device with its name.
                torch.empty(1, device=device)
            if build_on == "cpu" and setup.guard_bytes is not None:
                set_guard(setup.guard_bytes)
            with torch.device("meta") if build_on == "meta" else contextlib.nullcontext():
                workload = load_for(setup, torch.device(build_on))
            fake = Fake(workload, device, foreach=setup.device.split(":")[0] in FOREACH_DEVICES)
            first = _run(fake, lowest or fake.workload.smallest_batch)
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything here
            why = _said(error)
            sys.stderr.write(traceback.format_exc())
            continue
        return {"ok": True, "device": device.type}, (fake, first)
    return {"ok": False, "why": why}, None


def _budget(setup: Setup, known_bytes: int | None, device: torch.device) -> int:
    """Return what a trial may take: as the parent knows it, else as the device tells it here."""
    if known_bytes is not None:
        return known_bytes
    return on_device(setup.limit, *torch.cuda.mem_get_info(device), shared=setup.shared).bytes


def fake_device(asked: str) -> torch.device:
    """The device of the fake tensors: the one that will run, or the CPU where this torch cannot use that one.

    Fake CUDA tensors end the process on a build without CUDA.
    """
    return torch.device(asked if asked.startswith("cuda") and torch.cuda.is_available() else "cpu")


def _run(fake: Fake, size: int) -> Json:
    started = time.monotonic()
    return {"ok": True, "size": size, **fake.run(size), "seconds": time.monotonic() - started}


def _said(error: BaseException) -> str:
    if isinstance(error, GpucheckError):
        return error.what
    lines = str(error).strip().splitlines()
    return type(error).__name__ + (f": {lines[0]}" if lines else "")


class Fake:
    """A workload whose parameters, buffers and batches are fake tensors on `device`."""

    def __init__(self, workload: Workload, device: torch.device, *, foreach: bool) -> None:
        # A loss or a module may hold tensors that are none of its parameters: they are taken as they are.
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.workload, self.device = workload, device
        with self.mode:
            self._replace_tensors()
        workload.device = device
        for group in workload.optimizer.param_groups if workload.optimizer is not None else ():
            if foreach and group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True

    def _replace_tensors(self) -> None:
        """Put an empty fake in each parameter's and buffer's place; tied ones stay tied."""
        known: dict[int, Any] = {}
        originals: list[Any] = []  # kept until the end: an id is unique only while its object lives

        def fake(tensor: torch.Tensor) -> torch.Tensor:
            if id(tensor) not in known:
                originals.append(tensor)
                empty = torch.empty_like(tensor, device=self.device)
                if isinstance(tensor, torch.nn.Parameter):
                    empty = torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
                known[id(tensor)] = empty
            found: torch.Tensor = known[id(tensor)]
            return found

        loss = self.workload.loss
        criterion = loss.modules() if isinstance(loss, torch.nn.Module) else ()
        for module in (*self.workload.model.modules(), *criterion):
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = fake(tensor)
        for group in self.workload.optimizer.param_groups if self.workload.optimizer is not None else ():
            group["params"] = [fake(parameter) for parameter in group["params"]]

    def run(self, size: int) -> Json:
        """The peaks of two steps with batches of `size`, in bytes, and what is held between them."""
        workload = self.workload
        if workload.optimizer is not None:
            workload.optimizer.zero_grad(set_to_none=True)
            workload.optimizer.state.clear()
        storages = Storages(self.device)
        for tensor in (*workload.model.parameters(), *workload.model.buffers()):
            storages.add(tensor)
        compute = optimizer = 0
        with self.mode, storages:
            for _ in range(STEPS):
                marks: list[int] = []
                step(workload, self._batch(size), after_backward=lambda: marks.append(storages.mark()))  # noqa: B023
                rest = storages.mark()
                # In inference nothing but the forward pass is there.
                compute = max(compute, *(marks or [rest]))
                optimizer = max(optimizer, rest if marks else 0)
        return {
            "peak_bytes": max(compute, optimizer),
            "compute_peak_bytes": compute,
            "update_peak_bytes": optimizer,
            "parameter_bytes": workload.parameter_bytes,
            "gradient_bytes": workload.gradient_bytes,
            "optimizer_bytes": workload.optimizer_bytes,
        }

    def _batch(self, size: int) -> Batch:
        """A batch on the fake device, whatever device the workload was built on."""

        def moved(value: Any) -> Any:
            return tree_map_only(
                torch.Tensor, lambda t: t if t.device == self.device else torch.empty_like(t, device=self.device), value
            )

        made = self.workload.make_batch(size)
        return Batch(moved(made.arguments), moved(made.keywords), moved(made.reference))


if __name__ == "__main__":
    sys.exit(main())
