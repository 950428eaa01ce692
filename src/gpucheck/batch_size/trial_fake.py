"""The child process of an estimate: it runs steps on tensors without data and counts their bytes.

The child reads a setup, the bytes for tensors and the range of sizes. The child answers with the largest size whose
tensors fit, the peaks of this size over two steps, and the smallest size. Contexts, workspaces, and memory that an
allocator rounds up or cannot reuse are not counted.
"""

# mypy: disable-error-code="misc"
# A class here derives from a class of torch, whose type is Any.
from __future__ import annotations

import contextlib
import sys
import traceback
from dataclasses import replace
from typing import Any

import torch

from gpucheck.batch_size.outcome import Setup, TrialResult
from gpucheck.batch_size.search import SizeSearch
from gpucheck.batch_size.trial import Channel, Json, load_for, set_guard
from gpucheck.errors import GpucheckError
from gpucheck.machine import torch_private
from gpucheck.report.codec import from_json
from gpucheck.report.results.find_batch_size import Outcome
from gpucheck.work.storages import Memory
from gpucheck.work.target import Batch, import_compiler, step

TorchDispatchMode: Any = torch_private.need("torch.utils._python_dispatch.TorchDispatchMode")
# FakeTensorMode is private, but it is the documented way to run a model without allocating its memory.
FakeTensorMode = torch_private.need("torch._subclasses.fake_tensor.FakeTensorMode")
tree_leaves = torch_private.need("torch.utils._pytree.tree_leaves")
tree_map_only = torch_private.need("torch.utils._pytree.tree_map_only")
for _table in ("_parameters", "_buffers"):  # fake tensors replace the tensors in these tables of a module
    torch_private.need(f"torch.nn.Module().{_table}")


class StorageCounter(TorchDispatchMode):
    """Counts the bytes of the storages that operations return, until each storage is freed."""

    def __init__(self) -> None:
        super().__init__()
        self.memory = Memory[None](block_bytes=1)

    def add(self, tensor: torch.Tensor) -> None:
        if tensor.device.type == "cpu" and tensor.layout is torch.strided:
            self.memory.put(tensor.untyped_storage(), is_held=True)

    def mark(self) -> int:
        """Return the peak in bytes of the phase that ends here, and begin a new phase."""
        peak, self.memory.peak_since_reset = self.memory.peak_since_reset, self.memory.allocated
        return peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, torch.Tensor):
                self.add(leaf)
        return result


# The optimizer's state exists from the beginning of the second step on.
STEPS = 2
# Torch's optimizers use foreach by default on these devices. `Fake` enables it for its tensors on the CPU.
FOREACH_DEVICES = ("cuda", "xpu")
# The relative tolerance of the estimate, and the relative noise of the counted peaks, which are almost exact.
TOLERANCE, NOISE = 0.005, 1e-4
# The most sizes that a search runs. A search may need all of them if memory grows in steps.
MOST_SIZES = 40


def main() -> int:
    channel = Channel()
    request = channel.receive()
    import_compiler()
    room_bytes, lowest, highest = (request[name] for name in ("room_bytes", "lowest", "highest"))
    channel.send(_estimate(from_json(Setup, request), room_bytes, lowest, highest))
    return 0


def _estimate(setup: Setup, room_bytes: int, lowest: int | None, highest: int) -> Json:
    """Return the largest size within `room_bytes`, or the reason why the workload cannot be estimated."""
    fake, smallest, first, why = None, 0, {}, ""
    for build_on in ("meta", "cpu"):  # some models cannot be built on the meta device, which needs no memory
        try:
            fake = Fake(setup, build_on)
            smallest = min(lowest or fake.workload.smallest_batch, highest)
            first = fake.run(smallest)
            break
        except (Exception, SystemExit) as error:  # noqa: BLE001 - the user's code may raise anything here
            fake, why = None, _in_words(error)
            sys.stderr.write(traceback.format_exc())
    if fake is None:
        return {"ok": False, "why": why}
    search = SizeSearch(smallest, highest, TOLERANCE, room_bytes, start=smallest, noise=NOISE, extra_trials=MOST_SIZES)
    sizes: dict[int, Json] = {smallest: first}
    while len(search.trials) < MOST_SIZES and (attempt := search.next()) is not None:
        if (size := attempt.size) not in sizes:
            try:
                sizes[size] = fake.run(size)
            except (Exception, SystemExit):  # noqa: BLE001 - the user's code may raise anything here
                sizes[size] = {}  # any error, such as a kernel's limit or an overflow, means that it is too large
        peak, computing = sizes[size].get("peak_bytes"), sizes[size].get("compute_peak_bytes")
        outcome: Outcome = "size-limit" if peak is None else "fits" if peak <= room_bytes else "over-budget"
        result = TrialResult(batch_size=size, purpose=attempt.purpose, outcome=outcome, peak_bytes=peak)
        search.trials.append(replace(result, compute_peak_bytes=computing))
    best = search.best.batch_size if search.best is not None else None
    return {"ok": True, "largest": best, "smallest": smallest, **sizes[smallest if best is None else best]}


