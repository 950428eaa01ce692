"""The IDs of the benchmarks' findings, with meaning, fix and role in the summary of a screen. No I/O."""

from __future__ import annotations

from gpucheck.messages import FIX
from gpucheck.report.finding import Id, Role, ids_of

_CHANGED = "Data arrived changed. The memory, the link or the driver is faulty, or torch has a bug."
# IDs with these suffixes describe the machine, not the figures of a benchmark.
OF_THE_MACHINE = ("cpu_busy", "clock")


def _of_any(command: str) -> tuple[Id, ...]:
    """Return the IDs that every benchmark has."""
    name = command.removeprefix("bench ")
    return ids_of(
        command,
        Id(
            f"{name}.error",
            "the benchmark finished",
            "The benchmark raised an error, but a small kernel in a fresh process works. This torch does not support "
            "a shape or a call, or gpucheck has a bug. Earlier measurements are kept and judged.",
            f"gpucheck {command} --debug, and report its output",
        ),
        Id(f"{name}.time", "everything was measured", "The time budget ended first.", "--time-budget 10m"),
        Id(
            f"{name}.memory",
            "there was enough memory to measure",
            "There was not enough free memory for the measurement.",
            "use a smaller --size; gpucheck memory",
        ),
        Id(
            f"{name}.skipped",
            "the device could be measured",
            "A device failed earlier, and this process can no longer use it. See the finding device.error.",
            "follow the fix of device.error, then run it again",
        ),
        Id(
            f"{name}.clock",
            "limits on the device's clock",
            "Heat, power or a setting kept the clock below its maximum during the measurement. The rates apply to "
            "that clock.",
            f"nvidia-smi -q -d PERFORMANCE,CLOCK; heat: {FIX['heat']}; power: {FIX['power']}",
        ),
        Id(
            f"{name}.doubt",
            "the figures are reliable",
            "A main figure is noisy, drifts or has few samples, so the next run may differ.",
            "rerun on an idle machine, with a longer --time-budget or --runs 7",
        ),
        Id(
            f"{name}.cpu_busy",
            "other load on the CPU",
            "Other processes used the cores that the host side of the work needs. The rates are lower bounds.",
            "run it on an idle machine",
        ),
    )


