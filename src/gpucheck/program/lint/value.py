"""What is known of a value, and of all names at one place in a program. What is not known is the empty value."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field, replace

AT_LEAST_ONE = -1


@dataclass(frozen=True, slots=True)
class Value:
    """What is known of a value.

    `kind` is empty for unknown, or none, number, device, tensor, parameter, module, items (a list, tuple or dict),
    batch (what a DataLoader gives), loader, self, or name (imported, and no value yet). `place` is empty for unknown,
    or cpu, cuda, default (the CPU because nothing named a device), or input (where a module and its inputs are).
    `ndim` is None where even a scalar is possible. `made` is the expression that made it, `attribute` the attribute of
    `self` that it was read from. `graph` says that it carries an autograd graph, `leaf` that it was made with
    `requires_grad=True`, `moved` is the move that turned a leaf or a parameter into a plain tensor, `pending` the copy
    to the host that may not be complete. `item` stands for every element, `parts` for each where they are known.
    `stateful` modules have something that must move.
    """

    kind: str = ""
    place: str = ""
    ndim: int | None = None
    made: ast.expr | None = None
    attribute: str = ""
    graph: bool = False
    leaf: bool = False
    moved: ast.expr | None = None
    pending: ast.expr | None = None
    item: Value | None = None
    parts: tuple[Value, ...] = ()
    stateful: bool = False
    name: str = ""

    @property
    def is_tensor(self) -> bool:
        """Whether it is a tensor; a parameter is one."""
        return self.kind in ("tensor", "parameter")

    @property
    def has_dimensions(self) -> bool:
        """Whether it is surely no 0-dimensional tensor: those may lie on the CPU beside any other."""
        return self.ndim is not None and self.ndim != 0


UNKNOWN = Value()
NONE = Value("none")
NUMBER = Value("number")


def join(one: Value, other: Value) -> Value:
    """What is known of a value that is the one or the other."""
    if one == other or other.kind == "none":
        return one
    if one.kind == "none":
        return other
    if one.kind != other.kind:
        return _joined_tensors(one, other) if one.is_tensor and other.is_tensor else UNKNOWN
    if one.is_tensor:
        return _joined_tensors(one, other)
    if one.kind == "module":
        return replace(
            one,
            stateful=one.stateful or other.stateful,
            name=one.name if one.name == other.name else "",
            attribute=one.attribute if one.attribute == other.attribute else "",
            item=None,
        )
    if one.kind == "items":
        return replace(one, parts=(), item=_joined_items(one.item, other.item))
    if one.kind == "device" and "cuda" in (one.place, other.place):
        # "cuda" if it is there else "cpu": written for a GPU.
        return one if one.place == "cuda" else other
    return Value(one.kind) if one.kind in ("number", "batch", "loader") else UNKNOWN


def _joined_items(one: Value | None, other: Value | None) -> Value | None:
    """An empty list says nothing of its elements."""
    return join(one, other) if one is not None and other is not None else one or other


def _joined_tensors(one: Value, other: Value) -> Value:
    dimensions = AT_LEAST_ONE if one.has_dimensions and other.has_dimensions else None
    place = one.place if one.place == other.place else ""
    if {one.place, other.place} == {"default", "input"}:
        # On one of the ways it is on the CPU: whoever comes that way meets the mistake.
        place = "default"
    return Value(
        "tensor" if one.kind != other.kind else one.kind,
        place,
        one.ndim if one.ndim == other.ndim else dimensions,
        one.made or other.made,
        one.attribute if one.attribute == other.attribute else "",
        one.graph or other.graph,
        one.leaf and other.leaf,
        one.moved if other.moved is not None else None,
        one.pending if other.pending is not None else None,
    )


def all_of(values: list[Value]) -> Value | None:
    """What holds for each of these; None for none."""
    if not values:
        return None
    known = values[0]
    for one in values[1:]:
        known = join(known, one)
    return known


@dataclass(slots=True)
class Flow:
    """What is known at one place: of names (`x`, `self.x`), and of the device.

    `started` is what has started CUDA, None where nothing has. A `dead` flow has returned, raised or left its loop.
    """

    names: dict[str, Value] = field(default_factory=dict)
    started: ast.AST | None = None
    dead: bool = False

    def copy(self) -> Flow:
        """The same, to go another way from here."""
        return Flow(dict(self.names), self.started, self.dead)

    def take(self, other: Flow) -> None:
        """Go on from where the other has come to."""
        self.names, self.started, self.dead = other.names, other.started, other.dead

    def settle(self) -> None:
        """Every copy that was pending is complete."""
        for key, value in self.names.items():
            if value.pending is not None or (value.item is not None and value.item.pending is not None):
                item = None if value.item is None else replace(value.item, pending=None)
                self.names[key] = replace(value, pending=None, item=item, parts=())


def met(one: Flow, other: Flow) -> Flow:
    """Where two ways meet. One that has ended does not arrive."""
    if one.dead or other.dead:
        return (other if one.dead else one).copy()
    names = {}
    for key, value in one.names.items():
        # A name that only one way sets is that where it is read at all.
        names[key] = join(value, other.names[key]) if key in other.names else UNKNOWN
    for key in other.names:
        names.setdefault(key, UNKNOWN)
    return Flow(names, one.started or other.started)