def _in_words(error: BaseException) -> str:
    if isinstance(error, GpucheckError):
        return error.what
    lines = str(error).strip().splitlines()
    return type(error).__name__ + (f": {lines[0]}" if lines else "")


class Fake:
    """A workload of fake CPU tensors. Fake CUDA tensors would end the process if torch is built for the CPU only."""

    def __init__(self, setup: Setup, build_on: str) -> None:
        """Build the workload on the device `build_on`. On the CPU, `setup.guard_bytes` limits the memory."""
        if build_on == "cpu" and setup.guard_bytes is not None:
            set_guard(setup.guard_bytes)
        with torch.device("meta") if build_on == "meta" else contextlib.nullcontext():
            workload = load_for(setup, torch.device(build_on))
        # A loss or a module may have tensors that are neither parameters nor buffers. These tensors remain real.
        self.mode = FakeTensorMode(allow_non_fake_inputs=True)
        self.workload, self.device = workload, torch.device("cpu")
        with self.mode:
            self._replace_tensors()
        workload.device = self.device
        uses_foreach = setup.device.split(":")[0] in FOREACH_DEVICES
        for group in workload.optimizer.param_groups if workload.optimizer is not None else ():
            if uses_foreach and group.get("foreach", False) is None and not group.get("fused"):
                group["foreach"] = True

    def _replace_tensors(self) -> None:
        """Replace each parameter and buffer with an empty fake tensor. Tied tensors stay tied."""
        fakes: dict[int, Any] = {}
        originals: list[Any] = []  # an id is unique only while its object lives

        def fake(tensor: torch.Tensor) -> Any:
            if id(tensor) not in fakes:
                originals.append(tensor)
                empty = torch.empty_like(tensor, device=self.device)
                if isinstance(tensor, torch.nn.Parameter):
                    empty = torch.nn.Parameter(empty, requires_grad=tensor.requires_grad)
                fakes[id(tensor)] = empty
            return fakes[id(tensor)]

        roots = [root for root in (self.workload.model, self.workload.loss) if isinstance(root, torch.nn.Module)]
        for module in (module for root in roots for module in root.modules()):
            for table in (module._parameters, module._buffers):
                for name, tensor in table.items():
                    if tensor is not None:
                        table[name] = fake(tensor)
        for group in self.workload.optimizer.param_groups if self.workload.optimizer is not None else ():
            group["params"] = [fake(parameter) for parameter in group["params"]]

    def run(self, size: int) -> Json:
        """Run two steps with batches of `size`. Return their peaks, and the memory of weights, gradients and state."""
        workload = self.workload
        if workload.optimizer is not None:
            workload.optimizer.zero_grad(set_to_none=True)
            workload.optimizer.state.clear()
        storages = StorageCounter()
        for tensor in (*workload.model.parameters(), *workload.model.buffers()):
            storages.add(tensor)
        compute = optimizer = 0
        with self.mode, storages:
            for _ in range(STEPS):
                marks: list[int] = []
                step(workload, self._batch(size), after_backward=lambda: marks.append(storages.mark()))  # noqa: B023
                last_peak = storages.mark()
                # Inference has only the forward pass.
                compute = max(compute, *(marks or [last_peak]))
                optimizer = max(optimizer, last_peak if marks else 0)
        return {
            "peak_bytes": max(compute, optimizer),
            "compute_peak_bytes": compute,
            "update_peak_bytes": optimizer,
            "parameter_bytes": workload.parameter_bytes,
            "gradient_bytes": workload.gradient_bytes,
            "optimizer_bytes": workload.optimizer_bytes,
        }

    def _batch(self, size: int) -> Batch:
        """Return a batch as fake CPU tensors. The workload may make its tensors on the device `build_on`."""

        def move(tensor: torch.Tensor) -> torch.Tensor:
            return tensor if tensor.device == self.device else torch.empty_like(tensor, device=self.device)

        batch = self.workload.make_batch(size)
        trees = batch.arguments, batch.keywords, batch.reference
        return Batch(*(tree_map_only(torch.Tensor, move, tree) for tree in trees))


if __name__ == "__main__":
    sys.exit(main())
