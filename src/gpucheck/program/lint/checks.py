"""Knowledge while a file is analysed: of values, of a whole function, of the file, and at one place in it; and the
checks of the rules, each of which looks at one place."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.program.lint import names, options
from gpucheck.program.lint.names import Class, File, Function, Node, Source, called_name, walk
from gpucheck.report.finding import Finding

AT_LEAST_ONE = -1


@dataclass(frozen=True, slots=True)
class Value:
    """The known facts of a value.

    `kind` is empty for unknown, or none, number, device, tensor, parameter, module, items (a list, tuple or dict),
    batch (what a DataLoader gives), loader, self, or name (imported, and no value yet). `place` is empty for unknown,
    or cpu, cuda, default (the CPU because nothing named a device), or input (where a module and its inputs are). `ndim`
    is None where even a scalar is possible. `made` is the expression that made it, `attribute` the attribute of `self`
    that it was read from. `graph` says that it carries an autograd graph, `plain` of an unknown value that it does not,
    `leaf` that it was made with `requires_grad=True`, `moved` is the move that made a leaf or a parameter a plain
    tensor, `pending` the copy to the host that may not be complete. `item` stands for every element, `parts` for each
    where they are known, `keys` for the names of the parts of a dict. `stateful` modules have something that must move.
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
    keys: tuple[str, ...] = ()
    stateful: bool = False
    name: str = ""
    plain: bool = False

    @property
    def is_tensor(self) -> bool:
        """Return whether it is a tensor; a parameter is one."""
        return self.kind in ("tensor", "parameter")

    def part(self, at: object) -> Value | None:
        """Return the element with this position or key; None where it is not known."""
        if isinstance(at, str):
            return dict(zip(self.keys, self.parts, strict=False)).get(at)
        in_order = isinstance(at, int) and -len(self.parts) <= at < len(self.parts) and not self.keys
        return self.parts[at] if in_order and isinstance(at, int) else None

    @property
    def has_dimensions(self) -> bool:
        """Return whether it is surely no 0-dimensional tensor: those may lie on the CPU beside any other."""
        return self.ndim is not None and self.ndim != 0


UNKNOWN = Value()
NONE = Value("none")
NUMBER = Value("number")


def join(one: Value, other: Value) -> Value:
    """Return what is known of a value that is the one or the other."""
    if one == other or other.kind == "none":
        return one
    if one.kind == "none":
        return other
    if one.is_tensor and other.is_tensor:
        return _joined_tensors(one, other)
    if one.kind != other.kind:
        return UNKNOWN
    if one.kind == "module":
        return replace(
            one,
            stateful=one.stateful or other.stateful,
            name=one.name if one.name == other.name else "",
            attribute=one.attribute if one.attribute == other.attribute else "",
            item=None,
            parts=(),
            keys=(),
        )
    if one.kind == "items":
        # An empty list says nothing of its elements.
        item = join(one.item, other.item) if one.item and other.item else one.item or other.item
        return replace(one, parts=(), item=item)
    if one.kind == "device" and "cuda" in (one.place, other.place):
        # "cuda" if it is there else "cpu": written for a GPU.
        return one if one.place == "cuda" else other
    return Value(one.kind) if one.kind in ("number", "batch", "loader") else UNKNOWN


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
    """Return what holds for each of these; None for none."""
    if not values:
        return None
    known = values[0]
    for one in values[1:]:
        known = join(known, one)
    return known


@dataclass(slots=True)
class Flow:
    """The state at one place: of names (`x`, `self.x`), and of the device.

    `started` is what has started CUDA, None where nothing has. `mask` is the statement that set CUDA_VISIBLE_DEVICES to
    a constant before that. A `dead` flow has returned, raised or left its loop.
    """

    names: dict[str, Value] = field(default_factory=dict)
    started: Node | None = None
    dead: bool = False
    mask: ast.Assign | None = None

    def copy(self) -> Flow:
        """The same, to go another way from here."""
        return Flow(dict(self.names), self.started, self.dead, self.mask)

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
    return Flow(names, one.started or other.started, mask=one.mask if one.mask is other.mask else None)


# -- what a whole function shows before it is walked through -----------------------------------------------------------

Loop = ast.For | ast.AsyncFor | ast.While
# What takes a number's value, or shows it: a graph that goes there was not wanted.
_SINKS = names.words(
    "print len float int str format info debug warning write log add_scalar set_postfix set_description append "
    "round isnan isinf isfinite item tolist"
)
_BACKWARDS = frozenset({"backward", "manual_backward"})


