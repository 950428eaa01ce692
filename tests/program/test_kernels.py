"""What attention, dropout and recurrent networks keep for the backward pass, as CUDA's kernels do; and true values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucheck.program.engine import World, tensors_in
from gpucheck.program.simulated_cuda import claimed
from gpucheck.program.simulated_devices import Claims
from gpucheck.work.storages import Memory

KIB = 1024
F32 = torch.float32
WIDE = {"input_size": 512, "hidden_size": 512, "num_layers": 2}


@pytest.fixture(params=[True, False], ids=["values", "no values"])
def world(request: pytest.FixtureRequest) -> Iterator[World]:
    made = World(claims=Claims(Memory()), has_values=request.param)
    torch.__future__.set_swap_module_params_on_conversion(not made.has_values)
    try:
        with claimed(made):
            yield made
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def gpu(*shape: int, **more: Any) -> Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=True, **more)


def kept(world: World, call: Callable[[], Tensor]) -> int:
    """The bytes that a call's result keeps beside itself."""
    memory = world.claims.memory
    assert memory is not None
    before = memory.allocated
    out = call()
    held: int = memory.allocated - before - out.numel() * out.element_size()
    out.float().sum().backward()
    return held


ATTENTION: dict[str, tuple[torch.dtype, dict[str, Any], int]] = {
    # 2 × 4 × 128 rows of float32.
    "logsumexp": (torch.float32, {}, 4 * KIB),
    "causal": (torch.float16, {"is_causal": True}, 4 * KIB),
    # And a seed and an offset, each in a block.
    "dropout": (torch.float32, {"dropout_p": 0.1}, 5 * KIB),
    "dropout in half": (torch.bfloat16, {"dropout_p": 0.1}, 5 * KIB),
}


@pytest.mark.parametrize("name", ATTENTION)
def test_a_fused_attention_keeps_no_scores(world: World, name: str) -> None:
    dtype, options, extra = ATTENTION[name]
    query, key, value = (gpu(2, 4, 128, 64, dtype=dtype) for _ in range(3))
    assert kept(world, lambda: F.scaled_dot_product_attention(query, key, value, **options)) == extra
    assert query.grad is not None and query.grad.device.type == "cuda"
    # Joining the heads makes no copy.
    assert kept(world, lambda: F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)) == 4 * KIB


def test_a_mask_of_true_and_false_becomes_one_that_is_added(world: World) -> None:
    query, key, value = (gpu(2, 4, 128, 64) for _ in range(3))
    mask = torch.ones(2, 1, 128, 128, dtype=torch.bool, device="cuda")
    call = lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.1)  # noqa: E731
    assert kept(world, call) == 2 * 128 * 128 * 4 + 5 * KIB


SCORES = 2 * 4 * 128 * 128 * 4


def test_what_no_fused_kernel_takes_keeps_the_scores(world: World) -> None:
    """Rows that are no multiple of 16 bytes; an attention that is written out."""
    query, key, value = (gpu(2, 4, 128, 5) for _ in range(3))
    held = kept(world, lambda: F.scaled_dot_product_attention(query, key, value, dropout_p=0.1))
    # Before and after the dropout, and a byte for each.
    assert 2.25 * SCORES <= held <= 2.25 * SCORES + 64 * KIB
    assert kept(world, lambda: (query @ key.transpose(-2, -1)).softmax(-1) @ value) >= SCORES


def test_a_case_that_only_a_cpu_fuses_keeps_the_scores(world: World) -> None:
    """Groups of heads in float32, and a mask whose rows are not contiguous, such as T5's position bias."""
    query = gpu(2, 4, 128, 64)
    key, value = gpu(2, 2, 128, 64), gpu(2, 2, 128, 64)
    assert kept(world, lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=True)) >= SCORES
    key, value = gpu(2, 4, 128, 64), gpu(2, 4, 128, 64)
    for bias, scores in ((gpu(128, 128, 4).permute(2, 0, 1)[None], SCORES), (gpu(1, 4, 128, 128), 0)):
        call = lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=bias)  # noqa: B023, E731
        assert scores <= kept(world, call) <= scores * 2 + 4 * KIB


def test_attention_lends_its_backward_pass_a_gradient_in_float32(world: World) -> None:
    """Measured on an H200 for each kernel: 4 bytes an element of the query, and one number a row, beside gradients."""
    memory = world.claims.memory
    assert memory is not None
    for dtype in (torch.float32, torch.bfloat16):
        query, key, value = (gpu(2, 4, 128, 64, dtype=dtype) for _ in range(3))
        out = F.scaled_dot_product_attention(query, key, value)
        gradient = torch.ones_like(out)
        memory.peak_since_reset = before = memory.allocated
        made = torch.autograd.grad(out, (query, key, value), gradient)
        gradients = sum(one.nbytes for one in made)
        assert memory.peak_since_reset - before == gradients + query.numel() * 4 + 4 * KIB


