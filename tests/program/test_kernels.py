"""What attention, dropout and recurrent networks keep for the backward pass, as CUDA's kernels do; and true values.

And the dtypes of CUDA's autocast: each was compared with torch 2.9's own CUDA dispatcher.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from gpucheck.program import rules
from gpucheck.program.engine import Simulation, tensors_in
from gpucheck.program.simulated_cuda import simulated
from gpucheck.program.simulated_devices import Placements
from gpucheck.work.storages import Memory

KIB = 1024
F32 = torch.float32
WIDE = {"input_size": 512, "hidden_size": 512, "num_layers": 2}


@pytest.fixture(params=[True, False], ids=["values", "no values"])
def sim(request: pytest.FixtureRequest) -> Iterator[Simulation]:
    made = Simulation(placements=Placements(Memory()), has_values=request.param)
    torch.__future__.set_swap_module_params_on_conversion(not made.has_values)
    try:
        with simulated(made):
            yield made
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def gpu(*shape: int, **more: Any) -> Tensor:
    return torch.randn(*shape, device="cuda", requires_grad=True, **more)


def kept(sim: Simulation, call: Callable[[], Tensor]) -> int:
    """The bytes that a call's result keeps beside itself."""
    memory = sim.placements.memory
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
def test_a_fused_attention_keeps_no_scores(sim: Simulation, name: str) -> None:
    dtype, options, extra = ATTENTION[name]
    query, key, value = (gpu(2, 4, 128, 64, dtype=dtype) for _ in range(3))
    assert kept(sim, lambda: F.scaled_dot_product_attention(query, key, value, **options)) == extra
    assert query.grad is not None and query.grad.device.type == "cuda"
    # Joining the heads makes no copy.
    assert kept(sim, lambda: F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)) == 4 * KIB


SCORES = 2 * 4 * 128 * 128 * 4


def test_what_no_fused_kernel_takes_keeps_the_scores(sim: Simulation) -> None:
    """Rows that are no multiple of 16 bytes; an attention that is written out."""
    query, key, value = (gpu(2, 4, 128, 5) for _ in range(3))
    held = kept(sim, lambda: F.scaled_dot_product_attention(query, key, value, dropout_p=0.1))
    # Before and after the dropout, and a byte for each.
    assert 2.25 * SCORES <= held <= 2.25 * SCORES + 64 * KIB
    assert kept(sim, lambda: (query @ key.transpose(-2, -1)).softmax(-1) @ value) >= SCORES


def test_a_case_that_only_a_cpu_fuses_keeps_the_scores(sim: Simulation) -> None:
    """Groups of heads in float32, and a mask whose rows are not contiguous, such as T5's position bias."""
    query = gpu(2, 4, 128, 64)
    key, value = gpu(2, 2, 128, 64), gpu(2, 2, 128, 64)
    assert kept(sim, lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=True)) >= SCORES
    key, value = gpu(2, 4, 128, 64), gpu(2, 4, 128, 64)
    for bias, scores in ((gpu(128, 128, 4).permute(2, 0, 1)[None], SCORES), (gpu(1, 4, 128, 128), 0)):
        call = lambda: F.scaled_dot_product_attention(query, key, value, attn_mask=bias)  # noqa: B023, E731
        assert scores <= kept(sim, call) <= scores * 2 + 4 * KIB


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
    made = Simulation(placements=Placements(Memory()), has_values=False)
    lent = [0]
    with simulated(made), mock.patch.object(Memory, "lend", lambda memory, size: lent.append(size)):
        call()
    assert max(lent) / MIB == pytest.approx(size, rel=0.005)


@pytest.mark.parametrize(
    "given",
    [
        lambda: torch.ones((), device="cuda"),
        lambda: torch.ones(4, 0, device="cuda"),
        lambda: torch.eye(3).to_sparse_csr().cuda(),
        lambda: torch.nested.nested_tensor([torch.ones(2)]).cuda(),
    ],
    ids=["number", "empty", "CSR", "nested"],
)
def test_what_has_no_rows_is_reduced_too(given: Callable[[], Tensor]) -> None:
    made = Simulation(placements=Placements(Memory()))
    with simulated(made):
        assert given().sum(-1, keepdim=True).is_cuda


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
def test_a_loss_stands_in_the_memory_of_its_elements(sim: Simulation, loss: Callable[..., Tensor], size: int) -> None:
    """As its storage has it on a GPU."""
    memory = sim.placements.memory
    assert memory is not None
    x, y = torch.rand(256, 1024, device="cuda"), torch.rand(256, 1024, device="cuda")
    before = memory.allocated
    made = loss(x, y)
    assert memory.allocated - before == (size or 512)
    assert made.shape == ()


