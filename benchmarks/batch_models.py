"""Whether `find-batch-size` can be refuted on models unlike the built-in ones: each answer is trained for longer.

    python benchmarks/batch_models.py --kept models.jsonl [--only lstm]... [--load 2] [--memory-limit 512MiB]

A run searches one of the models below, by the command as a user types it, and then trains for more steps than any trial
had, in processes of its own that use nothing of gpucheck, under the same budget: the same resident memory above a warm
process, and the same limit on what is allocated. "Largest: N" is refuted where N does not train, or where a size above
N·(1 + 2·tolerance) does; "at least N" only where N does not. Peaks repeat to some per cent, so that a size counts as it
comes out twice in a row. An answer that says nothing (no size passed in time) cannot be refuted, and is counted apart.

`--load` keeps so many processes busy beside each search; on a machine that others keep busy `--threads 1` lets a search
come to an end. Each run is kept in the file as it ends, and an interrupted
benchmark goes on from there; `benchmarks/results/batch-models-cpu.jsonl` has the runs of the last change to the search.
Exits 1 where an answer is refuted. Linux alone: the peak is read from /proc.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(Path(__file__).resolve().parent)]

import torch  # noqa: E402
from torch import Tensor, nn  # noqa: E402
from torch.nn import functional as F  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

TOLERANCE = 0.02
# Trials take two or three steps.
STEPS = 6
# One run of a size may lie above the budget by noise: it counts as it comes out so often.
AGREE = 2
TRAINING_LIMIT_S = 300.0
# A thread's stack counts as allocated (8 MiB), and two processes do not start the same ones before they are measured:
# so much more may be allocated, not used, where a size is to train.
ALLOCATED_SLACK_BYTES = 16 * 2**20
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536", "MALLOC_TRIM_THRESHOLD_": "0", "MALLOC_ARENA_MAX": "1"}
# On a busy machine threads that spin while they wait take most of the time; memory is the same.
PATIENT = {"OMP_WAIT_POLICY": "PASSIVE"}

Batch = tuple[Any, Any]


def parts(
    model: nn.Module, make_batch: Callable[..., Batch], loss: Callable[[Any, Any], Tensor], optimizer: Any = None
) -> SimpleNamespace:
    """What a factory returns: gpucheck's own contract for a workload."""
    made = SimpleNamespace(model=model, make_batch=make_batch, loss=loss)
    if optimizer is not None:
        made.optimizer = optimizer
    return made


def classes(*shape: int, count: int = 10) -> Callable[[int], Batch]:
    """Random inputs of a shape with a class each."""
    return lambda size: (torch.randn(size, *shape), torch.randint(count, (size,)))


def tokens(length: int, vocabulary: int) -> Callable[[int], Batch]:
    """Random tokens, each with a token to predict."""
    return lambda size: (torch.randint(vocabulary, (size, length)), torch.randint(vocabulary, (size, length)))


def token_loss(scores: Tensor, wanted: Tensor) -> Tensor:
    return F.cross_entropy(scores.flatten(0, -2), wanted.flatten())


class Function(nn.Module):  # type: ignore[misc]  # torch counts as Any
    """A module that runs a function of itself and its arguments, over named parts."""

    def __init__(self, run: Callable[..., Any], **modules: nn.Module) -> None:
        super().__init__()
        self.run = run
        for name, module in modules.items():
            self.add_module(name, module)

    def forward(self, *arguments: Any) -> Any:
        return self.run(self, *arguments)


# Recurrent


def last_of(kind: type[nn.RNNBase], length: int, width: int, hidden: int, **more: Any) -> SimpleNamespace:
    body = kind(width, hidden, batch_first=True, **more)
    head = nn.Linear(hidden * (2 if more.get("bidirectional") else 1), 10)
    model = Function(lambda self, x: self.head(self.body(x)[0][:, -1]), body=body, head=head)
    return parts(model, classes(length, width), F.cross_entropy)


def lstm() -> SimpleNamespace:
    return last_of(nn.LSTM, 64, 64, 256, num_layers=2)


