"""What a paste states about itself, and the answers that depend on it."""

from __future__ import annotations

import pytest
from pasted import first

from gpucheck.explain.facts import Facts, read

NO_CODE = "RuntimeError: CUDA error: no kernel image is available for execution on the device\n"
WARNING = (
    "UserWarning: Found GPU0 NVIDIA GB10 which is of cuda capability 12.1.\nMinimum and Maximum cuda capability "
    "supported by this version of PyTorch is\n    (8.0) - ({})\n"
)


def facts(pasted: str) -> Facts:
    return read(pasted, pasted.lower())


@pytest.mark.parametrize(
    ("pasted", "version", "build"),
    [
        ("torch: 2.11.0+cpu", "2.11.0", "cpu"),
        ("Ultralytics 8.3.40 Python-3.11.9 torch-2.6.0+cpu", "2.6.0", "cpu"),
        ("PyTorch version: 2.3.0\nCUDA used to build PyTorch: None\nROCM used to build PyTorch: N/A", "2.3.0", "cpu"),
        ("PyTorch version: 2.5.1\nCUDA used to build PyTorch: None\nROCM used to build PyTorch: 6.2", "2.5.1", ""),
        ("PyTorch version: 2.4.0\nCUDA used to build PyTorch: 12.1", "2.4.0", "cu121"),
        ("[pip3] torch==2.7.1\n[pip3] torch==2.7.1+cu128", "2.7.1", "cu128"),
        ("run pip install torch==2.13.0 --index-url X", "", ""),
        ("torchvision==0.20.1+cu124", "", ""),
    ],
)
def test_torch_and_its_build(pasted: str, version: str, build: str) -> None:
    read = facts(pasted)
    assert (read.torch, read.build) == (version, build)


@pytest.mark.parametrize(
    ("name", "capabilities"),
    [
        ("NVIDIA GeForce RTX 5060 Ti", ("12.0",)),
        ("Quadro RTX 5000", ("7.5",)),
        ("NVIDIA RTX PRO 6000 Blackwell", ("12.0",)),
        ("NVIDIA GB10", ("12.1",)),
        ("NVIDIA H100 80GB HBM3", ("9.0",)),
        ("NVIDIA GeForce GTX 1080 Ti", ("6.1",)),
        ("AMD Radeon RX 7900", ()),
    ],
)
def test_a_gpu_by_its_name(name: str, capabilities: tuple[str, ...]) -> None:
    assert facts(f"GPU 0: {name}").capabilities == capabilities


def test_what_else_is_stated() -> None:
    read = facts(
        '[rank1]: File "D:\\proj\\gsplat\\gsplat\\strategy\\default.py", line 3, in f\n'
        '[rank1]: File "/x/site-packages/torch/nn/modules/module.py", line 3, in f\nGPU 0: NVIDIA GeForce RTX 4090\n'
        "Driver Version: 550.54  CUDA Version: 12.4\nray::f() (pid=12)\nValueError: a\nRuntimeError: b"
    )
    assert read.capabilities == ("8.9",)
    assert (read.packages, read.extension) == (("gsplat", "torch"), "gsplat")
    assert read.driver_cuda == "12.4"
    assert read.names == {"ray", "kernels", "nvidia", "pytorch"}


@pytest.mark.parametrize(
    ("pasted", "vendor"),
    [
        ("GPU: AMD Radeon RX 7900 XTX", "amd"),
        ("AMD Ryzen 7 7840HS w/ Radeon 780M Graphics", ""),
        ("AMD Radeon RX 6600\nNVIDIA GeForce RTX 3060", ""),
        ("Intel(R) Iris(R) Xe Graphics", "intel"),
        ("Intel(R) Xeon(R) Gold 6338\nDriver Version: 550.54.15", "nvidia"),
        ("torch 2.6.0+rocm6.2 on gfx1100", "amd"),
    ],
)
def test_the_vendor_of_the_gpus(pasted: str, vendor: str) -> None:
    assert facts(pasted).vendor == vendor


@pytest.mark.parametrize(
    ("pasted", "has_code"),
    [
        ("GPU: NVIDIA GeForce RTX 5090\ntorch 2.7.1+cu128", True),
        ("GPU: NVIDIA GeForce RTX 5090\ntorch 2.7.1+cu126", False),
        ("GPU: NVIDIA GeForce RTX 5090\ntorch 2.6.0+cu124", False),
        ("GPU: NVIDIA GeForce RTX 3090\nPyTorch: 1.10.0+cu102", False),
        ("GPU: Tesla K80, compute capability 3.7\ntorch 2.0.1+cu118", None),
        (
            "GPU 0: TITAN RTX\n - NVCC architecture flags: -gencode;arch=compute_70,code=sm_70;-gencode;"
            "arch=compute_75,code=sm_75",
            True,
        ),
        ("torch 2.7.1+cu128", None),
        (WARNING.format("12.0"), True),
        ("cuda capability 12.1\nget_arch_list(): ['sm_90', 'sm_120a']", False),
        ("cuda capability 12.1\nget_arch_list(): ['sm_90', 'sm_120f']", True),
        ("cuda capability 12.1\nget_arch_list(): ['sm_90', 'compute_120']", True),
        ("cuda capability 12.0\nget_arch_list(): ['sm_37', 'sm_90', 'compute_37']", None),
        ("cuda capability 8.7\nget_arch_list(): ['sm_80', 'sm_86']", False),
        ("cuda capability 11.0\nget_arch_list(): ['sm_101']", True),
    ],
)
def test_whether_torch_has_code_for_the_gpu(pasted: str, has_code: bool | None) -> None:
    assert facts(pasted).has_code is has_code


@pytest.mark.parametrize(
    ("pasted", "id", "words"),
    [
        (
            "torch: 2.11.0+cpu\nRuntimeError: Failed to infer device type",
            "torch.cpu_only",
            "pip install --force-reinstall torch==2.11.0",
        ),
        (
            "ray.exceptions.RayTaskError(RuntimeError): ray::f() (pid=1)\nRuntimeError: No CUDA GPUs are available",
            "cuinit.100",
            "@ray.remote(num_gpus=1)",
        ),
        (NO_CODE + "NVIDIA GeForce RTX 5090\nPyTorch:2.7.1+cu128", "cuda.no_kernel", "TORCH_CUDA_ARCH_LIST=12.0"),
        (
            NO_CODE + "NVIDIA GeForce RTX 5090\nPyTorch:2.7.1+cu126",
            "cuda.no_kernel",
            "torch==2.7.1 torchvision --index-url",
        ),
        (WARNING.format("12.0"), "cuda.capability", "ignore the warning"),
        (
            WARNING.format("9.0"),
            "cuda.capability",
            "torch torchvision --index-url https://download.pytorch.org/whl/cu13",
        ),
        (
            'File "F:\\app\\torch\\_inductor\\cpp_builder.py", line 139, in f\nRuntimeError: '
            "Compiler: cl is not found.",
            "compile.compiler",
            "vcvarsall.bat",
        ),
        (
            "RuntimeError: Caught RuntimeError in pin memory thread for device 0.\nRuntimeError: CUDA error: out of "
            "memory\nLinux box 5.15.167.4-microsoft-standard-WSL2",
            "oom.host",
            "DataLoader(pin_memory=False)",
        ),
        ("RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be", "oom.cuda", "pin less host memory"),
        (
            "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
            "compile.ptxas",
            "export TRITON_PTXAS_PATH=/usr/local/cuda-13.0/bin/ptxas",
        ),
        (
            "PyTorch version: 2.3.0\nCUDA used to build PyTorch: None\nROCM used to build PyTorch: N/A\nPython "
            "platform: Linux-5.10.192-tegra\nIs CUDA available: False",
            "torch.cpu_only",
            "NVIDIA's torch wheel for your JetPack",
        ),
        (
            "Found GPU0 NVIDIA GeForce RTX 5090 which is of compute capability (CC) 12.0.\n- 9.0 which supports "
            "hardware CC >=9.0,<10.0\nYour installed torch==2.13.0+cpu does not include kernels for this GPU.\n  For "
            "CUDA 12.9 use pip install torch==2.13.0 --index-url https://download.pytorch.org/whl/cu129\n",
            "cuda.capability",
            "pip install --force-reinstall torch==2.13.0 torchvision --index-url https://download.pytorch.org/whl/cu130",
        ),
    ],
)
def test_an_answer_by_the_facts(pasted: str, id: str, words: str) -> None:
    answer = first(pasted)
    assert answer.id == id
    assert words in answer.then