MIB = 1024 * KIB
# What torch's own kernels took beside results, as its allocator counted it (torch 2.9 and 2.11, 132 multiprocessors).
LENT: dict[str, tuple[Callable[[], Tensor], float]] = {
    "gradient of a bias": (lambda: gpu(8192, 3072).sum(0), 132),
    "of a narrow one": (lambda: gpu(8192, 1024).sum(0), 64),
    "of fewer rows": (lambda: gpu(4096, 1024).sum([0], keepdim=True), 32),
    "of two dimensions": (lambda: gpu(8, 256, 512).sum((0, 1)), 8),
    "in half": (lambda: gpu(16384, 1024, dtype=torch.bfloat16).sum(0), 128),
    "of few rows": (lambda: gpu(128, 1024).sum(0), 0),
    "a sum of rows": (lambda: gpu(4096, 4096).sum(1), 0),
    "largest of columns": (lambda: gpu(4096, 4096).amax(0), 128),
    "mean squared error": (lambda: F.mse_loss(gpu(2048, 4096), gpu(2048, 4096)), 32),
    "errors themselves": (lambda: F.mse_loss(gpu(2048, 4096), gpu(2048, 4096), reduction="none"), 0),
    "logsumexp": (lambda: gpu(4096, 4096).logsumexp(-1), 64),
    "softmax": (lambda: slope(gpu(4, 16, 256, 256), lambda x: x.softmax(-1)), 16),
    "log_softmax": (lambda: slope(gpu(4, 16, 256, 256), lambda x: x.log_softmax(-1)), 0),
    "embedding": (lambda: slope(gpu(30522, 768), lambda x: F.embedding(ids(16, 256), x)), 13.39),
    "short embedding": (lambda: slope(gpu(30522, 768), lambda x: F.embedding(ids(16, 128), x)), 0),
    "embedding bag": (lambda: slope(gpu(500_000, 128), lambda x: F.embedding_bag(ids(4096, 32), x)), 77.26),
    # The allocator counted 22.55, with what it did not split off.
    "index": (lambda: slope(gpu(50_000, 256), lambda x: x[ids(400_000)]), 21.36),
}


def ids(*shape: int) -> Tensor:
    return torch.zeros(*shape, dtype=torch.long, device="cuda")


def slope(x: Tensor, call: Callable[[Tensor], Tensor]) -> Tensor:
    out = call(x)
    return torch.autograd.grad(out, x, torch.empty_like(out))[0]


@pytest.mark.parametrize("name", LENT)
def test_what_kernels_take_while_they_run_is_counted(name: str) -> None:
    call, size = LENT[name]
    made = World(claims=Claims(Memory()), has_values=False)
    lent = [0]
    with claimed(made), mock.patch.object(Memory, "lend", lambda memory, size: lent.append(size)):
        call()
    assert max(lent) / MIB == pytest.approx(size, rel=0.005)


@pytest.mark.parametrize(
    ("loss", "size"),
    [
        (F.mse_loss, MIB),
        (F.smooth_l1_loss, MIB),
        (F.binary_cross_entropy, MIB),
        (F.soft_margin_loss, MIB),
        (F.l1_loss, 0),
    ],
)
def test_a_loss_stands_in_the_memory_of_its_elements(world: World, loss: Callable[..., Tensor], size: int) -> None:
    """As its storage has it on a GPU."""
    memory = world.claims.memory
    assert memory is not None
    x, y = torch.rand(256, 1024, device="cuda"), torch.rand(256, 1024, device="cuda")
    before = memory.allocated
    made = loss(x, y)
    assert memory.allocated - before == (size or 512)
    assert made.shape == ()


def test_a_dropout_keeps_one_byte_an_element(world: World) -> None:
    x = gpu(256, 1024)
    for call in (lambda: F.dropout(x, 0.1), lambda: torch.dropout(x, 0.1, True), lambda: nn.Dropout(0.5)(x)):
        assert kept(world, call) == 256 * KIB
    assert F.dropout(x, 0.1, training=False) is x


def recurrent(kind: Any, **options: Any) -> Callable[[], Tensor]:
    network = kind(32, 64, num_layers=2, **options).cuda()
    x = torch.randn(16, 8, 32, device="cuda")
    return lambda: network(x)[0]


