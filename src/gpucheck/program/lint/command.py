"""Run the command `lint`: read the files, analyse each statement by statement, and report the findings."""

from __future__ import annotations

import ast
import contextlib
import gc
import os
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from gpucheck.errors import UsageError
from gpucheck.program.lint import facts, processes, tables, tensors
from gpucheck.program.lint.expressions import Expressions
from gpucheck.program.lint.facts import NUMBER, UNKNOWN, Class, Function, Loop, Scope, Unreadable, Value, walk
from gpucheck.program.lint.options import LintOptions
from gpucheck.report.events import Answered, Emit, Judged, Progress
from gpucheck.report.finding import Finding, Verdict
from gpucheck.report.results.short import LintResult, LintRule

# Folders that do not contain the project's source.
_SKIPPED = frozenset(
    {"node_modules", "__pycache__", "build", "dist", "site-packages", "venv", "env", "__pypackages__", "_build"}
)
_DEPTH = 5000  # frames of Python; a level of nesting takes about three
_STEP = 500  # files between two steps of the progress, about five seconds of work


def command(options: LintOptions, emit: Emit) -> None:
    """Judge every file below the paths. Raises UsageError for a path that does not exist."""
    rules = options.rules
    paths = options.paths or (".",)
    counts: Counter[str] = Counter()
    ids = frozenset(rule.id for rule in rules)
    files: dict[str, str] = {}
    for path in (path for argument in paths for path in _below(argument)):
        files.setdefault(os.path.abspath(path) if path != "-" else path, path)
    with deep_recursion():
        for index, path in enumerate(files.values()):
            if index and index % _STEP == 0:
                emit(Progress("reading", index, len(files)))
            _judge_file(path, ids, counts, emit)
    read = counts["files"]
    if not (read or counts["unread"]):
        title = f"no Python files in {', '.join(paths)}"
        emit(Judged(Finding("lint.files", "skip", title, "lint searches folders for *.py")))
    elif not (counts["found"] or counts["unread"]):
        number = f"{len(rules)} rule{'s' * (len(rules) != 1)}"
        title = f"no mistake that lint can see ({number}) in {read} file{'s' * (read != 1)}"
        emit(Judged(Finding("lint.files", "pass", title, "", {"files": read})))
    rows = tuple(LintRule(rule.id, rule.verdict, rule.title) for rule in rules)
    emit(Answered("lint", LintResult(counts["files"], counts["ignored"], counts["unread"], rows)))


def _judge_file(path: str, ids: frozenset[str], counts: Counter[str], emit: Emit) -> None:
    # JSON and terminals accept only text, so undecodable bytes in the name are replaced.
    name = "<stdin>" if path == "-" else os.fsencode(path).decode("utf-8", "replace")
    is_notebook = path.endswith(".ipynb")
    counts["files"] += not is_notebook
    try:
        judged = mistakes(_bytes(path))
    except Unreadable as error:
        counts["unread"] += 1
        verdict: Verdict = "skip" if is_notebook else "inconclusive"
        fix = "jupyter nbconvert --to script, then lint the script" if is_notebook else None
        evidence = {"file": name, "line": error.line, "column": error.column}
        emit(Judged(Finding("lint.unreadable", verdict, "the file was not judged", error.why, evidence, fix)))
        return
    for finding, is_ignored in judged:
        if finding.id in ids:
            counts["ignored" if is_ignored else "found"] += 1
            if not is_ignored:
                emit(Judged(replace(finding, evidence={"file": name, **finding.evidence})))


def _bytes(path: str) -> bytes:
    """Return the bytes of a file or of standard input, at most `MOST_BYTES` and one more. Raises Unreadable."""
    if path.endswith(".ipynb"):
        raise Unreadable("notebooks are not read")
    try:
        if path == "-":
            if sys.stdin is None:
                raise Unreadable("standard input is closed")
            return sys.stdin.buffer.read(facts.MOST_BYTES + 1)
        with open(path, "rb") as file:
            return file.read(facts.MOST_BYTES + 1)
    except OSError as error:
        raise Unreadable(f"it cannot be read: {os.strerror(error.errno or 0)}") from error