# The id, words of the step, and the paste, in which // ends a line.
ADVISED = """
oom.cuda|0.95|TVMError: Insufficient GPU memory error: The available single GPU memory is 20584.716 MB//mlc_llm
oom.cuda|map_location="cpu"|state = torch.load(path)//torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GB
process.killed|low_cpu_mem_usage|torch//Loading checkpoint shards:  33%//Killed
autograd.inplace|opt_D|cyclegan//variables needed for gradient computation has been modified by an inplace operation
cublas.invalid|unset LD|torch//CUDA error: CUBLAS_STATUS_INVALID_VALUE when calling `cublasGemmEx( handle, opa
cuda.device_assert|num_classes|F.cross_entropy(logits, y)//RuntimeError: CUDA error: device-side assert triggered
assert.label|classes|cuda runtime error (710) : device-side assert triggered at /THCUNN/ClassNLLCriterion.cu:115
tensor.type_mismatch|every|from_pretrained("v")//pipeline//Input type (Half) and bias type (float) should be the same
torch.no_accelerator|cu126|no supported Torch accelerator was discovered; using CPU//0 = NVIDIA GeForce GTX 1070
nvcc.missing|MPS|/private/var/folders/a/setup.py:77: UserWarning: mamba_ssm was requested, but nvcc was not found.
cuinit.100|dpkg -l|inside WSL2 torch//RuntimeError: No CUDA GPUs are available
oom.mps|=0.0|I want PYTORCH_MPS_HIGH_WATERMARK_RATIO=0.0//MPS backend out of memory (MPS allocated: 6, max allowed: 9
power.loss|-pl|Training crashes my computer: black screen, then a restart. RTX 3080
cuda.capability|cu130|It does not work on my RTX 5090
cuinit.100|--gpus all|docker compose//RuntimeError: No CUDA GPUs are available//NVIDIA-SMI 580.8 Driver Version: 580.8
build.isolation|activate|python setup.py egg_info did not run.//ModuleNotFoundError: No module named 'torch'
dist.ready_twice|=False|I use find_unused_parameters=True//Expected to mark a variable ready only once
cuda.capability|tf2-py3|TensorFlow was not built with CUDA kernel binaries compatible with compute capability 12.0a
cuda.handle|tensorflow:25|GeForce RTX 5070 tensorflow//cuLaunchKernel failed with 'CUDA_ERROR_INVALID_HANDLE'
cuinit.999|that moment|epoch 13/70//in _maybe_opt_step//RuntimeError: CUDA error: unknown error
loader.exited|--shm-size=8g|docker run torch//RuntimeError: DataLoader worker (pid(s) 25) exited unexpectedly
loader.exited|--ipc=host|torch//RuntimeError: One or more background workers are no longer alive. Exiting.
cuda.illegal_access|nvidia-nccl-cu12|2x RTX 5090//enqueue.cc:1556 NCCL WARN Cuda failure 700 'an illegal memory access
nccl.timeout|NODE_RANK|torch hangs right at `initializing ddp ...` with --gpus 0,1
nccl.unhandled_system|172.17|NCCL WARN socketStartConnect: Connect to 172.17.0.2<35363> failed : Connection refused
dist.tcp|GLOO_SOCKET_IFNAME|[E314 ProcessGroupGloo.cpp:143] Gloo connectFullMesh failed with [pair.cc:144] no error
dist.rendezvous|getent|[c10d] The IPv6 network addresses of (node01, 29500) cannot be retrieved (gai error: -2
dist.port|--ntasks-per-node=1|srun torchrun a.py//[c10d] The server socket has failed to listen on any network address
dist.child|setsid|torch.distributed.elastic.multiprocessing.api.SignalException: Process 12345 got signal: 1
cuda.peer|NCCL_P2P_DISABLE|torch//transport/p2p.cc:237 NCCL WARN Cuda failure 'invalid argument'
cuda.argument|NCCL_CUMEM_ENABLE=0|ncclUnhandledCudaError//NCCL WARN Cuda failure 1 'invalid argument'
numerics.nan|bf16=True|Exception: Current loss scale already at minimum - cannot decrease scale anymore. Exiting run.
numerics.nan|clamp|RuntimeError: Function 'MulBackward0' returned nan values in its 0th output.
numerics.nan|warm-up|torch//to satisfy the constraint Real(), but found invalid values: tensor([[nan
tensor.not_implemented|bf16=True|"_amp_foreach_non_finite_check_and_unscale_cuda" not implemented for 'BFloat16'
tensor.dtype|x = x * y|RuntimeError: result type Float can't be cast to the desired output type long int
tensor.device_mismatch|{"": 0}|peft/tensors on the same device, but got W on cuda:0, different from other on cuda:1
tensor.device_mismatch|torchrun|arguments are located on different GPUs at /w/THCTensorMathBlas.cu:236
oom.cuda|.detach().cpu()|GPU memory keeps increasing every step until CUDA out of memory
compile.backend|triton==VERSION|LoweringException: type object 'CompiledKernel' has no attribute 'launch_enter_hook'
compile.backend|float8|CompilationError: at 10:11: def triton_poi//TypeError('unexpected type fp8e5 and fp8e5')
cublas.failed|cu111|RTX 3080//cublas runtime error : the GPU program failed to execute at /THCBlas.cu:331
oom.cuda|set_device(int(os.environ["LOCAL_RANK"]))|[rank1]: CUDA out of memory. GPU 0 has 2 GiB. Process 812 has 1 GiB
oom.cuda|LOCAL_RANK|-- Process 1 terminated//CUDA out of memory. GPU 0 has 2 GiB. Process 8 has 1
oom.cuda|LOCAL_RANK|CUDA out of memory. GPU 0 has 2 GiB. Process 16746 has 1 GiB memory. Process 16747 has 1 GiB memory
oom.cuda|--processes|[rank0]: CUDA out of memory. GPU 0 has 2 GiB. Process 812 has 1 GiB
oom.cuda|--tensor-parallel-size|load_model vllm/v1/w//[rank1]: CUDA out of memory. GPU 0 has 2 GiB. Process 8 has 1
oom.cuda|map_location|in _cuda_deserialize//CUDA out of memory. Tried to allocate 20.00 MiB (GPU 0; 8 GiB total capacity
oom.vllm|--max-running-requests|RuntimeError: alloc_req_slots runs out of memory.
oom.other|it is only slower|ggml_cuda_host_malloc: failed to allocate 1024.00 MiB of pinned memory: out of memory
cudnn.failed|FLAGS_allocator|CUDNN error(4), CUDNN_STATUS_INTERNAL_ERROR. (at /paddle/paddle/fluid/context.h:4)
cublas.failed|pip install|RTX 3090, cudatoolkit=10.2, torch 1.8.0//RuntimeError: CUBLAS_STATUS_EXECUTION_FAILED
tensor.placed|pip install -U|in from_pretrained//in dispatch_model//`.to` is not supported for `4-bit` models
tensor.device_mismatch|torchrun|but found at least two devices, cuda:1 and cuda:0!//model = nn.DataParallel(model)
tensor.device_mismatch|x.device|but found at least two devices, cuda:1 and cuda:0!//DistributedDataParallel(model)
tensor.device_mismatch|model.device|but found at least two devices, cuda:1 and cuda:0!//device_map='auto'
tensor.device_mismatch|torchrun|replica 1//to have the same device as tensor for argument; but device 1 does not equal 0
tensor.dtype|from_numpy|RuntimeError: mat1 and mat2 must have the same dtype, but got Double and Float
tensor.dtype|before FSDP|ValueError: Must flatten tensors with uniform dtype but got torch.bfloat16 and torch.float32
tensor.load|for CUDA|Driver Version: 535.1//0MiB/9MiB//dont know how to restore data location of is_available() is False
tensor.load|num_gpus=1|import ray//Attempting to deserialize object on a CUDA device but torch.cuda
nccl.timeout|ddp_timeout|Map (num_proc=16): 43%//Watchdog caught collective operation timeout: Work(SeqNum=1,
nccl.infiniband|the rank's first error|NCCL WARN NET/IB : Got completion from peer 10.0.0.2<4> with status=11 len=0
dist.world_size|another quantisation|Weight size = 7392 is not divisible by weight quantization block_k = 128
dist.mismatch|same collectives|RuntimeError: Detected mismatch between collectives on ranks. Rank 0 is running
cuda.ordinal|LOCAL_RANK|torchrun --nnodes=2 train.py//RuntimeError: CUDA error: invalid device ordinal
cuda.fork|restart the notebook|RuntimeError: Lightning can't create new processes if CUDA is already initialized.
cuda.capture|capturable=True|AssertionError: Attempting CUDA graph capture of step() but capturable is False.
torch.internal|--enforce-eager|RuntimeError: captures_underway.empty() INTERNAL ASSERT FAILED at "../c10/x.cpp":3085
cuda.handle|LOCAL_RANK|dist.barrier()//RuntimeError: CUDA error: invalid resource handle
cuda.initialization|--gpus all|Last error://Cuda failure 'initialization error'
cuda.argument|pip uninstall xformers|CUDA error (xformers/third_party/flash-attention/hopper/a.h:180): invalid argument
cuda.illegal_access|2³¹|CUDA error: an illegal memory access was encountered//numel exceeds the int32 range
cuda.no_kernel|Vulkan|LM Studio//CUDA error: no kernel image is available for execution on the device
hip.hang|power-cycle|amdgpu: [Hardware Error]: uncorrectable hardware errors//HW Exception by GPU node-2
attention.kernel|-ctk f16|Unsupported KV type combination for head_size 128. Compile with GGML_CUDA_FA_ALL_QUANTS
shm.open|max_map_count|RuntimeError: unable to mmap 96 bytes from file </torch_2341_12>: Cannot allocate memory (12)
shm.bus|faulthandler|DataLoader worker is killed by signal: Bus error. I use --shm-size=64g
xpu.none|libze1|ImportError: libze_loader.so.1: cannot open shared object file: No such file or directory torch/xpu
bitsandbytes.setup|unset BNB|BNB_CUDA_VERSION=125 found//bitsandbytes: Configured CUDA binary not found
torch.no_accelerator|device.type|ValueError: Expected a cuda device, but got: cpu
torch.no_accelerator|"auto"|`XLAAccelerator` can not run on your system since the accelerator is not available.
vllm.start|VLLM_HOST_IP|ValueError: Current node has no GPU available. vLLM engine cannot start without GPU.
ray.resources|ray status|GetTimeoutError: Placement group creation timed out: no node has {'GPU': 8.0}
kubernetes.plugin|restart k3s|k3s: Incompatible strategy detected auto. If this is a GPU node, did you configure
kernel.nvrm|0.7|NVRM: nvAssertOkFailedNoLog: Assertion failed: Out of memory [NV_ERR_NO_MEMORY] returned from _memdesc
nvml.not_loaded|install dkms|sudo: dkms: command not found//NVIDIA-SMI couldn't communicate with the NVIDIA driver
container.cli|docker context use default|nvidia-container-cli: load library failed: libnvidia-ml.so.1//works with sudo
container.cli|docker context use default|desktop-linux//nvidia-container-cli: initialization error: libnvidia-ml.so.1
container.cli|install the driver|nvidia-container-cli: initialization error: libnvidia-ml.so.1//sudo: the same
numerics.nan|--no-half|NansException: A tensor with all NaNs was produced in Unet. Try --no-half
numerics.nan|--fp32-vae|ComfyUI//NansException: A tensor with all NaNs was produced in VAE
numerics.nan|learning rate|Epoch 3: loss=nan, lr=0.1
import.nms|torchvision==0.15.2 --index-url|torch: 2.0.1+cu118//Could not run 'torchvision::nms' with arguments
import.nms|torchvision==0.15.1 torchaudio==2.0.1|torchaudio//torch 2.0.0+cu117//operator torchvision::nms does not exist
import.nms|0.8.1+cuXYZ|torch version: 1.7.0//Could not run 'torchvision::nms' with arguments from the 'CUDA' backend
cuinit.too_old|cudatoolkit=10.1|The NVIDIA driver on your system is too old (found version 10010).
cuinit.too_old|torchvision=0.8.2 cudatoolkit=9.2|The NVIDIA driver on your system is too old (found version 9020).
cuinit.too_old|whl/cu118|The NVIDIA driver on your system is too old (found version 11040).
torch.cpu_only|cudatoolkit=10.0|CUDA Version: 10.0//AssertionError: Torch not compiled with CUDA enabled
torch.cpu_only|pytorch-gpu|_pytorch_select 0.1 cpu_0//You requested GPUs: [0]//But your machine only has: []
torch.cpu_only|pytorch-gpu|cpuonly 2.0 0 pytorch//AssertionError: Torch not compiled with CUDA enabled
torch.cpu_only|torch==2.2.2|YOLOv8 torch-2.2.2+cpu//File "x/predictor.py", line 2, in f//    select_device(
torch.cpu_only|cu117, cu116|YOLOv5 v7.0-1 Python-3.10.4 torch-1.13.1+cpu//why does it not use the GPU?
torch.no_accelerator|for the JetPack|torch on a Jetson Nano (JetPack 4.4), cuda.is_available() returns false
tensor.device_mismatch|lm_head|generation/utils.py//but found at least two devices, cuda:1 and cuda:0!
tensor.type_mismatch|model.to|Input type (torch.cuda.HalfTensor) and weight type (torch.HalfTensor) should be the same
tensor.meta|on one GPU|I use device_map=auto//NotImplementedError: Cannot copy out of meta tensor; no data!
cudnn.failed|1.8.1+cu111|GPU A5000, torch - 1.1//cuDNN error: CUDNN_STATUS_EXECUTION_FAILED
cublas.failed|1.8.1+cu111|NVIDIA A100, torch==1.5.1//CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling f
oom.cuda|smaller batch|CUDA out of memory. Tried to allocate 4 GiB (4 GiB already allocated; 1 GiB free; 3.7 GiB cached)
oom.cuda|torch.no_grad()|THCudaCheck FAIL file=b.cu line=58 error=2 : out of memory//a jump of memory in validation
oom.vllm|--max-batch-total-tokens|Not enough memory to handle 16000 total tokens with 2 prefill tokens.
oom.mps|environment|How to use HIGH_WATERMARK_RATIO?//MPS backend out of memory (MPS allocated: 2.44 GB
dist.accelerate|NCCL_IB_DISABLE=1|RTX 4000 series doesn't support faster communication. Please set NCCL_IB_DISABLE=1
dist.port|sets the port itself|I changed MASTER_PORT, the same error//RuntimeError: Address already in use
cuda.ordinal|--nproc_per_node=2|CUDA_VISIBLE_DEVICES=1,2 torchrun --nproc_per_node=4 a.py//invalid device ordinal
cuda.ordinal|--nproc_per_node=1|CUDA_VISIBLE_DEVICES=0 accelerate launch --num_processes 4//invalid device ordinal
cuda.ordinal|--nproc_per_node=N|torch.cuda.set_device(args.local_rank)//RuntimeError: CUDA error: invalid device ordinal
cuda.illegal_access|CUDAGuard|it fails on any gpu except 0//CUDA error: an illegal memory access was encountered
cuda.illegal_access|--main-gpu|ComfyUI works//ggml-cuda.cu:3//CUDA error: an illegal memory access was encountered
cuda.no_kernel|"120;86", with|ggml-cuda.cu:3 CUDA error: no kernel image is available on RTX 5090 and RTX 3090
kubernetes.plugin|--runtime=crio|CRI-O//Incompatible platform detected//If this is a GPU node, did you configure
kubernetes.plugin|--runtime=docker|nvidia-docker2//Incompatible platform detected//If this is a GPU node, did you set
llamacpp.cpu_build|DGGML_CUDA=on|MAKE_ARGS=-DGGML_CUBLAS=on//llama-cpp-python still shows BLAS=0 on my GPU
llamacpp.cpu_build|whl/cu124|from llama_cpp import Llama//n_gpu_layers=20//why does it not use gpu?
compile.missing|"triton-windows<3.2" for torch 2.4|WindowsPath, torch 2.4.1//Cannot find a working triton installation.
torch.no_accelerator|whl/cu1|on Windows 11, RTX 4060//>>> torch.cuda.is_available()//False//torch version: 2.6.0
torch.no_accelerator|--nv|$ singularity exec a.sif python -c "import torch; print(torch.cuda.is_available())"//False
torch.no_accelerator|nvidia-smi|GPU usage stays at 0%, my training only uses the cpu. How do I make it run on the gpu?
torch.cpu_only|held.txt|pip install x replaces my torch 2.8 cu128 with a cpu version
cuinit.no_driver|--nv|apptainer exec img.sif python a.py//RuntimeError: Found no NVIDIA driver on your system.
nvml.no_library|--gpus all|docker run -it nvidia/cuda nvidia-smi//exec: "nvidia-smi": executable file not found in $PATH
llamacpp.cpu|--gpus all|docker run -d --name ollama ollama/ollama//msg="no compatible GPUs were discovered"
llamacpp.cpu|modprobe nvidia_uvm|my pc goes to sleep//level=INFO msg="no compatible GPUs were discovered"
llamacpp.cpu|ollama-cuda|msg="Dynamic LLM libraries" runners="[cpu cpu_avx cpu_avx2]"
llamacpp.cpu_build|DGGML_CUDA=on|I installed llama-cpp-python, n_gpu_layers=-1, and it still runs on the cpu only
kernel.build|a newer driver|Bad return status for module build on kernel: 6.11// /var/lib/dkms/nvidia/535.183/make.log
kernel.build|linux-headers-$|Your kernel headers for kernel 6.8.0-45-generic cannot be found//nvidia-dkms-550
import.libcuda|ln -s|Could not load library libcudnn_ops_infer.so.8. Error: libcuda.so: cannot open shared object file
import.library|libnvrtc…|Could not load library libcudnn_ops.so.8. Error: libnvrtc.so: cannot open shared object
import.dll|import torch before|ImportError: DLL load failed while importing simple_knn_C: The specified module
pip.torch|glibc 2.28|No matching distribution found for torch==2.8//You're on Linux (`manylinux_2_17_x86_64`)
pip.torch|an older Python|No matching distribution found for torch==2.5.1//CPython 3.14//Python ABI tags: `cp39`
pip.torch|torch==2.2.2|No matching distribution found for torch==2.6.0//You're on macOS (`macosx_13_0_x86_64`)
container.cdi|a+rX|sudo podman works//Error: setting up CDI devices: unresolvable CDI devices nvidia.com/gpu=all
nvml.permission|label=disable|podman, getenforce: Enforcing//Failed to initialize NVML: Insufficient Permissions
container.cli|nvidia-modprobe|after every reboot//error executing hook `nvidia-container-toolkit` (exit code: 1)
nvcc.mismatch|--no-build-isolation|uv add x//detected CUDA version (12) mismatches the version that was used to compile
tensorflow.no_gpu|cudatoolkit=11.2|TensorFlow 2.10 on Windows//>>> tf.config.list_physical_devices('GPU')//[]
xpu.none|libze-intel-gpu1|docker run --device /dev/dri x//>>> torch.xpu.device_count()//torch.xpu.device_count() is 0
xpu.lost|OpenVINO|Intel(R) UHD Graphics 770//RuntimeError: UR error
kernel.rm_init|use64bitMMIO|NVRM: GPU 0000:0b:00.0: RmInitAdapter failed! (0x24:0xffff:1211)//VMware Virtual Platform
nvml.no_devices|-open|RTX 5080, nvidia-driver-570//No devices were found
kernel.nouveau|blacklist nouveau|couldn't communicate with the NVIDIA driver//nouveau 2285568 1
nvcc.host_compiler|CUDA 13.3|error: exception specification is incompatible with that of previous function "cospi"
nvcc.host_compiler|14.38|yvals_core.h(902): error STL1002: Unexpected compiler version, expected CUDA 12.4 or newer.
cutlass.arch|a release that lists|This kernel only supports sm120.//cudaErrorLaunchFailure: unspecified launch failure
crash.segfault|HSA_OVERRIDE|Segmentation fault (core dumped)//#0 0x0 in () at /opt/rocm/hip/lib/libamdhip64.so.5
build.extension|pip install -v|ERROR: Failed building wheel for detectron2
build.memory|MAX_JOBS|When I pip install flash-attn my server becomes unresponsive, 64 cores
bus.off|power-cycle|The GPU keeps falling off the bus after 20 minutes of training
kernel.nvrm|nvidia-suspend|PM: pci_pm_suspend(): nv_pmops_suspend+0x0/0x30 [nvidia] returns -5
nvml.not_loaded|linux-cachyos-headers|couldn't communicate with the NVIDIA driver. nvidia-dkms, linux-cachyos
nvml.mismatch|--no-kernel-module|Failed to initialize NVML: Driver/library version mismatch//in an LXC, host 550.127
nvcc.host_compiler|CUDA 11|amxtileintrin.h(42): error: identifier "__builtin_ia32_ldtilecfg" is undefined//nvcc 11.8
cuinit.too_old|update the driver|Driver does not support the required nvenc API version. Required: 12.1
torch.no_accelerator|TORCH_CUDA_ARCH_LIST|cpp_extension.py in _get_cuda_arch_flags//IndexError: list index out of range
hip.none|render|rocBLAS error: Could not initialize Tensile host: No devices found
xpu.none|newest graphics driver|>>> torch.xpu.is_available()//False//Arc A770, Windows 11
kubernetes.insufficient|tolerations|0/3 nodes are available: 3 node(s) had untolerated taint {nvidia.com/gpu: present}.
kubernetes.plugin|nvidia-ctk|$ kubectl get pods -A//nvidia-device-plugin-daemonset-gf4qg 0/1 CrashLoopBackOff 9295
setup.vgpu|ClientConfigToken|License Status                    : Unlicensed (Restricted)
build.windows|x64 Native|nvcc//fatal error C1083: Cannot open include file: 'corecrt.h': No such file or directory
import.extension|from its sources|ImportError: cannot import name '_C' from 'detectron2' (/d2/detectron2/__init__.py)
llamacpp.cpu|unset the variable|msg="user overrode visible devices" ROCR_VISIBLE_DEVICES=0//compute id=cpu library=cpu
llamacpp.cpu|ollama/ollama:rocm|docker run ollama/ollama//msg="no compatible GPUs were discovered"
llamacpp.cpu|lib/ollama|load_tensors: offloaded 0/49 layers to GPU
llamacpp.cpu|KV_CACHE_TYPE|I run ollama: 45%/55% CPU/GPU, and so uses only the CPU
quant.dtype|--dtype half|torch.bfloat16 is not supported for quantization method awq.
quant.dtype|--quantization gptq|The quantization method gptq_marlin is not supported for the current GPU.
quant.dtype|e5m2|type fp8e4nv not supported in this architecture. The supported fp8 dtypes are ('fp8e4b15', 'fp8e5')
quant.dtype|compute_type="int8"|Requested float16 compute type, but the target device or backend do not support it
quant.dtype|CUDA_VISIBLE_DEVICES=N|Minimum capability: 80. Current capability: 75.//I have both GPUs, 2080 Ti and 3090
cublas.not_supported|float16|CUBLAS_STATUS_NOT_SUPPORTED when calling cublasGemmEx(CUDA_R_16BF)
vllm.start|NCCL_P2P|vllm serve m --tensor-parallel-size 2//No available shared memory broadcast block found in 60 s
cuda.not_supported|license|GRID T4-8C//RuntimeError: CUDA error: operation not supported
crash.segfault|paging file|torch//returned non-zero exit status 3221225477
tensor.not_implemented|diffusers|pipe.enable_model_cpu_offload()//"LayerNormKernelImpl" not implemented for 'Half'
oom.other|kSameAsRequested|onnxruntime: bfc_arena.cc:376 Available memory of 10 is smaller than requested bytes of 33
import.library|onnxruntime-gpu[cuda|CUDA_PATH is set but CUDA wasnt able to be loaded. onnxruntime_providers_cuda
cupy.setup|pip uninstall|import cupy//ImportError: libnvrtc.so.11.2: cannot open shared object file
import.symbol|data.pyg.org|OSError: torch_scatter/_version_cuda.so: undefined symbol: _ZN5torch3jit17parseSchemaOrName
import.symbol|LLAMA_CPP_LIB|libllama.so: undefined symbol: ggml_backend_cuda_reg
package.cpu_build|opencv_contrib|cv2.error: DNN module was not built with CUDA backend; switching to CPU
package.cpu_build|data.dgl.ai|dgl._ffi.base.DGLError: Check failed: allow_missing: Device API cuda is not enabled.
nvcc.old|12.8|nvcc fatal : Unknown option '-static-global-template-stub=false'
cuda.no_kernel|AdamW|no kernel image is available for execution on the device at line 167 in bitsandbytes/ops.cu
cuda.no_kernel|TCNN_CUDA|Could not find compatible tinycudann extension for compute capability 70.
cuda.no_kernel|RTX 50|onnxruntime.capi: CUDA error cudaErrorNoKernelImageForDevice:no kernel image is available
quant.extension|use_kernels|does not have one of build variants: torch28-cxx11-cu128-x86_64-linux
tensor.load|for CUDA|RTX 3080//Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False
cuda.capability|the warning|GPU0 [Radeon RX 580] which is of cuda capability 3.0.//PyTorch no longer supports this GPU
oom.cuda|inference_mode() around|fails only when validate() is called: RuntimeError: CUDA error: out of memory
oom.cuda|--data_device|rasterize_gaussians//CUDA out of memory. Tried to allocate 35 GiB (GPU 0; 9 GiB total capacity)
tensor.dtype|dtype=torch.float16|peft/tuners/lora.py//RuntimeError: expected scalar type Float but found Half
torch.cpu_only|replace .cuda()|I don't have a GPU//AssertionError: Torch not compiled with CUDA enabled
torch.cpu_only|cu116, cu113, cu102|torch==1.12.1//module 'torch._C' has no attribute '_cuda_setDevice'
import.nms|torch.__file__|Successfully installed torch-2.8.0//2.6.0 True//operator torchvision::nms does not exist
package.cpu_build|dgl.ai/wheels/cu117/|torch==1.11.0+cu115//dgl.DGLError: Device API cuda is not enabled.
import.symbol|mmcv-full==|torch 1.4.0, mmcv=1.1.5//mmcv/_ext.so: undefined symbol: _ZN3c106Symbol14fromQualString
dist.unused|one loss|set find_unused_parameters=True//Expected to have finished reduction in the prior iteration before
import.library|does not begin with 10.1|ImportError: libcudart.so.10.1: cannot open shared object file
import.symbol|foo==VERSION|torch_cluster works//site-packages/foo/_core.so: undefined symbol: _ZNK3c106SymInt22maybe
cuda.held|fuser -v|torch got out of memory error. No processes seem to be using the 12799MiB / 16280MiB
hip.none|Docker Desktop's virtual|error while adding custom device "/dev/kfd": no such file or directory.
import.library|ctranslate2==4.4.0|torch==2.0.0+cu118//whisperx//Unable to load any of {libcudnn_ops.so.9.1.0}
torch.cpu_only|torch==1.13.1|it is returning False//CUDA Version: 11.6//pytorch 1.13.1+cpu
oom.cuda|VAE Decode|Error occurred when executing CogVideoDecode://Allocation on device//ComfyUI/execution.py
tensor.type_mismatch|a new|Input type (torch.FloatTensor) and weight type (torch.cuda.FloatTensor) should be the same
cuinit.100|write "0"|os.environ["CUDA_VISIBLE_DEVICES"]='1'//RuntimeError: No CUDA GPUs are available
amp.bfloat16|vllm_dtype|Bfloat16 is only supported on GPUs with compute capability of at least 8.0: dtype flag
torch.no_accelerator|--use-zluda|webui-user.bat, Radeon//Torch is not able to use GPU; add --skip-torch-cuda-test
attention.package|triton-windows|ModuleNotFoundError: No module named 'sageattention'
compile.compiler|vcvarsall|torch/_inductor/cpp_builder.py//InductorError: FileNotFoundError: [WinError 2]
tensorrt.engine|delete the engine|Error Code 1: Serialization (Version tag does not match)
physx.failed|num_envs|[Error] PhysX error: GPU solveContactParallel fail to launch kernel!!
graphics.context|MUJOCO_GL|AttributeError: 'NoneType' object has no attribute 'eglQueryString'
xpu.none|OpenCL|RuntimeError: Device with "GPU" name is not registered in the OpenVINO Runtime
vulkan.lost|NODES_PER_SUBMIT|ggml_vulkan: vk::Queue::submit: ErrorDeviceLost
crash.segfault|os._exit|faster-whisper on CUDA//Process finished with exit code -1073740791 (0xC0000409)
import.library|numba-cuda|NvvmSupportError: libNVVM cannot be found. Do `conda install cudatoolkit`:
graphics.context|vulkaninfo|[gpu.foundation.plugin] vkCreateInstance failed. Vulkan 1.1 is not available
import.extension|from its sources|torch: 'NoneType' object has no attribute 'fully_fused_projection_fwd'
cuda.no_kernel|turing-N|Runtime compute cap 70 is not compatible with compile time compute cap 80
import.symbol|data.dgl.ai|FileNotFoundError: Cannot find DGL C++ graphbolt library at libgraphbolt_pytorch_2.5.1.so
crash.segfault|this GPU|Loading best.engine for TensorRT inference...//Segmentation fault (core dumped)
cuda.ptx|nvidia-smi|UserWarning: CUDA Toolkit is newer than CUDA driver. Numba features will not work
shm.open|--shm-size|torch: Unable to initialize shared memory key '/gpt2_0_CPU_0' to requested size
attention.kernel|-ctk f16|ggml: tensor (cache_k_l0) in a buffer (Vulkan0) that cannot run the operation (CPY)
cupy.setup|cupy.zeros|ImportError: CuPy is not correctly installed.//original error: DLL load failed
oom.cuda|smaller batch|InternalError: Failed copying input tensor to /job:localhost: Dst tensor is not initialized.
quant.extension|the wheel|WARNING: CUDA kernels for auto_gptq are not installed, this will result in very slow inference
harmless.message|ignore the message|UserWarning: expandable_segments not supported on this platform
torch.no_accelerator|whisper.cpp|whisper.py:126: UserWarning: FP16 is not supported on CPU; using FP32 instead
numerics.nan|sdxl-vae-fp16-fix|GeForce GTX 1660 Ti, torch//train/box_loss: loss is nan
cudnn.version|dpkg -S|torch//cuDNN version incompatibility: found runtime version (8, 9, 0): /usr/lib/libcudnn.so.8
nvcc.arch|CUDA_ARCH_FLAG|nvcc fatal   : Value 'native' is not defined for option 'gpu-architecture'
process.killed|low_cpu_mem_usage|Loading checkpoint shards:  33%|3/9//Killed
graphics.context|vulkaninfo|upscayl//vkCreateInstance failed -9
import.library|ctranslate2|faster_whisper//Could not locate cudnn_ops64_9.dll. Please make sure it is in your library
cuinit.too_old|jax[cuda12]|Found CUDA version 12010, but JAX was built against version 12030, which is newer.
pip.torch|conda-forge|PackagesNotFoundError: The following packages are not available//  - pytorch-cuda=12.6
build.extension|['ninja', '-v']|workers... (overridable by MAX_JOBS=N)//1.11.1//g++: error: x.o: No such file or dir
nvcc.old|<cstdint>|rasterizer_impl.h(24): error: namespace "std" has no member "uintptr_t"
cuda.capability|tensorflow:23.03|tensorflow 2.3: RTX 3070 does not support cuda 10.1
llamacpp.cpu|--list-devices|LM Studio does not detect my GPU RTX 4070
llamacpp.cpu|num_ctx|llama3:70b    42 GB    45%/55% CPU/GPU    4 minutes from now
nccl.unhandled_system|ip_local_port_range|only ports 40000-40050 are open//ncclSystemError: System call (e.g. socket)
"""


