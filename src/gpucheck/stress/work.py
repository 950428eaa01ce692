"""The work of `stress` on one device: products, memory patterns, copies, and all of these at once.

Results of products stay on the device and are compared there with the first result, word for word. A device that
computes nothing would find no difference, so one result of each step is hashed too. Memory and copies are hashed.

The checksum of 64-bit words w₀, w₁, … is Σ (2i+1)·f(wᵢ) modulo 2⁶⁴, with f(w) = w xor (w >> 32). A sum of integers does
not depend on the order in which a device adds. A single wrong word always changes the sum, because f is one to one and
the weights are odd. Swapped words change the sum, because the weight depends on the position. Chunks are combined by
s ← s·K + (sum of the chunk) with an odd K.

The data depends only on the seed and is drawn on the CPU, so devices of one model compute the same bits.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from gpucheck.bench.dtypes import Dtype
from gpucheck.bench.matmul import product
from gpucheck.bench.matmul.product import Matrices, bits, check_first
from gpucheck.errors import CannotLook
from gpucheck.machine import device_lifetime
from gpucheck.machine.accel import Accel, pinned
from gpucheck.report.results.stress import StressWrong
from gpucheck.units import GIB, MIB
from gpucheck.work import precision, reference

WORD = 8
POISON = -1
# Knuth's multiplier of MMIX: odd, and its bits are well mixed.
_CHUNK_FACTOR = 6364136223846793005
_LOW_HALF = 2**32 - 1
# splitmix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number generators", 2014), as signed numbers.
_GOLDEN, _MIX_1, _MIX_2 = -7046029254386353131, -4658895280553007687, -7723592293110705685
PATTERNS = ("ones", "address", "random")
# The number of seeds for random words. The patterns use the seeds in turn.
_SEEDS = 4
# The number of words that are generated, compared and hashed at once, which limits the temporary memory.
_CHUNK, _CHUNK_CPU = 8 * MIB, MIB
# The side of the products. At the largest side, filling and comparing a result takes about 7 % of a product's time.
_SIDE, _SIDE_SMALL, _SIDE_CPU = 8192, 4096, 512
_LARGE = 8 * GIB
# A copy of this size takes much longer than its launch.
_COPY, _COPY_CPU = 64 * MIB, 4 * MIB
# The memory that a step tests, in tens of milliseconds on an H200 and on a CPU.
_WINDOW, _WINDOW_CPU = GIB, 16 * MIB
# The length of a step: much longer than a wait for the device (20 µs), and much shorter than a point of the curve.
STEP_S = 0.1
MOST_PRODUCTS = 256
# The chunks that torch allocates besides the arena, for checksums of results and the comparison of memory.
_BESIDE_CHUNKS = 6
# After a failed allocation, the size is multiplied by the first, down to the second as a share of the requested size.
_LESS, _LEAST = 0.9, 0.2
# The most wrong elements of a result that are computed again in float64.
_MOST_PLACES = 64
# The text for a difference that the device counted but the host does not find.
_GONE = "no difference at the second read"


def checksum(words: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """Return the checksum of 64-bit words, on their device. `weights` are 1, 3, 5, … for a chunk."""
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for part in words.split(len(weights)):
        _add_chunk(total, part, weights)
    return total


def _add_chunk(total: torch.Tensor, part: torch.Tensor, weights: torch.Tensor) -> None:
    folded = (part >> 32).bitwise_and_(_LOW_HALF).bitwise_xor_(part)
    total.mul_(_CHUNK_FACTOR).add_(folded.mul_(weights[: len(part)]).sum())


def text_of(total: int) -> str:
    return f"{total & (2**64 - 1):016x}"


def pattern(name: str, index: torch.Tensor, at: int, number: int) -> torch.Tensor:
    """Return a pattern's words at the positions `at` + `index`. `number` selects the walking bit or the random seed."""
    positions = index + at
    if name == "address":
        return positions
    if name == "ones":
        return torch.bitwise_left_shift(torch.ones_like(positions), positions.add_(number).bitwise_and_(63))
    words = positions.mul_(_GOLDEN).add_(number)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        words.bitwise_xor_((words >> shift).bitwise_and_(2 ** (64 - shift) - 1)).mul_(factor)
    return words


@dataclass(frozen=True, slots=True)
class Step:
    """The amount of work of a step, the unit of its rate, and its wrong results."""

    amount: float
    unit: str
    seconds: float
    wrong: Sequence[StressWrong] = ()


