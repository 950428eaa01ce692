"""Evaluate expressions as far as lint knows their values. Each kind of expression and of call has a function."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.program.lint import facts, processes, tables, tensors
from gpucheck.program.lint.facts import DIMENSIONS, NONE, NUMBER, SCALAR, UNKNOWN, CallArgs, Scope, Value, all_of, join

# Built-in functions that need the values of their arguments.
_READS = ("print", "float", "int", "bool", "str", "repr", "max", "min", "sorted", "format")
_STOPS_GRAPHS = frozenset({"no_grad", "inference_mode", "set_grad_enabled", "detach"})


class Expressions(Scope):
    """The expressions of one function or of the module level, in evaluation order."""

    def value(self, node: ast.expr | None) -> Value:
        if node is None:
            return UNKNOWN
        visit: Callable[[Any], Value] = getattr(self, f"visit_{type(node).__name__}", self.below)
        return visit(node)

    def test(self, node: ast.expr) -> Value:
        """Return the value of an expression that the host reads, such as a condition or a part of an f-string."""
        known = self.value(node)
        tensors.waited(self, [known])
        return known

    def below(self, node: ast.AST) -> Value:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)
        return UNKNOWN

    def named(self, name: str) -> Value:
        outer = {} if name in self.local_names else self.outer
        return self.flow.names.get(name) or outer.get(name, UNKNOWN)

    def visit_Name(self, node: ast.Name) -> Value:
        known = self.named(node.id)
        if known.kind:
            return known
        if node.id not in self.flow.names and node.id not in self.outer and (dotted := self.dotted(node)):
            return Value("name", name=dotted)
        if node.id in self.evidence:
            return Value("tensor", "input" if self.in_forward and node.id in self.parameters else "")
        return _by_name(node.id)

    def visit_Attribute(self, node: ast.Attribute) -> Value:
        if dotted := self.dotted(node):
            return Value("name", name=dotted)
        base = self.value(node.value)
        if (key := self.key(node)) in self.flow.names and not (base.moved and node.attr == "grad"):
            return self.flow.names[key]
        if base.kind == "self":
            function = self.file.method(self.owner, node.attr)
            if function is not None and facts.method_kind(function) == "property":
                return processes.called(self, node, self.effect_of(function, self.owner))
            return self.attributes.get(node.attr) or _by_name(node.attr)
        if base.is_tensor and node.attr == "grad" and not self.keeps_gradients:
            tensors.moved_leaf(self, base)
        if base.is_tensor and node.attr in ("T", "mT", "H", "real", "imag"):
            return replace(base, kind="tensor")
        return UNKNOWN

    def visit_Constant(self, node: ast.Constant) -> Value:
        match node.value:
            case None:
                return NONE
            case str() as text if text.split(":")[0] in ("cuda", "xpu"):
                return Value("device", "cuda")
            case "cpu":
                return Value("device", "cpu")
            case int() | float() | complex():
                return NUMBER
        return UNKNOWN

    def visit_List(self, node: ast.List | ast.Tuple | ast.Set) -> Value:
        parts = tuple(self.value(element) for element in node.elts)
        is_starred = [isinstance(element, ast.Starred) for element in node.elts]
        items = (part.item or UNKNOWN if starred else part for part, starred in zip(parts, is_starred, strict=True))
        return Value("items", item=all_of(items), parts=() if any(is_starred) else parts, made=node)

    visit_Tuple = visit_Set = visit_List

    def visit_Dict(self, node: ast.Dict) -> Value:
        values = [self.value(value) for value in node.values]
        keys = tuple(str(getattr(key, "value", None)) for key in node.keys)
        return Value("items", item=all_of(values), parts=tuple(values), keys=keys, made=node)

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> Value:
        before = dict(self.flow.names)
        for generator in node.generators:
            self.local_names |= {name.id for name in facts.walk(generator.target) if isinstance(name, ast.Name)}
            self.bind(generator.target, self.element(self.value(generator.iter)))
            for condition in generator.ifs:
                self.value(condition)
        item = self.value(node.value if isinstance(node, ast.DictComp) else node.elt)
        self.flow.names = before
        return Value("items", item=item, made=node)

    visit_SetComp = visit_GeneratorExp = visit_DictComp = visit_ListComp

    def visit_Lambda(self, node: ast.Lambda) -> Value:
        before, was_in_worker, name = self.flow.copy(), self.in_worker, self.name
        if id(node) in self.file.in_workers:
            self.in_worker, self.name = True, "<lambda>"
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self.flow.names[argument.arg] = UNKNOWN
        self.value(node.body)
        self.flow, self.in_worker, self.name = before, was_in_worker, name
        return UNKNOWN

    def visit_BinOp(self, node: ast.BinOp) -> Value:
        left, right = self.value(node.left), self.value(node.right)
        if "items" in (left.kind, right.kind):
            return left if left.kind == "items" and right.kind != "items" else join(left, right)
        return self.combined(node, [left, right])

    def combined(self, node: ast.expr, values: list[Value]) -> Value:
        """Return the result of an operation on values, which must be on one device."""
        values = [replace(value, kind="tensor") if value.kind == "batch" and value.place else value for value in values]
        tensors.read(self, node, values)
        tensors.mixed_devices(self, node, values)
        if not (operands := [value for value in values if value.is_tensor]):
            return NUMBER if values and all(value.kind == "number" for value in values) else UNKNOWN
        result = all_of(operands) or UNKNOWN
        places = {value.place for value in operands}
        if len(places) > 1:
            # One operand is a CPU scalar, or the line has a mistake that is reported.
            result = replace(result, place="input" if "input" in places else "")
        ndim = DIMENSIONS if any(value.ndim == DIMENSIONS for value in operands) else result.ndim
        called = facts.called_name(node) if isinstance(node, ast.Call) else ""
        is_plain = isinstance(node, ast.Compare) or called in tables.NO_GRADIENT
        graph = not is_plain and any(value.graph for value in operands) and not self.no_graph
        return Value("tensor", result.place, ndim, result.made, result.attribute, graph)

    def visit_Compare(self, node: ast.Compare) -> Value:
        values = [self.value(part) for part in (node.left, *node.comparators)]
        if all(isinstance(sign, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for sign in node.ops):
            return NUMBER
        return self.combined(node, values)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            self.test(node.operand)
            return UNKNOWN
        return self.value(node.operand)

    def visit_IfExp(self, node: ast.IfExp) -> Value:
        self.test(node.test)
        return join(self.value(node.body), self.value(node.orelse))

    def visit_NamedExpr(self, node: ast.NamedExpr) -> Value:
        known = self.value(node.value)
        self.bind(node.target, known)
        return known

    def visit_BoolOp(self, node: ast.BoolOp) -> Value:
        return all_of([self.test(part) for part in node.values]) or UNKNOWN

    def visit_FormattedValue(self, node: ast.FormattedValue) -> Value:
        return self.test(node.value)

    def visit_Await(self, node: ast.Await | ast.Starred | ast.YieldFrom) -> Value:
        return self.value(node.value)

    visit_Starred = visit_YieldFrom = visit_Await

    def visit_Call(self, node: ast.Call) -> Value:
        if self.flow.mask is not None:
            processes.hidden(self, node, self.flow.mask)
        func = node.func
        dotted = self.dotted(func)
        receiver = self.value(func.value) if isinstance(func, ast.Attribute) and not dotted else UNKNOWN
        args = [self.value(argument) for argument in node.args]
        keywords = [(keyword.arg, self.value(keyword.value)) for keyword in node.keywords]
        named = {name: value for name, value in keywords if name}
        is_open = len(named) < len(keywords) or any(isinstance(argument, ast.Starred) for argument in node.args)
        given = CallArgs(node, args, named, is_open)
        if dotted:
            return self._of_import(given, dotted)
        if isinstance(func, ast.Attribute):
            return self._of_method(given, receiver, func)
        if isinstance(func, ast.Name):
            return self._of_name(given, func.id)
        target = self.value(func)
        return self._of_module(given, target) if target.kind == "module" else UNKNOWN

    def visit_Subscript(self, node: ast.Subscript) -> Value:
        base = self.value(node.value)
        parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
        indices = [self.value(part) for part in parts]
        if base.is_tensor:
            index = next((known for known in indices if known.is_tensor), UNKNOWN)
            if index.is_tensor and base.place == "default":
                tensors.mixed_devices(self, node, [base, index])
            tensors.waited(self, [index])  # the host waits for the number of elements that a mask selects
            # Slices keep the dimensions, and an integer removes one. An index tensor may add dimensions.
            keeps = all(isinstance(part, ast.Slice) or getattr(part, "value", 0) in (None, ...) for part in parts)
            is_new = keeps and any(getattr(part, "value", 0) is None for part in parts)
            ndim = DIMENSIONS if is_new or index.ndim == DIMENSIONS else base.ndim if keeps else None
            return replace(base, kind="tensor", ndim=ndim)
        at = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if base.kind in ("items", "module") and (part := base.part(at)) is not None:
            return part
        if base.kind == "items" and isinstance(node.slice, ast.Slice):
            return replace(base, parts=())
        return self.element(base) if base.kind in ("items", "batch", "module", "") else UNKNOWN

    def element(self, base: Value) -> Value:
        """Return the value of the loop variable in a loop over `base`."""
        match base.kind:
            case "items":
                return base.item or UNKNOWN
            case "loader":
                return Value("batch", base.place)
            case "batch":
                return Value("tensor", base.place)
            case "tensor" | "parameter":
                return replace(base, kind="tensor", ndim=None)
            case "module":
                return base.item or Value("module", stateful=base.stateful, attribute=base.attribute)
        return UNKNOWN

    def each(self, base: Value, count: int) -> Sequence[Value]:
        return base.parts if len(base.parts) == count else [self.element(base)] * count

    def bind(self, target: ast.expr, known: Value) -> None:
        if isinstance(target, (ast.Tuple, ast.List)):
            for part, value in zip(target.elts, self.each(known, len(target.elts)), strict=True):
                in_place = isinstance(part, ast.Name) and part.id in tables.IN_PLACE_NAMES
                self.bind(part, UNKNOWN if in_place and value == Value("tensor") else value)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, Value("items", item=self.element(known)))
        elif key := self.key(target):
            root, dot, _ = key.partition(".")
            self.rooted |= {root} if dot else set()
            if key in self.rooted:  # the known attributes belonged to the previous object
                for name in [name for name in self.flow.names if name.startswith(f"{root}.")]:
                    del self.flow.names[name]
            self.flow.names[key] = UNKNOWN if key in self.file.shared else known
        elif isinstance(target, ast.Subscript):
            self.value(target.slice)
            container, base = self.key(target.value), self.value(target.value)
            if container and base.kind == "items":
                item = join(base.item, known) if base.item else known
                self.flow.names[container] = replace(base, parts=(), item=item)

    def _of_name(self, given: CallArgs, name: str) -> Value:
        known = self.named(name)
        if known.kind == "module":
            return self._of_module(given, known)
        if name in tables.LOSS_NAMES:
            return Value("tensor", "", SCALAR, given.node, graph=not self.no_graph)
        if name in self.local_names and name not in self.functions:
            return UNKNOWN
        if (made := self.file.classes.get(name)) is not None:
            return Value("module", made=given.node, stateful=made.has_state, name=name) if made.is_module else UNKNOWN
        if (function := self.functions.get(name) or self.file.functions.get(name)) is not None:
            return processes.called(self, given.node, self.effect_of(function))
        return self._of_builtin(given, name)

    def _of_builtin(self, given: CallArgs, name: str) -> Value:
        first = given.first()
        if name in (*_READS, "list", "sum", "abs"):
            tensors.read(self, given.node, given.all)
            tensors.waited(self, given.all if name in _READS else [])
        if name in ("float", "int", "bool") and not first.kind:  # float(x.sum()) waits, whatever device x is on
            self.flow.settle()
        match name:
            case "float" | "int" | "bool" | "len":
                return NUMBER
            case "list" | "tuple" | "set" | "reversed" | "sorted":
                return first if first.kind == "items" else Value("items", item=self.element(first), made=given.node)
            case "dict":
                parts = () if given.open or given.args else tuple(given.named.values())
                return Value(
                    "items", item=all_of(given.named.values()), parts=parts, keys=tuple(given.named), made=given.node
                )
            case "getattr" | "setattr":
                return self._named_attribute(given)
            case "enumerate":
                return Value("items", item=Value("items", parts=(NUMBER, self.element(first))))
            case "iter" | "tqdm" | "trange" | "track":
                return first
            case "next":
                return self.element(first)
        return UNKNOWN

    def _named_attribute(self, given: CallArgs) -> Value:
        """Evaluate `getattr(self, "name")` or `setattr(self, "name", value)` as if it were `self.name`."""
        match given.node.args:
            case [ast.Name() as owner, ast.Constant(str() as name), *rest]:
                attribute = ast.copy_location(ast.Attribute(owner, name, ast.Load()), given.node)
                if facts.called_name(given.node) == "getattr":
                    return self.value(attribute)
                if rest:
                    self.bind(attribute, replace(given.args[-1], made=rest[0]))
        return UNKNOWN

    def _of_import(self, given: CallArgs, name: str) -> Value:
        node = given.node
        last = name.rpartition(".")[2]
        if name in tables.FACTORIES or name in tables.CUDA_TYPES:
            return self._factory(given, name)
        if name in tables.LIKE:  # only the shape is read
            first, place = given.first("input"), self._place_of(given)
            place = first.place if place == "default" else place
            return Value("tensor", place, first.ndim, first.made or node, first.attribute)
        if name == "torch.device":
            first = given.first("type")
            return first if first.kind == "device" else Value("device", "cuda" if first.kind == "number" else "")
        if name in ("torch.nn.Parameter", "torch.nn.Buffer"):
            kind = "parameter" if last == "Parameter" else "tensor"
            return Value(kind, "input", given.first("data").ndim, node, leaf=last == "Parameter")
        if facts.is_module_class(name):
            return self._new_module(given, name)
        if name in tables.LOADERS:  # a custom `collate_fn` may return anything as a batch
            return UNKNOWN if given.open or given.named.get("collate_fn", NONE).kind != "none" else Value("loader")
        if name in ("copy.deepcopy", "copy.copy") and given.args:
            return replace(given.args[0], attribute="", made=node)
        if last in ("tqdm", "trange", "track"):
            return given.first()
        tensors.empty_cache(self, node, name)
        processes.imported(self, given, name)
        if name.startswith("torch.optim."):
            tensors.optimized(self, given.all)
            return UNKNOWN
        if last in tables.WAITS:
            self.flow.settle()
        if name.startswith("numpy."):
            tensors.read(self, node, given.all)
        if name.startswith("torch."):
            return self._of_torch_function(given, name)
        return NUMBER if name.startswith("math.") else UNKNOWN

    def _of_torch_function(self, given: CallArgs, name: str) -> Value:
        """Return the result of a torch function, which is on the device of the function's tensors."""
        where, _, last = name.rpartition(".")
        if last in tables.NEEDS_VALUES:
            tensors.waited(self, given.all)
        spaces = ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft")
        if where not in spaces or name in tables.NOT_COMBINING:
            return UNKNOWN
        each = [(value.parts or (value.item or UNKNOWN,)) if value.kind == "items" else (value,) for value in given.all]
        result = self.combined(given.node, [inner for values in each for inner in values])
        if where == "torch.nn.functional" and (last.endswith("_loss") or "cross_entropy" in last):
            ndim = None if getattr(given.argument("reduction"), "value", "mean") == "none" else SCALAR
            return Value("tensor", result.place, ndim, given.node, graph=self._has_graph(given))
        if not result.is_tensor:
            # torch.nn.functional returns a tensor even if the arguments are unknown.
            return Value("tensor") if where == "torch.nn.functional" else UNKNOWN
        return _shaped(result, last, given, is_method=False)

    def _has_graph(self, given: CallArgs) -> bool:
        """Return whether a loss has a graph. A loss of an unknown value has a graph unless the code stops graphs."""
        first = given.first()
        if self.no_graph or not given.args or first.kind:
            return not self.no_graph and (first.graph or first.kind == "parameter")
        calls = (node for node in facts.walk(self.body) if isinstance(node, ast.Call))
        return _STOPS_GRAPHS.isdisjoint(map(facts.called_name, calls))

    def _factory(self, given: CallArgs, name: str) -> Value:
        place = "cuda" if name in tables.CUDA_TYPES else self._place_of(given)
        if name in ("torch.as_tensor", "torch.asarray", "torch.tensor") and place == "default":
            first = given.first()
            # The new tensor is on the device of a tensor argument. An unknown argument may be a tensor.
            is_plain = first.kind in ("number", "items", "none") or (not first.kind and not self.in_forward)
            place = "default" if is_plain else first.place
        if place == "cuda":
            processes.on_gpu(self, given.node)
        is_leaf = given.is_true("requires_grad")
        return Value("tensor", place, _dimensions(given, name), given.node, graph=is_leaf, leaf=is_leaf)

    def _place_of(self, given: CallArgs) -> str:
        """Return the `Value.place` of a factory's new tensor."""
        if "device" in given.named:
            known = given.named["device"]
            return known.place if known.kind == "device" else ""
        if given.open or self.on_device or self.file.has_default_device or "out" in given.named:
            return ""
        return "default"

    def _new_module(self, given: CallArgs, name: str) -> Value:
        if name not in tables.CONTAINERS:
            return Value("module", made=given.node, stateful=facts.holds_state(name), name=name)
        inner = [value.item or UNKNOWN if value.kind == "items" else value for value in given.all]
        item = all_of(value for value in inner if value.kind == "module")
        stateful = any(value.stateful or value.kind != "module" for value in inner)
        first = given.first()
        parts, keys = (first.parts, first.keys) if first.kind == "items" else (tuple(given.args), ())
        parts = () if given.open else parts
        return Value("module", made=given.node, stateful=stateful, name=name, item=item, parts=parts, keys=keys)

    def _of_module(self, given: CallArgs, module: Value) -> Value:
        """Return the result of a module's call, and check the devices of a torch.nn module's arguments."""
        is_torch_class = module.name.startswith("torch.nn.")
        if _takes_tensors(module):
            tensors.read(self, given.node, given.all)
            values = [inner for value in given.all for inner in (value.parts or (value,))]
            tensors.mixed_devices(self, given.node, [*values, *([Value("tensor", "input")] if module.stateful else [])])
        if is_torch_class and module.name.endswith("Loss"):
            return Value("tensor", "", SCALAR, given.node, graph=self._has_graph(given))
        first = given.first()
        place = ("input" if self.in_forward else module.place) if module.stateful else first.place
        made = first.made if place == "default" else None
        return Value("tensor", place, DIMENSIONS if is_torch_class else None, made, graph=not self.no_graph)

    def _of_method(self, given: CallArgs, receiver: Value, func: ast.Attribute) -> Value:
        if (name := func.attr) in tables.WAITS and receiver.kind in ("", "name"):
            self.flow.settle()
        if name in ("cuda", "to") and not self.quiet:  # any move to a GPU starts CUDA
            target = given.first("device")
            if name == "cuda" or (target.kind == "device" and target.place == "cuda"):
                processes.on_gpu(self, given.node)
        match receiver.kind:
            case "tensor" | "parameter":
                return self._of_tensor(given, receiver, name)
            case "module":
                return self._module_method(given, receiver, name)
            case "items":
                return self._items_method(given, receiver, func)
            case "self":
                return self._self_method(given, name)
        if name == "Process":  # get_context("fork").Process(…)
            processes.child(self, given)
        return self._of_unknown(given, name)

    def _of_unknown(self, given: CallArgs, name: str) -> Value:
        target = given.first("device")
        if name == "to" and given.is_true("non_blocking") and target.kind == "device" and target.place == "cpu":
            return Value("tensor", "cpu", pending=given.node)
        if name == "cpu" or name in tables.NEEDS_VALUES or (name == "to" and target.place == "cpu"):
            # A blocking copy to the host also waits for the earlier copies.
            self.flow.settle()
        return UNKNOWN

    def _of_tensor(self, given: CallArgs, receiver: Value, name: str) -> Value:
        node = given.node
        if name in tables.MOVES:
            self.receivers[id(node)] = receiver
            return self._moved(given, receiver, name)
        if name not in tables.NO_READ:
            tensors.read(self, node, [receiver])
        if name in tables.NEEDS_VALUES:
            tensors.waited(self, [receiver])
        if name == "copy_":
            return self._copied(given, receiver)
        if name in tables.NO_TENSOR:
            return UNKNOWN
        arguments = [] if name in tables.METHODS_APART else given.all
        result = self.combined(node, [receiver, *arguments]) if arguments else receiver
        plain = replace(
            result,
            kind="parameter" if name == "requires_grad_" and receiver.kind == "parameter" else "tensor",
            graph=(receiver.graph or result.graph) and name not in tables.NO_GRADIENT and not self.no_graph,
            leaf=receiver.leaf and name == "requires_grad_",
            moved=None,
            pending=receiver.pending if name in tables.NO_READ else None,
        )
        if name == "requires_grad_" and (not given.node.args or getattr(given.node.args[0], "value", True)):
            return self._in_place(given, replace(plain, leaf=not receiver.graph, graph=True))
        if name == "type_as":
            return replace(plain, place=given.first().place, attribute="")
        return _shaped(plain, name, given, is_method=True)

    def _moved(self, given: CallArgs, receiver: Value, name: str) -> Value:
        target = given.first("device")
        place = name if name in ("cpu", "cuda") else ""
        # A call such as .to(torch.float16), .to(x.dtype) or .to(dtype=…) changes only the dtype.
        what = ast.unparse(given.node.args[0]) if given.node.args else " ".join(given.named)
        is_type = "device" not in given.named and ("dtype" in what or target.name.startswith("torch."))
        if name == "to" and is_type:
            place = receiver.place
        elif name == "to" and (target.kind == "device" or target.is_tensor):
            place = target.place if target.place != "default" else ""
        to_host = place == "cpu"
        is_done = not given.is_true("non_blocking") or receiver.place in ("default", "cpu")
        pending = given.node if to_host and not is_done else None
        if to_host and pending is None and receiver.pending is None:
            self.flow.settle()
        if to_host and receiver.leaf:  # the result is the tensor itself if the tensor was on the CPU
            return replace(receiver, place="cpu", pending=pending)
        is_leaf = (receiver.kind == "parameter" or receiver.leaf) and not to_host
        moved = given.node if is_leaf else receiver.moved
        return replace(receiver, kind="tensor", place=place, leaf=False, moved=moved, pending=pending, attribute="")

    def _copied(self, given: CallArgs, receiver: Value) -> Value:
        """Return the receiver of `copy_`, as pending after a non-blocking copy to the host."""
        source = given.first()
        is_late = given.is_true("non_blocking") or True in (getattr(node, "value", 0) for node in given.node.args[1:])
        is_from_device = source.place not in ("default", "cpu") and source.kind in ("", "tensor", "parameter")
        is_pending = receiver.place in ("default", "cpu") and is_late and is_from_device
        return self._in_place(given, replace(receiver, pending=given.node)) if is_pending else receiver

    def _in_place(self, given: CallArgs, result: Value) -> Value:
        """Return the result of an in-place method, and bind the receiver's name to the result."""
        func = given.node.func
        if isinstance(func, ast.Attribute) and (key := self.key(func.value)):
            self.flow.names[key] = result
        return result

    def _module_method(self, given: CallArgs, module: Value, name: str) -> Value:
        if (part := module.part(name)) is not None and part.kind == "module":  # self.layers.first(x)
            return self._of_module(given, part)
        if name in tables.MODULE_SELF:
            target = given.first("device")
            place = target.place if name == "to" and target.kind == "device" else module.place
            return replace(module, place="cuda" if name == "cuda" else place)
        if name in ("parameters", "buffers", "named_parameters", "named_buffers"):
            own = Value("parameter" if name.endswith("parameters") else "tensor")
            return Value("items", item=Value("items", parts=(UNKNOWN, own)) if name.startswith("named") else own)
        return UNKNOWN

    def _items_method(self, given: CallArgs, receiver: Value, func: ast.Attribute) -> Value:
        key, name = self.key(func.value), func.attr
        if name in ("append", "appendleft", "add", "insert", "extend", "update", "setdefault", "push"):
            added = all_of(given.all[-1:]) or UNKNOWN
            if name in ("extend", "update"):
                added = (all_of(given.named.values()) if name == "update" else None) or self.element(added)
            if key:
                tensors.kept_module(self, given.node, key, added)
                tensors.kept_loss(self, given.node, key, added)
                item = join(receiver.item, added) if receiver.item is not None else added  # None while empty
                self.flow.names[key] = replace(receiver, item=item, parts=())
            return UNKNOWN
        if name == "items":
            return Value("items", item=Value("items", parts=(UNKNOWN, receiver.item or UNKNOWN)))
        return replace(receiver, parts=()) if name in ("values", "copy") else UNKNOWN

    def _self_method(self, given: CallArgs, name: str) -> Value:
        known = self.flow.names.get(f"self.{name}") or self.attributes.get(name, UNKNOWN)
        if known.kind == "module":
            return self._of_module(given, known)
        if name in tables.LOSS_NAMES:
            return Value("tensor", "", SCALAR, given.node, graph=not self.no_graph)
        if name in ("register_buffer", "register_parameter"):
            if len(given.args) > 1 and isinstance(given.node.args[0], ast.Constant):
                tensor = given.args[1]
                tensors.moved_leaf(self, tensor)
                kind = "parameter" if "param" in name else "tensor"
                self.flow.names[f"self.{given.node.args[0].value!s}"] = Value(kind, "input", tensor.ndim)
            return UNKNOWN
        if (function := self.file.method(self.owner, name)) is None:
            takes_input = any(value.is_tensor and value.place == "input" for value in given.args)
            if self.in_forward and name in self.attributes and takes_input:
                return Value("batch", "input")  # a module that the caller passed to the class returns tensors
            return self._of_unknown(given, name)
        effect = self.effect_of(function, self.owner, given.args)
        if facts.method_kind(function) == "property":  # this calls the property's value, not a method
            return UNKNOWN
        attributes = {key for key in effect.flow.names if key.startswith("self.")}
        self.flow.names |= dict.fromkeys(attributes & self.flow.names.keys(), UNKNOWN)
        return processes.called(self, given.node, effect)


