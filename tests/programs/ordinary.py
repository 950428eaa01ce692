"""Models as people write them, each right: nothing in them may be called wrong. A factory each."""

# mypy: disable-error-code="misc"
from __future__ import annotations

import copy
import io
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import parametrizations
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence
from torch.utils.checkpoint import checkpoint


def workload(model: nn.Module, make_batch: Any, **more: Any) -> SimpleNamespace:
    return SimpleNamespace(model=model, make_batch=make_batch, **more)


def of_vectors(model: nn.Module, size: int = 8, **more: Any) -> SimpleNamespace:
    return workload(model, lambda n: torch.randn(n, size), **more)


def of_images(model: nn.Module, **more: Any) -> SimpleNamespace:
    return workload(model, lambda n: torch.randn(n, 3, 16, 16), **more)


def of_ids(model: nn.Module, length: int = 6, **more: Any) -> SimpleNamespace:
    return workload(model, lambda n: torch.randint(0, 20, (n, length)), **more)


def mlp() -> SimpleNamespace:
    return of_vectors(nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(), nn.LayerNorm(16), nn.Linear(16, 4)))


class PackedLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8, padding_idx=0)
        self.lstm = nn.LSTM(8, 6, num_layers=2, bidirectional=True, batch_first=True, dropout=0.1)
        self.head = nn.Linear(12, 3)

    def forward(self, ids: Tensor) -> Tensor:
        lengths = (ids != 0).sum(1).clamp(min=1)
        packed = pack_padded_sequence(self.embedding(ids), lengths.cpu(), batch_first=True, enforce_sorted=False)
        out, (hidden, _) = self.lstm(packed)
        padded, sizes = pad_packed_sequence(out, batch_first=True)
        mask = torch.arange(padded.shape[1], device=padded.device) < sizes.to(padded.device)[:, None]
        mean = (padded * mask.unsqueeze(-1)).sum(1) / sizes.to(padded.device)[:, None]
        return self.head(mean + hidden[-1].repeat(1, 2))


def packed_lstm() -> SimpleNamespace:
    return of_ids(PackedLSTM())


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.register_buffer("positions", torch.arange(64).unsqueeze(0), persistent=False)
        self.position = nn.Embedding(64, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.position(self.positions[:, : ids.size(1)])
        mask = nn.Transformer.generate_square_subsequent_mask(ids.size(1), device=ids.device)
        return self.head(self.encoder(x, mask=mask, src_key_padding_mask=(ids == 0).float() * -1e9, is_causal=True))


def encoder() -> SimpleNamespace:
    return of_ids(Encoder())


class EncoderDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.transformer = nn.Transformer(8, 2, 1, 1, 16, batch_first=True)
        self.head = nn.Linear(8, 20)

    def forward(self, ids: Tensor) -> Tensor:
        mask = self.transformer.generate_square_subsequent_mask(ids.size(1)).to(ids.device)
        x = self.embedding(ids)
        return self.head(self.transformer(x, x, tgt_mask=mask, src_key_padding_mask=ids == 0))


def encoder_decoder() -> SimpleNamespace:
    return of_ids(EncoderDecoder())


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.rnn = nn.RNN(8, 8, batch_first=True)
        self.head = nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.rnn(self.embedding(ids))[0])


def tied() -> SimpleNamespace:
    return of_ids(Tied())


class Amp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.LayerNorm(16), nn.ReLU(), nn.Linear(16, 4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast(device_type="cuda", dtype=torch.bfloat16):
            out = self.body(x)
            with torch.autocast(device_type=x.device.type, enabled=False):
                return out.float() * 2


def amp() -> SimpleNamespace:
    return of_vectors(Amp())


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.1)) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = checkpoint(layer, x, use_reentrant=index == 1)
        return x


def checkpointed() -> SimpleNamespace:
    return of_vectors(Checkpointed())


def normed() -> SimpleNamespace:
    return of_vectors(
        nn.Sequential(
            parametrizations.weight_norm(nn.Linear(8, 8)),
            parametrizations.spectral_norm(nn.Linear(8, 8)),
            parametrizations.orthogonal(nn.Linear(8, 8)),
        )
    )


