"""Judge a model's move to a GPU, and list the IDs of the findings of `model`, `run` and `run --dry`. No I/O."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace

from gpucheck.report.finding import WORST_FIRST, Finding, Id, Verdict, ids_of
from gpucheck.report.results import model as results

_HOLDERS = {
    "attribute": "a plain attribute",
    "container": "a plain list or dictionary",
    "object": "an object that is not a module",
    "closure": "a variable that a function closes over",
    "hook": "a hook",
    "class": "an attribute of the class",
}


def findings(result: results.ModelResult) -> list[Finding]:
    behind = {part.name: part for part in result.left_behind}
    mismatches = (mismatch(entry, behind) for entry in (result.run.mismatches if result.run else ()))
    judged = [*_meta(result), *mismatches, *_left_behind(result.left_behind, result.run)]
    judged.sort(key=lambda finding: WORST_FIRST.index(finding.verdict))
    missing = not_followed(result.not_followed, "this torch", "model.followed")
    if not any(finding.verdict in ("fail", "warn") for finding in judged) and not missing:
        moved = f"all of {result.kind}" if not result.left_behind else f"all that {result.kind} uses there"
        judged.append(Finding("model.placement", "pass", f"{moved} moves to {result.device}"))
    return [*judged, *missing, *_run(result.run, result.not_run, result.proposed)]


def not_followed(features: Sequence[str], torch: str, finding_id: str) -> list[Finding]:
    """Return a finding on the features that need a private name which this torch lacks, or nothing."""
    if not features:
        return []
    title = f"with {torch}, gpucheck cannot follow: {', '.join(features)}"
    return [Finding(finding_id, "inconclusive", title, "", {"not_followed": [*features]}, _FOLLOWED[2])]


def _meta(result: results.ModelResult) -> Iterator[Finding]:
    if result.meta:
        more = f" and {len(result.meta) - 1} more" if len(result.meta) > 1 else ""
        why, evidence = "on the meta device, from which .to() cannot copy", {"names": list(result.meta)}
        fix = f'model.to_empty(device="{_bare(result.device)}"), then load or initialise the weights'
        yield Finding("model.meta", "fail", f"{result.meta[0]}{more}: no data", why, evidence, fix)


def _left_behind(parts: tuple[results.LeftBehind, ...], run: results.SimulatedRun | None) -> Iterator[Finding]:
    """Yield one finding for each source line and fix, such as one for twelve layers of one class."""
    groups: dict[tuple[object, ...], list[results.LeftBehind]] = {}
    for part in parts:
        line = () if part.kind == "parameter" else (part.place or part.name, part.attribute)
        groups.setdefault((part.kind, part.use, *line), []).append(part)
    for group in groups.values():
        finding = _part_finding(group[0], has_finished=run is not None and run.stopped is None)
        if len(group) > 1:
            title = f"{group[0].name} and {len(group) - 1} more stay on the CPU"
            evidence = {**finding.evidence, "names": [part.name for part in group]}
            finding = replace(finding, title=title, evidence=evidence)
        yield finding


# For each use of a part by the forward pass: the verdict, and the end of the finding's message.
_USES: dict[str, tuple[Verdict, str]] = {
    "mismatched": ("fail", ""),
    "unknown": ("fail", ""),
    "copied": ("warn", "; the forward pass copies it to the GPU each time"),
    "cached": ("warn", "; forward created it there, and keeps it when the model moves to another device"),
    "unread": ("info", "; the forward pass does not read it on the GPU"),
}


def _part_finding(part: results.LeftBehind, *, has_finished: bool) -> Finding:
    verdict, note = _USES[part.use]
    note = "; this run did not reach it" if has_finished and part.use == "unknown" else note
    finding_id = "model.unregistered" if part.kind == "module" else "model.left_behind"
    title, message = f"{part.name} stays on {_device(part.device)}", f"{part.what} {_reason(part)}{note}"
    fix = None if part.use == "unread" else _fix(part)  # a part that is never read on the GPU needs no change
    return Finding(finding_id, verdict, title, message, asdict(part), fix)


def _reason(part: results.LeftBehind) -> str:
    at = f" ({part.place})" if part.place else ""
    if part.kind == "parameter":
        return f"registered{at}, and not moved with the model"
    return f"in {_HOLDERS[part.holder]}{at}, which .to() does not move"


def _fix(part: results.LeftBehind) -> str:
    at = f"{part.place}: " if part.place else ""
    if part.kind == "parameter":
        return "move the whole model; its own .to() or _apply() must call super()"
    if part.kind == "module":
        is_listed = part.holder == "container"
        return at + (_ORIGIN_FIXES["module"] if is_listed else "assign it to an attribute of the module")
    if part.use == "cached":
        return f"{at}create it again if its device is not the input's, or register_buffer(…, persistent=False)"
    if part.holder in ("attribute", "class"):
        buffer_fix = _ORIGIN_FIXES["attribute"].format(name=part.attribute)
        return at + (f"self.{part.attribute} = nn.Parameter(…)" if part.is_trained else buffer_fix)
    if part.holder == "container":
        buffer_fix = _ORIGIN_FIXES["container"]
        return at + ("keep them in nn.ParameterList or nn.ParameterDict" if part.is_trained else buffer_fix)
    method = "nn.Parameter" if part.is_trained else "register_buffer"
    return f"{at}make it a member of the module ({method}) and read it from there"


def mismatch(entry: results.DeviceMismatchEntry, behind: Mapping[str, results.LeftBehind] | None = None) -> Finding:
    """Return the finding on operands on different devices. `behind` has the parts that stayed on the CPU, by name."""
    wrong = next((operand for operand in entry.operands if operand.is_wrong), entry.operands[0])
    title = " in ".join(filter(None, (entry.place, entry.module))) or "in torch's own code"
    operation = entry.operation if entry.operation[0].isalpha() else f"`{entry.operation}`"
    name = _called(wrong, entry.operation)
    message = f"{operation} needs {_device(entry.expected)}, but {name} is on {_device(wrong.device)}"
    left = (behind or {}).get(wrong.origin_name or "")
    cause = _cause(wrong) if left is None else f"{left.what} {_reason(left)}"
    message += f": {cause}" if cause else ""
    # The weight and the bias of a module in a plain list have the same name: the message mentions the name once.
    operands = dict.fromkeys(
        (_called(other, entry.operation), _device(other.device)) for other in (wrong, *entry.operands) if other.is_wrong
    )
    message += "".join(f"; {name} is on {device} too" for name, device in list(operands)[1:])
    fix = _fix(left) if left is not None else _mismatch_fix(entry, wrong)
    return Finding("model.mismatch", "fail", title, message, asdict(entry), fix=fix)


# The roles of operands by ATen's names, which the message adds in brackets.
_OPERANDS = {
    "linear": {"self": "the bias", "bias": "the bias", "mat1": "the input", "input": "the input"}
    | dict.fromkeys(("mat2", "weight"), "the weight"),
    "embedding": {"weight": "the weight", "indices": "the index"},
}


def _called(operand: results.MismatchedTensor, operation: str) -> str:
    """Return the operand's name in the program, or its role in the operation if the program has no name for it."""
    has_name = operand.origin in ("attribute", "parameter", "buffer", "input", "state", "container", "module")
    name = (operand.origin_name if has_name else None) or operand.variable
    role = _OPERANDS.get(operation.rpartition(".")[2], {}).get(operand.name, "an operand")
    return name or f"{role} ({operand.name})"