class Facts:
    """The names in a function (or a file), read off its tree."""

    def __init__(self, body: ast.AST) -> None:
        self.body = body
        self._parents: dict[int, ast.AST] | None = None
        self._backwards: dict[int, frozenset[str]] = {}

    def evidence(self) -> set[str]:
        """Names that are used as only a tensor can be."""
        found = set()
        for node in walk(self.body):
            if isinstance(node, ast.Attribute) and node.attr in names.TENSOR_ONLY and isinstance(node.value, ast.Name):
                found.add(node.value.id)
            elif isinstance(node, ast.Subscript) and isinstance(node.value, ast.Name):
                # x[:, 0]: no list takes that.
                index = node.slice.elts if isinstance(node.slice, ast.Tuple) else ()
                found |= {node.value.id for one in index if isinstance(one, ast.Slice)}
        return found

    def evaluates(self) -> bool:
        """Return whether a model is set to evaluate here: no backward follows."""
        return any(isinstance(one, ast.Call) and called_name(one) == "eval" and not one.args for one in walk(self.body))

    def backwards(self, within: Loop | None) -> frozenset[str]:
        """The names of what backward is called on, in this loop or anywhere."""
        where = within or self.body
        if id(where) not in self._backwards:
            self._backwards[id(where)] = frozenset(self._backwards_in(where))
        return self._backwards[id(where)]

    def _backwards_in(self, where: ast.AST) -> Iterator[str]:
        for node in walk(where):
            if isinstance(node, ast.Call) and called_name(node) in _BACKWARDS and isinstance(node.func, ast.Attribute):
                yield ""  # there is one, whatever its name
                for one in (below for inner in (node.func.value, *node.args) for below in walk(inner)):
                    if isinstance(one, (ast.Name, ast.Attribute, ast.Subscript)):
                        yield ast.unparse(one)

    def is_plain(self, names: set[str], loop: Loop) -> bool:
        """Return whether one of these names is made a number or loses its graph in the loop: `loss = loss.item()`."""
        for node in walk(loop):
            if isinstance(node, ast.Assign) and names & {getattr(one, "id", "") for one in node.targets}:
                value = node.value
                last = called_name(value) if isinstance(value, ast.Call) else getattr(value, "attr", "")
                if last in ("item", "detach", "tolist", "numpy", "detach_", "data"):
                    return True
            if isinstance(node, ast.Call) and called_name(node) == "detach_":
                return True
        return False

    def is_taken(self, key: str) -> bool:
        """Return whether a value goes anywhere but to a screen or a number: returned, passed on, or backward is
        called."""
        places = (one for one in walk(self.body) if isinstance(one, (ast.Name, ast.Attribute, ast.Subscript)))
        reads = (one for one in places if isinstance(one.ctx, ast.Load) and ast.unparse(one) == key)
        return not all(self._sinks(one) for one in reads)

    def _sinks(self, node: ast.AST) -> bool:
        """Return whether all that comes of it is shown or becomes a number."""
        parent = self.parent(node)
        match parent:
            case ast.BinOp() | ast.UnaryOp() | ast.FormattedValue() | ast.JoinedStr() | ast.Compare() | ast.IfExp():
                return self._sinks(parent)
            case ast.Tuple() | ast.Dict() | ast.keyword():
                return self._sinks(parent)
            case ast.If() | ast.While() | ast.Expr():
                return True
            case ast.Return():
                # After an evaluation nobody calls backward on what is returned.
                return self.evaluates()
            case ast.Attribute():
                # total.item(), losses.append
                return parent.attr in _SINKS or (
                    parent.attr in ("mean", "sum") and self._sinks(self.parent(parent) or parent)
                )
            case ast.Call():
                name = called_name(parent)
                return self._sinks(parent) if name in ("sum", "mean", "stack", "cat", "tensor") else name in _SINKS
        return False

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around this one."""
        if self._parents is None:
            self._parents = {id(child): one for one in walk(self.body) for child in ast.iter_child_nodes(one)}
        return self._parents.get(id(node))

    def is_steps(self, loop: Loop) -> bool:
        """Return whether each pass of a loop is a step: it calls backward, an optimizer's step, or a model."""
        called = {called_name(node) for node in walk(loop) if isinstance(node, ast.Call)}
        return bool(called & {*_BACKWARDS, "step", "forward", "generate", "model", "net", "network"})


# -- a file and a place in it while it is walked through ---------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """A call with its positional arguments, their values, and those of the named. `open` where `**more` may hold any
    other."""

    node: ast.Call
    nodes: list[ast.expr]
    args: list[Value]
    named: dict[str, Value]
    open: bool

    @property
    def all(self) -> list[Value]:
        """Every argument's value."""
        return [*self.args, *self.named.values()]

    def first(self, name: str = "") -> Value:
        """Return the first positional argument, else the one that is given by this name."""
        return self.args[0] if self.args else self.named.get(name, UNKNOWN)

    def argument(self, name: str) -> ast.expr | None:
        """The expression given by this name."""
        return next((one.value for one in self.node.keywords if one.arg == name), None)

    def is_true(self, name: str) -> bool:
        """Return whether this is given as True."""
        return getattr(self.argument(name), "value", None) is True


