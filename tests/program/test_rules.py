"""What an operation says to where its operands lie: the default, and each row of the table. Pure."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from gpucheck.program.engine import DeviceMismatch, Simulation
from gpucheck.program.rules import RULES, Operand, judge
from gpucheck.program.simulated_cuda import simulated

GPU, OTHER, CPU = "cuda:0", "cuda:1", "cpu"


def seen(operation: str, *operands: Operand) -> tuple[str | None, list[str]]:
    verdict = judge(operation, operands)
    return verdict.device, [entry.name for entry in verdict.wrong]


@pytest.mark.parametrize(
    ("operands", "device", "wrong"),
    [
        ((Operand("self", GPU), Operand("other", GPU)), GPU, []),
        ((Operand("self", CPU), Operand("other", CPU)), CPU, []),
        ((Operand("self", GPU), Operand("other", CPU)), GPU, ["other"]),
        ((Operand("self", CPU), Operand("other", GPU)), GPU, ["self"]),
        ((Operand("self", GPU), Operand("other", OTHER)), GPU, ["other"]),
        ((Operand("self", GPU), Operand("other", CPU, dim=0)), GPU, []),
        ((Operand("self", CPU, dim=0), Operand("other", GPU)), GPU, []),
        ((Operand("self", CPU), Operand("other", GPU, dim=0)), GPU, ["self"]),
        ((Operand("self", CPU, dim=0, written=True), Operand("other", GPU)), GPU, ["self"]),
        ((Operand("self", None), Operand("other", GPU)), GPU, []),
        ((Operand("self", None), Operand("other", CPU)), CPU, []),
        ((Operand("self", None),), None, []),
        ((Operand("self", CPU, dim=0), Operand("other", CPU, dim=0)), CPU, []),
        ((Operand("a", OTHER), Operand("b", GPU), Operand("c", GPU)), GPU, ["a"]),
    ],
)
def test_the_default(operands: tuple[Operand, ...], device: str | None, wrong: list[str]) -> None:
    assert seen("aten::add", *operands) == (device, wrong)


def test_lists_are_judged_position_by_position() -> None:
    """An optimizer's counters on the CPU beside parameters that are not, and a gradient that is left."""
    counters = [Operand("self[0]", CPU, 0, True), Operand("self[1]", CPU, 0, True), Operand("other", CPU, 0)]
    assert seen("aten::_foreach_add_", *counters) == (CPU, [])
    mixed = [Operand("self[0]", GPU), Operand("self[1]", CPU), Operand("other[0]", GPU), Operand("other[1]", CPU)]
    assert seen("aten::_foreach_add_", *mixed) == (None, [])
    assert seen("aten::_foreach_mul_", *mixed[:1], Operand("other", CPU, 0)) == (GPU, [])
    assert seen("aten::_foreach_add_", *mixed[:1], Operand("other", CPU, 0)) == (GPU, ["other"])
    left = [Operand("self[0]", GPU), Operand("self[1]", GPU), Operand("other[0]", GPU), Operand("other[1]", CPU)]
    assert seen("aten::_foreach_add_", *left) == (GPU, ["other[1]"])


# -- each row, with the operation itself -------------------------------------------------------------------------------


def gpu(*shape: int, **more: Any) -> torch.Tensor:
    return torch.ones(*shape, device="cuda", **more)


def packed(lengths: torch.Tensor | None = None) -> Any:
    return nn.utils.rnn.pack_padded_sequence(
        gpu(2, 3, 4), torch.tensor([3, 2]) if lengths is None else lengths, batch_first=True
    )


def indexed_put() -> torch.Tensor:
    x, square = gpu(4), gpu(2, 2)
    x[torch.tensor([0, 1])] = 0.5
    x[torch.tensor([True, False, True, True])] = 0.5
    x[[0, 1]] = 0.5
    square[:, torch.tensor([[0], [1]])] = 0.5
    torch.ones(4)[places(0, 1)] = 0.5
    return x.index_put((torch.tensor([2]),), torch.tensor(1.0))


def places(*indices: int) -> torch.Tensor:
    return torch.tensor(indices, device="cuda")


def copied() -> torch.Tensor:
    torch.zeros(3).copy_(gpu(3))
    return gpu(3).copy_(torch.zeros(3))