def _cause(operand: results.MismatchedTensor) -> str:
    at = f" at {operand.origin_place}" if operand.origin_place else ""
    return {
        "parameter": "a parameter" if "." in (operand.origin_name or "") else "its parameters were not moved",
        "buffer": "a buffer" if "." in (operand.origin_name or "") else "its buffers were not moved",
        "container": f"in a plain list or dictionary{at}, which .to() does not move",
        "module": f"a plain list or dictionary of modules{at}: .to() does not move them, and the optimizer does not "
        "train them",
        "input": "an input of the model",
        "made": f"created{at} by {operand.origin_name}",
        "attribute": f"a plain attribute{at}, which .to() does not move",
        "state": f"{'restored' if 'restored' in (operand.origin_name or '') else 'made'} before the model moved",
        "moved": f"moved there{at}",
    }.get(operand.origin or "", "")


# The fixes for an operand on the CPU, by its origin. A fix changes the line of the origin.
_ORIGIN_FIXES = {
    "attribute": 'self.register_buffer("{name}", …)',
    "module": "keep them in nn.ModuleList or nn.ModuleDict",
    "container": "register each with self.register_buffer(name, tensor)",
}


def _mismatch_fix(entry: results.DeviceMismatchEntry, wrong: results.MismatchedTensor) -> str | None:
    """Return a change that uses only names which its line knows, or None if no change is known."""
    at = f"{entry.place}: " if entry.place else ""
    at_origin = f"{wrong.origin_place}: " if wrong.origin_place else ""
    target = f"{entry.peer}.device" if entry.peer else entry.own_device or f'"{_bare(entry.expected)}"'
    move = f"{at}{wrong.variable}.to({target})" if wrong.variable else None
    if entry.expected == "cpu" and not (wrong.origin == "attribute" and move and entry.peer):
        if wrong.variable:
            return f"{at}{wrong.variable}.cpu()"
        method = entry.operation.removeprefix("Tensor.")
        return at + (f".cpu().{method}()" if method in ("numpy", "pin_memory") else "pass it as .cpu()")
    if entry.expected == "cpu" or wrong.device != "cpu":
        return move or (f"{at}bring both to one device" if at else "use one device")
    if wrong.origin in ("parameter", "buffer") and wrong.origin_name:
        return f"{at}{wrong.origin_name}.to({target}) before it"
    if wrong.origin == "state" and "restored" in (wrong.origin_name or ""):
        return f"{at_origin}load the optimizer's state after model.to(device)"
    if wrong.origin == "state":
        return f"{at_origin}create the optimizer after .to(), then load its state"
    if wrong.maker_device:
        return f"{at_origin}{wrong.origin_name}(…, device={wrong.maker_device})"
    if wrong.origin in _ORIGIN_FIXES:
        return at_origin + _ORIGIN_FIXES[wrong.origin].format(name=wrong.origin_name)
    return move