@dataclass(frozen=True, slots=True)
class Effect:
    """The effect of calling a function: what it returns, where it starts CUDA, and what it does before that.

    `sets` is where it sets CUDA_VISIBLE_DEVICES before it starts CUDA, `on_gpu` where it makes or moves tensors on one,
    `attributes` the keys of those of `self` that it sets.
    """

    returns: Value = UNKNOWN
    started: Node | None = None
    sets: tuple[Node, ...] = ()
    on_gpu: tuple[ast.expr, ...] = ()
    attributes: frozenset[str] = frozenset()


@dataclass(slots=True)
class Scope:
    """A file while it is judged."""

    source: Source
    file: File
    # By line, column and rule: the mistake, and whether a comment ignores it.
    found: dict[tuple[int, int, str], tuple[Finding, bool]] = field(default_factory=dict)
    # By name of the class: its attributes, and what made the modules that it registers.
    attributes: dict[str, dict[str, Value]] = field(default_factory=dict)
    registered: dict[str, set[int]] = field(default_factory=dict)
    # Lists of modules that have been told, by class and attribute.
    told: set[tuple[str, str]] = field(default_factory=set)
    effects: dict[int, Effect] = field(default_factory=dict)
    forwards: dict[str, set[str]] = field(default_factory=dict)
    # By id of a function that was defined within another: who was walked through there.
    parents: dict[int, Place] = field(default_factory=dict)
    # What a call of a function does; it is walked through once, when it is first called or when its turn comes.
    effect_of: Callable[[Function, Class | None, Mapping[str, Value], Sequence[Value], int], Effect] = field(init=False)


class Place:
    """The place in a function (or of the file itself) while it is walked through: what checks ask."""

    def __init__(self, scope: Scope, owner: Class | None, body: ast.AST, name: str, outer: Mapping[str, Value]) -> None:
        self.scope, self.owner, self.name, self.outer = scope, owner, name, outer
        self.facts = Facts(body)
        self.flow = Flow()
        # Names that are bound here, those of parameters, and those that are used as only a tensor can be.
        self.local_names: set[str] = set()
        self.parameters: set[str] = set()
        self.evidence: set[str] = set()
        # Whether the parameters lie where the module does, and whether this runs in a forked worker.
        self.in_forward = self.in_worker = False
        # Within how many `with` blocks, or a decorator, nothing has a graph; and factories use another device.
        self.no_graph = self.on_device = 0
        # As many of `no_graph` as are certain: `set_grad_enabled(train)` may keep graphs, or keep none.
        self.in_no_grad = 0
        self.keeps_gradients = False
        self.loops: list[ast.For | ast.AsyncFor | ast.While] = []
        # More than 0 while a loop is walked through only to see what it leaves behind.
        self.quiet = 0
        # The receiver of each move, by id of its call; and what this does before it starts CUDA, and on it.
        self.receivers: dict[int, Value] = {}
        self.sets: list[Node] = []
        self.on_gpu: list[ast.expr] = []
        self.registered: set[int] = set()
        # Names whose attributes are known.
        self.rooted: set[str] = set()
        # What lists and dicts were made of, by their keys; functions and classes that were defined on the way.
        self.containers: dict[str, ast.expr] = {}
        self.functions: dict[str, Function] = {}
        self.nested: list[Function] = []
        self.classes: list[ast.ClassDef] = []
        self.returned: list[Value] = []
        self.has_framework_step = False

    @property
    def attributes(self) -> dict[str, Value]:
        """The attributes of self that are known."""
        return self.scope.attributes.get(self.owner.node.name, {}) if self.owner is not None else {}

    def visible(self) -> dict[str, Value]:
        """Every name that a function defined here can see."""
        return {**self.outer, **self.flow.names}

    def report(self, rule: str, node: Node, **words: object) -> None:
        """A mistake, once for each place, unless this is a way that is only tried.

        Line and column count from 1, in characters. `source` is its first line as it stands in the file, and `width`
        how many characters of it the mistake takes.
        """
        if self.quiet:
            return
        source = self.scope.source
        line, column, row = node.lineno, source.column(node), options.BY_ID[rule]
        evidence = {
            "line": line,
            "column": column,
            "end_line": node.end_lineno or line,
            "function": self.name or None,
            "source": source.lines[line - 1].rstrip(),
            "width": source.width(node),
        }
        message, fix = row.message.format_map(words), row.fix.format_map(words)
        if self.owner is not None and self.owner.receiver != "self":
            message, fix = (re.sub(r"\bself\b", self.owner.receiver, one) for one in (message, fix))
        mistake = Finding(rule, row.verdict, row.title, message, evidence, fix)
        self.scope.found.setdefault((line, column, rule), (mistake, source.is_ignored(node, rule)))

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

    def is_guarded(self, node: ast.AST, loop: Loop) -> bool:
        """Return whether not every pass of the loop comes here: behind a condition, or in an error's handler."""
        inner = self.facts.parent(node)
        while inner is not None and inner is not loop:
            if isinstance(inner, ast.ExceptHandler):
                return True
            if isinstance(inner, ast.If) and not re.search("cuda|device", ast.unparse(inner.test)):
                return True
            inner = self.facts.parent(inner)
        return False

    def is_outside(self, target: ast.expr, loop: Loop) -> bool:
        """Return whether a total lives on from one pass to the next: nothing in the loop sets it anew."""
        text = ast.unparse(target)
        sets = (one for one in walk(loop) if isinstance(one, ast.Assign) and text in map(ast.unparse, one.targets))
        return all(text in texts(one.value) for one in sets)


