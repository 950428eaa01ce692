"""A model's weights: the tree of its modules with their bytes, the totals, and what training adds. Exact arithmetic."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from gpucheck.report.results.model import ModuleRow, Totals, TrainingBytes

Where = Callable[[Tensor], str]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]


@dataclass(slots=True)
class _Node:
    row: ModuleRow
    below: list[_Node]

    @property
    def shape(self) -> object:
        """What two modules have alike that are told as one."""
        return (replace(self.row, name=""), [(one.row.name.rpartition(".")[2], one.shape) for one in self.below])


def size_of(tensor: Tensor) -> int:
    """Bytes of a tensor's elements."""
    return int(tensor.numel() * tensor.element_size())


def rows(model: nn.Module, where: Where, depth: int) -> tuple[ModuleRow, ...]:
    """The model and its modules down to `depth`, those without weights left out, alike ones in a row as one."""
    root = _node(model, "", 0, where, depth, set())
    return tuple(_flat(root))


def _node(module: nn.Module, name: str, depth: int, where: Where, deepest: int, seen: set[int]) -> _Node:
    below: list[_Node] = []
    before = set(seen)
    row = _row(module, name, depth, where, before)
    for child_name, child in module.named_children():
        if depth < deepest:
            path = f"{name}.{child_name}" if name else child_name
            below.append(_node(child, path, depth + 1, where, deepest, seen))
    seen |= {id(one) for one in (*module.parameters(), *module.buffers())}
    return _Node(row, [one for one in below if one.row.parameters or one.row.buffer_bytes])


def _row(module: nn.Module, name: str, depth: int, where: Where, seen: set[int]) -> ModuleRow:
    parameters = [one for one in module.parameters() if id(one) not in seen]
    buffers = [one for one in module.buffers() if id(one) not in seen]
    both = [*parameters, *buffers]
    return ModuleRow(
        name=name,
        kind=type(module).__name__,
        depth=depth,
        parameters=sum(one.numel() for one in parameters),
        parameter_bytes=sum(map(size_of, parameters)),
        buffer_bytes=sum(map(size_of, buffers)),
        dtypes=tuple(dict.fromkeys(str(one.dtype).removeprefix("torch.") for one in both)),
        devices=tuple(dict.fromkeys(map(where, both))),
    )


def _flat(node: _Node) -> Iterator[ModuleRow]:
    yield node.row
    index = 0
    while index < len(node.below):
        first = node.below[index]
        end = index + 1
        while end < len(node.below) and node.below[end].shape == first.shape:
            end += 1
        count = end - index
        for row in _flat(first):
            yield row if count == 1 else _folded(row, first.row.name, node.below[end - 1].row.name, count)
        index = end


def _folded(row: ModuleRow, first: str, last: str, count: int) -> ModuleRow:
    """`layers.0` to `layers.11` as `layers.0-11`; what lies below keeps the name of the range."""
    name = f"{first}-{last.rpartition('.')[2]}{row.name[len(first) :]}"
    return replace(row, name=name, repeats=row.repeats * count)


def totals(model: nn.Module) -> Totals:
    """The whole model; `parameters()` gives a tied one once."""
    parameters = list(model.parameters())
    return Totals(
        parameters=sum(one.numel() for one in parameters),
        parameter_bytes=sum(map(size_of, parameters)),
        buffer_bytes=sum(map(size_of, model.buffers())),
        trained_bytes=sum(size_of(one) for one in parameters if one.requires_grad),
    )


def training(groups: Sequence[tuple[Sequence[nn.Parameter], MakeOptimizer]], text: str) -> TrainingBytes:
    """What gradients and the optimizer's state take: the real optimizer steps on tensors without memory.

    `groups` are the trained parameters, each group with what makes its optimizer.
    """
    gradient = sum(size_of(one) for parameters, _ in groups for one in parameters)
    try:
        state = sum(_state_bytes(parameters, make) for parameters, make in groups)
    except (RuntimeError, NotImplementedError, TypeError, ValueError, AssertionError) as error:
        reason = " ".join(str(error).split()) or type(error).__name__
        return TrainingBytes(optimizer=text, gradient_bytes=gradient, optimizer_bytes=None, reason=reason[:200])
    return TrainingBytes(optimizer=text, gradient_bytes=gradient, optimizer_bytes=state)


def _state_bytes(parameters: Sequence[nn.Parameter], make: MakeOptimizer) -> int:
    """Bytes of all states but the counters. Each shape is asked once: an optimizer's state is each parameter's own."""
    sizes: dict[tuple[Any, ...], int] = {}
    total = 0
    for one in parameters:
        key = (tuple(one.shape), one.dtype)
        if key not in sizes:
            sizes[key] = _state_of(one, make)
        total += sizes[key]
    return total


def _state_of(parameter: nn.Parameter, make: MakeOptimizer) -> int:
    """Bytes of one parameter's state after a step: on a meta tensor, or a real one where the optimizer reads values."""
    try:
        return _stepped(parameter, make, torch.device("meta"))
    except (RuntimeError, NotImplementedError):
        return _stepped(parameter, make, torch.device("cpu"))


def _stepped(parameter: nn.Parameter, make: MakeOptimizer, device: torch.device) -> int:
    stand_in = nn.Parameter(torch.ones(parameter.shape, dtype=parameter.dtype, device=device))
    stand_in.grad = torch.ones_like(stand_in)
    optimizer = make([stand_in])
    optimizer.step()
    states = [value for value in optimizer.state[stand_in].values() if isinstance(value, Tensor)]
    # A counter is a number on the CPU, whatever the device.
    return sum(size_of(one) for one in states if one.dim() > 0 or parameter.dim() == 0)