def lstm_long() -> SimpleNamespace:
    return last_of(nn.LSTM, 256, 16, 64)


def lstm_both_ways() -> SimpleNamespace:
    return last_of(nn.LSTM, 48, 32, 128, num_layers=2, bidirectional=True, dropout=0.1)


def lstm_projected() -> SimpleNamespace:
    body, head = nn.LSTM(32, 192, proj_size=64, batch_first=True), nn.Linear(64, 10)
    model = Function(lambda self, x: self.head(self.body(x)[0][:, -1]), body=body, head=head)
    return parts(model, classes(48, 32), F.cross_entropy)


def gru() -> SimpleNamespace:
    return last_of(nn.GRU, 64, 48, 192)


def rnn() -> SimpleNamespace:
    return last_of(nn.RNN, 128, 32, 128)


def gru_packed() -> SimpleNamespace:
    """Sequences of unlike lengths, packed."""

    def run(self: Any, x: Tensor, lengths: Tensor) -> Tensor:
        packed = nn.utils.rnn.pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=False)
        return self.head(self.body(packed)[1][-1])

    def batch(size: int) -> Batch:
        lengths = 8 + torch.arange(size) * 7 % 57
        return (torch.randn(size, 64, 48), lengths), torch.randint(10, (size,))

    model = Function(run, body=nn.GRU(48, 128, batch_first=True), head=nn.Linear(128, 10))
    return parts(model, batch, F.cross_entropy)


def cells_in_a_loop() -> SimpleNamespace:
    def run(self: Any, x: Tensor) -> Tensor:
        state = x.new_zeros(len(x), 96), x.new_zeros(len(x), 96)
        for at in range(x.shape[1]):
            state = self.cell(x[:, at], state)
        return self.head(state[0])

    return parts(Function(run, cell=nn.LSTMCell(24, 96), head=nn.Linear(96, 10)), classes(40, 24), F.cross_entropy)


# Attention


