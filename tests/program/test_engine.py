"""Simulated devices: what a tensor says of itself, where results lie, and that nothing of it stays."""

from __future__ import annotations

import copy
import gc
import io
import os
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from gpucheck.program import placement, rules
from gpucheck.program.engine import DeviceMismatch, Simulation
from gpucheck.program.simulated_cuda import TorchCalls, simulated

GPU = torch.device("cuda:0")


@pytest.fixture
def torch_calls() -> object:
    with simulated(Simulation()) as made:
        yield made


def test_a_tensor_says_where_it_is(torch_calls: TorchCalls) -> None:
    x = torch.tensor([1.0, 2.0], device="cuda")
    assert (x.device, x.is_cuda, x.is_cpu, x.get_device(), x.type()) == (GPU, True, False, 0, "torch.cuda.FloatTensor")
    assert x.tolist() == [1.0, 2.0] and x.sum().item() == 3.0
    assert torch.ones(2).to("cuda:1").get_device() == 1


@pytest.mark.parametrize(
    "made",
    [
        lambda x: x + 1,
        lambda x: x.t()[0],
        lambda x: x.view(-1),
        lambda x: x.clone(),
        lambda x: x.half(),
        lambda x: x.to(torch.float64),
        lambda x: x.detach(),
        lambda x: copy.deepcopy(x),
        lambda x: torch.zeros_like(x),
        lambda x: x.new_ones(3),
        lambda x: torch.ones(2).type_as(x),
        lambda x: torch.ones(2).to(x),
        lambda x: torch.as_tensor(x),
        lambda x: torch.ones(3).cuda(),
        lambda x: torch.ones(3).to(device="cuda", dtype=torch.float16),
        lambda x: torch.ones(3).to("cuda", torch.float16, non_blocking=True),
        lambda x: torch.as_tensor([1.0], device=x.device),
        lambda x: torch.zeros(2, 2, out=x),
        lambda x: torch.randn(2, 2, out=x),
        lambda x: torch.sparse_coo_tensor([[0, 1]], x[0], (3,)),
        lambda x: torch.unravel_index(x.long(), (2, 2))[0],
        lambda x: torch.empty_strided((2,), (1,), device=x.device),
        lambda x: torch.add(x, x, out=torch.empty(0, device="cuda")),
        lambda x: nn.Parameter(x).data,
        lambda x: torch.randn(3, device="cuda", generator=torch.Generator("cuda")),
    ],
)
def test_results_lie_where_their_operands_do(torch_calls: TorchCalls, made: object) -> None:
    assert made(torch.ones(2, 2, device="cuda")).device == GPU  # type: ignore[operator]


def test_a_move_is_differentiable_and_goes_back(torch_calls: TorchCalls) -> None:
    weight = torch.ones(3, requires_grad=True)
    (weight.cuda() * torch.ones(3, device="cuda")).sum().backward()
    assert weight.grad is not None and weight.grad.device.type == "cpu"
    assert weight.grad.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "made",
    [torch.arange, torch.randperm, torch.eye, torch.zeros, lambda n: torch.linspace(0, n, 3), torch.hann_window],
)
def test_a_size_that_lies_on_a_gpu_is_only_read(torch_calls: TorchCalls, made: Any) -> None:
    """As the longest of a batch's lengths, from which a mask is made."""
    assert made(torch.tensor([4, 5]).cuda().max()).device.type == "cpu"


def test_a_tensor_says_its_device_as_it_is_printed(torch_calls: TorchCalls) -> None:
    x = torch.tensor([1.0, 2.0], device="cuda")
    assert str(x) == f"{x}" == "tensor([1., 2.], device='cuda:0')"
    assert repr([x.sum(), x.cpu()]) == "[tensor(3., device='cuda:0'), tensor([1., 2.])]" and f"{x.sum()}" == "3.0"
    assert f"{nn.Parameter(x.sum())}".endswith("tensor(3., device='cuda:0', requires_grad=True)")


def test_a_lazy_layer_moves(torch_calls: TorchCalls) -> None:
    layer = nn.LazyLinear(2).to("cuda").half().float()
    assert layer(torch.ones(1, 3).cuda()).device == layer.weight.device == GPU


def test_a_saved_tensor_stays_where_it_is(torch_calls: TorchCalls) -> None:
    """torch up to 2.9 revives the storage's object that the collector found, but not weak references to it."""
    made = torch.ones(2, device="cuda")
    torch.save({"made": made.detach()}, io.BytesIO())
    gc.collect()
    assert made.is_cuda


