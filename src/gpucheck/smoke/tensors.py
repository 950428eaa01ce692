"""Tensors and modules move between devices without losing a bit, and only when asked."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from gpucheck.smoke.check import DeviceUnderTest, Passed, Wrong, expect, first_line
from gpucheck.work import reference

# Enough for every vector width of a copy kernel and its odd tail; a copy of it costs microseconds.
PAYLOAD_BYTES = 64 * 1024
# What every training job relies on: a device that does not take one of these fails. The others are tried and told.
COMMON = (
    *(torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64),
    *(torch.float16, torch.bfloat16, torch.float32, torch.complex64),
)
# A signalling NaN with a payload, and a negative quiet one, as bit patterns (IEEE 754): arithmetic would change them.
NAN_PATTERNS = {
    torch.float16: (torch.int16, (0x7D55, -0x0155)),
    torch.bfloat16: (torch.int16, (0x7FA5, -0x0035)),
    torch.float32: (torch.int32, (0x7FA55555, -0x00355555)),
    torch.float64: (torch.int64, (0x7FF5555555555555, -0x0005555555555555)),
}


def usable(dut: DeviceUnderTest) -> Passed:
    """The device computes something, and tells what it is."""
    accel = dut.accel
    reason = accel.why_broken()
    if reason:
        raise Wrong(f"{accel.id} does not compute: {reason}")
    capability = accel.compute_capability
    evidence = {"name": accel.name, "uuid": accel.uuid, "compute_capability": list(capability) if capability else None}
    return Passed(f"{accel.name} ({accel.id}), torch {torch.__version__}", evidence)


def all_dtypes() -> list[torch.dtype]:
    """Every dtype that this torch has and that holds plain bits.

    Quantized tensors carry a scale besides their bits, and of the sub-byte integers (int1 to int7) torch has the names
    alone.
    """
    found = {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    return sorted((dtype for dtype in found if not _name(dtype).startswith("q") and not _is_shell(dtype)), key=_name)


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _is_shell(dtype: torch.dtype) -> bool:
    bits = _name(dtype).removeprefix("u").removeprefix("int")
    return bits.isdigit() and int(bits) < 8


def payload(dtype: torch.dtype) -> torch.Tensor:
    """Fixed pseudo-random bits as a 1-d tensor on the CPU, NaNs with payloads among them."""
    generator = torch.Generator().manual_seed(20240229)
    raw = torch.randint(0, 256, (PAYLOAD_BYTES,), dtype=torch.uint8, generator=generator)
    if dtype == torch.bool:
        return raw > 127  # any other byte than 0 and 1 is no bool
    tensor = raw.view(dtype)
    if dtype in NAN_PATTERNS:
        integer, patterns = NAN_PATTERNS[dtype]
        tensor.view(integer)[1 : 1 + len(patterns)] = torch.tensor(patterns, dtype=integer)
    return tensor


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor's bytes in the order of its elements."""
    return tensor.detach().reshape(-1).contiguous().view(torch.uint8)


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    """Return whether two tensors have one shape, one dtype and the same bytes."""
    return bool(left.shape == right.shape and left.dtype == right.dtype and torch.equal(bits(left), bits(right)))


def _there_and_back(tensor: torch.Tensor, device: torch.device) -> torch.Tensor:
    # copy=True: on the CPU `.to` would hand the same tensor back, and nothing would have moved.
    return tensor.to(device, copy=True).to("cpu", copy=True)


def round_trip(dut: DeviceUnderTest) -> Passed:
    """Every dtype goes to the device, is copied there, and comes back bit for bit."""
    moved, not_taken = [], {}
    for dtype in all_dtypes():
        original = payload(dtype)
        try:
            back = original.to(dut.device, copy=True).clone().to("cpu", copy=True)
        except (RuntimeError, TypeError) as error:  # NotImplementedError is a RuntimeError; MPS raises TypeError
            if dtype in COMMON:
                raise
            not_taken[_name(dtype)] = first_line(error)
            continue
        if not same_bits(original, back):
            differing = reference.counted(bits(original) != bits(back))
            told = reference.GARBAGE if differing is None else f"{differing} of {PAYLOAD_BYTES} bytes changed"
            raise Wrong(f"{_name(dtype)} came back with {told}")
        moved.append(_name(dtype))
    untaken = f", {len(not_taken)} unsupported on the device" if not_taken else ""
    return Passed(
        f"{len(moved)} dtypes bit for bit, NaN payloads too{untaken}", {"dtypes": moved, "not_taken": not_taken}
    )


