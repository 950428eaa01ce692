"""The private names of torch that gpucheck uses: one table has a row for each name.

If this torch lacks a name, the features that need the name are left out, and the report says so. A lookup loads torch.
"""

from __future__ import annotations

import functools
import importlib
import types
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, NoReturn

from gpucheck.errors import Undecided

# The users of a name. simulation: `model` and `run --dry`. run: `run`. trace: the traced steps of `run`. ranks: `run`
# of a job with several ranks. batches: the forecast of `find-batch-size`. device: measurements on a device.
Use = Literal["simulation", "run", "trace", "ranks", "batches", "device"]


class Private(NamedTuple):
    """A private name. `lost` is the feature that needs the name ("" if none). `vital`: all `uses` need the name.

    `older` are the paths of the same object in other versions, from 2.6 to 2.15.
    """

    path: str
    uses: tuple[Use, ...]
    lost: str = ""
    vital: bool = False
    older: tuple[str, ...] = ()


_SIMULATION: tuple[Use, ...] = ("simulation",)
_RUN: tuple[Use, ...] = ("run",)
_BOTH: tuple[Use, ...] = ("simulation", "run")
_DEVICE: tuple[Use, ...] = ("device",)
_C10D, _DISPATCH = "torch._C._distributed_c10d", "torch.utils._python_dispatch"
_STEPS = "the operations of traced steps"
_FUNCTORCH, _AUTOCAST, _JOBS = "transforms of torch.func", "autocast", "torch.distributed with NCCL"
_SAVED = "hooks of saved tensors, as of checkpoints"

_TABLE = (
    Private("torch._C.DisableTorchFunction", _BOTH, vital=True),
    Private("torch._C.DisableTorchFunctionSubclass", _SIMULATION, vital=True),
    Private("torch._C._DisableTorchDispatch", _BOTH, "programs with a TorchDispatchMode"),
    Private("torch._C._len_torch_function_stack", _BOTH),
    Private(f"{_DISPATCH}.TorchDispatchMode", ("simulation", "trace", "batches"), _STEPS, vital=True),
    Private(f"{_DISPATCH}.is_traceable_wrapper_subclass", _SIMULATION, "tensor subclasses"),
    Private("torch.utils._device._device_constructors", _SIMULATION, vital=True),
    Private("torch.utils._device.CURRENT_DEVICE", _SIMULATION, "default devices"),
    Private("torch._ops.OpOverload", _SIMULATION, vital=True),
    Private("torch.ops.aten.lift_fresh.default._schema", ("simulation", "trace"), vital=True),
    Private("torch._C.StorageBase", _SIMULATION, vital=True),
    Private("torch.UntypedStorage._cdata", ("simulation", "run", "batches"), vital=True),
    Private("torch.UntypedStorage._new_with_weak_ptr", _SIMULATION, vital=True),
    Private("torch.multiprocessing.reductions.StorageWeakRef", _SIMULATION, vital=True),
    Private("torch.Tensor._values", _BOTH, "sparse tensors"),
    Private("torch.Tensor._indices", _BOTH, "sparse tensors"),
    Private("torch.Tensor._is_view", _SIMULATION, _AUTOCAST),
    Private("torch.Tensor._version", _RUN, "copies that are repeated"),
    Private("torch._C._functorch.is_functorch_wrapped_tensor", _SIMULATION, _FUNCTORCH),
    Private("torch._C._functorch.get_unwrapped", _SIMULATION, _FUNCTORCH),
    Private("torch._C._nn._parse_to", _SIMULATION, "Module.to"),
    Private("torch._C._nn.pad_sequence", _SIMULATION, "pad_sequence"),
    Private("torch._pad_packed_sequence", _SIMULATION, "packed sequences"),
    Private("torch._nested_view_from_jagged", _SIMULATION, "jagged tensors"),
    Private("torch._tensor_str._str", _SIMULATION, "devices in printed tensors"),
    Private("torch.nn.parallel._functions.Scatter", _SIMULATION, "nn.DataParallel"),
    Private("torch.nn.parallel._functions.Broadcast", _SIMULATION, "nn.DataParallel"),
    Private("torch.nn.parallel._functions.Gather", _SIMULATION, "nn.DataParallel"),
    Private("torch._C._group_tensors_by_device_and_dtype", _SIMULATION, "clipping of gradients"),
    Private("torch._VF", _SIMULATION, "nn.RNN, nn.LSTM, nn.GRU"),
    Private("torch._VF.dropout", _SIMULATION, "the memory of dropout"),
    Private("torch._VF.lstm", _SIMULATION, "nn.LSTM"),
    Private("torch._VF.gru", _SIMULATION, "nn.GRU"),
    Private("torch._VF.rnn_tanh", _SIMULATION, "nn.RNN"),
    Private("torch._VF.rnn_relu", _SIMULATION, "nn.RNN"),
    Private("torch._scaled_dot_product_attention_math", _SIMULATION, "dropout in attention"),
    Private("torch.jit._builtins._register_builtin", _SIMULATION, "TorchScript"),
    Private("torch.autograd._engine_run_backward", _SIMULATION, "hooks in the backward pass"),
    Private("torch._C._autograd._push_saved_tensors_default_hooks", _SIMULATION, _SAVED),
    Private("torch._C._IncludeDispatchKeyGuard", _SIMULATION, _AUTOCAST),
    Private("torch._C._ExcludeDispatchKeyGuard", _SIMULATION, _AUTOCAST),
    Private("torch._C.DispatchKey", _SIMULATION, _AUTOCAST),
    Private("torch._C.DispatchKeySet", _SIMULATION, _AUTOCAST),
    Private("torch._C._dispatch_get_registrations_for_dispatch_key", _SIMULATION, _AUTOCAST),
    Private("torch.ops.aten.lift_fresh.default._op_dk", _SIMULATION, _AUTOCAST),
    Private("torch.library.Library._destroy", _SIMULATION, _AUTOCAST),
    Private("torch.serialization._package_registry", _SIMULATION, "torch.load"),
    Private("torch.nn.Module()._forward_hooks", _SIMULATION, "tensors that hooks hold"),
    Private("torch.nn.Module()._parameters", ("batches",), vital=True),
    Private("torch.nn.Module()._buffers", ("batches",), vital=True),
    Private("torch.nn.parameter.UninitializedTensorMixin._allowed_methods", _BOTH, "lazy modules"),
    Private("torch.utils.data.dataloader._BaseDataLoaderIter", _BOTH, "waits for data"),
    Private("torch.distributed.distributed_c10d._new_process_group_helper", _SIMULATION, _JOBS),
    Private("torch.distributed.distributed_c10d._get_object_coll_device", _SIMULATION, _JOBS),
    Private("torch.distributed.distributed_c10d._world", ("simulation", "ranks"), _JOBS),
    Private("torch.distributed.distributed_c10d._get_default_store", ("ranks",), "clocks of hosts"),
    Private(f"{_C10D}._dump_fr_trace", ("ranks",), "ranks", older=(f"{_C10D}._dump_nccl_trace",)),
    Private("torch._C._cuda_memoryStats", _RUN, "memory of the devices"),
    Private("torch._C._cuda_attach_out_of_memory_observer", _RUN, "who holds memory as it runs out"),
    Private("torch.cuda._sleep", _DEVICE),
    Private("torch._C._host_emptyCache", _DEVICE),
    Private("torch._scaled_mm", _DEVICE, "float8"),
    Private("torch._int_mm", _DEVICE, "int8"),
    Private("torch._subclasses.fake_tensor.FakeTensorMode", ("batches",), vital=True),
    Private("torch.utils._pytree.tree_leaves", ("batches",), vital=True),
    Private("torch.utils._pytree.tree_map_only", ("batches",), vital=True),
)
ROWS = {row.path: row for row in _TABLE}
_MISSING = object()


