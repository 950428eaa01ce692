"""Pages of what commands find (doctor's conditions have their own): what an id asks, and what to do where it fails."""

from __future__ import annotations

from dataclasses import dataclass

from gpucheck.program.lint.rules import RULES
from gpucheck.thresholds import THRESHOLDS, Threshold


@dataclass(frozen=True, slots=True)
class Page:
    """What a finding's id stands for: whose it is, what it asks, what it means where it fails, and what to do then."""

    id: str
    command: str
    title: str
    meaning: str
    then: str


_SMOKE = (
    (
        "device.usable",
        "torch can use the device",
        "Torch sees no device of the kind, or using it raises.",
        "gpucheck doctor",
    ),
    (
        "tensors.round_trip",
        "tensors survive the round trip bit for bit",
        "What comes back from the device is not what was sent, in one of torch's data types.",
        "gpucheck bench transfer, which compares large copies; then sudo dmesg | grep -i xid",
    ),
    (
        "tensors.layouts",
        "odd shapes and strides survive the round trip",
        "A view that is not contiguous comes back changed: a bug of torch or of the backend.",
        "use a newer torch; .contiguous() before the copy works around it",
    ),
    (
        "tensors.to_returns_new",
        ".to() returns a new tensor and leaves the old",
        "`x.to(device)` alone moves nothing: its result has to be kept.",
        "x = x.to(device)",
    ),
    (
        "tensors.device_mismatch",
        "mixing devices raises RuntimeError",
        "Torch computed with tensors of two devices in silence.",
        "use a newer torch",
    ),
    ("tensors.numpy_needs_cpu", "numpy() needs the CPU", "NumPy works in host memory.", "x.cpu().numpy()"),
    (
        "modules.to",
        "model.to() moves parameters and buffers",
        "Parameters, buffers or tied weights did not arrive together.",
        "use a newer torch; in a model of your own: register_buffer in place of a plain attribute",
    ),
    (
        "training.gradients_through_to",
        "gradients flow through .to()",
        "A gradient was lost or changed on its way between devices or data types.",
        "use a newer torch",
    ),
    (
        "numerics.matmul",
        "matrix products agree with float64",
        "A product is further from the exact one than its precision explains.",
        "gpucheck bench matmul compares the whole result; if it fails there too, the device or its library is faulty",
    ),
    (
        "numerics.convolution",
        "convolutions agree with float64",
        "A convolution is further from the exact one than its precision explains.",
        "torch.backends.cudnn.enabled = False tells whether it is cuDNN",
    ),
    (
        "numerics.tf32",
        "TF32 errors stay within the bound",
        "TF32 keeps 10 bits of a float32's 23: a larger error is another precision, or a fault.",
        "gpucheck bench matmul --dtype tf32",
    ),
    (
        "training.step",
        "a training step matches the CPU and lowers the loss",
        "Forward, backward and the optimizer together give something else than on the CPU.",
        "gpucheck smoke --only numerics. says which part",
    ),
    (
        "training.autocast",
        "autocast computes in low precision, weights stay float32",
        "Mixed precision does not do what it says on this device.",
        "use a newer torch, or bfloat16 in place of float16",
    ),
    (
        "memory.accounting",
        "memory is counted correctly and returned",
        "What torch counts, and what the device or the system shows, do not go together, or freed memory stays.",
        "gpucheck memory shows each step",
    ),
    (
        "memory.one_pebibyte",
        "one allocation of 1 PiB raises out-of-memory",
        "An impossible request did not end in torch.OutOfMemoryError: programs that catch it would crash here.",
        "use a newer torch or driver",
    ),
    (
        "memory.to_the_end",
        "allocating to the end raises out-of-memory",
        "Filling the device did not end in torch.OutOfMemoryError, or the device did not work on after it.",
        "use a newer torch or driver",
    ),
    (
        "copies.pinned",
        "pinned copies are correct after a synchronise",
        "A copy from pinned memory arrived changed.",
        "gpucheck bench transfer compares large ones",
    ),
    (
        "copies.non_blocking",
        "non-blocking copies are correct after a synchronise",
        "A copy that was waited for arrived changed. Without the wait the host may read it too early: that is the "
        "program's fault.",
        "gpucheck bench transfer; in a program torch.cuda.synchronize() before the host reads",
    ),
    (
        "streams.wait",
        "a stream waits for another",
        "Work overtook what it had to wait for.",
        "use a newer torch or driver",
    ),
    (
        "device.context",
        "device contexts take effect and end",
        "Tensors made under a device land on another, or the context stays.",
        "use a newer torch",
    ),
    (
        "data.loader",
        "a DataLoader with workers and pinned memory works",
        "Workers died or delivered wrong items: mostly /dev/shm is too small in a container.",
        "df -h /dev/shm; docker run --shm-size=8g",
    ),
    (
        "device.required",
        "an accelerator of a kind is required",
        "`--require` asks for a kind of device that torch cannot use here.",
        "gpucheck doctor",
    ),
    (
        "device.count",
        "at least so many devices are required",
        "`--min-devices` asks for more than torch can use here.",
        "gpucheck devices; then gpucheck doctor",
    ),
)