def _below(path: str) -> Iterator[str]:
    """Yield the file itself, or a folder's Python files. Raises UsageError for a path that does not exist."""
    if path == "-" or os.path.isfile(path):
        yield path
        return
    if not os.path.isdir(path):
        problem = "is neither a file nor a folder" if os.path.exists(path) else "does not exist"
        raise UsageError(f"{path!r} {problem}", "", "name a file or a folder")
    unread: list[OSError] = []
    for folder, folders, files in os.walk(path, onerror=unread.append):
        visible = [name for name in folders if not (name.startswith(".") or name in _SKIPPED)]
        # A folder with a pyvenv.cfg is a virtual environment.
        folders[:] = sorted(name for name in visible if not os.path.exists(os.path.join(folder, name, "pyvenv.cfg")))
        source = [name for name in sorted(files) if name.endswith((".py", ".pyw"))]
        yield from (os.path.normpath(os.path.join(folder, name)) for name in source)
    yield from (os.path.normpath(error.filename) for error in unread)  # an unreadable folder must not count as passed


@contextlib.contextmanager
def deep_recursion() -> Iterator[None]:
    """Allow trees as deep as a thousand `elif`. Stop the garbage collector, which would take a third of the time."""
    limit, collects = sys.getrecursionlimit(), gc.isenabled()
    sys.setrecursionlimit(max(limit, _DEPTH))
    gc.disable()
    try:
        yield
    finally:
        sys.setrecursionlimit(limit)
        if collects:
            gc.enable()


# A file without any of these words uses no device.
_WORDS = (b"torch", b"lightning", b"CUDA_VISIBLE_DEVICES", b"transformers", b"backward(")
# Words in the names of forward's parameters that are counts. Then names that do not show the parameter's type.
_COUNTS = {"n", "num", "len", "size", "step", "idx", "index", "count", "epoch", "max", "min", "dim", "seed", "i", "j"}
_ANYTHING = ("batch", "data", "inputs", "batched_inputs", "features", "samples", "config")
_TENSORS = ("Tensor", "torch.Tensor", "LongTensor", "FloatTensor", "torch.LongTensor", "torch.FloatTensor")


