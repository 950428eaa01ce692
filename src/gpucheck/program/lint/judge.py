"""One file, judged: from its bytes to the mistakes in it. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpucheck.program.lint import names, source, tree
from gpucheck.program.lint.names import Class, Function
from gpucheck.program.lint.run import Run, effect_of, end
from gpucheck.program.lint.scope import Effect, Mistake, Scope
from gpucheck.program.lint.source import Unreadable
from gpucheck.program.lint.value import Value

# A file without any of these words has no device to be wrong about.
_WORDS = (b"torch", b"lightning", b"CUDA_VISIBLE_DEVICES", b"transformers", b"backward(")


def mistakes(data: bytes) -> list[Mistake]:
    """The mistakes in a file, by line. Raises Unreadable where it cannot be judged."""
    try:
        read = source.parse(data)
        if not any(word in data for word in _WORDS) and data[:2] not in (b"\xff\xfe", b"\xfe\xff"):
            return []
        nodes = tree.index(read.tree)
        scope = Scope(read, names.read(read.tree))
        _walk(scope)
        # Without these two circles all of it goes at once, and no collector has to look for it.
        nodes.clear()
        scope.parents.clear()
    except RecursionError as error:
        raise Unreadable("its code is nested too deeply") from error
    return sorted(scope.found.values(), key=lambda one: (one.line, one.column, one.id))


def _walk(scope: Scope) -> None:
    """The file itself, then what it defines."""

    def effect(
        function: Function, owner: Class | None, outer: Mapping[str, Value], args: Sequence[Value], no_graph: int
    ) -> Effect:
        return effect_of(scope, function, owner, outer, args, no_graph)

    scope.effect_of = effect
    whole = Run(scope, None, scope.file.tree, "", {})
    whole.evidence = set()
    whole.statements(scope.file.tree.body)
    end(whole)