@pytest.mark.parametrize(
    "restore",
    [
        lambda to: torch.set_rng_state(to(torch.get_rng_state())),
        lambda to: torch.cuda.set_rng_state_all([*map(to, torch.cuda.get_rng_state_all())]),
        lambda to: torch.Generator().set_state(to(torch.get_rng_state())),
    ],
)
def test_the_state_of_a_generator_is_read_on_the_host(torch_calls: TorchCalls, restore: Any) -> None:
    """As a checkpoint has it that was loaded with map_location="cuda"."""
    restore(torch.Tensor.cpu)
    with pytest.raises(TypeError, match="must be a torch"):
        restore(torch.Tensor.cuda)


@pytest.mark.parametrize(
    "restore",
    [
        lambda: torch.set_rng_state(torch.cuda.get_rng_state()),
        lambda: torch.cuda.set_rng_state_all([torch.get_rng_state()]),
        lambda: torch.Generator("cuda").set_state(torch.Generator().get_state()),
    ],
)
def test_a_state_of_another_kind_of_generator_is_refused(torch_calls: TorchCalls, restore: Any) -> None:
    generator = torch.Generator("cuda")
    state = generator.get_state()
    first = torch.rand(3, device="cuda", generator=generator)
    assert torch.equal(torch.rand(3, device="cuda", generator=generator.set_state(state)), first)
    torch.cuda.set_rng_state_all([torch.zeros(16, dtype=torch.uint8), torch.cuda.get_rng_state()])
    with pytest.raises(RuntimeError, match=r"state is wrong size|RNG state size"):
        restore()


def test_a_sparse_tensor_on_a_gpu_leaves_its_parts_where_they_are(torch_calls: TorchCalls) -> None:
    places, values = torch.tensor([[0, 1]]), torch.ones(2)
    made = torch.sparse_coo_tensor(places, values, (3,), device="cuda")
    assert made.device == made.coalesce().values().device == GPU
    assert places.device.type == values.device.type == "cpu"


def _set(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    out = torch.zeros_like(x)
    out[0] = weight
    return out * x


@pytest.mark.parametrize("shape", [(), (1,)])
@pytest.mark.parametrize(
    "used",
    [
        lambda x, weight: x * weight.sum(),
        lambda x, weight: x / weight.exp().mean(),
        lambda x, weight: torch.where(x > 0, weight.sum(), x),
        _set,
        lambda x, weight: torch.zeros_like(x).copy_(weight) * x,
    ],
)
def test_a_gradient_goes_back_to_its_tensor_on_the_cpu(torch_calls: TorchCalls, used: Any, shape: Any) -> None:
    weight, beside = nn.Parameter(torch.ones(shape)), nn.Linear(2, 2).cuda()
    optimizer = torch.optim.Adam([weight, *beside.parameters()])
    for _ in range(2):
        used(beside(torch.ones(3, 2).cuda()), weight).sum().backward()
        assert weight.grad is not None and weight.grad.device.type == "cpu"
        nn.utils.clip_grad_norm_([weight, *beside.parameters()], 1.0)
        optimizer.step()


def test_a_device_for_all_that_is_made(torch_calls: TorchCalls) -> None:
    with torch.device("cuda"):
        assert (torch.zeros(2).device, nn.Linear(2, 2).weight.device) == (GPU, GPU)
    torch.set_default_device("cuda")
    try:
        assert torch.arange(3).device == GPU
    finally:
        torch.set_default_device(None)
    assert torch.zeros(2).device.type == "cpu"


# What a `map_location` makes of a tensor on cuda:0 and one on the CPU.
LOCATIONS: list[tuple[Any, str, str]] = [
    (None, "cuda", "cpu"),
    ("cpu", "cpu", "cpu"),
    ({"cuda:0": "cpu"}, "cpu", "cpu"),
    ({"cpu": "cuda:0"}, "cuda", "cuda"),
    (lambda storage, location: storage, "cpu", "cpu"),
    (lambda storage, location: storage.cuda(0), "cuda", "cuda"),
    (lambda storage, location: None, "cuda", "cpu"),
]


@pytest.mark.parametrize(("location", "first", "second"), LOCATIONS)
@pytest.mark.parametrize("zipped", [True, False])
def test_a_file_says_where_its_tensors_were(
    torch_calls: TorchCalls, location: Any, first: str, second: str, zipped: bool
) -> None:
    file = io.BytesIO()
    saved = {"a": torch.ones(2, device="cuda"), "b": torch.ones(2)}
    torch.save(saved, file, _use_new_zipfile_serialization=zipped)
    file.seek(0)
    loaded = torch.load(file, map_location=location)
    assert [loaded[name].device.type for name in "ab"] == [first, second]


@pytest.mark.parametrize(("location", "kind"), [(None, "cuda"), ("cuda:0", "cuda"), ("cpu", "cpu")])
def test_a_file_of_tensors_without_values(location: str | None, kind: str) -> None:
    with simulated(Simulation(has_values=False)):
        file = io.BytesIO()
        torch.save({"a": torch.ones(2, device="cuda")}, file)
        file.seek(0)
        assert torch.load(file, map_location=location)["a"].device.type == kind


@pytest.mark.parametrize(
    "make", [torch.empty, torch.zeros, lambda *shape, **more: torch.ones(1).new_empty(shape, **more)]
)
def test_what_is_made_in_pinned_memory_is_pinned(make: Any, torch_calls: TorchCalls) -> None:
    """Without CUDA torch refuses it, which ended the dry run there."""
    assert make(2, pin_memory=True).is_pinned()
    with pytest.raises(DeviceMismatch):
        make(2, pin_memory=True, device="cuda")


def test_only_the_hosts_memory_is_pinned(torch_calls: TorchCalls) -> None:
    assert torch.ones(2).pin_memory().is_pinned()
    with pytest.raises(DeviceMismatch):
        torch.ones(2, device="cuda").pin_memory()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="it needs fork")
