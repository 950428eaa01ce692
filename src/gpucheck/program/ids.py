"""The ids of the findings of `model`, `run` and `run --dry`, and what each stands for. Pure."""

from __future__ import annotations

from gpucheck.report.finding import Id, of

_MODEL = of(
    "model",
    Id(
        "model.left_behind",
        "all tensors of the module move",
        ".to() moves parameters, buffers and submodules. Tensors in a plain attribute, a list or a closure stay on "
        "their device.",
        "register_buffer, nn.ParameterList or nn.ModuleList, as the finding shows for each line",
    ),
    Id(
        "model.unregistered",
        "all submodules are registered",
        "A module in a plain list or dictionary is not part of .to(), parameters() or state_dict().",
        "keep it in nn.ModuleList or nn.ModuleDict",
    ),
    Id(
        "model.replaced_move",
        "no module keeps tensors from moving",
        "The module overrides .to() or _apply(), and the override does not move everything.",
        "call super() there, and override _apply(), which parent modules call too",
    ),
    Id(
        "model.optimizer_state",
        "the optimizer's state is on the model's device",
        "State created before the model moved stays on the old device.",
        "create the optimizer after model.to(device)",
    ),
    Id(
        "model.untied",
        "tied weights stay tied",
        "They share memory before .to() but not after it: each becomes a separate tensor.",
        "share the Parameter itself",
    ),
    Id(
        "model.meta",
        "every parameter has data",
        "Tensors on the meta device have only shapes: .to() cannot copy them.",
        "model.to_empty(device=…), then load or initialise the weights",
    ),
    Id(
        "model.devices",
        "all parameters are on one device",
        "Some parameters stay on another device. A model that is split on purpose moves its activations between "
        "devices.",
        "move the whole model, or keep the split and let its own code move the activations",
    ),
    Id(
        "model.placement",
        "the whole model moves",
        "Every parameter, buffer and tensor that gpucheck found moves to the device.",
    ),
    Id(
        "model.mismatch",
        "no operation mixes devices",
        "An operation got tensors on two devices, which raises an error on a GPU. The run used CPU tensors on a "
        "simulated GPU.",
        "create the named operand on the right device, or move it",
    ),
    Id(
        "model.forward",
        "the forward pass, or the training step, runs to its end",
        "It was not run, or the analysis stopped; the finding names the line.",
        "add --input; gpucheck run measures the program while it runs",
    ),
    Id(
        "model.unjudged",
        "every operation could be judged",
        "An operation of another library was not judged. It may accept tensors on any device.",
        "run it once on a GPU",
    ),
    Id(
        "model.note",
        "a training step could be run",
        "No parameter requires a gradient, so only the forward pass was run.",
        "remove --train, or unfreeze the parameters that should train",
    ),
    Id(
        "model.on_device",
        "the model runs on this machine's GPU",
        "It raised an error there, or memory ran out. Simulated devices cannot show missing kernels or full memory.",
        "gpucheck explain with the error's text",
    ),
)
_RUN_DRY = of(
    "run --dry",
    Id(
        "run.dry.placement",
        "no tensor is on the wrong device",
        "Every operation that ran had its tensors on the right device. The finding states how far the run went.",
    ),
    Id(
        "run.dry.mismatch",
        "no operation mixes devices",
        "An operation got tensors on two devices, which raises an error on a GPU.",
        "create the named operand on the right device, or move it",
    ),
    Id(
        "run.dry.dtype",
        "operands have one data type",
        "An operation got operands whose data types it does not accept together.",
        "convert one of them, or put the line under autocast",
    ),
    Id(
        "run.dry.fork",
        "no forked process uses CUDA after its parent",
        "CUDA cannot be used in a process that was forked after its parent had used it.",
        "return CPU tensors from a DataLoader's workers; start other processes by spawn",
    ),
    Id(
        "run.dry.memory",
        "tensors fit into the given memory",
        "Memory of tensors, by phase and line. Not counted: workspaces, the context, fragmentation.",
        "follow the finding: batch size, checkpointing or data type first",
    ),
    Id(
        "run.dry.followed",
        "the script was analysed to its end",
        "The analysis stopped at the named line, which does something that simulated devices cannot do.",
        "a run on a GPU sees the rest",
    ),
    Id("run.dry.remark", "no other remarks on the script", "A remark on how it was run."),
    Id(
        "run.dry.assumed",
        "the program read no missing value",
        "Under --no-values tensors have no data. Values that the program reads are 0 or False, and findings after "
        "such a value are info.",
        "leave out --no-values",
    ),
    Id(
        "run.dry.unjudged",
        "every operation could be judged",
        "An operation of another library was not judged. It may accept tensors on any device.",
        "run it once on a GPU",
    ),
)
_RUN = of(
    "run",
    Id(
        "run.time",
        "what the program waits for",
        "Shares of the time since torch was loaded: in the DataLoader, in copies, in waits, and how busy the device "
        "was. If none dominates, the verdict is inconclusive.",
        "see the lines below the verdict; gpucheck run --trace 3 shows more",
    ),
    Id(
        "run.copies.discarded",
        "the result of .to() is kept",
        "A tensor does not move in place: the copy was made and discarded.",
        "x = x.to(device)",
    ),
    Id(
        "run.copies.back",
        "no tensor goes there and back unchanged",
        "The copy that comes back is identical to the original.",
        "keep the tensor that was copied",
    ),
    Id(
        "run.copies.again",
        "no tensor is copied twice",
        "The same tensor, unchanged, is copied in every step.",
        "copy it once before the loop; in a module: register_buffer",
    ),
    Id(
        "run.copies.made_on_host",
        "tensors are created on the device that uses them",
        "A tensor is created on the host in every step and then moved.",
        "torch.zeros(…, device=device)",
    ),
    Id(
        "run.copies.unpinned",
        "non_blocking copies come from pinned memory",
        "From pageable memory they still block.",
        "pin_memory=True in the DataLoader",
    ),
    Id(
        "run.copies.pageable",
        "copies do not block the program",
        "Copies from pageable memory block the program and take a visible part of the time.",
        "pin_memory=True in the DataLoader and non_blocking=True; gpucheck bench transfer shows the gain",
    ),
    Id(
        "run.copies.small",
        "no line copies little, often",
        "Each copy has a fixed cost of some µs, whatever its size.",
        "stack them and copy once",
    ),
    Id(
        "run.empty_cache",
        "empty_cache() is not called in a loop",
        "The next step requests the freed memory from the driver again.",
        "leave it out",
    ),
    Id(
        "run.waits",
        "no line waits for the device in every step",
        ".item(), bool(), printing and similar calls wait until the device has finished its work.",
        "read it every N steps, or once at the end",
    ),
    Id(
        "run.memory.full",
        "memory does not run out",
        "The finding shows which tensors held memory, the failed request, and whether size, fragmentation or another "
        "process is the cause.",
        "follow the finding; gpucheck find-batch-size",
    ),
    Id(
        "run.memory.growth",
        "memory does not grow from step to step",
        "An object keeps tensors, often a list of losses with their graphs.",
        "gpucheck run --memory names the line; keep loss.item()",
    ),
    Id(
        "run.ended",
        "the program comes to its end",
        "It raised an error, or a signal ended it. Its own exit status is kept.",
    ),
    Id(
        "run.not_seen",
        "gpucheck could measure the program",
        "The program ran normally but was not measured: another start-up file, or -S and -I, disabled gpucheck.",
    ),
)
IDS = (
    *_MODEL,
    *_RUN_DRY,
    *_RUN,
)
