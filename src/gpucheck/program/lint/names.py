"""From a file's bytes to its tree, and the comments in it that tell `lint` to be silent. And names: what torch's make,
move and start, as tables; and what a file's imports, classes and functions are called."""

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
# The shape is in the positional arguments, one for each dimension, or a tuple.
BY_SHAPE = of_torch("empty ones rand randn zeros")
ONE_DIMENSION = of_torch(
    "arange bartlett_window blackman_window hamming_window hann_window kaiser_window linspace logspace randperm range"
)
TWO_DIMENSIONS = of_torch("eye tril_indices triu_indices nn.Transformer.generate_square_subsequent_mask")
# The data says how many dimensions there are: known only for lists that are written out.
BY_DATA = of_torch(
    "tensor as_tensor asarray from_numpy Tensor FloatTensor LongTensor IntTensor DoubleTensor BoolTensor "
    "ByteTensor HalfTensor BFloat16Tensor ShortTensor CharTensor"
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
NO_TENSOR_ATTRIBUTES = words(
    "device dtype shape ndim is_cuda requires_grad is_leaf grad_fn layout itemsize nbytes names is_sparse"
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
    "leaky_relu softplus logsigmoid hardtanh dropout erf erfinv atan tan sinh cosh trunc frac nan_to_num renorm"
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
AT_LEAST_ONE = words(
    "view reshape expand repeat flatten expand_as view_as reshape_as unfold repeat_interleave ravel tile"
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
    bases: tuple[str, ...]
    methods: dict[str, Function]
    is_module: bool = False
    is_dataset: bool = False
    is_lightning: bool = False
    registers_by_hand: bool = False
    # What its methods call their object; in the tree that is `self`, whatever the source has.
    receiver: str = "self"
    # Attributes that some call takes: `nn.Sequential(*self.layers)`.
    handed_on: frozenset[str] = frozenset()
    # By attribute of self what each assignment sets it to, and whether that is its only target; the class's own names.
    sets: dict[str, list[tuple[ast.expr | None, bool]]] = field(default_factory=dict)
    own_names: frozenset[str] = frozenset()


@dataclass(slots=True)
class File:
    """The names of a file. `imports` maps a name to what it was imported as, in dots."""

    tree: ast.Module
    imports: dict[str, str] = field(default_factory=dict)
    classes: dict[str, Class] = field(default_factory=dict)
    functions: dict[str, Function] = field(default_factory=dict)
    # Functions that run in forked DataLoader workers, by name (`.name` where the class is not known); classes of
    # datasets that do.
    in_workers: frozenset[str] = frozenset()
    lambdas_in_workers: set[int] = field(default_factory=set)
    datasets_in_workers: frozenset[str] = frozenset()
    # Names that a function sets for others too: what one has read says nothing of what another reads.
    shared: frozenset[str] = frozenset()
    has_default_device: bool = False
    starts_children: bool = False
    # Whether processes are spawned by the name of a context or by default; whether by default.
    spawns: bool = False
    default_spawns: bool = False

    def dotted(self, node: ast.expr) -> str:
        """`nn.Linear` as `torch.nn.Linear`; empty for what is not an imported name."""
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name):
            return ""
        root = self.imports.get(node.id)
        return ".".join([root, *reversed(parts)]) if root else ""


def read(tree: ast.Module) -> File:
    """The names of a file."""
    file = File(tree)
    calls: list[ast.Call] = []
    for node in walk(tree):
        match node:
            case ast.Import(names):
                for one in names:
                    root = one.name if one.asname else one.name.partition(".")[0]
                    file.imports[one.asname or root] = root
            case ast.ImportFrom(module, names, level):
                where = "." * level + (module or "")
                file.imports |= {one.asname or one.name: _canonical(f"{where}.{one.name}") for one in names}
            case ast.Call():
                calls.append(node)
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
            if dotted and statement.targets[0].id not in file.imports:
                file.imports[statement.targets[0].id] = dotted
    _bases(file)
    _look_at_calls(file, calls)
    return file


def bound_in(function: Function) -> tuple[set[str], set[str]]:
    """The names that a function binds: its own, and those of the file or of a function around it."""
    found, shared = set(), set()
    for node in walk(function):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            found.add(node.id)
        elif isinstance(node, ast.arg):
            found.add(node.arg)
        elif isinstance(node, (ast.Global, ast.Nonlocal)):
            shared.update(node.names)
        else:
            found.update(captured(node))
    return found - shared, found & shared


def captured(node: ast.AST) -> set[str]:
    """The names that an error's handler or a pattern binds."""
    kinds = (ast.ExceptHandler, ast.MatchAs, ast.MatchStar, ast.MatchMapping)
    return (
        {getattr(node, "name", None) or getattr(node, "rest", None) or ""} - {""} if isinstance(node, kinds) else set()
    )


def _canonical(name: str) -> str:
    """The name by which the tables know it: `from torch.nn.modules.linear import Linear` is torch.nn.Linear."""
    is_inner = name.startswith(("torch.nn.modules.", "torch.nn.parameter."))
    return f"torch.nn.{name.rpartition('.')[2]}" if is_inner else name


def _class(node: ast.ClassDef) -> Class:
    methods = {one.name: one for one in node.body if isinstance(one, Function)}
    receivers = [name for one in methods.values() if (name := _renamed(one))]
    by_hand, handed_on = False, set()
    sets: dict[str, list[tuple[ast.expr | None, bool]]] = {}
    for inner in walk(node):
        pairs = _assigned(inner)
        for target, value in pairs:
            if attribute := self_attribute(target):
                sets.setdefault(attribute, []).append((value, len(pairs) == 1))
        if isinstance(inner, ast.Call):
            called = called_name(inner)
            by_hand = by_hand or called in ("add_module", "register_module", "setattr", "__setattr__")
            handed_on |= {attribute for one in arguments(inner) if (attribute := _container_of(one, called))}
    own_names = frozenset(getattr(target, "id", "") for inner in node.body for target, _ in _assigned(inner))
    receiver = receivers[0] if receivers else "self"
    made = Class(node, (), methods, registers_by_hand=by_hand, receiver=receiver, sets=sets, own_names=own_names)
    made.handed_on = frozenset(handed_on)
    return made


def _assigned(node: ast.AST) -> list[tuple[ast.expr, ast.expr | None]]:
    """The targets that an assignment sets anew, with what each gets."""
    is_new = isinstance(node, ast.Assign) or (isinstance(node, ast.AnnAssign) and node.value is not None)
    return [*bindings(node)] if is_new else []


def _renamed(method: Function) -> str:
    """Name the first parameter of a method `self`, wherever it is read; return its own name, empty if that stays."""
    first = next(iter((*method.args.posonlyargs, *method.args.args)), None)
    decorators = {getattr(one, "id", "") for one in method.decorator_list}
    if first is None or first.arg in ("self", "cls") or decorators & {"staticmethod", "classmethod"}:
        return ""
    name = first.arg
    others = [one for one in walk(method) if isinstance(one, ast.arg) and one is not first]
    own = [one for one in walk(method) if isinstance(one, ast.Name) and one.id in (name, "self")]
    # Where the name is bound again, or `self` is another's, it is not sure whose attribute is read.
    if any(one.arg in (name, "self") for one in others):
        return ""
    if any(one.id == "self" or not isinstance(one.ctx, ast.Load) for one in own):
        return ""
    for one in own:
        one.id = "self"
    first.arg = "self"
    return name


def _container_of(node: ast.expr, called: str) -> str:
    """The attribute of self that a call registers the elements of; empty for another argument."""
    if isinstance(node, ast.Starred):
        node = node.value
    elif called not in ("ModuleList", "ModuleDict", "Sequential", "extend", "update", "OrderedDict"):
        return ""
    return self_attribute(node)


def self_attribute(node: ast.expr) -> str:
    """`x` of `self.x`; empty for anything else."""
    is_self = isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self"
    return node.attr if is_self and isinstance(node, ast.Attribute) else ""


def called_name(node: ast.Call) -> str:
    """The last name of what is called."""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _bases(file: File) -> None:
    """Which classes are modules and datasets, through bases in the file."""
    for one in file.classes.values():
        one.bases = tuple(file.dotted(base) or getattr(base, "id", "") for base in one.node.bases if base)
    for one in file.classes.values():
        names = [name for member in family(file, one) for name in member.bases]
        known = any(
            name in MODULE_BASES or is_module_class(name) or name.endswith(".LightningModule") for name in names
        )
        one.is_module = known or _looks_like_a_module(file, one)
        one.is_lightning = any("Lightning" in name for name in names)
        one.is_dataset = any(name in DATASETS or name.startswith("torchvision.datasets.") for name in names)


def _looks_like_a_module(file: File, one: Class) -> bool:
    """A class of a base that is elsewhere: it has a forward, and keeps modules of torch.nn as attributes."""
    if not one.bases or "forward" not in one.methods or "__init__" not in one.methods:
        return False
    if not any(name.endswith(("Module", "Layer", "Model", "PreTrainedModel", "Block")) for name in one.bases):
        return False
    return any(
        isinstance(node, ast.Assign)
        and any(self_attribute(target) for target in node.targets)
        and isinstance(node.value, ast.Call)
        and is_module_class(file.dotted(node.value.func))
        for node in walk(one.methods["__init__"])
    )


def family(file: File, one: Class, seen: tuple[str, ...] = ()) -> Iterator[Class]:
    """A class and its bases in the file, itself first."""
    yield one
    for name in one.bases:
        base = file.classes.get(name)
        if base is not None and base is not one and name not in seen:
            yield from family(file, base, (*seen, one.node.name))


def method(file: File, one: Class, name: str) -> Function | None:
    """The method of this name, of the class or the nearest base in the file."""
    return next((member.methods[name] for member in family(file, one) if name in member.methods), None)


def method_kind(function: Function) -> str:
    """Return static, class or property; empty for a method that gets the object."""
    decorators = {getattr(one, "attr", getattr(one, "id", "")) for one in function.decorator_list}
    if "staticmethod" in decorators or "classmethod" in decorators:
        return "static" if "staticmethod" in decorators else "class"
    return "property" if decorators & {"property", "cached_property"} else ""


def reachable(file: File, one: Class, roots: frozenset[str]) -> set[str]:
    """The methods that these call on self, and they themselves."""
    seen: set[str] = set()
    todo = [name for name in roots if method(file, one, name) is not None]
    while todo:
        name = todo.pop()
        body = None if name in seen else method(file, one, name)
        seen.add(name)
        for node in walk(body) if body is not None else ():
            called = self_attribute(node.func) if isinstance(node, ast.Call) else ""
            read = self_attribute(node) if isinstance(node, ast.Attribute) else ""
            function = method(file, one, read) if read else None
            if function is not None and method_kind(function) == "property":
                called = read
            if called and called not in seen:
                todo.append(called)
    return seen


def _look_at_calls(file: File, calls: list[ast.Call]) -> None:
    """Which functions run in workers, and what is set for the whole file."""
    in_workers: set[str] = set()
    loaders: list[ast.Call] = []
    methods = [
        getattr(one, "value", "") for call in calls if called_name(call) == "set_start_method" for one in call.args
    ]
    file.default_spawns = bool({"spawn", "forkserver"} & set(methods))
    for call in calls:
        called, dotted = called_name(call), file.dotted(call.func)
        if called in ("set_default_device", "set_default_tensor_type"):
            file.has_default_device = True
        elif called in ("set_start_method", "get_context") or dotted.startswith("torch.multiprocessing.spawn"):
            file.spawns = file.spawns or "fork" not in [getattr(one, "value", "") for one in call.args]
        if dotted in LOADERS or called == "DataLoader":
            loaders.append(call)
            if _has_workers(file, call):
                given = [one.value for one in call.keywords if one.arg in ("collate_fn", "worker_init_fn")]
                given = [one.args[0] if isinstance(one, ast.Call) and one.args else one for one in given]  # partial
                in_workers |= {f"{called_name(one)}.__call__" for one in given if isinstance(one, ast.Call)}
                in_workers |= {name for one in given for name in _functions(file, one)}
                file.lambdas_in_workers |= {id(one) for one in given if isinstance(one, ast.Lambda)}
        if called in ("Popen", "Process", "spawn", "run", "check_call", "check_output", "call", "execv", "execvp"):
            started = dotted.startswith(("subprocess", "multiprocessing", "torch.multiprocessing", "os."))
            file.starts_children = file.starts_children or started
        elif dotted in ("os.system", "os.execve", "os.execvpe"):
            file.starts_children = True
    file.in_workers = frozenset(in_workers)
    file.datasets_in_workers = _datasets_in_workers(file, loaders)


def _has_workers(file: File, call: ast.Call) -> bool:
    """Return whether a DataLoader has workers that are forked."""
    given = {one.arg: one.value for one in call.keywords}
    if None in given:
        return False
    context = given.get("multiprocessing_context")
    if isinstance(context, ast.Call):  # get_context("spawn")
        context = context.args[0] if context.args else None
    default = "spawn" if file.default_spawns else "fork"
    if (default if context is None else getattr(context, "value", "")) not in ("fork", None):
        return False
    # Its sixth positional argument, after dataset, batch_size, shuffle, sampler and batch_sampler.
    workers = given.get("num_workers") or (call.args[5] if len(call.args) > 5 else None)
    numbers = (_bound(file, workers) if isinstance(workers, ast.Name) else []) or [workers]
    return workers is not None and not all(isinstance(one, ast.Constant) and not one.value for one in numbers)


def _datasets_in_workers(file: File, loaders: Sequence[ast.Call]) -> frozenset[str]:
    """The classes of datasets whose items forked workers get: those that a loader with workers takes.

    A class that no loader is seen to take counts where a loader with workers may take any, or none is in the file.
    """
    datasets = {name for name, one in file.classes.items() if one.is_dataset}
    forked: set[str] = set()
    others: set[str] = set()
    for call in loaders if datasets else ():
        first = call.args[0] if call.args else None
        given = next((one.value for one in call.keywords if one.arg == "dataset"), first)
        taken = _classes_in(file, given, set())
        families = {member.node.name for name in taken if name for member in family(file, file.classes[name])}
        (forked if _has_workers(file, call) else others).update(taken | families)
    return frozenset(datasets & forked | (datasets - others if "" in forked or not loaders else set()))


def _classes_in(file: File, node: ast.expr | None, seen: set[int]) -> set[str]:
    """The classes of the file whose objects an expression is, or holds; with "" where it may be any other."""
    if node is None or id(node) in seen:
        return set() if node is not None else {""}
    seen.add(id(node))
    parts: list[ast.expr | None] = [None]
    match node:
        case ast.Constant():
            return set()
        case ast.Call(ast.Name(name)) if name in file.classes:
            # It may hold another, and takes much else that is none.
            inner = {one for part in arguments(node) for one in _classes_in(file, part, seen)}
            return {name} | (inner - {""})
        case ast.Call(ast.Attribute(ast.Name(name))) if name in file.classes:
            return {name}  # Rows.load(path)
        case ast.Call(ast.Name(name)) if name in file.functions:
            parts = [one.value for one in walk(file.functions[name]) if isinstance(one, ast.Return)]
        case ast.Call(func) if file.dotted(func).startswith("torch.utils.data."):
            parts = [*arguments(node)[:1]]  # Subset(rows, indices)
        case ast.Call(func) if file.dotted(func):
            return {one for part in arguments(node) for one in _classes_in(file, part, seen)} - {""}
        case ast.Call(ast.Attribute(value)):
            parts = [value]  # rows.shuffle()
        case ast.Name() | ast.Attribute():
            parts = _bound(file, node) or parts
        case ast.Subscript(value) | ast.Starred(value):
            parts = [value]
        case ast.IfExp(body=one, orelse=other) | ast.BinOp(left=one, right=other):
            parts = [one, other]
        case ast.List(elts) | ast.Tuple(elts) | ast.BoolOp(values=elts) | ast.Dict(values=elts):
            parts = [*elts]
        case ast.ListComp(elt) | ast.GeneratorExp(elt) | ast.DictComp(value=elt):
            parts = [elt]
    return {one for part in parts for one in _classes_in(file, part, seen)}


def arguments(node: ast.Call) -> list[ast.expr]:
    return [*node.args, *(one.value for one in node.keywords)]


def _bound(file: File, node: ast.Name | ast.Attribute) -> list[ast.expr | None]:
    """Return the values that the code assigns to a name in the innermost function that assigns it, or to an attribute
    anywhere in the file; None stands for a value that no expression gives, such as a parameter."""
    functions = (one for one in walk(file.tree) if isinstance(one, Function))
    around = [one for one in functions if one.lineno <= node.lineno <= (one.end_lineno or 0)]
    scopes: list[ast.AST] = [*reversed(around), file.tree] if isinstance(node, ast.Name) else [file.tree]
    text = ast.unparse(node)
    for scope in scopes:
        inner = [one for one in walk(scope) if isinstance(one, Function) and one is not scope]
        nested = {id(below) for one in inner for below in walk(one)} if isinstance(node, ast.Name) else set()
        own = (one for one in walk(scope) if id(one) not in nested)
        if bound := [value for one in own for target, value in bindings(one) if ast.unparse(target) == text]:
            return bound
    return []


def bindings(node: ast.AST) -> Iterator[tuple[ast.expr, ast.expr | None]]:
    """Every target that a node binds, with the expression that it gets, or that holds this."""
    targets: Sequence[ast.expr] = ()
    value: ast.expr | None = None
    match node:
        case ast.Assign():
            targets, value = node.targets, node.value
        case ast.AnnAssign() | ast.NamedExpr() | ast.AugAssign():
            targets, value = [node.target], node.value
        case ast.For() | ast.AsyncFor() | ast.comprehension():
            targets, value = [node.target], node.iter
        case ast.arg():
            yield ast.Name(node.arg, ast.Load()), None
    for target in targets:
        parts = target.elts if isinstance(target, (ast.Tuple, ast.List)) else [target]
        values: list[ast.expr | None] = [value] * len(parts)
        if isinstance(value, ast.Tuple) and len(value.elts) == len(parts) > 1:
            values = [*value.elts]
        yield from zip(parts, values, strict=True)


def _functions(file: File, node: ast.expr) -> set[str]:
    """The names of a function that a loader is given, as `File.in_workers` has them."""
    if isinstance(node, ast.Name):
        return {node.id}
    if not isinstance(node, ast.Attribute) or file.dotted(node):
        return set()
    if isinstance(node.value, ast.Name) and node.value.id in file.classes:
        return {f"{node.value.id}.{node.attr}"}
    classes = _classes_in(file, node.value, set())
    return {f"{name}.{node.attr}" for name in classes}


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
        told = [ids for line, ids in self.ignored.items() if line in lines]
        return any(not ids or rule in ids or rule.removeprefix("lint.") in ids for ids in told)


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
        told = _IGNORE.search(token.string) if token.type == tokenize.COMMENT else None
        if told is not None:
            given = told.group(1)
            ids = frozenset(one.strip() for one in (given or "").split(",") if one.strip())
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
                for one in child:
                    if isinstance(one, ast.AST):
                        visit(one)
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
