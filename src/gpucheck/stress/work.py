"""The work of `stress` on one device: products, memory patterns, copies, and all of these at once.

Results of products are compared with the first one, word for word, where they lie; one of each step is hashed too, as
a device that computes nothing finds no difference either. Memory and copies are hashed.

The checksum of 64-bit words w₀, w₁, … is Σ (2i+1)·f(wᵢ) modulo 2⁶⁴, with
f(w) = w xor (w >> 32): sums of whole numbers do not depend on the order in which a device adds. f is one to one and the
weights are odd, so that one wrong word, in whichever bits, always changes the sum; the place is in the weight, so that
words which have changed places do too. Chunks are put together by s ← s·K + (sum of the chunk), K odd.

Data comes from the seed alone and is drawn on the CPU, so that devices of one model compute the same bits.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from gpucheck.bench.dtypes import Dtype
from gpucheck.bench.matmul import product
from gpucheck.bench.matmul.product import Matrices, bits, check_first
from gpucheck.errors import CannotLook
from gpucheck.machine import kept
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
# Seeds of random words that take turns.
_SEEDS = 4
# Words that are made, compared and hashed at once, and so the size of what that takes beside them: much less than a
# device's memory; on a CPU, of one core's cache.
_CHUNK, _CHUNK_CPU = 8 * MIB, MIB // 2
# The side of the products: as large as rates need, so that filling and comparing a result takes some 7 % of a product's
# time (3¼ times its bytes beside 2·side³ operations); a core's own takes milliseconds.
_SIDE, _SIDE_SMALL, _SIDE_CPU = 8192, 4096, 512
_LARGE = 8 * GIB
# A copy is long beside its start.
_COPY, _COPY_CPU = 64 * MIB, 4 * MIB
# Memory that a step tests: larger than a cache, and tens of milliseconds of work for an H200 and for a CPU's core.
_WINDOW, _WINDOW_CPU = GIB, 64 * MIB
# A step is long beside a wait for the device (some 20 µs), and short beside a point of the curve.
STEP_S = 0.1
MOST_PRODUCTS = 256
# What torch asks for beside the arena: results' checksums, the parts of memory that are compared.
_BESIDE_CHUNKS = 6
# Where an allocation fails, less is tried, down to this share of what was asked for.
_LESS, _LEAST = 0.9, 0.2
# Places of a wrong result that are computed in float64.
_MOST_PLACES = 64


def checksum(words: torch.Tensor, weights: torch.Tensor) -> torch.Tensor:
    """The checksum of 64-bit words, as a number on their device; `weights` are 1, 3, 5, … for a chunk."""
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for part in words.split(len(weights)):
        _add_chunk(total, part, weights)
    return total


def _add_chunk(total: torch.Tensor, part: torch.Tensor, weights: torch.Tensor) -> None:
    folded = (part >> 32).bitwise_and_(_LOW_HALF).bitwise_xor_(part)
    total.mul_(_CHUNK_FACTOR).add_(folded.mul_(weights[: len(part)]).sum())


def text_of(total: int) -> str:
    """A checksum as 16 hexadecimal digits."""
    return f"{total & (2**64 - 1):016x}"


def pattern(name: str, index: torch.Tensor, at: int, number: int) -> torch.Tensor:
    """The words of a pattern at the places `at` + `index`; `number` is which walking one, or which random seed."""
    places = index + at
    if name == "address":
        return places
    if name == "ones":
        return torch.bitwise_left_shift(torch.ones_like(places), places.add_(number).bitwise_and_(63))
    words = places.mul_(_GOLDEN).add_(number)
    for shift, factor in ((30, _MIX_1), (27, _MIX_2), (31, 1)):
        words.bitwise_xor_((words >> shift).bitwise_and_(2 ** (64 - shift) - 1)).mul_(factor)
    return words


@dataclass(frozen=True, slots=True)
class Step:
    """One step: the kind of work, how much of it (`unit` by the second) in what time, and what was wrong with it."""

    kind: str
    amount: float
    unit: str
    seconds: float
    wrong: tuple[StressWrong, ...] = ()


@dataclass(slots=True)
class Work:
    """The work of a device in a run, and its memory. Raises CannotLook and what torch raises.

    `fill_bytes` is how much memory to fill. `checksums` has the first checksum of each result by its name.
    """

    accel: Accel
    dtype: Dtype
    fill_bytes: int
    seed: int = 0
    side: int = 0
    checksums: dict[str, str] = field(default_factory=dict)
    checks: int = 0
    worst_of_bound: float | None = None
    arena: torch.Tensor = field(init=False)
    _index: torch.Tensor = field(init=False)
    _weights: torch.Tensor = field(init=False)
    _kind: product.Kind = field(init=False)
    _one: Matrices = field(init=False)
    _first: torch.Tensor = field(init=False)
    _slots: list[Matrices] = field(init=False)
    _calls: list[Callable[[], object]] = field(init=False)
    _hosts: list[torch.Tensor] = field(init=False)
    _copied: torch.Tensor = field(init=False)
    _sent: torch.Tensor = field(init=False)
    _side_stream: Callable[[], contextlib.AbstractContextManager[object]] | None = field(init=False)
    _seen_as: str | None = field(init=False, default=None)
    _turn: int = 0
    _at: int = 0
    # What stands in the windows of memory since the turn began: the place → the pattern's name and number.
    _written: dict[int, tuple[str, int]] = field(default_factory=dict)
    # The windows tested in the run: the place → how many words, and whether the rest was written before they were read.
    _tested: dict[int, tuple[int, bool]] = field(default_factory=dict)
    _next: int = 0
    _products: int = 1
    _phase: int = 0
    _steps: int = 0
    _began_s: float = 0.0

    def __post_init__(self) -> None:
        is_cpu = self.accel.is_cpu
        self.side = self.side or (
            _SIDE_CPU if is_cpu else _SIDE if (self.accel.memory_total_bytes or 0) >= _LARGE else _SIDE_SMALL
        )
        self._index = torch.arange(_CHUNK_CPU if is_cpu else _CHUNK, device=self.accel.device)
        self._weights = self._index * 2 + 1
        self._make_operands()
        self._make_arena()
        self._side_stream = self.accel.side_stream()

    # -- memory -----------------------------------------------------------------------------------------------------

    def _make_operands(self) -> None:
        """A and B, drawn on the CPU, and the first product, which later ones are compared with."""
        self._kind = product.KINDS[self.dtype]
        self._seen_as = self._kind.seen_as
        elements = self.side * self.side
        flat = product.allocate(self._kind, (elements, elements, elements), self.accel.device)
        shape = (self.side, self.side, self.side)
        self._one = product.view(self._kind, flat, shape)
        call = self._kind.bind(self._one.a, self._one.b, self._one.out)
        call()
        self.accel.synchronize()
        if self._kind.operand == torch.float32:
            observed = precision.observed(self._one.a, self._one.b, self._one.out, call)
            self._seen_as = None if observed == "float32" else observed
        generator = torch.Generator().manual_seed(self.seed)
        for operand in (flat.a, flat.b):
            drawn = torch.empty(elements, dtype=operand.dtype)
            self._kind.fill(drawn, generator)
            operand.copy_(drawn)
        _words(self._one.out).fill_(POISON)
        call()
        self.accel.synchronize()
        self._first = self._one.out
        self.checksums["products"] = text_of(int(checksum(_words(self._first), self._weights).item()))

    def _make_arena(self) -> None:
        """As much memory as can be had of what was asked for: results, then what copies go from and to."""
        copy = (_COPY_CPU if self.accel.is_cpu else _COPY) // WORD
        slot = _words(self._first).numel()
        window = _WINDOW_CPU // WORD if self.accel.is_cpu else 1
        least = 2 * copy + slot + len(self._index)
        beside = 0 if self.accel.is_cpu else _BESIDE_CHUNKS * len(self._index)
        words = max((self.fill_bytes // WORD - beside) // window * window, least)
        memory = _allocate(words, least, self.accel)  # a second stream copies in it
        # A lost device must not free it; a CPU is not lost.
        self.arena = memory if self.accel.is_cpu else kept.own(memory, self.accel.id)
        self.arena.fill_(POISON)
        self._copied = self.arena[-2 * copy :]
        room = self.arena[: -2 * copy - len(self._index)]
        flat = [part.view(self._kind.result) for part in room.split(slot) if len(part) == slot]
        a, b = self._one.a, self._one.b
        self._slots = [Matrices(a, b, part.view(self.side, self.side)) for part in flat]
        self._calls = [self._kind.bind(a, b, one.out) for one in self._slots]
        pin = self.accel.can_pin
        self._hosts = [pinned(copy, torch.int64) if pin else torch.empty(copy, dtype=torch.int64) for _ in range(2)]
        for host in self._hosts:
            host.fill_(POISON)
        source = self._source()
        self._sent = source.cpu()
        self.checksums["copies"] = text_of(int(checksum(source, self._weights).item()))

    @property
    def filled_bytes(self) -> int:
        return int(self.arena.numel()) * WORD

    @property
    def tested_bytes(self) -> tuple[int, int]:
        """Return how much memory was written and read, and how much of it was read again after the rest was written."""
        windows = self._tested.values()
        return WORD * sum(words for words, _ in windows), WORD * sum(words for words, held in windows if held)

    @property
    def reproducible(self) -> bool:
        """Return whether the libraries promise the same bits for the same call on devices of one model.

        cuBLAS does, on one stream of GPUs with the same architecture and number of SMs ("Results Reproducibility" in
        its manual); oneMKL with the same alignment and number of threads (its guide to numerical reproducibility).
        """
        return self.accel.is_cpu or (self.accel.kind == "cuda" and not torch.version.hip)

    def _source(self) -> torch.Tensor:
        size = len(self._copied) // 2
        parts = range(0, size, len(self._index))
        made = [pattern("random", self._index[: size - at], at, self.seed) for at in parts]
        return torch.cat(made)

    # -- steps ------------------------------------------------------------------------------------------------------

    def begin(self, kind: str) -> None:
        """A turn begins: what copies carry was overwritten by what came before."""
        self._written.clear()
        if kind in ("copies", "mixed"):
            half = len(self._copied) // 2
            self._copied[:half] = self._source()
            self._copied[half:].fill_(POISON)
            for host in self._hosts:
                host.copy_(self._copied[:half])
            self._phase = 0
            self.accel.synchronize()

    def start(self) -> None:
        """The run begins now: steps tell their time from here on."""
        self._began_s = time.perf_counter()

    def step(self, kind: str) -> Step:
        """One step of this kind: done, hashed and compared."""
        self._steps += 1
        return {"products": self._multiply, "memory": self._patterns, "copies": self._copies, "mixed": self._mixed}[
            kind
        ]()

    def check(self) -> tuple[StressWrong, ...]:
        """The first product against float64 on the CPU; the sums of all columns too, where the device has float64."""
        self.checks += 1
        told = check_first(Matrices(self._one.a, self._one.b, self._first), self._first, self._seen_as)
        worst = max(told.rows.worst, told.sums.worst)
        self.worst_of_bound = max(worst, self.worst_of_bound or 0.0)
        if told.rows.passed and told.sums.passed:
            return ()
        at = told.rows if not told.rows.passed else told.element
        place, got, expected = (
            (at.row * self.side + at.column, at.got, at.expected) if at is not None else (0, 0.0, 0.0)
        )
        text = f"got {got:g}, float64 gives {expected:g}" if at is not None else "a sum of 64 columns is wrong"
        return (self._wrong("products", "products", "float64", place=place, worst_of_bound=worst, text=text),)

    def _multiply(self) -> Step:
        slots = self._take_slots()
        self.accel.synchronize()
        began = time.perf_counter()
        for slot in slots:
            self._calls[slot]()
        self.accel.synchronize()
        seconds = time.perf_counter() - began
        self._settle(seconds, len(slots))
        return Step("products", *self._flop(len(slots)), seconds, self._compared(slots, "products"))

    def _patterns(self) -> Step:
        """A window read and written: what the round before left in it, so that the whole memory lies between the two.

        In the first round nothing of the turn stands there yet, and what was just written is read.
        """
        size = (_WINDOW_CPU if self.accel.is_cpu else _WINDOW) // WORD
        if self._at >= len(self.arena):
            self._at = 0
        window, at = self.arena[self._at : self._at + size], self._at
        self._at += len(window)
        before = self._written.get(at)
        name, number = self._next_pattern()
        if before is not None and before[0] == name:
            name, number = self._next_pattern()
        self._written[at] = name, number
        self._tested[at] = len(window), before is not None or (at in self._tested and self._tested[at][1])
        self.accel.synchronize()
        began = time.perf_counter()
        wrong = () if before is None else self._read(window, at, *before, "memory")
        self._write(window, at, name, number)
        if before is None:
            wrong = self._read(window, at, name, number, "memory")
        self.accel.synchronize()
        return Step("memory", len(window), "word/s", time.perf_counter() - began, wrong)

    def _next_pattern(self) -> tuple[str, int]:
        name = PATTERNS[self._turn % len(PATTERNS)]
        number = self._turn // len(PATTERNS) % (_SEEDS if name == "random" else 64)
        self._turn += 1
        return name, number

    def _copies(self) -> Step:
        self.accel.synchronize()
        seconds, copied = 0.0, 0
        wrong: list[StressWrong] = []
        until = time.perf_counter() + STEP_S
        while seconds < STEP_S and not (wrong and time.perf_counter() >= until):
            began = time.perf_counter()
            self._exchange()
            self.accel.synchronize()
            seconds += time.perf_counter() - began
            copied += 2 * self._hosts[0].numel() * WORD
            wrong += self._arrived("copies")
        wrong += self._left("copies")
        return Step("copies", copied, "B/s", seconds, tuple(wrong))

    def _mixed(self) -> Step:
        """Copies on a second stream, products and a pattern on the first one; all of it is compared at the end."""
        slots = self._take_slots()
        window = self.arena[-2 * self._hosts[0].numel() - len(self._index) :][: len(self._index)]
        at, number = len(self.arena) - 2 * self._hosts[0].numel() - len(self._index), self._turn % 64
        self._turn += 1
        self.accel.synchronize()
        began = time.perf_counter()
        self._exchange()
        for slot in slots:
            self._calls[slot]()
        self._write(window, at, "ones", number)
        self.accel.synchronize()
        seconds = time.perf_counter() - began
        self._settle(seconds, len(slots))
        wrong = [*self._compared(slots, "mixed"), *self._arrived("mixed"), *self._left("mixed")]
        wrong += self._read(window, at, "ones", number, "mixed")
        return Step("mixed", *self._flop(len(slots)), seconds, tuple(wrong))

    # -- products ---------------------------------------------------------------------------------------------------

    def _take_slots(self) -> list[int]:
        """The next results to fill, made unlike any result: one that is not computed must not pass."""
        slots = [(self._next + one) % len(self._slots) for one in range(min(self._products, len(self._slots)))]
        self._next = (slots[-1] + 1) % len(self._slots)
        for slot in slots:
            _words(self._slots[slot].out).fill_(POISON)
        return slots

    def _settle(self, seconds: float, done: int) -> None:
        self._products = max(1, min(MOST_PRODUCTS, math.ceil(STEP_S * done / max(seconds, 1e-6))))

    def _flop(self, count: int) -> tuple[float, str]:
        return 2.0 * self.side**3 * count, self._kind.unit

    def _compared(self, slots: Sequence[int], kind: str) -> tuple[StressWrong, ...]:
        """The words of every result that differ from the first one's; of the last result the checksum too.

        What is wrong is looked at for no longer than a step; a device that computes nothing right has more of it.
        """
        first = _words(self._first)
        told = [(_words(self._slots[slot].out) != first).sum() for slot in slots]
        told.append(checksum(_words(self._slots[slots[-1]].out), self._weights))
        *differing, total = torch.stack(told).tolist()
        right = text_of(total) == self.checksums["products"]
        wrong: list[StressWrong] = []
        until = time.perf_counter() + STEP_S
        for slot, count in zip(slots, differing, strict=True):
            unlike = text_of(total) if slot == slots[-1] and not right else ""
            if (count or unlike) and not (wrong and time.perf_counter() >= until):
                wrong.append(self._examined(slot, kind, reference.count_of(count, len(first)), unlike))
        return tuple(wrong)

    def _examined(self, slot: int, kind: str, words: int | None, total: str) -> StressWrong:
        """Which elements of a product differ from the first one's, and how far they are from float64.

        Compared on copies that the host has: what a device that computes wrongly says of its results proves nothing.
        """
        now, before = self._slots[slot].out.cpu().view(-1), self._first.cpu().view(-1)
        places = (bits(now) != bits(before)).nonzero().view(-1)
        if not len(places):
            seen = f"its checksum was {total}, not {self.checksums['products']}" if total else f"{words} words differed"
            seen = reference.GARBAGE if words is None else seen
            text = f"{seen}; no difference at the second read"
            return self._wrong(kind, "products", "first", elements=0, text=text)
        at = int(places[0])
        index = [divmod(int(place), self.side) for place in places[:_MOST_PLACES]]
        values = now[places[:_MOST_PLACES]].double().tolist()
        worst = reference.check_elements(self._one.a, self._one.b, self._first, index, self._seen_as, got=values)
        return self._wrong(
            kind,
            "products",
            "first",
            elements=len(places),
            place=at,
            got=_hex(bits(now)[at]),
            expected=_hex(bits(before)[at]),
            worst_of_bound=worst[0].worst,
            text=f"{now[at].item():g} instead of {before[at].item():g}",
        )

    # -- patterns ---------------------------------------------------------------------------------------------------

    def _write(self, window: torch.Tensor, at: int, name: str, number: int) -> None:
        for first, part in self._parts(window):
            part.copy_(self._made(name, at, first, len(part), number))

    def _made(self, name: str, at: int, first: int, size: int, number: int) -> torch.Tensor:
        """A part of the pattern; addresses count from the arena's beginning, all else from the window's."""
        start = at + first if name == "address" else first
        return pattern(name, self._index[:size], start, self.seed + number if name == "random" else number)

    def _parts(self, window: torch.Tensor) -> list[tuple[int, torch.Tensor]]:
        size = len(self._index)
        return [(place * size, part) for place, part in enumerate(window.split(size))]

    def _read(self, window: torch.Tensor, at: int, name: str, number: int, kind: str) -> tuple[StressWrong, ...]:
        """Read a pattern back: every word against what was written, and the checksum against the first one's."""
        total = torch.zeros((), dtype=torch.int64, device=window.device)
        differing = torch.zeros_like(total)
        for first, part in self._parts(window):
            differing += (part != self._made(name, at, first, len(part), number)).sum()
            # Of addresses, how far they are from the window's first: windows take turns.
            _add_chunk(total, part - at if name == "address" else part, self._weights)
        differ, told = torch.stack([differing, total]).tolist()
        count = reference.count_of(differ, len(window))
        result = f"{name}{f'+{number}' if name != 'address' else ''}/{len(window)}"
        known = self.checksums.get(result)
        if count == 0 and known is None:
            self.checksums[result] = text_of(told)
        if count == 0 and known in (None, text_of(told)):
            return ()
        return (self._misread(window, at, name, number, kind, result, count),)

    def _misread(
        self, window: torch.Tensor, at: int, name: str, number: int, kind: str, result: str, count: int | None
    ) -> StressWrong:
        """The first word that differs, as the host reads it; `count` is None where the device's own is garbage."""
        garbage = f"; {reference.GARBAGE}" if count is None else ""
        for first, part in self._parts(window):
            now, right = part.cpu(), self._made(name, at, first, len(part), number).cpu()
            places = (now != right).nonzero().view(-1)
            if len(places):
                place = int(places[0])
                return self._wrong(
                    kind, result, "pattern", elements=len(places) if count == 0 else count, place=at + first + place,
                    got=_hex(now[place]), expected=_hex(right[place]),
                    text=f"{_hex(now[place])} read back where {_hex(right[place])} was written{garbage}",
                )  # fmt: skip
        return self._wrong(kind, result, "pattern", elements=count, text=f"no difference at the second read{garbage}")

    # -- copies -----------------------------------------------------------------------------------------------------

    def _exchange(self) -> None:
        """The device's words to one host buffer, and at the same time what the other one has to the device."""
        half = len(self._copied) // 2
        out, back = self._hosts[self._phase % 2], self._hosts[(self._phase + 1) % 2]
        with self._side_stream() if self._side_stream is not None else contextlib.nullcontext():
            out.copy_(self._copied[:half], non_blocking=True)
        self._copied[half:].copy_(back, non_blocking=True)
        self._phase += 1

    def _arrived(self, kind: str) -> tuple[StressWrong, ...]:
        """Return what came to the device; made unlike it afterwards. The buffer that it came from is poisoned too."""
        half = len(self._copied) // 2
        arrived, back = self._copied[half:], self._hosts[self._phase % 2]
        total = text_of(int(checksum(arrived, self._weights).item()))
        wrong: tuple[StressWrong, ...] = ()
        if total != self.checksums["copies"]:
            # Where the buffer on the host was wrong already, it had come to it so.
            on_host = not torch.equal(back, self._sent)
            way, now = ("to the host", back) if on_host else ("to the device", arrived.cpu())
            wrong = (self._miscopied(now, way, kind),)
        arrived.fill_(POISON)
        back[:: max(1, len(back) // 64)] = POISON
        self.accel.synchronize()
        return wrong

    def _left(self, kind: str) -> tuple[StressWrong, ...]:
        """Return what the last copy of a step left on the host: no other one brings it back to the device any more."""
        last = self._hosts[(self._phase + 1) % 2]
        if torch.equal(last, self._sent):
            return ()
        wrong = self._miscopied(last, "to the host", kind)
        # The next copies are to start from what is right.
        last.copy_(self._sent)
        self._copied[: len(self._copied) // 2].copy_(self._sent)
        self.accel.synchronize()
        return (wrong,)

    def _miscopied(self, now: torch.Tensor, way: str, kind: str) -> StressWrong:
        places = (now != self._sent).nonzero().view(-1)
        if not len(places):
            return self._wrong(kind, "copies", "pattern", elements=0, text="no difference at the second read")
        at = int(places[0])
        got, right = _hex(now[at]), _hex(self._sent[at])
        text = f"{got} arrived {way}, but {right} was sent"
        return self._wrong(
            kind, "copies", "pattern", elements=len(places), place=at, got=got, expected=right, text=text
        )  # fmt: skip

    def _wrong(self, kind: str, result: str, against: str, **found: Any) -> StressWrong:
        """Return what is wrong with the step at hand; `found` are fields of StressWrong."""
        at_s = max(time.perf_counter() - self._began_s, 0.0) if self._began_s else 0.0
        return StressWrong(at_s, self._steps, kind, result, against, **found)


def _words(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as 64-bit words."""
    return tensor.view(-1).view(torch.int64)


def _hex(word: torch.Tensor) -> str:
    size = word.element_size() * 8
    return f"0x{int(word.item()) & (2**size - 1):0{size // 4}x}"


def _allocate(words: int, least: int, accel: Accel) -> torch.Tensor:
    """So many words, or as many as can be had. Raises CannotLook where it is far less."""
    wanted = words
    while True:
        try:
            return torch.empty(words, dtype=torch.int64, device=accel.device)
        except (RuntimeError, MemoryError) as error:
            if not accel.is_out_of_memory(error):
                raise
            smaller = int(words * _LESS)
            if smaller < max(least, wanted * _LEAST):
                raise CannotLook(
                    f"not enough memory on {accel.id} for {wanted * WORD / GIB:.1f} GiB",
                    str(error).strip().splitlines()[0],
                    "use a smaller --fill, or stop other programs that use the memory",
                    finding="stress.memory",
                ) from error
            accel.empty_cache()
            words = smaller