def _run(run: results.SimulatedRun | None, not_run: str | None, proposed: str | None) -> Iterator[Finding]:
    if run is None:
        yield Finding("model.forward", "skip", "the forward pass was not run", not_run or "", fix=proposed)
        return
    phase = "the forward pass" if run.phase == "forward" else "the training step"
    if run.stopped is not None:
        at = f" from {run.stopped_at} on" if run.stopped_at else ""
        evidence = {"stopped": run.stopped, "stopped_at": run.stopped_at}
        yield Finding("model.forward", "inconclusive", f"{phase} is not judged{at}", run.stopped, evidence)
    elif not run.mismatches:
        yield Finding("model.forward", "pass", f"{phase} runs", f"batch size {run.batch_size}, on simulated devices")
    if run.unjudged:
        names, rows = listed(run.unjudged), {"operations": [asdict(operation) for operation in run.unjudged]}
        yield Finding("model.unjudged", "info", "operations of other libraries were not judged", names, rows)


def listed(operations: Sequence[results.UnjudgedOperation]) -> str:
    """Return the operations in one text, each with the first line that called it."""
    return ", ".join(row.operation + (f" ({row.place})" if row.place else "") for row in operations)


def _device(device: str) -> str:
    return "the CPU" if device == "cpu" else device


def _bare(device: str) -> str:
    return device.removesuffix(":0")