@pytest.mark.parametrize(
    ("used", "call", "raised"),
    [
        (True, lambda x: torch.ones(2).cuda(), rules.FORKED),
        (True, lambda x: torch.ones(2, device="cuda"), rules.FORKED),
        (True, lambda x: torch.cuda.current_device(), rules.FORKED),
        (True, lambda x: x + 1, rules.FORKED_KERNEL),
        (True, lambda x: torch.ones(2) + 1, ""),
        (True, lambda x: torch.cuda.is_available(), ""),
        (False, lambda x: torch.ones(2).cuda() + 1, ""),
    ],
)
def test_a_fork_of_a_process_that_used_cuda_cannot_use_it(used: bool, call: Any, raised: str) -> None:
    read, write = os.pipe()
    with simulated(Simulation()):
        x = torch.ones(2).to("cuda" if used else "cpu")
        pid = os.fork()
        if not pid:
            try:
                call(x)
            except RuntimeError as error:
                os.write(write, str(error).encode())
            os._exit(0)
        os.waitpid(pid, 0)
    os.close(write)
    with os.fdopen(read) as seen:
        assert seen.read() == raised


@pytest.mark.parametrize(
    "used",
    [
        lambda x: torch.from_dlpack(x),
        lambda x: np.from_dlpack(x),
        lambda x: torch.utils.dlpack.to_dlpack(x),
        lambda x: torch.ones(3).type("torch.cuda.HalfTensor"),
        lambda x: x.type(torch.FloatTensor),
        lambda x: torch.jit.load("module.pt"),
    ],
)
def test_what_is_not_simulated_ends_what_can_be_judged(torch_calls: TorchCalls, used: Any) -> None:
    assert np.from_dlpack(torch.ones(2)).tolist() == torch.from_dlpack(torch.ones(2)).tolist() == [1.0, 1.0]
    with pytest.raises(NotImplementedError, match="not simulated") as raised:
        used(torch.ones(2, device="cuda"))
    assert placement.is_of_device(raised.value, str(raised.value))


def test_a_storage_says_where_it_is(torch_calls: TorchCalls) -> None:
    x = torch.ones(2, device="cuda")
    assert (x.untyped_storage().device, x.storage().is_cuda, x.is_shared()) == (GPU, True, True)
    assert torch.UntypedStorage(8, device="cuda").device == GPU == torch.ones(2).untyped_storage().cuda().device
    assert torch.UntypedStorage(8).device.type == "cpu" == x.untyped_storage().cpu().device.type
    with warnings.catch_warnings():  # a worker's collate function makes its batches so: not of the numbers in it
        warnings.simplefilter("error")
        shared = torch.ones(2)._typed_storage()
        assert torch.ones(0).new(shared).data_ptr() == shared._data_ptr()


@pytest.mark.parametrize("foreach", [True, False])
def test_an_optimizer_takes_parameters_of_both_devices(torch_calls: TorchCalls, foreach: bool) -> None:
    """Torch steps them by device, in C++ that knows the host's alone."""
    weights = [torch.ones(3, requires_grad=True), torch.ones(3, device="cuda").requires_grad_()]
    for weight in weights:
        weight.grad = weight.detach().clone()
    optimizer = torch.optim.Rprop(weights, foreach=foreach)
    optimizer.step()
    assert [optimizer.state[weight]["prev"].device.type for weight in weights] == ["cpu", "cuda"]
    groups = torch.utils._foreach_utils._group_tensors_by_device_and_dtype([weights, []], with_indices=True)
    assert {device.type: places for (device, _), (_, places) in groups.items()} == {"cpu": [0], "cuda": [1]}


def test_a_number_names_a_device(torch_calls: TorchCalls) -> None:
    module = nn.Linear(2, 2)
    assert module.to(0).weight.device == GPU and module.to(device=1).weight.device == torch.device("cuda:1")
    assert torch.zeros(1).to(0).device == torch.zeros(1, device=0).device == GPU