def test_a_dropout_keeps_one_byte_an_element(sim: Simulation) -> None:
    x = gpu(256, 1024)
    for call in (lambda: F.dropout(x, 0.1), lambda: torch.dropout(x, 0.1, True), lambda: nn.Dropout(0.5)(x)):
        assert kept(sim, call) == 256 * KIB
    assert F.dropout(x, 0.1, training=False) is x


def recurrent(kind: Any, **options: Any) -> Callable[[], Tensor]:
    network = kind(32, 64, num_layers=2, **options).cuda()
    x = torch.randn(16, 8, 32, device="cuda")
    return lambda: network(x)[0]


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
    made = Simulation(placements=Placements(Memory()), has_values=False)
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        with simulated(made):
            network = kind(**options).to("cuda", dtype)
            x = torch.empty(*shape, options["input_size"], device="cuda", dtype=dtype)
            memory = made.placements.memory
            assert memory is not None
            before = memory.allocated
            out, states = network(x)
            held = memory.allocated - before - sum(entry.nbytes for entry in (out, *tensors_in(states)))
            assert held == pytest.approx(size, rel=0.001)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(False)


def outcome(kind: Any, x: Tensor, **options: Any) -> list[Tensor]:
    torch.manual_seed(3)
    network = kind(8, 6, num_layers=2, **options).to(x.device)
    network.train()
    out, state = network(x)
    states = state if isinstance(state, tuple) else (state,)
    sum(entry.square().sum() for entry in (out, *states)).backward()
    return [out, *(entry.grad for entry in network.parameters())]


@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_values_and_gradients_are_those_of_the_cpu(kind: Any) -> None:
    x = torch.randn(5, 3, 8)
    here = outcome(kind, x, bidirectional=True)
    with simulated(Simulation()):
        there = [entry.cpu() for entry in outcome(kind, x.to("cuda"), bidirectional=True)]
    for entry, other in zip(here, there, strict=True):
        torch.testing.assert_close(entry, other)


@pytest.mark.parametrize("index", [[0, 2], (slice(None), [1, 2]), (0, [1])])
def test_a_list_as_an_index_lies_beside_what_it_indexes(sim: Simulation, index: Any) -> None:
    x = torch.ones(3, 3, device="cuda")
    assert x[index].device.type == "cuda"
    x[index] = 2
    with pytest.raises(RuntimeError, match=rules.APART):
        x[index] += torch.ones(3)


# -- autocast ----------------------------------------------------------------------------------------------------------

LOW, FULL, DOUBLE = torch.bfloat16, torch.float32, torch.float64


def on_gpu(module: nn.Module) -> Any:
    return module.to("cuda")


