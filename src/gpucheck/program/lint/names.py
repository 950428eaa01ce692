"""From a file's bytes to its tree, with the comments that tell `lint` to be silent; names that torch's make, move and
start, as tables; and what a file's imports, classes and functions are called."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


def of_torch(text: str, where: str = "torch") -> frozenset[str]:
    """The words of a text as names of a module, in dots."""
    return frozenset(f"{where}.{name}" for name in text.split())


# Factories that make a tensor on the default device unless `device=` says otherwise.
FACTORIES = of_torch(
    "arange bartlett_window blackman_window empty empty_strided eye from_numpy full hamming_window hann_window "
    "kaiser_window linspace logspace normal ones rand randint randn randperm range tensor tril_indices "
    "triu_indices zeros as_tensor asarray Tensor FloatTensor LongTensor IntTensor DoubleTensor BoolTensor "
    "ByteTensor HalfTensor BFloat16Tensor ShortTensor CharTensor nn.Transformer.generate_square_subsequent_mask"
)
# The data says how many dimensions there are: known only for lists that are written out.
BY_DATA = of_torch(
    "randint normal tensor as_tensor asarray from_numpy Tensor FloatTensor LongTensor IntTensor DoubleTensor "
    "BoolTensor ByteTensor HalfTensor BFloat16Tensor ShortTensor CharTensor"
)
CUDA_TYPES = of_torch(
    "FloatTensor LongTensor IntTensor DoubleTensor BoolTensor ByteTensor HalfTensor BFloat16Tensor ShortTensor "
    "CharTensor",
    "torch.cuda",
)
LIKE = of_torch("zeros_like ones_like empty_like full_like rand_like randn_like randint_like")
# Functions of torch that read only the shape or the type of an argument, or whose arguments may lie apart.
NOT_COMBINING = (
    of_torch(
        "is_tensor numel result_type save load is_floating_point is_complex tensor_split manual_seed no_grad "
        "enable_grad inference_mode autocast device compile jit set_grad_enabled is_grad_enabled get_default_dtype "
        "set_default_dtype broadcast_shapes promote_types can_cast Size finfo iinfo Generator vmap func split "
        "scalar_tensor cond while_loop get_device get_autocast_dtype is_autocast_enabled index_put index_put_ "
        "typename _assert _check _check_is_size set_printoptions from_dlpack to_dlpack equal"
    )
    # The weights of the last may be empty.
    | of_torch("ctc_loss interpolate pad multi_head_attention_forward", "torch.nn.functional")
)
# What starts CUDA: the driver reads CUDA_VISIBLE_DEVICES there. device_count() asks NVML and manual_seed() waits.
STARTS_CUDA = of_torch(
    "is_available init current_device set_device get_device_name get_device_properties get_device_capability "
    "mem_get_info synchronize current_stream Stream is_bf16_supported reset_peak_memory_stats",
    "torch.cuda",
)
MODULE_BASES = words(
    "torch.nn.Module torch.jit.ScriptModule torch.fx.GraphModule lightning.LightningModule "
    "lightning.pytorch.LightningModule lightning.pytorch.core.LightningModule pytorch_lightning.LightningModule "
    "pytorch_lightning.core.LightningModule pytorch_lightning.core.lightning.LightningModule "
    "transformers.PreTrainedModel transformers.modeling_utils.PreTrainedModel"
)
_DATASETS = "Dataset IterableDataset TensorDataset ConcatDataset Subset MapDataPipe IterDataPipe"
DATASETS = of_torch(_DATASETS, "torch.utils.data") | of_torch(_DATASETS, "torch.utils.data.dataset")
LOADERS = words("torch.utils.data.DataLoader torch.utils.data.dataloader.DataLoader")
# Classes of torch.nn that hold no tensor: where they lie changes nothing.
_EMPTY_PARTS = (
    "Dropout", "Pool", "Pad", "Flatten", "Identity", "Softm", "LogSoftmax", "Softplus", "Softsign", "Softshrink",
    "Upsampl", "PixelShuffle", "PixelUnshuffle", "Fold", "CosineSimilarity", "PairwiseDistance", "ReLU", "GELU", "ELU",
    "SiLU", "Mish", "Tanh", "Sigmoid", "Hardshrink", "GLU", "Threshold", "ChannelShuffle", "ZeroPad", "Loss",
)  # fmt: skip
_WITH_STATE = ("PReLU", "AdaptiveLogSoftmaxWithLoss")
CONTAINERS = of_torch("Sequential ModuleList ModuleDict", "torch.nn")
# Methods of a module that return it.
MODULE_SELF = words(
    "to cuda cpu eval train half float double bfloat16 requires_grad_ apply xpu share_memory type to_empty"
)
MOVES = words("to cuda cpu xpu npu hpu mps ipu")
# Names that only a tensor has (an array has some too, and no `.to`).
TENSOR_ONLY = words(
    "unsqueeze view permute detach contiguous masked_fill masked_fill_ is_cuda new_zeros new_ones new_tensor new_full "
    "new_empty grad_fn expand expand_as view_as scatter scatter_ index_select shape size ndim is_leaf "
    "is_contiguous softmax log_softmax relu matmul bmm unbind chunk flatten argmax unfold numel squeeze transpose"
)
# What a method of a tensor returns that is no tensor.
NO_TENSOR = words(
    "item tolist numpy size dim numel data_ptr stride is_contiguous is_pinned get_device element_size nelement "
    "backward register_hook storage untyped_storage ndimension is_floating_point is_complex has_names "
    "equal allclose storage_offset is_shared is_set_to record_stream"
)
# Methods whose arguments may lie on another device, or that read only their shape.
METHODS_APART = words(
    "to copy_ type_as expand_as view_as reshape_as sum_to_size index_put index_put_ is_same_size new_tensor "
    "tensor_split split set_ __setitem__ view reshape expand size repeat type record_stream resize_as_ backward"
)
REDUCTIONS = words("sum mean max min prod std var norm any all argmax argmin median amax amin logsumexp nansum nanmean")
SAME_SHAPE = words(
    "float double half bfloat16 long int bool short byte char type clone detach contiguous abs exp log sqrt sin cos "
    "tanh sigmoid relu neg clamp clamp_min clamp_max round floor ceil flip cumsum cumprod softmax log_softmax tril "
    "triu fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ requires_grad_ to cuda cpu type_as pin_memory "
    "masked_fill masked_fill_ add sub mul div pow eq ne lt gt le ge logical_not add_ sub_ mul_ div_ clamp_ copy_ rsqrt "
    "reciprocal log1p expm1 square sign transpose permute t T mT roll sort unsqueeze_ normalize gelu silu elu selu "
    "leaky_relu softplus logsigmoid hardtanh dropout erf erfinv atan tan sinh cosh trunc frac nan_to_num renorm "
    "zeros_like ones_like empty_like full_like rand_like randn_like randint_like"
)
# What has no gradient, whatever it is made of. So have comparisons.
NO_GRADIENT = words(
    "detach detach_ argmax argmin argsort any all eq ne lt gt le ge long int bool byte short char isnan isinf isfinite "
    "isclose isin logical_and logical_or logical_xor logical_not one_hot count_nonzero nonzero bincount bucketize"
)
# What looks at a tensor without its data: views of it, and its shape.
NO_READ = words(
    "size dim data_ptr numel nelement record_stream is_pinned copy_ element_size squeeze unsqueeze view reshape "
    "permute transpose expand expand_as view_as flatten detach t swapaxes movedim narrow unflatten stride "
    "storage_offset requires_grad_ is_contiguous get_device unbind chunk split"
)
# What they return has at least one dimension.
WITH_DIMENSIONS = words(
    "view reshape expand repeat flatten expand_as view_as reshape_as unfold repeat_interleave ravel tile unsqueeze "
    "cat concat stack hstack vstack outer where"
)
# Functions that make a tensor whatever they are given.
MAKES_TENSOR = words(
    "stack cat concat hstack vstack matmul mm bmm einsum exp log sqrt sin cos sigmoid tanh relu softmax where"
)
# What people call the function that makes a loss.
LOSS_NAMES = words("criterion loss_fn loss_func loss_function criteria")
# What a tokenizer or a graph library gives moves in place, and is called so.
IN_PLACE_NAMES = words("batch encoding encodings encoded enc graph graphs g bg batch_encoding batched_graph")
WAITS = words("synchronize wait wait_event wait_stream barrier join result query")
# The host waits for what these return, or for its shape.
NEEDS_VALUES = words("item tolist numpy equal allclose nonzero argwhere masked_select unique unique_consecutive")
NO_GRAPH = words("torch.no_grad torch.inference_mode torch.autograd.no_grad torch.autograd.inference_mode")
# How a forward of a module, or of a Lightning module, is called.
FORWARDS = words("forward training_step validation_step test_step predict_step forward_features")
# Frameworks run these without a graph, or run the backward themselves.
FRAMEWORK_STEPS = FORWARDS - {"forward", "forward_features"}
# Parameters of forward that are tensors wherever these names are used.
INPUT_NAMES = words(
    "x y z h u v q k w xs inp input inputs_embeds image images img imgs hidden hidden_states features feats feat "
    "tokens ids input_ids labels label target targets mask attention_mask src tgt query key value queries keys values "
    "logits pixel_values embeddings embeds audio waveform states memory out output residual noise latents timesteps"
)


def is_module_class(name: str) -> bool:
    """Return whether a dotted name is a class of torch.nn whose objects are modules."""
    last = name.rpartition(".")[2]
    if not name.startswith("torch.nn.") or not last[:1].isupper() or ".functional." in name or ".utils." in name:
        return False
    return last not in ("Parameter", "ParameterList", "ParameterDict", "Buffer", "UninitializedParameter")


def holds_state(name: str) -> bool:
    """Return whether a module of this class of torch.nn holds parameters or buffers that must move."""
    last = name.rpartition(".")[2]
    return last in _WITH_STATE or not any(part in last for part in _EMPTY_PARTS)


Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(slots=True)
class Class:
    """A class: its methods by name, the dotted names of its bases, and whether its objects are modules or datasets."""

    node: ast.ClassDef
    methods: dict[str, Function]
    bases: tuple[str, ...] = ()
    is_module: bool = False
    is_dataset: bool = False
    is_lightning: bool = False
    registers_by_hand: bool = False
    # Attributes that some call takes: `nn.Sequential(*self.layers)`.
    handed_on: set[str] = field(default_factory=set)


@dataclass(slots=True)
class File:
    """The names of a file. `imports` maps a name to what it was imported as, in dots."""

    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    # Names that a function sets for others too: a read in one function says nothing of another.
    shared: set[str] = field(default_factory=set)

    def dotted(self, node: ast.expr) -> str:
        """`nn.Linear` as `torch.nn.Linear`; empty for what is not an imported name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        root = self.imports.get(node.id) if isinstance(node, ast.Name) else None
        return ".".join([root, *reversed(parts)]) if root else ""