def test_unknown_is_no_finding(torch_calls: TorchCalls) -> None:
    """What nobody placed settles with the first operation that knows."""
    x = torch.ones(3)
    torch_calls.sim.placements.put(x, None)
    assert (x + torch.ones(3, device="cuda")).device == GPU
    assert x.device == GPU
    with pytest.raises(DeviceMismatch):
        x + torch.ones(3)


@pytest.mark.parametrize("owner", [torch.cuda, torch.cuda.memory], ids=["cuda", "memory"])
def test_the_functions_of_memory_take_a_device_by_name(torch_calls: TorchCalls, owner: Any) -> None:
    x = torch.ones(2**20, device="cuda")
    assert owner.memory_allocated(device=0) == owner.max_memory_allocated(device="cuda:0") == x.nbytes
    assert owner.memory_stats(device=0)["allocated_bytes.all.peak"] == x.nbytes
    free, total = owner.mem_get_info(device=torch.device("cuda"))
    assert total - free == x.nbytes
    owner.reset_peak_memory_stats(device=0)
    owner.empty_cache()
    assert torch.cuda.get_rng_state(device=0).device.type == "cpu"


def test_torch_is_as_before() -> None:
    before = dict(vars(torch.cuda))
    generator, setter = torch.Generator, nn.Module.__setattr__
    with simulated(Simulation()):
        assert torch.cuda.is_available() and torch.cuda.get_device_capability() == (9, 0)
        torch.cuda.synchronize()
        torch.cuda.set_device(device=0)  # torch's name of the argument
        with torch.cuda.stream(torch.cuda.Stream()), torch.cuda.device(0):
            assert torch.cuda.current_device() == 0
    assert vars(torch.cuda) == before
    assert (torch.Generator, nn.Module.__setattr__) == (generator, setter)
    assert torch.ones(2).device.type == "cpu"
    assert torch.overrides._get_current_function_mode_stack() == []


def test_an_operation_of_another_library_is_noted(torch_calls: TorchCalls) -> None:
    with torch.library._scoped_library("gpucheck_test", "DEF") as library:
        library.define("mix(Tensor x, Tensor y) -> Tensor")
        library.impl("mix", lambda x, y: x + y, "CPU")
        out = torch.ops.gpucheck_test.mix(torch.ones(2, device="cuda"), torch.ones(2))
        assert list(torch_calls.sim.unjudged) == ["gpucheck_test::mix"]
        assert out.device == GPU


def _assigned_grad(tensor: str, device: str) -> None:
    x = torch.ones(3, device=tensor, requires_grad=True)
    x.grad = None
    x.grad = torch.ones(3, device=device)


@pytest.mark.parametrize(("tensor", "other"), [("cuda", "cpu"), ("cpu", "cuda")])
def test_a_gradient_must_lie_where_its_tensor_does(tensor: str, other: str, torch_calls: TorchCalls) -> None:
    _assigned_grad(tensor, tensor)
    with pytest.raises(RuntimeError, match="attempting to assign a gradient with device type"):
        _assigned_grad(tensor, other)
    assert len(torch_calls.sim.refused) == 1


class Doubled(torch.autograd.Function):  # type: ignore[misc]
    """Its gradient is made on the host."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return torch.full(gradient.shape, 2.0)


def test_a_gradient_on_another_device_is_met_by_what_uses_it(torch_calls: TorchCalls) -> None:
    weight = torch.ones(3, device="cuda", requires_grad=True)
    for call in (
        lambda: (weight * 2).backward(torch.ones(3)),
        lambda: torch.autograd.grad(weight, weight, [torch.ones(3)]),
    ):
        with pytest.raises(DeviceMismatch, match=r"^invalid gradient at index 0 - expected device cuda:0 but got cpu"):
            call()  # type: ignore[no-untyped-call]
    with pytest.raises(DeviceMismatch):
        Doubled.apply(weight.exp()).sum().backward()
    Doubled.apply(weight).sum().backward()
    with pytest.raises(DeviceMismatch):
        torch.optim.SGD([weight]).step()


@pytest.mark.parametrize("read", [lambda x: x.numpy(), np.asarray, np.array])
def test_numpy_refuses_a_tensor_on_a_gpu_as_cuda_does(torch_calls: TorchCalls, read: Any) -> None:
    x = torch.ones(3, device="cuda")
    assert read(x.cpu()).tolist() == [1.0, 1.0, 1.0]
    text = "^can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu"
    with pytest.raises(TypeError, match=text) as raised:
        read(x)
    assert isinstance(raised.value, DeviceMismatch) and not isinstance(raised.value, RuntimeError)
