"""What an expression is, as far as that is known: one function for each kind of expression."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from gpucheck.program.lint import calls, checks, torch_names
from gpucheck.program.lint.names import Class, Function, called_name, family
from gpucheck.program.lint.scope import Scope
from gpucheck.program.lint.tree import walk
from gpucheck.program.lint.value import AT_LEAST_ONE, NONE, NUMBER, UNKNOWN, Flow, Value, all_of, join


class Expressions:
    """The expressions of one function (or of the file itself), in the order in which they are evaluated."""

    def __init__(self, scope: Scope, owner: Class | None, name: str, outer: Mapping[str, Value]) -> None:
        self.scope, self.owner, self.name, self.outer = scope, owner, name, outer
        self.flow = Flow()
        # Names that are bound here, those of parameters, and those that are used as only a tensor can be.
        self.local_names: set[str] = set()
        self.parameters: set[str] = set()
        self.evidence: set[str] = set()
        # Whether the parameters lie where the module does, and whether this runs in a forked worker.
        self.in_forward = self.in_worker = False
        # Within how many `with` blocks, or a decorator, nothing has a graph; and factories use another device.
        self.no_graph = self.on_device = 0
        self.keeps_gradients = False
        self.loops: list[ast.For | ast.AsyncFor | ast.While] = []
        # More than 0 while a loop is walked through only to see what it leaves behind.
        self.quiet = 0
        # The receiver of each move, by id of its call; and what this does before it starts CUDA, and on it.
        self.receivers: dict[int, Value] = {}
        self.sets: list[ast.AST] = []
        self.on_gpu: list[ast.expr] = []
        self.registered: set[int] = set()
        # What lists and dicts were made of, by their keys; functions that were defined on the way.
        self.containers: dict[str, ast.expr] = {}
        self.functions: dict[str, Function] = {}
        self.has_framework_step = False

    @property
    def attributes(self) -> dict[str, Value]:
        """The attributes of self that are known."""
        return self.scope.attributes.get(self.owner.node.name, {}) if self.owner is not None else {}

    def visible(self) -> dict[str, Value]:
        """Every name that a function defined here can see."""
        return {**self.outer, **self.flow.names}

    def has_state(self, made: Class) -> bool:
        """Whether objects of a class of the file hold parameters, buffers, or modules with them."""
        members = list(family(self.scope.file, made))
        for name in (name for one in members for name in one.bases):
            if name not in self.scope.file.classes and name not in torch_names.MODULE_BASES:
                return True
        for call in (node for one in members for node in walk(one.node) if isinstance(node, ast.Call)):
            dotted = self.scope.file.dotted(call.func)
            if dotted == "torch.nn.Parameter" or called_name(call).startswith("register_"):
                return True
            if torch_names.is_module_class(dotted) and torch_names.holds_state(dotted):
                return True
            inner = self.scope.file.classes.get(getattr(call.func, "id", ""))
            if inner is not None and inner is not made and inner.is_module:
                return True
        return False

    def report(self, rule: str, node: ast.AST, **words: object) -> None:
        """A mistake, unless this is a way that is only tried."""
        if not self.quiet:
            self.scope.report(rule, node, self.name, **words)

    def value(self, node: ast.expr | None) -> Value:
        """What this expression is. Its calls are checked on the way."""
        if node is None:
            return UNKNOWN
        how = _KINDS.get(type(node))
        if how is not None:
            return how(self, node)
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return UNKNOWN

    # -- names ---------------------------------------------------------------------------------------------------------

    def _name(self, node: ast.Name) -> Value:
        known = self.flow.names.get(node.id)
        if known is None and node.id not in self.local_names:
            known = self.outer.get(node.id)
            if known is None and node.id in self.scope.file.imports:
                return Value("name", name=self.scope.file.imports[node.id])
        if (known is None or known == UNKNOWN) and node.id in self.evidence:
            return Value("tensor", "input" if self.in_forward and node.id in self.parameters else "")
        return self._by_name(node.id) if known is None or known == UNKNOWN else known

    def _by_name(self, name: str) -> Value:
        """What is called a loader is taken for one: what it gives, unpacked, are tensors."""
        last = name.lower().rpartition("_")[2]
        return Value("loader") if last in ("loader", "dataloader", "dl", "trainloader", "testloader") else UNKNOWN

    def _attribute(self, node: ast.Attribute) -> Value:
        dotted = self.dotted(node)
        if dotted:
            return Value("name", name=dotted)
        base = self.value(node.value)
        key = self.key(node)
        if key in self.flow.names and not (base.moved and node.attr == "grad"):
            return self.flow.names[key]
        if base.kind == "self":
            known = self.attributes.get(node.attr, UNKNOWN)
            return self._by_name(node.attr) if known == UNKNOWN else known
        if base.is_tensor:
            return self._of_tensor(node, base)
        if base.kind == "module" and node.attr in ("weight", "bias"):
            return Value("parameter", "input" if self.in_forward else "", AT_LEAST_ONE)
        if base.kind == "batch":
            return Value("tensor")
        return UNKNOWN

    def _of_tensor(self, node: ast.Attribute, base: Value) -> Value:
        if node.attr == "grad" and base.moved is not None and not self.keeps_gradients:
            checks.moved_leaf(self, base)
        if node.attr == "device":
            return Value("device", base.place)
        if node.attr in torch_names.NO_TENSOR_ATTRIBUTES:
            return UNKNOWN
        if node.attr in ("data", "grad"):
            return replace(base, kind="tensor", graph=False, leaf=False, moved=None, attribute="")
        return replace(base, kind="tensor") if node.attr in ("T", "mT", "H", "real", "imag") else UNKNOWN

    # -- constants and displays ----------------------------------------------------------------------------------------

    def _constant(self, node: ast.Constant) -> Value:
        match node.value:
            case None:
                return NONE
            case str() as text if text.split(":")[0] in ("cuda", "xpu"):
                return Value("device", "cuda")
            case "cpu":
                return Value("device", "cpu")
            case bool() | int() | float() | complex():
                return NUMBER
        return UNKNOWN

    def _display(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        parts = []
        for one in node.elts:
            inner = self.value(one.value if isinstance(one, ast.Starred) else one)
            parts.append((inner.item or UNKNOWN) if isinstance(one, ast.Starred) else inner)
        starred = any(isinstance(one, ast.Starred) for one in node.elts)
        return Value("items", item=all_of(parts), parts=() if starred else tuple(parts), made=node)

    def _dict(self, node: ast.Dict) -> Value:
        for key in node.keys:
            self.value(key)
        values = [self.value(one) for one in node.values]
        return Value("items", item=all_of(values), parts=tuple(values), made=node)

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        before = dict(self.flow.names)
        self.local_names |= {
            name.id for one in node.generators for name in walk(one.target) if isinstance(name, ast.Name)
        }
        for one in node.generators:
            self.bind(one.target, self.element(self.value(one.iter)))
            for test in one.ifs:
                self.value(test)
        if isinstance(node, ast.DictComp):
            self.value(node.key)
            item = self.value(node.value)
        else:
            item = self.value(node.elt)
        self.flow.names = before
        return Value("items", item=item, made=node)

    def _lambda(self, node: ast.Lambda) -> Value:
        before, was_in_worker = self.flow.copy(), self.in_worker
        self.in_worker = self.in_worker or id(node) in self.scope.file.lambdas_in_workers
        for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self.flow.names[one.arg] = UNKNOWN
        self.value(node.body)
        self.flow.take(before)
        self.in_worker = was_in_worker
        return UNKNOWN

    # -- operators -----------------------------------------------------------------------------------------------------

    def _binary(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if "items" in (left.kind, right.kind):
            # [a] * 3, [a] + [b]
            return left if left.kind == "items" and right.kind != "items" else join(left, right)
        return self.combined(node, [left, right])

    def combined(self, node: ast.expr, values: list[Value]) -> Value:
        """The result of an operation on these values, which must lie on one device.

        Beside what is not known it stays where it is: a tensor of another device would have raised.
        """
        values = [replace(one, kind="tensor") if one.kind == "batch" and one.place else one for one in values]
        checks.read(self, node, values)
        checks.apart(self, node, values)
        tensors = [one for one in values if one.is_tensor]
        if not tensors:
            return NUMBER if values and all(one.kind == "number" for one in values) else UNKNOWN
        result = tensors[0]
        for one in tensors[1:]:
            result = join(result, one)
        places = {one.place for one in tensors}
        if len(places) > 1:
            # They met, so the one on the CPU was a scalar, or this line has been told.
            result = replace(result, place="input" if "input" in places else "")
        shaped = [one.ndim for one in tensors if one.has_dimensions]
        shape = shaped[0] if shaped and len(tensors) == 1 else AT_LEAST_ONE if shaped else result.ndim
        graph = any(one.graph for one in tensors) and not self.no_graph
        return Value("tensor", result.place, shape, result.made, result.attribute, graph)

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.value(one) for one in (node.left, *node.comparators)]
        if all(isinstance(one, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for one in node.ops):
            return NUMBER
        return self.combined(node, values)

    def _unary(self, node: ast.UnaryOp) -> Value:
        known = self.value(node.operand)
        return UNKNOWN if isinstance(node.op, ast.Not) else known

    def _boolean(self, node: ast.BoolOp) -> Value:
        return all_of([self.value(one) for one in node.values]) or UNKNOWN

    def _choice(self, node: ast.IfExp) -> Value:
        self.value(node.test)
        return join(self.value(node.body), self.value(node.orelse))

    def _named(self, node: ast.NamedExpr) -> Value:
        known = self.value(node.value)
        self.bind(node.target, known)
        return known

    def _passed(self, node: ast.Await | ast.Starred | ast.YieldFrom) -> Value:
        return self.value(node.value)

    def _yield(self, node: ast.Yield) -> Value:
        self.value(node.value)
        return UNKNOWN

    # -- subscripts ----------------------------------------------------------------------------------------------------

    def _subscript(self, node: ast.Subscript) -> Value:
        base, index = self.value(node.value), self._index(node.slice)
        if base.is_tensor:
            if index.is_tensor and base.place == "default":
                checks.apart(self, node, [base, index])
            return replace(base, kind="tensor", ndim=_indexed(base.ndim, node.slice, index))
        if base.kind == "items":
            if isinstance(node.slice, ast.Slice):
                return replace(base, parts=())
            at = node.slice.value if isinstance(node.slice, ast.Constant) else None
            if base.parts and isinstance(at, int) and -len(base.parts) <= at < len(base.parts):
                return base.parts[at]
            return base.item or UNKNOWN
        if base.kind == "batch":
            return Value("tensor", base.place)
        if base.kind == "module":
            return base.item or Value("module", stateful=base.stateful, attribute=base.attribute)
        return UNKNOWN

    def _index(self, node: ast.expr) -> Value:
        """What stands between the brackets; of several a tensor where one is."""
        if isinstance(node, ast.Tuple):
            parts = [self.value(one) for one in node.elts]
            return next((one for one in parts if one.is_tensor), UNKNOWN)
        return self.value(node)

    def element(self, base: Value) -> Value:
        """What a loop over this gives."""
        match base.kind:
            case "items":
                return base.item or UNKNOWN
            case "loader":
                return Value("batch", base.place)
            case "batch":
                return Value("tensor", base.place)
            case "tensor" | "parameter":
                return replace(
                    base, kind="tensor", ndim=base.ndim - 1 if base.ndim is not None and base.ndim > 1 else None
                )
            case "module":
                return base.item or Value("module", stateful=base.stateful, attribute=base.attribute)
        return UNKNOWN

    def each(self, base: Value, count: int) -> Iterator[Value]:
        """The values that this is unpacked into."""
        if base.parts and len(base.parts) == count:
            yield from base.parts
        else:
            for _ in range(count):
                yield self.element(base)

    def bind(self, target: ast.expr, known: Value) -> None:
        """Give a value to a name, to an attribute, or to several."""
        if isinstance(target, (ast.Tuple, ast.List)):
            values = list(self.each(known, len(target.elts)))
            for one, value in zip(target.elts, values, strict=True):
                in_place = isinstance(one, ast.Name) and one.id in torch_names.IN_PLACE_NAMES
                self.bind(one, UNKNOWN if in_place and value == Value("tensor") else value)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, Value("items", item=self.element(known)))
        elif key := self.key(target):
            self.flow.names[key] = known
        elif isinstance(target, ast.Subscript):
            self.value(target.slice)
            container = self.key(target.value)
            base = self.value(target.value)
            if container and base.kind == "items":
                self.flow.names[container] = replace(
                    base, parts=(), item=join(base.item, known) if base.item else known
                )

    def key(self, node: ast.expr) -> str:
        """The key of a name or of an attribute of a name; empty for anything else."""
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            return f"{node.value.id}.{node.attr}"
        return ""

    def dotted(self, node: ast.expr) -> str:
        """An imported name in dots, unless a local name hides it."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id in self.local_names:
            return ""
        return self.scope.file.dotted(node)