def read(tree: ast.Module) -> File:
    """The names of a file."""
    file = File(tree)
    for node in walk(tree):
        match node:
            case ast.Import(aliases):
                for alias in aliases:
                    root = alias.name if alias.asname else alias.name.partition(".")[0]
                    file.imports[alias.asname or root] = root
            case ast.ImportFrom(module, aliases, level):
                where = "." * level + (module or "")
                for alias in aliases:
                    file.imports[alias.asname or alias.name] = _canonical(f"{where}.{alias.name}")
            case ast.Call():
                file.calls.append(node)
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                file.shared |= bound_in(node)[1]
            case ast.ClassDef():
                file.classes[node.name] = _class(node)
    for statement in tree.body:
        if isinstance(statement, Function):
            file.functions[statement.name] = statement
        elif isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            # Linear = nn.Linear
            dotted = file.dotted(statement.value)
            if dotted:
                file.imports.setdefault(statement.targets[0].id, dotted)
    for own in file.classes.values():
        own.bases = tuple(file.dotted(base) or getattr(base, "id", "") for base in own.node.bases)
    for own in file.classes.values():
        bases = [name for member in family(file, own) for name in member.bases]
        is_known = any(
            name in MODULE_BASES or is_module_class(name) or name.endswith(".LightningModule") for name in bases
        )
        own.is_module = is_known or _looks_like_a_module(file, own)
        own.is_lightning = any("Lightning" in name for name in bases)
        own.is_dataset = any(name in DATASETS or name.startswith("torchvision.datasets.") for name in bases)
    return file