@pytest.mark.parametrize(
    ("kind", "directions", "parts"),
    [(nn.LSTM, 1, 11), (nn.GRU, 1, 13), (nn.RNN, 1, 3), (nn.LSTM, 2, 11)],
)
def test_what_an_rnn_keeps(world: World, kind: Any, directions: int, parts: int) -> None:
    """Two layers: gates and cell of each, the input of the second, and the states before and after."""
    held = kept(world, recurrent(kind, bidirectional=directions == 2))
    states = 2 * directions * 8 * 64 * 4 * (2 if kind is nn.LSTM else 1)
    assert held - 16 * 8 * 64 * directions * parts * 4 in (states, 2 * states)


# Of an H200 (torch 2.11, cuDNN 9.19): its inputs, layers, batch, steps and dtype, and the bytes that a call kept beside
# output and states. Before, of cuDNN in 2017 (pytorch issue 2895), without the states that it was given.
RESERVES: dict[str, tuple[Any, dict[str, Any], tuple[int, int], torch.dtype, int]] = {
    "LSTM of 2017": (nn.LSTM, {"input_size": 123, "hidden_size": 320, "num_layers": 4}, (1000, 25), F32, 736_256_000),
    "GRU of 2017": (nn.GRU, {"input_size": 123, "hidden_size": 320, "num_layers": 4}, (1000, 25), F32, 864_128_000),
    "LSTM": (nn.LSTM, {**WIDE, "dropout": 0.2}, (128, 64), F32, 185_598_464),
    "LSTM in half": (nn.LSTM, {**WIDE, "dropout": 0.2}, (128, 64), torch.float16, 93_061_632),
    "LSTM in bfloat16": (nn.LSTM, {**WIDE, "dropout": 0.2}, (128, 64), torch.bfloat16, 101_466_624),
    "GRU": (nn.GRU, WIDE, (128, 64), F32, 218_366_464),
    "RNN": (nn.RNN, WIDE, (128, 64), F32, 50_594_304),
}


@pytest.mark.parametrize("name", RESERVES)
def test_reserves_are_as_measured(name: str) -> None:
    kind, options, shape, dtype, size = RESERVES[name]
    made = World(claims=Claims(Memory()), has_values=False)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with claimed(made):
            network = kind(**options).to("cuda", dtype)
            x = torch.empty(*shape, options["input_size"], device="cuda", dtype=dtype)
            memory = made.claims.memory
            assert memory is not None
            before = memory.allocated
            out, states = network(x)
            held = memory.allocated - before - sum(one.nbytes for one in (out, *tensors_in(states)))
            assert held == pytest.approx(size, rel=0.001)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def outcome(kind: Any, x: Tensor, **options: Any) -> list[Tensor]:
    torch.manual_seed(3)
    network = kind(8, 6, num_layers=2, **options).to(x.device)
    network.train()
    out, state = network(x)
    states = state if isinstance(state, tuple) else (state,)
    sum(one.square().sum() for one in (out, *states)).backward()
    return [out, *(one.grad for one in network.parameters())]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_values_and_gradients_are_those_of_the_cpu(kind: Any) -> None:
    x = torch.randn(5, 3, 8)
    here = outcome(kind, x, bidirectional=True)
    with claimed(World()):
        there = [one.cpu() for one in outcome(kind, x.to("cuda"), bidirectional=True)]
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one, other)


def test_attention_with_dropout_has_the_gradients_of_its_own_mask() -> None:
    query, key, value = (torch.randn(1, 2, 6, 4) for _ in range(3))

    def gradients(device: str) -> list[Tensor]:
        torch.manual_seed(5)
        inputs = [one.to(device).detach().requires_grad_() for one in (query, key, value)]
        out = F.scaled_dot_product_attention(inputs[0], inputs[1], inputs[2], dropout_p=0.4)
        out.square().sum().backward()
        return [out, *(one.grad for one in inputs if one.grad is not None)]

    here = gradients("cpu")
    with claimed(World()):
        there = [one.cpu() for one in gradients("cuda")]
    for one, other in zip(here, there, strict=True):
        torch.testing.assert_close(one, other)


def test_without_values_a_norms_own_writes_are_no_copies() -> None:
    """`run` counts what Python copies; an operation that torch runs as Python copies too."""
    made = World(claims=Claims(Memory()), has_values=False)
    seen: list[bool] = []
    copy = Tensor.copy_

    def copied(self: Tensor, *args: Any) -> Tensor:
        seen.append(made.here.inside)
        return copy(self, *args)

    torch.__future__.set_swap_module_params_on_conversion(True)
    Tensor.copy_ = copied
    try:
        with claimed(made):
            nn.BatchNorm2d(4).cuda()(torch.randn(2, 4, 3, 3, device="cuda"))
    finally:
        Tensor.copy_ = copy
        torch.__future__.set_swap_module_params_on_conversion(False)
    assert seen and all(seen)