def foreach_copied() -> torch.Tensor:
    torch._foreach_copy_([torch.zeros(3)], [gpu(3)])
    return gpu(3)


def filled() -> torch.Tensor:
    torch.zeros(3).fill_(gpu(1)[0])
    return gpu(3).fill_(torch.tensor(2.0))


def unpacked() -> torch.Tensor:
    padded, lengths = nn.utils.rnn.pad_packed_sequence(packed(), batch_first=True)
    assert lengths.device.type == "cpu"
    return padded


def through_rnn(kind: type[nn.Module]) -> torch.Tensor:
    sequence = packed()
    assert sequence.batch_sizes.device.type == "cpu"
    out: torch.Tensor = kind(4, 3, batch_first=True).cuda()(sequence)[0].data
    return out


def packed_backward() -> torch.Tensor:
    x = gpu(2, 3, 4, requires_grad=True)
    nn.utils.rnn.pack_padded_sequence(x, torch.tensor([3, 2]), batch_first=True).data.sum().backward()
    assert x.grad is not None
    return x.grad


def ctc() -> torch.Tensor:
    scores = gpu(5, 2, 4, requires_grad=True).log_softmax(-1)
    loss = F.ctc_loss(scores, torch.ones(2, 2, dtype=torch.long), torch.tensor([5, 5]), torch.tensor([2, 2]))
    loss.backward()
    return loss


def adam(**more: Any) -> torch.Tensor:
    weight = nn.Parameter(gpu(3))
    weight.grad = gpu(3)
    torch.optim.AdamW([weight], **more).step()
    return weight


def factors() -> torch.Tensor:
    x = gpu(3)
    torch._foreach_addcmul_([x], [gpu(3)], [gpu(3)], torch.tensor([0.5]))
    return x


# Operation of the table → a call that is right on a GPU, with all that may lie on the CPU there.
LEGAL: dict[str, Callable[[], torch.Tensor]] = {
    "index": lambda: gpu(4)[torch.tensor([0, 1])],
    "index_put_": indexed_put,
    "copy_": copied,
    "_foreach_copy_": foreach_copied,
    "fill_": filled,
    "masked_fill": lambda: gpu(3).masked_fill(gpu(3) > 0, torch.tensor(0.5)),
    "index_fill": lambda: gpu(3).index_fill(0, gpu(2, dtype=torch.long), torch.tensor(0.5)),
    "view_as": lambda: gpu(4).view_as(torch.zeros(2, 2)),
    "zeros_like": lambda: torch.zeros_like(gpu(3)),
    "_pack_padded_sequence": lambda: packed().data,
    "_pack_padded_sequence_backward": packed_backward,
    "_pad_packed_sequence": unpacked,
    "lstm": lambda: through_rnn(nn.LSTM),
    "gru": lambda: through_rnn(nn.GRU),
    "rnn_tanh": lambda: through_rnn(nn.RNN),
    "ctc_loss": ctc,
    "tensor_split": lambda: torch.tensor_split(gpu(4), torch.tensor([1, 2]))[0],
    "_foreach_addcmul_": factors,
    "_foreach_addcdiv_": lambda: torch._foreach_addcdiv([gpu(3)], [gpu(3)], [gpu(3)], torch.tensor([0.5]))[0],
    "_foreach_mul": lambda: torch._foreach_mul([gpu(3)], torch.tensor(2.0))[0],
    "bernoulli_": lambda: gpu(3).bernoulli_(torch.full((3,), 0.5)),
    "linspace": lambda: torch.linspace(torch.tensor(0.0), torch.tensor(1.0), 3, out=gpu(3)),
    "soft_margin_loss": lambda: F.soft_margin_loss(gpu(3), torch.tensor(1.0)),
    "slice_scatter": lambda: torch.slice_scatter(gpu(4), torch.ones(2), 0, 0, 2),
    "where": lambda: torch.where(gpu(3) > torch.tensor(0.0), torch.tensor(1.0), gpu(3)),
    "binary_cross_entropy_with_logits": lambda: F.binary_cross_entropy_with_logits(
        gpu(3), gpu(3), torch.tensor(2.0), pos_weight=torch.tensor(3.0)
    ),
    "new_tensor": lambda: gpu(2) * gpu(1).new_tensor([1.0, 2.0]) * torch.ones(2).new_tensor([1.0, 2.0], device="cuda"),
    "tensor": lambda: gpu(2) + torch.tensor(gpu(2)),
    "normal": lambda: gpu(2) + torch.normal(gpu(2), 1.0) + torch.normal(0.0, 1.0, (2,), device="cuda"),
    "set_": lambda: torch.empty(0, device="cuda").set_(gpu(2).untyped_storage()),
    "offsets": lambda: torch.nested.nested_tensor_from_jagged(gpu(4, 2), places(0, 2, 4)).values(),
    "linspace of a device": lambda: torch.linspace(0, 1, 2, device="cuda", out=gpu(2)),
    "normal of a device": lambda: torch.normal(0.0, 1.0, (2,), device="cuda", out=gpu(2)),
    "bernoulli": lambda: torch.bernoulli(torch.ones(2), out=gpu(2)),
    "csr of lists": lambda: torch.sparse_csr_tensor([0, 1, 2], [0, 1], gpu(2)).values(),
    "csc of lists": lambda: torch.sparse_csc_tensor([0, 1, 2], [0, 1], gpu(2), (2, 2)).row_indices(),
    "bsr of lists": lambda: torch.sparse_bsr_tensor([0, 1], [0], gpu(1, 1, 1)).values(),
    "coo of lists": lambda: torch.sparse_coo_tensor(indices=[[0, 1]], values=gpu(2))._indices(),
    "out of numbers": lambda: torch.full((2,), 1.0, out=gpu(2)) + torch.normal(0.0, 1.0, (2,), out=gpu(2)),
    "pad_sequence": lambda: nn.utils.rnn.pad_sequence([gpu(2), torch.ones(3)]),
    "_fused_adamw_": lambda: adam(fused=True),
    "adamw": lambda: adam(foreach=True),
    "adamw, one by one": lambda: adam(foreach=False),
}