def texts(node: ast.expr) -> set[str]:
    """The source of every expression within an expression."""
    return {ast.unparse(one) for one in walk(node) if isinstance(one, ast.expr)}


_VARIABLE = "CUDA_VISIBLE_DEVICES"
_WORKER_FIX = "return CPU tensors; move the batch in the main process"
_FORK_FIX = 'start processes with torch.multiprocessing.get_context("spawn"), or use CUDA only in the child'


def discarded(run: Place, node: ast.expr, when: str = "", within: ast.expr | None = None) -> None:
    """A statement that is nothing but the move of a tensor, made where `when` holds, or for each that the comprehension
    `within` goes through. The expression has been evaluated before."""
    text = run.scope.source.text
    also = f"({when}) and " if when else ""
    match node:
        case ast.IfExp(test, body, orelse):
            discarded(run, body, f"{also}({text(test)})" if when else text(test), within)
            discarded(run, orelse, f"{also}not ({text(test)})", within)
        case ast.BoolOp(ast.And(), values):
            discarded(run, values[-1], also + " and ".join(f"({text(one)})" for one in values[:-1]), within)
        case ast.BoolOp(ast.Or(), values):
            discarded(run, values[-1], also + " and ".join(f"not ({text(one)})" for one in values[:-1]), within)
        case ast.ListComp() | ast.SetComp() | ast.GeneratorExp():
            discarded(run, node.elt, when, within or node)
        case ast.Tuple() | ast.List():
            for one in node.elts:
                discarded(run, one, when, within)
        case ast.Call() if id(node) in run.receivers:
            func = node.func
            name = func.value if isinstance(func, ast.Attribute) else func
            if run.dotted(func).startswith("torch.Tensor.") and node.args:
                name = node.args[0]
            if not _is_kept(run, name):
                # torch.zeros(1).cuda() starts CUDA: there is no tensor that anybody reads afterwards.
                return
            how, code = _keeping(run, node, name, within)
            run.report(options.DISCARDED, node, name=text(name), fix=f"{how}: {f'if {when}: ' if when else ''}{code}")
            if run.key(name) in run.flow.names:
                # What follows from this is told once: it counts as moved from here on.
                run.flow.names[run.key(name)] = replace(run.receivers[id(node)], place="")


def _keeping(run: Place, node: ast.Call, name: ast.expr, within: ast.expr | None) -> tuple[str, str]:
    """Return how to keep the result of a move, in words and as code.

    A tensor of a module moves with the module. Assigning to the variable of a loop keeps nothing.
    """
    text, receiver = run.scope.source.text, run.receivers[id(node)]
    move = text(node)
    loops = [one for one in run.loops if isinstance(one, ast.For)]
    through: list[ast.For | ast.comprehension] = [*loops, *getattr(within, "generators", ())]
    through = [one for one in through if isinstance(name, ast.Name) and name.id in _names_in(one.target)]
    calls = (call for one in through for call in walk(one.iter) if isinstance(call, ast.Call))
    modules = [call.func.value for call in calls if isinstance(call.func, ast.Attribute) and _gives_own(call)]
    if receiver.kind == "parameter" and isinstance(name, ast.Attribute):
        modules = [name.value]
    if modules:
        called = move.removeprefix(text(name)) if move.startswith(f"{text(name)}.") else ".to(device)"
        return "move the module", f"{text(modules[-1])}{called}"
    if receiver.kind == "parameter":
        return "move it first, then wrap it", "nn.Parameter(t.to(device))"
    if receiver.leaf:
        return "create it on the device", "device=…, requires_grad=True"
    if within is not None:
        return "keep the results", f"moved = {text(within)}"
    if through and not _is_read_after(run, through[-1], node):
        return "keep the results in a list", f"moved.append({move})"
    return "assign the result", f"{text(name) if _can_be_set(run, name) else 'moved'} = {move}"


def _names_in(target: ast.expr) -> set[str]:
    return {one.id for one in walk(target) if isinstance(one, ast.Name)}


def _gives_own(call: ast.Call) -> bool:
    return called_name(call) in ("parameters", "named_parameters", "buffers", "named_buffers")


