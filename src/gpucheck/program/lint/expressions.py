"""Evaluate expressions, as far as they are known: a function for each kind of expression and of call."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from gpucheck.program.lint import checks, names
from gpucheck.program.lint.checks import AT_LEAST_ONE, NONE, NUMBER, UNKNOWN, Given, Place, Value, all_of, join
from gpucheck.program.lint.names import Class, called_name, family, walk


class Expressions(Place):
    """The expressions of one function (or of the file itself), in the order in which they are evaluated."""

    def has_state(self, made: Class) -> bool:
        """Return whether objects of a class of the file hold parameters, buffers, or modules with them."""
        members = list(family(self.scope.file, made))
        for name in (name for one in members for name in one.bases):
            if name not in self.scope.file.classes and name not in names.MODULE_BASES:
                return True
        for call in (node for one in members for node in walk(one.node) if isinstance(node, ast.Call)):
            dotted = self.scope.file.dotted(call.func)
            if dotted == "torch.nn.Parameter" or called_name(call).startswith("register_"):
                return True
            if names.is_module_class(dotted) and names.holds_state(dotted):
                return True
            inner = self.scope.file.classes.get(getattr(call.func, "id", ""))
            if inner is not None and inner is not made and inner.is_module:
                return True
        return False

    def value(self, node: ast.expr | None) -> Value:
        """Return what this expression is. Its calls are checked on the way."""
        if node is None:
            return UNKNOWN
        how = _KINDS.get(type(node))
        if how is not None:
            return how(self, node)
        self.below(node)
        return UNKNOWN

    def test(self, node: ast.expr) -> Value:
        """Return what an expression is whose value the host needs: a condition, or what a text shows."""
        known = self.value(node)
        checks.waited(self, [known])
        return known

    def below(self, node: ast.AST) -> None:
        """Check the calls in the expressions that a node consists of."""
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.expr):
                self.value(child)

    # -- names ---------------------------------------------------------------------------------------------------------

    def _name(self, node: ast.Name) -> Value:
        known = self.flow.names.get(node.id)
        if known is None and node.id not in self.local_names:
            known = self.outer.get(node.id)
            if known is None and node.id in self.scope.file.imports:
                return Value("name", name=self.scope.file.imports[node.id])
        if known is not None and known.kind:
            return known
        if node.id in self.evidence:
            return Value("tensor", "input" if self.in_forward and node.id in self.parameters else "")
        return known if known is not None and known.plain else self._by_name(node.id)

    def _by_name(self, name: str) -> Value:
        """Take what is called a loader for one: what it gives, unpacked, are tensors."""
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
            function = names.method(self.scope.file, self.owner, node.attr) if self.owner is not None else None
            if function is not None and names.method_kind(function) == "property":
                return checks.called(
                    self, node, self.scope.effect_of(function, self.owner, self.outer, (), self.no_graph)
                )
            known = self.attributes.get(node.attr, UNKNOWN)
            return self._by_name(node.attr) if known == UNKNOWN else known
        if base.is_tensor:
            return self._of_tensor(node, base)
        if base.kind == "module" and (part := base.part(node.attr)) is not None:
            return part
        if base.kind == "module" and node.attr in ("weight", "bias"):
            return Value("parameter", "input" if self.in_forward else "", AT_LEAST_ONE)
        if base.kind == "batch":
            return Value("tensor")
        return base if base.plain else UNKNOWN

    def _of_tensor(self, node: ast.Attribute, base: Value) -> Value:
        if node.attr == "grad" and base.moved is not None and not self.keeps_gradients:
            checks.moved_leaf(self, base)
        if node.attr == "device":
            return Value("device", base.place)
        if node.attr in names.NO_TENSOR_ATTRIBUTES:
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
        keys = tuple(str(getattr(key, "value", None)) for key in node.keys)
        return Value("items", item=all_of(values), parts=tuple(values), keys=keys, made=node)

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
        before, was_in_worker, name = self.flow.copy(), self.in_worker, self.name
        if id(node) in self.scope.file.lambdas_in_workers:
            self.in_worker, self.name = True, "<lambda>"
        for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self.flow.names[one.arg] = UNKNOWN
        self.value(node.body)
        self.flow = before
        self.in_worker, self.name = was_in_worker, name
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
        result = all_of(tensors) or UNKNOWN
        places = {one.place for one in tensors}
        if len(places) > 1:
            # They met, so the one on the CPU was a scalar, or this line has been told.
            result = replace(result, place="input" if "input" in places else "")
        shaped = [one.ndim for one in tensors if one.has_dimensions]
        shape = shaped[0] if shaped and len(tensors) == 1 else AT_LEAST_ONE if shaped else result.ndim
        without = isinstance(node, ast.Compare) or (
            isinstance(node, ast.Call) and called_name(node) in names.NO_GRADIENT
        )
        graph = not without and any(one.graph for one in tensors) and not self.no_graph
        return Value("tensor", result.place, shape, result.made, result.attribute, graph)

    def _compare(self, node: ast.Compare) -> Value:
        values = [self.value(one) for one in (node.left, *node.comparators)]
        if all(isinstance(one, (ast.Is, ast.IsNot, ast.In, ast.NotIn)) for one in node.ops):
            return NUMBER
        return self.combined(node, values)

    def _unary(self, node: ast.UnaryOp) -> Value:
        if isinstance(node.op, ast.Not):
            self.test(node.operand)
            return UNKNOWN
        return self.value(node.operand)

    def _choice(self, node: ast.IfExp) -> Value:
        self.test(node.test)
        return join(self.value(node.body), self.value(node.orelse))

    def _named(self, node: ast.NamedExpr) -> Value:
        known = self.value(node.value)
        self.bind(node.target, known)
        return known

    # -- subscripts ----------------------------------------------------------------------------------------------------

    def _subscript(self, node: ast.Subscript) -> Value:
        base = self.value(node.value)
        indices = [self.value(one) for one in (node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice])]
        if base.is_tensor:
            index = next((one for one in indices if one.is_tensor), UNKNOWN)
            if index.is_tensor and base.place == "default":
                checks.apart(self, node, [base, index])
            checks.waited(self, [index])  # a mask: the host waits for the number of elements
            return replace(base, kind="tensor", ndim=_indexed(base.ndim, node.slice, index))
        at = node.slice.value if isinstance(node.slice, ast.Constant) else None
        if base.kind in ("items", "module") and (part := base.part(at)) is not None:
            return part
        if base.kind == "items":
            return replace(base, parts=(), keys=()) if isinstance(node.slice, ast.Slice) else base.item or UNKNOWN
        return self.element(base) if base.kind in ("batch", "module", "") else UNKNOWN

    def element(self, base: Value) -> Value:
        """Return what a loop over this gives."""
        match base.kind:
            case "items":
                return base.item or UNKNOWN
            case "loader":
                return Value("batch", base.place)
            case "batch":
                return Value("tensor", base.place)
            case "tensor" | "parameter":
                ndim = base.ndim - 1 if base.ndim is not None and base.ndim > 1 else None
                return replace(base, kind="tensor", ndim=ndim)
            case "module":
                return base.item or Value("module", stateful=base.stateful, attribute=base.attribute)
        return base if base.plain else UNKNOWN

    def each(self, base: Value, count: int) -> Sequence[Value]:
        """The values that this is unpacked into."""
        return base.parts if len(base.parts) == count else [self.element(base)] * count

    def bind(self, target: ast.expr, known: Value) -> None:
        """Give a value to a name, to an attribute, or to several."""
        if isinstance(target, (ast.Tuple, ast.List)):
            for one, value in zip(target.elts, self.each(known, len(target.elts)), strict=True):
                in_place = isinstance(one, ast.Name) and one.id in names.IN_PLACE_NAMES
                self.bind(one, UNKNOWN if in_place and value == Value("tensor") else value)
        elif isinstance(target, ast.Starred):
            self.bind(target.value, Value("items", item=self.element(known)))
        elif key := self.key(target):
            root, dot, _ = key.partition(".")
            if dot:
                self.rooted.add(root)
            elif root in self.rooted:  # the attributes were those of another object
                self.flow.names = {
                    name: one for name, one in self.flow.names.items() if not name.startswith(f"{root}.")
                }
            self.flow.names[key] = UNKNOWN if key in self.scope.file.shared else known
        elif isinstance(target, ast.Subscript):
            self.value(target.slice)
            container = self.key(target.value)
            base = self.value(target.value)
            if container and base.kind == "items":
                item = join(base.item, known) if base.item else known
                self.flow.names[container] = replace(base, parts=(), item=item)


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


# -- what a call returns -----------------------------------------------------------------------------------------------


def call(run: Expressions, node: ast.Call) -> Value:
    """Return what the call returns; the checks that look at calls are made here."""
    known = _called(run, node)
    checks.hidden(run, node)
    return replace(known, plain=True) if known == UNKNOWN and (run.no_graph or called_name(node) == "detach") else known


def _called(run: Expressions, node: ast.Call) -> Value:
    func = node.func
    dotted = run.dotted(func)
    receiver = run.value(func.value) if isinstance(func, ast.Attribute) and not dotted else UNKNOWN
    args = [run.value(one) for one in node.args]
    keywords = [(one.arg, run.value(one.value)) for one in node.keywords]
    named = {name: value for name, value in keywords if name}
    more = len(named) < len(keywords) or any(isinstance(one, ast.Starred) for one in node.args)
    given = Given(node, node.args, args, named, more)
    if dotted:
        return _of_import(run, given, dotted)
    if isinstance(func, ast.Attribute):
        return _of_method(run, given, receiver, func)
    if isinstance(func, ast.Name):
        return _of_name(run, given, func.id)
    target = run.value(func)
    return _of_module(run, given, target) if target.kind == "module" else UNKNOWN


# -- names that are not imported ---------------------------------------------------------------------------------------


def _of_name(run: Expressions, given: Given, name: str) -> Value:
    known = run.flow.names.get(name) or (UNKNOWN if name in run.local_names else run.outer.get(name, UNKNOWN))
    if known.kind == "module":
        return _of_module(run, given, known)
    if known.kind == "name":
        return _of_import(run, given, known.name)
    if name in names.LOSS_NAMES:
        return Value("tensor", "", 0, given.node, graph=not run.no_graph)
    if name in run.local_names and name not in run.functions:
        return UNKNOWN
    made = run.scope.file.classes.get(name)
    if made is not None:
        return Value("module", made=given.node, stateful=run.has_state(made), name=name) if made.is_module else UNKNOWN
    function = run.functions.get(name) or run.scope.file.functions.get(name)
    if function is not None:
        return checks.called(run, given.node, run.scope.effect_of(function, None, run.visible(), (), run.no_graph))
    return _of_builtin(run, given, name)


def _of_builtin(run: Expressions, given: Given, name: str) -> Value:
    first = given.first()
    if name in ("print", "float", "int", "bool", "str", "repr", "list", "sum", "max", "min", "abs", "sorted", "format"):
        checks.read(run, given.node, given.all)
        checks.waited(run, given.all if name not in ("list", "sum", "abs") else [])
    if name in ("float", "int", "bool", "len", "abs") and not (name == "abs" and first.is_tensor):
        if name in ("float", "int", "bool") and not first.kind:  # float(x.sum()), wherever x is
            run.flow.settle()
        return NUMBER
    match name:
        case "list" | "tuple" | "set" | "reversed" | "sorted":
            return first if first.kind == "items" else Value("items", item=run.element(first), made=given.node)
        case "dict":
            return _dict_of(given)
        case "getattr":
            attribute = _named_attribute(given)
            return run.value(attribute) if attribute is not None else UNKNOWN
        case "setattr":
            attribute = _named_attribute(given)
            if attribute is not None and len(given.args) == 3:
                run.bind(attribute, given.args[2])
        case "enumerate":
            return Value("items", item=Value("items", parts=(NUMBER, run.element(first))))
        case "zip":
            return Value("items", item=Value("items", parts=tuple(run.element(one) for one in given.args)))
        case "iter" | "tqdm" | "trange" | "track":
            return first
        case "next":
            return run.element(first)
        case "range":
            return Value("items", item=NUMBER)
        case "sum":
            inner = run.element(first)
            return replace(inner, made=given.node) if inner.is_tensor else UNKNOWN
    return UNKNOWN


def _named_attribute(given: Given) -> ast.Attribute | None:
    """Return `self.name` for the arguments of `getattr(self, "name")`; None where the name is no constant."""
    name = getattr(given.nodes[1], "value", None) if len(given.nodes) > 1 else None
    if not isinstance(name, str) or not isinstance(given.nodes[0], ast.Name):
        return None
    return ast.copy_location(ast.Attribute(given.nodes[0], name, ast.Load()), given.node)


def _dict_of(given: Given) -> Value:
    """`dict(a=…)`, `dict({…}, a=…)`, `OrderedDict([("a", …)])`: with its keys, where all of them are known."""
    first = given.first() if given.args else UNKNOWN
    pairs = (
        [one.elts for one in getattr(given.nodes[0], "elts", ()) if isinstance(one, ast.Tuple)] if given.nodes else []
    )
    if first.parts and first.keys:
        keys, parts = first.keys, first.parts
    elif first.parts and len(pairs) == len(first.parts) and all(len(one.parts) == 2 for one in first.parts):
        keys = tuple(str(getattr(key, "value", None)) for key, _ in pairs)
        parts = tuple(one.parts[1] for one in first.parts)
    else:
        keys, parts = (), ()
    is_whole = not given.open and (not given.args or bool(keys))
    values = (
        [*parts, *given.named.values()] if is_whole else [*given.named.values(), *([first.item] if first.item else [])]
    )
    return Value(
        "items",
        item=all_of(values),
        parts=tuple(values) if is_whole else (),
        keys=(*keys, *given.named) if is_whole else (),
        made=given.node,
    )


# -- imported names ----------------------------------------------------------------------------------------------------


def _of_import(run: Expressions, given: Given, name: str) -> Value:
    node = given.node
    last = name.rpartition(".")[2]
    if name.startswith("torch.Tensor.") and given.args:
        receiver, rest = given.args[0], replace(given, nodes=given.nodes[1:], args=given.args[1:])
        return _of_tensor(run, rest, replace(receiver, kind=receiver.kind or "tensor"), last)
    if name in names.FACTORIES or name in names.CUDA_TYPES:
        return _factory(run, given, name)
    if name in names.LIKE:
        return _like(run, given)
    if name == "torch.device":
        first = given.first("type")
        return first if first.kind == "device" else Value("device", "cuda" if first.kind == "number" else "")
    if name in ("torch.nn.Parameter", "torch.nn.Buffer", "torch.nn.parameter.Buffer"):
        kind = "parameter" if last == "Parameter" else "tensor"
        return Value(kind, "input", given.first("data").ndim, node, leaf=last == "Parameter")
    if name == "torch.autograd.Variable":
        return given.first()
    if names.is_module_class(name):
        return _new_module(run, given, name)
    if name in names.LOADERS:
        # With a function of its own that makes batches, anything may be one.
        own = "collate_fn" in given.named and given.named["collate_fn"].kind != "none"
        return UNKNOWN if own or given.open else Value("loader")
    if name in ("collections.OrderedDict", "typing.OrderedDict"):
        return _dict_of(given)
    if name in ("collections.defaultdict", "collections.deque"):
        return Value("items", item=given.first().item if last != "defaultdict" else None, made=node)
    if name in ("copy.deepcopy", "copy.copy") and given.args:
        return replace(given.args[0], attribute="", made=node)
    if last in ("tqdm", "trange", "track"):
        return given.first()
    checks.empty_cache(run, node, name)
    checks.imported(run, given, name)
    if name.startswith("torch.optim."):
        checks.optimized(run, given.all)
        return UNKNOWN
    if last in names.WAITS:
        run.flow.settle()
    if name.startswith("math."):
        return NUMBER
    if name.startswith("numpy."):
        checks.read(run, node, given.all)
        return UNKNOWN
    return _of_torch_function(run, given, name) if name.startswith("torch.") else UNKNOWN


def _of_torch_function(run: Expressions, given: Given, name: str) -> Value:
    """A function of tensors: the result is where they are, and they must be on one device."""
    where, _, last = name.rpartition(".")
    if last in names.NEEDS_VALUES:
        checks.waited(run, given.all)
    spaces = ("torch", "torch.nn.functional", "torch.linalg", "torch.special", "torch.fft")
    if where not in spaces or name in names.NOT_COMBINING:
        return UNKNOWN
    each = [(one.parts or (one.item or UNKNOWN,)) if one.kind == "items" else (one,) for one in given.all]
    values = [inner for one in each for inner in one]
    result = run.combined(given.node, values)
    if where == "torch.nn.functional" and (last.endswith("_loss") or "cross_entropy" in last):
        reduced = getattr(given.argument("reduction"), "value", "mean") != "none"
        return Value("tensor", result.place, 0 if reduced else None, given.node, graph=_has_graph(run, given))
    if not result.is_tensor:
        # Of what is not known a function of torch.nn.functional makes a tensor all the same.
        return Value("tensor") if where == "torch.nn.functional" or last in names.MAKES_TENSOR else UNKNOWN
    if last in names.REDUCTIONS:
        return _reduced(result, given, method=False)
    if last in ("cat", "concat", "stack", "hstack", "vstack", "outer", "where", "flatten", "tile", "unsqueeze"):
        return replace(result, ndim=AT_LEAST_ONE)
    return result if last in names.SAME_SHAPE else replace(result, ndim=None)


def _has_graph(run: Expressions, given: Given) -> bool:
    """Return whether a loss of these has a graph: of what is not known it has one, of plain tensors it has none."""
    return not run.no_graph and any(
        one.graph or one.kind == "parameter" or not (one.kind or one.plain) for one in given.args[:1]
    )


# -- factories ---------------------------------------------------------------------------------------------------------


def _factory(run: Expressions, given: Given, name: str) -> Value:
    node = given.node
    place = _place_of(run, given)
    if name in names.CUDA_TYPES:
        place = "cuda"
    if name in ("torch.as_tensor", "torch.asarray", "torch.tensor") and place == "default":
        first = given.first()
        # Of a tensor they keep the device; what is not known may be one.
        plain = first.kind in ("number", "items", "none") or (not first.kind and not run.in_forward)
        place = "default" if plain else first.place
    if place == "cuda":
        checks.on_gpu(run, node)
    grad = given.is_true("requires_grad")
    return Value("tensor", place, _dimensions(given, name), node, graph=grad, leaf=grad)


def _place_of(run: Expressions, given: Given) -> str:
    """Where a factory makes its tensor: on the CPU, unless something names another place."""
    if "device" in given.named:
        known = given.named["device"]
        return known.place if known.kind == "device" else ""
    if given.open or run.on_device or run.scope.file.has_default_device or "out" in given.named:
        return ""
    return "default"


def _dimensions(given: Given, name: str) -> int | None:
    """Return how many dimensions it has: None where none is possible, -1 for at least one."""
    args = given.nodes
    first = args[0] if args else given.argument("size") or given.argument("data")
    if name in names.ONE_DIMENSION:
        return 1
    if name in names.TWO_DIMENSIONS:
        return 2
    if name in names.BY_DATA:
        return _of_data(first)
    if name in ("torch.randint", "torch.normal"):
        # randint(high, size), randint(low, high, size), normal(mean, std, size)
        at = len(args) - 1 if name == "torch.randint" else 2
        size = given.argument("size") or (args[at] if 0 < at < min(len(args), 3) else None)
        return _of_shape(size) if size is not None else None
    if name in names.BY_SHAPE and len(args) > 1:
        return AT_LEAST_ONE if any(isinstance(one, ast.Starred) for one in args) else len(args)
    return _of_shape(first) if first is not None else None


def _of_shape(node: ast.expr) -> int | None:
    if isinstance(node, (ast.Tuple, ast.List)):
        starred = any(isinstance(one, ast.Starred) for one in node.elts)
        return len(node.elts) if not starred else AT_LEAST_ONE if len(node.elts) > 1 else None
    if isinstance(node, ast.Constant):
        return 1
    if isinstance(node, ast.Starred):
        return _of_shape(node.value)
    if isinstance(node, ast.Call) and called_name(node) == "size" and node.args:
        return 1
    # One name is a length or a tuple, as a shape is; an empty tuple is not passed on by name.
    return AT_LEAST_ONE


def _of_data(node: ast.expr | None) -> int | None:
    match node:
        case ast.List(elts) | ast.Tuple(elts):
            inner = _of_data(elts[0]) if elts else 0
            return AT_LEAST_ONE if inner is None or inner < 0 else 1 + inner
        case ast.ListComp() | ast.BinOp(ast.List(), ast.Mult()) | ast.Call(ast.Name("list" | "range" | "sorted")):
            return AT_LEAST_ONE
        case ast.Constant() | ast.UnaryOp(operand=ast.Constant()):
            return 0
    return None


def _like(run: Expressions, given: Given) -> Value:
    first = given.first("input")
    place = _place_of(run, given)
    if place == "default":
        place = first.place
    if place == "cuda":
        checks.on_gpu(run, given.node)
    return Value("tensor", place, first.ndim, first.made or given.node, first.attribute)


# -- modules -----------------------------------------------------------------------------------------------------------


def _new_module(run: Expressions, given: Given, name: str) -> Value:
    node = given.node
    if name not in names.CONTAINERS:
        return Value("module", made=node, stateful=names.holds_state(name), name=name)
    inner = [one.item or UNKNOWN if one.kind == "items" else one for one in given.all]
    for one in [*given.all, *inner, *(part for value in given.all for part in value.parts)]:
        if one.made is not None:
            run.registered.add(id(one.made))
    item = all_of([one for one in inner if one.kind == "module"])
    stateful = any(one.stateful or one.kind != "module" for one in inner)
    first = given.first()
    parts, keys = (first.parts, first.keys) if first.kind == "items" else (tuple(given.args), ())
    if given.open or (first.kind == "items" and len(given.all) > 1):
        parts, keys = (), ()
    return Value("module", made=node, stateful=stateful, name=name, item=item, parts=parts, keys=keys)


def _takes_tensors(module: Value) -> bool:
    """Return whether the arguments of a call of this module meet its parameters: those of a class of torch.nn do, and
    what a Sequential is given if its modules up to the first with parameters are of torch.nn."""
    if module.name != "torch.nn.Sequential":
        return module.name.startswith("torch.nn.") and module.name not in (*names.CONTAINERS, "torch.nn.CTCLoss")
    for part in module.parts:
        if not _takes_tensors(part) or part.stateful:
            return _takes_tensors(part)
    return False


def _of_module(run: Expressions, given: Given, module: Value) -> Value:
    """A call of a module: of one of torch.nn its arguments must be where it is."""
    known = module.name.startswith("torch.nn.")
    if _takes_tensors(module):
        checks.read(run, given.node, given.all)
        values = [inner for one in given.all for inner in (one.parts or (one,))]
        checks.apart(run, given.node, [*values, *([Value("tensor", "input")] if module.stateful else [])])
    if known and module.name.endswith("Loss"):
        return Value("tensor", "", 0, given.node, graph=_has_graph(run, given))
    first = given.first()
    moved_with_it = "input" if run.in_forward else module.place
    place = moved_with_it if module.stateful else first.place
    made = first.made if place == "default" else None
    return Value("tensor", place, AT_LEAST_ONE if known else None, made, graph=not run.no_graph)


# -- methods -----------------------------------------------------------------------------------------------------------


def _of_method(run: Expressions, given: Given, receiver: Value, func: ast.Attribute) -> Value:
    name = func.attr
    if name in names.WAITS and receiver.kind in ("", "name"):
        run.flow.settle()
    if name in ("cuda", "to") and not run.quiet:
        # A move of anything to a GPU starts CUDA.
        target = given.first("device")
        if name == "cuda" or (target.kind == "device" and target.place == "cuda"):
            checks.on_gpu(run, given.node)
    match receiver.kind:
        case "tensor" | "parameter":
            return _of_tensor(run, given, receiver, name)
        case "module":
            return _module_method(run, given, receiver, name)
        case "items":
            return _items_method(run, given, receiver, func)
        case "batch" if name in ("items", "values"):
            part = Value("tensor", receiver.place)
            return Value("items", item=Value("items", parts=(UNKNOWN, part)) if name == "items" else part)
        case "batch" if receiver.place and name in names.TENSOR_ONLY | names.REDUCTIONS:
            return _of_tensor(run, given, replace(receiver, kind="tensor"), name)
        case "self":
            return _self_method(run, given, name)
    owner = run.scope.file.classes.get(getattr(func.value, "id", "")) if receiver == UNKNOWN else None
    function = names.method(run.scope.file, owner, name) if owner is not None else None
    if function is not None and names.method_kind(function) == "static":  # Net.helper(x)
        return checks.called(run, given.node, run.scope.effect_of(function, owner, run.outer, given.args, run.no_graph))
    if isinstance(func.value, ast.Subscript) and name in ("append", "extend", "add") and given.args:
        # self.layers[key].append(module)
        checks.kept_module(run, given.node, run.key(func.value.value), given.args[-1])
    checks.method(run, given, func)
    return _of_unknown(run, given, name)


def _of_unknown(run: Expressions, given: Given, name: str) -> Value:
    target = given.first("device")
    if name == "to" and given.is_true("non_blocking") and target.kind == "device" and target.place == "cpu":
        return Value("tensor", "cpu", pending=given.node)
    if name == "cpu" or name in names.NEEDS_VALUES or (name == "to" and target.place == "cpu"):
        # A copy to the host that waits, waits for those before it too.
        run.flow.settle()
    if name in ("new_zeros", "new_ones", "new_full", "new_tensor", "new_empty"):
        return Value("tensor")
    if name in ("write", "info"):
        checks.read(run, given.node, given.all)
    return UNKNOWN


def _of_tensor(run: Expressions, given: Given, receiver: Value, name: str) -> Value:
    node = given.node
    if name in names.MOVES:
        run.receivers[id(node)] = receiver
        return _moved(run, given, receiver, name)
    if name not in names.NO_READ:
        checks.read(run, node, [receiver])
    if name in names.NEEDS_VALUES:
        checks.waited(run, [receiver])
    if name == "copy_":
        return _copied(run, given, receiver)
    if name in names.NO_TENSOR:
        return UNKNOWN
    arguments = [] if name in names.METHODS_APART else given.all
    # An index on the CPU is as good as one on the device.
    result = run.combined(node, [receiver, *arguments]) if arguments else receiver
    plain = replace(
        result,
        kind="parameter" if name == "requires_grad_" and receiver.kind == "parameter" else "tensor",
        graph=(receiver.graph or result.graph) and name not in names.NO_GRADIENT and not run.no_graph,
        leaf=receiver.leaf and name == "requires_grad_",
        moved=None,
        pending=receiver.pending if name in names.NO_READ else None,
    )
    if name == "requires_grad_" and (not given.nodes or getattr(given.nodes[0], "value", True)):
        return _in_place(run, given, replace(plain, leaf=not receiver.graph, graph=True))
    if name in ("new_zeros", "new_ones", "new_full", "new_empty"):
        return Value("tensor", receiver.place, AT_LEAST_ONE, node)
    if name in names.REDUCTIONS:
        return _reduced(plain, given, method=True)
    if name in names.AT_LEAST_ONE or name == "unsqueeze":
        is_one_more = name == "unsqueeze" and receiver.ndim is not None and receiver.ndim >= 0
        return replace(plain, ndim=(receiver.ndim or 0) + 1 if is_one_more else AT_LEAST_ONE)
    if name == "type_as":
        return replace(plain, place=given.first().place, attribute="")
    if name in ("chunk", "split", "unbind", "tensor_split"):
        return Value("items", item=replace(plain, ndim=AT_LEAST_ONE if name != "unbind" else None))
    return plain if name in names.SAME_SHAPE or arguments else replace(plain, ndim=None)


def _reduced(result: Value, given: Given, *, method: bool) -> Value:
    """Of all elements a scalar; over a dimension one fewer, perhaps none."""
    over = len(given.args) > (0 if method else 1) or "dim" in given.named or "axis" in given.named
    kept = given.is_true("keepdim")
    return replace(result, ndim=(result.ndim if kept else None) if over else 0)


def _moved(run: Expressions, given: Given, receiver: Value, name: str) -> Value:
    target = given.first("device")
    place: str = name if name in ("cpu", "cuda") else ""
    if name == "to" and _is_type(run, given):
        place = receiver.place
    elif name == "to" and (target.kind == "device" or target.is_tensor):
        place = target.place if target.place != "default" else ""
    to_host = place == "cpu"
    waits = not given.is_true("non_blocking") or receiver.place in ("default", "cpu")
    pending = given.node if to_host and not waits else None
    if to_host and pending is None and receiver.pending is None:
        run.flow.settle()
    moved = receiver.moved
    if (receiver.kind == "parameter" or receiver.leaf) and not to_host:
        moved = given.node
    if to_host and receiver.leaf:
        # On a CPU this returns the tensor itself.
        return replace(receiver, place="cpu", pending=pending)
    kept = receiver.attribute if place == receiver.place else ""
    return replace(receiver, kind="tensor", place=place, leaf=False, moved=moved, pending=pending, attribute=kept)


def _is_type(run: Expressions, given: Given) -> bool:
    """Return whether only a data type is asked for: `.to(torch.float16)`, `.to(x.dtype)`."""
    if "device" in given.named:
        return False
    if not given.nodes:
        return "dtype" in given.named
    first = given.nodes[0]
    name = run.dotted(first).rpartition(".")[2] or getattr(first, "attr", "") or getattr(first, "id", "")
    return "dtype" in name or name in _TYPES


_TYPES = names.words(
    "float float16 float32 float64 half double bfloat16 int int8 int16 int32 int64 long short bool uint8 cfloat "
    "complex64 complex128"
)


def _copied(run: Expressions, given: Given, receiver: Value) -> Value:
    """`host.copy_(x, non_blocking=True)`: what it was called on is pending."""
    source = given.first()
    later = given.is_true("non_blocking") or (len(given.nodes) > 1 and getattr(given.nodes[1], "value", 0) is True)
    from_device = source.place not in ("default", "cpu") and source.kind in ("", "tensor", "parameter")
    if receiver.place in ("default", "cpu") and later and from_device:
        return _in_place(run, given, replace(receiver, pending=given.node))
    return receiver


def _in_place(run: Expressions, given: Given, result: Value) -> Value:
    """Return what a method leaves in the name that it was called on."""
    func = given.node.func
    key = run.key(func.value) if isinstance(func, ast.Attribute) else ""
    if key:
        run.flow.names[key] = result
    return result


def _module_method(run: Expressions, given: Given, module: Value, name: str) -> Value:
    part = module.part(name)
    if part is not None and part.kind == "module":  # self.layers.first(x)
        return _of_module(run, given, part)
    if name in names.MODULE_SELF:
        target = given.first("device")
        place = "cuda" if name == "cuda" else target.place if name == "to" and target.kind == "device" else module.place
        return replace(module, place=place if place != "default" else "")
    if name in ("parameters", "buffers", "named_parameters", "named_buffers"):
        inner = Value("parameter" if name.endswith("parameters") else "tensor")
        return Value("items", item=Value("items", parts=(UNKNOWN, inner)) if name.startswith("named") else inner)
    if name in ("append", "insert", "add_module", "extend", "update", "register_module"):
        for one in given.all:
            for made in (one.made, one.item.made if one.item else None):
                if made is not None:
                    run.registered.add(id(made))
        return module
    if name in ("forward", "__call__"):
        return _of_module(run, given, module)
    if name in ("values", "children", "modules"):
        return Value("items", item=run.element(module))
    if name == "items":
        return Value("items", item=Value("items", parts=(UNKNOWN, run.element(module))))
    return UNKNOWN


def _items_method(run: Expressions, given: Given, receiver: Value, func: ast.Attribute) -> Value:
    """Methods of a list or a dict: what is put into it is known from then on."""
    key, name = run.key(func.value), func.attr
    if name in ("append", "appendleft", "add", "insert", "extend", "update", "setdefault", "push"):
        added = all_of(given.all[-1:]) or UNKNOWN
        if name in ("extend", "update"):
            added = added.item or UNKNOWN if added.kind == "items" else run.element(added)
            if name == "update" and given.named:
                added = all_of(list(given.named.values())) or UNKNOWN
        if key:
            checks.kept_module(run, given.node, key, added)
            checks.kept_loss(run, given.node, key, added)
            # A branch or a loop that has put nothing in says nothing of the rest.
            item = join(receiver.item, added) if receiver.item is not None else added
            run.flow.names[key] = replace(receiver, item=item, parts=())
        return UNKNOWN
    match name:
        case "values" | "copy":
            return replace(receiver, parts=())
        case "items":
            return Value("items", item=Value("items", parts=(UNKNOWN, receiver.item or UNKNOWN)))
        case "pop" | "get" | "popleft" | "popitem":
            return receiver.item or UNKNOWN
    return UNKNOWN


def _self_method(run: Expressions, given: Given, name: str) -> Value:
    """A call on self: of a submodule, or of a method of the class."""
    key = f"self.{name}"
    known = run.flow.names.get(key) or run.attributes.get(name, UNKNOWN)
    if known.kind == "module":
        return _of_module(run, given, known)
    if name in names.LOSS_NAMES:
        return Value("tensor", "", 0, given.node, graph=not run.no_graph)
    if name in ("register_buffer", "register_parameter") and given.nodes:
        told = getattr(given.nodes[0], "value", None)
        if isinstance(told, str):
            tensor = given.args[1] if len(given.args) > 1 else UNKNOWN
            checks.wrapped(run, tensor)
            run.flow.names[f"self.{told}"] = Value("parameter" if "param" in name else "tensor", "input", tensor.ndim)
        return UNKNOWN
    if name in names.MODULE_SELF:
        return Value("self")
    function = names.method(run.scope.file, run.owner, name) if run.owner is not None else None
    if function is None:
        takes_input = any(one.is_tensor and one.place == "input" for one in given.args)
        if run.in_forward and name in run.attributes and takes_input:
            # A module that was handed to the class: what it gives, a tensor or several, is where it is.
            return Value("batch", "input")
        if name == "manual_backward":
            return UNKNOWN
        return _of_unknown(run, given, name)
    effect = run.scope.effect_of(function, run.owner, run.outer, given.args, run.no_graph)
    if names.method_kind(function) == "property":  # what it returns is called, not the method
        return UNKNOWN
    run.flow.names |= dict.fromkeys(effect.attributes & run.flow.names.keys(), UNKNOWN)
    return checks.called(run, given.node, effect)


_KINDS: dict[type[ast.expr], Callable[[Any, Any], Value]] = {
    ast.Name: Expressions._name,
    ast.Attribute: Expressions._attribute,
    ast.Constant: Expressions._constant,
    **dict.fromkeys((ast.List, ast.Tuple, ast.Set), Expressions._display),
    ast.Dict: Expressions._dict,
    **dict.fromkeys((ast.ListComp, ast.SetComp, ast.GeneratorExp, ast.DictComp), Expressions._comprehension),
    ast.Lambda: Expressions._lambda,
    ast.BinOp: Expressions._binary,
    ast.Compare: Expressions._compare,
    ast.UnaryOp: Expressions._unary,
    ast.BoolOp: lambda run, node: all_of([run.test(one) for one in node.values]) or UNKNOWN,
    ast.FormattedValue: lambda run, node: run.test(node.value),
    ast.IfExp: Expressions._choice,
    ast.NamedExpr: Expressions._named,
    **dict.fromkeys((ast.Await, ast.Starred, ast.YieldFrom), lambda run, node: run.value(node.value)),
    ast.Subscript: Expressions._subscript,
    ast.Call: call,
}