class ScopeAnalysis(Expressions):
    """Analyse one function of a file, or its module level, once."""

    def statements(self, body: Sequence[ast.stmt]) -> None:
        for statement in body:
            if self.flow.dead:
                return
            getattr(self, f"visit_{type(statement).__name__}", self.below)(statement)

    def visit_Import(self, node: ast.Import | ast.ImportFrom) -> None:
        for alias in node.names:
            self.flow.names.pop(alias.asname or alias.name.partition(".")[0], None)

    visit_ImportFrom = visit_Import

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self.classes.append(node)
        self.flow.names.pop(node.name, None)

    def visit_FunctionDef(self, node: Function) -> None:
        self.flow.names.pop(node.name, None)
        self.functions[node.name] = node
        self.nested.append(node)
        self.file.parents[id(node)] = self

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Expr(self, node: ast.Expr) -> None:
        self.value(node.value)
        tensors.discarded(self, node.value)
        self.no_graph += self._may_stop_graphs(node.value)

    def _may_stop_graphs(self, node: ast.expr) -> bool:
        """Return whether the node is `torch.set_grad_enabled(…)` with another argument than True."""
        if not isinstance(node, ast.Call) or not self.dotted(node.func).endswith(".set_grad_enabled"):
            return False
        return getattr(node.args[0] if node.args else None, "value", None) is not True

    def visit_Assign(self, node: ast.Assign) -> None:
        known = self.value(node.value)
        for target in node.targets:
            self._store(node, target, known, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            known = self.value(node.value)
            if not known.kind and any(name in _TENSORS for name in self._annotations(node.annotation)):
                known = Value("tensor")
            self._store(node, node.target, known, node.value)

    def _store(self, node: ast.stmt, target: ast.expr, known: Value, value: ast.expr) -> None:
        """Assign a value to a target. The targets of a tuple get the value's parts."""
        if isinstance(target, (ast.Tuple, ast.List)):
            parts = value.elts if isinstance(value, (ast.Tuple, ast.List)) else []
            parts = parts if len(parts) == len(target.elts) else [value] * len(target.elts)
            for part, inner, expression in zip(target.elts, self.each(known, len(parts)), parts, strict=True):
                self._store(node, part, inner, expression)
            return
        if isinstance(target, ast.Subscript):
            if self.dotted(target.value) == "os.environ" and processes.names_variable(target.slice):
                processes.visible_devices(self, node)
            if (key := self.key(target.value)) and self.value(target.value).kind == "items":
                tensors.kept_module(self, node, key, known)
        if isinstance(value, ast.BinOp) and isinstance(value.op, ast.Add):
            self._summed(node, target, value)
        if (attribute := facts.self_attribute(target)) and self.owner is not None and self.owner.is_module:
            tensors.moved_leaf(self, known)
            if known.kind == "module":
                known = replace(known, attribute=attribute)
            if known.kind == "items":
                tensors.kept_module(self, node, f"self.{attribute}", known.item)
            if known.is_tensor:
                known = replace(known, made=value)
        self.bind(target, known)

    def _summed(self, node: ast.stmt, target: ast.expr, value: ast.BinOp) -> None:
        """Check a sum such as `total = total + loss`. Mistakes inside the operands are already reported."""
        text = ast.unparse(target)
        for mine, added in ((value.left, value.right), (value.right, value.left)):
            if text in tensors.texts(mine) and not any(isinstance(inner, ast.Call) for inner in walk(mine)):
                self.quiet += 1
                known, before = self.value(added), self.value(mine)
                self.quiet -= 1
                tensors.summed_loss(self, node, target, added, known, before)
                return

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        before = self.value(node.target) if isinstance(node.target, (ast.Name, ast.Attribute)) else UNKNOWN
        added = self.value(node.value)
        if isinstance(node.op, ast.Add):
            tensors.summed_loss(self, node, node.target, node.value, added, before)
        if key := self.key(node.target):
            result = self.combined(node.value, [before, added])
            # x -= y changes a tensor in place, so the name keeps its object.
            self.flow.names[key] = replace(result, moved=before.moved, leaf=before.leaf) if before.is_tensor else result

    def visit_Delete(self, node: ast.Delete) -> None:
        for target in node.targets:
            self.flow.names.pop(self.key(target), None)

    def visit_Return(self, node: ast.Return) -> None:
        self.returned.append(self.value(node.value))
        self.flow.dead = True

    def visit_Raise(self, node: ast.Raise | ast.Break | ast.Continue) -> None:
        self.below(node)
        self.flow.dead = True

    visit_Break = visit_Continue = visit_Raise

    def visit_Assert(self, node: ast.Assert) -> None:
        self.test(node.test)

    def visit_If(self, node: ast.If) -> None:
        self.test(node.test)
        other = self.flow.copy()
        self.statements(node.body)
        taken, self.flow = self.flow, other
        self.statements(node.orelse)
        self.flow = facts.join_flows(taken, self.flow)

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self._loop(node, node.target, self.value(node.iter))

    visit_AsyncFor = visit_For

    def visit_While(self, node: ast.While) -> None:
        self._loop(node, None, self.test(node.test))

    def _loop(self, node: Loop, target: ast.expr | None, over: Value) -> None:
        """Analyse a loop twice: the first pass finds the values at its end, and the second reports mistakes."""
        self.loops.append(node)
        before = self.flow.copy()
        for quiet in (1, 0) if not self.quiet else (1,):
            self.quiet += quiet
            if target is not None:
                self.bind(target, self.element(over))
            self.statements(node.body)
            self.quiet -= quiet
            self.flow.dead = False
            self.flow = facts.join_flows(before, self.flow)
            before = self.flow.copy()
        self.loops.pop()
        self.statements(node.orelse)

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        before = self.no_graph, self.on_device
        for item in node.items:
            context = item.context_expr
            known = self.value(context)
            dotted = self.dotted(context.func if isinstance(context, ast.Call) else context)
            # A context with a plain name may stop graphs.
            self.no_graph += (
                dotted in tables.NO_GRAPH or isinstance(context, ast.Name) or self._may_stop_graphs(context)
            )
            self.on_device += known.kind == "device" or dotted == "torch.device"
            if item.optional_vars is not None:
                self.bind(item.optional_vars, UNKNOWN)
        self.statements(node.body)
        self.no_graph, self.on_device = before

    visit_AsyncWith = visit_With

    def visit_Try(self, node: ast.Try) -> None:
        before = self.flow.copy()
        self.statements(node.body)
        ends = self.flow
        failed = facts.join_flows(before, ends) if not ends.dead else before
        if not ends.dead:
            self.statements(node.orelse)
            ends = self.flow
        for handler in node.handlers:
            self.flow = failed.copy()
            self.flow.names |= dict.fromkeys(facts.captured(handler), UNKNOWN)
            self.statements(handler.body)
            ends = facts.join_flows(ends, self.flow)
        has_left, ends.dead = ends.dead, False
        self.flow = ends
        self.statements(node.finalbody)
        self.flow.dead = self.flow.dead or has_left

    visit_TryStar = visit_Try

    def visit_Match(self, node: ast.Match) -> None:
        self.value(node.subject)
        before, ends = self.flow.copy(), self.flow.copy()
        for case in node.cases:
            self.flow = before.copy()
            self.flow.names |= {name: UNKNOWN for part in walk(case.pattern) for name in facts.captured(part)}
            self.value(case.guard)
            self.statements(case.body)
            ends = facts.join_flows(ends, self.flow)
        self.flow = ends

    def effect_of(self, function: Function, owner: Class | None = None, args: Sequence[Value] = ()) -> Scope:
        """Analyse a function at its first call, and return the scope. A recursive call has no known effect."""
        if (known := self.file.effects.get(id(function))) is not None:
            return known
        self.file.effects[id(function)] = ScopeAnalysis(self.file, None, function, "", {})
        parent = self.file.parents.get(id(function))
        outer = parent.visible() if parent is not None else self.outer
        owner = owner or (parent.owner if parent is not None else None)
        name = f"{owner.node.name}.{function.name}" if owner is not None and parent is None else function.name
        run = ScopeAnalysis(self.file, owner, function, name, outer)
        run.begin(function, parent)
        run.no_graph += self.no_graph
        if run.in_forward and parent is None:
            positional = [*function.args.posonlyargs, *function.args.args]
            positional = positional[facts.method_kind(function) != "static" :]
            for argument, passed in zip(positional, args, strict=False):
                if passed.is_tensor and passed.place == "input" and argument.annotation is None:
                    run.flow.names.setdefault(argument.arg, Value("tensor", "input"))
        run.statements(function.body)
        run.returns = facts.all_of(run.returned) or UNKNOWN
        self.file.effects[id(function)] = run
        run.end()
        return run

    def end(self) -> None:
        """Analyse the functions and classes that the scope defines, with the values at the scope's end."""
        for function in self.nested:
            self.effect_of(function)
        for node in self.classes:
            self.judge_class(node)

    def begin(self, function: Function, parent: Scope | None) -> None:
        owner = self.owner
        self.local_names, _ = facts.bound_in(function)
        uses = (node for node in walk(function) if isinstance(node, ast.Attribute) and node.attr in tables.TENSOR_ONLY)
        self.evidence = {node.value.id for node in uses if isinstance(node.value, ast.Name)}
        self.in_worker = self.name in self.file.in_workers
        decorators = {
            self.dotted(node.func if isinstance(node, ast.Call) else node) for node in function.decorator_list
        }
        self.no_graph = int(bool(decorators & tables.NO_GRAPH))
        self.keeps_gradients = any(getattr(node, "attr", "") == "retain_grad" for node in walk(function))
        if parent is not None:
            self.in_forward, self.in_worker = parent.in_forward, parent.in_worker or self.in_worker
            self.no_graph += parent.no_graph
        elif owner is not None:
            self.in_forward = function.name in owner.forwards
            self.has_framework_step = owner.is_lightning
            self.in_worker = self.in_worker or function.name in owner.in_workers
        self._parameters(function, is_method=parent is None and owner is not None)

    def _parameters(self, function: Function, *, is_method: bool) -> None:
        arguments = function.args
        positional = [*arguments.posonlyargs, *arguments.args]
        padding: list[ast.expr | None] = [None] * (len(positional) - len(arguments.defaults))
        pairs = [
            *zip(positional, [*padding, *arguments.defaults], strict=True),
            *zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True),
        ]
        kind = facts.method_kind(function)
        if is_method and positional and kind != "static":
            self.flow.names[positional[0].arg] = UNKNOWN if kind == "class" else Value("self")
            del pairs[0]
        for at, (argument, default) in enumerate(pairs):
            self.parameters.add(argument.arg)
            known = self._parameter(argument, default)
            if self.in_forward and is_method and known == UNKNOWN and argument.annotation is None:
                known = _input(function, argument.arg, default, is_first=at == 0)
            if known != UNKNOWN:
                self.flow.names[argument.arg] = known
                if known == NUMBER:
                    self.evidence.discard(argument.arg)

    def _parameter(self, argument: ast.arg, default: ast.expr | None) -> Value:
        for name in self._annotations(argument.annotation):
            if name in _TENSORS:
                return Value("tensor", "input" if self.in_forward else "")
            made = self.file.classes.get(name)
            if facts.is_module_class(name) or (made is not None and made.is_module):
                return Value("module", stateful=True, name=name if made is not None else "")
            if name in ("int", "float", "bool"):
                return NUMBER
        return NUMBER if isinstance(default, ast.Constant) and self.value(default) == NUMBER else UNKNOWN

    def _annotations(self, node: ast.expr | None) -> Iterator[str]:
        """Yield the name of an annotated type: `Tensor` for `Optional[Tensor]`."""
        match node:
            case ast.Constant(str() as text):
                yield text.strip("'\" ").removesuffix(" | None")
            case ast.BinOp(left, ast.BitOr(), ast.Constant(None)):
                yield from self._annotations(left)
            case ast.Subscript(ast.Name("Optional") | ast.Attribute(attr="Optional"), inner):
                yield from self._annotations(inner)
            case ast.Name() | ast.Attribute():
                yield self.file.dotted(node) or getattr(node, "id", "")

    def judge_class(self, node: ast.ClassDef) -> None:
        owner = self.file.classes[node.name]
        if owner.node is not node:  # another class with this name
            return
        inherited: dict[str, Value] = {}
        for member in reversed(list(self.file.family(owner))):
            inherited |= self._gathered(member)
        owner.attributes = inherited
        outside = ScopeAnalysis(self.file, None, node, "", self.visible())
        # Forward is first, so that the methods that it calls are analysed with its arguments.
        for function in sorted(owner.methods.values(), key=lambda function: function.name not in tables.FORWARDS):
            outside.effect_of(function, owner)

    def _gathered(self, owner: Class) -> dict[str, Value]:
        """Return the attributes of self after a class's set-up methods."""
        if owner.attributes is not None:
            return owner.attributes
        owner.attributes = {}
        called = self.file.reachable(owner, _SET_UP & set(owner.methods)) - tables.FORWARDS
        setting_up = sorted(called & set(owner.methods), key=lambda method: (method != "__init__", method))
        left: dict[str, Value] = {}
        for method in setting_up:
            run = ScopeAnalysis(self.file, owner, owner.methods[method], method, self.visible())
            run.quiet = 1
            run.begin(owner.methods[method], None)
            run.flow.names |= left
            run.statements(owner.methods[method].body)
            left |= {key: value for key, value in run.flow.names.items() if key.startswith("self.")}
        others = (node for key, function in owner.methods.items() if key not in setting_up for node in walk(function))
        stores = (node for node in others if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store))
        elsewhere = set(map(facts.self_attribute, stores))

        def in_list(value: Value, key: str) -> Value:
            # An element of a list or dict in self does not move with the module.
            return replace(value, attribute=f"{key}[…]") if value.is_tensor else value

        for key, value in ((key.removeprefix("self."), value) for key, value in left.items()):
            if key not in elsewhere:
                parts = tuple(in_list(part, key) for part in value.parts)
                owner.attributes[key] = replace(
                    value, attribute=key, parts=parts, item=value.item and in_list(value.item, key)
                )
        return owner.attributes