@pytest.mark.parametrize("name", LEGAL)
def test_what_may_lie_on_the_cpu(name: str) -> None:
    with simulated(Simulation()):
        assert LEGAL[name]().device == torch.device("cuda:0")


# The same of calls that leave their result on the CPU: what lies on a GPU is copied, or read.
ON_HOST: dict[str, Callable[[], torch.Tensor]] = {
    "_index_put_impl_": lambda: torch.ones(4).index_put_((places(0, 1),), torch.ones(2)),
    "_index_put_impl_, a number": lambda: torch.ones(4).index_put_((places(0),), gpu(1)[0]),
    "index_fill": lambda: torch.ones(3).index_fill(0, torch.tensor([0]), gpu(1)[0]),
    "index, a bool": lambda: torch.ones(3)[gpu(1)[0] > 0],
    "one_hot": lambda: F.one_hot(torch.tensor([0, 1]), places(3)[0]),
    "pad_sequence": lambda: nn.utils.rnn.pad_sequence([torch.ones(2), gpu(3)]),
    "bernoulli": lambda: torch.bernoulli(gpu(2), out=torch.ones(2)),
}


@pytest.mark.parametrize("name", ON_HOST)
def test_what_lies_on_a_gpu_and_is_read(name: str) -> None:
    with simulated(Simulation()):
        assert ON_HOST[name]().device == torch.device("cpu")