def attention_by_hand() -> SimpleNamespace:
    """Scores of every pair of 256 positions are kept."""

    def run(self: Any, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        scores = (q @ k.transpose(1, 2) / 8).softmax(-1)
        return self.head((scores @ v).mean(1))

    return parts(Function(run, qkv=nn.Linear(64, 192), head=nn.Linear(64, 10)), classes(256, 64), F.cross_entropy)


def attention_along_its_length() -> SimpleNamespace:
    """The same along the sequence, where memory grows with its square."""
    made = attention_by_hand()
    made.make_batch = lambda size, seq: (torch.randn(size, seq, 64), torch.randint(10, (size,)))
    return made


def encoder() -> SimpleNamespace:
    layer = nn.TransformerEncoderLayer(96, 4, 256, batch_first=True)
    model = Function(
        lambda self, ids: self.head(self.body(self.embed(ids))),
        embed=nn.Embedding(1000, 96),
        body=nn.TransformerEncoder(layer, 3, enable_nested_tensor=False),
        head=nn.Linear(96, 1000),
    )
    return parts(model, tokens(64, 1000), token_loss)


def checkpointed() -> SimpleNamespace:
    """Activations are computed once more in the backward pass."""

    def run(self: Any, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = x + checkpoint(block, x, use_reentrant=False)
        return self.head(x.mean(1))

    block = [nn.Sequential(nn.LayerNorm(96), nn.Linear(96, 384), nn.GELU(), nn.Linear(384, 96)) for _ in range(6)]
    return parts(Function(run, blocks=nn.ModuleList(block), head=nn.Linear(96, 10)), classes(64, 96), F.cross_entropy)


def experts() -> SimpleNamespace:
    """Each sample goes to one of eight experts, by its data."""

    def run(self: Any, x: Tensor) -> Tensor:
        weight, chosen = self.gate(x).softmax(-1).max(-1)
        out = torch.zeros_like(x)
        for place, expert in enumerate(self.experts):
            mine = chosen == place
            out[mine] = expert(x[mine]) * weight[mine, None]
        return self.head(out)

    expert = [nn.Sequential(nn.Linear(128, 512), nn.ReLU(), nn.Linear(512, 128)) for _ in range(8)]
    model = Function(run, gate=nn.Linear(128, 8), experts=nn.ModuleList(expert), head=nn.Linear(128, 10))
    return parts(model, classes(128), F.cross_entropy)


def hugging_face(name: str, kind: str, **settings: Any) -> SimpleNamespace:
    import transformers

    config = getattr(transformers, f"{name}Config")(**settings)
    body = getattr(transformers, kind)(config)
    model = Function(lambda self, ids: self.body(input_ids=ids).logits, body=body)
    return parts(model, tokens(64, 1000), token_loss)


def bert() -> SimpleNamespace:
    sizes = {"vocab_size": 1000, "hidden_size": 96, "num_hidden_layers": 3, "num_attention_heads": 4}
    return hugging_face("Bert", "BertForMaskedLM", intermediate_size=256, **sizes)


def gpt2() -> SimpleNamespace:
    return hugging_face("GPT2", "GPT2LMHeadModel", vocab_size=1000, n_embd=96, n_layer=3, n_head=4, n_positions=64)


# Images


def conv_normalised() -> SimpleNamespace:
    def block(low: int, high: int) -> list[nn.Module]:
        return [nn.Conv2d(low, high, 3, padding=1), nn.BatchNorm2d(high), nn.ReLU(inplace=True), nn.MaxPool2d(2)]

    layers = [*block(3, 16), *block(16, 32), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return parts(nn.Sequential(*layers), classes(3, 32, 32), F.cross_entropy)


def conv_of_volumes() -> SimpleNamespace:
    layers = [nn.Conv3d(1, 8, 3, padding=1), nn.ReLU(), nn.Conv3d(8, 8, 3, stride=2), nn.ReLU(), nn.Flatten()]
    return parts(nn.Sequential(*layers, nn.Linear(1000, 10)), classes(1, 12, 12, 12), F.cross_entropy)


def conv_depthwise() -> SimpleNamespace:
    layers: list[nn.Module] = [nn.Conv2d(3, 24, 1)]
    for _ in range(3):
        layers += [nn.Conv2d(24, 24, 5, padding=2, groups=24), nn.GroupNorm(4, 24), nn.SiLU(), nn.Conv2d(24, 24, 1)]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 10)]
    return parts(nn.Sequential(*layers), classes(3, 24, 24), F.cross_entropy)


def unet() -> SimpleNamespace:
    def run(self: Any, x: Tensor) -> Tensor:
        one = F.relu(self.one(x))
        two = F.relu(self.two(F.max_pool2d(one, 2)))
        up = F.interpolate(self.up(two), scale_factor=2, mode="bilinear")
        return self.out(torch.cat([one, up], 1))

    model = Function(
        run,
        one=nn.Conv2d(3, 12, 3, padding=1),
        two=nn.Conv2d(12, 24, 3, padding=1),
        up=nn.Conv2d(24, 12, 1),
        out=nn.Conv2d(24, 3, 3, padding=1),
    )
    batch = lambda size: (torch.randn(size, 3, 32, 32), torch.randn(size, 3, 32, 32))  # noqa: E731
    return parts(model, batch, F.mse_loss)


def generator() -> SimpleNamespace:
    """From a hundred numbers to an image: outputs are far larger than inputs."""
    layers = [nn.Unflatten(1, (100, 1, 1)), nn.ConvTranspose2d(100, 64, 4), nn.BatchNorm2d(64), nn.ReLU()]
    layers += [nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 3, 4, 2, 1)]
    batch = lambda size: (torch.randn(size, 100), torch.randn(size, 3, 16, 16))  # noqa: E731
    return parts(nn.Sequential(*layers), batch, F.mse_loss)


# What weights and optimizers hold