def _indexed(ndim: int | None, index: ast.expr, known: Value) -> int | None:
    """The dimensions that are left of a tensor: slices keep them, an integer takes one."""
    parts = index.elts if isinstance(index, ast.Tuple) else [index]
    left = ndim
    for one in parts:
        if isinstance(one, ast.Slice) or (isinstance(one, ast.Constant) and one.value is ...):
            continue
        if isinstance(one, ast.Constant) and one.value is None:
            left = left + 1 if left is not None and left >= 0 else AT_LEAST_ONE
        elif known.is_tensor and known.has_dimensions:
            left = AT_LEAST_ONE
        elif isinstance(one, (ast.Constant, ast.UnaryOp)) and left is not None and left > 0:
            left -= 1
        else:
            return None
    return left


_KINDS: dict[type[ast.expr], Callable[[Any, Any], Value]] = {
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.Constant: Expressions._constant,
    ast.List: Expressions._display,
    ast.Tuple: Expressions._display,
    ast.Set: Expressions._display,
    ast.Dict: Expressions._dict,
    ast.ListComp: Expressions._comprehension,
    ast.SetComp: Expressions._comprehension,
    ast.GeneratorExp: Expressions._comprehension,
    ast.DictComp: Expressions._comprehension,
    ast.Lambda: Expressions._lambda,
    ast.BinOp: Expressions._binary,
    ast.Compare: Expressions._compare,
    ast.UnaryOp: Expressions._unary,
    ast.BoolOp: Expressions._boolean,
    ast.IfExp: Expressions._choice,
    ast.NamedExpr: Expressions._named,
    ast.Await: Expressions._passed,
    ast.Starred: Expressions._passed,
    ast.YieldFrom: Expressions._passed,
    ast.Yield: Expressions._yield,
    ast.Subscript: Expressions._subscript,
    ast.Call: calls.call,
}
