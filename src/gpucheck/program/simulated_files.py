"""Storages and files of `torch.save`, as a machine with a GPU would hold and read them."""

from __future__ import annotations

import builtins
import contextlib
import functools
import io
import itertools
import os
import sys
import tempfile
import types
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from gpucheck.machine import torch_private
from gpucheck.program.engine import World
from gpucheck.program.simulated_devices import CLAIMED, CPU, device_of


def new_storage(world: World, kind: Any, *args: Any, device: Any = None, **kwargs: Any) -> Any:
    """`torch.UntypedStorage(16, device="cuda")`, by which a tensor is copied and a file is loaded too."""
    target = device_of(device)
    if target is None or target.type not in CLAIMED:
        return _BASE.__new__(kind, *args, **kwargs if device is None else {**kwargs, "device": device})
    made = _BASE.__new__(kind, *args, **kwargs, device=world.home(target))
    world.use(target)
    world.claims.put_storage(made, target, None)
    return made


def device_of_storage(world: World, storage: Any) -> Any:
    """`UntypedStorage.device`. What sends a storage to another process finds it on the host, where it is, and so does
    what loads a file without values, as its tensors take no other."""
    real, device = _DEVICE_OF_STORAGE(storage), world.claims.device_of_storage(storage)
    callers = sys._getframe(1), sys._getframe(2)  # `is_cuda` asks in its place
    is_sent = any(frame.f_globals["__name__"] == "torch.multiprocessing.reductions" for frame in callers)
    is_loaded = real == CPU and not world.has_values
    return real if device in (None, CPU) or is_sent or is_loaded else device


_BASE = torch_private.need("torch._C.StorageBase")
_DEVICE_OF_STORAGE = _BASE.device.__get__


def to_device(storage: Any, world: World, device: Any = None, non_blocking: bool = False) -> Any:
    """`UntypedStorage.cuda`, which a `map_location` of the user's own calls."""
    out, target = storage.clone(), device_of("cuda" if device is None else device)
    world.use(target)
    world.claims.put_storage(out, target, None)
    return out


def of_files(world: World) -> Iterator[tuple[Any, str, Any]]:
    """A tensor without values goes to a file without its storage: it comes back to where it was, or was asked for."""
    load, located_by = torch.load, torch_private.find("torch.serialization._get_restore_location")
    asked = types.SimpleNamespace(location=None)

    @functools.wraps(load)
    def loading(f: Any, map_location: Any = None, *args: Any, **kwargs: Any) -> Any:
        with replaced([(asked, "location", map_location)]):
            return load(f, map_location, *args, **kwargs)

    def rebuilding(rebuild: Any) -> Callable[..., Tensor]:
        @functools.wraps(rebuild)
        def rebuilt(dtype: Any, size: Any, stride: Any, requires_grad: bool) -> Tensor:
            located = located_by(asked.location)(torch.UntypedStorage(0), "cuda:0")
            device = world.claims.device_of_storage(located)
            if device == CPU:
                return torch.zeros(size, dtype=dtype, device=CPU, requires_grad=requires_grad)
            out: Tensor = rebuild(dtype, size, stride, requires_grad)
            world.claims.put(out, device)
            return out

        return rebuilt

    yield torch, "load", loading
    if not world.has_values and located_by is not None:
        yield from torch_private.replacing("torch._utils._rebuild_meta_tensor_no_storage", rebuilding)


@contextlib.contextmanager
def replaced(patches: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """The names replaced, where they are there, and put back in the end."""
    with contextlib.ExitStack() as stack:
        for owner, name, value in patches:
            if hasattr(owner, name):
                stack.enter_context(mock.patch.object(owner, name, value))
        yield


@contextlib.contextmanager
def sinking(began_ns: int, say: Callable[[str], None]) -> Iterator[None]:
    """While this lasts, what would write over a file from before `began_ns` writes elsewhere; `say` gets a remark."""

    def of(path: Any) -> Any:
        """The path to write to in the place of this one: a file that the program made is its own."""
        try:
            is_older = isinstance(path, (str, bytes, os.PathLike)) and os.path.isfile(path)
            if not is_older or os.stat(path).st_ctime_ns >= began_ns:
                return path
        except OSError:
            return path
        say(f"not overwritten, because loops were ended early: {os.fsdecode(path)}")
        return os.path.join(folder, str(next(numbers)))

    def opening(file: Any, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return opened(of(file) if "w" in mode else file, mode, *args, **kwargs)

    def saving(original: Callable[..., Any], name: str) -> Callable[..., Any]:
        """Return what takes the path as its second argument."""

        @functools.wraps(original)
        def saved(value: Any, *args: Any, **kwargs: Any) -> Any:
            if args:
                args = (of(args[0]), *args[1:])
            elif name in kwargs:
                kwargs[name] = of(kwargs[name])
            return original(value, *args, **kwargs)

        return saved

    def moving(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def moved(source: Any, target: Any, *args: Any, **kwargs: Any) -> None:
            if of(target) is target:
                original(source, target, *args, **kwargs)
            else:
                remove(source)

        return moved

    def removing(path: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs or of(path) is path:
            remove(path, *args, **kwargs)

    opened, remove, numbers = io.open, os.remove, itertools.count()
    patches: list[tuple[Any, str, Any]] = [(builtins, "open", opening), (io, "open", opening)]
    patches += [(owner, "save", saving(owner.save, "f")) for owner in (torch, torch.jit, torch.serialization)]
    patches += [(os, name, moving(getattr(os, name))) for name in ("replace", "rename")]
    patches += [(os, name, removing) for name in ("remove", "unlink")]
    safetensors: Any = sys.modules.get("safetensors.torch")
    if safetensors is not None:
        patches.append((safetensors, "serialize_file", saving(safetensors.serialize_file, "filename")))
    with tempfile.TemporaryDirectory(prefix="gpucheck-sink-", ignore_cleanup_errors=True) as folder, replaced(patches):
        yield


@contextlib.contextmanager
def loading(world: World) -> Iterator[None]:
    """`torch.load(…, map_location="cuda")` claims what it loads; a file says where its tensors were, as CUDA's does."""

    def tag(storage: Any) -> str | None:
        device = world.claims.device_of_storage(storage)
        return str(device) if device is not None and device.type in CLAIMED else None

    def restore(storage: Any, location: str) -> Any:
        if location.split(":")[0] not in CLAIMED:
            return None
        world.use(device_of(location))
        plain = storage.untyped() if isinstance(storage, torch.TypedStorage) else storage
        world.claims.put_storage(plain, device_of(location), None)
        return storage

    registry: list[Any] = torch_private.find("torch.serialization._package_registry", [])
    row = (-1, tag, restore)
    registry.insert(0, row)
    try:
        yield
    finally:
        registry.remove(row)
