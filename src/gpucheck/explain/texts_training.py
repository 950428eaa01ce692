"""Texts of training: gradients, precision, optimizers, checkpoints, and how a model is spread over processes."""

from __future__ import annotations

from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import hint, proof, strong

TEXTS: tuple[Condition, ...] = (
    proof(
        "autograd.no_graph",
        "the loss depends on no trainable parameter",
        r"element 0 of (tensors|variables) does not require grad|differentiated Tensors does not require grad",
        r"none of output has requires_grad=True, this checkpoint\(\)",
        weak=(r"None of the inputs have requires_grad=True",),
        meaning="All parameters are frozen, or the loss was computed under no_grad. With adapters, reentrant "
        "activation checkpointing drops the gradient, because its inputs need none.",
        fix='with checkpointing, set gradient_checkpointing_kwargs={"use_reentrant": False} (kohya: no '
        "--gradient_checkpointing) or call model.enable_input_require_grads(). Else print sum(p.requires_grad for "
        "p in model.parameters()): 0 means frozen or no adapter. Look for no_grad(), .detach() or .item() before it",
    ),
    strong(
        "autograd.checkpoint",
        "activation checkpointing recomputed something different from the first forward pass",
        r"Recomputed values for the following tensors have different|different number of tensors was saved during",
        meaning="The second pass ran under another autocast, mode or random choice, or a wrapper changed its tensors.",
        fix='set gradient_checkpointing_kwargs={"use_reentrant": True}, with LoRA also '
        "model.enable_input_require_grads(). Do not compile the checkpointed layers, and update transformers, peft and "
        "accelerate. torch.utils.checkpoint.set_checkpoint_debug_enabled(True) names the first operation that differs",
    ),
    proof(
        "autograd.scalar",
        "backward() was called on a loss with several elements",
        r"grad can be implicitly created only for scalar outputs",
        meaning="nn.DataParallel returns one loss for each GPU, reduction='none' one for each sample.",
        fix="call loss.mean().backward(). Use one process for each GPU (torchrun and DDP) instead of DataParallel",
    ),
    proof(
        "autograd.inplace",
        "a tensor that the backward pass needs was changed in place",
        r"modified by an inplace operation|is a view and (its base or .{0,40})?(is being|has been) modified inplace",
        r"leaf Variable that requires grad (is being|has been) used in an in-?place",
        meaning="The causes are x += y, x[i] = …, inplace=True, or optimizer.step() before a second backward(). "
        "DistributedDataParallel also writes rank 0's buffers (of batch norm) before each forward.",
        fix="if it fails only on several GPUs, use DistributedDataParallel(…, broadcast_buffers=False), or one forward "
        "for both inputs. Else torch.autograd.set_detect_anomaly(True) names the forward line: write x = x + y, "
        "inplace=False or x.clone() there (for a parameter: under torch.no_grad())",
    ),
    proof(
        "autograd.inference",
        "a tensor made under torch.inference_mode() is used outside it",
        r"Inference tensors (cannot be saved for backward|do not track version)|Inplace update to inference tensor",
        r"Cannot set version_counter for inference tensor",
        meaning="These tensors, also caches and buffers, never get gradients, and torch.compile does not trace them.",
        fix="use torch.no_grad() where it is made (Lightning: Trainer(inference_mode=False)), or x.clone() outside",
    ),
    proof(
        "fsdp.flatten",
        "FSDP cannot join quantised parameters, or frozen and trained ones, in one unit",
        r"(flatten tensors with|requires) uniform \W?requires_grad|Cannot flatten integer dtype tensors",
        meaning="FSDP 1 joins a unit's parameters into one tensor, so they must be alike.",
        fix="for frozen parts, set use_orig_params=True (accelerate: fsdp_use_orig_params: true; peft: "
        "fsdp_auto_wrap_policy(model)), or use FSDP 2. For integers, do not quantise to 8 bits; 4-bit weights need "
        "bnb_4bit_quant_storage=torch.bfloat16",
    ),
    proof(
        "dist.wrapper",
        "the model's own method or attribute was looked up on its parallel wrapper",
        r"'?(DistributedDataParallel|DataParallel|FullyShardedDataParallel|DeepSpeedEngine)'? object has no attr",
        meaning="The wrapper holds the model in its attribute module.",
        fix="use model.module.NAME or accelerator.unwrap_model(model).NAME. With FSDP and ZeRO-3, go through model(…)",
    ),
    proof(
        "checkpoint.prefix",
        "the checkpoint's names have the prefix 'module.' or '_orig_mod.' and the model's do not, or the reverse",
        r"(Missing|Unexpected) keys?(\(s\))?( in state_dict)?:? ?\W{0,3}(module|_orig_mod)\.",
        meaning="It was saved from a model inside DataParallel or DDP (module.) or torch.compile (_orig_mod.).",
        fix='call load_state_dict({k.removeprefix("module.").removeprefix("_orig_mod."): v for k, v in '
        "state.items()}). If only the model is wrapped, call model.module.load_state_dict(state)",
    ),
    strong(
        "dist.sharded",
        "a sharded parameter was used, or loaded, while it was not gathered (FSDP, ZeRO-3)",
        r"shape in current model is torch\.Size\(\[0\]\)|\(which has shape torch\.Size\(\[0\]\)\)",
        r"setStorage: .{0,200}storage of size 0|Expects tensor to be unflattened|Non-root FSDP instance|"
        r"Cannot writeback when the parameter shape changes|param with shape torch\.Size\(\[0\]\) from checkpoint",
        meaning="Each rank holds only a shard of it (size 0). Only the forward of the wrapped module gathers it.",
        fix="load a state before the model is wrapped, with a newer transformers and peft, or as a test with ZeRO "
        '"stage": 2. Else call the wrapped model, not model.module.layer, and put direct uses into '
        "deepspeed.zero.GatheredParameters([p]) or FSDP.summon_full_params(model)",
        common=(r"'?weight'? must be 2-D|size of tensor \w \(0\) must match|data is not allocated yet",),
        beside=r"deepspeed|\bzero-?3|\bfsdp|fully_?sharded",
    ),
    proof(
        "amp.scaler",
        "the gradient scaler was called out of order, or no gradient reached its optimizer",
        r"No inf checks were recorded|unscale_\(\) (has already been called|is being called after)",
        r"step\(\) has already been called since the last update\(\)",
        meaning="Each step needs scale(loss).backward(), at most one unscale_(), step() and update(), in this order.",
        fix="print(sum(p.grad is not None for p in model.parameters())) before scaler.step. If it prints 0, the "
        "parameters are frozen, unused or not the optimizer's. Use one scaler (Accelerate and the Trainer have one)",
    ),
    strong(
        "optimizer.state",
        "the optimizer's state and its parameters differ in data type or device",
        r"Tensors of the same index must be on the same device and the same dtype",
        r"expected dtype \S+ for \W?(end|weight)\W? but got dtype|params, grads, exp_avgs.{0,40}must have (the )?same",
        r"`?fused=True`? requires all the params|If capturable=False, state_steps should not be CUDA",
        r"torch[/\\]optim[/\\]\w+\.py.{0,600}Expected all tensors to be on the same device",
        meaning="The model was moved or cast after the optimizer was made, or a state was loaded for another device.",
        fix="with transformers' Trainer: pip install -U transformers accelerate trl (4.46 mixed the types under FSDP). "
        "In your code, call model.to(device, dtype) before the optimizer is made and loaded. torch 1.12.0: use 1.12.1",
    ),
    proof(
        "norm.one_value",
        "batch norm got one value for each channel, and cannot compute a variance",
        r"Expected more than 1 value per channel when training",
        meaning="The batch has one sample (often the last of an epoch), of size 1 × 1 at this layer.",
        fix="set drop_last=True in the DataLoader, or another batch size; call model.eval() for validation, inference",
    ),
    strong(
        "dist.nodes",
        "the launcher does not find what it needs on a node: its folder, its Python or a variable",
        r"^(\d+\.\d+\.\d+\.\d+|[a-z][\w.-]*\d): (ba)?sh: (line \d+: )?(cd: )?/\S+: No such file or directory",
        r"\bbash: (line \d+: )?\S*\b(orted|prted): (command not found|No such file)",
        r"KeyError: '?PDSH_SSH_ARGS_APPEND",
        meaning="pdsh, ssh and mpirun use this node's paths on every node, and read no .bashrc there.",
        fix="put the program and its Python at the same path on every node (or on a shared disk): ssh HOST ls -d "
        "FOLDER PYTHON must find both. For deepspeed --ssh_port run export PDSH_SSH_ARGS_APPEND='' first, or update it",
    ),
    hint(
        "dist.rank_order",
        "torchrun with the c10d rendezvous numbers the nodes itself, and ignores --node-rank and --master-addr",
        meaning="Rank 0 may lie on another node than the rendezvous. The MASTER_ADDR that torchrun sets is right.",
        fix="leave out --rdzv-backend and --rdzv-endpoint, and pass --node-rank=$SLURM_NODEID --master-addr=HOST "
        "--master-port=PORT. Or read RANK and MASTER_ADDR in the program, on whichever node they are",
        common=(r"\brank.{0,3}0\b.{0,60}\b(not|even though|instead|another|wrong|random)\b|node_?rank .{0,40}ignor",),
        beside=r"rdzv[-_]backend=?c10d",
    ),
    strong(
        "dist.launch_option",
        "the launcher passes --local-rank, which the program does not know",
        r"unrecognized arguments: .{0,80}--local[-_]rank",
        meaning="python -m torch.distributed.launch adds it (with a hyphen since torch 2.0). torchrun does not.",
        fix='add parser.add_argument("--local-rank", "--local_rank", type=int, default=0) to the program. Or start it '
        'with torchrun and read int(os.environ["LOCAL_RANK"])',
    ),
    strong(
        "dist.mpi",
        "MPI does not start, is missing, or is not CUDA-aware",
        r"MPI used doesn'?t have CUDA-aware MPI support",
        meaning="Slurm and mpirun need an MPI that was built for them. torchrun starts processes without MPI.",
        fix='use init_process_group("nccl") and torchrun, which need no MPI (Megatron: tp_comm_bootstrap_backend nccl, '
        "or no --tp-comm-overlap; DeepSpeed: the command deepspeed, not python). Else use srun --mpi=pmix (srun "
        "--mpi=list shows the kinds), or mpirun of the MPI that the program was built with",
        common=(
            r"MPI_ERRORS_ARE_FATAL|\bMPI_INIT failed|OMPI was not built with SLURM|OPAL ERROR|PMI\w*_Init (failed|ret)",
            r"No module named \W?mpi4py|ORTE was unable to reliably start|(cannot find|plugin name for) .{0,12}\bmpi/|"
            r"--mpi=\w+.{0,300}(launch failed|aborted before step)|(launch failed|aborted before step).{0,300}--mpi=",
        ),
        beside=r"torch|gpus?\b|megatron|deepspeed|horovod|\bnccl|tensorflow|nemo\b",
    ),
    strong(
        "slurm.ended",
        "Slurm ended the job: its time limit, a preemption or a failed node",
        r"CANCELLED AT \S* ?DUE TO (TIME LIMIT|PREEMPTION|NODE FAILURE)",
        meaning="The line names the reason. Errors of ranks and workers beside it follow from it.",
        fix="request a longer --time, and use checkpoints, --signal=B:USR1@300 and --requeue. sacct -j JOB shows why",
        follows=("nccl.", "oom.", "cuda.", "xid.", "dist."),
    ),
    strong(
        "xla.cuda_data",
        "XLA (TensorFlow, JAX) does not find CUDA's compiler files (libdevice, ptxas)",
        r"libdevice not found at|Can'?t find libdevice directory|libdevice is required by|Couldn'?t (invoke|get) ptxas",
        r"No PTX compilation provider",
        meaning="XLA looks for nvvm/libdevice and bin/ptxas in a folder of the CUDA toolkit.",
        fix="conda install -c nvidia cuda-nvcc (pip install nvidia-cuda-nvcc-cu12), then export "
        "XLA_FLAGS=--xla_gpu_cuda_data_dir=FOLDER that holds nvvm/libdevice ($CONDA_PREFIX, "
        "…/site-packages/nvidia/cuda_nvcc, /usr/local/cuda), and add its bin to PATH",
    ),
    hint(
        "numerics.nan_half",
        "float16 probably overflows: values above 65 504 become infinite, then NaN (a black picture)",
        meaning="Attention, norms and exponents of models trained in bfloat16 exceed it, even under autocast.",
        fix="use bfloat16 on Ampere or newer (bf16=True, torch.autocast(dtype=torch.bfloat16)). Else use float32 for "
        "what overflows (q.float() in its attention or norm) or for the whole model. torch.isfinite finds it",
        common=(r"invalid value encountered in cast.{0,40}(x_sample|images?\b)",),
        weak=(
            r"\b(fp16|float16|half|amp|autocast|mixed precision)\b(?!.{0,80}\bno ).{0,200}\bnans?\b|"
            r"\bnans?\b.{0,160}\b(fp16|float16|half precision|amp|autocast|mixed precision)\b|\bblack (image|"
            r"picture)s?\b|\bnans?\b.{0,120}\bgtx ?16[3-6]0|\bgtx ?16[3-6]0.{0,300}\bnans?\b",
        ),
    ),
    proof(
        "deepspeed.config",
        "DeepSpeed's configuration and the Trainer's or accelerate's arguments differ",
        r"cannot be set to .{1,9} when .{1,9} is set in the DeepSpeed config|DeepSpeed config values that mismatch",
        meaning="Both state the precision, the batch size and the optimizer, and must agree.",
        fix='write "auto" for these values in the DeepSpeed file. Or pass the same arguments: --fp16, --bf16, '
        "--mixed_precision, --per_device_train_batch_size",
    ),
    proof(
        "tensor.fp8_shape",
        "the matrix's sizes are no multiples of those that float8 products need",
        r"FP8 (execution )?requires .{0,70}divisible|(dimension of mat_?\w|mat_?\w shape) to be divisible by 16 but",
        meaning="Rows (batch × tokens) must be a multiple of 8 or 16, features of 16, and both of 32 for MXFP8.",
        fix="pad the batch or the sequence to such a multiple. Leave layers with few rows or odd sizes in bfloat16: "
        "te.fp8_autocast(enabled=False) around them, or torchao's module_filter_fn",
    ),
    hint(
        "dist.one_gpu",
        "the program uses one of several GPUs: probably only one process was started",
        weak=(
            r"\b(only|just) (uses?|using|utili[sz]\w+|(runs?|running|trains?|training) on) ((one|1|a single|"
            r"the first)( of (the|my) (\w+ )?)? ?gpus?|gpu ?0)\b",
            r"\b(only|just) (one|1|a single|the first|gpu ?0)( of (the|my) \w+)?( gpus?)? (is|was|gets|are)( being)? "
            r"(used|utili[sz]ed|running|working|busy)\b|\b(second|other|2nd) gpus? (is|are|stays?|remains?)( \w+)? "
            r"(idle|unused|at 0|empty|not (being )?used)\b",
            r"\b(not|n.?t) (use|using|utili[sz]\w*) (both|all|multiple|the other|(all )?my|two|all \d|\d) gpus\b|"
            r"\btraining on a single gpu\b",
        ),
        meaning="PyTorch uses one GPU for each process, unless the program splits the model itself.",
        fix="start one process for each GPU: torchrun --nproc-per-node=N SCRIPT, accelerate launch --multi_gpu, "
        'Lightning devices=N with strategy="ddp", Ultralytics device=[0,1]; in a notebook accelerate.notebook_launcher('
        'train, num_processes=N). A model for inference is split by device_map="auto" or --tensor-parallel-size N. '
        "CUDA_VISIBLE_DEVICES must name all",
        follows=("oom.", "cuda.", "nccl.", "cuinit.", "tensor.", "dist.", "torch.", "hip.", "llamacpp.", "nvml."),
    ),
    strong(
        "optimizer.before",
        "the optimizer was made before the model was wrapped or moved, and holds other parameters than it uses",
        r"optimizer does not seem to reference any FSDP parameters",
        r"optimizer.{0,80}(before|prior to) .{0,40}\b(FSDP|fully_shard|accelerator\.prepare|wrapping)\b",
        meaning="FSDP replaces the parameters, so that the optimizer updates tensors that nothing uses: the loss "
        "stays.",
        fix="wrap the model first (accelerator.prepare(model), fully_shard), then torch.optim.X(model.parameters()). "
        "In Lightning use self.trainer.model.parameters() in configure_optimizers. Or set fsdp_use_orig_params: true",
    ),
)