@pytest.mark.parametrize("row", ADVISED.strip().splitlines())
def test_a_step_by_what_the_paste_shows(row: str) -> None:
    id, words, pasted = row.split("|", 2)
    answer = first(pasted.replace("//", "\n"))
    assert (answer.id, words in answer.then) == (id, True), answer.then


def test_memory_that_the_allocator_did_not_ask_for_is_no_proof_of_a_full_gpu() -> None:
    assert first("RuntimeError: CUDA error: out of memory").certainty == "hint"
    assert first("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB").certainty == "proof"


@pytest.mark.parametrize(
    ("pasted", "id", "words", "without"),
    [
        (
            "GPU: AMD Radeon RX 7900 XTX\nOS: Ubuntu 24.04\nImportError: libcudart.so.12: cannot open shared "
            "object file: No such file or directory",
            "import.library",
            "ROCm",
            "nvidia-|find / -name",
        ),
        (
            "OS: Windows 11\nGPU: Intel(R) Arc(TM) A770 Graphics\ntorch: 2.8.0+cpu\nAssertionError: Torch not "
            "compiled with CUDA enabled",
            "torch.cpu_only",
            "/xpu",
            "/cu1",
        ),
        (
            "OS: Windows 11 Pro, Docker Desktop 4.40\ndocker: Error response from daemon: could not select "
            'device driver "" with capabilities: [[gpu]].',
            "container.no_runtime",
            "WSL",
            "nvidia-ctk|systemctl",
        ),
        (
            "NotImplementedError: No operator found for `memory_efficient_attention_forward` with "
            "inputs:\n     query       : shape=(1, 77, 1, 512) (torch.float32)\n     key         : shape=(1, "
            "77, 1, 512) (torch.float32)\n     attn_bias   : <class 'NoneType'>\n     p           : 0.0\n"
            "`fa2F@v2.5.7` is not supported because:\n    device=cpu (supported: {'cuda'})\n    "
            "dtype=torch.float32 (supported: {torch.float16, torch.bfloat16})\n`cutlassF` is not supported "
            "because:\n    device=cpu (supported: {'cuda'})\n",
            "attention.kernel",
            "cuda",
            "SDPBackend",
        ),
        (
            "NotImplementedError: No operator found for `memory_efficient_attention_forward` with "
            "inputs:\n     query       : shape=(1, 77, 1, 512) (torch.float32)\n     key         : shape=(1, "
            "77, 1, 512) (torch.float32)\n     attn_bias   : <class 'NoneType'>\n     p           : 0.0\n"
            "`decoderF` is not supported because:\n    xFormers wasn't build with CUDA support\n    operator "
            "wasn't built - see `python -m xformers.info` for more info\n`cutlassF` is not supported "
            "because:\n    xFormers wasn't build with CUDA support\n    operator wasn't built - see `python -m "
            "xformers.info` for more info\n",
            "xformers.setup",
            "xformers",
            "SDPBackend",
        ),
        (
            "NotImplementedError: No operator found for `memory_efficient_attention_forward` with "
            "inputs:\n     query       : shape=(1, 77, 1, 512) (torch.float32)\n     key         : shape=(1, "
            "77, 1, 512) (torch.float32)\n     attn_bias   : <class 'NoneType'>\n     p           : 0.0\n"
            "`fa2F@v2.5.7` is not supported because:\n    max(query.shape[-1], value.shape[-1]) > 256\n"
            "`cutlassF` is not supported because:\n    max(query.shape[-1], value.shape[-1]) > 128\n",
            "attention.kernel",
            "head",
            "SDPBackend",
        ),
        (
            "OSError: [WinError 1114] A dynamic link library (DLL) initialization routine failed. Error "
            'loading "C:\\\\Python311\\\\Lib\\\\site-packages\\\\torch\\\\lib\\\\c10.dll" or one of its '
            "dependencies.",
            "import.dll",
            "msvcp140",
            "",
        ),
        (
            "ImportError: DLL load failed while importing flash_attn_2_cuda: 动态链接库(DLL)初始化例程失败。",
            "attention.package",
            "msvcp140",
            "",
        ),
        (
            "ImportError: DLL load failed while importing tensorrt_bindings: The specified module could not be found.",
            "import.dll",
            "",
            "torch",
        ),
        (
            "Training on bare metal, not in docker, num_workers=0, /dev/shm is 256G.\nstep 100\nBus error "
            "(core dumped)\npython train.py CUDA",
            "crash.bus",
            "df -h",
            "--shm-size",
        ),
        (
            "(raylet) A worker died or was killed while executing a task by an unexpected system error. Worker "
            "exit detail: Worker unexpectedly exits with a connection error code 2. End of file. There are "
            "some potential root causes. (1) The process is killed by SIGKILL by OOM killer due to high memory "
            "usage. (2) ray stop --force is called. (3) The worker is crashed unexpectedly due to SIGSEGV or "
            "other unexpected errors.",
            "process.killed",
            "session_latest",
            "",
        ),
        (
            "[W socket.cpp:663] [c10d] The client socket cannot be initialized to connect to [localhost]:29500 "
            "(errno: 97 - Address family not supported by protocol).",
            "dist.tcp",
            "ignore it",
            "",
        ),
        (
            '  File "/x/site-packages/triton/compiler/compiler.py", line 279, in compile\n    next_module = '
            "compile_ir(module, metadata)\nRuntimeError: PassManager::run failed",
            "compile.backend",
            "Triton",
            "",
        ),
        (
            "I run rocm/pytorch docker as a non-root user with --device=/dev/kfd --device=/dev/dri.\nrocminfo "
            "lists gfx1100\n>>> torch.cuda.is_available()\nFalse\ntorch 2.5.1+rocm6.2",
            "hip.none",
            "--group-add",
            "",
        ),
        (
            "With HSA_OVERRIDE_GFX_VERSION=10.3.0 the machine hangs, so I left it out.\nRuntimeError: HIP "
            "error: invalid device function\nGPU gfx1103",
            "hip.arch",
            "rocminfo",
            "HSA_OVERRIDE",
        ),
        (
            "$ PYTORCH_ENABLE_MPS_FALLBACK=1 python t.py\nNotImplementedError: The operator 'aten::_foo' is "
            "not currently implemented for the MPS device.",
            "mps.operation",
            "",
            "PYTORCH_ENABLE_MPS_FALLBACK=1 ",
        ),
        (
            "I already rebooted twice.\nFailed to initialize NVML: Driver/library version mismatch",
            "nvml.mismatch",
            "sudo nvidia-uninstall",
            "rmmod",
        ),
        (
            "I have installed the Visual C++ Redistributable.\nOSError: [WinError 126] The specified module "
            'could not be found. Error loading "C:\\\\x\\\\torch\\\\lib\\\\shm.dll" or one of its dependencies.',
            "import.dll",
            "",
            "edistributable",
        ),
        (
            "OSError: [WinError 126] The specified module could not be found. Error loading "
            '"C:\\\\x\\\\torch\\\\lib\\\\fbgemm.dll" or one of its dependencies.',
            "import.dll",
            "libomp140",
            "edistributable (x64)",
        ),
        (
            "Linux 5.15.148-tegra aarch64, JetPack 6.1\nRuntimeError: operator torchvision::nms does not exist",
            "import.nms",
            "JetPack",
            "PyTorch's",
        ),
        (
            "OS: Windows 11\nIntel(R) Arc(TM) B580\nRuntimeError: Native API failed. Native API returns: 20 "
            "(UR_RESULT_ERROR_DEVICE_LOST)",
            "xpu.lost",
            "Event Viewer",
            "nvlddmkm",
        ),
        (
            "C:\\x\\main.py --directml\nRuntimeError: Could not allocate tensor with 536870912 bytes. There is "
            "not enough GPU video memory available!",
            "oom.cuda",
            "Task Manager",
            "nvidia-smi",
        ),
        (
            "Linux 5.15.167.4-microsoft-standard-WSL2\ntorch.cuda.is_available() True\n/usr/bin/ld: cannot "
            "find -lcuda: No such file or directory\ncollect2: error: ld returned 1 exit status",
            "compile.libcuda",
            "/usr/lib/wsl/lib",
            "NVIDIA's Linux driver",
        ),
        (
            "/home/u/miniconda3/envs/ml/lib/python3.11/site-packages/torch/include/x.h:1:10: fatal error: "
            "cuda.h: No such file or directory",
            "compile.cuda_h",
            "conda install",
            "/usr/local/cuda",
        ),
        (
            '  File "/home/u/bitsandbytes/bitsandbytes/cextension.py", line 85, in <module>\nRuntimeError: '
            "Configured CUDA binary not found at /home/u/bitsandbytes/bitsandbytes/libbitsandbytes_cuda124.so",
            "bitsandbytes.setup",
            "another folder",
            "pip install -U",
        ),
        (
            "Skipping the first 12000 batches\n[rank0]:[E ProcessGroupNCCL.cpp:616] [Rank 0] Watchdog caught "
            "collective operation timeout: WorkNCCL(SeqNum=5, OpType=ALLREDUCE, Timeout(ms)=600000) ran for "
            "600010 milliseconds before timing out.",
            "nccl.timeout",
            "timeout=",
            "",
        ),
        (
            '  File "/x/site-packages/vllm/worker/model_runner.py", line 9, in f\ntorch.OutOfMemoryError: CUDA '
            "out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 79.10 GiB of which 1.10 "
            "GiB is free.",
            "oom.cuda",
            "gpu-memory-utilization",
            "find-batch-size",
        ),
        (
            '  File "/x/site-packages/flashinfer/prefill.py", line 9, in f\nRuntimeError: CUDA error: no '
            "kernel image is available for execution on the device",
            "cuda.no_kernel",
            "flashinfer",
            "wheel for this architecture",
        ),
        (
            "/usr/local/cuda/bin/nvcc -c a.cu\nptxas fatal   : Value 'sm_52' is not defined for option 'gpu-name'",
            "nvcc.arch",
            "CMAKE_CUDA_ARCHITECTURES",
            "riton|newer torch",
        ),
        (
            "Windows 11\nERROR: No matching distribution found for triton==2.1.0",
            "pip.torch",
            "triton-windows",
            "no torch|pytorch.org",
        ),
        (
            "C:\\x\\bitsandbytes\\cuda_setup\\main.py\nCUDA SETUP: libcuda.so not found! Is a driver there?",
            "bitsandbytes.setup",
            "pip install -U bitsandbytes",
            "Device Manager",
        ),
        ("CUDA error: no kernel image is available\n in ggml-cuda.cu:2100", "cuda.no_kernel", "cmake -B", "wheel"),
        (
            "JetPack 6.2\nImportError: libcudss.so.0: cannot open shared object file",
            "import.library",
            "jetpack",
            "wheel",
        ),
        ("MacBook with M1\nthe model ran out of memory", "oom.other", "Activity Monitor", "nvidia-smi"),
        ("Windows 11, gfx1103\nHIP error: invalid device function", "hip.arch", "HIP SDK", "HSA_"),
        ("ComfyUI/main.py\nRuntimeError: MPS backend out of memory", "oom.mps", "smaller image", "batch|sequence"),
        ("Jetson Orin\nRuntimeError: CUDA out of memory", "oom.cuda", "quantized", "find-batch-size|sequence"),
        ("torch/_inductor/x.py\nout of resource: shared memory", "compile.resources", "compiler.disable", "num_stages"),
        ("Could not run 'aten::foo' with arguments from the 'MPS' backend", "mps.operation", "FALLBACK", "reinstall"),
        (
            "docker exec a nvidia-smi\nDriver/library version mismatch",
            "nvml.mismatch",
            "restart the container",
            "rmmod",
        ),
        (
            "$ env LD_DEBUG=libs python t.py\nRuntimeError: cuDNN version incompatibility",
            "cudnn.version",
            "pip install nvidia-cudnn",
            "version()",
        ),
        ("AssertionError: Torch not compiled with XPU enabled", "torch.cpu_only", "/xpu", "without CUDA"),
        ("torch-2.6.0+xpu\nTorch not compiled with CUDA enabled", "torch.cpu_only", 'device="xpu"', "pip install"),
        (
            "site-packages/vllm/x.py\nRuntimeError: CUDART error: invalid argument in cudaIpcGetMemHandle",
            "cuda.argument",
            "custom-all-reduce",
            "LAUNCH_BLOCKING",
        ),
        ("CUSOLVER_STATUS_INTERNAL_ERROR, when calling `cusolverDnCreate(h)`", "cusolver.failed", "full", "isfinite"),
        (
            "cuDNN version incompatibility: your LD_LIBRARY_PATH contains incompatible version of cudnn",
            "cudnn.version",
            "unset LD_LIBRARY_PATH",
            "pip install",
        ),
        ("jax/_src/random.py\nCUDNN_STATUS_NOT_INITIALIZED", "cudnn.not_initialized", "PREALLOCATE", "batch of 1"),
        (
            "jaxlib: Memory usage: 45 bytes free, 46 bytes total\nCUDNN_STATUS_NOT_INITIALIZED",
            "cudnn.not_initialized",
            "jax[cuda12]",
            "PREALLOCATE",
        ),
        ("ggml-cuda.cu:5: CUDA error: invalid resource handle", "cuda.handle", "-ngl 0", "torch.cuda"),
        ("vllm/x.py\nCannot re-initialize CUDA in forked subprocess", "cuda.fork", "METHOD=spawn", "set_start_method"),
        (
            "torch 2.4.0+cu118\nImportError: libcudart.so.12: cannot open shared object file",
            "import.library",
            "another CUDA than torch",
            "find /",
        ),
        (
            "ERROR: Could not find a version that satisfies the requirement torch==2.1.0+cu118",
            "pip.torch",
            "whl/cu118",
            "compare python",
        ),
        (
            "vllm/model_loader/loader.py, load_model\nengine: vllm serve\ntorch.OutOfMemoryError: CUDA out of memory",
            "oom.cuda",
            "--tensor-parallel-size",
            "memory-utilization",
        ),
        ("llama-server -m x.gguf\nCUDA error: out of memory", "oom.cuda", "-ngl N", "find-batch-size"),
        (
            "ComfyUI/custom_nodes/b.py\nRuntimeError: Expected all tensors to be on the same device, but found cuda:0",
            "tensor.device_mismatch",
            "custom node",
            "register_buffer",
        ),
        (
            "C:\\x\nImportError: the package flash_attn seems to be not installed",
            "attention.package",
            "Windows",
            "MAX_JOBS",
        ),
        ("docker run x\ncouldn't communicate with the NVIDIA driver", "nvml.not_loaded", "on the host: sudo", "zzz"),
        ("kubectl logs train\nRuntimeError: No CUDA GPUs are available", "cuinit.100", "nvidia.com/gpu", "--gpus"),
        ("srun python t.py\nRuntimeError: No CUDA GPUs are available", "cuinit.100", "--gres", "--gpus all"),
        ("Jetson Orin\nRuntimeError: No CUDA GPUs are available", "cuinit.100", "--runtime nvidia", "--gpus all"),
        (
            "Windows 11\nRuntimeError: DataLoader worker (pid 1) is killed by signal: Killed.",
            "loader.killed",
            "Task Manager",
            "nvlddmkm",
        ),
        (
            "on WSL2\nRuntimeError: DataLoader worker (pid 1) is killed by signal: Killed.",
            "loader.killed",
            ".wslconfig",
            "Event Viewer",
        ),
        ("tensorflow/core/a.cc:1\nCUDNN_STATUS_NOT_INITIALIZED", "cudnn.not_initialized", "ALLOW_GROWTH", "batch of 1"),
        ("jax/_src/a.cc:1\nCUDA_ERROR_NO_BINARY_FOR_GPU", "cuda.no_kernel", "jax[cuda12]", "torch"),
        (
            "vllm serve x\nCUDA error: an illegal memory access was encountered",
            "cuda.illegal_access",
            "eager",
            "compute-",
        ),
        ("HIP error: no kernel image is available for execution on the device", "hip.arch", "gfx", "Blackwell"),
        ("apiVersion: v1\nNCCL WARN Call to shm_open failed", "nccl.shared_memory", "emptyDir", "docker"),
        ("GPU is lost. nvlddmkm.sys", "nvml.lost", "Event Viewer", "dmesg"),
        (
            "C:\\x\\t.py\nThe module `bitsandbytes` finds no library: CUDA SETUP: libcuda.so not found",
            "bitsandbytes.setup",
            'python -c "import torch',
            "-c '",
        ),
        (
            "\x1b[36mray::Replica.init()\x1b[39m\nRuntimeError: No CUDA GPUs are available",
            "cuinit.100",
            "num_gpus=1",
            "unset",
        ),
        (
            "a.py\nRuntimeError: CUDA error: invalid device function",
            "cuda.no_kernel",
            "package's own code",
            "torch wheel",
        ),
        (
            "[TP0] KV cache pool is full. Retract requests. #retracted_reqs: 1",
            "oom.vllm",
            "requests wait",
            "end other programs",
        ),
        (
            "AssertionError: Error in memory profiling. Initial free memory 8 GiB",
            "oom.vllm",
            "start the server",
            "max-",
        ),
        (
            'vllm serve x\nFile "gpu_worker.py", line 2, in determine_available_memory\ntorch.OutOfMemoryError: CUDA '
            "out of memory. Tried to allocate 2.00 GiB",
            "oom.cuda",
            "--max-num-batched-tokens",
            "gpu-memory-utilization",
        ),
        ("jaxlib.XlaRuntimeError: INTERNAL: cuSolver internal error", "cusolver.failed", "PREALLOCATE", "magma"),
        (
            "(gpu_burn-drv.cpp:243): the provided PTX was compiled with an unsupported toolchain.",
            "cuda.ptx",
            "the program's build",
            "torch",
        ),
        ("(gpu_burn-drv.cpp:238): a PTX JIT compilation failed", "cuda.ptx", "COMPUTE=", "torch"),
        (
            "ImportError: /root/.cache/torch_extensions/py39_cu121/a/a.so: cannot open shared object file",
            "build.extension",
            "rm -r",
            "",
        ),
        (
            "C:\\x\\vllm\\_custom_ops.py\nAttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'",
            "quant.extension",
            "WSL",
            "",
        ),
        (
            "nv-fabricmanager[9]: request to query NVSwitch information from NVSwitch driver failed with error:WARNING "
            "Nothing to do\nnvidia-fabricmanager.service failed",
            "nvswitch.none",
            "disable --now",
            "not ready",
        ),
        (
            "RuntimeError: MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes, max allowed: "
            "3 GB). Tried to allocate 64 bytes on private pool.",
            "oom.mps",
            "gives torch no memory",
            "full|a smaller batch or",
        ),
        (
            "RuntimeError: MPS backend out of memory (MPS allocated: 0 bytes, other allocations: 0 bytes, max allowed: "
            "3 GB). Tried to allocate 8.00 GB on private pool.",
            "oom.mps",
            "memory is full",
            "no memory",
        ),
        (
            "uname: 5.15.1-microsoft-standard-WSL2\nNVIDIA-SMI has failed because it couldn't communicate with the "
            "NVIDIA driver.",
            "nvml.wsl",
            "wsl --update",
            "modprobe|dkms",
        ),
        (
            "NCCL WARN Connect to fe80::1%2<4000> failed : Network is unreachable",
            "nccl.interface",
            "AF_INET",
            "loopback",
        ),
        (
            "nvcc --version\n'sm_120' is not a recognized processor for this target (ignoring processor)\nLLVM ERROR: "
            "Cannot select: intrinsic %llvm.nvvm.shfl.sync.bfly.i32",
            "compile.ptxas",
            "install -U triton",
            "toolkit|TORCH_CUDA_ARCH_LIST",
        ),
        (
            "NCCL WARN Bootstrap Root : rank 3 of 4 ranks has already checked in",
            "dist.world_size",
            "same rank",
            "train_batch_size",
        ),
        ("GeForce GT 710: no kernel image is available for execution", "cuda.no_kernel", 'device="cpu"', "install"),
        ("GPU: RTX 3090, GT 710. no kernel image is available", "cuda.no_kernel", "get_arch_list", "too old"),
        (
            "NVRM: gpuPowerManagementEnter: unload failed at suspend\nNVRM: nvAssertFailedNoLog: Assertion failed: x",
            "kernel.nvrm",
            "NVreg_PreserveVideoMemoryAllocations",
            "",
        ),
        (
            "torch 1.8.0+cu102, GPU: RTX 3090\nRuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED",
            "cudnn.failed",
            "force-reinstall",
            "batch",
        ),
        (
            "with `find_unused_parameters=False`\nRuntimeError: parameters that were not used in producing loss",
            "dist.unused",
            "find_unused_parameters=True",
            "",
        ),
        (
            "import torchvision\ntorch 2.7.1+cu126\nRTX 5090 with CUDA capability sm_120 is not compatible\nThe "
            "current PyTorch install supports CUDA capabilities sm_80 sm_90.",
            "cuda.capability",
            "torch==2.7.1 torchvision --index-url",
            "torchaudio",
        ),
    ],
)
def test_advice_for_what_the_paste_states(pasted: str, id: str, words: str, without: str) -> None:
    answer = first(pasted)
    assert answer.id == id
    assert words in f"{answer.title}: {answer.then}"
    assert not any(word in f"{answer.title}: {answer.then}" for word in without.split("|") if word)