def old_weight_norm() -> SimpleNamespace:
    return of_vectors(nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), nn.utils.spectral_norm(nn.Linear(8, 4))))


class Scripted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = torch.jit.script(nn.Sequential(nn.Linear(8, 8), nn.ReLU()))
        self.head = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))


def scripted() -> SimpleNamespace:
    return of_vectors(Scripted())


def quantised() -> SimpleNamespace:
    model = torch.ao.quantization.quantize_dynamic(nn.Sequential(nn.Linear(8, 8), nn.ReLU()), {nn.Linear})
    return of_vectors(nn.Sequential(nn.Linear(8, 8), model))


class Scatters(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.order = torch.tensor([3, 1, 2, 0])  # an index that is copied where it is used

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        out = torch.zeros(x.size(0), 8, device=x.device)
        index = torch.arange(8, device=x.device).flip(0).expand_as(y)
        out = out.scatter_add(1, index, y).scatter(1, index[:, :1], 1.0)
        out = out.index_put((torch.zeros(1, dtype=torch.long), torch.tensor([2])), torch.tensor(1.5))
        out[:, 0] = 0.5
        out[:, torch.tensor([1, 2])] = out[:, torch.tensor([2, 1])]
        picked = y.gather(1, index)[:, self.order]
        return out.index_add(1, torch.tensor([0, 1, 2, 3], device=x.device), picked)


def scatters() -> SimpleNamespace:
    return of_vectors(Scatters())


class Numbers(nn.Module):
    """Constants on the CPU that count as numbers, and everything that Python makes of them."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.temperature = torch.tensor(0.7)
        self.shift = torch.tensor(2)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x) / self.temperature + self.shift - torch.tensor(1.0)
        y = torch.where(y > torch.tensor(0.0), y, torch.tensor(0.1)).clamp(-3.0, 3.0).minimum(torch.tensor(3.0))
        y = y.masked_fill(y > 2, torch.tensor(2.0)).pow(torch.tensor(2))
        y = torch.lerp(y, x, torch.tensor(0.5)) + torch.full((), 2.0)
        limit = max(1, int((y > 0).sum().item()))
        return y * limit + float(y.mean()) + y.detach().cpu().numpy().mean().item()


def numbers() -> SimpleNamespace:
    return of_vectors(Numbers())


class Signals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(16, 16)
        self.register_buffer("window", torch.hann_window(16))

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(self.lin(x))
        freqs = torch.fft.rfftfreq(16, device=x.device)
        back = torch.fft.irfft(spectrum * freqs, n=16)
        short = torch.stft(back, 16, window=self.window, return_complex=True).abs().mean((1, 2))
        return torch.einsum("bi,bj->bij", back, x).sum(-1) + short[:, None]


def signals() -> SimpleNamespace:
    return of_vectors(Signals(), 16)


class Pictures(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.up = nn.ConvTranspose2d(4, 3, 2, stride=2)

    def forward(self, x: Tensor) -> Tensor:
        y = F.interpolate(self.conv(x), scale_factor=0.5, mode="bilinear", align_corners=False)
        y = F.interpolate(F.pad(y, (1, 1, 1, 1), mode="reflect"), size=(8, 8), mode="nearest")
        theta = torch.eye(2, 3, device=x.device).expand(x.size(0), 2, 3)
        y = F.grid_sample(y, F.affine_grid(theta, y.shape, align_corners=False), align_corners=False)
        ys, xs = torch.meshgrid(torch.arange(8, device=x.device), torch.arange(8, device=x.device), indexing="ij")
        return self.up(y + (ys + xs).to(y)).flatten(1).mean(1, keepdim=True)


def pictures() -> SimpleNamespace:
    return of_images(Pictures())


class Masks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.lin(x)
        keep = torch.rand_like(y) > 0.3
        noise = torch.empty_like(y).normal_() * F.one_hot(y.argmax(1), 8)
        y = torch.where(keep, y, y.new_tensor(0.0)) + noise
        top, index = y.topk(2)
        rows = torch.nonzero(keep)[:, 0]
        seen = torch.bincount(rows, minlength=x.size(0)).to(y)
        y = y.masked_scatter(keep, y[keep] * 2) + torch.cumsum(y, 1) + top.sum(1, keepdim=True)
        order = torch.argsort(y[0])
        return (
            y[:, order] * seen[:, None]
            + F.gumbel_softmax(y)
            + torch.tril(torch.ones(8, 8, device=y.device))[0]
            + index.sum()
        )


def masks() -> SimpleNamespace:
    return of_vectors(Masks())


class Offloaded(nn.Module):
    """A part that stays on the CPU on purpose; its input goes there and its output comes back."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 8)
        self.head = nn.Linear(8, 4).to("cuda")

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.table(ids.cpu()).to("cuda"))


