"""Where a process and its buffers are among the NUMA nodes: bound before torch is imported, and told in words."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpucheck.errors import CannotLook
from gpucheck.machine import numa
from gpucheck.machine.numa import Bound
from gpucheck.report.measurement import Measurement

if TYPE_CHECKING:  # torch comes after binding
    from gpucheck.bench.transfer.cases import Room


def bind(node: int | None, unknown_because: str = "") -> tuple[Bound | None, str]:
    """Bind this process to a node; None and why where there is none to bind to or it cannot be."""
    if node is None:
        return None, unknown_because or "the node of the device is not known"
    try:
        return numa.bind(node), ""
    except CannotLook as error:
        return None, "; ".join(part for part in (error.what, error.why) if part)


def where(bound: Bound | None, words: Iterable[Any]) -> str | None:
    """Where buffers (tensors) lie: as read back, else as assumed from the binding.

    Of an unbound process, where it may run: on which node its memory came to lie differs from run to run, and is no
    part of the method.
    """
    if bound is None:
        return numa.allowed_text()
    pages = numa.together([numa.node_of_pages(one.data_ptr(), one.nbytes) for one in words])
    return numa.told(bound, pages)


def within(room: Room, bound: Bound | None, share: float) -> Room:
    """The room that is left on the node whose memory this process was bound to, of which `share` may be taken."""
    free = None if bound is None or not bound.memory else numa.free_bytes(bound.node)
    return room if free is None else replace(room, host=min(room.host, int(free * share)))


def placed(one: Measurement, told: str | None) -> Measurement:
    """The row with this told in its method, unless it tells another place already."""
    return one if one.method.numa is not None else replace(one, method=replace(one.method, numa=told))
