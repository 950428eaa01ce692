"""Knowledge while a file is analysed: of values, of a whole function, of the file, and at one place in it."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.program.lint import names, options
from gpucheck.program.lint.names import Class, File, Function, Node, Source, walk
from gpucheck.report.finding import Finding

# Dimensions of a tensor: none, or at least one. `None` is not known.
SCALAR, DIMENSIONS = 0, 1


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
        if not isinstance(at, int) or self.keys or not -len(self.parts) <= at < len(self.parts):
            return None
        return self.parts[at]


UNKNOWN = Value()
NONE = Value("none")
NUMBER = Value("number")


def join(value: Value, other: Value) -> Value:
    """Return what is known of a value that is the one or the other."""
    if value == other or other.kind == "none":
        return value
    if value.kind == "none":
        return other
    if value.is_tensor and other.is_tensor:
        return _joined_tensors(value, other)
    if value.kind != other.kind:
        return UNKNOWN
    if value.kind == "module":
        stateful, name = value.stateful or other.stateful, value.name if value.name == other.name else ""
        attribute = value.attribute if value.attribute == other.attribute else ""
        return replace(value, stateful=stateful, name=name, attribute=attribute, item=None, parts=(), keys=())
    if value.kind == "items":
        # An empty list says nothing of its elements.
        item = join(value.item, other.item) if value.item and other.item else value.item or other.item
        return replace(value, parts=(), item=item)
    if value.kind == "device" and "cuda" in (value.place, other.place):
        # "cuda" if it is there else "cpu": written for a GPU.
        return value if value.place == "cuda" else other
    return Value(value.kind) if value.kind in ("number", "batch", "loader") else UNKNOWN


def _joined_tensors(value: Value, other: Value) -> Value:
    place = value.place if value.place == other.place else ""
    if {value.place, other.place} == {"default", "input"}:
        # On one of the ways it is on the CPU: whoever comes that way meets the mistake.
        place = "default"
    return Value(
        "tensor" if value.kind != other.kind else value.kind,
        place,
        value.ndim if value.ndim == other.ndim else None,
        value.made or other.made,
        value.attribute if value.attribute == other.attribute else "",
        value.graph or other.graph,
        value.leaf and other.leaf,
        value.moved if other.moved is not None else None,
        value.pending if other.pending is not None else None,
    )


def all_of(values: Iterable[Value]) -> Value | None:
    """Return what holds for each of these; None for none."""
    known: Value | None = None
    for value in values:
        known = value if known is None else join(known, value)
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


def met(flow: Flow, other: Flow) -> Flow:
    """Where two ways meet. One that has ended does not arrive; what only one sets is not known."""
    if flow.dead or other.dead:
        return (other if flow.dead else flow).copy()
    known = {
        key: join(flow.names[key], other.names[key]) if key in flow.names and key in other.names else UNKNOWN
        for key in flow.names | other.names
    }
    return Flow(known, flow.started or other.started, mask=flow.mask if flow.mask is other.mask else None)


Loop = ast.For | ast.AsyncFor | ast.While


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
        return next((keyword.value for keyword in self.node.keywords if keyword.arg == name), None)

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
class Processes:
    """The processes of a file. Functions that run in forked DataLoader workers by name (`.name` where the class is not
    known), lambdas by id; classes of datasets whose items workers get."""

    in_workers: set[str] = field(default_factory=set)
    lambdas: set[int] = field(default_factory=set)
    datasets: set[str] = field(default_factory=set)
    starts_children: bool = False
    spawns: bool = False


@dataclass(slots=True)
class Scope:
    """A file while it is judged."""

    source: Source
    file: File
    processes: Processes
    has_default_device: bool
    # By line, column and rule: the mistake, and whether a comment ignores it.
    found: dict[tuple[int, int, str], tuple[Finding, bool]] = field(default_factory=dict)
    # By name of the class: its attributes, and what made the modules that it registers.
    attributes: dict[str, dict[str, Value]] = field(default_factory=dict)
    registered: dict[str, set[int]] = field(default_factory=dict)
    # Lists of modules that are reported already, by class and attribute.
    reported: set[tuple[str, str]] = field(default_factory=set)
    effects: dict[int, Effect] = field(default_factory=dict)
    forwards: dict[str, set[str]] = field(default_factory=dict)
    # By id of a function that was defined within another: who was walked through there.
    parents: dict[int, Place] = field(default_factory=dict)
    # What a call of a function does; it is walked through once, when it is first called or when its turn comes.
    effect_of: Callable[[Function, Class | None, Mapping[str, Value], Sequence[Value], int], Effect] = field(init=False)


class Place:
    """The place in a function (or of the file itself) while it is walked through: what rules ask."""

    def __init__(self, scope: Scope, owner: Class | None, body: ast.AST, name: str, outer: Mapping[str, Value]) -> None:
        self.scope, self.owner, self.body, self.name, self.outer = scope, owner, body, name, outer
        self.flow = Flow()
        # Names that are bound here, those of parameters, and those that are used as only a tensor can be.
        self.local_names: set[str] = set()
        self.parameters: set[str] = set()
        self.evidence: set[str] = set()
        # Whether the parameters lie where the module does, and whether this runs in a forked worker.
        self.in_forward = self.in_worker = self.has_framework_step = False
        # Within how many `with` blocks, or a decorator, nothing has a graph; and factories use another device.
        self.no_graph = self.on_device = 0
        # As many of `no_graph` as are certain: `set_grad_enabled(train)` may keep graphs, or keep none.
        self.in_no_grad = 0
        # Whether a gradient of a tensor that is no leaf is kept somewhere here.
        self.keeps_gradients = False
        self.loops: list[Loop] = []
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
        self._parents: dict[int, ast.AST] = {}

    @property
    def attributes(self) -> dict[str, Value]:
        """The attributes of self that are known."""
        return self.scope.attributes.get(self.owner.node.name, {}) if self.owner is not None else {}

    def visible(self) -> dict[str, Value]:
        """Every name that a function defined here can see."""
        return {**self.outer, **self.flow.names}

    def text(self, node: Node) -> str:
        """The source of an expression."""
        return self.scope.source.text(node)

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
        mistake = Finding(rule, row.verdict, row.title, message, evidence, fix)
        self.scope.found.setdefault((line, column, rule), (mistake, source.is_ignored(node, rule)))

    def key(self, node: ast.expr) -> str:
        """The key of a name or of an attribute of a name; empty for anything else."""
        match node:
            case ast.Name(name):
                return name
            case ast.Attribute(ast.Name(name), attribute):
                return f"{name}.{attribute}"
        return ""

    def dotted(self, node: ast.expr) -> str:
        """An imported name in dots, unless a local name hides it."""
        root = node
        while isinstance(root, ast.Attribute):
            root = root.value
        if not isinstance(root, ast.Name) or root.id in self.local_names:
            return ""
        return self.scope.file.dotted(node)

    def parent(self, node: ast.AST) -> ast.AST | None:
        """The node around this one."""
        if not self._parents:
            self._parents = {id(child): above for above in walk(self.body) for child in ast.iter_child_nodes(above)}
        return self._parents.get(id(node))


def tensor_evidence(body: ast.AST) -> set[str]:
    """Names that are used as only a tensor can be."""
    used = set()
    for node in walk(body):
        match node:
            case ast.Attribute(ast.Name(name), attribute) if attribute in names.TENSOR_ONLY:
                used.add(name)
            # x[:, 0]: no list takes that.
            case ast.Subscript(ast.Name(name), ast.Tuple(index)) if any(isinstance(at, ast.Slice) for at in index):
                used.add(name)
    return used