def _by_name(name: str) -> Value:
    """Return a loader for a name such as `train_loader`, and UNKNOWN for other names."""
    last = name.lower().rpartition("_")[2]
    return Value("loader") if last in ("loader", "dataloader", "dl", "trainloader", "testloader") else UNKNOWN


def _dimensions(given: CallArgs, name: str) -> int | None:
    """Return DIMENSIONS if a factory's tensor certainly has dimensions, else None."""
    first = given.node.args[0] if given.node.args else given.argument("size") or given.argument("data")
    if name in tables.BY_DATA:
        match first:
            case ast.List() | ast.Tuple() | ast.ListComp() | ast.BinOp(ast.List(), ast.Mult()):
                return DIMENSIONS
            case ast.Call(ast.Name("list" | "range" | "sorted")):
                return DIMENSIONS
        return None
    if isinstance(first, (ast.Tuple, ast.List)):
        return None if all(isinstance(element, ast.Starred) for element in first.elts) else DIMENSIONS
    return DIMENSIONS if first is not None else None  # a single name is a length, or a shape that is not empty


def _takes_tensors(module: Value) -> bool:
    """Return whether a module is a torch.nn class, or a Sequential of them, that combines its arguments."""
    if module.name == "torch.nn.Sequential":
        first = next((part for part in module.parts if part.stateful or not _takes_tensors(part)), UNKNOWN)
        return _takes_tensors(first)
    return module.name.startswith("torch.nn.") and module.name not in (*tables.CONTAINERS, "torch.nn.CTCLoss")


def _shaped(result: Value, name: str, given: CallArgs, *, is_method: bool) -> Value:
    """Return the result with its dimensions: 0 after a full reduction, unknown after a reduction over a dimension."""
    if name in tables.WITH_DIMENSIONS:
        return replace(result, ndim=DIMENSIONS)
    if name not in tables.REDUCTIONS:
        return replace(result, ndim=None) if name in tables.MAY_BE_NUMBERS else result
    has_dimension = len(given.args) > (0 if is_method else 1) or "dim" in given.named or "axis" in given.named
    kept = result.ndim if given.is_true("keepdim") else None
    return replace(result, ndim=kept if has_dimension else SCALAR)