# Operation → a call that CUDA refuses.
ILLEGAL: dict[str, Callable[[], object]] = {
    "index": lambda: torch.ones(4)[gpu(2, dtype=torch.long)],
    "masked_fill": lambda: gpu(3).masked_fill(torch.ones(3, dtype=torch.bool), 0.5),
    "_pack_padded_sequence": lambda: packed(torch.tensor([3, 2]).cuda()),
    "lstm": lambda: nn.LSTM(4, 3).cuda()(torch.ones(2, 1, 4)),
    "tensor_split": lambda: torch.tensor_split(gpu(4), gpu(1, dtype=torch.long)),
    "cat": lambda: torch.cat([gpu(3), torch.ones(2)]),
    "stack": lambda: torch.stack([gpu(3)[0], torch.tensor(1.0)]),
    "embedding": lambda: F.embedding(torch.tensor(1), gpu(4, 3)),
    "gather": lambda: gpu(3).gather(0, torch.tensor([0])),
    "index_select": lambda: gpu(3).index_select(0, torch.tensor(0)),
    # A 0-dim CPU tensor is no number to these.
    "a score's loss": lambda: F.mse_loss(gpu(3).mean(), torch.tensor(1.0)),
    "a score's cross-entropy": lambda: F.binary_cross_entropy_with_logits(gpu(3).mean(), torch.tensor(1.0)),
    "clamp": lambda: gpu(3).clamp(min=torch.tensor(0.0)),
    "take": lambda: torch.take(gpu(3), torch.tensor(0)),
    "bucketize": lambda: torch.bucketize(torch.tensor(0.5), gpu(3)),
    "logaddexp": lambda: torch.logaddexp(gpu(3), torch.tensor(0.0)),
    "addcmul": lambda: torch.addcmul(torch.tensor(0.0), gpu(3), gpu(3)),
    "logical_and": lambda: torch.logical_and(torch.tensor(True), gpu(3) > 0),
    "tensor": lambda: torch.ones(3) + torch.tensor(gpu(3)),
    "tensor of items": lambda: gpu(3) + torch.tensor([*gpu(3)]),
    "normal": lambda: gpu(3) + torch.normal(0.0, 1.0, (3,)),
    "new_tensor": lambda: gpu(3) + gpu(1).new_tensor([1.0, 2.0, 3.0], device="cpu"),
    "add_": lambda: torch.tensor(0.0).add_(gpu(3).sum()),
    "out": lambda: torch.add(gpu(3), gpu(3), out=torch.empty(3)),
    "scatter": lambda: gpu(3).scatter(0, torch.tensor([0]), 1.0),
    "where": lambda: torch.where(torch.tensor([True]), gpu(1), gpu(1)),
    "conv2d": lambda: nn.Conv2d(1, 1, 1).cuda()(torch.ones(1, 1, 2, 2)),
    "batch_norm": lambda: F.batch_norm(gpu(2, 3), torch.zeros(3), torch.ones(3)),
    "attention": lambda: F.scaled_dot_product_attention(*(gpu(1, 1, 2, 4),) * 3, attn_mask=torch.ones(2, 2)),
    "matmul": lambda: gpu(2, 3) @ torch.ones(3),
    "einsum": lambda: torch.einsum("ij,j->i", gpu(2, 3), torch.ones(3)),
    "numpy": lambda: gpu(3).numpy(),
    "generator": lambda: gpu(3).normal_(generator=torch.Generator()),
    "out of numbers": lambda: torch.add(torch.tensor(1.0), torch.tensor(2.0), out=gpu(1)[0]),
    "lists": lambda: torch._foreach_maximum([gpu(3)], [torch.tensor(0.0)]),
    "a fused step": lambda: torch._amp_foreach_non_finite_check_and_unscale_([gpu(3)], gpu(1)[0], torch.tensor(1.0)),
    "equal": lambda: torch.equal(gpu(1)[0], torch.tensor(1.0)),
    "a range": lambda: torch.arange(gpu(1, dtype=torch.long)[0]) < gpu(2, 1),
    "coo of a list": lambda: torch.sparse_coo_tensor(places(0, 1).view(1, 2), [1.0, 2.0]),
    "csr of a list": lambda: torch.sparse_csr_tensor(places(0, 1, 2), places(0, 1), [1.0, 2.0]),
    "quantile": lambda: gpu(3).quantile(torch.tensor(0.5)),
    "nanquantile": lambda: torch.nanquantile(gpu(3), q=torch.tensor(0.5)),
    "histogram": lambda: torch.histogram(gpu(3), 2),
    "offsets": lambda: torch.nested.nested_tensor_from_jagged(gpu(4, 2), torch.tensor([0, 2, 4])),
    "offsets of lengths": lambda: torch.nested.nested_tensor_from_jagged(gpu(4, 2), lengths=torch.tensor([2, 2])),
    "out of a norm": lambda: torch.linalg.norm(gpu(3), out=torch.tensor(0.0)),
    "out of a power": lambda: torch.linalg.matrix_power(torch.ones(2, 2), 2, out=gpu(2, 2)),
    "out of a difference": lambda: torch.diff(gpu(3), n=0, out=torch.ones(3)),
    "out of a list": lambda: torch.max(gpu(2, 2), 0, out=(gpu(2), torch.ones(2, dtype=torch.long))),
    "_histogramdd_bin_edges": lambda: torch.histogramdd(gpu(3, 2), [2, 2]),
    "index_put": lambda: gpu(4).index_put((places(0, 1),), torch.ones(2)),
    "set_": lambda: gpu(2).set_(torch.ones(2).untyped_storage()),
    "set_ to the GPU's": lambda: torch.empty(0).set_(gpu(2).storage(), 0, (2,)),
    "kl_div": lambda: F.kl_div(gpu(3), torch.ones(3)),
    "a second GPU": lambda: gpu(3) + torch.ones(3, device="cuda:1"),
}