def _is_read_after(run: Place, loop: ast.For | ast.comprehension, node: ast.expr) -> bool:
    """Return whether the rest of a loop's body does anything with what the loop goes through but move it."""
    bound, end = _names_in(loop.target), (node.end_lineno or node.lineno, node.end_col_offset or 0)
    reads = (one for one in walk(loop) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load))
    later = (one for one in reads if one.id in bound and (one.lineno, one.col_offset) >= end)
    return any(getattr(run.facts.parent(one), "attr", "") not in names.MOVES for one in later)


# Attributes of a tensor that cannot be set, or only to a tensor on its device.
_FIXED = ("T", "mT", "H", "mH", "real", "imag", "grad")


def _can_be_set(run: Place, name: ast.expr) -> bool:
    """Return whether a statement here can give this place another tensor."""
    match name:
        case ast.Name(key):
            return isinstance(run.facts.body, ast.Module) or key in run.local_names
        case ast.Attribute(attr=attr):
            return attr not in _FIXED
        case ast.Subscript(value):
            base = run.visible().get(run.key(value), UNKNOWN)
            is_tuple = base.made is None or isinstance(base.made, (ast.Tuple, ast.GeneratorExp))
            return not base.is_tensor and not (base.kind == "items" and is_tuple)
    return False


def _is_kept(run: Place, node: ast.expr) -> bool:
    """Return whether an expression begins with a value that has a name: `x`, `self.x`, `batch["x"].float()`."""
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Call):
            node = node.func
        elif isinstance(node, (ast.Attribute, ast.Subscript)):
            node = node.value
        else:
            return False
    return node.id in run.flow.names or node.id not in run.scope.file.imports


def apart(run: Place, node: ast.expr, values: Iterable[Value]) -> None:
    """Values that an operation combines: one made on the CPU beside one that is where the module is."""
    if not run.in_forward:
        return
    tensors = [one for one in values if one.is_tensor]
    if not any(one.place == "input" for one in tensors):
        return
    for one in tensors:
        behind = one.place == "default" or (one.place == "cuda" and one.attribute)
        # A parameter that was moved is told where it was moved.
        if not behind or not one.has_dimensions or one.made is None or one.moved is not None:
            continue
        text = run.scope.source.text(one.made)
        if not one.attribute:
            run.report(options.IN_FORWARD, one.made, name=text, line=node.lineno, fix=_on_device(run, one.made, node))
            continue
        fix = _buffer(run, one.attribute, one.made)
        if one.leaf:
            fix = f"self.{one.attribute} = nn.Parameter(…): it requires a gradient"
        run.report(options.PLAIN, one.made, name=f"self.{one.attribute}", line=node.lineno, fix=fix)


def _buffer(run: Place, attribute: str, made: ast.expr) -> str:
    """Return how to make an attribute a buffer. `register_buffer` takes a name once, and none that the object has."""
    if not attribute.isidentifier():
        return "register each tensor in it: self.register_buffer(name, tensor)"
    members = list(names.family(run.scope.file, run.owner)) if run.owner is not None else []
    sets = [one for member in members for one in member.sets.get(attribute, ())]
    is_in_class = any(attribute in member.own_names for member in members)
    if sets == [(made, True)] and not is_in_class:
        return f'self.register_buffer("{attribute}", {run.scope.source.text(made)})'
    first = f"remove the class's own {attribute}; " if is_in_class else ""
    return f'{first}set a variable {attribute}, then once: self.register_buffer("{attribute}", {attribute})'


# They make a tensor on the CPU alone.
_ONLY_CPU = names.of_torch("from_numpy Tensor") | {one.replace(".cuda", "") for one in names.CUDA_TYPES}


def _on_device(run: Place, made: ast.expr, used: ast.expr) -> str:
    """How a tensor gets to the module's device: it is made there, or moved where that is not possible."""
    functions = (one for one in walk(run.scope.file.tree) if isinstance(one, Function))
    if not any(one is made for function in functions for one in walk(function)):
        return f"move it where it is used: .to({_device_at(run, used).partition(',')[0]})"
    device = _device_at(run, made)
    name = run.dotted(made.func) if isinstance(made, ast.Call) else ""
    is_new = isinstance(made, ast.Call) and called_name(made).startswith("new_")
    if is_new or name in (names.FACTORIES | names.LIKE) - _ONLY_CPU:
        return f"create it on the right device: device={device}"
    return f"move it: {run.scope.source.text(made)}.to({device.partition(',')[0]})"