def _resolve(path: str) -> Any:
    """Return the value at a path, or `_MISSING`. `torch.nn.Module()._buffers` is an attribute of a new object."""
    value: Any = importlib.import_module("torch")
    for part in path.split(".")[1:]:
        owner, name = value, part.removesuffix("()")
        if (value := getattr(owner, name, _MISSING)) is _MISSING and isinstance(owner, types.ModuleType):
            try:
                value = importlib.import_module(f"{owner.__name__}.{name}")
            except ImportError:
                return _MISSING
        if value is _MISSING:
            return _MISSING
        value = value() if part != name else value
    return value


@functools.cache
def _value_at(path: str) -> Any:
    return next((value for name in (path, *ROWS[path].older) if (value := _resolve(name)) is not _MISSING), _MISSING)


def has(path: str) -> bool:
    return _value_at(path) is not _MISSING


def find(path: str, otherwise: Any = None) -> Any:
    """Return the value at a path of the table; `otherwise` if this torch lacks the name."""
    return _value_at(path) if has(path) else otherwise


def need(path: str) -> Any:
    """Return the value at a path of the table. Raises Undecided if this torch lacks the name."""
    if not has(path):
        fix = "use a version that gpucheck was tested with, or update gpucheck"
        raise Undecided(f"{_torch()} has no {path}", "gpucheck cannot do without it", fix)
    return _value_at(path)


def kernel(path: str) -> Callable[..., Any]:
    """Return the function at a path of the table. If this torch lacks it, the result raises NotImplementedError."""

    def missing(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"{_torch()} has no {path}")

    return find(path, missing)  # type: ignore[no-any-return]


def replacing(path: str, make: Callable[[Any], Any]) -> list[tuple[Any, str, Any]]:
    """Return the owner, the attribute and the replacement by `make` of a name; empty if this torch lacks the name."""
    owner, _, name = path.rpartition(".")
    return [(_resolve(owner), name, make(_value_at(path)))] if has(path) else []


def lost(use: Use) -> tuple[str, ...]:
    """Return the features that this torch cannot support, each once."""
    rows = [row for row in ROWS.values() if use in row.uses and row.lost and not has(row.path)]
    torch = importlib.import_module("torch")
    # No feature uses names of CUDA or torch.distributed if this torch is built without them.
    built = {"_cuda_": torch.backends.cuda.is_built(), "distributed": torch.distributed.is_available()}
    rows = [row for row in rows if all(is_built or part not in row.path for part, is_built in built.items())]
    return tuple(dict.fromkeys(row.lost for row in rows))


def _torch() -> str:
    return f"torch {importlib.import_module('torch').__version__}"
