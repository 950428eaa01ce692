"""The ids of the benchmarks' findings: what each stands for, and which part it has in a page's last line. Pure."""

from __future__ import annotations

from gpucheck.report.finding import Id, Role, of

_CHANGED = "Data arrived changed: memory, link or driver are faulty, or a torch with a bug."
_TIME = "The time budget ended first."
_MEMORY = "There was not enough free memory for what was to be measured."
# The last part of the ids of what is about the machine, whatever was measured.
OF_THE_MACHINE = ("cpu_busy", "clock")


def _of_any(command: str) -> tuple[Id, ...]:
    """What every benchmark judges beside its own figures."""
    name = command.removeprefix("bench ")
    return of(
        command,
        Id(
            f"{name}.error",
            "the benchmark came to its end",
            "It raised an error, and a small kernel in a fresh process works: a shape or a call that this torch does "
            "not take, or a bug of gpucheck's. What was measured before is kept and judged.",
            f"gpucheck {command} --debug, and report what it says",
        ),
        Id(
            f"{name}.skipped",
            "the device could be measured",
            "A device failed before, and this process cannot use it any more: the finding device.error says how.",
            "what device.error says; then run it again",
        ),
        Id(
            f"{name}.clock",
            "what held the device's clock",
            "Heat, power or a setting kept the clock below its highest while it was measured: the rates are of that "
            "clock.",
            "nvidia-smi -q -d PERFORMANCE,CLOCK; better cooling or a higher power limit",
        ),
        Id(
            f"{name}.cpu_busy",
            "what else the processor did",
            "Other processes used the cores that the host's side of the work needs: the rates are lower bounds.",
            "run it on a machine that does nothing else",
        ),
    )