def bound_in(function: Function) -> tuple[set[str], set[str]]:
    """The names that a function binds: its own, and those of the file or of a function around it."""
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
    """The names that an error's handler or a pattern binds."""
    if not isinstance(node, (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)):
        return set()
    return {getattr(node, "name", None) or getattr(node, "rest", None) or ""} - {""}


def _canonical(name: str) -> str:
    """The name by which the tables know it: `from torch.nn.modules.linear import Linear` is torch.nn.Linear."""
    is_inner = name.startswith(("torch.nn.modules.", "torch.nn.parameter."))
    return f"torch.nn.{name.rpartition('.')[2]}" if is_inner else name


# Calls that register the elements of a list which they are given.
_REGISTER = ("ModuleList", "ModuleDict", "Sequential", "extend", "update", "OrderedDict")


def _class(node: ast.ClassDef) -> Class:
    made = Class(node, {statement.name: statement for statement in node.body if isinstance(statement, Function)})
    for call in (inner for inner in walk(node) if isinstance(inner, ast.Call)):
        name = called_name(call)
        made.registers_by_hand |= name in ("add_module", "register_module", "setattr", "__setattr__")
        for argument in arguments(call):
            if isinstance(argument, ast.Starred):
                made.handed_on.add(self_attribute(argument.value))
            elif name in _REGISTER:
                made.handed_on.add(self_attribute(argument))
    return made