def test_figures_of_an_allocators_block() -> None:
    answer = first(
        "torch.OutOfMemoryError: Allocation on device 0 would exceed allowed memory. (out of memory)\nCurrently "
        "allocated     : 7.15 GiB\nRequested               : 20.00 MiB\nDevice limit            : 8.00 GiB\nFree "
        "(according to CUDA): 0 bytes"
    )
    assert answer.says == "GPU 8 GiB, your tensors 7.15 GiB, free 0 bytes, requested 20 MiB"


@pytest.mark.parametrize(
    ("requirement", "beside", "words"),
    [
        ("torch==2.0.0+cu113", "(from versions: 1.13.0, 2.0.0)", "2.0.0 has no +cu113, only cu118, cu117"),
        ("torch==2.0.1+cu118", "(from versions: 1.11.0, 2.7.1)", "whl/cu118 to the command"),
        ("torch==1.12.1+cu113", "(from versions: 2.2.0, 2.4.0)", "an older Python (torch 1.12.1 has wheels for 3.7 to"),
        ("torch==1.12.1+cu113", "(from versions: none)", "are for Python 3.7 to 3.10"),
        ("torch==2.6.0", "(from versions: 1.13.1, 2.4.1)\nPython 3.8.10", "a newer Python"),
        ("torch==2.6.0", "(from versions: 1.13.1, 2.4.1)", "a newer Python"),
        ("torch==2.5.1", "(from versions: none)\nPython 3.14.4", "an older Python"),
        ("torch==2.5.1", "(from versions: none)", "pytorch.org"),
        ("torch==9", "", "pytorch.org"),
    ],
)
def test_what_pip_was_asked_for_and_found(requirement: str, beside: str, words: str) -> None:
    answer = first(f"ERROR: Could not find a version that satisfies the requirement {requirement} {beside}")
    assert (answer.id, words in answer.then) == ("pip.torch", True), answer.then