def embedding_huge() -> SimpleNamespace:
    """A table that with its gradient and Adam's state is half of 256 MiB."""
    model = Function(
        lambda self, ids: self.head(self.embed(ids).mean(1)), embed=nn.Embedding(130_000, 64), head=nn.Linear(64, 10)
    )
    batch = lambda size: (torch.randint(130_000, (size, 32)), torch.randint(10, (size,)))  # noqa: E731
    return parts(model, batch, F.cross_entropy)


def embedding_sparse() -> SimpleNamespace:
    """Gradients of the rows that a batch touches, and an optimizer that knows them."""
    embed = nn.EmbeddingBag(200_000, 32, sparse=True)
    model = Function(lambda self, ids: self.embed(ids), embed=embed)
    batch = lambda size: (torch.randint(200_000, (size, 64)), torch.randint(32, (size,)))  # noqa: E731
    return parts(model, batch, F.cross_entropy, torch.optim.SparseAdam(embed.parameters()))


def optimizer_heavy() -> SimpleNamespace:
    """Weights of 9 MB, with four times as much of state and gradients."""
    model = nn.Sequential(nn.Linear(256, 4096), nn.ReLU(), nn.Linear(4096, 256), nn.ReLU(), nn.Linear(256, 10))
    return parts(model, classes(256), F.cross_entropy, torch.optim.AdamW(model.parameters(), amsgrad=True))


def optimizer_without_state() -> SimpleNamespace:
    model = nn.Sequential(nn.Linear(128, 512), nn.Tanh(), nn.Linear(512, 10))
    return parts(model, classes(128), F.cross_entropy, torch.optim.SGD(model.parameters(), lr=0.01))


def tied() -> SimpleNamespace:
    """An autoencoder whose decoder is its encoder's weights, turned."""
    model = Function(lambda self, x: F.linear(F.gelu(self.code(x)), self.code.weight.T), code=nn.Linear(512, 128))
    return parts(model, lambda size: ((x := torch.randn(size, 512)), x.clone()), F.mse_loss)


# Losses and shapes


def vocabulary() -> SimpleNamespace:
    """Nearly all of the memory is scores over 16 000 words."""
    model = Function(
        lambda self, ids: self.head(self.embed(ids)), embed=nn.Embedding(16_000, 32), head=nn.Linear(32, 16_000)
    )
    return parts(model, tokens(16, 16_000), token_loss)


def contrastive() -> SimpleNamespace:
    """Scores of every pair of a batch: memory grows with its square."""

    def loss(codes: Tensor, _: Tensor) -> Tensor:
        left, right = F.normalize(codes[:, :64]), F.normalize(codes[:, 64:])
        return F.cross_entropy(left @ right.T / 0.1, torch.arange(len(codes)))

    return parts(nn.Sequential(nn.Linear(128, 256), nn.ReLU(), nn.Linear(256, 128)), classes(128), loss)


def normalised_rows() -> SimpleNamespace:
    """A batch of 1 cannot be normalised."""
    layers = [nn.Linear(64, 256), nn.BatchNorm1d(256), nn.ReLU(), nn.Linear(256, 10)]
    return parts(nn.Sequential(*layers), classes(64), F.cross_entropy)


def two_or_more() -> SimpleNamespace:
    """The same, of which no module tells: its own loss compares neighbours."""

    def loss(scores: Tensor, wanted: Tensor) -> Tensor:
        if len(scores) < 2:
            raise ValueError("a batch has at least two samples")
        return F.cross_entropy(scores, wanted) + (scores[1:] - scores[:-1]).square().mean()

    return parts(nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10)), classes(64), loss)


