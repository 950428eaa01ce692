"""The facts that `lint` collects about a file: tree, ignore comments, imports, classes, functions, and known values."""

from __future__ import annotations

import ast
import functools
import importlib.util
import io
import re
import tokenize
import warnings
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpucheck.program.lint import options, tables
from gpucheck.report.finding import Finding


def is_module_class(name: str) -> bool:
    where, _, last = name.rpartition(".")
    if where and (last == "LightningModule" or (last in tables.MODULE_BASES and not where.startswith("."))):
        return True
    if not name.startswith("torch.nn.") or not last[:1].isupper() or ".functional." in name or ".utils." in name:
        return False
    return last not in ("Parameter", "ParameterList", "ParameterDict", "Buffer", "UninitializedParameter")


def holds_state(name: str) -> bool:
    """Return whether a module of this class of torch.nn holds parameters or buffers that must move."""
    last = name.rpartition(".")[2]
    return last in tables.WITH_STATE or not any(part in last for part in tables.EMPTY_PARTS)


Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Class:
    """A class of the analysed file. Bases are dotted names."""

    node: ast.ClassDef
    methods: dict[str, Function]
    bases: tuple[str, ...] = ()
    is_module: bool = False
    is_lightning: bool = False
    registers_by_hand: bool = False
    has_state: bool = False  # the class creates parameters, buffers, or modules that may have them
    passed_on: set[str] = field(default_factory=set)  # attributes in a call's arguments: `nn.Sequential(*self.layers)`
    forwards: set[str] = field(default_factory=set)  # methods that forward, or a step of Lightning, calls
    in_workers: set[str] = field(default_factory=set)  # methods of a dataset that run in forked workers
    # The attributes that the set-up methods assign to self; None before these methods were analysed.
    attributes: dict[str, Value] | None = None