def layouts(dut: DeviceUnderTest) -> Passed:
    """Odd shapes and strides survive the trip: their values, shapes and dtypes, and dense strides."""
    base = payload(torch.float32)[: 4 * 6 * 8].reshape(4, 6, 8)
    image = base.reshape(2, 4, 4, 6).to(memory_format=torch.channels_last)
    cases = {
        "a slice with steps": base[::2, 1:, ::3],
        "a transpose": base.transpose(0, 2),
        "channels last": image,
        "an expanded dimension": base[:1].expand(5, 6, 8),
        "a storage offset": base.reshape(-1)[7:],
        "no elements": base[:0],
        "no dimension": base[1, 2, 3],
    }
    for name, tensor in cases.items():
        back = _there_and_back(tensor, dut.device)
        expect(
            same_bits(tensor, back), f"{name} came back changed", shape=list(tensor.shape), came_back=list(back.shape)
        )
    for name in ("a transpose", "channels last"):
        sent = cases[name].to(dut.device, copy=True)
        expect(sent.stride() == cases[name].stride(), f"{name} lost its strides", strides=list(sent.stride()))
    return Passed(f"{len(cases)} layouts: {', '.join(cases)}", {"layouts": list(cases)})


def to_returns_new(dut: DeviceUnderTest) -> Passed:
    """`.to()` returns a new tensor and leaves the old where it was; the tensor itself where nothing changes."""
    home, away = (dut.device, dut.other) if dut.accel.is_cpu else (dut.other, dut.device)
    tensor = torch.arange(12.0, device=home)
    before = tensor.clone()
    moved = tensor.to(away)
    expect(moved.device == away, f".to({away}) returned a tensor on {moved.device}")
    expect(tensor.device == home, f".to({away}) moved the tensor itself to {tensor.device}")
    if away.type != "meta":
        moved.fill_(-1)
        dut.accel.synchronize()
        expect(moved.to(away) is moved, f".to({away}) of a tensor already there returned a new one")
    expect(torch.equal(tensor, before), "changing what .to() returned changed the tensor it came from")
    expect(tensor.to(home) is tensor, f".to({home}) of a tensor already there returned a new one")
    expect(tensor.to(home, tensor.dtype) is tensor, ".to() with its own dtype returned a new tensor")
    copied = tensor.to(home, copy=True)
    expect(copied.data_ptr() != tensor.data_ptr(), ".to(copy=True) returned the same memory")
    return Passed(f"{home} → {away}: `x.to(device)` alone moves nothing, `x = x.to(device)` does")


def device_mismatch(dut: DeviceUnderTest) -> Passed:
    """Operands on two devices raise RuntimeError, and say so."""
    here = torch.ones(4, 4, device=dut.device)
    there = torch.ones(4, 4, device=dut.other)
    calls: dict[str, Callable[[], torch.Tensor]] = {
        "add": lambda: here + there,
        "cat": lambda: torch.cat([here, there]),
    }
    if dut.other.type != "meta":  # `meta` has shapes alone, and some operations of the CPU let it pass
        calls["matmul"] = lambda: here @ there
        calls["linear"] = lambda: nn.functional.linear(there, here)
    texts = {}
    for name, call in calls.items():
        try:
            call()
        except RuntimeError as error:
            texts[name] = first_line(error)
            continue
        raise Wrong(f"{name} of tensors on {dut.device} and {dut.other} raised no error")
    for name, text in texts.items():
        names_it = any(word in text.lower() for word in ("device", "cpu"))
        expect(names_it, f"{name} of tensors on two devices raised another error: {text}")
    return Passed(f"{', '.join(calls)} across {dut.device} and {dut.other} raise RuntimeError", {"errors": texts})