class Clipped(torch.autograd.Function):  # type: ignore[misc]  # torch counts as Any
    """Keeps its input twice, once as a mask of bytes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x, x.abs() < 1)
        return x.clamp(-1, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        x, inside = ctx.saved_tensors
        return gradients[0] * inside + 0.01 * x


def autograd_function() -> SimpleNamespace:
    layers = nn.ModuleList([nn.Linear(96, 96) for _ in range(6)])

    def run(self: Any, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = Clipped.apply(layer(x))
        return self.head(x)

    return parts(Function(run, layers=layers, head=nn.Linear(96, 10)), classes(96), F.cross_entropy)


def shapes_of_a_generator() -> SimpleNamespace:
    """Each batch is of another length, in turn: the longest decides."""
    lengths = [96, 64, 128, 80]

    def batch(size: int) -> Batch:
        lengths.append(lengths.pop(0))
        return torch.randn(size, lengths[-1], 32), torch.randint(10, (size,))

    model = Function(
        lambda self, x: self.head(F.gelu(self.body(x)).mean(1)), body=nn.Linear(32, 128), head=nn.Linear(128, 10)
    )
    return parts(model, batch, F.cross_entropy)


def spectrum() -> SimpleNamespace:
    """Complex numbers between two transforms."""
    model = Function(
        lambda self, x: self.head(torch.fft.irfft(torch.fft.rfft(self.body(x)) * 0.5, n=256)),
        body=nn.Linear(256, 256),
        head=nn.Linear(256, 10),
    )
    return parts(model, classes(256), F.cross_entropy)


def graph() -> SimpleNamespace:
    """Nodes of a random graph take the mean of their neighbours', by gather and scatter."""

    def run(self: Any, x: Tensor, edges: Tensor) -> Tensor:
        x = F.relu(self.first(x))
        near = torch.zeros_like(x).index_add_(0, edges[1], x[edges[0]])
        return self.second(near)

    def batch(size: int) -> Batch:
        return (torch.randn(size, 32), torch.randint(size, (2, 8 * size))), torch.randint(10, (size,))

    return parts(Function(run, first=nn.Linear(32, 64), second=nn.Linear(64, 10)), batch, F.cross_entropy)


def sparse_product() -> SimpleNamespace:
    """A sparse matrix as large as the batch, made anew, times dense rows."""

    def batch(size: int) -> Batch:
        at = torch.stack([torch.arange(size).repeat_interleave(16), torch.randint(4096, (16 * size,))])
        return (at, torch.randn(16 * size)), torch.randint(10, (size,))

    def run(self: Any, at: Tensor, values: Tensor) -> Tensor:
        matrix = torch.sparse_coo_tensor(at, values, (int(at[0].max()) + 1, 4096))
        return self.head(F.relu(torch.sparse.mm(matrix, self.table.weight)))

    return parts(Function(run, table=nn.Embedding(4096, 64), head=nn.Linear(64, 10)), batch, F.cross_entropy)


def outer_products() -> SimpleNamespace:
    """Each sample becomes the products of all pairs of its 96 features."""

    def run(self: Any, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.head(torch.einsum("bi,bj->bij", x, x).flatten(1))

    return parts(Function(run, first=nn.Linear(32, 96), head=nn.Linear(96 * 96, 10)), classes(32), F.cross_entropy)


def double() -> SimpleNamespace:
    model = nn.Sequential(nn.Linear(128, 512), nn.Softplus(), nn.Linear(512, 10)).double()
    batch = lambda size: (torch.randn(size, 128).double(), torch.randint(10, (size,)))  # noqa: E731
    return parts(model, batch, F.cross_entropy)


def mixer() -> SimpleNamespace:
    def run(self: Any, x: Tensor) -> Tensor:
        for along, across in zip(self.along, self.across, strict=True):
            x = x + along(x.transpose(1, 2)).transpose(1, 2)
            x = x + across(x)
        return self.head(x.mean(1))

    def layer(size: int) -> nn.Module:
        return nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))

    along, across = (nn.ModuleList([layer(size) for _ in range(3)]) for size in (49, 64))
    return parts(Function(run, along=along, across=across, head=nn.Linear(64, 10)), classes(49, 64), F.cross_entropy)


def keeps_what_it_saw() -> SimpleNamespace:
    """A queue of the last codes, as momentum contrast has: it is as large as its last batch."""

    class Queue(nn.Module):  # type: ignore[misc]  # torch counts as Any
        def __init__(self) -> None:
            super().__init__()
            self.body, self.seen = nn.Linear(256, 256), torch.zeros(1, 256)

        def forward(self, x: Tensor) -> Tensor:
            codes = self.body(x)
            scores = codes - self.seen.mean(0)
            self.seen = codes.detach().clone()
            return scores[:, :10]

    return parts(Queue(), classes(256), F.cross_entropy)