_FOLLOWED = (
    "this torch has all internal functions that gpucheck needs",
    "This torch lacks internal functions that gpucheck needs for the named features. The rest was judged or measured.",
    "use a version of torch that gpucheck was tested with, or update gpucheck",
)
_MISMATCH = (
    "no operation mixes devices",
    "An operation got tensors on two devices, which raises an error on a GPU. The run used CPU tensors on a simulated "
    "GPU.",
    "create the named operand on the right device, or move it",
)
_UNJUDGED = (
    "every operation could be judged",
    "An operation of another library was not judged. It may accept tensors on any device.",
    "run it once on a GPU",
)
_MODEL = ids_of(
    "model",
    Id(
        "model.left_behind",
        "all tensors of the module move",
        ".to() moves parameters, buffers and submodules. Tensors in a plain attribute, a list or an object stay on "
        "their device.",
        "register_buffer, nn.ParameterList or nn.ModuleList, as the finding shows for each line",
    ),
    Id(
        "model.unregistered",
        "all submodules are registered",
        "A module in a plain list or dictionary is not part of .to(), parameters() or state_dict().",
        "keep it in nn.ModuleList or nn.ModuleDict",
    ),
    Id(
        "model.meta",
        "every parameter has data",
        "Tensors on the meta device have only shapes: .to() cannot copy them.",
        "model.to_empty(device=…), then load or initialise the weights",
    ),
    Id(
        "model.placement",
        "the whole model moves",
        "Every parameter, buffer and tensor that gpucheck found moves to the device.",
    ),
    Id("model.mismatch", *_MISMATCH),
    Id(
        "model.forward",
        "the forward pass, or the training step, runs to its end",
        "The pass was not run, or its analysis stopped. The finding names the line.",
        "add --input; gpucheck run measures the program while it runs",
    ),
    Id("model.followed", *_FOLLOWED),
    Id("model.unjudged", *_UNJUDGED),
)
_RUN_DRY = ids_of(
    "run --dry",
    Id(
        "run.dry.placement",
        "no tensor is on the wrong device",
        "Every operation that ran had its tensors on the right device. The finding states how far the run went.",
    ),
    Id("run.dry.mismatch", *_MISMATCH),
    Id(
        "run.dry.dtype",
        "operands have one data type",
        "The data types of an operation's operands differ, CUDA has no kernel for the data type, or autocast refuses "
        "the operation.",
        "convert one of them, or put the line under autocast; if autocast refuses binary_cross_entropy, use "
        "binary_cross_entropy_with_logits",
    ),
    Id(
        "run.dry.fork",
        "no forked process uses CUDA after its parent",
        "CUDA cannot be used in a process that was forked after its parent had used it.",
        "return CPU tensors from a DataLoader's workers; start other processes by spawn",
    ),
    Id(
        "run.dry.memory",
        "tensors fit into the given memory",
        "Memory of tensors and of torch's own kernels, by phase and line. Not counted: workspaces of cuDNN, and of "
        "cuBLAS (two to four in training, of 32 MiB each on Hopper, 8 MiB on earlier GPUs), buffers of NCCL, the CUDA "
        "context (300 to 600 MiB for each process), and memory that the allocator keeps or that is fragmented.",
        "follow the finding: batch size, checkpointing or data type first",
    ),
    Id(
        "run.dry.followed",
        "the script was analysed to its end",
        "Simulated devices cannot run the named line, so the analysis stopped there. Or this torch lacks internal "
        "functions that gpucheck needs for the named features.",
        "a run on a GPU sees the rest",
    ),
    Id("run.dry.remark", "no other remarks on the script", "A remark on how it was run."),
    Id(
        "run.dry.assumed",
        "the program read no missing value",
        "Under --no-values tensors have no data. Values that the program reads are 0 or False, and findings after "
        "such a value are info.",
        "leave out --no-values",
    ),
    Id("run.dry.unjudged", *_UNJUDGED),
)
_RUN = ids_of(
    "run",
    Id(
        "run.time",
        "what the program waits for",
        "gpucheck measures the shares of the time since torch was loaded: in the DataLoader, in copies, in waits, and "
        "with a busy device. If no share dominates, the verdict is inconclusive.",
        "see the lines below the verdict; gpucheck run --trace 3 shows more",
    ),
    Id(
        "run.ranks.straggler",
        "no rank holds up the job",
        "Under torchrun, torch's flight recorder shows when each rank arrives at each collective. The named rank takes "
        "longer than its siblings from one collective to the next, by at least 2 % of a step and 1 ms, in 60 steps or "
        "more.",
        "look at what the rank does before the collective; gpucheck fleet judge FOLDER reads the files of run --output "
        "DIR/",
    ),
    Id(
        "run.ranks.hang",
        "no collective hangs",
        "A rank waited in a collective for other ranks, for half the smallest timeout of its groups or --hang-after.",
        "look at the line where the missing rank is",
    ),
    Id(
        "run.ranks.mismatch",
        "all ranks make the same collectives",
        "On some ranks, a group's call with the same number had another operation, size or dtype.",
        "make the same collectives in the same order on all ranks",
    ),
    Id(
        "run.ranks.periodic",
        "no work of every n-th step costs much",
        "Every n-th step takes longer, as with an evaluation or a checkpoint. Together these steps cost more than 3 % "
        "of the job.",
        "do it less often",
    ),
    Id(
        "run.ranks.ended",
        "no rank ends before the others",
        "A rank failed first, and its failure caused the errors of the other ranks.",
        "read that rank's own traceback",
    ),
    Id(
        "run.copies.discarded",
        "the result of .to() is kept",
        "A tensor does not move in place. The program made a copy and discarded it.",
        "x = x.to(device)",
    ),
    Id(
        "run.copies.again",
        "no tensor is copied twice",
        "The same tensor, unchanged, is copied in every step.",
        "copy it once before the loop; in a module: register_buffer",
    ),
    Id(
        "run.copies.unpinned",
        "non_blocking copies come from pinned memory",
        "Copies from pageable memory still block.",
        "pin_memory=True in the DataLoader",
    ),
    Id(
        "run.copies.pageable",
        "copies do not block the program",
        "Copies from pageable memory block the program and take a visible part of the time.",
        "pin_memory=True in the DataLoader and non_blocking=True; gpucheck bench transfer shows the gain",
    ),
    Id(
        "run.copies.small",
        "no line makes many small copies",
        "Each copy has a fixed cost of some µs, whatever its size.",
        "stack the tensors and copy once",
    ),
    Id(
        "run.empty_cache",
        "empty_cache() is not called in a loop",
        "The next step requests the freed memory from the driver again.",
        "remove the call from the loop",
    ),
    Id(
        "run.waits",
        "no line waits for the device in every step",
        ".item(), bool(), printing and similar calls wait until the device has finished its work.",
        "read the value every N steps, or once at the end",
    ),
    Id(
        "run.memory.full",
        "memory does not run out",
        "The finding shows which tensors held memory, the failed request, and whether size, fragmentation or another "
        "process is the cause.",
        "follow the finding; gpucheck find-batch-size",
    ),
    Id(
        "run.memory.growth",
        "memory does not grow from step to step",
        "An object keeps tensors of earlier steps, often a list of losses with their graphs.",
        "gpucheck run --trace 5 names the line; keep loss.item()",
    ),
    Id(
        "run.ended",
        "the program comes to its end",
        "It raised an error, a signal ended it, or its exit status was not 0. gpucheck ends with the same status.",
    ),
    Id("run.followed", *_FOLLOWED),
    Id(
        "run.not_seen",
        "gpucheck could measure the program",
        "The program did not load torch, loaded it only in a child process, or loaded it in a way that gpucheck does "
        "not see. Under --dry, gpucheck then stops the program, because it would train for real.",
    ),
)
IDS = (*_MODEL, *_RUN_DRY, *_RUN)