def _device_at(run: Place, made: ast.expr) -> str:
    """An expression for the module's device at a place: of a parameter that is a tensor, else of the module itself."""
    methods = run.owner.methods.values() if run.owner is not None else ()
    method = next((one for one in methods if any(inner is made for inner in walk(one))), None)
    visible = run.visible() if any(one is made for one in walk(run.facts.body)) else {}
    for function in (run.facts.body, method):
        given = getattr(function, "args", None) or ast.arguments([], [], None, [], [], None, [])
        positional = [*given.posonlyargs, *given.args]
        for one in positional[: len(positional) - len(given.defaults)]:  # one with a default may be None
            known = visible.get(one.arg, UNKNOWN)
            may_be_none = one.annotation is not None and re.search("None|Optional", ast.unparse(one.annotation))
            if known.is_tensor and known.place == "input" and not may_be_none:
                return f"{one.arg}.device"
    is_bound = method is not None and not any(
        getattr(one, "id", "").endswith("method") for one in method.decorator_list
    )
    own = {value.kind: name for name, value in reversed(run.attributes.items())}
    if method is None or not is_bound or not method.args.args or not own.keys() & {"parameter", "module"}:
        return "device, given by the caller"
    receiver = method.args.args[0].arg
    return f"{receiver}.{own['parameter']}.device" if "parameter" in own else f"next({receiver}.parameters()).device"


def kept_module(run: Place, node: Node, key: str, item: Value | None) -> None:
    """A module with something to move, in a list or dict that is an attribute of a module."""
    owner, name = run.owner, key.removeprefix("self.")
    if owner is None or not owner.is_module or not key.startswith("self.") or item is None:
        return
    inner = ""
    while item.kind == "items" and item.item is not None:
        inner, item = ", and nn.ModuleList or nn.ModuleDict for what is in it", item.item
    if item.kind != "module" or not item.stateful or item.attribute or owner.registers_by_hand:
        return
    registered = run.scope.registered.get(owner.node.name, set())
    is_registered = name in owner.handed_on or (item.made is not None and id(item.made) in registered)
    if is_registered or (owner.node.name, key) in run.scope.told:
        return
    if not run.quiet:
        run.scope.told.add((owner.node.name, key))
    made = run.containers.get(key)
    is_dict = isinstance(made, (ast.Dict, ast.DictComp)) or (
        isinstance(made, ast.Call) and "dict" in called_name(made).lower()
    )
    fix = f"use {_module_dict(node, made)}" if is_dict else "use nn.ModuleList"
    run.report(options.IN_LIST, node, name=key, fix=f"{fix}{inner}")


def _module_dict(node: Node, made: ast.expr | None) -> str:
    """The fix for a dict, which says what keys it takes where some that are seen may be others."""
    keys = made.keys if isinstance(made, ast.Dict) else [made.key] if isinstance(made, ast.DictComp) else []
    targets = node.targets if isinstance(node, ast.Assign) else []
    keys = [*keys, *(one.slice for one in targets if isinstance(one, ast.Subscript))]
    values = [getattr(one, "value", None) for one in keys]
    are_names = all(isinstance(one, str) and "." not in one for one in values)
    return "nn.ModuleDict" if are_names else "nn.ModuleDict, whose keys are strings without a dot"


def wrapped(run: Place, known: Value) -> None:
    """A parameter that is about to be an attribute, and was moved after it was made."""
    if known.is_tensor:
        moved_leaf(run, known, "move it first, then wrap it: nn.Parameter(t.to(device))")


_MOVED_LEAF_FIX = "create it on the device: device=…, requires_grad=True, or call .requires_grad_() after the move"


def moved_leaf(run: Place, known: Value, fix: str = _MOVED_LEAF_FIX) -> None:
    """A moved leaf whose gradient is asked for, or that an optimizer gets."""
    if known.moved is not None:
        run.report(options.MOVED_PARAMETER, known.moved, name=run.scope.source.text(known.moved), fix=fix)


def optimized(run: Place, values: Iterable[Value]) -> None:
    """Check the parameters that an optimizer gets."""
    for one in values:
        moved_leaf(run, one)
        optimized(run, [*one.parts, *([one.item] if one.item is not None else [])])


def read(run: Place, node: ast.expr, values: Iterable[Value]) -> None:
    """Values that are read here: one that a copy is still on its way to."""
    for one in values:
        pending = one.pending or (one.item.pending if one.item is not None else None)
        if pending is not None:
            run.report(options.UNWAITED, pending, name=run.scope.source.text(pending), line=node.lineno)


def waited(run: Place, values: Iterable[Value]) -> None:
    """The host needs these values here: where one may be on a device, the copies before it are complete."""
    if any(one.is_tensor and one.pending is None and one.place not in ("default", "cpu") for one in values):
        run.flow.settle()


# -- loops -------------------------------------------------------------------------------------------------------------


def empty_cache(run: Place, node: ast.expr, name: str) -> None:
    """`empty_cache()` in each pass of a loop: not in an error's handler, now and then, or once an epoch."""
    if not name.startswith("torch.") or not name.endswith(".empty_cache") or not run.loops:
        return
    loop = run.loops[-1]
    has_inner = any(isinstance(one, (ast.For, ast.While, ast.AsyncFor)) for one in walk(loop) if one is not loop)
    if not has_inner and not run.is_guarded(node, loop) and run.facts.is_steps(loop):
        run.report(options.EMPTY_CACHE, node)


