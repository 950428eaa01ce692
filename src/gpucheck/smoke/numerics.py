"""Check results of the device against float64 on the CPU, with an error bound for each dtype."""

from __future__ import annotations

import copy
import math
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional

from gpucheck.bench import dtypes, judging
from gpucheck.machine.accel import Accel
from gpucheck.report.fault import first_line_of
from gpucheck.smoke.check import PassedCheck, WrongResult, expect, name_of
from gpucheck.work import precision, reference

# M, K and N of two products. The first fills tensor-core tiles, and the second fits no tile.
SHAPES = ((128, 256, 192), (37, 101, 53))
# cuDNN may pick Winograd's F(4×4, 3×3), whose largest error is 7 times that of a direct convolution (Lavin and Gray,
# "Fast Algorithms for Convolutional Neural Networks", 2016, table 4).
FAST_CONVOLUTION = 8.0
IMAGE, CHANNELS_OUT, KERNEL = (4, 8, 18, 18), 16, 3


def random(shape: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return fixed normal numbers in float64 on the CPU, without torch's global generator."""
    return torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def is_unsupported(error: Exception) -> bool:
    words = ("not implemented for", "not support", "not_supported", "unsupported")
    return isinstance(error, (NotImplementedError, TypeError)) or any(word in str(error).lower() for word in words)


# float32 must work on every device. The other dtypes are skipped on a device without them.
DTYPES = (torch.float32, torch.float64, torch.float16, torch.bfloat16)


@dataclass(frozen=True, slots=True)
class Product:
    """A product computed on the device and copied to the CPU, with its factors: `left` (M×K) times `right` (K×N)."""

    name: str
    left: torch.Tensor
    right: torch.Tensor
    result: torch.Tensor
    allowance: float = 1.0


def matrix_products(device: torch.device, dtype: torch.dtype) -> Iterator[Product]:
    for seed, (m, k, n) in enumerate(SHAPES):
        left, right = random((m, k), seed).to(dtype), random((k, n), seed + 100).to(dtype)
        yield Product(f"{m}×{k}×{n}", left, right, (left.to(device) @ right.to(device)).cpu())


def convolutions(device: torch.device, dtype: torch.dtype) -> Iterator[Product]:
    """Yield a convolution on `device` as a product: weights times unfolded patches."""
    image = random(IMAGE, 7).to(dtype)
    weight = random((CHANNELS_OUT, IMAGE[1], KERNEL, KERNEL), 8).to(dtype)
    result = functional.conv2d(image.to(device), weight.to(device)).cpu()
    # Unfolding only copies elements, so the conversion to float64 and back changes no element.
    patches = functional.unfold(image.double(), KERNEL).to(dtype)
    right = patches.transpose(0, 1).reshape(patches.shape[1], -1)
    rows = result.transpose(0, 1).reshape(CHANNELS_OUT, -1)
    yield Product("3×3 convolution", weight.reshape(CHANNELS_OUT, -1), right, rows, FAST_CONVOLUTION)


def judge(product: Product, dtype: torch.dtype, bound_of: str | None = None) -> float:
    """Return the largest error as a share of its bound. Raises WrongResult above 1, and for infinity and NaN."""
    check = reference.check_product(product.left, product.right, product.result, bound_of)
    share, name = check.worst / product.allowance, f"{name_of(dtype)} {product.name}"
    expect(not check.not_finite, f"{name}: {check.not_finite} elements are not finite")
    text = f"{name}: element ({check.row}, {check.column}) is off by {share:.3g} times the bound"
    expect(share <= 1, text, error_over_bound=share, row=check.row, column=check.column)
    return share


def _in_every_dtype(accel: Accel, products: Callable[[torch.device, torch.dtype], Iterator[Product]]) -> PassedCheck:
    shares: dict[str, float] = {}
    unsupported = {}
    with precision.precision("ieee"):
        for dtype in DTYPES:
            try:
                results = list(products(accel.device, dtype))
            except (RuntimeError, TypeError) as error:
                if dtype == torch.float32 or not is_unsupported(error):
                    raise
                unsupported[name_of(dtype)] = first_line_of(error)
                continue
            shares[name_of(dtype)] = max(judge(product, dtype) for product in results)
    without = f"; not supported here: {', '.join(unsupported)}" if unsupported else ""
    evidence = {"error_over_bound": shares, "not_taken": unsupported}
    return PassedCheck(f"within the bound of {', '.join(shares)}{without}", evidence)


def _override_hint() -> str | None:
    overrides = [f"{name}={os.environ[name]}" for name in judging.OVERRIDES if name in os.environ]
    return f"unset {' and '.join(overrides)}, to keep torch's settings" if overrides else None


def matmul(accel: Accel) -> PassedCheck:
    """Check that products agree with float64, and that float32 in IEEE precision is really float32."""
    with precision.precision("ieee"):
        observed = precision.of_device(accel.device)
    if observed != "float32":
        text = f"float32 products in IEEE precision were requested, but torch computes {observed}"
        raise WrongResult(text, _override_hint(), precision_observed=observed)
    passed = _in_every_dtype(accel, matrix_products)
    return PassedCheck(passed.message, passed.evidence | {"precision_observed": observed})


def convolution(accel: Accel) -> PassedCheck:
    """Check that convolutions agree with float64. cuDNN's default for float32, TF32, is off."""
    return _in_every_dtype(accel, convolutions)


def without_tf32(accel: Accel) -> str | None:
    """Return the reason for a skip; None if the device multiplies TF32 in hardware."""
    support = dtypes.support("tf32", accel)
    return None if support.kind == "native" else support.reason or f"whether {accel.name} has TF32 is unknown"


def tf32(accel: Accel) -> PassedCheck:
    """Check that products and convolutions stay within the bound of TF32, if TF32 is allowed."""
    with precision.precision("tf32"):
        observed = precision.of_device(accel.device)
        text = f"TF32 products were requested, but torch computes {observed}"
        expect(observed in ("tf32", "float32"), text, precision_observed=observed)
        results = [*matrix_products(accel.device, torch.float32), *convolutions(accel.device, torch.float32)]
    share = max(judge(product, torch.float32, "tf32") for product in results)
    evidence = {"error_over_bound": share, "precision_observed": observed}
    if observed == "float32":
        text = "TF32 was allowed, but products are still float32"
        return PassedCheck(text, evidence, doubt=True, fix=_override_hint())
    return PassedCheck("within the bound of TF32", evidence)


# -- autocast and training ---------------------------------------------------------------------------------------------


def autocast(accel: Accel) -> PassedCheck:
    """Check that autocast multiplies in low precision, keeps weights and gradients float32, and ends with its block."""
    kind = accel.kind
    low = torch.float16 if kind in ("cuda", "mps") else torch.bfloat16
    layer = nn.Linear(64, 48, bias=False)
    layer.weight.data = random((48, 64), 1).float()
    layer.to(accel.device)
    inputs = random((32, 64), 2).float()
    with precision.precision("ieee"):
        with torch.autocast(kind, dtype=low):
            outputs = layer(inputs.to(accel.device))
            with torch.autocast(kind, enabled=False):
                disabled = layer(inputs.to(accel.device))
            loss = functional.mse_loss(outputs, torch.zeros_like(outputs))
        after = layer(inputs.to(accel.device))
        loss.backward()
    expect(outputs.dtype == low, f"a product under autocast is {outputs.dtype}, not {low}")
    expect(disabled.dtype == torch.float32, f"autocast(enabled=False) gave {disabled.dtype}")
    expect(after.dtype == torch.float32, f"after autocast a product is {after.dtype}")
    grad = layer.weight.grad
    expect(layer.weight.dtype == torch.float32, f"autocast changed the weights to {layer.weight.dtype}")
    expect(grad is not None and grad.dtype == torch.float32, f"the gradient is {None if grad is None else grad.dtype}")
    weight = layer.weight.detach().cpu().T.to(low)
    share = judge(Product("under autocast", inputs.to(low), weight, outputs.detach().cpu()), low)
    return PassedCheck(f"{name_of(low)} products", {"error_over_bound": share})


SAMPLES, CLASSES = 16, 10
# With this learning rate, the loss certainly falls, and the step changes every weight.
LEARNING_RATE = 0.05
# The longest sum of the step: the first layer's weight gradient adds over samples and pixels.
TERMS = SAMPLES * 6 * 6
# The error bound of float32 as for products (work/reference.py), times the larger error of fast convolutions.
STEP_BOUND = reference.SIGMAS * math.sqrt(TERMS) * 2.0**-23 * FAST_CONVOLUTION


def _model() -> nn.Module:
    # Smooth activations: at the corner of a ReLU, the last bit of the input would decide the gradient.
    layers = nn.Sequential(
        nn.Conv2d(3, 8, 3), nn.Tanh(), nn.Flatten(), nn.Linear(8 * 6 * 6, 32), nn.GELU(), nn.Linear(32, CLASSES)
    )
    for number, weight in enumerate(layers.parameters()):
        # Weights are scaled by the fan-in, as in torch's initialisation.
        weight.data = (random(tuple(weight.shape), 50 + number) / math.sqrt(max(weight[0].numel(), 1))).float()
    return layers


def one_step(
    model: nn.Module, device: torch.device, dtype: torch.dtype
) -> tuple[float, float, dict[str, torch.Tensor]]:
    """Return the loss before and after a step of SGD on a copy of `model`, and the gradients in float64."""
    model = copy.deepcopy(model).to(device, dtype)
    inputs = random((SAMPLES, 3, 8, 8), 3).float().to(device, dtype)
    labels = (torch.arange(SAMPLES) % CLASSES).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE, momentum=0.9)

    def loss() -> torch.Tensor:
        return functional.cross_entropy(model(inputs), labels)

    first = loss()
    first.backward()
    gradients = {
        name: weight.grad.detach().cpu().double()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }
    optimizer.step()
    with torch.no_grad():
        second = loss()
    return float(first.detach()), float(second), gradients