@dataclass(frozen=True, slots=True)
class Model:
    """A factory above, by name, how it is searched, and a module without which it is left out."""

    name: str
    options: tuple[str, ...] = ()
    needs: str | None = None
    axis: str | None = None
    batch_size: int = 1


MODELS: tuple[Model, ...] = (
    *map(Model, ("lstm", "lstm_long", "lstm_both_ways", "lstm_projected", "gru", "rnn", "gru_packed")),
    *map(Model, ("cells_in_a_loop", "attention_by_hand", "encoder", "checkpointed", "experts")),
    Model("attention_along_its_length", ("--axis", "seq:16..8192", "--batch-size", "4"), axis="seq", batch_size=4),
    Model("bert", needs="transformers"),
    Model("gpt2", needs="transformers"),
    *map(Model, ("conv_normalised", "conv_of_volumes", "conv_depthwise", "unet", "generator")),
    *map(Model, ("embedding_huge", "embedding_sparse", "optimizer_heavy", "optimizer_without_state", "tied")),
    *map(Model, ("vocabulary", "contrastive", "normalised_rows", "two_or_more", "autograd_function")),
    *map(Model, ("shapes_of_a_generator", "spectrum", "graph", "sparse_product", "outer_products", "double")),
    *map(Model, ("mixer", "keeps_what_it_saw")),
)


@dataclass(frozen=True, slots=True)
class Trained:
    """What training with one size came to, run after run: whether it fits (None: unknown), and the peaks.

    The last run is what was claimed of it, or as many as agree that it is not.
    """

    size: int
    fits: tuple[bool | None, ...] = ()
    peaks: tuple[int | None, ...] = ()
    why: str = ""

    @property
    def verdict(self) -> bool | None:
        """As it came out last: what was claimed, or what each run said; None where one of those was not decided."""
        return self.fits[-1] if self.fits and None not in self.fits else None


@dataclass(frozen=True, slots=True)
class Run:
    """A search, and what training with its answer and beyond it came to."""

    model: str
    limit: str
    load: int
    budget_bytes: int
    search_s: float
    exit: int
    answer: int | None
    at_least: int | None
    predicted: int | None
    limited_by: str | None
    trials: int
    trained: Trained | None = None
    beyond: Trained | None = None
    said: str = ""

    @property
    def refuted(self) -> bool:
        """Whether a longer run says otherwise."""
        if self.trained is not None and self.trained.verdict is False:
            return True
        return self.answer is not None and self.beyond is not None and self.beyond.verdict is True

    @property
    def line(self) -> str:
        """The run as it is printed."""
        answer = f"largest {self.answer}" if self.answer is not None else f"at least {self.at_least}"
        if self.answer is None and self.at_least is None:
            answer = f"no answer ({self.said})"
        tried = [
            f"{one.size} {_WORDS[one.verdict]} ({', '.join(_mib(peak) for peak in one.peaks)}{one.why})"
            for one in (self.trained, self.beyond)
            if one is not None
        ]
        parts = [f"{self.model:28}{self.limit:>7}", answer, *tried]
        parts.append(f"limited by {self.limited_by}, {self.trials} trials, {self.search_s:.0f} s, exit {self.exit}")
        return ("REFUTED " if self.refuted else "        ") + "; ".join(parts)


_WORDS = {True: "trains", False: "does not train", None: "is undecided"}


def _mib(peak: int | None) -> str:
    return "–" if peak is None else f"{peak / 2**20:.0f} MiB"


def beyond(size: int) -> int:
    """The size that must not train: more than two tolerances above."""
    return int(size * (1 + 2 * TOLERANCE)) + 1