_TRANSFER = of(
    "bench transfer",
    Id("transfer.copies", "copies were made", "Nothing could be copied.", "gpucheck smoke"),
    Id(
        "transfer.corrupt",
        "copies arrive as they were sent",
        _CHANGED,
        "sudo dmesg | grep -i xid; reseat the GPU",
        role="verifies",
    ),
    Id(
        "transfer.both_ways_corrupt",
        "copies in both directions at once arrive as they were sent",
        _CHANGED,
        "as for transfer.corrupt",
        role="verifies",
    ),
    Id(
        "transfer.idioms_corrupt",
        "the lines that people write copy rightly",
        _CHANGED,
        "as for transfer.corrupt",
        role="verifies",
    ),
    Id("transfer.host_to_host", "how fast host memory copies", "On a CPU there is no link: both ends are RAM."),
    Id(
        "transfer.link",
        "how much of the link the fastest copies use",
        "Below 65 % something holds them back: lanes that are missing, a slower generation, the wrong NUMA node, "
        "a power state.",
        "nvidia-smi topo -m, then numactl --cpunodebind=N --membind=N gpucheck bench transfer",
    ),
    Id(
        "transfer.link_generation",
        "the link runs at its generation",
        "Judged under load: at rest a link slows down on purpose. In a virtual machine, where NVML does not see "
        "the slot, a lower one is a remark.",
        "reseat the GPU, leave out the riser, and look at the slot's setting in the firmware",
    ),
    Id(
        "transfer.link_width",
        "the link runs with all its lanes",
        "Fewer lanes than GPU and slot have cost the same share of the rate.",
        "reseat the GPU; look which slots share lanes",
    ),
    Id(
        "transfer.pinned",
        "there was pinned memory",
        "The system gave no memory that cannot be swapped, or the device has none.",
        "ulimit -l; fewer or smaller --size",
    ),
    Id(
        "transfer.pinned_speedup",
        "what pinned memory gains",
        "From pinned memory the device fetches by itself; from pageable memory the driver copies first.",
        "pin_memory=True in the DataLoader, with non_blocking=True",
        role="advises",
    ),
    Id(
        "transfer.idioms",
        "what the usual lines of code cost",
        "`.to`, `.cuda`, `.cpu` and a DataLoader against the raw copy.",
        role="advises",
    ),
    Id("transfer.time", "everything was measured", _TIME, "--time-budget 5m"),
    Id(
        "transfer.together",
        "devices copied at the same time",
        "It needs two devices.",
        "--device all",
        role="finds_wrong",
    ),
    Id(
        "transfer.on_device",
        "how fast memory copies on the device",
        "A copy within the device: its rate, and whether it arrives as it was sent.",
        "as for transfer.corrupt where data arrived changed",
        role="finds_wrong",
    ),
    Id(
        "transfer.peer",
        "devices copy to each other",
        "Copies between two devices: their rate, over which link, and whether they arrive as they were sent.",
        "as for transfer.corrupt where data arrived changed; else nvidia-smi topo -m",
        role="finds_wrong",
    ),
    Id("transfer.memory", "there was memory to copy", _MEMORY, "smaller --size; gpucheck memory"),
    Id("transfer.part", "a part can be measured here", "The device has no such thing.", "leave it out with --skip"),
)
_BANDWIDTH = of(
    "bench bandwidth",
    Id(
        "bandwidth.operation",
        "the device has every operation",
        "It has no kernel for the one named; the others were measured.",
    ),
    Id(
        "bandwidth.result",
        "every operation left what it must",
        _CHANGED,
        "gpucheck smoke; sudo dmesg | grep -i xid",
        role="verifies",
    ),
    Id(
        "bandwidth.speed",
        "how fast memory is read and written",
        "The best cold rate of the largest arrays.",
        role="advises",
    ),
    Id(
        "bandwidth.share_of_peak",
        "how much of the memory's peak is reached",
        "Of the data sheet's number; 80 to 93 % is usual. Far less is a lowered clock, or ECC on some cards.",
        "gpucheck devices shows the memory clock",
    ),
    Id("bandwidth.time", "everything was measured", _TIME, "--time-budget 5m"),
    Id("bandwidth.memory", "there was memory to measure", _MEMORY, "smaller --size; gpucheck memory"),
)
_MATMUL = of(
    "bench matmul",
    Id(
        "matmul.result",
        "the results are right",
        "A product is not what float64 says, or differs from the first of the same inputs: silent corruption.",
        "run it again; if it comes back, take the GPU out of use",
        role="verifies",
    ),
    Id(
        "matmul.corruption",
        "no result changes from run to run",
        "The same inputs gave other bits.",
        "as for matmul.result",
        role="verifies",
    ),
    Id(
        "matmul.precision",
        "products have the precision asked for",
        "float32 is computed as TF32, or the other way round, by a setting of torch or a variable.",
        'torch.set_float32_matmul_precision("highest")',
        role="verifies",
    ),
    Id("matmul.dtype", "the device multiplies in this data type", "It has no code for it.", "leave it out of --dtype"),
    Id(
        "matmul.shape",
        "the library has a kernel for every shape",
        "It has none for the shapes named; the others were measured.",
        "leave the shape out; another size, or another version of torch, has one",
    ),
    Id("matmul.efficiency", "how much is computed per watt", "The rate divided by the power that NVML shows."),
    Id("matmul.speed", "how fast the fastest product is", "The best rate over shapes and data types."),
    Id(
        "matmul.share_of_peak",
        "how much of the part's peak is reached",
        "Of the data sheet's dense number, at its boost clock. Less is a lowered clock (power, heat) or a shape "
        "that is too small.",
        "gpucheck bench matmul --sustain 30s shows burst and sustained",
    ),
    Id("matmul.search", "the fastest shape of each data type", "What `--search` found."),
    Id(
        "matmul.sustained",
        "how much of the speed lasts",
        "Heat and power lower the clock under long load.",
        "better cooling, or a higher power limit",
    ),
    Id(
        "matmul.tf32_gain",
        "what TF32 gains",
        "TF32 computes float32 products with 10 bits.",
        'torch.set_float32_matmul_precision("high")',
        role="advises",
    ),
    Id("matmul.time", "everything was measured", _TIME, "--time-budget 5m"),
    Id("matmul.memory", "there was memory for the matrices", _MEMORY, "smaller --size; gpucheck memory"),
)
_OVERLAP = of(
    "bench overlap",
    Id(
        "overlap.copies",
        "copies beside compute arrive as they were sent",
        _CHANGED,
        "gpucheck bench transfer",
        role="verifies",
    ),
    Id(
        "overlap.pinned",
        "pinned copies hide behind compute on one stream",
        "Work on one stream is done in order: they cannot.",
        "a second stream",
    ),
    Id(
        "overlap.pinned_two_streams",
        "pinned copies hide behind compute on a second stream",
        "The share of the copy's time that cost nothing.",
        "torch.cuda.Stream for the copies, wait_stream before the use",
        role="advises",
    ),
    Id(
        "overlap.pageable",
        "pageable copies hide behind compute",
        "They mostly do not: the driver copies them with the host's help.",
        "pin_memory=True",
        role="advises",
    ),
    Id("overlap.streams", "the device has streams", "Without a second stream nothing can overlap."),
    Id(
        "overlap.compute",
        "the device multiplies in its fastest data type",
        "The library has no kernel for it; copies were hidden behind float32 products.",
    ),
    Id("overlap.device", "the device can be measured", "Overlap needs an accelerator.", "--device cuda"),
    Id("overlap.time", "everything was measured", _TIME, "--time-budget 5m"),
    Id("overlap.memory", "there was memory to measure", _MEMORY, "gpucheck memory"),
)
_CROSSOVER = of(
    "bench crossover",
    Id(
        "crossover.result",
        "both sides compute the same",
        "The device and the CPU disagree by more than their precision.",
        "gpucheck smoke --only numerics.",
        role="verifies",
    ),
    Id(
        "crossover.precision",
        "both sides multiply in float32",
        "TF32 on one side makes the comparison unfair.",
        'torch.set_float32_matmul_precision("highest")',
        role="verifies",
    ),
    Id(
        "crossover.size",
        "the library has a kernel for every size",
        "It has none for the size named; the others were measured.",
    ),
    Id("crossover.device", "the device can be compared", "It needs an accelerator beside the CPU.", "--device cuda"),
    Id("crossover.time", "everything was measured", _TIME, "--time-budget 5m"),
    Id("crossover.memory", "there was memory to measure", _MEMORY, "gpucheck memory"),
)
_BENCH = of(
    "bench",
    Id(
        "device.shared",
        "the device was free",
        "Other processes held memory or computed there: rates are lower bounds.",
        "gpucheck devices --processes",
    ),
    Id("runs.child", "every run ended well", "A run in a process of its own failed.", "run it without --runs"),
)
_OF_ONE = (_TRANSFER, _BANDWIDTH, _MATMUL, _OVERLAP, _CROSSOVER)
IDS = (
    *(one for ids in _OF_ONE for one in ids),
    *(one for ids in _OF_ONE for one in _of_any(ids[0].command)),
    *_BENCH,
)


def in_role(role: Role) -> tuple[str, ...]:
    """The ids whose findings have this role, in the table's order."""
    return tuple(one.id for one in IDS if one.role == role)
