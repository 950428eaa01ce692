"""torch's private names: each that gpucheck uses beyond the documented API is a row of one table.

A name is looked up once, by itself and never by torch's version. Where this torch has none, what needs it is left out
and the answer says so. Loads torch only as a name is asked for.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from gpucheck.errors import Undecided

# simulation: `model` and `run --dry`; run: `run`; ranks: `run` of a job; batches: the forecast of `find-batch-size`;
# device: what measures on a device.
Use = Literal["simulation", "run", "trace", "ranks", "batches", "device"]


@dataclass(frozen=True, slots=True)
class Private:
    """A name by its path. `lost` is what is not followed without it, "" if nothing is. What is `vital` cannot be done
    without it at all. `older` are its names in other versions, of 2.6 to 2.15."""

    path: str
    uses: tuple[Use, ...]
    what: str
    lost: str = ""
    vital: bool = False
    older: tuple[str, ...] = ()


_SIMULATION: tuple[Use, ...] = ("simulation",)
_RUN: tuple[Use, ...] = ("run",)
_BOTH: tuple[Use, ...] = ("simulation", "run")
_DEVICE: tuple[Use, ...] = ("device",)
_FUNCTORCH, _AUTOCAST, _JOBS = "transforms of torch.func", "autocast", "torch.distributed with NCCL"
_FILES = "files of tensors without values"

_TABLE = (
    # -- modes, operations and storages
    Private("torch._C.DisableTorchFunction", _BOTH, "asks a tensor without its class", vital=True),
    Private("torch._C.DisableTorchFunctionSubclass", _SIMULATION, "the same under modes", vital=True),
    Private("torch._C._DisableTorchDispatch", _BOTH, "asks it without modes", "programs with a TorchDispatchMode"),
    Private("torch._C._len_torch_function_stack", _BOTH, "whether a mode is on: a quicker look"),
    Private(
        "torch.utils._python_dispatch.TorchDispatchMode",
        ("simulation", "trace", "batches"),
        "sees each operation",
        "the operations of traced steps",
        vital=True,
    ),
    Private(
        "torch.utils._python_dispatch.is_traceable_wrapper_subclass",
        _SIMULATION,
        "knows classes that wrap tensors",
        "tensor subclasses",
    ),
    Private("torch.utils._device._device_constructors", _SIMULATION, "the factories", vital=True),
    Private("torch.utils._device.CURRENT_DEVICE", _SIMULATION, "the default device", "default devices"),
    Private("torch._ops.OpOverload", _SIMULATION, "the class of an operation", vital=True),
    Private("torch.ops.aten.lift_fresh.default._schema", ("simulation", "trace"), "its arguments", vital=True),
    Private("torch._C.StorageBase", _SIMULATION, "makes storages", vital=True),
    Private("torch.UntypedStorage._cdata", ("simulation", "run", "batches"), "tells storages apart", vital=True),
    Private("torch.UntypedStorage._new_with_weak_ptr", _SIMULATION, "a storage that lives on", vital=True),
    Private("torch.multiprocessing.reductions.StorageWeakRef", _SIMULATION, "whether a storage lives", vital=True),
    Private("torch.Tensor._values", _BOTH, "the parts of a sparse tensor", "sparse tensors"),
    Private("torch.Tensor._indices", _BOTH, "the parts of a sparse tensor", "sparse tensors"),
    Private("torch.Tensor._is_view", _SIMULATION, "which weights autocast keeps", _AUTOCAST),
    Private("torch.Tensor._version", _RUN, "whether a tensor has changed", "copies that are repeated"),
    # -- calls
    Private("torch._C._functorch.is_functorch_wrapped_tensor", _SIMULATION, "knows wrapped tensors", _FUNCTORCH),
    Private("torch._C._functorch.get_unwrapped", _SIMULATION, "unwraps them", _FUNCTORCH),
    Private("torch._C._nn._parse_to", _SIMULATION, "reads what Module.to is given", "Module.to"),
    Private("torch._C._nn.pad_sequence", _SIMULATION, "pads sequences", "pad_sequence"),
    Private("torch._pad_packed_sequence", _SIMULATION, "unpacks sequences", "packed sequences"),
    Private("torch._nested_view_from_jagged", _SIMULATION, "makes jagged tensors", "jagged tensors"),
    Private("torch._tensor_str._str", _SIMULATION, "prints a tensor", "devices in printed tensors"),
    Private("torch.nn.parallel._functions.Scatter", _SIMULATION, "what DataParallel does", "nn.DataParallel"),
    Private("torch.nn.parallel._functions.Broadcast", _SIMULATION, "what DataParallel does", "nn.DataParallel"),
    Private("torch.nn.parallel._functions.Gather", _SIMULATION, "what DataParallel does", "nn.DataParallel"),
    Private("torch._C._group_tensors_by_device_and_dtype", _SIMULATION, "groups gradients", "clipping of gradients"),
    Private("torch._VF", _SIMULATION, "the kernels of dropout and of recurrent layers", "nn.RNN, nn.LSTM, nn.GRU"),
    Private("torch._VF.dropout", _SIMULATION, "the kernel of dropout", "the memory of dropout"),
    Private("torch._VF.lstm", _SIMULATION, "the kernel of nn.LSTM", "nn.LSTM"),
    Private("torch._VF.gru", _SIMULATION, "the kernel of nn.GRU", "nn.GRU"),
    Private("torch._VF.rnn_tanh", _SIMULATION, "the kernel of nn.RNN", "nn.RNN"),
    Private("torch._VF.rnn_relu", _SIMULATION, "the kernel of nn.RNN", "nn.RNN"),
    Private("torch._scaled_dot_product_attention_math", _SIMULATION, "attention in parts", "dropout in attention"),
    Private("torch.jit._builtins._register_builtin", _SIMULATION, "names functions to TorchScript", "TorchScript"),
    # -- the backward pass
    Private("torch.autograd._engine_run_backward", _SIMULATION, "the backward pass", "hooks in the backward pass"),
    Private(
        "torch._C._autograd._push_saved_tensors_default_hooks",
        _SIMULATION,
        "what is called as tensors are saved",
        "hooks of saved tensors, as of checkpoints",
    ),
    # -- autocast
    Private("torch._C._IncludeDispatchKeyGuard", _SIMULATION, "sends operations by autocast", _AUTOCAST),
    Private("torch._C._ExcludeDispatchKeyGuard", _SIMULATION, "sends them past it", _AUTOCAST),
    Private("torch._C.DispatchKey", _SIMULATION, "names autocast", _AUTOCAST),
    Private("torch._C.DispatchKeySet", _SIMULATION, "names autocast", _AUTOCAST),
    Private("torch._C._dispatch_get_registrations_for_dispatch_key", _SIMULATION, "what it casts", _AUTOCAST),
    Private("torch.ops.aten.lift_fresh.default._op_dk", _SIMULATION, "calls the parts of an operation", _AUTOCAST),
    Private("torch.library.Library._destroy", _SIMULATION, "takes kernels back", _AUTOCAST),
    # -- files
    Private("torch._utils._rebuild_meta_tensor_no_storage", _SIMULATION, "loads a tensor without values", _FILES),
    Private("torch.serialization._get_restore_location", _SIMULATION, "where it goes", _FILES),
    Private("torch.serialization._package_registry", _SIMULATION, "where loaded tensors go", "torch.load"),
    # -- modules, data and jobs
    Private("torch.nn.Module()._forward_hooks", _SIMULATION, "a module's hooks", "what hooks hold"),
    Private("torch.nn.Module()._parameters", ("batches",), "a module's parameters", vital=True),
    Private("torch.nn.Module()._buffers", ("batches",), "a module's buffers", vital=True),
    Private("torch.nn.parameter.UninitializedTensorMixin._allowed_methods", _BOTH, "lazy parameters", "lazy modules"),
    Private("torch.utils.data.dataloader._BaseDataLoaderIter", _BOTH, "the iterator of a loader", "waits for data"),
    Private("torch.distributed.distributed_c10d._new_process_group_helper", _SIMULATION, "makes a group", _JOBS),
    Private("torch.distributed.distributed_c10d._get_object_coll_device", _SIMULATION, "where objects go", _JOBS),
    Private("torch.distributed.distributed_c10d._world", ("simulation", "ranks"), "the groups", _JOBS),
    Private("torch.distributed.distributed_c10d._get_default_store", ("ranks",), "the job's store", "clocks of hosts"),
    Private(
        "torch._C._distributed_c10d._dump_fr_trace",
        ("ranks",),
        "the flight recorder",
        "ranks",
        older=("torch._C._distributed_c10d._dump_nccl_trace",),
    ),
    # -- memory and devices
    Private("torch._C._cuda_memoryStats", _RUN, "the allocator's figures", "memory of the devices"),
    Private(
        "torch._C._cuda_attach_out_of_memory_observer",
        _RUN,
        "calls back as memory runs out",
        "who holds memory as it runs out",
    ),
    Private("torch.cuda.memory._record_memory_history", ("trace",), "the allocator's history", "--memory-snapshot"),
    Private("torch.cuda.memory._dump_snapshot", ("trace",), "writes it", "--memory-snapshot"),
    Private("torch.cuda._sleep", _DEVICE, "makes a stream wait: shorter calls are timed with their launch"),
    Private("torch._C._host_emptyCache", _DEVICE, "lets pinned memory go, before 2.12"),
    Private("torch._C._cuda_clearCublasWorkspaces", _DEVICE, "gives cuBLAS's workspaces back after a warm-up"),
    Private("torch._scaled_mm", _DEVICE, "multiplies float8", "float8"),
    Private("torch._int_mm", _DEVICE, "multiplies int8", "int8"),
    # -- the forecast of batch sizes
    Private("torch._subclasses.fake_tensor.FakeTensorMode", ("batches",), "tensors without memory", vital=True),
    Private("torch.utils._pytree.tree_leaves", ("batches",), "the tensors in a value", vital=True),
    Private("torch.utils._pytree.tree_map_only", ("batches",), "replaces them", vital=True),
)
ROWS = {row.path: row for row in _TABLE}
_GONE = object()


def _resolve(path: str) -> Any:
    """Return what is at a path, `torch.nn.Module()._buffers` of a new object; `_GONE` where there is nothing."""
    found: Any = importlib.import_module("torch")
    for part in path.split(".")[1:]:
        name = part.removesuffix("()")
        value: Any = getattr(found, name, _GONE)
        if value is _GONE and isinstance(found, types.ModuleType):
            try:
                value = importlib.import_module(f"{found.__name__}.{name}")
            except ImportError:
                return _GONE
        if value is _GONE:
            return _GONE
        found = value() if part != name else value
    return found


@functools.cache
def _of(path: str) -> Any:
    row = ROWS[path]
    return next((one for name in (path, *row.older) if (one := _resolve(name)) is not _GONE), _GONE)


def has(path: str) -> bool:
    """Return whether this torch has a name of the table."""
    return _of(path) is not _GONE


def find(path: str, otherwise: Any = None) -> Any:
    """Return what is at a path of the table; `otherwise` where this torch has nothing there."""
    return _of(path) if has(path) else otherwise


def need(path: str) -> Any:
    """Return what is at a path of the table. Raises Undecided."""
    if not has(path):
        why = f"gpucheck cannot do without it: {ROWS[path].what}"
        raise Undecided(
            f"{_torch()} has no {path}", why, "use a version that gpucheck was tested with, or update gpucheck"
        )
    return _of(path)


def kernel(path: str) -> Callable[..., Any]:
    """The function at a path of the table; where this torch has none, one that raises NotImplementedError."""

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{_torch()} has no {path}")

    return find(path, missing)  # type: ignore[no-any-return]


def replacing(path: str, make: Callable[[Any], Any]) -> list[tuple[Any, str, Any]]:
    """Return the replacement of a name: its owner, its name there and what `make` makes of it; empty without it."""
    owner, _, name = path.rpartition(".")
    return [(_resolve(owner), name, make(_of(path)))] if has(path) else []


def lost(use: Use) -> tuple[str, ...]:
    """Return what is not followed with this torch, "" left out; each once."""
    rows = [row for row in ROWS.values() if use in row.uses and row.lost and not has(row.path)]
    torch = importlib.import_module("torch")
    # A build without CUDA, or without torch.distributed, lacks what nobody can ask of it.
    built = {"_cuda_": torch.backends.cuda.is_built(), "distributed": torch.distributed.is_available()}
    rows = [row for row in rows if all(is_there or part not in row.path for part, is_there in built.items())]
    return tuple(dict.fromkeys(row.lost for row in rows))


def _torch() -> str:
    return f"torch {importlib.import_module('torch').__version__}"