@contextlib.contextmanager
def busy(count: int) -> Iterator[None]:
    """So many processes that compute until the end of the block."""
    processes = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def searched(model: Model, limit: str, load: int, time_budget: str) -> Run:
    """Search one model as a user does."""
    command = [sys.executable, "-m", "gpucheck", "find-batch-size", f"{Path(__file__).resolve()}:{model.name}"]
    command += ["--device", "cpu", "--json", "--quiet", "--quick", "--max-batch-size", str(2**20)]
    command += ["--memory-limit", limit, "--time-budget", time_budget, *model.options]
    started = time.monotonic()
    with busy(load):
        done = subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}, capture_output=True, text=True, check=False
        )
    took = time.monotonic() - started
    report = json.loads(done.stdout) if done.stdout else {"results": {}, "findings": []}
    found = report["results"].get("find_batch_size", {})
    said = next((finding["title"] for finding in report["findings"]), done.stderr.strip()[-200:])
    return Run(
        model=model.name,
        limit=limit,
        load=load,
        budget_bytes=found.get("budget_bytes", 0),
        search_s=took,
        exit=done.returncode,
        answer=found.get("max_batch_size"),
        at_least=found.get("at_least"),
        predicted=found.get("predicted_batch_size"),
        limited_by=found.get("limited_by"),
        trials=len(found.get("trials", ())),
        said=said,
    )


def trained(model: Model, size: int, run: Run, *, claimed: bool) -> Trained:
    """Train with one size, in a separate process, and once more where that does not come out as `claimed`."""
    results: list[dict[str, Any]] = []
    fits: list[bool | None] = []
    while len(fits) < AGREE and claimed not in fits:
        results.append(_trained_once(model, size, run.budget_bytes, ALLOCATED_SLACK_BYTES if claimed else 0))
        peak = results[-1].get("peak_bytes")
        fits.append(None if "failure" in results[-1] else peak is not None and peak <= run.budget_bytes)
    why = next((f"; {one['failure']}" for one in results if "failure" in one), "")
    return Trained(size, tuple(fits), tuple(one.get("peak_bytes") for one in results), why)


def _trained_once(model: Model, size: int, budget_bytes: int, slack_bytes: int) -> dict[str, Any]:
    command = [sys.executable, __file__, "--train", model.name, str(size), str(budget_bytes), str(slack_bytes)]
    environment = {**os.environ, **MALLOC, **PATIENT}
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, timeout=TRAINING_LIMIT_S
        )
    except subprocess.TimeoutExpired:
        return {"failure": f"took more than {TRAINING_LIMIT_S:.0f} s"}
    if done.returncode:
        return {"failure": f"ended with {done.returncode}: {(done.stderr.strip().splitlines() or [''])[-1]}"}
    answer: dict[str, Any] = json.loads(done.stdout)
    return answer


# The process that trains