_CHANGED = "Data arrived changed: memory, link or driver are faulty, or a torch with a bug."
_TIME = "The time budget ended first."
_MEMORY = "There was not enough free memory for what was to be measured."
_ROWS: dict[str, tuple[tuple[str, str, str, str], ...]] = {
    "bench transfer": (
        ("transfer.copies", "copies were made", "Nothing could be copied.", "gpucheck smoke"),
        ("transfer.corrupt", "copies arrive as they were sent", _CHANGED, "sudo dmesg | grep -i xid; reseat the card"),
        (
            "transfer.both_ways_corrupt",
            "copies in both directions at once arrive as they were sent",
            _CHANGED,
            "as for transfer.corrupt",
        ),
        ("transfer.idioms_corrupt", "the lines that people write copy rightly", _CHANGED, "as for transfer.corrupt"),
        ("transfer.host_to_host", "how fast host memory copies", "On a CPU there is no link: both ends are RAM.", ""),
        (
            "transfer.link",
            "how much of the link the fastest copies use",
            "Below 65 % something holds them back: lanes that are missing, a slower generation, the wrong NUMA node, "
            "a power state.",
            "nvidia-smi topo -m, then numactl --cpunodebind=N --membind=N gpucheck bench transfer",
        ),
        (
            "transfer.link_generation",
            "the link runs at its generation",
            "Judged under load: at rest a link slows down on purpose. In a virtual machine, where NVML does not see "
            "the slot, a lower one is a remark.",
            "reseat the card, leave out the riser, and look at the slot's setting in the firmware",
        ),
        (
            "transfer.link_width",
            "the link runs with all its lanes",
            "Fewer lanes than card and slot have cost the same share of the rate.",
            "reseat the card; look which slots share lanes",
        ),
        (
            "transfer.pinned",
            "there was pinned memory",
            "The system gave no memory that cannot be swapped, or the device has none.",
            "ulimit -l; fewer or smaller --size",
        ),
        (
            "transfer.pinned_speedup",
            "what pinned memory gains",
            "From pinned memory the device fetches by itself; from pageable memory the driver copies first.",
            "pin_memory=True in the DataLoader, with non_blocking=True",
        ),
        (
            "transfer.idioms",
            "what the usual lines of code cost",
            "`.to`, `.cuda`, `.cpu` and a DataLoader against the raw copy.",
            "",
        ),
        ("transfer.time", "everything was measured", _TIME, "--time-budget 5m"),
        ("transfer.together", "devices copied at the same time", "It needs two devices.", "--device all"),
        ("transfer.memory", "there was memory to copy", _MEMORY, "smaller --size; gpucheck memory"),
        ("transfer.part", "a part can be measured here", "The device has no such thing.", "leave it out with --skip"),
    ),
    "bench bandwidth": (
        (
            "bandwidth.operation",
            "the device has every operation",
            "It has no kernel for the one named; the others were measured.",
            "",
        ),
        ("bandwidth.result", "every operation left what it must", _CHANGED, "gpucheck smoke; sudo dmesg | grep -i xid"),
        ("bandwidth.speed", "how fast memory is read and written", "The best cold rate of the largest arrays.", ""),
        (
            "bandwidth.share_of_peak",
            "how much of the memory's peak is reached",
            "Of the data sheet's number; 80 to 93 % is usual. Far less is a lowered clock, or ECC on some cards.",
            "gpucheck devices shows the memory clock",
        ),
        ("bandwidth.time", "everything was measured", _TIME, "--time-budget 5m"),
        ("bandwidth.memory", "there was memory to measure", _MEMORY, "smaller --size; gpucheck memory"),
    ),
    "bench matmul": (
        (
            "matmul.result",
            "the results are right",
            "A product is not what float64 says, or differs from the first of the same inputs: silent corruption.",
            "run it again; if it comes back, take the card out of use",
        ),
        (
            "matmul.corruption",
            "no result changes from run to run",
            "The same inputs gave other bits.",
            "as for matmul.result",
        ),
        (
            "matmul.precision",
            "products have the precision asked for",
            "float32 is computed as TF32, or the other way round, by a setting of torch or a variable.",
            'torch.set_float32_matmul_precision("highest")',
        ),
        (
            "matmul.dtype",
            "the device multiplies in this data type",
            "It has no code for it.",
            "leave it out of --dtype",
        ),
        (
            "matmul.shape",
            "the library has a kernel for every shape",
            "It has none for the shapes named; the others were measured.",
            "leave the shape out; another size, or another version of torch, has one",
        ),
        ("matmul.efficiency", "how much is computed per watt", "The rate divided by the power that NVML shows.", ""),
        ("matmul.speed", "how fast the fastest product is", "The best rate over shapes and data types.", ""),
        (
            "matmul.share_of_peak",
            "how much of the part's peak is reached",
            "Of the data sheet's dense number, at its boost clock. Less is a lowered clock (power, heat) or a shape "
            "that is too small.",
            "gpucheck bench matmul --sustain 30s shows burst and sustained",
        ),
        ("matmul.search", "the fastest shape of each data type", "What `--search` found.", ""),
        (
            "matmul.sustained",
            "how much of the speed lasts",
            "Heat and power lower the clock under long load.",
            "better cooling, or a higher power limit",
        ),
        (
            "matmul.tf32_gain",
            "what TF32 gains",
            "TF32 computes float32 products with 10 bits.",
            'torch.set_float32_matmul_precision("high")',
        ),
        ("matmul.time", "everything was measured", _TIME, "--time-budget 5m"),
        ("matmul.memory", "there was memory for the matrices", _MEMORY, "smaller --size; gpucheck memory"),
    ),
    "bench overlap": (
        ("overlap.copies", "copies beside compute arrive as they were sent", _CHANGED, "gpucheck bench transfer"),
        (
            "overlap.pageable",
            "pageable copies hide behind compute",
            "They mostly do not: the driver copies them with the host's help.",
            "pin_memory=True",
        ),
        (
            "overlap.pinned",
            "pinned copies hide behind compute on one stream",
            "Work on one stream is done in order: they cannot.",
            "a second stream",
        ),
        (
            "overlap.pinned_two_streams",
            "pinned copies hide behind compute on a second stream",
            "The share of the copy's time that cost nothing.",
            "torch.cuda.Stream for the copies, wait_stream before the use",
        ),
        ("overlap.streams", "the device has streams", "Without a second stream nothing can overlap.", ""),
        (
            "overlap.compute",
            "the device multiplies in its fastest data type",
            "The library has no kernel for it; copies were hidden behind float32 products.",
            "",
        ),
        ("overlap.device", "the device can be measured", "Overlap needs an accelerator.", "--device cuda"),
        ("overlap.time", "everything was measured", _TIME, "--time-budget 5m"),
        ("overlap.memory", "there was memory to measure", _MEMORY, "gpucheck memory"),
    ),
    "bench crossover": (
        (
            "crossover.result",
            "both sides compute the same",
            "The device and the CPU disagree by more than their precision.",
            "gpucheck smoke --only numerics.",
        ),
        (
            "crossover.precision",
            "both sides multiply in float32",
            "TF32 on one side makes the comparison unfair.",
            'torch.set_float32_matmul_precision("highest")',
        ),
        (
            "crossover.size",
            "the library has a kernel for every size",
            "It has none for the size named; the others were measured.",
            "",
        ),
        ("crossover.device", "the device can be compared", "It needs an accelerator beside the CPU.", "--device cuda"),
        ("crossover.time", "everything was measured", _TIME, "--time-budget 5m"),
        ("crossover.memory", "there was memory to measure", _MEMORY, "gpucheck memory"),
    ),
    "judge": (
        (
            "judge.incomplete",
            "every run came to its end",
            "A document was written by a run that was cut off: what it did not measure is not known.",
            "measure it again",
        ),
    ),
    "bench": (
        (
            "device.shared",
            "the device was free",
            "Other processes held memory or computed there: rates are lower bounds.",
            "gpucheck devices --processes",
        ),
        ("runs.child", "every run ended well", "A run in a process of its own failed.", "run it without --runs"),
    ),
    "stress": (
        (
            "stress.wrong",
            "results stay right under load",
            "A step gave other bits than the first one, than a device of the same model, or than float64 allows: the "
            "device, its memory or its link corrupts data without an error.",
            "drain the node, repeat with gpucheck stress --device N --duration 30m, and have the card replaced",
        ),
        (
            "stress.slow",
            "devices keep their speed under load",
            "The device lost speed over the run, or is slower than others of its model: heat, power, a clock setting, "
            "or a card that is about to fail.",
            "gpucheck devices --watch 2s; compare cooling, power limits and clocks of the devices",
        ),
        (
            "stress.errors",
            "the driver counts no errors under load",
            "Memory errors, Xid errors or packets that were sent again came during the run.",
            "gpucheck doctor; sudo dmesg | grep -i xid",
        ),
        (
            "stress.memory",
            "there was memory to fill",
            "Far less memory could be had than was to be filled.",
            "gpucheck memory; or use a smaller --fill",
        ),
        (
            "stress.skipped",
            "the device has the data type",
            "Products of this dtype do not exist on the device.",
            "give another --dtype",
        ),
    ),
    "fleet check": (
        (
            "fleet.node",
            "this node is good",
            "Nothing that was checked on it failed or stayed open.",
            "",
        ),
        (
            "fleet.part",
            "every part of the check came to its end",
            "A part ran out of its time, ended early or could not be read: its cause stands beside it.",
            "run that part alone, with the command that the finding names",
        ),
        (
            "fleet.rank",
            "one rank of a node checks it",
            "Another rank on this node holds the lock and writes the document.",
            "",
        ),
        (
            "fleet.devices",
            "the node has its GPUs",
            "No GPU was found on the node, or not as many as --devices says that it must have.",
            "gpucheck doctor; --devices 0 for a node without GPUs",
        ),
        (
            "fleet.store",
            "all documents went through the store",
            "Node 0 did not get every node's document before the deadline; each node also wrote its own file.",
            "gpucheck fleet judge on the files",
        ),
    ),
    "fleet judge": (
        (
            "fleet.nodes",
            "no node is bad or silent",
            "Nodes failed their check, left no document, or stand out from their siblings.",
            "drain the nodes of bad.txt; each has its cause and its command",
        ),
        (
            "fleet.suspect",
            "few enough nodes are bad",
            "More than --max-bad are: the check itself, a driver or a shared service is the likelier cause. Nobody is "
            "drained.",
            "look at one of them by hand; raise --max-bad if they are bad indeed",
        ),
        (
            "fleet.siblings",
            "every device has enough siblings",
            "Fewer than five nodes have the same model: nothing is said of how fast it should be.",
            "gpucheck bench matmul --min-percent-of-peak 80 judges by the data sheet",
        ),
        (
            "fleet.modes",
            "nodes of one model have two speeds",
            "At least three nodes and a tenth on a side, with a gap between them. A setting that both sides record "
            "differently, such as a power cap or a driver, is named as the likely cause.",
            "give all nodes the same settings, then check again",
        ),
        (
            "fleet.drift",
            "nodes have the same driver, firmware, torch and settings",
            "Some differ; those that share a value are named together.",
            "bring them to one version, or judge them as two fleets",
        ),
        (
            "fleet.impossible",
            "no figure is beyond what the part can do",
            "A rate far above the part's peak: the clock, the document or the benchmark is wrong.",
            "run the check again on that node",
        ),
        (
            "fleet.duplicate",
            "one document for each node and attempt",
            "Several claim the same; the latest is judged.",
            "give each start its own --run",
        ),
        (
            "fleet.unexpected",
            "only expected nodes left documents",
            "A node that --expect does not name left one.",
            "correct the list, or the folder",
        ),
        ("fleet.old", "no document of an earlier start", "It has this run's id and is older.", "a --run ID of its own"),
        ("fleet.other_run", "documents of one run", "Those of other runs in the folder are left out.", "--run ID"),
        (
            "fleet.renamed",
            "a card has one node",
            "The same card's UUID comes under several host names: the host was renamed, or the card was moved.",
            "remove the old document",
        ),
        (
            "fleet.same_boot",
            "a machine has one name",
            "The same boot came under several names: containers of one machine, often.",
            "",
        ),
        (
            "fleet.forged",
            "documents are their node's own",
            "Owner, file name and host inside do not fit together.",
            "see who wrote it; the node counts as silent",
        ),
        (
            "fleet.unreadable",
            "documents can be read",
            "Cut off, too large, too deep, or no document of gpucheck.",
            "run the check again on that node",
        ),
    ),
    "model": (
        (
            "model.left_behind",
            "all tensors of the module move",
            ".to() moves parameters, buffers and submodules. A plain attribute, a list or a closure stays where it is.",
            "register_buffer, nn.ParameterList or nn.ModuleList, as the finding says by line",
        ),
        (
            "model.unregistered",
            "all submodules are registered",
            "A module in a plain list or dictionary is none of .to()'s, of parameters()'s or of state_dict()'s.",
            "keep it in nn.ModuleList or nn.ModuleDict",
        ),
        (
            "model.replaced_move",
            "no module keeps tensors from moving",
            "The module has a .to() or an _apply() of its own that does not move everything.",
            "call super() there, and override _apply(), which a module above calls too",
        ),
        (
            "model.optimizer_state",
            "the optimizer's state is on the model's device",
            "State that was made before the model moved stays behind.",
            "make the optimizer after model.to(device)",
        ),
        (
            "model.untied",
            "tied weights stay tied",
            "They share memory before .to() and not after it: each becomes a tensor of its own.",
            "share the Parameter itself",
        ),
        (
            "model.meta",
            "every parameter has data",
            "Tensors on the meta device have shapes alone: .to() cannot copy them.",
            "model.to_empty(device=…), then load or initialise the weights",
        ),
        (
            "model.devices",
            "all parameters are on one device",
            "Some stay on another. A model that is split on purpose moves its activations between them.",
            "move the whole model, or leave the split to what made it",
        ),
        (
            "model.placement",
            "the whole model moves",
            "Every parameter, buffer and tensor that was found arrives on the device.",
            "",
        ),
        (
            "model.mismatch",
            "no operation mixes devices",
            "An operation was given tensors of two devices; on a GPU it raises. It was found with tensors on the CPU "
            "that claim to be on the GPU.",
            "make or move the operand that is named as wrong",
        ),
        (
            "model.forward",
            "the forward pass, or the training step, runs to its end",
            "It was not run, or not followed to its end; the finding says from which line on.",
            "add --input; gpucheck run sees the program as it runs",
        ),
        (
            "model.unjudged",
            "every operation could be judged",
            "An operation of another library was not: it may take tensors of any device.",
            "run it once on a GPU",
        ),
        (
            "model.note",
            "a training step could be run",
            "No parameter takes a gradient: only the forward pass was run.",
            "leave out --train, or unfreeze what should train",
        ),
        (
            "model.on_device",
            "the model runs on the GPU that is here",
            "It raised there, or memory ran out; claimed devices cannot show missing kernels and full memory.",
            "gpucheck explain with the error's text",
        ),
    ),
    "run --dry": (
        (
            "run.dry.placement",
            "no tensor is on the wrong device",
            "Every operation that was seen had its tensors where it needs them; the finding says how far it looked.",
            "",
        ),
        (
            "run.dry.mismatch",
            "no operation mixes devices",
            "An operation was given tensors of two devices: on a GPU it raises there.",
            "make or move the operand that is named as wrong",
        ),
        (
            "run.dry.dtype",
            "operands have one data type",
            "An operation was given operands of data types that it does not take together.",
            "convert one of them, or put the line under autocast",
        ),
        (
            "run.dry.fork",
            "no forked process uses CUDA after its parent",
            "CUDA cannot be used in a process that was forked after its parent had used it.",
            "return CPU tensors from a DataLoader's workers; start other processes by spawn",
        ),
        (
            "run.dry.memory",
            "tensors fit into the memory asked for",
            "What tensors take, by phase and line. What is not counted is named: workspaces, the context, "
            "fragmentation.",
            "what the finding says: batch, checkpointing or data type first",
        ),
        (
            "run.dry.followed",
            "the script could be followed to its end",
            "From the line that is named on nothing is judged: it does what claimed devices cannot.",
            "a run on a GPU sees the rest",
        ),
        ("run.dry.remark", "nothing else is to be said of the script", "A remark on how it was run.", ""),
        (
            "run.dry.assumed",
            "no value was asked for that is not there",
            "Under --no-values tensors have no data: values asked for were taken as 0 or False, and what follows such "
            "a branch is info.",
            "leave out --no-values",
        ),
        (
            "run.dry.unjudged",
            "every operation could be judged",
            "An operation of another library was not: it may take tensors of any device.",
            "run it once on a GPU",
        ),
    ),
    "run": (
        (
            "run.time",
            "what the program waits for",
            "Shares of the time since torch was loaded: in the DataLoader, in copies, in waits, and how busy the "
            "device was. Where none stands out it is inconclusive.",
            "the lines below the verdict; gpucheck run --trace 3 shows more",
        ),
        (
            "run.copies.discarded",
            "the result of .to() is kept",
            "A tensor does not move in place: the copy was made and thrown away.",
            "x = x.to(device)",
        ),
        (
            "run.copies.back",
            "no tensor goes there and back unchanged",
            "What comes back is bit for bit what was sent.",
            "keep the tensor that was copied",
        ),
        (
            "run.copies.again",
            "no tensor is copied twice",
            "The same tensor, unchanged, is copied in every step.",
            "copy it once before the loop; in a module: register_buffer",
        ),
        (
            "run.copies.made_on_host",
            "tensors are made where they are used",
            "One is made on the host in every step and then moved.",
            "torch.zeros(…, device=device)",
        ),
        (
            "run.copies.unpinned",
            "non_blocking copies come from pinned memory",
            "From pageable memory they block all the same.",
            "pin_memory=True in the DataLoader",
        ),
        (
            "run.copies.pageable",
            "copies do not block the program",
            "Copies from pageable memory do, and take a part of the time that can be seen.",
            "pin_memory=True in the DataLoader and non_blocking=True; gpucheck bench transfer shows what it gains",
        ),
        (
            "run.copies.small",
            "no line copies little, often",
            "Each copy has a fixed cost of some µs, whatever its size.",
            "stack them and copy once",
        ),
        (
            "run.empty_cache",
            "empty_cache() is not called in a loop",
            "What it frees is asked of the driver again in the next step.",
            "leave it out",
        ),
        (
            "run.waits",
            "no line waits for the device in every step",
            ".item(), bool(), printing and the like wait until the device has done all that was asked of it.",
            "read it every so many steps, or once at the end",
        ),
        (
            "run.memory.full",
            "memory does not run out",
            "Who held it, what was asked for at once, and whether size, fragmentation or another process is to blame.",
            "what the finding says; gpucheck find-batch-size",
        ),
        (
            "run.memory.growth",
            "memory does not grow from step to step",
            "Something keeps tensors: a list of losses with their graphs, often.",
            "gpucheck run --memory names the line; keep loss.item()",
        ),
        ("run.ended", "the program comes to its end", "It raised, or a signal ended it. Its own status is kept.", ""),
        (
            "run.not_seen",
            "gpucheck could look into the program",
            "It ran as always, and nothing was seen of it: another start-up file, or -S and -I, kept gpucheck out.",
            "",
        ),
    ),
}