@pytest.mark.parametrize(
    ("pasted", "id", "words"),
    [
        ("AssertionError: Torch not compiled with MPS enabled", "torch.cpu_only", "platform.machine()"),
        (
            "RuntimeError: The MPS backend is supported on MacOS 12.3+.Current OS version can be queried using sw_vers",
            "mps.operation",
            "update macOS",
        ),
        (
            "Input type (torch.cuda.HalfTensor) and weight type (torch.cuda.FloatTensor) should be the same",
            "tensor.type_mismatch",
            "dtype)",
        ),
        (
            "RuntimeError: Input type (torch.cuda.FloatTensor) and weight type (torch.FloatTensor) should be the same",
            "tensor.type_mismatch",
            "model.to(device)",
        ),
        ("RuntimeError: expected scalar type Long but found Float", "tensor.dtype", "labels.long()"),
        ("RuntimeError: \"host_softmax\" not implemented for 'Long'", "tensor.not_implemented", "x.float() before"),
        (
            "ImportError: /env/site-packages/torch/lib/libtorch.so: undefined symbol: _ZTIN2at10TensorImplE",
            "import.symbol",
            "two torches",
        ),
        (
            "OSError: /env/torchaudio/lib/libtorchaudio.so: undefined symbol: _ZN3c104cuda9SetDeviceEi",
            "import.symbol",
            "torchaudio has torch's number",
        ),
        (
            "ImportError: /env/dist-packages/vllm/_C.abi3.so: undefined symbol: _ZN3c106ivalue14ConstantString6createE",
            "import.symbol",
            "uv pip install vllm",
        ),
        (
            "ImportError: libtorch_cuda.so: cannot open shared object file: No such file or directory",
            "import.symbol",
            "torch.version.cuda",
        ),
        (
            "UserWarning: Specified provider 'CUDAExecutionProvider' is not in available provider names.",
            "import.library",
            "onnxruntime-gpu[cuda,cudnn]",
        ),
        (
            "ImportError: Using `bitsandbytes` 8-bit quantization requires Accelerate: `pip install accelerate` and "
            "the latest version of bitsandbytes: `pip install -i https://pypi.org/simple/ bitsandbytes`",
            "bitsandbytes.setup",
            "start it again",
        ),
        (
            "ImportError: cannot import name 'AttrsDescriptor' from 'triton.compiler.compiler'",
            "compile.backend",
            "pip install triton==VERSION",
        ),
        ("torch\nCommand '['where', 'cl']' returned non-zero exit status 1.", "compile.compiler", "vcvarsall.bat x64"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_120'", "nvcc.arch", "12.8 or newer"),
        ("nvcc fatal   : Unsupported gpu architecture 'compute_35'", "nvcc.arch", "remove the number"),
        (
            "error: #error -- unsupported GNU version! gcc versions later than 12 are not supported!",
            "nvcc.host_compiler",
            "CC=gcc-12 CXX=g++-12",
        ),
        (
            "fatal error C1189: #error:  -- unsupported Microsoft Visual Studio version! CUDA\\v12.1\\include",
            "nvcc.host_compiler",
            "Visual Studio 2022",
        ),
        ("/usr/bin/ld: cannot find -lcudart: No such file or directory", "nvcc.missing", "LIBRARY_PATH"),
        (
            "AttributeError: module 'torch' has no attribute 'float8_e8m0fnu'",
            "import.torch_too_old",
            "torch 2.7 or newer",
        ),
        ("ModuleNotFoundError: No module named 'torch._six'", "import.torch_too_old", "torch 2.0 removed it"),
        ("RuntimeError: No backend type associated with device type cpu", "dist.environment", "cpu:gloo,cuda:nccl"),
        (
            "vllm serve\nValueError: The number of attention heads (14) must be divisible by tensor parallel size (4).",
            "dist.world_size",
            "--tensor-parallel-size",
        ),
        (
            "Error: model requires more system memory (18.3 GiB) than is available (11.2 GiB) ollama",
            "oom.killed",
            "num_ctx",
        ),
        (
            "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 MiB. GPU 7 has a total capacity of "
            "287.98 GiB of which 203.49 GiB is free. Of the allocated memory 68.63 GiB is allocated by PyTorch "
            "is reserved by PyTorch but unallocated.",
            "oom.hip",
            "run it again",
        ),
        (
            "RuntimeError: DataLoader worker (pid 3) exited unexpectedly with exit code 1. Rerunning with "
            "num_workers=0 may give better error trace.",
            "loader.exited",
            "num_workers=0 shows the real error",
        ),
        (
            "Could not run 'torchvision::nms' with arguments from the 'CUDA' backend. 'torchvision::nms' is only "
            "available for these backends: [CPU, BackendSelect, AutogradCUDA].",
            "import.nms",
            "torchvision is built without CUDA",
        ),
    ],
)
def test_a_step_fits_its_case(pasted: str, id: str, words: str) -> None:
    answer = first(pasted)
    assert answer.id == id
    assert words in f"{answer.title}: {answer.then}"


def test_a_fallback_that_a_message_only_offers_is_no_program_that_goes_on() -> None:
    answer = first(
        "NotImplementedError: The operator 'aten::roll' is not currently implemented for the MPS device. As a "
        "fix, you can set the environment variable `PYTORCH_ENABLE_MPS_FALLBACK=1` to use the CPU as a fallback."
    )
    assert (answer.id, answer.doubt) == ("mps.operation", "")
    assert answer.then.startswith("pip install -U torch")
