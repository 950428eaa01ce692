"""Judge a model's move to a GPU: findings from the run, each with its line and the fix. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace

from gpucheck.report.finding import WORST_FIRST, Finding, Verdict
from gpucheck.report.results.model import (
    ClaimedRun,
    DeviceMismatchEntry,
    DeviceRun,
    LeftBehind,
    MismatchedTensor,
    ModelResult,
    PlacedPart,
    Tie,
)

_NOTHING: Mapping[str, LeftBehind] = {}
_WORDS = {"forward": "the forward pass", "step": "the training step"}
# How a person calls what holds a tensor.
_HOLDERS = {
    "attribute": "a plain attribute",
    "container": "a plain list or dictionary",
    "object": "an object that is no module",
    "closure": "a variable that a function closes over",
    "hook": "a hook",
    "class": "an attribute of the class",
}


def findings(result: ModelResult) -> list[Finding]:
    """All findings, the worst first; what passes last."""
    behind = {one.name: one for one in result.left_behind}
    found = [
        *_meta(result),
        *(mismatch(one, behind) for one in (result.run.mismatches if result.run else ())),
        *_left_behind(result.left_behind),
        *(_untied(one) for one in result.untied),
        *_split(result.split, result.run),
    ]
    found.sort(key=lambda one: WORST_FIRST.index(one.verdict))
    if not any(one.verdict in ("fail", "warn") for one in found):
        found.append(Finding("model.placement", "pass", f"all of {result.kind} moves to {result.device}"))
    return [*found, *_run(result.run, result.not_run), *_on_device(result.on_device, result.run)]


# -- the static half ---------------------------------------------------------------------------------------------------


def _meta(result: ModelResult) -> Iterator[Finding]:
    if result.meta:
        more = f" and {len(result.meta) - 1} more" if len(result.meta) > 1 else ""
        yield Finding(
            "model.meta",
            "fail",
            f"{result.meta[0]}{more}: no data",
            "on the meta device, which .to() cannot copy from",
            {"names": list(result.meta)},
            fix=f'model.to_empty(device="{_bare(result.device)}"), then load or initialise the weights',
        )


def _left_behind(things: tuple[LeftBehind, ...]) -> Iterator[Finding]:
    """A finding for each line and fix: twelve layers of one class are told once."""
    groups: dict[tuple[object, ...], list[LeftBehind]] = {}
    for one in things:
        place = one.replaced if one.kind == "parameter" else one.place or one.name
        groups.setdefault((one.kind, one.use, place, one.attribute if one.kind != "parameter" else ""), []).append(one)
    for alike in groups.values():
        finding = _left(alike[0])
        if len(alike) > 1:
            title = f"{alike[0].name} and {len(alike) - 1} more stay on the CPU"
            finding = replace(finding, title=title, evidence={**finding.evidence, "names": [one.name for one in alike]})
        yield finding


def _left(one: LeftBehind) -> Finding:
    verdicts: dict[str, Verdict] = {"mismatched": "fail", "unknown": "fail", "copied": "warn", "unread": "info"}
    ends = {
        "copied": "the forward pass copies it to the GPU each time",
        "unread": "the forward pass does not read it on the GPU",
    }
    why = [f"{one.what} {_reason(one)}"]
    if one.use in ends:
        why.append(ends[one.use])
    identifier = {"module": "model.unregistered", "optimizer-state": "model.optimizer_state"}.get(
        one.kind, "model.replaced_move" if one.kind == "parameter" or one.replaced else "model.left_behind"
    )
    # What nothing reads there is no reason to change a line.
    fix = None if one.use == "unread" else _fix(one)
    return Finding(identifier, verdicts[one.use], f"{one.name} stays on the CPU", "; ".join(why), asdict(one), fix=fix)


def _reason(one: LeftBehind) -> str:
    """Why `.to()` does not reach it, with its line."""
    at = f" ({one.place})" if one.place else ""
    if one.kind == "optimizer-state":
        return "made before the model moved"
    if one.replaced:
        return f"in {_HOLDERS[one.holder]}{at}, not moved by {one.replaced}"
    return f"in {_HOLDERS[one.holder]}{at}, which .to() does not move"


def _fix(one: LeftBehind) -> str:
    at = f"{one.place}: " if one.place else ""
    if one.kind == "optimizer-state":
        return "create the optimizer after model.to(device)"
    if one.replaced:
        if one.kind == "parameter":
            return f"call the method of super() in {one.replaced} too"
        return f"override _apply(self, fn, recurse=True), which parent modules call too, not only {one.replaced}"
    if one.kind == "module":
        held = {"container": "keep it in nn.ModuleList or nn.ModuleDict"}
        return at + held.get(one.holder, "assign it to an attribute of the module")
    kind = "nn.Parameter" if one.is_trained else "register_buffer"
    if one.holder in ("attribute", "class"):
        made = (
            f"self.{one.attribute} = nn.Parameter(…)"
            if one.is_trained
            else f'self.register_buffer("{one.attribute}", …)'
        )
        return at + made
    if one.holder == "container" and one.is_trained:
        return at + "keep them in nn.ParameterList or nn.ParameterDict"
    if one.holder == "container":
        return at + "register each with self.register_buffer(name, tensor)"
    return f"{at}make it a member of the module ({kind}) and read it from there"


def _untied(one: Tie) -> Finding:
    at = f" ({one.place})" if one.place else ""
    return Finding(
        "model.untied",
        "fail",
        f"{' and '.join(one.names)} are no longer tied",
        f"they share memory before .to() but not after it{at}: each is a separate tensor",
        asdict(one),
        fix=f"share the Parameter itself, as in {one.names[-1]} = {one.names[0]}",
    )


def _split(parts: tuple[PlacedPart, ...], run: ClaimedRun | None) -> Iterator[Finding]:
    if not parts:
        return
    told = ", ".join(f"{one.count} on {one.device}, as {one.first}" for one in parts)
    on_cpu = next((one for one in parts if one.device == "cpu"), None)
    proved = run is not None and run.stopped is None and not run.mismatches
    verdict: Verdict = "fail" if on_cpu is not None and not proved else "info"
    at = f" ({on_cpu.place})" if on_cpu is not None and on_cpu.place else ""
    fix = f"move the whole model: {on_cpu.first} stays on the CPU{at}" if on_cpu is not None and not proved else None
    evidence = {"parts": [asdict(one) for one in parts]}
    yield Finding("model.devices", verdict, "parameters on several devices", told, evidence, fix=fix)


# -- the run -----------------------------------------------------------------------------------------------------------


def mismatch(one: DeviceMismatchEntry, behind: Mapping[str, LeftBehind] = _NOTHING) -> Finding:
    """An operation whose operands lie apart: whose tensor it met, and the fix. `behind` is what stayed, by name."""
    wrong = next((operand for operand in one.operands if operand.is_wrong), one.operands[0])
    where = " in ".join(part for part in (one.place, one.module) if part)
    title = where or "in torch's own code"
    operation = one.operation if one.operation[0].isalpha() else f"`{one.operation}`"
    message = f"{operation} needs {_device(one.expected)}, but {_called(wrong)} is on {_device(wrong.device)}"
    left = behind.get(wrong.origin_name or "")
    cause = _cause(wrong)
    if left is not None:
        cause = f"{left.what} {_reason(left)}"
    if cause:
        message += f": {cause}"
    for other in one.operands:
        if other.is_wrong and other is not wrong:
            message += f"; {_called(other)} is on {_device(other.device)} too"
    fix = _fix(left) if left is not None else _mismatch_fix(one, wrong)
    return Finding("model.mismatch", "fail", title, message, asdict(one), fix=fix)


def _called(operand: MismatchedTensor) -> str:
    if operand.origin in ("attribute", "parameter", "buffer", "input", "state") and operand.origin_name:
        return operand.origin_name
    return f"its argument {operand.name}"


def _cause(operand: MismatchedTensor) -> str:
    at = f" at {operand.origin_place}" if operand.origin_place else ""
    causes = {
        "parameter": "a parameter",
        "buffer": "a buffer",
        "input": "an input of the model",
        "made": f"created{at} by {operand.origin_name}" if operand.by_maker or not at else f"made{at}",
        "attribute": f"a plain attribute{at}, which .to() does not move",
        "state": "made before the model moved",
        "moved": f"moved there{at}",
    }
    return causes.get(operand.origin or "", "")


def _mismatch_fix(one: DeviceMismatchEntry, wrong: MismatchedTensor) -> str | None:
    """A change whose names exist at the line it is for; None where only the line is known."""
    at = f"{one.place}: " if one.place else ""
    made = f"{wrong.origin_place}: " if wrong.origin_place else ""
    if one.expected == "cpu":
        method = one.operation.removeprefix("Tensor.")
        taken = f".cpu().{method}()" if method in ("numpy", "pin_memory") else "pass it as .cpu()"
        return f"{at}{wrong.variable}.cpu()" if wrong.variable else f"{at}{taken}"
    target = f"{one.peer}.device" if one.peer else f'"{_bare(one.expected)}"'
    moved = f"{at}{wrong.variable}.to({target})" if wrong.variable else None
    if wrong.device != "cpu":
        return moved or (f"{at}bring both to one device" if at else "use one device")
    if wrong.origin == "state":
        return f"{made}make the optimizer after .to(), or load its state again"
    if wrong.origin == "attribute":
        return f'{made}self.register_buffer("{wrong.origin_name}", …)'
    if wrong.origin == "parameter" and wrong.origin_name:
        return f"{at}{wrong.origin_name}.to({target}) before it"
    maker = f"{made}{wrong.origin_name}(…, device={wrong.maker_device or _quoted(one.expected)})"
    if wrong.origin == "made" and wrong.by_maker and (wrong.same_function or moved is None):
        return maker
    if moved is None and wrong.origin == "moved":
        return f"{made}leave it on {one.expected}"
    return moved


def _quoted(device: str) -> str:
    return f'"{_bare(device)}"'


def _run(run: ClaimedRun | None, not_run: str | None) -> Iterator[Finding]:
    if run is None:
        fix = "add --input NAME:SHAPE:DTYPE" if not_run and "--input" in not_run else None
        yield Finding("model.forward", "skip", "the forward pass was not run", not_run or "", fix=fix)
        return
    what = _WORDS[run.phase]
    if run.stopped is not None:
        at = f" from {run.stopped_at} on" if run.stopped_at else ""
        evidence = {"stopped": run.stopped, "stopped_at": run.stopped_at}
        yield Finding("model.forward", "inconclusive", f"{what} is not judged{at}", run.stopped, evidence)
    elif not run.mismatches:
        yield Finding("model.forward", "pass", f"{what} runs", f"batch size {run.batch_size}, on simulated devices")
    if run.note:
        yield Finding("model.note", "warn", run.note)
    if run.unjudged:
        told = ", ".join(one.operation + (f" ({one.place})" if one.place else "") for one in run.unjudged)
        operations = {"operations": [asdict(one) for one in run.unjudged]}
        yield Finding("model.unjudged", "info", "operations of other libraries were not judged", told, operations)


def _on_device(ran: DeviceRun | None, run: ClaimedRun | None) -> Iterator[Finding]:
    if ran is None or run is None:
        return
    what = _WORDS[run.phase]
    if ran.error is None:
        yield Finding("model.on_device", "pass", f"{what} runs on the real {ran.device}")
        return
    at = f" at {ran.place}" if ran.place else ""
    # A full GPU says nothing of the model.
    verdict: Verdict = "inconclusive" if "out of memory" in ran.error.lower() else "fail"
    yield Finding("model.on_device", verdict, f"{what} fails on the real {ran.device}{at}", ran.error, asdict(ran))


def _device(device: str) -> str:
    return "the CPU" if device == "cpu" else device


def _bare(device: str) -> str:
    return device.removesuffix(":0")