# What breaks any command off.
_FAULTS = (
    (
        "device.error",
        "bench, memory, smoke and find-batch-size",
        "the device works",
        "The device, its driver or a library of its failed in the middle of the work: an error that is known as a "
        "device's, a small kernel that fails in a fresh process too, or no answer at all. What was measured before is "
        "kept and judged; a threshold is not met by it.",
        "follow the fix in the finding; else gpucheck smoke; sudo dmesg | grep -i xid",
    ),
    (
        "device.memory",
        "bench, memory, smoke and find-batch-size",
        "there was memory to work in",
        "Memory ran out on the device or the host in the middle of the work: mostly another process took it.",
        "gpucheck memory shows whose it is; run it again when there is more",
    ),
    (
        "gpucheck.error",
        "devices, and every other command",
        "gpucheck itself works",
        "An error of gpucheck's own ended the command. What was found until then is in the report.",
        "report it with the traceback at the project's issue tracker",
    ),
)


def _of_any_benchmark(name: str) -> dict[str, Page]:
    """What every benchmark judges beside its own figures."""
    return {
        f"{name}.error": Page(
            f"{name}.error",
            f"bench {name}",
            "the benchmark came to its end",
            "It raised an error, and a small kernel in a fresh process works: a shape or a call that this torch does "
            "not take, or a bug of gpucheck's. What was measured before is kept and judged.",
            f"gpucheck bench {name} --debug, and report what it says",
        ),
        f"{name}.skipped": Page(
            f"{name}.skipped",
            f"bench {name}",
            "the device could be measured",
            "A device failed before, and this process cannot use it any more: the finding device.error says how.",
            "what device.error says; then run it again",
        ),
        f"{name}.clock": Page(
            f"{name}.clock",
            f"bench {name}",
            "what held the device's clock",
            "Heat, power or a setting kept the clock below its highest while it was measured: the rates are of that "
            "clock.",
            "nvidia-smi -q -d PERFORMANCE,CLOCK; better cooling or a higher power limit",
        ),
        f"{name}.cpu_busy": Page(
            f"{name}.cpu_busy",
            f"bench {name}",
            "what else the processor did",
            "Other processes used the cores that the host's side of the work needs: the rates are lower bounds.",
            "run it on a machine that does nothing else",
        ),
    }


def _of_threshold(one: Threshold) -> Page:
    option = f"{one.option} or " if one.option else ""
    usual = f" Without it: {one.usual}." if one.usual else ""
    return Page(
        one.id,
        one.command,
        f"a threshold of your own, in {one.kind}",
        f"{one.direction} so much, of {one.judges}.{usual}",
        f"set it with {option}[thresholds] in gpucheck.toml",
    )


_LINT = "gpucheck lint PATH names the lines; docs/lint.md shows each rule wrong and right"


def _pages() -> dict[str, Page]:
    pages = {row[0]: Page(row[0], "smoke", *row[1:]) for row in _SMOKE} | {row[0]: Page(*row) for row in _FAULTS}
    for command, rows in _ROWS.items():
        pages |= {row[0]: Page(row[0], command, *row[1:]) for row in rows}
        pages |= _of_any_benchmark(command.removeprefix("bench ")) if command.startswith("bench ") else {}
    pages |= {rule.id: Page(rule.id, "lint", rule.title, rule.meaning, _LINT) for rule in RULES}
    # What a row says stands before what its threshold asks: both are of one id.
    return {one.id: _of_threshold(one) for one in THRESHOLDS} | pages


PAGES: dict[str, Page] = _pages()