def self_attribute(node: ast.AST) -> str:
    """`x` of `self.x`; empty for anything else."""
    match node:
        case ast.Attribute(ast.Name("self"), name):
            return name
    return ""


def called_name(node: ast.Call) -> str:
    """The last name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(keyword.value for keyword in node.keywords)]


def _looks_like_a_module(file: File, own: Class) -> bool:
    """A class of a base that is elsewhere: it has a forward, and keeps modules of torch.nn as attributes."""
    if "forward" not in own.methods or "__init__" not in own.methods:
        return False
    if not any(name.endswith(("Module", "Layer", "Model", "PreTrainedModel", "Block")) for name in own.bases):
        return False
    return any(
        isinstance(node, ast.Assign)
        and any(map(self_attribute, node.targets))
        and isinstance(node.value, ast.Call)
        and is_module_class(file.dotted(node.value.func))
        for node in walk(own.methods["__init__"])
    )


def family(file: File, own: Class, below: tuple[str, ...] = ()) -> Iterator[Class]:
    """A class and its bases in the file, itself first."""
    yield own
    for name in own.bases:
        base = file.classes.get(name)
        if base is not None and base is not own and name not in below:
            yield from family(file, base, (*below, own.node.name))


def method(file: File, own: Class, name: str) -> Function | None:
    """The method of this name, of the class or the nearest base in the file."""
    return next((member.methods[name] for member in family(file, own) if name in member.methods), None)


def method_kind(function: Function) -> str:
    """Return static, class or property; empty for a method that gets the object."""
    decorators = {getattr(node, "attr", getattr(node, "id", "")) for node in function.decorator_list}
    if decorators & {"staticmethod", "classmethod"}:
        return "static" if "staticmethod" in decorators else "class"
    return "property" if decorators & {"property", "cached_property"} else ""


def reachable(file: File, own: Class, roots: frozenset[str]) -> set[str]:
    """The methods that these call on self, and they themselves."""
    reached: set[str] = set()
    todo = [name for name in roots if method(file, own, name) is not None]
    while todo:
        name = todo.pop()
        function = None if name in reached else method(file, own, name)
        reached.add(name)
        for node in walk(function) if function is not None else ():
            called = self_attribute(node.func) if isinstance(node, ast.Call) else ""
            if read := self_attribute(node):
                inner = method(file, own, read)
                called = read if inner is not None and method_kind(inner) == "property" else called
            if called:
                todo.append(called)
    return reached


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Every target that a node binds, with the expression that it gets, or that holds this."""
    match node:
        case ast.Assign(targets, value):
            pass
        case (
            ast.AnnAssign(target=target, value=value)
            | ast.NamedExpr(target, value)
            | ast.AugAssign(target, value=value)
        ):
            targets = [target]
        case ast.For(target, value) | ast.AsyncFor(target, value) | ast.comprehension(target, value):
            targets = [target]
        case ast.arg(name):
            targets, value = [ast.Name(name, ast.Load())], None
        case _:
            return
    for target in targets:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        values: list[ast.expr | None] = [value] * len(parts)
        if isinstance(value, ast.Tuple) and len(value.elts) == len(parts) > 1:
            values = [*value.elts]
        yield from zip(parts, values, strict=True)


# -- a file as a tree -------------------------------------------------------------------------------------------------

# What stands somewhere in a file.
Node = ast.expr | ast.stmt
# A larger file is data, not a program: a table of 10 MB of literals takes ast a gigabyte.
MOST_BYTES = 4 * 2**20
_IGNORE = re.compile(r"#\s*gpucheck:\s*ignore(?:\[([^\]]*)\])?(?![\w\[])", re.IGNORECASE)


class Unreadable(Exception):
    """The file cannot be judged: why, and on which line where that is known."""

    def __init__(self, why: str, line: int | None = None, column: int | None = None) -> None:
        super().__init__(why)
        self.why, self.line, self.column = why, line, column


