"""What attention, dropout and recurrent networks keep for the backward pass, as CUDA's kernels do; and true values."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucheck.program.engine import World
from gpucheck.program.simulated_cuda import claimed
from gpucheck.program.simulated_devices import Claims
from gpucheck.work.storages import Memory

KIB = 1024


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


def kept(world: World, call: Callable[[], Tensor]) -> tuple[int, int]:
    """The bytes that a call's result keeps beside itself, and how much more it may be."""
    memory = world.claims.memory
    assert memory is not None
    before = memory.allocated
    out = call()
    held = memory.allocated - before - out.numel() * out.element_size(), memory.uncertain
    out.float().sum().backward()
    del out
    assert memory.uncertain == 0
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
    assert kept(world, lambda: F.scaled_dot_product_attention(query, key, value, **options)) == (extra, 0)
    assert query.grad is not None and query.grad.device.type == "cuda"


def test_a_mask_of_true_and_false_becomes_one_that_is_added(world: World) -> None:
    query, key, value = (gpu(2, 4, 128, 64) for _ in range(3))
    mask = torch.ones(2, 1, 128, 128, dtype=torch.bool, device="cuda")
    call = lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=mask, dropout_p=0.1)  # noqa: E731
    assert kept(world, call)[0] == 2 * 128 * 128 * 4 + 5 * KIB


SCORES = 2 * 4 * 128 * 128 * 4


def test_what_no_fused_kernel_takes_keeps_the_scores(world: World) -> None:
    """Rows that are no multiple of 16 bytes; an attention that is written out."""
    query, key, value = (gpu(2, 4, 128, 5) for _ in range(3))
    assert kept(world, lambda: F.scaled_dot_product_attention(query, key, value, dropout_p=0.1))[0] > SCORES
    assert kept(world, lambda: (query @ key.transpose(-2, -1)).softmax(-1) @ value)[0] >= SCORES


def test_a_dropout_keeps_one_byte_an_element(world: World) -> None:
    x = gpu(256, 1024)
    for call in (lambda: F.dropout(x, 0.1), lambda: torch.dropout(x, 0.1, True), lambda: nn.Dropout(0.5)(x)):
        assert kept(world, call)[0] == 256 * KIB
    assert F.dropout(x, 0.1, training=False) is x


def recurrent(kind: Any, **options: Any) -> Callable[[], Tensor]:
    network = kind(32, 64, num_layers=2, **options).cuda()
    x = torch.randn(16, 8, 32, device="cuda")
    return lambda: network(x)[0]


@pytest.mark.parametrize(
    ("kind", "directions", "parts"),
    [(nn.LSTM, 1, 11), (nn.GRU, 1, 13), (nn.RNN, 1, 3), (nn.LSTM, 2, 11)],
)
def test_what_an_rnn_keeps_is_a_range(world: World, kind: Any, directions: int, parts: int) -> None:
    """Two layers: gates and cell of each, and the input of the second."""
    held, more = kept(world, recurrent(kind, bidirectional=directions == 2))
    reserve = 16 * 8 * 64 * directions * parts * 4
    states = 2 * directions * 8 * 64 * 4 * (2 if kind is nn.LSTM else 1)
    assert (held - reserve, more) in ((states, reserve // 2), (2 * states, reserve // 2))


def test_the_published_reserves_are_met() -> None:
    """Four layers of 320 and 25 000 steps in all, of an LSTM and a GRU."""
    for kind, size in ((nn.LSTM, 736_000_000), (nn.GRU, 864_000_000)):
        made = World(claims=Claims(Memory()), has_values=False)
        torch.__future__.set_swap_module_params_on_conversion(True)
        try:
            with claimed(made):
                network = kind(123, 320, num_layers=4).cuda()
                out = network(torch.empty(1000, 25, 123, device="cuda"))
                assert made.claims.memory is not None
                assert made.claims.memory.uncertain == size // 2, out
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