def offloaded() -> SimpleNamespace:
    return of_ids(Offloaded())


class TwoGpus(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8).to("cuda:0"), nn.Linear(8, 2).to("cuda:1")

    def forward(self, x: Tensor) -> Tensor:
        return self.second(self.first(x.to("cuda:0")).to("cuda:1"))


def two_gpus() -> SimpleNamespace:
    return of_vectors(TwoGpus())


class OwnFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return x.clamp(min=0)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        zero = torch.zeros(x.shape, device=gradients[0].device)
        return torch.where(x > 0, gradients[0], zero)


class Hooked(nn.Module):
    """Hooks, functions of one's own, an `_apply` that takes a plain tensor along, and a detour over Python."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.scale = torch.full((8,), 0.5)
        self.lin.register_forward_hook(lambda module, given, out: out * 2)
        self.lin.weight.register_hook(lambda gradient: gradient + torch.zeros_like(gradient))

    def _apply(self, fn: Any, recurse: bool = True) -> Hooked:
        super()._apply(fn, recurse)
        self.scale = fn(self.scale)
        return self

    def forward(self, x: Tensor) -> Tensor:
        y = OwnFunction.apply(self.lin(x)) * self.scale
        return y + torch.tensor(y.sum(1).tolist(), device=y.device)[:, None]


def hooked() -> SimpleNamespace:
    return of_vectors(Hooked())


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        per_sample = torch.vmap(lambda row: self.lin(row) + torch.arange(8, device=row.device))(x)
        jacobian = torch.func.jacrev(lambda row: self.lin(row).sum())(x[0])
        state = {name: value * 1 for name, value in self.named_parameters()}
        called = (
            torch.func.functional_call(self, {f"lin.{n.split('.')[1]}": v for n, v in state.items()}, (x[:1],))
            if (x.size(0) > 1)
            else x
        )
        return per_sample + jacobian + called


def functional() -> SimpleNamespace:
    model = Functional()
    return of_vectors(model)


class GradientPenalty(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 1)

    def forward(self, x: Tensor) -> Tensor:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            out = self.lin(x).tanh()
            (gradient,) = torch.autograd.grad(out.sum(), x, create_graph=True)
        return out.mean() + ((gradient.norm(2, dim=1) - 1) ** 2).mean()


def gradient_penalty() -> SimpleNamespace:
    return of_vectors(GradientPenalty())


class Loads(nn.Module):
    """Loads weights for the device that is there, as a factory of a service does."""

    def __init__(self) -> None:
        super().__init__()
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.lin = nn.Linear(8, 4, device=self.device)
        file = io.BytesIO()
        torch.save(self.lin.state_dict(), file)
        file.seek(0)
        self.lin.load_state_dict(torch.load(file, map_location=self.device))

    def forward(self, x: Tensor) -> Tensor:
        generator = torch.Generator(device=self.device).manual_seed(0)
        noise = torch.randn(x.shape, device=self.device, generator=generator)
        return self.lin(x.to(self.device, non_blocking=True) + noise)


def loads() -> SimpleNamespace:
    return of_vectors(Loads())


class Sparse(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        edges = torch.tensor([[0, 1, 2], [1, 2, 3]])
        self.register_buffer("edges", edges)
        self.register_buffer("graph", torch.sparse_coo_tensor(edges, torch.ones(3), (4, 4)).coalesce())
        self.lin = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        nodes = self.lin(x.view(-1, 4, 2))
        source, target = self.edges
        passed = torch.zeros_like(nodes).index_add_(1, target, nodes[:, source])
        return (passed + torch.stack([torch.sparse.mm(self.graph, entry) for entry in nodes])).flatten(1)


def sparse() -> SimpleNamespace:
    return of_vectors(Sparse())


class OldStyle(nn.Module):
    """Weights made by the classes of old, and values that are filled in later."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.FloatTensor(8, 8))
        self.bias = nn.Parameter(torch.Tensor(8))
        self.lin = nn.Linear(8, 8)
        nn.init.xavier_uniform_(self.weight)
        nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return self.lin(F.linear(x, self.weight, self.bias))