@dataclass(frozen=True, slots=True)
class Source:
    """A file as a tree. `lines` are numbered from 0; `ignored` holds the ids by line, an empty set for all."""

    tree: ast.Module
    lines: list[str]
    ignored: dict[int, frozenset[str]] = field(default_factory=dict)

    def text(self, node: Node) -> str:
        """The source of an expression, in one line, cut where it is longer than 60 characters."""
        line = self.lines[node.lineno - 1].encode()[node.col_offset : node.end_col_offset].decode("utf-8", "replace")
        text = line if node.end_lineno == node.lineno else ast.unparse(node)  # lines have comments
        return text if len(text) <= 60 else f"{text[:59]}…"

    def column(self, node: Node) -> int:
        """The column of a node in characters, from 1: ast counts bytes."""
        return len(self.lines[node.lineno - 1].encode()[: node.col_offset].decode("utf-8", "replace")) + 1

    def width(self, node: Node) -> int:
        """Return the length of the node on its first line, at least one character."""
        line = self.lines[node.lineno - 1].rstrip()
        if node.end_lineno == node.lineno:
            line = line.encode()[: node.end_col_offset].decode("utf-8", "replace")
        return max(len(line) - self.column(node) + 1, 1)

    def is_ignored(self, node: Node, rule: str) -> bool:
        """Return whether a comment on one of the node's lines names the rule, or all."""
        lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
        named = [ids for line, ids in self.ignored.items() if line in lines]
        return any(not ids or rule in ids or rule.removeprefix("lint.") in ids for ids in named)


def parse(data: bytes) -> Source:
    """A file's bytes as a tree. Raises Unreadable, with the reason, for what Python cannot read."""
    if len(data) > MOST_BYTES:
        raise Unreadable(f"it is larger than {MOST_BYTES // 2**20} MiB")
    text = _decoded(data)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the file's own escapes and comparisons
            tree = ast.parse(text)
    except SyntaxError as error:
        raise Unreadable(f"not valid Python: {error.msg}", error.lineno, error.offset) from error
    except (RecursionError, MemoryError) as error:
        raise Unreadable("its expressions are nested too deeply") from error
    except ValueError as error:
        raise Unreadable(f"not valid Python: {error}") from error
    return Source(tree, text.split("\n"), _ignored(text))


def _decoded(data: bytes) -> str:
    """The text, by its byte order mark or its coding comment (PEP 263), with plain line ends."""
    if b"\0" in data:
        raise Unreadable("not valid Python: it contains null bytes")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(encoding)
    except SyntaxError as error:
        raise Unreadable(f"not valid Python: {error.msg}", 1) from error
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Unreadable(f"not valid {error.encoding}", line) from error
    return text.removeprefix("\ufeff").replace("\r\n", "\n").replace("\r", "\n")


def _ignored(text: str) -> dict[int, frozenset[str]]:
    """The ignore comments by line. A text that only looks like one, within a string, is none."""
    if _IGNORE.search(text) is None:
        return {}
    found = {}
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(text).readline))
    except (tokenize.TokenError, SyntaxError) as error:
        raise Unreadable(f"its comments cannot be read: {error}") from error
    for token in tokens:
        comment = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if comment is not None:
            given = comment.group(1)
            ids = frozenset(name.strip() for name in (given or "").split(",") if name.strip())
            # `ignore[]` names nothing, so it ignores nothing.
            if ids or given is None:
                found[token.start[0]] = ids
    return found


# -- a walk through a tree without walking: each node knows the slice of one list that holds what lies below it --------

_KEY = "_below"
_SKIPPED = frozenset({"ctx", "op", "ops", "type_comment", "kind", "type_ignores"})


def index(tree: ast.AST) -> list[ast.AST]:
    """Number the nodes below, parents before children. Raises RecursionError for a tree that is too deep.

    The list is returned to be cleared: it and the nodes hold each other.
    """
    nodes: list[ast.AST] = []
    fields: dict[type, tuple[str, ...]] = {}

    def visit(node: ast.AST) -> None:
        first = len(nodes)
        nodes.append(node)
        kind = type(node)
        names = fields.get(kind)
        if names is None:
            names = fields[kind] = tuple(name for name in kind._fields if name not in _SKIPPED)
        values = node.__dict__
        for name in names:
            child = values.get(name)
            if child.__class__ is list:
                for inner in child:
                    if isinstance(inner, ast.AST):
                        visit(inner)
            elif isinstance(child, ast.AST):
                visit(child)
        values[_KEY] = (nodes, first, len(nodes))

    visit(tree)
    return nodes


def walk(node: ast.AST) -> Sequence[ast.AST]:
    """The node and all below it, as `ast.walk` gives them, without operators and contexts."""
    known = node.__dict__.get(_KEY)
    if known is None:
        return list(ast.walk(node))
    nodes, first, end = known
    return nodes[first:end]  # type: ignore[no-any-return]