def numpy_needs_cpu(dut: DeviceUnderTest) -> Passed:
    """`numpy()` works on the CPU, on the tensor's own memory, and is refused elsewhere."""
    elsewhere = torch.ones(3, device="meta" if dut.accel.is_cpu else dut.device)
    try:
        elsewhere.numpy()
    except TypeError as error:
        refused = first_line(error)
    else:
        raise Wrong(f"numpy() of a tensor on {elsewhere.device} was not refused")
    tensor = torch.arange(3.0, device=dut.device).cpu()
    array = tensor.numpy()
    array[0] = 7.0
    expect(float(tensor[0]) == 7.0, "numpy() of a tensor on the CPU returned a copy")
    expect(torch.equal(torch.from_numpy(array).to(dut.device).cpu(), tensor), "from_numpy().to() changed values")
    return Passed("refused on other devices, shares memory on the CPU", {"refusal": refused})


class _Tied(nn.Module):  # type: ignore[misc] # torch counts as untyped
    """Two layers with one weight, a buffer, and a buffer that is not saved."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(8, 8)
        self.second.weight = self.first.weight
        self.norm = nn.BatchNorm1d(8)
        self.register_buffer("scale", torch.full((8,), 2.0), persistent=False)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Uses everything that must have moved; inputs and outputs are (batch, 8)."""
        outputs: torch.Tensor = self.norm(self.second(self.first(inputs))) * self.scale
        return outputs


def module_to(dut: DeviceUnderTest) -> Passed:
    """`model.to()` moves parameters and buffers in place, those not saved too, and tied weights stay tied."""
    model = _Tied()
    target = dut.other if dut.accel.is_cpu else dut.device
    returned = model.to(target)
    expect(returned is model, "model.to() returned another module")
    tensors = dict(model.named_parameters()) | dict(model.named_buffers())
    behind = {name: str(tensor.device) for name, tensor in tensors.items() if tensor.device != target}
    expect(not behind, f"model.to({target}) left {', '.join(behind)} behind", left_behind=behind)
    expect("scale" in tensors and "scale" not in model.state_dict(), "the non-persistent buffer was lost")
    if dut.accel.is_cpu:
        # On the way to `meta` torch makes every parameter anew; a change of dtype on the CPU keeps them.
        model = _Tied().to(torch.float64)
        wrong = {n: str(t.dtype) for n, t in model.named_parameters() if t.dtype != torch.float64}
        expect(not wrong, f"model.to(float64) left {', '.join(wrong)} behind", left_behind=wrong)
    expect(model.second.weight is model.first.weight, "tied weights are no longer tied")
    dtype = model.first.weight.dtype
    model(torch.ones(4, 8, dtype=dtype, device=dut.device)).sum().backward()
    expect(model.first.weight.grad is not None, "the moved module got no gradient")
    return Passed(f"{len(tensors)} parameters and buffers moved to {target}, tied weights stayed tied")


def gradients(dut: DeviceUnderTest) -> Passed:
    """Gradients flow back through `.to()`, to where the leaf is and in the leaf's dtype."""
    leaf = torch.linspace(-1, 1, 16, requires_grad=True)
    moved = leaf.to(dut.device, dtype=torch.float16, copy=True)
    expect(moved.requires_grad and not moved.is_leaf, ".to() cut the graph")
    (moved.float() ** 2).sum().to("cpu").backward()
    grad = leaf.grad
    if grad is None:
        raise Wrong("no gradient arrived at the leaf")
    expect(grad.device.type == "cpu" and grad.dtype == torch.float32, f"the gradient is {grad.dtype} on {grad.device}")
    # 2x of the half-precision value: rounding it again loses nothing, so this is exact.
    expect(torch.equal(grad, 2 * leaf.detach().half().float()), "the gradient has wrong values", gradient=grad.tolist())
    with torch.no_grad():
        expect(not leaf.to(dut.device, copy=True).requires_grad, "no_grad() had no effect on .to()")
    return Passed(f"cpu → {dut.device} as float16 and back")