# Calls with float32 `x` and `h`, the same in the region's dtype, of 4 by 4; and the dtypes of what they return.
AUTOCAST: list[tuple[Callable[[Tensor, Tensor], Any], torch.dtype]] = [
    (lambda x, h: x @ h, LOW),
    (lambda x, h: torch.einsum("ij,kj->ik", x, x), LOW),
    (lambda x, h: F.linear(x, x, x[0]), LOW),
    (lambda x, h: F.conv1d(x[None], x[:, :, None]), LOW),
    (lambda x, h: F.conv1d(x[None], x[:, :, None], padding="same"), LOW),
    (lambda x, h: torch.inner(x, h), FULL),
    (lambda x, h: F.prelu(x, x[0]), LOW),
    (lambda x, h: torch.addmm(x, x, h), LOW),
    (lambda x, h: F.scaled_dot_product_attention(x[None, None], x[None, None], x[None, None]), LOW),
    (lambda x, h: nn.MultiheadAttention(4, 2, device="cuda")(x, x, x, need_weights=False)[0], LOW),
    (lambda x, h: nn.TransformerEncoderLayer(4, 2, 4, device="cuda")(x), FULL),
    (lambda x, h: nn.LSTM(4, 4, device="cuda")(x)[0], torch.float16),
    (lambda x, h: F.layer_norm(h, (4,)), FULL),
    (lambda x, h: F.group_norm(h[None], 2), FULL),
    (lambda x, h: F.batch_norm(h, None, None, training=True), LOW),
    (lambda x, h: F.interpolate(h[None], scale_factor=2), FULL),
    (lambda x, h: h.exp(), FULL),
    (lambda x, h: h**2, FULL),
    (lambda x, h: F.mse_loss(h, x), FULL),
    (lambda x, h: F.cross_entropy(h, h.argmax(0)), FULL),
    (lambda x, h: F.binary_cross_entropy_with_logits(h, h), FULL),
    (lambda x, h: h.softmax(-1), FULL),
    (lambda x, h: h.softmax(-1, dtype=DOUBLE), DOUBLE),
    (lambda x, h: F.log_softmax(h, -1), FULL),
    (lambda x, h: h.sum(), FULL),
    (lambda x, h: h.sum(0, dtype=DOUBLE), DOUBLE),
    (lambda x, h: h.argmax(0).sum(), torch.int64),
    (lambda x, h: h.cumsum(0), FULL),
    (lambda x, h: h.norm(), FULL),
    (lambda x, h: torch.norm(h, 2, 0), FULL),
    (lambda x, h: torch.linalg.norm(h), FULL),
    (lambda x, h: torch.ops.aten.norm(h, 2, [0], True), FULL),
    (lambda x, h: torch.addcmul(h, h, h), LOW),
    (lambda x, h: torch.addcmul(h, h, x), FULL),
    (lambda x, h: x.scatter_add(0, h.argsort(0), h), FULL),
    (lambda x, h: torch.tensordot(h, h), LOW),
    # What is not in a list runs as it is.
    (lambda x, h: torch.cat([x, h]), FULL),
    (lambda x, h: F.gelu(h), LOW),
    (lambda x, h: h.mean(), LOW),
    (lambda x, h: h + h, LOW),
    (lambda x, h: torch.mm(x, x, out=torch.empty(4, 4, device="cuda")), FULL),
    (lambda x, h: torch.zeros(4, 4, device="cuda").addmm_(x, x), FULL),
    # A double is not cast, nor what lies on the CPU.
    (lambda x, h: x.double() @ x.double(), DOUBLE),
    (lambda x, h: torch.ones(2, 2) @ torch.ones(2, 2), FULL),
    (lambda x, h: F.binary_cross_entropy(torch.ones(2), torch.ones(2)), FULL),
]


@pytest.mark.parametrize("mode", [torch.enable_grad, torch.inference_mode])
@pytest.mark.parametrize("low", [LOW, torch.float16])
def test_autocast_gives_the_dtypes_of_cuda(sim: Simulation, mode: Any, low: torch.dtype) -> None:
    with mode(), torch.autocast("cuda", dtype=low):
        found = []
        for call, dtype in AUTOCAST:
            x = torch.rand(4, 4, device="cuda")
            found.append((call(x, x.to(low)).dtype, low if dtype is LOW else dtype))
    assert [(place, *pair) for place, pair in enumerate(found) if pair[0] != pair[1]] == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
@pytest.mark.parametrize(("has_cudnn", "dtype"), [(True, torch.float16), (False, LOW)])
def test_an_rnn_of_cudnn_is_in_float16(sim: Simulation, kind: Any, has_cudnn: bool, dtype: torch.dtype) -> None:
    network, x = on_gpu(kind(4, 3, batch_first=True)), torch.ones(2, 5, 4, device="cuda")
    packed = nn.utils.rnn.pack_padded_sequence(x, torch.tensor([5, 3]), batch_first=True)
    with torch.backends.cudnn.flags(enabled=has_cudnn), torch.autocast("cuda", dtype=LOW):
        outs = [network(x)[0], network(packed)[0].data]
        sum(entry.float().sum() for entry in outs).backward()
    assert [entry.dtype for entry in outs] == [dtype, dtype] and network.weight_ih_l0.grad.dtype == FULL


def test_the_lists_are_those_of_the_installed_torch() -> None:
    header = (Path(torch.__file__).parent / "include/ATen/autocast_mode.h").read_text(encoding="utf-8")
    lists = {
        name: {row.split(",")[0] for row in re.findall(r"_\((\w[^)]*)\)", rows)}
        for name, rows in re.findall(r"#define AT_FORALL_(\w+)\(_\)(.*?)(?:\n\n|\Z)", header, re.DOTALL)
    }
    assert lists["LOWER_PRECISION_FP"] <= {*rules.LOWERED}  # a torch of before has fewer
    assert lists["PROMOTE"] <= {*rules.PROMOTED} and lists["FP32_SET_OPT_DTYPE"] <= {*rules.SUMMED}
    known = {
        name.removeprefix("aten::").partition(".")[0]
        for name in torch._C._dispatch_get_registrations_for_dispatch_key("AutocastCUDA")
    }
    others = {*rules.LOWERED, *rules.PROMOTED, *rules.SUMMED, rules.NORMED, rules.BANNED, "_cudnn_rnn"}
    others.add("linalg_matrix_sqrth")  # since 2.14 registered beside the list
    assert known - others == lists["FP32"]


