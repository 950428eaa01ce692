"""The ids of the findings of `model`, `run` and `run --dry`, and what each stands for. Pure."""

from __future__ import annotations

from gpucheck.report.finding import Id, of

_MODEL = of(
    "model",
    Id(
        "model.left_behind",
        "all tensors of the module move",
        ".to() moves parameters, buffers and submodules. A plain attribute, a list or a closure stays where it is.",
        "register_buffer, nn.ParameterList or nn.ModuleList, as the finding says by line",
    ),
    Id(
        "model.unregistered",
        "all submodules are registered",
        "A module in a plain list or dictionary is none of .to()'s, of parameters()'s or of state_dict()'s.",
        "keep it in nn.ModuleList or nn.ModuleDict",
    ),
    Id(
        "model.replaced_move",
        "no module keeps tensors from moving",
        "The module has a .to() or an _apply() of its own that does not move everything.",
        "call super() there, and override _apply(), which a module above calls too",
    ),
    Id(
        "model.optimizer_state",
        "the optimizer's state is on the model's device",
        "State that was made before the model moved stays behind.",
        "make the optimizer after model.to(device)",
    ),
    Id(
        "model.untied",
        "tied weights stay tied",
        "They share memory before .to() and not after it: each becomes a tensor of its own.",
        "share the Parameter itself",
    ),
    Id(
        "model.meta",
        "every parameter has data",
        "Tensors on the meta device have shapes alone: .to() cannot copy them.",
        "model.to_empty(device=…), then load or initialise the weights",
    ),
    Id(
        "model.devices",
        "all parameters are on one device",
        "Some stay on another. A model that is split on purpose moves its activations between them.",
        "move the whole model, or leave the split to what made it",
    ),
    Id(
        "model.placement",
        "the whole model moves",
        "Every parameter, buffer and tensor that was found arrives on the device.",
    ),
    Id(
        "model.mismatch",
        "no operation mixes devices",
        "An operation was given tensors of two devices; on a GPU it raises. It was found with tensors on the CPU "
        "that claim to be on the GPU.",
        "make or move the operand that is named as wrong",
    ),
    Id(
        "model.forward",
        "the forward pass, or the training step, runs to its end",
        "It was not run, or not followed to its end; the finding says from which line on.",
        "add --input; gpucheck run sees the program as it runs",
    ),
    Id(
        "model.unjudged",
        "every operation could be judged",
        "An operation of another library was not: it may take tensors of any device.",
        "run it once on a GPU",
    ),
    Id(
        "model.note",
        "a training step could be run",
        "No parameter takes a gradient: only the forward pass was run.",
        "leave out --train, or unfreeze what should train",
    ),
    Id(
        "model.on_device",
        "the model runs on the GPU that is here",
        "It raised there, or memory ran out; claimed devices cannot show missing kernels and full memory.",
        "gpucheck explain with the error's text",
    ),
)
_RUN_DRY = of(
    "run --dry",
    Id(
        "run.dry.placement",
        "no tensor is on the wrong device",
        "Every operation that was seen had its tensors where it needs them; the finding says how far it looked.",
    ),
    Id(
        "run.dry.mismatch",
        "no operation mixes devices",
        "An operation was given tensors of two devices: on a GPU it raises there.",
        "make or move the operand that is named as wrong",
    ),
    Id(
        "run.dry.dtype",
        "operands have one data type",
        "An operation was given operands of data types that it does not take together.",
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
        "tensors fit into the memory asked for",
        "What tensors take, by phase and line. What is not counted is named: workspaces, the context, fragmentation.",
        "what the finding says: batch, checkpointing or data type first",
    ),
    Id(
        "run.dry.followed",
        "the script could be followed to its end",
        "From the line that is named on nothing is judged: it does what claimed devices cannot.",
        "a run on a GPU sees the rest",
    ),
    Id("run.dry.remark", "nothing else is to be said of the script", "A remark on how it was run."),
    Id(
        "run.dry.assumed",
        "no value was asked for that is not there",
        "Under --no-values tensors have no data: values asked for were taken as 0 or False, and what follows such "
        "a branch is info.",
        "leave out --no-values",
    ),
    Id(
        "run.dry.unjudged",
        "every operation could be judged",
        "An operation of another library was not: it may take tensors of any device.",
        "run it once on a GPU",
    ),
)
_RUN = of(
    "run",
    Id(
        "run.time",
        "what the program waits for",
        "Shares of the time since torch was loaded: in the DataLoader, in copies, in waits, and how busy the "
        "device was. Where none stands out it is inconclusive.",
        "the lines below the verdict; gpucheck run --trace 3 shows more",
    ),
    Id(
        "run.ranks.straggler",
        "no rank holds up the job",
        "Under torchrun: when each rank arrives at each collective, by torch's flight recorder. A rank is named "
        "that takes longer than its siblings since all were released, by 2 % of a step and 1 ms, over 60 steps.",
        "what the rank does before it; gpucheck fleet judge FOLDER reads the files of run --output DIR/",
    ),
    Id(
        "run.ranks.hang",
        "no collective hangs",
        "A rank waited in a collective for half the smallest timeout of its groups (--hang-after) for others.",
        "look at the line where the missing rank is",
    ),
    Id(
        "run.ranks.mismatch",
        "all ranks make the same collectives",
        "The same number in a group was another operation, size or dtype on some ranks.",
        "make the same collectives in the same order on all ranks",
    ),
    Id(
        "run.ranks.ended",
        "no rank ends before the others",
        "A rank failed first; what the others raise then is its consequence.",
        "read that rank's own traceback",
    ),
    Id(
        "run.copies.discarded",
        "the result of .to() is kept",
        "A tensor does not move in place: the copy was made and thrown away.",
        "x = x.to(device)",
    ),
    Id(
        "run.copies.back",
        "no tensor goes there and back unchanged",
        "What comes back is bit for bit what was sent.",
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
        "tensors are made where they are used",
        "One is made on the host in every step and then moved.",
        "torch.zeros(…, device=device)",
    ),
    Id(
        "run.copies.unpinned",
        "non_blocking copies come from pinned memory",
        "From pageable memory they block all the same.",
        "pin_memory=True in the DataLoader",
    ),
    Id(
        "run.copies.pageable",
        "copies do not block the program",
        "Copies from pageable memory do, and take a part of the time that can be seen.",
        "pin_memory=True in the DataLoader and non_blocking=True; gpucheck bench transfer shows what it gains",
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
        "What it frees is asked of the driver again in the next step.",
        "leave it out",
    ),
    Id(
        "run.waits",
        "no line waits for the device in every step",
        ".item(), bool(), printing and the like wait until the device has done all that was asked of it.",
        "read it every so many steps, or once at the end",
    ),
    Id(
        "run.memory.full",
        "memory does not run out",
        "Who held it, what was asked for at once, and whether size, fragmentation or another process is to blame.",
        "what the finding says; gpucheck find-batch-size",
    ),
    Id(
        "run.memory.growth",
        "memory does not grow from step to step",
        "Something keeps tensors: a list of losses with their graphs, often.",
        "gpucheck run --memory names the line; keep loss.item()",
    ),
    Id("run.ended", "the program comes to its end", "It raised, or a signal ended it. Its own status is kept."),
    Id(
        "run.not_seen",
        "gpucheck could look into the program",
        "It ran as always, and nothing was seen of it: another start-up file, or -S and -I, kept gpucheck out.",
    ),
)
IDS = (
    *_MODEL,
    *_RUN_DRY,
    *_RUN,
)
