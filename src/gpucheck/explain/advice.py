"""Advice for errors of running programs that depends on the facts of a paste, and functions that choose it. No I/O."""

from __future__ import annotations

import re
from dataclasses import replace

from gpucheck.doctor.condition import Condition
from gpucheck.explain import advice_install, advice_setup
from gpucheck.explain.facts import Advice, Facts, of
from gpucheck.explain.steps import more_ranks, server_share
from gpucheck.explain.text import BACKEND, SMALLER

# The first matching row applies.
ADVICE: tuple[Advice, ...] = (
    of("llamacpp.cpu")(
        r"\A(?=[\s\S]*\bollama)(?![\s\S]*(?:geforce|\brtx|\bgtx))[\s\S]*(?:\b[78][4-9]0m\b|\bigpu|integrated gpu)",
        "set OLLAMA_IGPU_ENABLE=1 for the service (sudo systemctl edit ollama), and restart it: Ollama from 0.30 on "
        "leaves integrated GPUs out without it. OLLAMA_DEBUG=1 ollama serve prints what it finds",
        title="Ollama probably leaves the processor's integrated GPU out",
    ),
    of("program.waits")(
        r"kmp_affinity|cpu_affinity|\btaskset\b|(?:omp|mkl)_num_threads|(?:num_workers|more (?:cpu )?cores)[^.\n]{0,40}"
        r"(?:didnt|did not|doesnt|does not|no) \w*",
        "taskset -p PID shows the cores of a process: unset KMP_AFFINITY and GOMP_CPU_AFFINITY (accelerate: "
        "enable_cpu_affinity) if it is one. Else set torch.set_num_threads(1) in worker_init_fn, or OMP_NUM_THREADS=1, "
        "so that the workers do not compete for the cores",
        title="the loader's processes probably share one core, or each starts as many threads as there are cores",
    ),
    of("compile.old_gpu", "cuda.capability")(
        r"\bvllm\b[\s\S]*too old|compute capability below 7\.0 are not supported",
        "use another engine on this GPU (llama.cpp, Ollama, exllamav2), or a newer GPU. No dtype or other torch helps",
        title="vLLM and its Triton need a GPU of compute capability 7.0 or newer",
    ),
    of("dist.rendezvous")(
        r"ssh -o passwordauthentication=no",
        "ssh-copy-id HOST for each host of the hostfile, also for this one, as the same user. ssh -o "
        "PasswordAuthentication=no HOST hostname must print a name",
        title="DeepSpeed's launcher cannot log in to a host by ssh without a password",
    ),
    of("llamacpp.cpu")(
        r"ggml_vulkan: \d = |found \d+ (?:cuda|vulkan|rocm) devices|\bn_gpu_layer\b",
        "add -ngl 99 (--n-gpu-layers; in Python n_gpu_layers=-1, with an s), and look for `offloaded N/N layers to "
        "GPU` in the log",
        title="llama.cpp finds the GPU, but puts no layers on it: probably -ngl is missing",
    ),
    of("crash.segfault")(
        r"segmentation fault[^\n]{0,20}nvidia-smi",
        "install another release of NVIDIA's driver for Windows (older or newer), then wsl --shutdown. Test torch "
        "itself: python -c 'import torch; print(torch.zeros(1, device=\"cuda\"))' may work all the same",
        title="nvidia-smi crashed: inside WSL usually a fault of the Windows driver's release",
    ),
    of("dist.sharded")(
        r"torch\.size\(\[0\]\) from checkpoint",
        "python zero_to_fp32.py CHECKPOINT_FOLDER OUTPUT rebuilds the weights (DeepSpeed puts the script beside them). "
        "For the next run set stage3_gather_16bit_weights_on_model_save: true",
        title="the checkpoint has empty weights: it was saved under ZeRO-3 without gathering them",
    ),
    of("cuda.no_kernel", "hip.arch")(
        r"\A(?=[\s\S]*(?:amdgpu|gpu)_targets)[\s\S]*hsa_override_gfx_version=(?:1[01]|9)\.",
        "build for the GPU that HSA_OVERRIDE_GFX_VERSION names: 10.3.0 is AMDGPU_TARGETS=gfx1030, 11.0.0 gfx1100. Or "
        "build for the GPU's own number (rocminfo | grep gfx) and unset the override",
        title="the program was built for another AMD GPU than HSA_OVERRIDE_GFX_VERSION names",
    ),
    of("hip.arch")(
        r"\A(?=[\s\S]*gpu arch : gfx(?:103[56]|110[34]|90c))[\s\S]*\b(?:rx ?)?[679]\d[05]0(?: ?xt\w*)?\b",
        "set HIP_VISIBLE_DEVICES to the other GPU's number (0 or 1), or switch the integrated GPU off in Device "
        "Manager or the firmware",
        title="HIP chose the processor's integrated GPU, for which ROCm has no code",
    ),
    of("compile.backend")(
        r"recompile_limit|cache_size_limit",
        "set torch._dynamo.config.recompile_limit = 64 (cache_size_limit before torch 2.7), or compile with "
        "dynamic=True, and keep shapes alike. TORCH_LOGS=recompiles names what changes. With fullgraph=True the limit "
        "is an error",
        title="torch.compile compiled a function again and again, for changing shapes, until its limit",
    ),
    of("dtensor.mixed")(
        r"no attribute \W?(?:full_tensor|to_local)",
        "start the program on at least two GPUs, or with its option without FSDP",
        title="a tensor is not sharded, probably since FSDP keeps plain tensors on one GPU: it has no full_tensor()",
    ),
    of("dist.port")(
        r"error while attempting to bind on address",
        "use another --port, or end the process that has it: ss -ltnp | grep PORT (an earlier server of the same "
        "model)",
        title="the server's port is taken by another process",
    ),
    of("oom.other", "oom.cuda")(
        r"\bvllm\b[\s\S]*\b(?:multi-?process\w*|second|two|both)\b",
        "start one engine for all requests, or give each a share: gpu_memory_utilization=0.4 for two on one GPU",
        title="GPU memory is full: each vLLM engine reserves 90 % of it by default, however small the model",
        certainty="hint",
    ),
    of("attention.kernel")(
        r"cutlassf: no kernel",
        "use torch_dtype=torch.float16 instead of bfloat16 before Ampere (V100, T4, RTX 20), or float32. Else set "
        'attn_implementation="eager", or torch.backends.cuda.enable_mem_efficient_sdp(False)',
        title="the memory-efficient attention kernel lacks this data type on this GPU: usually bfloat16 before Ampere",
    ),
    of("llamacpp.start")(
        r"layers\.offload=0\b[^\n]*memory\.required\.kv=\"?(?:[3-9]|\d\d+)\.\d gib",
        "set a shorter context (num_ctx, OLLAMA_CONTEXT_LENGTH=8192) and OLLAMA_NUM_PARALLEL=1, which multiplies it",
        title="the context's cache (memory.required.kv) is larger than the GPU's free memory",
    ),
    of("oom.host")(
        r"requires more system memory",
        "set a shorter context: num_ctx in the client, OLLAMA_CONTEXT_LENGTH=8192, OLLAMA_NUM_PARALLEL=1. Or use a "
        "smaller quantisation or model; ollama ps shows what it takes",
        title="the model with this context needs more RAM than is free (Ollama)",
        certainty="strong",
    ),
    of("llamacpp.cpu", "torch.no_acc")(
        r"\A(?=[\s\S]*\bpodman)[\s\S]*(?:driver|graphics card)[^\n]{0,60}\bupdat|\A(?=[\s\S]*\bpodman)[\s\S]*updat\w*"
        r"[^\n]{0,60}(?:driver|graphics card)",
        becomes="container.cdi",
    ),
    of("llamacpp.cpu")(
        r"\A(?![\s\S]*(?:-ngl|n[-_]gpu[-_]layers|ollama|lm ?studio))[\s\S]*(?:llama[-_.](?:cli|server)|\./main)\b",
        "add -ngl 99 (--n-gpu-layers) to the command, and leave -t at the number of processor cores. llama-cli "
        "--list-devices must list the GPU: else build with -DGGML_CUDA=ON",
        title="llama.cpp probably computes on the CPU: the command names no layers for the GPU (-ngl)",
    ),
    of("dist.world_size")(
        r"num_processes: 1\b[\s\S]{0,200}num_machines: [2-9]",
        "set num_processes to the number of GPUs of all machines together (accelerate config, or --num_processes)",
        title="accelerate's num_processes is smaller than the number of machines",
    ),
    of("dist.set_device")(
        r"n/a\W+(\d+)\W+c\W[\s\S]*n/a\W+\1\W+c\W",
        'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before anything uses CUDA, and torch.load(path, '
        'map_location="cpu"). Or show each process its own GPU alone: CUDA_VISIBLE_DEVICES',
        title="processes hold memory on a second GPU beside their own",
    ),
    of("dist.port")(
        r"--local_rank[= ]0\b",
        'read int(os.environ["LOCAL_RANK"]) in the program, and leave out --local_rank 0: with it each process starts '
        "rank 0's server",
        title="every process takes itself for rank 0, and opens the same port",
    ),
    of("cuda.ordinal")(
        r"#sbatch|\bsrun\b|--gres=",
        "ask Slurm for the GPUs that the program uses: --gres=gpu:N with N = --ntasks-per-node = the Trainer's devices",
        title="the program wants more GPUs than Slurm gave the job",
    ),
    of("tensor.device_mismatch")(
        r"module must have its parameters and buffers on device",
        "call model.to('cuda:0') before the wrapper, with 0 the first of device_ids. If the model is wrapped already, "
        "take model.module. Or use DistributedDataParallel",
        title="DataParallel got a model that is not on its first GPU",
    ),
    of("tensor.device_mismatch")(
        r"gather function not implemented for cpu",
        "return GPU tensors from forward(), and call .cpu() outside the wrapper; or use DistributedDataParallel",
        title="the model inside DataParallel returns a CPU tensor",
    ),
    of("numerics.nan_half")(
        r"\bgtx ?16[3-6]0",
        "train in float32 (Ultralytics: amp=False), without fp16, half or autocast. For pictures use --precision full "
        "--no-half",
        title="a GTX 16xx computes float16 wrongly, which gives NaN",
        certainty="strong",
    ),
    of("dist.rendezvous")(
        r"(?:socket|connect)\w*[^\n]{0,60}timed out[^\n]{0,60}connect\w* to",
        "start the head node first, with its own address (ip -brief address) as --rdzv-endpoint on every node. nc -vz "
        "ADDRESS PORT on each tells whether a firewall blocks it. If the head does not recognise its own address, use "
        "its host name, or --node-rank with --master-addr",
        title="no rendezvous server answers at this address and port",
    ),
    of("oom.other")(
        r"\b(?:compute|kv|pp)(?: cache)? buffers?\b|\bkv cache\b|\bllama|lm ?studio|gguf|koboldcpp",
        "set a shorter context (-c 8192, num_ctx), then fewer layers on the GPU (-ngl N, LM Studio: GPU offload), a "
        "smaller quantisation, or a smaller cache (-fa -ctk q8_0 -ctv q8_0); nvidia-smi shows other programs",
        title="GPU memory does not hold the model with this context",
    ),
    of("compile.ptxas")(
        r"ptxas was searched in",
        "conda install -c nvidia cuda-nvcc, and set TRITON_PTXAS_PATH to its bin/ptxas; or install a newer torch, "
        "whose Triton brings its own",
        title="Triton finds no ptxas, the assembler of the CUDA toolkit",
    ),
    of("oom.cuda", "oom.other")(
        r"\b(?:resum|continu|(?:re-?)?start|(?:re)?load)\w*[^\n.]{0,40}\bcheckpoint(?! shards)|torch\.load\(|"
        r"in (?:_?load_checkpoint|load_optimizer|resume\w*)\b",
        'call torch.load(path, map_location="cpu"), and del the loaded dictionary after load_state_dict. Else a second '
        "copy stays on the GPU, and that of every rank on GPU 0",
        title="GPU memory is full at or after the load of a checkpoint, of which probably a second copy lies there",
    ),
    of("cublas.not_supported", "cudnn.not_initialized")(
        r"arch_?mismatch[\s\S]{0,60}c(?:ublas|udnn)_?create|c(?:ublas|udnn)_?create[\s\S]{0,60}arch_?mismatch",
        "pip install --force-reinstall torch torchvision --index-url https://download.pytorch.org/whl/cu126",
        title="the CUDA of this torch has no code for the GPU's generation: CUDA 13 dropped Maxwell, Pascal and Volta",
    ),
    of("cutlass.arch", "cuda.no_kernel")(
        r"common_ops[\s\S]*(?:undefined symbol|libnvrtc|libcudart)|(?:sglang|sgl[-_]kernel)[\s\S]*error code no kernel",
        "pip install --force-reinstall sglang-kernel (once sgl-kernel) in the release for this torch, --index-url "
        "https://docs.sglang.ai/whl/cu130 (cu129 for CUDA 12; a GB10 needs 13). Or use the image lmsysorg/sglang",
        title="sgl-kernel was built for another CUDA or torch, or has no code for this GPU",
    ),
    of("cutlass.arch")(
        r"\A(?![\s\S]*\b(?:gtx|p100|v100))[\s\S]*(?:major versions \[[\d, ]*12\b|flashinfer requires gpus with sm75)",
        "export CUDA_HOME=/usr/local/cuda-12.9 or newer, rm -r ~/.cache/flashinfer; else install flashinfer-jit-cache",
        title="FlashInfer builds nothing for this GPU: probably its CUDA toolkit is too old (12.x GPUs need 12.9)",
    ),
    of("nvcc.old")(
        r"expected a number|unknown option \W*(?:f(?!maf)|w[a-z]|m(?:arch|avx|fma|sse|f16c|tune)|pthread)",
        "unset CFLAGS CXXFLAGS; build again without such flags (llama.cpp: -DGGML_NATIVE=OFF). Else update it",
        title="a flag for the C++ compiler reached nvcc, which reads it as its own option",
    ),
    of("nvcc.arch")(r"parameter packs not expanded", becomes="nvcc.host_compiler"),
    of("nvcc.arch", "cuda.feature")(
        r"__\w+ is undefined|(?:tmpxft|nvcc)[\s\S]*instruction \S+ not supported on \.target",
        "build for this GPU alone (-DCMAKE_CUDA_ARCHITECTURES=86, TORCH_CUDA_ARCH_LIST=8.6). A file of "
        "another generation (sm90 in its name) needs newer sources, or a wheel",
        title="the build compiles code for an architecture that lacks its instructions",
    ),
    of("oom.cuda", "oom.other", "oom.nvml")(r"nvmapmem\w+: \d+ error 12|cumemaddressreserve", becomes="memory.block"),
    of("oom.cuda")(
        r"insufficient (?:gpu memory for kv|vram in split)|kv ?cache allocation failed",
        "use a shorter context, fewer sequences (--max-num-seqs), a smaller cache type (fp8; exllama: Q8, Q4) or model",
        title="beside the weights, GPU memory does not hold the cache of this context",
    ),
    of("hip.arch")(
        r"\A(?![\s\S]*rocblas error)[\s\S]*(?:rocblaslt error|hipblaslt)[\s\S]*tensilelibrary",
        "ignore it while the program runs, by rocBLAS. A newer release of the program, or of its ROCm, may have them",
        title="this ROCm has no hipBLASLt files for the GPU, which usually only makes it slower",
    ),
    of("llamacpp.cpu", "hip.none")(
        r"\A(?![\s\S]*(?:\bwsl|windows|desktop|\bmac))[\s\S]*/dev/dri\b[^\n]{0,40}(?:not exist|no such file)",
        "lspci -nnk on the host must show `Kernel driver in use: amdgpu` (i915, xe, no vfio-pci): sudo modprobe amdgpu",
        title="the host has no /dev/dri: probably its kernel driver for the GPU is not loaded, so no container has it",
    ),
    of("llamacpp.cpu")(
        r"(?:igpu|uhd|iris|integrated)\b[^\n]{0,80}(?:ignor\w+|instead of|rather than) [^\n]{0,20}(?:rtx|nvi|dgpu|ded)",
        "set OLLAMA_VULKAN=0 for the server (llama.cpp: --device CUDA0). If it then uses the CPU, install it afresh",
        title="the program computes on the integrated GPU instead of the NVIDIA GPU: probably through Vulkan",
    ),
    of("vllm.start")(
        r"range_entry is not none",
        "use --enforce-eager, no draft model, or a larger --max-num-batched-tokens; then a newer vLLM",
        title="a batch is larger than those that vLLM compiled: probably a fault of this release (draft models)",
    ),
    of("tensorrt.engine")(r"unable to load plan file", certainty="strong"),
    *advice_install.ADVICE,
    *advice_setup.ADVICE,
    of("dtensor.mixed")(
        r"(?:activation|gradient)[ _-]checkpoint|checkpoint_wrapper|utils/checkpoint\.py|\bforward\b[^\n]{0,40}\btwice",
        "use fully_shard(…, reshard_after_forward=False), a newer torch, or one backward for each forward pass",
        title="FSDP2 had already sharded a layer again: probably by checkpointing or two forwards before one backward",
    ),
    of("program.waits")(
        r"\A(?=[\s\S]*n(?:proc|um)[_-]?p[\w-]*[= ]+(?:[4-9]|\d\d)\b)[\s\S]*workers[= ]+(?:1[2-9]|[2-9]\d)\b",
        "set num_workers to at most cores / processes (nproc shows the cores: 4 for 32 cores and 8 GPUs), and "
        "OMP_NUM_THREADS=1. Then `gpucheck run train.py` shows whether loading still waits",
        title="each process starts its own num_workers: together probably more than the processor has cores",
    ),
    of("nccl.timeout", "dist.mismatch")(
        r"(?:hang|stuck|deadlock)\w*[^\n]{0,60}\b(?:val|eval|metric)|\b(?:valid|eval|metric)[^\n]{0,60}(?:hang|stuck|"
        r"deadlock)|log_dict|sync_ddp|sync_dist|subset of ranks",
        "let every rank run the same number of validation steps (drop_last=True, a fixed number), log the same metrics "
        "(Lightning: the same keys in self.log) and run the callbacks: only save and print under if rank == 0",
        title="some ranks do not call a collective in which others wait, usually of validation, metrics or a callback",
    ),
    of("oom.cuda", "oom.other", "oom.hip")(
        r"nested_concat|eval_accumulation_steps|preds_host",
        "use preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(-1) (seq2seq: predict_with_generate), "
        "or prediction_loss_only=True. Add eval_accumulation_steps=10, which moves the rest to RAM",
        title="GPU memory is full: the Trainer's evaluation probably keeps the logits of all samples there",
    ),
    of("tensor.device_mismatch")(r"\bstate\[\w+\]|\bp\.data\b|exp_avg|optimi[sz]er state", becomes="optimizer.state"),
    of("quant.dtype", "cutlass.arch")(
        r"9\.x required for fp8|fp8 block scaled gemm requires|version \S+ or higher required for fp8",
        "update torch and transformer-engine (an NGC image has both): Ada (8.9) needs CUDA 12.1, block scaling Hopper "
        "(9.0) and CUDA 12.9. Else use another recipe (DelayedScaling), or bfloat16",
        title="TransformerEngine's float8 needs a newer CUDA, a newer TransformerEngine or another GPU",
    ),
    of("tensor.pin")(
        r"pin_memory allocator",
        "set pin_memory=torch.cuda.is_available(). If the machine has an NVIDIA GPU, run nvidia-smi, and reinstall "
        "torch if python -c 'import torch; print(torch.version.cuda)' prints None",
        title="pin_memory=True needs a GPU, and this torch sees none",
    ),
    of("oom.cuda")(
        r"tvmerror|\bmlc[-_ ]llm|prefill-chunk-size",
        "set gpu_memory_utilization=0.95 (MLC takes 0.85), or lower gen_config's --prefill-chunk-size; then fewer bits",
        title="weights and temporary buffer exceed the part of GPU memory that MLC may use",
    ),
    of("autograd.inplace")(
        r"\A(?![\s\S]*(?:without ddp|broadcast_buf|parallel\b[\s\S]{0,300}batch_?norm))[\s\S]*(?:\b\w*gan\b|"
        r"discriminator|output 0 of (?:as_?strided|t)backward|\[\d+, \d+, (\d), \1\]\W{1,3}is at version)",
        "call loss.backward() of all losses before the first optimizer.step(). In a GAN call opt_D.step(), then "
        "compute the generator's loss from a new D(fake), with fake.detach() in D's own loss. Old torch is silent",
    ),
    of("cublas.invalid")(
        r"cublas(?:gemm|[sdh]gemm|lt)",
        "unset LD_LIBRARY_PATH, which usually leads to another CUDA's cuBLAS. Else check the operands' shapes, strides",
    ),
    of("cuda.device_assert")(
        r"cross_?entropy|nll_?loss|nllcriterion|n(?:um)?_?class|focal_loss|\blabels?\b",
        "print(target.min(), target.max(), logits.shape[1]): labels must lie between 0 and the number of classes − 1, "
        "in the data set and in the configuration's num_classes. Run the step on the CPU to find the line",
        title="a check inside a kernel failed: probably a label is not below the number of classes",
    ),
    of("tensor.type_mismatch", "tensor.dtype")(
        r"from_pretrained\((?![^\n)]*dtype)[\s\S]*pipeline",
        "set torch_dtype=torch.float16 in every from_pretrained, also VAE and ControlNet; pip install -U diffusers",
        title="a part of the pipeline was loaded in another data type",
    ),
    of("xpu.lost", "xpu.call")(
        r"\bu?hd graphics\b",
        "use the CPU (--cpu), or OpenVINO, which supports it. torch's XPU is for Arc, Core Ultra and Data Center GPUs",
        title="torch's XPU does not support this integrated GPU",
    ),
    of("crash.segfault")(
        r"libamdhip64|libhsa-runtime|amdkfd_ioc|\brocm|\bradeon|\brx ?[567]\d00",
        "rocminfo | grep gfx shows the GPU. Set HSA_OVERRIDE_GFX_VERSION to a relative's: 9.0.0 (gfx90c), 10.3.0 "
        "(gfx103x), 11.0.0 (gfx110x). To skip an integrated GPU, set HIP_VISIBLE_DEVICES=N. Else update ROCm and torch",
        title="ROCm probably has no code for this AMD GPU, uses the integrated one, or is a faulty nightly build",
    ),
    of("numerics.nan")(
        r"nansexception|nans was produced|"
        r"\A(?=[\s\S]*(?:webui|a1111|comfyui|invoke|foooc|sdxl|txt2img))(?![\s\S]*(?:train|lora_))",
        "for A1111 and Forge use --upcast-sampling or --no-half (a GTX 16xx: --precision full --no-half --medvram), "
        "for the VAE --no-half-vae. For ComfyUI use --fp32-vae, --force-upcast-attention or --force-fp32. Else try "
        "another VAE (fp16-fix for SDXL). --disable-nan-check only shows black pictures",
        title="the picture was computed to NaN: probably float16 is too narrow for this model or GPU (GTX 16xx, VAE)",
        meaning="No training runs here. float16 ends at 65 504, and a GTX 16xx computes it wrongly.",
    ),
    of("loader.exited")(
        r"background workers are no longer alive",
        "look for the worker's first error above. If there is none, RAM (free -h, dmesg) or shared memory was full: "
        "docker run --ipc=host. Set nnUNet_n_proc_DA=2 for fewer workers, or 0 for none, which shows the error",
        title="a worker of nnU-Net's data loading ended: usually RAM or shared memory was full",
    ),
    of("cuinit.999")(
        r"(?:\bin |_|\.)(?:step|backward)\b|\bepoch\b|\bsteps:|it/s\b",
        "sudo dmesg | grep -i -e xid -e nvrm shows that moment. Xid 79 or a reset points to the GPU, its power or heat "
        "(no overclocking, sudo nvidia-smi -pl WATTS lower); else update the driver, and set CUDA_LAUNCH_BLOCKING=1",
        title="CUDA failed in the middle of the work and gives no reason: probably the driver or the GPU was lost",
    ),
    of("loader.exited")(
        "container",
        "docker run --shm-size=8g … or --ipc=host: df -h /dev/shm shows the container's 64 MiB. If it is large, "
        "num_workers=0 shows the real error, and sudo dmesg | grep -i -e oom -e killed shows whether RAM was full",
        title="a DataLoader worker is gone: in a container usually /dev/shm is too small",
    ),
    of("cuda.illegal")(
        r"\A(?=[\s\S]*(?:processgroupnccl|nccl warn|ddp\b))[\s\S]*\b(?:rtx)? ?50[5-9]0\b",
        "pip install -U nvidia-nccl-cu12 (2.26.5 or newer; torch 2.7's 2.26.2 fails on several RTX 50), or update "
        "torch. NCCL_P2P_DISABLE=1, or a run on one GPU, shows whether NCCL is the cause",
        title="a kernel accessed memory outside its own: on several RTX 50 probably NCCL's",
    ),
    of("nccl.timeout")(
        r"\A(?![\s\S]*watchdog)[\s\S]*(?:horovod|mpirun|torchrun|deepspeed|multi-?node)[\s\S]*(?:hangs?|hung|stuck)|"
        r"between servers|(?:hangs?|stuck\w*|freez\w+)\b(?! in \w*(?:reduce|gather))[^\n]{0,70}(?:initiali\w+ d|"
        r"global_rank|distributed e|gpus?\b)",
        "set NCCL_P2P_DISABLE=1 before the command. If P2P is the cause, turn IOMMU and ACS off (gpucheck doctor). "
        "On several machines set NCCL_SOCKET_IFNAME (horovodrun --network-interface) to the interface that joins them. "
        "Unset NODE_RANK, MASTER_… left in env. py-spy dump --pid PID shows where each rank waits",
        title="training on several GPUs hangs: probably the GPUs or the processes do not reach each other",
    ),
    of("nccl.unhandled_system")(
        r"(?:connect to|connect) [^\n]{0,60}(?:failed|refused|timed? ?out)",
        "set NCCL_SOCKET_IFNAME=NAME on all nodes to the interface of the machines' network (ip -brief address; "
        "172.17.… is Docker's). Refused: read that rank's log first, because it ended. Timed out: check the firewall",
        title="NCCL does not reach another rank's address",
    ),
    of("dist.child")(
        r"got signal: 1\b",
        "use tmux or screen, else setsid nohup torchrun … > log 2>&1 &, so that the program outlives the terminal",
        title="torchrun got SIGHUP, because its terminal or ssh session was closed",
    ),
    of("dist.tcp")(
        r"connectfullmesh failed",
        "set GLOO_SOCKET_IFNAME=NAME on all nodes to the interface that joins them (ip -brief address; on one machine "
        "lo). /etc/hosts must not give the host name 127.0.1.1. Then check the firewall, and ulimit -n on many nodes",
        title="gloo's processes do not reach each other: probably the wrong network interface",
    ),
    of("dist.rendezvous")(
        r"gai error: -\d|host not found: ",
        "set MASTER_ADDR (--master-addr, --rdzv-endpoint) to an IP address, or a name that getent hosts NAME knows. "
        "Slurm: MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1) outside any container",
        title="this machine does not know the name of the rendezvous host",
    ),
    of("dist.port")(
        r"\b(?:srun|sbatch|slurm\w*)\b",
        "start one torchrun per node (--ntasks-per-node=1, --nproc-per-node=GPUs), because several on a node use the "
        "same port. Use another port for each job: MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))",
        title="the port of the rendezvous is taken: this node runs several launchers or jobs",
    ),
    of("cuda.argument")(r"p2p\.cc:\d+ nccl warn", becomes="cuda.peer"),
    of("cuda.argument")(
        r"\bnccl\b|distbackenderror",
        "try NCCL_CUMEM_ENABLE=0, NCCL_P2P_DISABLE=1 and NCCL_SHM_DISABLE=1 in turn to see which helps; update NCCL",
        title="a CUDA call inside NCCL got an invalid value: probably in memory shared between GPUs",
    ),
    of("numerics.nan")(
        r"scale (?:already )?at minimum|minimum loss|min_loss_scale",
        'use bfloat16 instead of float16 (bf16=True; DeepSpeed "bf16": {"enabled": true}) on Ampere or newer, else '
        "float32. Then lower the learning rate with warm-up, clip gradients, and check torch.isfinite on the batch",
        title="float16 overflows in every step: the loss scale reached its minimum",
    ),
    of("numerics.nan")(
        r"returned nan values in its",
        "look at the named operation (Sqrt, Log, Div, Pow, Norm at 0, Exp of a large number). Call x.clamp(min=1e-6) "
        "before it, and check torch.isfinite on its inputs. Else use bfloat16 or float32, or a lower learning rate",
        title="an operation's gradient is NaN",
    ),
    of("tensor.not_implemented")(
        r"_amp_\w+ not implemented for bfloat16",
        'use bf16=True instead of fp16=True (mixed_precision="bf16"), or a float32 model: GradScaler is for float16',
        title="the gradient scaler for float16 got a model in bfloat16",
    ),
    of("tensor.dtype")(
        r"result type \w+ can.?t be cast",
        "write x = x * y instead of x *= y, which keeps x's type, or .long() for indices. Update YOLOv5 and YOLOv7",
        title="an in-place operation would lose its result's data type",
    ),
    of("oom.other")(
        r"\bno (?:\w+ )?process\w*\b[^.\n]{0,30}\b(?:us|hold|tak|runn)\w+|\bstill (?:\w+ )?(?:hold|occup|tak|us)\w+ "
        r"(?:\w+ )?(?:gpu )?(?:memory|vram)|(?:kill|gpu)[\s\S]*no such process",
        becomes="cuda.held",
    ),
    of("oom.other")(r"(?:gpu|vram|cuda)[\s\S]*memory\b[^.\n]{0,60}\b(?:increas|grow|leak)", becomes="oom.grows"),
    of("oom.cuda")(
        r"(?:memory|vram|usage of (?:the )?gpu|gpu usage)\b[^.\n]{0,60}\b(?:increas|grow|leak|creep|climb)\w*|"
        r"memory leak|losses?\.update\(loss[,)]|without (?:setting |using )?(?:with )?torch\.no_grad",
        "add up loss.item(), keep only x.detach().cpu() in lists, and do not set retain_graph=True. For inference use "
        "torch.inference_mode(). "
        "print(torch.cuda.memory_allocated()) after each step shows whether it still grows",
        title="GPU memory grows until it is full: probably the program keeps tensors of earlier steps",
    ),
    of("tensor.type_mismatch")(
        r"input type \(torch\.(?!cuda)\w+\) and weight type \(torch\.cuda",
        "write x = x.to(device) for every input right before the call, because .to() returns a new tensor. To use the "
        'CPU instead, call torch.load(path, map_location="cpu") and model.to("cpu")',
        title="the input is on the CPU and the model on the GPU",
    ),
    of("tensor.type_mismatch")(
        r"input type \(torch\.cuda\.\w+\) and weight type \(torch\.(?!cuda)",
        'call model.to(device) first, because the input is on the GPU (torchsummary: summary(model.to("cuda"), …))',
        title="the model is on the CPU and its input on the GPU",
    ),
    of("tensor.meta")(
        r"device_map ?= ?\W?auto|bitsandbytes[/\\]|offload|max_memory|dispatch_model|accelerate[/\\]|llm-?compressor|"
        r"low_cpu_mem",
        'load the model without offloading: on one GPU if it fits ({"": 0} as the device_map), else on the CPU '
        '("cpu"), on more GPUs, or a smaller model. Else update the program that the traceback names',
        title="a part of the model is on the meta device: probably offloaded, which this program does not expect",
    ),
    of("dist.port")(
        r"(?:chang|tried|set|export)\w*[^.\n]{0,60}\bmaster_port\b[\s\S]{0,160}\b(?:same|still|no effect|again|anyway)",
        "grep -rn PORT . in its folder, because it sets the port itself. sudo ss -ltnp | grep PORT shows the holder",
        title="the port of the rendezvous is taken, and the program does not read MASTER_PORT",
        certainty="strong",
    ),
    of("cuda.ordinal")(
        lambda facts: (
            bool(more_ranks(facts)) or facts.holds(r"set_device\([^)\n]*local_?rank|nproc.per.node[= ]+[2-9]")
        ),
        lambda facts: (
            f"use --nproc_per_node={more_ranks(facts) or 'N'} (torchrun --nproc-per-node), at most what python -c '"
            "import torch; print(torch.cuda.device_count())' prints, because CUDA_VISIBLE_DEVICES may hide some"
        ),
        title="more processes were started than GPUs are visible",
        certainty="strong",
    ),
    of("cuda.illegal")(
        r"(?:other than|except|besides|not)(?: on| the)? (?:gpu|device|cuda)(?: device)?[ :]?0\b|any gpu except 0\b|"
        r"\b(?:works?|runs?|run \w+|fine|ok)\b[^.\n]{0,30}\b(?:on |with )(?:device |gpu ?|cuda:?)0\b[^\n]{0,60}\b"
        r"(?:fail|error|crash|gpu ?1|cuda:1)",
        "set CUDA_VISIBLE_DEVICES=N before the command, which makes that GPU number 0 of the program (llama.cpp: "
        "--main-gpu N if others stay visible). An extension's own code needs at::cuda::CUDAGuard(x.device())",
        title="a kernel accessed memory outside its own: probably it runs on GPU 0 with another GPU's tensors",
    ),
    of("oom.vllm")(
        r"to handle \d+ \w+ tokens|max[-_]batch[-_](?:total|prefill)[-_]tokens|text[-_]generation[-_]\w+er\b",
        "lower --max-batch-total-tokens (not below --max-total-tokens) and --max-batch-prefill-tokens, then "
        "--max-total-tokens. Else use --quantize, --num-shard N, or a newer release, which finds the number itself",
        title="Text Generation Inference has too little GPU memory for the tokens of its settings",
    ),
    of("oom.mps")(
        r"mps allocated: (?!0(?:\.0+)? )[\s\S]*max allowed|how [^\n]{0,40}high_watermark",
        f"{SMALLER}; if that is not enough, set the environment variable PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0. It "
        "lifts the limit, and may freeze the Mac",
    ),
    of("oom.cuda", "oom.other")(
        r"(?:jump|increas|grow|ris(?:e|ing)|spike|out of memory)\w*[^.\n]{0,60}\b(?:valid|eval|test)|"
        r"\bonly (?:when|in|during|after|at)\b[^.\n]{0,40}\b(?:valid|eval|test)",
        "use torch.inference_mode() around the evaluation, and add up loss.item(). Then use a smaller batch",
        title="GPU memory is full, probably because the evaluation keeps what only a backward pass needs",
    ),
    of("tensor.placed")(
        r"in from_pretrained\b[\s\S]*in dispatch_model\b",
        "pip install -U transformers accelerate bitsandbytes, because these releases do not fit each other",
    ),
    of("oom.vllm")(
        r"alloc_req_slots|warming up sampler|mamba cache blocks",
        "allow fewer requests at once: vLLM --max-num-seqs 256 or less (SGLang --max-running-requests). For slots or "
        "blocks use a larger, for a warm-up a smaller vLLM --gpu-memory-utilization (SGLang --mem-fraction-static)",
    ),
    of("oom.other")(
        r"cuda_host_malloc|of pinned memory",
        "ignore it: it is only slower. Or ulimit -l unlimited (docker --ulimit memlock=-1), or GGML_CUDA_NO_PINNED=1",
        title="llama.cpp could not pin host memory",
    ),
    of("oom.cuda", "cublas.", "cudnn.", "cusolver.")(
        r"\bpaddle",
        "use a smaller batch and input first: memory is usually full (nvidia-smi shows other holders; export "
        "FLAGS_allocator_strategy=auto_growth). Else run paddle.utils.run_check(), and use a Paddle for this CUDA",
    ),
    of("cuda.fork")(
        r"notebook_launcher|lightning cant|running any instruction using|accelerator.? should only be init",
        'restart the notebook\'s kernel, and use the GPU only in the launched function (Lightning: "ddp_notebook")',
        title="the notebook had started CUDA before it started processes",
    ),
    of("cuda.capture")(
        r"capturable (?:is|=) ?false|graph capture of step",
        'set capturable=True for the optimizer (after load_state_dict: group["capturable"] = True in its param_groups)',
        title="the optimizer was not made for CUDA graphs",
    ),
    of("cuda.handle")(
        r"\bdist\.(?:barrier|all_?reduce|all_?gather|broadcast|reduce)|distributed_c10d|\bnccl warn\b",
        'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before init_process_group and the first tensor',
    ),
    of("cuda.illegal")(
        r"\bint(?:32)?_max\b|2(?:\^|\*\*)31\b|\b2,?147,?483,?64[78]\b|"
        r"\b(?:int ?32|32[- ]bit).{0,30}(?:overflow|index|range|limit)|overflow\w* .{0,20}int ?32",
        "keep each tensor below 2³¹ elements by working in chunks; compute-sanitizer python … names the kernel",
        title="a kernel's 32-bit index overflowed",
        certainty="strong",
    ),
    of("hip.fault", "hip.hang")(
        r"uncorrectable hardware error|\[hardware error\]|poison",
        "power-cycle the node. If sudo amd-smi metric --ecc shows new errors, replace the GPU at the address",
        title="the AMD GPU reports an uncorrectable hardware error",
    ),
    of("llamacpp.cpu")(
        r"user overrode visible devices",
        "unset the variable that this line names, also for the service (sudo systemctl edit ollama). Slurm sets "
        "ROCR_VISIBLE_DEVICES and GPU_DEVICE_ORDINAL on NVIDIA's nodes too, which makes Ollama use the CPU",
        title="a variable hides the GPUs from Ollama",
        certainty="strong",
    ),
    of("llamacpp.cpu")(
        "container",
        "docker run --gpus all (Compose: deploy.resources.reservations.devices; AMD: --device /dev/kfd --device "
        "/dev/dri and the image ollama/ollama:rocm). docker exec NAME nvidia-smi must list the GPU, also after days",
    ),
    of("oom.other")(
        r"bfc_?arena|onnxruntime",
        "use a smaller input or batch, one session at a time, and the provider's option "
        "arena_extend_strategy=kSameAsRequested. nvidia-smi shows other holders of memory",
        title="ONNX Runtime's arena found no memory, probably on the GPU",
    ),
    of("llamacpp.cpu")(
        r"library=(?:cuda|rocm)|offload",
        "restart the service with a free GPU (nvidia-smi), and without num_gpu 0 or -ngl 0. Then reinstall the "
        "program, because it needs its folder lib/ollama for the GPU. OLLAMA_DEBUG=1 ollama serve shows the reason",
        title="the model is on the CPU: probably the GPU's library was not loaded, or its memory was full",
    ),
    of("quant.dtype")(
        r"is not supported for quantization method",
        "use --dtype half (dtype='half'). If the model refuses float16 (Gemma 3): GPTQ or compressed-tensors (w4a16)",
        title="vLLM's kernels for this quantisation need another data type",
    ),
    of("quant.dtype")(
        r"method \w+_marlin is not supported",
        "use --quantization gptq (or awq) and --dtype half, which run from 7.5 on; else a smaller, unquantised model",
    ),
    of("quant.dtype")(
        r"fp8e4nv|supported fp8 dtypes",
        "use float8 as e5m2 (ComfyUI: fp8_e5m2), or no torch.compile for it; else bfloat16, GGUF or 4-bit weights",
        title="Triton has no float8 of type e4m3 on a GPU before Ada (8.9)",
    ),
    of("amp.bfloat16")(
        r"dtype flag|\bvllm",
        'use --dtype half (in Python dtype="half", LLaMA-Factory vllm_dtype: float16), with weights that allow float16',
        title="the model requests bfloat16, which no GPU before Ampere (8.0) has",
    ),
    of("cublas.not_supported")(
        r"cuda_r_16bf", "use float16 or float32 (--dtype half, --fp16)", title="this GPU (before Ampere) lacks bfloat16"
    ),
    of("quant.dtype")(
        r"compute type, but",
        'set compute_type="int8" or "float32" (whisperx --compute_type int8), or device="cuda" if there is a newer GPU',
        title="CTranslate2 has no fast float16 on this device (the CPU, or a GPU before Volta)",
    ),
    of("quant.dtype", "amp.bfloat16", "attention.flash")(
        r"presence of|\b(?:multiple|different|both|mixed|two) gpus\b|\bolder gpu\b",
        "set CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=N before the command, with N the newer GPU in "
        "nvidia-smi, because the check uses the first or the weakest visible GPU",
    ),
    of("vllm.start")(
        r"\A(?=[\s\S]*(?:\bhang|stuck|\bhung|freez|broadcast block))[\s\S]*tensor[-_ ]parallel[\w -]{0,12}\W{1,3}[2-9]",
        "try NCCL_P2P_DISABLE=1, and separately --disable-custom-all-reduce, to see whether transfers between GPUs "
        "hang. If they do, turn IOMMU and ACS off in the firmware (gpucheck doctor). NCCL_DEBUG=INFO shows where",
        title="the start hangs with several GPUs, probably in a transfer between them (P2P)",
    ),
    of("cuda.not_supported")(
        r"unable to create stream|allocator\.h|\bgrid\b|\bvgpu\b|get device context 801|pinned system memory",
        "nvidia-smi -q | grep -i -e virtualization -e license shows a vGPU. It needs a license, a compute profile (C) "
        "and unified memory (pciPassthru0.cfg.enable_uvm=1). Else use another backend (lmdeploy --backend pytorch)",
        title="the GPU does not support this operation: probably it is a virtual one (vGPU)",
    ),
    of("graphics.context")(
        r"vkcreateinstance|vkresult|gpu\.foundation|isaac",
        "vulkaninfo --summary must list NVIDIA's GPU. The host needs its driver, libvulkan1 and libnvidia-gl-NNN; a "
        "container -e NVIDIA_DRIVER_CAPABILITIES=all and nvidia_icd.json in /usr/share/vulkan/icd.d",
        title="Vulkan finds no usable GPU",
    ),
    of("crash.segfault")(
        r"loaded engine size|\.engine for tensorrt",
        "build the engine again on this GPU with the TensorRT that loads it (pip list | grep -i tensorrt)",
        title="the process crashed while it loaded a TensorRT engine: probably one of another TensorRT or GPU",
    ),
    of("crash.segfault")(
        r"faster.?whisper|ctranslate2|whisperx",
        "pip install -U ctranslate2, with cuDNN 9 (its DLLs on PATH, or import torch first). If it crashes after the "
        "text, keep the model until the end and leave by os._exit(0)",
        title="the process crashed in CTranslate2: probably cuDNN was not found, or a model was unloaded",
    ),
    of("crash.segfault")(
        r"322122(?:5477|6505)|-10737(?:41819|40791)|0xc0000(?:005|409)|access violation",
        "use a larger paging file (System, Advanced, Performance, Virtual memory: 32 GB or more), and end other "
        "programs (llama.cpp, KoboldCpp: fewer layers on the GPU, a newer driver, another backend). Then python -X "
        "faulthandler … names the line: reinstall the package it names, for this torch",
        title="the process crashed on Windows: probably RAM and the paging file were full, or a DLL failed",
    ),
    of("tensor.not_implemented")(
        r"cpu_offload",
        'pip install -U diffusers accelerate. Use the whole pipeline, not its parts, or pipe.to("cuda") for all',
        title="offloading left a part of the pipeline on the CPU, which has no code for float16",
    ),
    of("attention.kernel")(
        r"unsupported kv type combination|ggml_cuda_fa_all_quants|operation \(cpy",
        "use -ctk f16 -ctv f16 (an unquantised cache), or build llama.cpp with -DGGML_CUDA_FA_ALL_QUANTS=ON",
        title="llama.cpp's backend has no code, or was built without it, for this cache type",
    ),
    of("shm.open")(
        r"unable to mmap \d{1,6} bytes[^\n]{0,90}(?:\(12\)|cannot allocate)",
        "sudo sysctl -w vm.max_map_count=1048576, or use few large tensors, not many small ones; free -h shows the RAM",
        title="the process has too many memory mappings, or too little RAM, for one more shared tensor",
    ),
    of("crash.bus", "shm.bus")(
        "shm",
        "df -h of the folders of data, checkpoints and caches shows a full disk, sudo dmesg | tail a failing disk or "
        "RAM; python -X faulthandler … names the line",
        title="a memory-mapped file ended, or the hardware failed: the text shows that shared memory suffices",
        certainty="hint",
    ),
    of("tensor.dtype")(
        r"must flatten tensors with uniform|flatparameter`? requires uniform",
        "use one type for all parameters before FSDP: the same torch_dtype in every from_pretrained, and p.data = "
        "p.data.to(torch.bfloat16) for float32 adapters and heads (QLoRA: bnb_4bit_quant_storage=torch.bfloat16)",
        title="FSDP cannot join parameters of different data types in one unit",
    ),
    of("assert.index", "assert.label")(
        "server",
        "use the tokenizer and the model of the same folder and release, and a prompt within the model's length. "
        "vocab_size in config.json must cover all tokens, also added and image tokens. Else update the server",
    ),
    of("xpu.lost")(r"error_out_of_(?:resources|\w+_memory)|returns: -5\b", becomes="oom.xpu"),
    of("mps.dtype")(
        r"float8|fp8|bfloat16",
        "set torch_dtype=torch.float16 (bfloat16 needs macOS 14). For float8, use the float16, GGUF or MLX version",
    ),
    of("oom.cuda", "oom.hip")(
        r"allocating (?:[3-9]\d{5}|\d{7,})(?:\.\d+)? mib on device",
        "use --parallel 1, and build llama.cpp again with cmake -DGGML_SCHED_MAX_COPIES=1 (with several GPUs it keeps "
        "four copies of the buffers). Until then use one GPU (--split-mode none), then a smaller -ub and -c",
        title="llama.cpp requests a buffer larger than any GPU",
        certainty="strong",
    ),
    of("oom.vllm")(
        lambda facts: 0 < server_share(facts) < 0.7 or server_share(facts) >= 0.93,
        lambda facts: (
            f"use --gpu-memory-utilization 0.9 instead of {server_share(facts)}: weights, trial run and cache share it "
            "(nvidia-smi shows what others leave); else use a smaller --max-model-len or --max-num-seqs"
            if server_share(facts) < 0.7
            else "use a quantised (AWQ, GPTQ, FP8) or smaller model, --enforce-eager, and a smaller --max-model-len "
            "and --max-num-seqs, because the memory share cannot grow. nvidia-smi shows whether others hold memory"
        ),
    ),
    of("oom.cuda")(lambda facts: "pinned" in facts.names and "allocator" not in facts.names, becomes="oom.host"),
    of("nccl.in", "nccl.un", "nccl.re")(r"\blo:127[\s\S]*nccl warn.*refused", becomes="nccl.interface"),
    of("nccl.timeout")(
        r"sav(?:e|ing)\b.{0,60}(?:checkpoint|model|weights|state)|save_(?:checkpoint|pretrained|model)|checkpoint sav|"
        r"running tokenizer|grouping texts|tokeniz(?:ing|e) .{0,20}dataset|prepar\w* .{0,20}data|preprocess\w* "
        r".{0,30}data|map \(num_proc|generating train split|skip_first_batches|skipp?(?:ing|ed)? [^\n]{0,30}batches|"
        r"\bresum\w+ .{0,20}checkpoint|fast[- ]?forward",
        "set a longer limit: init_process_group(timeout=timedelta(hours=2)), in the Trainer ddp_timeout=7200. Save in "
        "shards (FSDP: SHARDED_STATE_DICT; with ZeRO-3 and FSDP every rank calls the save), prepare data once before "
        "the run, and skip data faster (ignore_data_skip=True, a sampler with a state)",
        title="a collective timed out while one rank saved a checkpoint, or prepared or skipped data",
    ),
    of("nccl.timeout", "cuda.peer")(
        r"\bp2p (?:is |was )?(?:disabled|off)\b|p2p_disable ?= ?1\W.{0,40}(?:work|run|well|fix|help)|"
        r"\b(?:p2p|peer[- ]to[- ]peer)\b.{0,60}(?:fail|h[au]ng|stuck)|(?:fail|hang)\w* .{0,30}\bp2p\b",
        "set NCCL_P2P_DISABLE=1 to run without P2P. Turn IOMMU and ACS off (gpucheck doctor), then gpucheck bench",
        title="transfers between the GPUs (P2P) hang or fail",
    ),
    of("tensor.backend")(
        r"not compiled with (?:gpu|cuda) support",
        "delete build/ and the extension's old .so, set CUDA_HOME to the toolkit of torch's CUDA, then FORCE_CUDA=1 "
        "pip install --no-build-isolation --no-cache-dir --force-reinstall --no-deps FOLDER_OF_ITS_SOURCES",
        title="an extension was compiled without CUDA",
    ),
    of("xpu.lost")(r"device_lost", title="the Intel GPU was lost: its driver probably reset it"),
    of("cuda.not_supported")(
        "kernels", f"{BACKEND}, or update FlashInfer: its kernel requests what this GPU or driver lacks"
    ),
    of("oom.host")(
        r"error 1455|paging file", title="Windows's limit of memory (RAM and paging file together) is reached"
    ),
    of("oom.host")(
        lambda facts: "pinned" in facts.names and not facts.platforms - {"wsl"},
        "pin less: DataLoader(pin_memory=False), smaller or fewer buffers (memory= in .wslconfig raises WSL's limit). "
        "ulimit -l shows the limit (docker run --ulimit memlock=-1), free -h the free memory",
        title="host memory could not be pinned",
    ),
    of("oom.killed")(
        r"requires more system memory",
        "use a smaller model or quantisation or a shorter context (Ollama: num_ctx), or end other programs that use "
        "RAM (free -h). In a container or virtual machine raise the memory limit",
        title="the model needs more RAM than is free",
    ),
    of("dist.world_size")(
        r"attention heads|block_[nk]|min_thread_|block_size_k|group_size|quantized weight shape",
        "choose a tensor-parallel size that divides the number in the message: vLLM --tensor-parallel-size N (SGLang "
        "--tp N), with other GPUs in --pipeline-parallel-size or --data-parallel-size (experts: "
        "--enable-expert-parallel). Or use another quantisation, or its kernel without Marlin (gptq, awq)",
        title="the attention heads cannot be divided among these GPUs, or a layer into blocks of this quantisation",
    ),
    of("cuda.ordinal")(
        r"parallel[_ -]?size .{0,40}(?:larger|greater) than|local_world_size \(\d|"
        r"(?:vllm|sglang)[\s\S]*--nnodes[= ][2-9]",
        "set vLLM --tensor-parallel-size (SGLang --tp) to at most the GPUs that nvidia-smi -L lists, times the nodes "
        "(one GPU on each of 2: --tp 2, --nnodes 2). If it lists more, unset CUDA_VISIBLE_DEVICES, or use --gpus all",
        title="more GPUs are requested than are visible",
    ),
    of("cuda.not_supported")(
        r"cudamallocasync|comfyui",
        "use ComfyUI's --disable-cuda-malloc, or unset PYTORCH_CUDA_ALLOC_CONF: this driver has no cudaMallocAsync",
    ),
    of("attention.flash", "attention.kernel")(
        lambda facts: "vllm" in facts.names or facts.holds("flashinfer|sglang|lmdeploy|unsupported max_mma_kv"),
        "let the server choose (unset VLLM_ATTENTION_BACKEND, no --attention-backend, for an FP8 cache "
        f"--kv-cache-dtype auto); else {BACKEND}, or update the server",
    ),
    of("cuda.peer")(
        r"allreduce is disabled",
        "ignore it: the server continues with NCCL. --disable-custom-all-reduce silences the warning",
        title="a harmless warning: vLLM's own all-reduce is not used between these GPUs",
    ),
    of("mps.operation")(
        r"supported on mac ?os \d|natively starting from macos",
        "update macOS to the version in the message, or newer (sw_vers shows it), and use an arm64 Python (python -c "
        "'import platform; print(platform.machine())'). Until then use device=\"cpu\", or another data type",
        title="this macOS is too old for torch's MPS, or for one of its operations",
    ),
    of("dist.environment")(
        r"no backend type associated with device type",
        'call x.to("cuda") on the sent tensor (NCCL takes no others), or init_process_group("cpu:gloo,cuda:nccl")',
        title="the process group has no backend for the device of a tensor",
    ),
    of("tensor.type_mismatch", "tensor.dtype")(
        # The device is the same, but the data types differ.
        r"(?:found|got|and|expected) \W?(?:double|float64)\b|\b(?:double|float64) and |"
        r"input type \((torch\.cuda\.|torch\.|cuda|mps|xpu)\w+\) and (?:weight|bias) type \(\1(?!cuda\.)\w+\)|input "
        r"type \((?:c10::)?(?:b?float\d*|half|double)\) and (?:weight|bias) type \([\w ]*:{0,2}(?:b?float|half|double)",
        'call x.to(next(model.parameters()).dtype), or use torch.autocast("cuda"). NumPy: torch.from_numpy(a).float()',
        title="the input and the weights are of different data types",
    ),
    of("tensor.dtype", "tensor.type_mismatch", "tensor.not_implemented")(
        r"expected (?:object of )?(?:scalar )?type \S{0,6}long|scalar types?:? long|"
        r"nll_loss\w*\W{1,3}not implemented for",
        "call labels.long(): cross_entropy's class numbers and the indices of embedding and gather must be int64",
        title="labels or indices do not have an integer type that the operation accepts",
    ),
    of("tensor.not_implemented")(
        r"(?:_cpu\w*|kernel_?impl|baddbmm\w*|host_softmax|addmv\w*)\W? not (?:currently )?implemented for half",
        title="the model computes in float16 (Half) on the CPU, for which this torch has no code",
    ),
    of("tensor.not_implemented")(
        r"not implemented for \W?(?:long|int|bool|byte|char|short)\b",
        "call x.float() before it if x holds values; if x is an index or a label, pass it as another argument",
        title="an operation has no code for integers or booleans",
    ),
    of("tensor.dtype")(
        r"\bpeft\b|\blora\b|bitsandbytes|load_in_[48]bit|gptq|\bqlora\b|unsloth|axolotl|llama-?factory|liger|\btrl\b",
        lambda facts: (
            'put with torch.autocast("cuda", dtype=torch.{}): around the step or generate(). Use one type for '
            "torch_dtype, bnb_4bit_compute_dtype and the Trainer's {}=True. Unsloth: dtype=None, for_inference(model) "
            "before generate, and pip install -U unsloth unsloth_zoo"
        ).format(*(("float16", "fp16") if facts.holds(r"\bhalf\b|v100|\bt4\b") else ("bfloat16", "bf16"))),
        title="parts of a model with adapters, or its input, are of different data types",
    ),
    of("cuda.feature")("old_llvm", becomes="compile.ptxas"),
    of("compile.backend")(r"cpp_builder[\s\S]*winerror 2\b|winerror 2\b[\s\S]*cpp_builder", becomes="compile.compiler"),
    of("oom.mps")(
        r"mps allocated: 0(?:\.0+)? ?\w+, other allocations: 0(?:\.0+)? ?\w+[\s\S]{0,80}allocate [\d.]+ ?(?:byte|[km])",
        'set device="cpu" (in the code, or the program\'s option), because no smaller batch helps; or use a real Mac',
        title="the Metal device gives torch no memory",
        certainty="strong",
    ),
    of("nccl.interface")(
        r"failed ?: ?network is unreachable|\blo:127",
        "set NCCL_SOCKET_IFNAME=NAME on all nodes to the interface that joins them (ip -brief address), or "
        "^lo,docker0. If an address begins with fe80, set NCCL_SOCKET_FAMILY=AF_INET. Let NCCL through the firewall",
        title="NCCL tries to reach a rank over a wrong interface",
        certainty="strong",
    ),
    of("dist.world_size")(
        r"ranks has already checked in",
        "give every process a different RANK: srun with --ntasks-per-node as many as devices, torchrun with another "
        "--node-rank on each machine. End processes of an earlier run that still use MASTER_PORT",
        title="two processes have the same rank",
    ),
    of("cuda.argument")(
        r"ipcgetmemhandle|ipcopenmemhandle",
        "unset PYTORCH_CUDA_ALLOC_CONF (expandable_segments cannot be shared), or turn off the kernel that shares "
        "memory: vLLM --disable-custom-all-reduce. In containers of one machine use --ipc=host and one PID namespace",
        title="memory could not be shared with another process (CUDA IPC)",
    ),
    of("cudnn.not_initialized", "cudnn.failed", "cublas.", "cusolver.", "oom.cublas", "oom.cuda")(
        lambda facts: "jax" in facts.names and "pytorch" not in facts.names and (facts.free or 0) < 0.5,
        "export XLA_PYTHON_CLIENT_PREALLOCATE=false, or XLA_PYTHON_CLIENT_MEM_FRACTION=0.7, because JAX takes 75 % of "
        "it (with TensorFlow beside it: tf.config.set_visible_devices([], 'GPU')). Else pip install -U 'jax[cuda12]'",
    ),
    of("cudnn.version")(
        r"ld_library_path contains|comes bundled with cudnn",
        "unset LD_LIBRARY_PATH (or remove the folder of the other cuDNN from it): torch brings its own cuDNN",
    ),
    of("cusolver.failed")(
        r"cusolverdncreate|cublascreate|cudnncreate",
        "nvidia-smi shows whether the GPU is full. If so, use a smaller batch or end other programs; else call "
        'torch.linalg.inv(torch.eye(2, device="cuda")) before the model is loaded',
        title="cuSOLVER could not create its handle",
    ),
    of("oom.cuda")(
        lambda facts: "runtime" in facts.names and "allocator" not in facts.names,
        lambda facts: (
            (
                "try DataLoader(pin_memory=False) first, because Windows limits WSL's pinned memory. Then "
                if "wsl" in facts.platforms
                else ""
            )
            + "nvidia-smi shows whether the GPU is full. If so, use another one, or end what fills it. If memory is "
            "free, pin less host memory (pin_memory=False; ulimit -l)"
            + f"; else {SMALLER}"
            * facts.holds(r"batch[_ ]?size")
        ),
        title="a CUDA call found no memory: usually the GPU is full",
        meaning="Since 1.0 torch's allocator says `CUDA out of memory. Tried to allocate`. This text comes from CUDA's "
        "runtime (a context, a late module, a graph, IPC or pinned host memory), or from an older torch.",
    ),
    of("cuda.illegal", "cuda.misaligned", "cuda.launch_failure")(
        lambda facts: "jax" in facts.names and "pytorch" not in facts.names,
        "pip install -U 'jax[cuda12]' (jax[cuda13] on a new driver), which brings a newer XLA. "
        "XLA_FLAGS=--xla_gpu_autotune_level=0 shows whether a chosen kernel fails; compute-sanitizer python … names it",
    ),
    of("cudnn.", "import.nvjitlink", "import.library")(
        lambda facts: facts.names & {"jax", "pytorch", "amd"} == {"jax"} or facts.holds(r"cudnn[\s\S]*\bjax "),
        "pip install -U 'jax[cuda12]', which brings its own CUDA and cuDNN, and unset LD_LIBRARY_PATH: it comes first. "
        "torch brings others: install JAX after torch and import it before torch, or use two environments",
    ),
    of("oom.cuda", "oom.hip", "oom.other", "oom.cublas")(
        lambda facts: "llama" in facts.names and not (facts.torch or facts.packages),
        "use a shorter context (-c N, Ollama num_ctx), -ub 256 for a compute buffer, fewer layers on the GPU (-ngl N, "
        "num_gpu), or a smaller quantisation of the model. nvidia-smi shows other holders of memory",
    ),
    of("tensor.device_mismatch", "tensor.type_mismatch", "tensor.dtype")(
        "ui",
        "update the program and the custom node or extension that the traceback names last, or run without it and "
        "without options that move parts of the model (low VRAM, offload). In your code write x = x.to(device, dtype)",
    ),
    of("tensor.device_mismatch")(
        r"\A(?=[\s\S]*(?:accelerate[/\\]hooks|device_map|dispatch_model|transformers_modules|generation[/\\]utils|"
        r"peft[/\\]))(?![\s\S]*(?:distributeddata|data_?parallel))[\s\S]*(?:devices, \w+:\d+ and \w+:\d|"
        r"on \w+:\d+, different from other\b)",
        'if the model fits on one GPU, use device_map={"": 0}, or CUDA_VISIBLE_DEVICES=0. Else use a device_map with '
        "the embedding, the vision part, the last norm and lm_head on one GPU, inputs.to(model.device), and "
        "x.to(y.device) in the line that the traceback names; pip install -U transformers accelerate",
        title="parts of a model that is split over several GPUs meet on different GPUs",
    ),
    of("tensor.device_mismatch")(
        r"\A(?=[\s\S]*(?:(?<!distributed)(?<!distributed_)data_?parallel|replica \d|transformers[/\\]trainer\.py))"
        r"[\s\S]*(?:devices, \w+:\d+ and \w+:\d|device \d+ does not equal \d|on different gpus)|"
        r"located on different gpus",
        "start one process per GPU (torchrun --nproc-per-node=N, or accelerate launch), or set CUDA_VISIBLE_DEVICES=0. "
        "DataParallel copies the model to every GPU, but a tensor made on a fixed device stays there: use x.device",
    ),
    of("tensor.device_mismatch")(
        r"devices, \w+:\d+ and \w+:\d|on \w+:\d+, different from other tensors on \w+:\d",
        'use x.device (Lightning self.device) instead of "cuda" and "cuda:0", which is GPU 0 in every process, and '
        "call torch.cuda.set_device(local_rank) first. If one GPU is enough, set CUDA_VISIBLE_DEVICES=0",
        title="two tensors are on different GPUs",
    ),
    of("tensor.device_mismatch")(
        # torch names the argument that is on the second device; the arguments before it are on the first.
        r"devices, \w+:\d+ and cpu! \(when checking argument for argument (?:weight|bias|mat2|running_\w+)|"
        r"devices, cpu and \w+:\d+! \(when checking argument for argument (?:mat1|index) in method \w*(?:addmm|index_)|"
        r"got (?:weight|bias|mat2|running_\w+) is on cpu, different",
        "call model.to(device) before using it: one of its layers is on the CPU. Layers in a plain list or dict are "
        "not moved: use nn.ModuleList, nn.ModuleDict. Tensor attributes are not either: self.register_buffer(name, x)",
    ),
    of("tensor.device_mismatch")(
        r"tokenizer\(|input_ids|\.generate\(|generation[/\\]utils",
        'use inputs = tokenizer(text, return_tensors="pt").to(model.device), and move every other input too',
    ),
    of("cublas.", "cudnn.", "hip.fault", "cuda.handle", "cuda.argument", "cuda.launch_failure", "cuda.illegal")(
        lambda facts: bool(facts.names & {"native", "llama"}) and not (facts.torch or facts.packages),
        "update the program, and search its issues for this message and GPU. -ngl 0 (or its CPU build) shows whether "
        "its GPU code fails, --main-gpu N whether one of the GPUs does; sudo dmesg | grep -i xid shows more",
    ),
    of("cuda.illegal", "cuda.launch_failure", "cuda.argument", "cuda.handle", "hip.fault", "cublas.", "cudnn.")(
        "ui",
        "use a smaller image or fewer frames first, to see whether memory is short. Try ComfyUI's "
        "--disable-pinned-memory, --disable-cuda-malloc and --use-pytorch-cross-attention or, on AMD, "
        "--use-split-cross-attention (A1111: --opt-sub-quad-attention, no --xformers). Then update driver, program and "
        "node (the traceback's last)",
    ),
    of("oom.cuda", "oom.cublas", "cublas.not_initialized", "cudnn.not_initialized")(
        lambda facts: "tf" in facts.names and not facts.names & {"pytorch", "jax"},
        "use a smaller batch; export TF_FORCE_GPU_ALLOW_GROWTH=true, because TensorFlow takes the whole GPU at once. "
        "nvidia-smi shows other holders of memory. For cuDNN pip install -U 'tensorflow[and-cuda]'",
    ),
    of("cuda.illegal", "cuda.launch_failure", "cuda.device_assert", "cuda.misaligned", "hip.fault")(
        "server",
        "CUDA_LAUNCH_BLOCKING=1 before the server's command names the line. Find whose kernel it is: vLLM "
        f"--enforce-eager (SGLang --disable-cuda-graph), {BACKEND}, or try a newer release",
        certainty="strong",
    ),
    of("assert.index", "assert.label", "cuda.device_assert")(
        r"ultralytics|yolo",
        "check the class numbers in the label files (first column): they must lie between 0 and nc − 1, with nc and "
        "names of data.yaml. Then delete the *.cache files beside the labels. device=cpu for one batch names the line",
    ),
    of("cuda.fork")(
        r"\bvllm", "export VLLM_WORKER_MULTIPROC_METHOD=spawn, and start the program under if __name__ == '__main__':"
    ),
    of("oom.vllm")(
        r"retract(?:ed_reqs| requests)|preemptionmode\.",
        "ignore it if it is rare: they wait and run again. If it is frequent, allow fewer at once, vLLM --max-num-seqs "
        "(SGLang --max-running-requests or --schedule-conservativeness 1.3), use a larger cache, vLLM "
        "--gpu-memory-utilization (SGLang --mem-fraction-static) while memory is free, or a shorter context",
        title="the server's cache of keys and values is full, and requests wait",
        certainty="hint",
    ),
    of("oom.vllm")(
        r"error in memory profiling",
        "start the server again while no other program ends on that GPU (nvidia-smi shows them), and start several "
        "servers one after the other. With unified memory, or if no other program runs, use a newer vLLM",
        title="GPU memory became free while vLLM measured what it needs",
    ),
    of("oom.cuda", "oom.hip", "oom.nvml_assert")(
        lambda facts: (
            "server" in facts.names
            and facts.holds(r"in (?:profile_run|determine_(?:available_memory|num_available_blocks))\b")
        ),
        "lower vLLM --max-num-batched-tokens, --max-num-seqs and --max-model-len (images: --limit-mm-per-prompt), "
        "because its trial run ran out of memory. Else use a quantised model or more GPUs; nvidia-smi shows others",
    ),
    of("oom.cuda", "oom.hip")(
        lambda facts: {"server", "loading"} <= facts.names,
        "use more GPUs by vLLM --tensor-parallel-size N (SGLang --tp N), or a quantised or smaller model: it ran out "
        "while loading the weights. nvidia-smi shows whether others hold memory",
    ),
    of("tensor.backend")(r"could not run aten::\S+ with arguments from the \w*mps backend", becomes="mps.operation"),
    of("ray.resources", "vllm.start")(
        r"ray does not allocate any gpus on the driver node|current node has no gpu available",
        "start vllm on a node whose GPUs Ray lists (ray status; not a head node without one), and set VLLM_HOST_IP to "
        "the address that ray list nodes shows for it, without a slash or a port",
        title="vLLM's driver process finds no Ray GPU on its own node",
    ),
    of("nccl.timeout")(
        r"\(seqnum=[1-3],(?![\s\S]*seqnum=\d\d)",
        "set NCCL_P2P_DISABLE=1 on one machine (vLLM and SGLang: --disable-custom-all-reduce too) to see whether P2P "
        "fails, which an IOMMU or ACS breaks: gpucheck doctor shows both. Between machines set NCCL_SOCKET_IFNAME=NAME "
        "of the interface that joins them. NCCL_DEBUG=INFO shows how far each rank came",
        title="one of the first collectives hangs: the GPUs or machines do not reach each other",
    ),
    of("oom.cuda", "oom.nvml_assert")(
        "jetson",
        "run one smaller or quantized model without the desktop (sudo systemctl isolate multi-user.target; tegrastats)",
    ),
    of("oom.cuda", "oom.hip", "oom.nvml_assert")(
        lambda facts: "server" in facts.names,
        "leave more of the GPU free: vLLM --gpu-memory-utilization 0.85 or less with a smaller --max-model-len and "
        "--max-num-seqs and --max-num-batched-tokens (SGLang --mem-fraction-static 0.8 or less with a smaller "
        "--cuda-graph-max-bs and --chunked-prefill-size). nvidia-smi shows whether others hold memory",
    ),
    of("oom.cuda")(
        r"(?:\[(?:rank|default)[1-7]\][^\n]{0,200}|-- process [1-7] terminated[\s\S]{0,4000}?)out of memory"
        r"[\s\S]{0,160}?\bgpu 0 has[\s\S]{0,200}?\bprocess \d+ has|"
        r"\bgpu 0 has[\s\S]{0,200}?\bprocess (\d{2,})\d\d? has [\d.]+ gib[^\n]{0,99}\bprocess \1\d\d? has [\d.]+ gib",
        'call torch.cuda.set_device(int(os.environ["LOCAL_RANK"])) before the model is made (in a function of spawn, '
        'use its first argument), and use no "cuda:0": several ranks, probably of this job, are on GPU 0',
    ),
    of("oom.killed", "process.killed")(
        "colab",
        "see the RAM in Runtime, View resources. Use a runtime with more (High-RAM), or a smaller model or data set",
    ),
    of("oom.killed")(
        "ray",
        "use less RAM per node: fewer workers and actors at once (num_cpus, num_workers), less offloading to the CPU, "
        "or nodes with more RAM. ray memory shows the holders. RAY_memory_usage_threshold=0.98 only raises Ray's limit",
    ),
    of("process.killed")(
        r"potential root causes|actordiederror|rayactorerror|\bactor (?:is dead|died)|\bray::",
        "read the dead worker's own log, /tmp/ray/session_latest/logs/worker-*PID*.err and .out; ray list workers "
        "--detail, and sudo dmesg -T | grep -i -e oom -e segfault on its node",
        title="a Ray worker ended",
    ),
    of("vllm.start", "sglang.start")(
        r"\b(?:assertion|key|attribute|type|notimplemented|index|value)error\b",
        "search the server's issues for the words of the exception above, which the server's own code raised. To find "
        "the cause, try a newer release (or the last that worked), and fewer options at once",
    ),
    of("dist.tcp")(
        lambda facts: "ipv6" in facts.names and "tcp" not in facts.names,
        "ignore it; the first error below or on another rank is the cause",
        title="a harmless warning: this machine has no IPv6",
    ),
    of("vllm.start", "quant.extension", "torch.no_acc", "torch.cpu_only")(
        lambda facts: "vllm" in facts.names and "windows" in facts.platforms,
        "run it inside WSL, or in its container with Docker's WSL 2 engine. A fork for Windows has its own wheels",
        title="vLLM has no release for Windows",
    ),
    of("cuda.ptx")(
        r"ptx jit compilation failed|(?:error_|error)invalid_?ptx",
        "build the program for this GPU (compute_cap of nvidia-smi; gpu-burn: make COMPUTE=8.6), and update the driver",
        title="the driver could not compile a kernel's PTX",
        certainty="strong",
    ),
    of("cuda.ptx")(
        lambda facts: not facts.torch and not facts.packages and "triton" not in facts.names,
        "update the driver, or use the program's build for a CUDA not newer than nvidia-smi shows",
    ),
    of("numerics.nan")(
        lambda facts: (
            facts.holds(r"skipping step")
            and not facts.holds(r"\bnan\b|scale:? (?:to )?(?:1(?:\.0)?|0\.\d*|[\d.]+e-\d+)(?![\d.])|at minimum")
        ),
        "ignore it while it is rare: float16 skips such steps. If all are skipped, use bfloat16 or a lower rate",
        title="the loss scaler skipped a step while it searches its scale",
        certainty="hint",
    ),
    of("cuda.illegal_access", "cuda.misaligned")("", certainty="strong"),
)


def advise(text: Condition, facts: Facts) -> tuple[Condition, bool]:
    """Return the text with the title, meaning and fix that suit the facts, and whether the facts chose its fix."""
    for row in ADVICE:
        if not row.becomes and row.holds(text.id, facts):
            step = row.then if isinstance(row.then, str) else row.then(facts)
            title, meaning = row.title or text.title, row.meaning or text.meaning
            # A title with an assumption, or with a cause of a symptom, is only a hint.
            is_hint = text.symptom or re.search(r"usually|probably|\(or ", row.title)
            sure = row.certainty or ("hint" if is_hint else text.certainty)
            symptom = text.symptom and not row.title
            new = replace(text, title=title, meaning=meaning, fix=step or text.fix, certainty=sure, symptom=symptom)
            return new, bool(step)
    return text, False


def proven(name: str, facts: Facts) -> str:
    """Return the id of the text that the facts prove instead of the text `name`, or an empty string."""
    return next((row.becomes for row in ADVICE if row.becomes and row.holds(name, facts)), "")