@pytest.mark.parametrize("name", ILLEGAL)
def test_what_cuda_refuses(name: str) -> None:
    with simulated(Simulation()), pytest.raises(DeviceMismatch):
        ILLEGAL[name]()


INTEGERS: dict[str, Callable[[torch.Tensor], object]] = {
    "addmm_cuda": lambda x: x @ x,
    "baddbmm_cuda": lambda x: torch.einsum("bij,bjk->bik", x[None], x[None]),
    "addmv_impl_cuda": lambda x: x @ x[0],
    "dot": lambda x: x[0] @ x[0],
    "max_pool2d_with_indices_out_cuda_frame": lambda x: F.max_pool2d(x[None], 2),
    "avg_pool2d_out_cuda_frame": lambda x: F.avg_pool1d(x, 2),
    "slow_conv2d_cuda": lambda x: F.conv2d(x[None, None], x[None, None]),
}


@pytest.mark.parametrize("kernel", INTEGERS)
def test_cuda_multiplies_and_pools_no_integers(kernel: str) -> None:
    """A CPU does: the dry run passed, and the program ended on the GPU."""
    call = INTEGERS[kernel]
    with simulated(Simulation()):
        call(torch.ones(2, 2, dtype=torch.long))
        call(gpu(2, 2))
        with pytest.raises(NotImplementedError, match=f"\"{kernel}\" not implemented for 'Long'"):
            call(gpu(2, 2, dtype=torch.long))


HALVES: dict[str, tuple[torch.dtype, Callable[[torch.Tensor], object]]] = {
    "angle_cuda": (torch.float16, torch.angle),
    "igamma_cuda": (torch.bfloat16, lambda x: torch.special.gammainc(x, x)),
    "igammac_cuda": (torch.float16, lambda x: torch.igammac(x, x)),
    "histc": (torch.bfloat16, torch.histc),
    "upsample_bilinear2d_out_frame": (torch.uint8, lambda x: F.interpolate(x[None, None], (4, 4), mode="bilinear")),
    "upsample_bicubic2d_out_frame": (torch.uint8, lambda x: F.interpolate(x[None, None], (4, 4), mode="bicubic")),
    "addmm_cuda": (torch.float8_e5m2, lambda x: x @ x),
}


@pytest.mark.parametrize("kernel", HALVES)
def test_cuda_has_no_kernel_for_each_dtype_of_a_cpu(kernel: str) -> None:
    dtype, call = HALVES[kernel]
    with simulated(Simulation()):
        call(torch.ones(2, 2).to(dtype))
        call(gpu(2, 2))
        torch.igamma(gpu(2).half(), gpu(2))  # which is one of float32
        torch.logaddexp(gpu(2).cfloat(), gpu(2).cfloat())  # which torch 2.13 has
        with pytest.raises(NotImplementedError, match=f'"{kernel}" not implemented for'):
            call(gpu(2, 2).to(dtype))


def test_every_row_has_a_call() -> None:
    """At least one operation of each row is called above."""
    called = {name.removesuffix("_") for name in (*LEGAL, *ON_HOST, *ILLEGAL)}
    rows = [{name.removesuffix("_") for name in rule.operations} for rule in RULES]
    assert [row for row in rows if not called & row] == []