def train(model: Model, size: int, budget_bytes: int, slack_bytes: int) -> dict[str, Any]:
    """Steps with batches of `size`; what is allocated beyond a quarter more than the budget, and the slack, fails."""
    import resource

    Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")
    tiny = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.GELU(), nn.Flatten(), nn.Linear(784, 10))
    _loop(parts(tiny, classes(3, 16, 16), F.cross_entropy), lambda made: made.make_batch(8), 3)
    torch.mm(torch.randn(600, 600), torch.randn(600, 600))
    before = _status_bytes("VmRSS")
    # As the search does: machines survive a wrong answer, and allocators have room of their own.
    limit = _status_bytes("VmData") + max(budget_bytes * 5 // 4, budget_bytes + 2**26) + slack_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # VmHWM begins anew
    made = globals()[model.name]()

    def batch(made: SimpleNamespace) -> Batch:
        found: Batch = made.make_batch(model.batch_size, **{model.axis: size}) if model.axis else made.make_batch(size)
        return found

    try:
        _loop(made, batch, STEPS)
    except RuntimeError as error:
        if "can't allocate memory" not in str(error) and "could not create a" not in str(error):
            raise
        return {"out_of_memory": True}
    return {"peak_bytes": _status_bytes("VmHWM") - before}


def _loop(made: SimpleNamespace, batch: Callable[[SimpleNamespace], Batch], steps: int) -> None:
    made.model.train()
    optimizer = getattr(made, "optimizer", None) or torch.optim.AdamW(made.model.parameters(), lr=1e-3)
    for _ in range(steps):
        inputs, wanted = batch(made)
        optimizer.zero_grad(set_to_none=True)
        # Held until the end of the step, as most loops do.
        output = made.model(*inputs) if isinstance(inputs, tuple) else made.model(inputs)
        loss = made.loss(output, wanted)
        loss.backward()
        optimizer.step()
        del output, loss


def _status_bytes(name: str) -> int:
    """A figure of this process's /proc/self/status, which has it in KiB."""
    for line in Path("/proc/self/status").read_text(encoding="utf-8").splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise KeyError(name)


# What it comes to


def checked(run: Run, model: Model) -> Run:
    """The run with its answer held against longer ones."""
    size = run.answer if run.answer is not None else run.at_least
    if size is None:
        return run
    open_above = run.answer is not None and run.limited_by not in ("max-batch-size", "safety")
    more = trained(model, beyond(size), run, claimed=False) if open_above else None
    told = {name: getattr(run, name) for name in Run.__slots__}
    return Run(**{**told, "trained": trained(model, size, run, claimed=True), "beyond": more})


def verdicts(runs: Sequence[Run]) -> list[str]:
    """What all of it comes to, in lines."""
    kinds = Counter(
        "largest" if run.answer is not None else "at least" if run.at_least is not None else "no answer" for run in runs
    )
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items())
    refuted = [run.model for run in runs if run.refuted]
    lines = [f"{len(runs)} answers: {told}", f"refuted: {len(refuted)}{': ' + ', '.join(refuted) if refuted else ''}"]
    return lines


def from_json(data: dict[str, Any]) -> Run:
    """The run of one line of the file."""
    held: dict[str, Any] = {}
    for name in ("trained", "beyond"):
        one = data[name]
        held[name] = one and Trained(one["size"], tuple(one["fits"]), tuple(one["peaks"]), one["why"])
    return Run(**{**data, **held})


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kept", type=Path, help="the file that keeps the runs")
    parser.add_argument("--only", action="append", choices=[model.name for model in MODELS], help="may be repeated")
    parser.add_argument("--memory-limit", default="256MiB")
    parser.add_argument("--time-budget", default="60s")
    parser.add_argument("--threads", type=int, help="OMP_NUM_THREADS of searches and training; default as it is")
    parser.add_argument("--load", type=int, default=0, help="processes that compute beside each search")
    parser.add_argument("--train", nargs=4, metavar=("MODEL", "SIZE", "BUDGET", "SLACK"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if not sys.platform.startswith("linux"):
        parser.error("the peak of a process is read from /proc, which is Linux's")
    by_name = {model.name: model for model in MODELS}
    if given.threads:
        os.environ["OMP_NUM_THREADS"] = str(given.threads)
    if given.train:
        name, *figures = given.train
        print(json.dumps(train(by_name[name], *map(int, figures))))
        return 0
    import run_file

    kept = [from_json(one) for one in run_file.read(given.kept)] if given.kept else []
    there = {(run.model, run.limit, run.load) for run in kept}
    runs = [run for run in kept if not given.only or run.model in given.only]
    for run in runs:
        print(run.line)
    for model in MODELS if not given.only else [by_name[name] for name in given.only]:
        if (model.name, given.memory_limit, given.load) in there:
            continue
        if model.needs is not None and find_spec(model.needs) is None:
            print(f"        {model.name:28}left out: {model.needs} is not installed")
            continue
        runs.append(checked(searched(model, given.memory_limit, given.load, given.time_budget), model))
        if given.kept:
            run_file.add(given.kept, asdict(runs[-1]))
        print(runs[-1].line, flush=True)
    print()
    print("\n".join(verdicts(runs)))
    return 1 if any(run.refuted for run in runs) else 0


if __name__ == "__main__":
    sys.exit(main())