def kept_loss(run: Place, node: ast.expr, key: str, added: Value) -> None:
    """`losses.append(loss)` in a loop without a backward, where nobody takes the list for one.

    A loss that was made under `no_grad` has no graph; one that was made before has, wherever it is kept.
    """
    if not run.loops or not added.is_tensor or not added.graph or added.ndim != 0:
        return
    if run.has_framework_step or run.facts.backwards(run.loops[-1]) or run.facts.is_taken(key):
        return
    is_one = isinstance(node, ast.Call) and node.args and called_name(node) not in ("extend", "update")
    text = _operand(run, node.args[-1]) if isinstance(node, ast.Call) and is_one else "loss"
    run.report(options.KEPT_GRAPH, node, name=key, fix=f"keep only the number: {text}.item(), or {text}.detach()")


def _operand(run: Place, node: ast.expr) -> str:
    """The source of an expression, so that a method can be called on it."""
    text = run.scope.source.text(node)
    return text if isinstance(node, (ast.Name, ast.Attribute, ast.Subscript, ast.Call)) else f"({text})"


def summed_loss(run: Place, node: ast.stmt, target: ast.expr, added: ast.expr, known: Value, before: Value) -> None:
    """`total += loss` in a loop: after a backward, or where no backward is made of the total. A total that is used as a
    tensor stays one."""
    if not run.loops or run.in_no_grad or not run.is_outside(target, run.loops[-1]):
        return
    loop, key = run.loops[-1], ast.unparse(target)
    if {key, key.partition("[")[0]} & run.facts.backwards(None) or before.kind in ("items", "module"):
        return
    trained = set(_names_kept(added)) & run.facts.backwards(loop)
    evaluated = known.is_tensor and known.graph and known.ndim == 0 and not (run.has_framework_step or run.no_graph)
    if (trained and not run.facts.is_plain(trained, loop)) or (evaluated and not run.facts.is_taken(key)):
        methods = (one for one in walk(run.facts.body) if isinstance(one, ast.Attribute))
        is_tensor = any(ast.unparse(one.value) == key for one in methods)
        number = f"{_operand(run, added)}.{'detach' if is_tensor else 'item'}()"
        is_sum = isinstance(node, ast.AugAssign) or key in map(
            ast.unparse, ast.iter_child_nodes(getattr(node, "value", node))
        )
        fix = f"{key} += {number}" if is_sum else f"add {number}"
        run.report(options.KEPT_GRAPH, node, name=key, fix=fix)


def _names_kept(node: ast.expr) -> Iterable[str]:
    """The names whose graph an expression keeps: `loss`, `loss * n`, `loss / k`; not `loss.item()`."""
    match node:
        case ast.Name():
            yield node.id
        case ast.BinOp():
            yield from _names_kept(node.left)
            yield from _names_kept(node.right)
        case ast.UnaryOp():
            yield from _names_kept(node.operand)
        case ast.Call(ast.Attribute(inner, name)) if name in ("mean", "sum", "clone", "to", "cuda", "float", "cpu"):
            yield from _names_kept(inner)


# -- processes and their environment: workers, forks, and the variable that hides devices -----------------------------


def on_gpu(run: Place, node: ast.expr) -> None:
    """A tensor is made on a GPU or moved there."""
    run.flow.started = run.flow.started or node
    _used(run, node)


def _used(run: Place, *nodes: ast.expr) -> None:
    if run.quiet:
        return
    run.on_gpu += nodes
    for node in nodes if run.in_worker else ():
        run.report(options.IN_WORKER, node, name=f"{run.name} runs in a DataLoader worker", fix=_WORKER_FIX)


def called(run: Place, node: ast.expr, effect: Effect) -> Value:
    """A function of the file is called: what it does happens here."""
    visible_devices(run, *effect.sets)
    _used(run, *effect.on_gpu)
    if effect.started is not None:
        run.flow.started = run.flow.started or node
    return effect.returns


def imported(run: Place, given: Given, name: str) -> None:
    """A call of an imported function that concerns devices or processes."""
    node = given.node
    if name in names.STARTS_CUDA:
        run.flow.started = run.flow.started or node
    if name in ("os.environ.update", "os.environ.setdefault", "os.putenv", "os.environ.__setitem__"):
        named = any(one.arg == _VARIABLE for one in node.keywords)
        if named or any(names_variable(one) for one in node.args[:1]):
            visible_devices(run, node)
    elif name == "os.fork":
        _forked(run, node)
    elif name.rpartition(".")[2] in ("Process", "Pool") and name.partition(".")[0] in ("multiprocessing", "torch"):
        _child(run, given)