class StressWork:
    """The work of a device in a run, and its memory. Raises CannotLook and torch's errors.

    `fill_bytes` is the memory to fill. `checksums` has the first checksum of each result by its name.
    """

    def __init__(self, accel: Accel, dtype: Dtype, fill_bytes: int, seed: int = 0, side: int = 0) -> None:
        self.accel, self.dtype, self.seed = accel, dtype, seed
        large = _SIDE if (accel.memory_total_bytes or 0) >= _LARGE else _SIDE_SMALL
        self.side = side or (_SIDE_CPU if accel.is_cpu else large)
        self.checksums: dict[str, str] = {}
        self.checks, self.worst_of_bound = 0, 0.0
        self._window = (_WINDOW_CPU if accel.is_cpu else _WINDOW) // WORD
        self._index = torch.arange(_CHUNK_CPU if accel.is_cpu else _CHUNK, device=accel.device)
        self._weights = self._index * 2 + 1
        self._kind = product.KINDS[dtype]
        self._matrices = self._operands()
        self._first = self._matrices.out
        self._make_arena(fill_bytes)
        self._side_stream = accel.side_stream() or contextlib.nullcontext
        # cuBLAS promises the same bits on GPUs with the same architecture and number of SMs (manual, "Results
        # Reproducibility"); oneMKL with the same alignment and number of threads (its guide to reproducibility).
        self.reproducible = accel.is_cpu or (accel.kind == "cuda" and not torch.version.hip)
        # The next pattern (`_turn`), window (`_at`) and result (`_next`), the direction of copies (`_phase`).
        self._turn = self._at = self._next = self._phase = 0
        self._products = 1
        # By a window's position: the pattern written in this turn, and the number of words tested in this run.
        self._written: dict[int, tuple[str, int]] = {}
        self._tested: dict[int, int] = {}
        self.tested_bytes = 0
        self._steps, self._began_s = 0, 0.0

    # -- memory -----------------------------------------------------------------------------------------------------

    def _operands(self) -> Matrices:
        """Return A and B, drawn on the CPU, and the first product, with which later products are compared."""
        elements = self.side * self.side
        flat = product.allocate(self._kind, (elements, elements, elements), self.accel.device)
        matrices = product.view(self._kind, flat, (self.side, self.side, self.side))
        call = self._kind.bind(matrices.a, matrices.b, matrices.out)
        call()
        self.accel.synchronize()
        self._bound_of = self._kind.bound_of
        if self._kind.operand == torch.float32:
            observed = precision.observed(matrices.a, matrices.b, matrices.out, call)
            self._bound_of = None if observed == "float32" else observed
        generator = torch.Generator().manual_seed(self.seed)
        for operand in (flat.a, flat.b):
            drawn = torch.empty(elements, dtype=operand.dtype)
            product.draw(drawn, generator)
            operand.copy_(drawn)
        _words(matrices.out).fill_(POISON)
        call()
        self.accel.synchronize()
        self.checksums["products"] = self._sum(_words(matrices.out))
        return matrices

    def _make_arena(self, fill_bytes: int) -> None:
        """Allocate as much of the requested memory as possible: results, then the buffers of copies."""
        is_cpu, chunk, slot = self.accel.is_cpu, len(self._index), _words(self._first).numel()
        copy = (_COPY_CPU if is_cpu else _COPY) // WORD
        least = 2 * copy + slot + chunk
        words = fill_bytes // WORD
        words = words // self._window * self._window if is_cpu else words - _BESIDE_CHUNKS * chunk
        memory = _allocate(max(words, least), least, self.accel)
        # The arena of a lost device must not be freed, because a second stream uses it. A CPU is never lost.
        self.arena = memory if is_cpu else device_lifetime.own(memory, self.accel.id)
        self.arena.fill_(POISON)
        self.filled_bytes = len(self.arena) * WORD
        self._out, self._back = self.arena[-2 * copy : -copy], self.arena[-copy:]
        # The pattern of mixed work lies between the results and the copies.
        self._mixed_at = len(self.arena) - 2 * copy - chunk
        a, b = self._matrices.a, self._matrices.b
        parts = self.arena[: self._mixed_at].split(slot)
        self._results = [part.view(self._kind.result).view(self.side, self.side) for part in parts if len(part) == slot]
        self._calls = [self._kind.bind(a, b, result) for result in self._results]
        pin = self.accel.can_pin
        self._hosts = [pinned(copy, torch.int64) if pin else torch.empty(copy, dtype=torch.int64) for _ in range(2)]
        source = torch.cat([pattern("random", self._index[: copy - at], at, self.seed) for at in range(0, copy, chunk)])
        self.checksums["copies"], self._sent = self._sum(source), source.cpu()

    def _sum(self, words: torch.Tensor) -> str:
        return text_of(int(checksum(words, self._weights).item()))

    # -- steps ------------------------------------------------------------------------------------------------------

    def begin(self, kind: str) -> None:
        """Begin a turn: forget the patterns and write the data of copies again, because other work overwrote both."""
        self._began_s = self._began_s or time.perf_counter()
        self._written.clear()
        if kind in ("copies", "mixed"):
            self._back.fill_(POISON)
            for buffer in (self._out, *self._hosts):
                buffer.copy_(self._sent)
            self._phase = 0
            self.accel.synchronize()

    def step(self, kind: str) -> Step:
        self._steps += 1
        works = {"products": self._multiply, "memory": self._patterns, "copies": self._copies, "mixed": self._mixed}
        return works[kind]()

    def check(self) -> tuple[StressWrong, ...]:
        """Compare the first product with float64: sampled rows on the CPU, and the sums of all columns."""
        self.checks += 1
        verified = check_first(self._matrices, self._first, self._bound_of)
        rows, sums = verified.rows, verified.sums
        worst = max(rows.worst, sums.worst)
        self.worst_of_bound = max(worst, self.worst_of_bound)
        # Zero operands give a zero product even if nothing is computed.
        if rows.passed and sums.passed and verified.operands_spread != 0:
            return ()
        index, element = None, rows if rows.worst > 1 else verified.element
        if element is not None and element.worst > 1:
            index = element.row * self.side + element.column
            text = f"got {element.got:g}, float64 gives {element.expected:g}"
        elif rows.not_finite:
            text = f"{rows.not_finite} elements are not finite"
        elif rows.miscounted:
            text = f"{reference.GARBAGE}: whether elements are finite is unknown"
        else:
            text = "the operands are not random numbers" if sums.passed else "a sum of 64 columns is wrong"
        return (self._wrong("products", "products", "float64", place=index, worst_of_bound=worst, text=text),)

    def _timed(self, *work: Callable[[], object]) -> float:
        self.accel.synchronize()
        began = time.perf_counter()
        for call in work:
            call()
        self.accel.synchronize()
        return time.perf_counter() - began

    def _multiply(self) -> Step:
        slots, flop, seconds = self._fill_slots()
        return Step(flop, self._kind.unit, seconds, self._compared(slots, "products"))

    def _patterns(self) -> Step:
        """Read a window and write its next pattern. The window has the pattern of the previous round, and the whole
        memory was written since then. In the first round of a turn, write a pattern and read the same pattern."""
        at = self._at if self._at < len(self.arena) else 0
        window = self.arena[at : at + self._window]
        self._at = at + len(window)
        before, now = self._written.get(at), self._next_pattern()
        if before is not None and before[0] == now[0]:
            now = self._next_pattern()
        self._written[at], self._tested[at] = now, len(window)
        self.tested_bytes = WORD * sum(self._tested.values())
        wrong: list[StressWrong] = []

        def work() -> None:
            if before is not None:
                wrong.extend(self._read(window, at, *before, "memory"))
            self._write(window, at, *now)
            if before is None:
                wrong.extend(self._read(window, at, *now, "memory"))

        return Step(len(window), "word/s", self._timed(work), wrong)

    def _next_pattern(self) -> tuple[str, int]:
        name = PATTERNS[self._turn % len(PATTERNS)]
        number = self._turn // len(PATTERNS) % (_SEEDS if name == "random" else 64)
        self._turn += 1
        return name, number

    def _copies(self) -> Step:
        seconds, copied = 0.0, 0
        wrong: list[StressWrong] = []
        until = time.perf_counter() + STEP_S
        while seconds < STEP_S and not (wrong and time.perf_counter() >= until):
            seconds += self._timed(self._exchange)
            copied += 2 * len(self._sent) * WORD
            wrong += self._check_to_device("copies")
        return Step(copied, "B/s", seconds, [*wrong, *self._check_to_host("copies")])

    def _mixed(self) -> Step:
        """Run copies on a second stream, and products and a pattern on the first stream; then compare all results."""
        at, number = self._mixed_at, self._turn % 64
        window = self.arena[at : at + len(self._index)]
        self._turn += 1
        slots, flop, seconds = self._fill_slots([self._exchange], [lambda: self._write(window, at, "ones", number)])
        wrong = [*self._compared(slots, "mixed"), *self._check_to_device("mixed"), *self._check_to_host("mixed")]
        wrong += self._read(window, at, "ones", number, "mixed")
        return Step(flop, self._kind.unit, seconds, wrong)

    # -- products ---------------------------------------------------------------------------------------------------

    def _fill_slots(
        self, before: Sequence[Callable[[], object]] = (), after: Sequence[Callable[[], object]] = ()
    ) -> tuple[list[int], float, float]:
        """Compute the next results. Return their slots, their operations, and the time of all calls in seconds."""
        count = len(self._results)
        slots = [(self._next + offset) % count for offset in range(min(self._products, count))]
        self._next = (slots[-1] + 1) % count
        for slot in slots:
            _words(self._results[slot]).fill_(POISON)  # a result that is not computed cannot pass
        seconds = self._timed(*before, *(self._calls[slot] for slot in slots), *after)
        self._products = max(1, min(MOST_PRODUCTS, math.ceil(STEP_S * len(slots) / max(seconds, 1e-6))))
        return slots, 2.0 * self.side**3 * len(slots), seconds

    def _compared(self, slots: Sequence[int], kind: str) -> list[StressWrong]:
        """Compare every result with the first result, word for word, and check the last result's checksum. Examine
        wrong results for at most the time of a step, because every result of a broken device may be wrong."""
        first = _words(self._first)
        counts = [(_words(self._results[slot]) != first).sum() for slot in slots]
        counts.append(checksum(_words(self._results[slots[-1]]), self._weights))
        *differing, total = torch.stack(counts).tolist()
        wrong_sum = {slots[-1]} if text_of(total) != self.checksums["products"] else set()
        wrong: list[StressWrong] = []
        until = time.perf_counter() + STEP_S
        for slot, count in zip(slots, differing, strict=True):
            if (count or slot in wrong_sum) and not (wrong and time.perf_counter() >= until):
                wrong.append(self._examined(slot, kind, reference.count_of(count, len(first))))
        return wrong

    def _examined(self, slot: int, kind: str, words: int | None) -> StressWrong:
        """Find the elements of a product that differ from the first product, in copies on the host."""
        now, before = self._results[slot].cpu().view(-1), self._first.cpu().view(-1)
        positions = (bits(now) != bits(before)).nonzero().view(-1)
        if not len(positions):
            text = reference.GARBAGE if words is None else f"{words} words or the checksum differed"
            return self._wrong(kind, "products", "first", elements=0, text=f"{text}; {_GONE}")
        index = [divmod(int(position), self.side) for position in positions[:_MOST_PLACES]]
        values = now[positions[:_MOST_PLACES]].double().tolist()
        worst = reference.check_elements(
            self._matrices.a, self._matrices.b, self._first, index, self._bound_of, got=values
        )
        differing = _difference(bits(now), bits(before))
        text = f"{now[positions[0]].item():g} instead of {before[positions[0]].item():g}"
        return self._wrong(kind, "products", "first", **differing, worst_of_bound=worst[0].worst, text=text)

    # -- patterns ---------------------------------------------------------------------------------------------------

    def _write(self, window: torch.Tensor, at: int, name: str, number: int) -> None:
        for _, part, expected in self._parts(window, at, name, number):
            part.copy_(expected)

    def _parts(
        self, window: torch.Tensor, at: int, name: str, number: int
    ) -> Iterator[tuple[int, torch.Tensor, torch.Tensor]]:
        """Yield each part of a window: the position of its first word, the part, and the pattern's words for the part.
        The pattern `address` counts from the start of the arena, other patterns from the window's start."""
        size, number = len(self._index), self.seed + number if name == "random" else number
        origin = at if name == "address" else 0
        for first, part in zip(range(0, len(window), size), window.split(size), strict=True):
            yield first, part, pattern(name, self._index[: len(part)], origin + first, number)

    def _read(self, window: torch.Tensor, at: int, name: str, number: int, kind: str) -> list[StressWrong]:
        """Compare every word of a window with its pattern, and the checksum with the first checksum."""
        total = torch.zeros((), dtype=torch.int64, device=window.device)
        differing = torch.zeros_like(total)
        for _, part, expected in self._parts(window, at, name, number):
            differing += (part != expected).sum()
            # Addresses count from the window's first address, so that all windows have the same checksum.
            _add_chunk(total, part - at if name == "address" else part, self._weights)
        differ, summed = torch.stack([differing, total]).tolist()
        count = reference.count_of(differ, len(window))
        result = f"{name}{f'+{number}' if name != 'address' else ''}/{len(window)}"
        if count == 0 and self.checksums.setdefault(result, text_of(summed)) == text_of(summed):
            return []
        # The host finds the first word that differs. `count` is None if the device's count is invalid.
        garbage = f"; {reference.GARBAGE}" if count is None else ""
        for first, part, expected in self._parts(window, at, name, number):
            if wrong := _difference(part.cpu(), expected.cpu(), at + first):
                wrong["elements"] = wrong["elements"] if count == 0 else count
                text = f"{wrong['got']} read back where {wrong['expected']} was written{garbage}"
                return [self._wrong(kind, result, "pattern", **wrong, text=text)]
        return [self._wrong(kind, result, "pattern", elements=count, text=f"{_GONE}{garbage}")]

    # -- copies -----------------------------------------------------------------------------------------------------

    def _exchange(self) -> None:
        """Copy words from the device to a host buffer, and at the same time from another host buffer to the device."""
        to, origin = self._hosts[self._phase % 2], self._hosts[(self._phase + 1) % 2]
        with self._side_stream():
            to.copy_(self._out, non_blocking=True)
        self._back.copy_(origin, non_blocking=True)
        self._phase += 1

    def _check_to_device(self, kind: str) -> list[StressWrong]:
        """Return the wrong result of the copy to the device, if any, and poison both buffers of this copy."""
        origin = self._hosts[self._phase % 2]
        wrong: list[StressWrong] = []
        if self._sum(self._back) != self.checksums["copies"]:
            # If the host buffer is wrong too, the earlier copy to the host was wrong.
            is_right = torch.equal(origin, self._sent)
            now, way = (self._back.cpu(), "to the device") if is_right else (origin, "to the host")
            wrong.append(self._miscopied(now, way, kind))
        self._back.fill_(POISON)
        origin[:: max(1, len(origin) // 64)] = POISON
        self.accel.synchronize()
        return wrong

    def _check_to_host(self, kind: str) -> list[StressWrong]:
        """Return the wrong result of the step's last copy to the host, if any. No later copy reads this buffer."""
        last = self._hosts[(self._phase + 1) % 2]
        if torch.equal(last, self._sent):
            return []
        wrong = self._miscopied(last, "to the host", kind)
        # The next copies start from correct data.
        last.copy_(self._sent)
        self._out.copy_(self._sent)
        self.accel.synchronize()
        return [wrong]

    def _miscopied(self, now: torch.Tensor, way: str, kind: str) -> StressWrong:
        wrong = _difference(now, self._sent)
        text = f"{wrong['got']} arrived {way}, but {wrong['expected']} was sent" if wrong else _GONE
        return self._wrong(kind, "copies", "pattern", **(wrong or {"elements": 0}), text=text)

    def _wrong(self, kind: str, result: str, against: str, **fields: Any) -> StressWrong:
        at_s = time.perf_counter() - self._began_s if self._began_s else 0.0
        return StressWrong(at_s, self._steps, kind, result, against, **fields)


def _difference(now: torch.Tensor, right: torch.Tensor, at: int = 0) -> dict[str, Any]:
    """Return the number of words on the host that differ, and the first of these, whose index counts from `at`."""
    positions = (now != right).nonzero().view(-1)
    if not len(positions):
        return {}
    first = int(positions[0])
    got, expected = _hex(now[first]), _hex(right[first])
    return {"elements": len(positions), "place": at + first, "got": got, "expected": expected}


def _words(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.view(-1).view(torch.int64)


def _hex(word: torch.Tensor) -> str:
    size = word.element_size() * 8
    return f"0x{int(word.item()) & (2**size - 1):0{size // 4}x}"


def _allocate(words: int, least: int, accel: Accel) -> torch.Tensor:
    """Allocate `words` words, or as many as possible. Raises CannotLook if far fewer are available."""
    wanted = words
    while True:
        try:
            return torch.empty(words, dtype=torch.int64, device=accel.device)
        except (RuntimeError, MemoryError) as error:
            if not accel.is_out_of_memory(error):
                raise
            if (words := int(words * _LESS)) < max(least, wanted * _LEAST):
                what = f"not enough memory on {accel.id} for {wanted * WORD / GIB:.1f} GiB"
                fix = "use a smaller --fill, or stop other programs that use the memory"
                raise CannotLook(what, str(error).strip().splitlines()[0], fix, finding="stress.memory") from error
            accel.empty_cache()