def test_a_weight_is_cast_once_and_kept_until_its_region_ends(sim: Simulation) -> None:
    memory = sim.placements.memory
    assert memory is not None
    layer = on_gpu(nn.Linear(256, 256, bias=False))
    x = torch.ones(1, 256, device="cuda", requires_grad=True)
    before = memory.allocated

    def held(**options: bool) -> int:
        with torch.autocast("cuda", dtype=LOW, **options):
            with torch.autocast("cuda", dtype=LOW, **options):
                outs = [layer(x), layer(x)]
            size = memory.allocated - before
        del outs
        return size // (256 * 256 * 2)

    assert (held(), held(cache_enabled=False), memory.allocated) == (1, 2, before)
    with torch.no_grad(), torch.autocast("cuda", dtype=LOW):
        layer(x)
        assert (memory.allocated - before) // (256 * 256 * 2) == 1
    assert memory.allocated == before


def test_what_torchvision_casts_is_cast(sim: Simulation) -> None:
    """As its kernels in C++ do: they ask C++ where a tensor lies."""
    library = torch.library.Library("torchvision", "FRAGMENT")
    try:
        library.define("of_two(Tensor rows, Tensor boxes) -> Tensor")
        library.impl("of_two", lambda rows, boxes: rows + boxes.view(rows.dtype), "CompositeExplicitAutograd")
        library.impl("of_two", torch.library.fallthrough_kernel, "AutocastCUDA")
        low, full = torch.ones(2, dtype=LOW, device="cuda"), torch.ones(2, device="cuda")
        with torch.autocast("cuda", dtype=LOW):
            made = torch.ops.torchvision.of_two(low, full)
        assert made.dtype == LOW and made.is_cuda
    finally:
        library._destroy()


def test_what_autocast_refuses_is_refused_with_torchs_own_words(sim: Simulation) -> None:
    x = torch.rand(4, device="cuda")
    with torch.autocast("cuda"), pytest.raises(RuntimeError) as refused:
        F.binary_cross_entropy(x, x)
    assert F.binary_cross_entropy(x, x).dtype == FULL and rules.UNSAFE in str(refused.value)
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match="Unexpected floating ScalarType"):
        torch.addcmul(x.bfloat16(), x.bfloat16(), x.bfloat16())


def test_the_words_of_the_refusal_are_torchs() -> None:
    seen = torch._C._IncludeDispatchKeyGuard(torch._C.DispatchKey.AutocastCUDA)
    torch.set_autocast_enabled("cuda", True)
    try:
        with seen, pytest.raises(RuntimeError) as refused:
            F.binary_cross_entropy(torch.ones(2), torch.ones(2))
    finally:
        torch.set_autocast_enabled("cuda", False)
    assert str(refused.value) == rules.UNSAFE_TO_AUTOCAST


MIXED: dict[str, Callable[[Tensor, Tensor], Any]] = {
    "a half model": lambda x, h: F.linear(x, h, h[0]),
    "its product": lambda x, h: x @ h,
    "a convolution": lambda x, h: F.conv1d(h[None], x[:, :, None]),
    "a norm of weights in float32": lambda x, h: F.layer_norm(h, (4,), x[0], x[0]),
    "a norm by groups": lambda x, h: F.group_norm(h[None], 2, x[0], x[0]),
    "a mask": lambda x, h: x.__setitem__(x > -1, h.flatten()),
    "an index": lambda x, h: x.index_add_(0, torch.arange(4, device="cuda"), h),
}


@pytest.mark.parametrize("name", MIXED)
def test_operands_of_two_dtypes_are_refused_with_values_and_without(sim: Simulation, name: str) -> None:
    x = torch.rand(4, 4, device="cuda")
    with pytest.raises(RuntimeError, match=rules.MIXED_DTYPES):
        MIXED[name](x, x.half())
    assert len(sim.mixed) == 1
    with torch.autocast("cuda"), pytest.raises(RuntimeError, match=rules.MIXED_DTYPES):
        F.linear(x.double(), x)