def method(run: Place, given: Given, func: ast.Attribute) -> None:
    """A method of what is not known that makes processes: `get_context("fork").Process(…)`."""
    inner = func.value
    if func.attr != "Process" or not isinstance(inner, ast.Call) or not run.dotted(inner.func).endswith(".get_context"):
        return
    if getattr(inner.args[0] if inner.args else None, "value", "fork") == "fork":
        _child(run, given)


def names_variable(node: ast.expr | None) -> bool:
    """Return whether this is the variable's name, or a dict with it."""
    if isinstance(node, ast.Dict):
        return any(names_variable(key) for key in node.keys)
    return isinstance(node, ast.Constant) and node.value == _VARIABLE


def visible_devices(run: Place, *nodes: Node) -> None:
    """The variable is set here."""
    if run.flow.started is None:
        run.sets += () if run.quiet else nodes
        for node in nodes:
            run.flow.mask = node if isinstance(node, ast.Assign) else None
    elif not run.scope.file.starts_children:  # what is set for a child that is started later is in time
        for node in nodes:
            run.report(options.LATE_VISIBLE, node, line=run.flow.started.lineno, value=_set_to(node))


def hidden(run: Place, node: ast.Call) -> None:
    """A call names a device by a number that the mask does not leave."""
    mask = getattr(getattr(run.flow.mask, "value", None), "value", None)
    if run.flow.mask is None or not isinstance(mask, str):
        return
    count = len([entry for entry in mask.split(",") if entry.strip() not in ("", "-1")])
    name = called_name(node)
    given = [one.value for one in node.keywords if one.arg in ("device", "type")]
    given += node.args[:1] if name in _TAKES_DEVICE else []
    if name == "device" and len(node.args) > 1:  # torch.device("cuda", 2)
        given = [node.args[1]]
    for argument in given:
        value = getattr(argument, "value", None)
        number = value.removeprefix("cuda:") if isinstance(value, str) else str(value)
        by_number = type(value) is int and (name in ("cuda", "set_device") or len(node.args) > 1)
        is_named = isinstance(value, str) and value != number
        if number.isdecimal() and (by_number or is_named) and int(number) >= count > 0:
            visible = "1 GPU" if count == 1 else f"{count} GPUs"
            fix = f'use "cuda:{count - 1}"' if count == 1 else f"use cuda:0 to cuda:{count - 1}"
            run.report(
                options.HIDDEN_DEVICE,
                argument,
                name=f"cuda:{number}",
                line=run.flow.mask.lineno,
                count=visible,
                fix=fix,
            )


# Calls whose first argument is a device.
_TAKES_DEVICE = frozenset(
    {"device", "to", "cuda", "set_device", "synchronize", "mem_get_info", "get_device_properties"}
)


def _set_to(node: Node) -> str:
    """The value that a statement or a call sets the variable to, as a shell takes it; `…` where it is no constant."""
    values: list[ast.expr | None] = [getattr(node, "value", None)]
    if isinstance(node, ast.Call):
        dicts = [one for one in node.args if isinstance(one, ast.Dict)]
        pairs = [pair for one in dicts for pair in zip(one.keys, one.values, strict=True)]
        values = [one.value for one in node.keywords if one.arg == _VARIABLE]
        values += [value for key, value in pairs if names_variable(key)] or node.args[1:2]
    constant = getattr(values[0] if values else None, "value", None)
    return shlex.quote(constant) if isinstance(constant, str) else "…"


def _forked(run: Place, node: ast.Call) -> None:
    """`os.fork()`: CUDA has started, and is used after it."""
    if run.flow.started is None or run.quiet:
        return
    later = [one for one in walk(run.facts.body) if isinstance(one, ast.Call) and one.lineno > node.lineno]
    if any(_uses_gpu(run, one) for one in later):
        told = f"CUDA has started in line {run.flow.started.lineno}"
        run.report(options.IN_WORKER, node, name=told, fix=_FORK_FIX)


def _uses_gpu(run: Place, node: ast.Call) -> bool:
    """Return whether a call, by its words alone, uses a GPU."""
    func = node.func
    if isinstance(func, ast.Attribute) and (func.attr == "cuda" or run.dotted(func) in names.STARTS_CUDA):
        return True
    values = names.arguments(node)
    return any(isinstance(one, ast.Constant) and str(one.value).startswith("cuda") for one in values)


def _child(run: Place, given: Given) -> None:
    """A process is made by fork: CUDA has started, and its function uses it."""
    if run.flow.started is None or run.scope.file.spawns or run.quiet:
        return
    target = given.argument("target") or given.argument("initializer")
    function = run.scope.file.functions.get(getattr(target, "id", ""))
    if function is None:
        return
    effect = run.scope.effect_of(function, None, run.outer, (), 0)
    if effect.on_gpu or effect.started is not None:
        told = f"{function.name} uses the GPU, and CUDA has started in line {run.flow.started.lineno}"
        run.report(options.IN_WORKER, given.node, name=told, fix=_FORK_FIX)