def old_style() -> SimpleNamespace:
    return of_vectors(OldStyle())


class Threads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(2) as pool:
            parts = pool.map(lambda part: self.lin(part) + torch.ones(8, device=part.device), [x, x])
            return torch.stack(list(parts)).sum(0)


def threads() -> SimpleNamespace:
    return of_vectors(Threads())


def lazy() -> SimpleNamespace:
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.LazyBatchNorm1d())
    model(torch.ones(2, 8))
    return of_vectors(model)


class Momentum(nn.Module):
    """A slow copy that follows by `.data`, and a queue that is written in place."""

    def __init__(self) -> None:
        super().__init__()
        self.lin = nn.Linear(8, 8)
        self.slow = copy.deepcopy(self.lin).requires_grad_(False)
        self.register_buffer("queue", torch.randn(4, 8))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            for fast, slow in zip(self.lin.parameters(), self.slow.parameters(), strict=True):
                slow.data = slow.data * 0.9 + fast.data * 0.1
            self.queue[int(self.place) % 4] = self.slow(x).mean(0)
            self.place[0] = int(self.place) + 1
        return self.lin(x) @ self.queue.T


def momentum() -> SimpleNamespace:
    return of_vectors(Momentum())


def compiled() -> SimpleNamespace:
    return of_vectors(nn.Sequential(torch.compile(nn.Linear(8, 8)), nn.Linear(8, 2)))


class Prior(nn.Module):
    """A distribution made where it is used, and statistics kept in buffers."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(8, 4), nn.Linear(8, 4)
        self.out = nn.Linear(4, 8)
        self.register_buffer("seen", torch.zeros(4))

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        posterior = torch.distributions.Normal(self.mean(x), F.softplus(self.spread(x)) + 1e-3)
        prior = torch.distributions.Normal(torch.zeros(4, device=x.device), torch.ones(4, device=x.device))
        sample = posterior.rsample()
        self.seen.mul_(0.9).add_(sample.detach().mean(0), alpha=0.1)
        choice = torch.distributions.Categorical(logits=self.out(sample)).sample()
        kl = torch.distributions.kl_divergence(posterior, prior).mean()
        return {"loss": F.mse_loss(self.out(sample), x) + kl, "choice": choice}


def prior() -> SimpleNamespace:
    return of_vectors(Prior())


def weighted() -> SimpleNamespace:
    """A loss with weights of classes, and an optimizer made early that has no state yet."""
    model = nn.Sequential(nn.Linear(8, 4))
    loss = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 1.0, 1.0]), label_smoothing=0.1)
    return SimpleNamespace(
        model=model,
        loss=loss,
        optimizer=torch.optim.Adam(model.parameters()),
        make_batch=lambda n: (torch.randn(n, 8), torch.randint(0, 4, (n,))),
    )


_PARTS = ("workload", "of_vectors", "of_images", "of_ids")
FACTORIES = [
    name
    for name, value in list(globals().items())
    if name.islower() and name not in _PARTS and getattr(value, "__module__", "") == __name__
]