def training_step(accel: Accel) -> PassedCheck:
    """Check that a training step agrees with the CPU's in float64, and lowers the loss."""
    model = _model()
    reference_loss, reference_after, wanted = one_step(model, torch.device("cpu"), torch.float64)
    with precision.precision("ieee"):
        before, after, gradients = one_step(model, accel.device, torch.float32)
    expect(set(gradients) == set(wanted), "some weights got no gradient", gradients=sorted(gradients))
    shares = {}
    for name, gradient in wanted.items():
        shares[name] = float((gradients[name] - gradient).abs().max()) / (STEP_BOUND * float(gradient.abs().max()))
        expect(shares[name] <= 1, f"the gradient of {name} is off by {shares[name]:.3g} times the bound", **shares)
    # The weights carry the gradients' error into the loss after the step.
    for loss, on_cpu in ((before, reference_loss), (after, reference_after)):
        expect(abs(loss - on_cpu) <= STEP_BOUND * abs(on_cpu), f"the loss is {loss:.9g}, on the CPU {on_cpu:.9g}")
    expect(after < before, f"the step took the loss from {before:.6g} to {after:.6g}")
    evidence = {"loss_before": before, "loss_after": after, "error_over_bound": shares}
    return PassedCheck(f"loss {before:.4f} → {after:.4f}, as on the CPU in float64", evidence)