@dataclass(slots=True)
class File:
    tree: ast.Module
    lines: list[str]  # the source lines, line 1 at index 0
    ignored: dict[int, frozenset[str]]  # the rules that comments ignore, by line from 1; an empty set ignores all
    imports: dict[str, str] = field(default_factory=dict)  # the dotted path of each imported name
    classes: dict[str, Class] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    # Names that a function assigns in an outer scope. Each function may see another value.
    shared: set[str] = field(default_factory=set)
    zeros: set[str] = field(default_factory=set)  # names that get 0, False or None somewhere
    has_default_device: bool = False
    in_workers: set[str | int] = field(default_factory=set)  # functions in forked workers: names, and ids of lambdas
    starts_children: bool = False
    spawns: bool = False
    # The mistakes by line, column and rule, each with whether a comment ignores the mistake.
    mistakes: dict[tuple[int, int, str], tuple[Finding, bool]] = field(default_factory=dict)
    effects: dict[int, Scope] = field(default_factory=dict)  # the analysed functions, by id
    parents: dict[int, Scope] = field(default_factory=dict)  # the scopes that define them, by the function's id

    def dotted(self, node: ast.expr, local_names: Container[str] = ()) -> str:
        """Return `nn.Linear` as `torch.nn.Linear`; empty for a name that is not imported or that a local name hides."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id in local_names or node.id not in self.imports:
            return ""
        return ".".join([self.imports[node.id], *reversed(parts)])

    def family(self, member: Class, below: tuple[str, ...] = ()) -> Iterator[Class]:
        """Yield a class and its bases in the file, the class first."""
        yield member
        for name in member.bases:
            if (base := self.classes.get(name)) is not None and base is not member and name not in below:
                yield from self.family(base, (*below, member.node.name))

    def method(self, owner: Class | None, name: str) -> Function | None:
        members = self.family(owner) if owner is not None else ()
        return next((member.methods[name] for member in members if name in member.methods), None)

    def reachable(self, owner: Class, roots: Iterable[str]) -> set[str]:
        """Return the names of existing `roots` and of all methods that they call on self, except __init__."""
        reached: set[str] = set()
        todo = [name for name in roots if self.method(owner, name) is not None]
        while todo:
            name = todo.pop()
            function = None if name in reached else self.method(owner, name)
            reached.add(name)
            for node in walk(function) if function is not None else ():
                called = self_attribute(node.func if isinstance(node, ast.Call) else node)
                method = self.method(owner, called) if called else None
                if method is not None and (isinstance(node, ast.Call) or method_kind(method) == "property"):
                    todo.append(called)
        return reached

    def text(self, node: Node) -> str:
        """Return the source of an expression in one line, cut at 60 characters."""
        line = self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode("utf-8", "replace")
        text = line if node.end_lineno == node.lineno else ast.unparse(node)  # the lines may contain comments
        return text if len(text) <= 60 else f"{text[:59]}…"


def read_names(file: File) -> None:
    for node in walk(file.tree):
        match node:
            case ast.Import(aliases):
                for alias in aliases:
                    root = alias.name if alias.asname else alias.name.partition(".")[0]
                    file.imports[alias.asname or root] = root
            case ast.ImportFrom(module, aliases, level):
                where = "." * level + (module or "")
                if where.startswith(("torch.nn.modules", "torch.nn.parameter")):
                    where = "torch.nn"  # the tables use this name
                file.imports |= {alias.asname or alias.name: f"{where}.{alias.name}" for alias in aliases}
            case ast.Call():
                file.calls.append(node)
            case ast.Assign([ast.Name(name)], ast.Constant(value)) if not value:
                file.zeros.add(name)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                file.shared |= bound_in(node)[1]
            case ast.ClassDef():
                file.classes[node.name] = _class(node)
    file.functions = {statement.name: statement for statement in file.tree.body if isinstance(statement, Function)}
    for owner in file.classes.values():
        owner.bases = tuple(file.dotted(base) or getattr(base, "id", "") for base in owner.node.bases)
    may_have_workers = _read_processes(file)
    for owner in file.classes.values():
        bases = [name for member in file.family(owner) for name in member.bases]
        owner.is_module = any(map(is_module_class, bases))
        owner.has_state = any(member.has_state for member in file.family(owner))
        owner.is_lightning = any("Lightning" in name for name in bases)
        owner.forwards = file.reachable(owner, tables.FORWARDS) - {"__init__"} if owner.is_module else set()
        is_dataset = any(name in tables.DATASETS or name.startswith("torchvision.datasets.") for name in bases)
        if is_dataset and may_have_workers:
            iterates = ["__iter__"] if any(name.endswith("IterableDataset") for name in bases) else []
            owner.in_workers = file.reachable(owner, ("__getitem__", "__getitems__", *iterates)) - {"__init__"}


def bound_in(function: Function) -> tuple[set[str], set[str]]:
    """Return the names that a function binds: local names, and names of the file or of an enclosing function."""
    bound, shared = set(), set()
    for node in walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            bound.add(node.id)
        elif isinstance(node, ast.arg):
            bound.add(node.arg)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            shared.update(node.names)
        else:
            bound.update(captured(node))
    return bound - shared, bound & shared


def captured(node: ast.AST) -> set[str]:
    if not isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)):
        return set()
    return {getattr(node, "name", None) or getattr(node, "rest", None) or ""} - {""}


# Calls that register the elements of a list argument.
_REGISTER = ("ModuleList", "ModuleDict", "Sequential", "extend", "update", "OrderedDict")


def _class(node: ast.ClassDef) -> Class:
    owner = Class(node, {statement.name: statement for statement in node.body if isinstance(statement, Function)})
    for call in (inner for inner in walk(node) if isinstance(inner, ast.Call)):
        name = called_name(call)
        is_class = name[:1].isupper() and not name.endswith("Error") and holds_state(name)
        owner.has_state |= is_class or name.startswith("register_")
        owner.registers_by_hand |= name in ("add_module", "register_module", "setattr", "__setattr__")
        for argument in (*call.args, *(keyword.value for keyword in call.keywords)):
            if isinstance(argument, ast.Starred) or name in _REGISTER:
                inner = argument.value if isinstance(argument, ast.Starred) else argument
                owner.passed_on.add(self_attribute(inner))
                # lint does not know which attribute holds a list that is registered by a local name.
                owner.registers_by_hand |= isinstance(inner, ast.Name) and name in _REGISTER[:3]
    return owner


def self_attribute(node: ast.AST) -> str:
    """Return `x` for `self.x`, and an empty text for any other node."""
    match node:
        case ast.Attribute(ast.Name("self"), name):
            return name
    return ""


def called_name(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def method_kind(function: Function) -> str:
    """Return static, class or property; empty for an ordinary method with `self`."""
    kinds = {"staticmethod": "static", "classmethod": "class", "property": "property", "cached_property": "property"}
    decorators = (getattr(node, "attr", getattr(node, "id", "")) for node in function.decorator_list)
    return next((kinds[name] for name in decorators if name in kinds), "")


Node = ast.expr | ast.stmt
# A larger file is data, not a program. ast takes a gigabyte for 10 MB of literals.
MOST_BYTES = 4 * 2**20
_IGNORE = re.compile(r"#\s*gpucheck:\s*ignore(?:\[([^\]]*)\])?(?![\w\[])", re.IGNORECASE)


class Unreadable(Exception):
    """The reason why lint cannot judge a file, with the line and the column if known."""

    def __init__(self, why: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(why)
        self.why, self.line, self.column = why, line, column


def parse(data: bytes) -> File:
    """Raise Unreadable if Python cannot parse the bytes."""
    if len(data) > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES // 2**20} MiB")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # hides Python's warnings about the file's own escapes and comparisons
            tree = ast.parse(data)
        text = importlib.util.decode_source(data)
        return File(tree, text.split("\n"), _ignored(text))
    except SyntaxError as error:
        raise Unreadable(f"not valid Python: {error.msg}", error.lineno, error.offset) from error
    except (ValueError, tokenize.TokenError) as error:
        raise Unreadable(f"not valid Python: {error}") from error


def _ignored(text: str) -> dict[int, frozenset[str]]:
    """Return the rules in ignore comments by line. Text inside a string is not a comment."""
    ignored: dict[int, frozenset[str]] = {}
    if _IGNORE.search(text) is None:
        return ignored
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        comment = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if comment is not None:
            ids = frozenset(name.strip() for name in (comment[1] or "").split(",") if name.strip())
            if ids or comment[1] is None:  # `ignore[]` ignores nothing
                ignored[token.start[0]] = ids
    return ignored


_WITHOUT_NODES = frozenset({ast.Name, ast.Constant, ast.Pass, ast.alias})
_EMPTY = frozenset({ast.Load, ast.Store, ast.Del, *ast.operator.__subclasses__(), *ast.cmpop.__subclasses__()})


def walk(node: ast.AST) -> list[ast.AST]:
    """Return the node and all nodes below, without operators and contexts. The node caches the result."""
    if (below := node.__dict__.get("_below")) is None:
        nodes = [node]
        for inner in nodes:
            if inner.__class__ not in _WITHOUT_NODES:
                nodes.extend(child for child in ast.iter_child_nodes(inner) if child.__class__ not in _EMPTY)
        below = node.__dict__["_below"] = nodes[1:]
    return [node, *below]


# The values of `ndim`: 0 dimensions, or at least 1. `None` means unknown.
SCALAR, DIMENSIONS = 0, 1


@dataclass(frozen=True, slots=True)
class Value:
    # "" for unknown, or none, number, device, tensor, parameter, module, items (a list, tuple or dict), batch (of a
    # DataLoader), loader, self, or name (an imported name without a known value).
    kind: str = ""
    # "" for unknown, or cpu, cuda, default (the CPU, because nothing names a device), or input (the inputs' device).
    place: str = ""
    ndim: int | None = None
    made: ast.expr | None = None  # the expression that creates the value
    attribute: str = ""  # the attribute of `self` that has the value
    graph: bool = False  # whether the value has an autograd graph
    leaf: bool = False  # whether the tensor was created with `requires_grad=True`
    moved: ast.expr | None = None  # the move that turned a leaf or a parameter into a plain tensor
    pending: ast.expr | None = None  # the copy to the host that may not be complete
    item: Value | None = None  # the facts that are true for all elements
    parts: tuple[Value, ...] = ()  # the elements, if each is known
    stateful: bool = False  # whether the module has parameters or buffers, which must move
    name: str = ""
    keys: tuple[str, ...] = ()  # the keys of a dict's `parts`

    @property
    def is_tensor(self) -> bool:
        return self.kind in ("tensor", "parameter")

    def part(self, at: object) -> Value | None:
        if self.keys:
            return dict(zip(self.keys, self.parts, strict=False)).get(str(at))
        return self.parts[at] if isinstance(at, int) and -len(self.parts) <= at < len(self.parts) else None


UNKNOWN = Value()
NONE = Value("none")
NUMBER = Value("number")


def join(value: Value, other: Value) -> Value:
    """Return the facts about a value that is one of these two."""
    if value == other or other.kind == "none":
        return value
    if value.kind == "none":
        return other
    if value.kind != other.kind and not (value.is_tensor and other.is_tensor):
        return UNKNOWN
    place = value.place if value.place == other.place else ""
    if value.kind == "device" and "cuda" in (value.place, other.place):
        place = "cuda"  # `"cuda" if is_available() else "cpu"` is written for a GPU
    elif {value.place, other.place} == {"default", "input"}:
        place = "default"  # the path on which the tensor is on the CPU has the mistake
    return Value(
        value.kind if value.kind == other.kind else "tensor",
        place,
        value.ndim if value.ndim == other.ndim else None,
        value.made or other.made,
        value.attribute if other.attribute else "",
        value.graph or other.graph,
        value.leaf and other.leaf,
        value.moved if other.moved is not None else None,
        value.pending if other.pending is not None else None,
        # The items of an empty list are unknown.
        join(value.item, other.item) if value.item and other.item else value.item or other.item,
        (),
        value.stateful or other.stateful,
        value.name if value.name == other.name else "",
    )


def all_of(values: Iterable[Value]) -> Value | None:
    """Return the facts about a value that is any of these; None without values."""
    known = list(values)
    return functools.reduce(join, known) if known else None


@dataclass(slots=True)
class Flow:
    """The state at one statement: the values of names (`x`, `self.x`), and the state of CUDA."""

    names: dict[str, Value] = field(default_factory=dict)
    started: Node | None = None  # the node that has started CUDA
    dead: bool = False  # whether the path has returned, raised or left its loop
    mask: ast.Assign | None = None  # the statement that set CUDA_VISIBLE_DEVICES before CUDA started

    def copy(self) -> Flow:
        return Flow(dict(self.names), self.started, self.dead, self.mask)

    def settle(self) -> None:
        for key, value in self.names.items():
            if value.pending is not None or (value.item is not None and value.item.pending is not None):
                item = None if value.item is None else replace(value.item, pending=None)
                self.names[key] = replace(value, pending=None, item=item, parts=())


def join_flows(flow: Flow, other: Flow) -> Flow:
    """Return the state after two paths meet. A dead path does not count."""
    if flow.dead or other.dead:
        return (other if flow.dead else flow).copy()
    known = {
        key: join(flow.names[key], other.names[key]) if key in flow.names and key in other.names else UNKNOWN
        for key in flow.names | other.names
    }
    return Flow(known, flow.started or other.started, mask=flow.mask if flow.mask is other.mask else None)


Loop = ast.For | ast.AsyncFor | ast.While


@dataclass(frozen=True, slots=True)
class CallArgs:
    """A call with the values of its arguments. An `open` call has `*args` or `**more` with unknown arguments."""

    node: ast.Call
    args: list[Value]
    named: dict[str, Value]
    open: bool

    @property
    def all(self) -> list[Value]:
        return [*self.args, *self.named.values()]

    def first(self, name: str = "") -> Value:
        return self.args[0] if self.args else self.named.get(name, UNKNOWN)

    def argument(self, name: str) -> ast.expr | None:
        return next((keyword.value for keyword in self.node.keywords if keyword.arg == name), None)

    def is_true(self, name: str) -> bool:
        return getattr(self.argument(name), "value", None) is True


# Calls that start another process.
_STARTS = tables.words("Popen Process spawn run check_call check_output call system execv execvp execve execvpe")
_STARTERS = ("subprocess", "multiprocessing", "torch.multiprocessing", "os.")


def _read_processes(file: File) -> bool:
    """Record child processes, and functions in forked workers. Return whether datasets may run in forked workers."""
    loaders: list[ast.Call] = []
    default = "fork"
    for call in file.calls:
        called, dotted = called_name(call), file.dotted(call.func)
        if called in ("set_start_method", "get_context"):
            is_fork = "fork" in {getattr(argument, "value", "") for argument in call.args}
            file.spawns = file.spawns or not is_fork
            default = default if is_fork or called == "get_context" else ""
        file.starts_children |= called in _STARTS and dotted.startswith(_STARTERS)
        file.has_default_device |= called in ("set_default_device", "set_default_tensor_type")
        if dotted in tables.LOADERS or called == "DataLoader":
            loaders.append(call)
    forked = [call for call in loaders if _has_workers(file, call, default)]
    for keyword in (keyword for call in forked for keyword in call.keywords):
        if keyword.arg in ("collate_fn", "worker_init_fn"):
            is_lambda = isinstance(keyword.value, ast.Lambda)
            file.in_workers.add(id(keyword.value) if is_lambda else getattr(keyword.value, "id", ""))
    # lint does not know which loader uses which dataset. If only some loaders have workers, it assumes none.
    return len(forked) == len(loaders)  # without a loader here, a loader in another file may have workers


def _has_workers(file: File, call: ast.Call, default: str) -> bool:
    given = {keyword.arg: keyword.value for keyword in call.keywords}
    context = given.get("multiprocessing_context")
    if None in given or (default if context is None else getattr(context, "value", "")) not in ("fork", None):
        return False
    # `num_workers` is the sixth argument, after dataset, batch_size, shuffle, sampler and batch_sampler.
    workers = given.get("num_workers") or (call.args[5] if len(call.args) > 5 else None)
    is_none = isinstance(workers, ast.Constant) and not workers.value
    return workers is not None and not is_none and getattr(workers, "id", "") not in file.zeros


class Scope:
    """A function, or a file's module level, during its analysis."""

    def __init__(self, file: File, owner: Class | None, body: ast.AST, name: str, outer: Mapping[str, Value]) -> None:
        self.file, self.owner, self.body, self.name, self.outer = file, owner, body, name, outer
        self.flow = Flow()
        self.local_names: set[str] = set()
        self.parameters: set[str] = set()
        self.evidence: set[str] = set()  # names whose use shows that they are tensors
        # Flags: the parameters are on the module's device; the code runs in a forked worker; Lightning runs the step.
        self.in_forward = self.in_worker = self.has_framework_step = False
        # The numbers of enclosing `with` blocks or decorators without a graph, and with another default device.
        self.no_graph = self.on_device = 0
        self.keeps_gradients = False  # whether the function calls `retain_grad`
        self.loops: list[Loop] = []
        self.quiet = 0  # above 0 during a trial pass, which reports nothing
        self.receivers: dict[int, Value] = {}  # the tensor or module that a move is called on, by the call's id
        self.sets: list[Node] = []  # the nodes that set CUDA_VISIBLE_DEVICES before CUDA starts
        self.rooted: set[str] = set()  # names with known attributes
        self.functions: dict[str, Function] = {}
        self.nested: list[Function] = []
        self.classes: list[ast.ClassDef] = []
        self.returned: list[Value] = []
        self.returns = UNKNOWN
        self._parents: dict[int, ast.AST] = {}

    @property
    def attributes(self) -> dict[str, Value]:
        return (self.owner.attributes if self.owner is not None else None) or {}

    def visible(self) -> dict[str, Value]:
        return {**self.outer, **self.flow.names}

    def effect_of(self, function: Function, owner: Class | None = None, args: Sequence[Value] = ()) -> Scope:
        raise NotImplementedError

    def report(self, rule: str, node: Node, **words: object) -> None:
        """Report a mistake once for each node. `words` fill in the rule's message and fix. Line and column count from
        1, in characters. `width` is the number of characters in the mistake's first line."""
        if self.quiet:
            return
        row, line = options.BY_ID[rule], self.file.lines[node.lineno - 1].rstrip()
        last = node.end_lineno or node.lineno
        # ast counts bytes.
        begin, end = (
            len(line.encode()[:at].decode("utf-8", "replace"))
            for at in (node.col_offset, node.end_col_offset if last == node.lineno else None)
        )
        column = begin + 1
        evidence = {"line": node.lineno, "column": column, "end_line": last, "function": self.name or None}
        evidence |= {"source": line, "width": max(end - begin, 1)}
        message, fix = row.message.format_map(words), row.fix.format_map(words)
        ignored = [ids for at, ids in self.file.ignored.items() if node.lineno <= at <= last]
        is_ignored = any(not ids or rule in ids or rule.removeprefix("lint.") in ids for ids in ignored)
        mistake = Finding(rule, row.verdict, row.title, message, evidence, fix)
        self.file.mistakes.setdefault((node.lineno, column, rule), (mistake, is_ignored))

    def key(self, node: ast.expr) -> str:
        """Return the key in `Flow.names` of a name or of a name's attribute; empty for other nodes."""
        match node:
            case ast.Name(name):
                return name
            case ast.Attribute(ast.Name(name), attribute):
                return f"{name}.{attribute}"
        return ""

    def dotted(self, node: ast.expr) -> str:
        return self.file.dotted(node, self.local_names)

    def parent(self, node: ast.AST) -> ast.AST | None:
        if not self._parents:
            self._parents = {id(child): above for above in walk(self.body) for child in ast.iter_child_nodes(above)}
        return self._parents.get(id(node))