_SET_UP = frozenset({"__init__", "setup", "build", "configure_model", "reset_parameters"})


def _input(function: Function, name: str, default: ast.expr | None, *, is_first: bool) -> Value:
    """Return the value of a parameter of forward that has no annotation."""
    if function.name in tables.FRAMEWORK_STEPS:
        return Value("batch", "input") if is_first else UNKNOWN
    words = name.split("_")
    is_count = not {words[0], words[-1]}.isdisjoint(_COUNTS)
    is_plain = is_first and function.name == "forward" and default is None and not is_count
    if name in _ANYTHING:
        return UNKNOWN
    return Value("tensor", "input") if name in tables.INPUT_NAMES or is_plain else UNKNOWN


def mistakes(data: bytes) -> list[tuple[Finding, bool]]:
    """Return the mistakes in a file, by line, each with whether a comment ignores the mistake. Raises Unreadable."""
    try:
        file = facts.parse(data)
        if not any(word in data for word in _WORDS):
            return []
        facts.read_names(file)
        whole = ScopeAnalysis(file, None, file.tree, "", {})
        whole.statements(file.tree.body)
        whole.end()
        file.effects.clear()
        # Without these reference cycles, Python frees all objects and needs no garbage collector.
        file.parents.clear()
    except (RecursionError, MemoryError) as error:
        raise Unreadable("its expressions are nested too deeply") from error
    return [file.mistakes[place] for place in sorted(file.mistakes)]