_TRANSFER = ids_of(
    "bench transfer",
    Id("transfer.copies", "copies were made", "No copy was possible.", "gpucheck smoke"),
    Id("transfer.corrupt", "copies arrive unchanged", _CHANGED, FIX["wrong data"], role="verifies"),
    Id(
        "transfer.link",
        "the share of the link that the fastest copies reach",
        "A share below 65 % has a cause: missing lanes, a slower generation, the wrong NUMA node, or a power state.",
        "nvidia-smi topo -m, then numactl --cpunodebind=N --membind=N gpucheck bench transfer",
    ),
    Id(
        "transfer.link_generation",
        "the link runs at its full PCIe generation",
        "The link is judged under load, because an idle link slows down on purpose. In a virtual machine, NVML does "
        "not see the slot, so a lower generation is only a remark.",
        "reseat the GPU, remove the riser, and check the slot's firmware setting",
    ),
    Id(
        "transfer.link_width",
        "the link runs with all its lanes",
        "Missing lanes reduce the rate in proportion.",
        "reseat the GPU; check which slots share lanes",
    ),
    Id(
        "transfer.pinned",
        "pinned memory was available",
        "The system provided no pinned memory, or the device does not support it.",
        "ulimit -l; use fewer or smaller --size",
    ),
    Id(
        "transfer.pinned_speedup",
        "the speed-up of pinned memory",
        "The device reads pinned memory directly; the driver first copies pageable memory.",
        "pin_memory=True in the DataLoader, with non_blocking=True",
        role="advises",
    ),
    Id(
        "transfer.idioms",
        "the cost of common lines of code",
        "The times of `.to`, `.pin_memory` and `.cpu`, compared with the raw copy.",
        role="advises",
    ),
    Id(
        "transfer.peer",
        "devices copy to each other",
        "The rate and link of copies between two devices, with a check that the data are unchanged.",
        "if data arrived changed, as for transfer.corrupt; else nvidia-smi topo -m",
        role="finds_wrong",
    ),
    Id(
        "transfer.part", "this part can be measured here", "The device does not support it.", "leave it out with --skip"
    ),
)
_BANDWIDTH = ids_of(
    "bench bandwidth",
    Id(
        "bandwidth.operation",
        "the device has every operation",
        "The device has no kernel for the named operation. The others were measured.",
    ),
    Id(
        "bandwidth.result",
        "every operation's result is verified",
        _CHANGED,
        "gpucheck smoke; sudo dmesg | grep -i xid",
        role="verifies",
    ),
    Id("bandwidth.speed", "memory read and write rates", "The best rate with a cold cache.", role="advises"),
    Id(
        "bandwidth.share_of_peak",
        "the share of the memory's peak",
        "The share of the data sheet's rate; 80 to 93 % is usual. A much lower share means a lowered clock, or ECC on "
        "some GPUs. More than 130 % means that the times are wrong.",
        "gpucheck devices shows the memory clock",
    ),
)
_MATMUL = ids_of(
    "bench matmul",
    Id(
        "matmul.result",
        "the results are right",
        "A product differs from float64, or from the first product of the same inputs: silent corruption.",
        FIX["wrong data"],
        role="verifies",
    ),
    Id(
        "matmul.corruption",
        "no result changes from run to run",
        "The same inputs gave different bits.",
        "as for matmul.result",
        role="verifies",
    ),
    Id(
        "matmul.precision",
        "products have the requested precision",
        "A torch setting or a variable makes float32 run as TF32, or the other way round.",
        'torch.set_float32_matmul_precision("highest")',
        role="verifies",
    ),
    Id(
        "matmul.shape",
        "the library has a kernel for every shape and data type",
        "The library has no kernel for the named products. The others were measured.",
        "skip the shape; another size or another torch version has a kernel",
    ),
    Id("matmul.speed", "the rate of the fastest product", "The best rate of each data type over all shapes."),
    Id(
        "matmul.share_of_peak",
        "the share of the GPU's peak",
        "The share of the data sheet's dense rate at the boost clock. A low share means a lowered clock (power, heat) "
        "or a shape that is too small. More than 130 % means wrong times, or a dtype that cuBLAS emulates.",
        "gpucheck stress shows the speed under a long load",
    ),
    Id("matmul.search", "the fastest shape of each data type", "The result of `--search`."),
    Id(
        "matmul.tf32_gain",
        "the gain of TF32",
        "TF32 computes float32 products with 10 mantissa bits.",
        'torch.set_float32_matmul_precision("high")',
        role="advises",
    ),
)
_OVERLAP = ids_of(
    "bench overlap",
    Id("overlap.copies", "copies beside compute arrive unchanged", _CHANGED, FIX["wrong data"], role="verifies"),
    Id(
        "overlap.pinned",
        "pinned memory was available",
        "The system provided no pinned memory. Copies of pageable memory use the host and do not hide.",
        "ulimit -l",
    ),
    Id(
        "overlap.pinned_two_streams",
        "pinned copies hide behind compute on a second stream",
        "The hidden share of the copy's time.",
        "torch.cuda.Stream for the copies, wait_stream before the use",
        role="advises",
    ),
    Id("overlap.streams", "the device has streams", "Without a second stream nothing can overlap."),
    Id("overlap.device", "the device can be measured", "Overlap needs an accelerator.", "--device cuda"),
)
_CROSSOVER = ids_of(
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
        "The library has no kernel for the named size. The others were measured.",
    ),
    Id("crossover.device", "the device can be compared", "Crossover needs a GPU besides the CPU.", "--device cuda"),
)
_COLLECTIVE = ids_of(
    "bench collective",
    Id(
        "collective.result",
        "every rank gets the right data",
        "The named ranks received wrong data. A link, a switch or memory changes it, or peer copies are broken: with "
        "an IOMMU or PCIe ACS on, some machines deliver wrong data and report no error.",
        "gpucheck bench transfer --only peer --device all; NCCL_P2P_DISABLE=1 avoids the links until it is fixed",
        role="verifies",
    ),
    Id(
        "collective.speed",
        "the bus bandwidth of each collective",
        "busbw as nccl-tests defines it, on the largest array. Through the host (gloo) it is not the rate of a GPU.",
    ),
    Id(
        "collective.expected",
        "the bus bandwidth is what this GPU can reach",
        "All-reduce of at least 1 GiB in one machine. The reference is the published figure for eight such GPUs; if "
        "there is none, torch's copies from each GPU to the next.",
        "NCCL_DEBUG=INFO NCCL_DEBUG_SUBSYS=INIT,GRAPH,TUNING shows the algorithm and the paths; nvidia-smi topo -m",
    ),
    Id(
        "collective.rank",
        "every rank finished",
        "The named rank failed: its process ended, is stopped or did not start, or its backend raised an error.",
        "NCCL_DEBUG=INFO, and look for Xid errors and the out-of-memory killer on its host",
    ),
    Id(
        "collective.hang",
        "no collective hangs",
        "A collective did not end within --timeout. Often peer copies do not arrive (IOMMU, PCIe ACS), or ranks cannot "
        "reach each other over the network interface that NCCL chose.",
        "gpucheck doctor; then NCCL_P2P_DISABLE=1, and NCCL_SOCKET_IFNAME for the network",
    ),
    Id(
        "collective.not_run",
        "everything was measured",
        "After two failures, or one for lack of memory, a collective skips larger arrays. A launcher ends all at one.",
    ),
    Id("collective.unsupported", "the backend has the collective", "This torch or this backend does not have it."),
    Id(
        "collective.backend",
        "torch can connect the devices",
        "This build of torch has no NCCL (as builds for Windows and macOS), or no torch.distributed.",
        "install a build with it; --device cpu measures gloo on the host",
    ),
    Id("collective.ranks", "there are two ranks", "A collective needs at least two GPUs.", "--device cpu"),
    Id(
        "collective.start",
        "the ranks meet",
        "A process of the launcher did not reach rank 0's address.",
        "check MASTER_ADDR and MASTER_PORT",
    ),
)
_BENCH = ids_of(
    "bench",
    Id(
        "device.shared",
        "the device was free",
        "Other processes held memory or computed on the device. The rates are lower bounds.",
        "gpucheck devices --processes",
    ),
    Id("runs.child", "every run finished", "A run in a separate process failed.", "run it without --runs"),
)
_OF_ONE = (_TRANSFER, _BANDWIDTH, _MATMUL, _OVERLAP, _CROSSOVER, _COLLECTIVE)
IDS = (
    *(entry for ids in _OF_ONE for entry in ids),
    *(entry for ids in _OF_ONE for entry in _of_any(ids[0].command)),
    *_BENCH,
)
# Each role maps to its IDs, in the order of the table.
OF_ROLE: dict[Role, tuple[str, ...]] = {
    role: tuple(entry.id for entry in IDS if entry.role == role) for role in ("verifies", "finds_wrong", "advises")
}
