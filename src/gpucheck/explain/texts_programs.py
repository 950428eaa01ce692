"""Texts of programs beside torch: TensorRT, OpenCV, CuPy, graph libraries, simulators, ComfyUI; harmless messages."""

from __future__ import annotations

from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import hint, proof, strong

TEXTS: tuple[Condition, ...] = (
    proof(
        "tensorrt.engine",
        "a TensorRT engine was built by another TensorRT, or for another GPU",
        r"Serialized Engine Version: ?\d|(safe|k)_?SERIALIZATION_?VERSION failed|== ?serializationVersion failed",
        r"engine plan file is (not compatible with this version|generated on an incompatible)|d == a \+ length",
        r"Platform specific tag mismatch|Magic ?Tag.{0,40}(failed|does not match)|Serialization \(Version tag",
        r"Failed to deserialize cuda engine|Engine deserialization failed|of serialized engine|size <= remaining_buf|"
        r"unable to load plan file",
        meaning="An engine file fits one release of TensorRT (or TensorRT-LLM) and one GPU model.",
        fix="delete the engine file (.engine, .trt, .plan) and build it again on this GPU with the release that loads "
        "it. pip list | grep -i tensorrt, dpkg -l | grep nvinfer and the image's tag show the releases, maybe two",
    ),
    strong(
        "tensorrt.arch",
        "this TensorRT does not support the GPU's generation: it is older than the GPU, or dropped it",
        r"smVerHex2Dig|Assertion major >= 0 ?&& ?major < \d|Target GPU SM \d+ is not supported by this TensorRT",
        meaning="Each release of TensorRT has a list of compute capabilities (its support matrix).",
        fix="use TensorRT 10.8 or newer with CUDA 12.8 or newer for an RTX 50, at most 10.4 for Volta and 8.6 for "
        "Pascal (pip list | grep -i tensorrt). Or choose the program's backend for CUDA, OpenCL or DirectML",
    ),
    proof(
        "triton.backend",
        "a backend of Triton Inference Server is missing, or was built for another release of the server",
        r"BACKEND API version:? ?[\d. ]*does not support|unable to find (backend library for|\S{0,3}libtriton_\w+\.so)",
        meaning="The server's backend API must be at least as new as the one that the backend was built with.",
        fix="build it from the branch of the server's image: cmake -DTRITON_BACKEND_REPO_TAG=rYY.MM (also for CORE and "
        "COMMON). Or use an image that has it (tensorrtllm: YY.MM-trtllm-python-py3); ls /opt/tritonserver/backends",
    ),
    hint(
        "directml.failed",
        "DirectML failed on the GPU: usually a fault of this release of ONNX Runtime, or of the graphics driver",
        r"\b(igd1\dum\w+|igc64|nvwgf2um\w+|amdxc64|atidxx64)\.dll.{0,300}\bDirectML\.dll",
        r"DmlExecutionProvider.{0,300}\b(8007(0057|000E)|80004005|887A\w{4})\b|\bDirectML\.dll!.{0,90}\b8\w{7}\b",
        meaning="80070057 is an invalid parameter, 887A000N a lost device, 8007000E memory. igd… is Intel's DLL.",
        fix="try the last onnxruntime-directml that worked, then the newest, and update the graphics driver (a DLL in "
        "the trace names its maker). With two GPUs choose one by device_id: 0 is often the integrated one",
    ),
    strong(
        "package.cpu_build",
        "a package is a build for the CPU, without CUDA",
        r"Device API (cuda|gpu) is not enabled|XGBoost version (is )?not compiled with (GPU|CUDA) support",
        r"(GPU|CUDA) Tree Learner was not enabled in this build|CTranslate2 package was not compiled with CUDA",
        r"module \W?faiss\W? has no attribute \W?(StandardGpuResources|index_cpu_to_\w*gpu|GpuIndex)",
        r"installed (CPU version )?Paddle(Paddle| is not comp)|DLIB_USE_CUDA\W{0,4}(is |returns? |=+ ?|: ?)?False",
        r"DNN module was not built with CUDA backend|throw_no_cuda|The library is compiled without CUDA support",
        r"module \W?cv2\W? has no attribute \W?(cuda|cudacodec)\b|CudaEnabledDeviceCount(\W|returns|is|gives){2,9}0\b",
        meaning="PyPI, or the index that pip used, has the CPU build under the same name.",
        fix="uninstall it, then install its CUDA build: faiss-gpu-cu12, paddlepaddle-gpu, ctranslate2 and xgboost on "
        "x86-64. lightgbm's new wheels have OpenCL (device_type gpu). For its cuda, and for dlib: cmake -DUSE_CUDA=ON",
    ),
    strong(
        "cupy.setup",
        "CuPy is missing, or does not fit the CUDA here",
        r"Cannot use GPU, CuPy is not installed|Failed to import CuPy|CuPy (failed to (load|import)|is not correct)",
        r"JitifyException|No module named \W?(pynvjitlink|cubinlinker|ptxcompiler)",
        r"multiple CuPy packages are installed|cupy.{0,300}(cannot open source file|nvrtc: error|NVRTC_ERROR)",
        r"ValueError: (GPU is not accessible\. Was the library installed|No GPU devices detected)|name gpu_ops is not",
        meaning="spaCy and others use the GPU through CuPy. Its wheel is for one major version of CUDA.",
        fix="pip uninstall -y each cupy… of pip list, then pip install 'cupy-cuda12x[ctk]' (cuda13x: not above what "
        "nvidia-smi shows), which brings CUDA's libraries. python -c 'import cupy; cupy.zeros(1)' shows the real error",
        follows=("cuinit.", "oom.", "import.libcuda"),
    ),
    strong(
        "openmm.platform",
        "OpenMM has no CUDA platform here: its CUDA plugin is not installed, or does not load",
        r"no registered Platform called \W?(CUDA|OpenCL|HIP)(.{0,1500}Minimization failed after)?",
        meaning="The plugin needs the CUDA that it was built for, and the driver's libcuda.",
        fix="python -c 'import openmm as m; print(m.Platform.getPluginLoadFailures())' shows why. pip install "
        "'openmm[cuda12]', or conda-forge's openmm and cuda-version=12 (at most nvidia-smi's). Unset OPENMM_PLUGIN_DIR",
        weak=(r"\b(openmm|testInstallation)\b.{0,250}\b(no|not|only|without)\b.{0,60}\bCUDA\b",),
        follows=("import.libcuda",),
        logged=True,
    ),
    strong(
        "opencl.none",
        "OpenCL finds no GPU: the driver's OpenCL library is not installed or not registered",
        r"No OpenCL (device|platform)s? (was |were )?found|clGet(Platform|Device)IDs.{0,24}(-1|NOT_FOUND)",
        meaning="OpenCL's loader reads the drivers' names in /etc/OpenCL/vendors. CUDA does not need it.",
        fix="clinfo -l must list the GPU. Install the maker's driver (Intel: intel-opencl-icd, AMD: rocm-opencl). In a "
        "container also mkdir -p /etc/OpenCL/vendors && echo libnvidia-opencl.so.1 > /etc/OpenCL/vendors/nvidia.icd. "
        "WSL has no OpenCL of NVIDIA: there use CUDA itself, or the CPU",
    ),
    hint(
        "gpu.wrong",
        "the program uses the first GPU that it finds, not the wanted one",
        meaning="CUDA numbers the fastest GPU first, nvidia-smi sorts by slot. Vulkan and DirectML count all makers.",
        fix="set CUDA_DEVICE_ORDER=PCI_BUS_ID CUDA_VISIBLE_DEVICES=N before it starts, with N of nvidia-smi (ComfyUI "
        "--cuda-device N or --directml N, A1111 --device-id N, ROCm HIP_VISIBLE_DEVICES=N, ncnn programs -g N)",
        weak=(
            r"\bwrong (gpu|graphics card)\b|\b(uses?|using|runs? on) (the |my )?(integrated|internal|intel u?hd) (gpu|"
            r"graphics|card)\b|\b(not|instead of) (the |my )?(discrete|dedicated) (gpu|graphics|card|one)\b",
        ),
        symptom=True,
    ),
    strong(
        "crash.illegal",
        "the processor lacks an instruction that a compiled package uses (AVX, AVX2)",
        r"to shutdown with signal 4\b|exit status 0xc000001d|STATUS_ILLEGAL_INSTRUCTION",
        common=(r"Illegal instruction( \(core dumped\)|: 4)|illegal hardware instruction|\bSIGILL\b|code 132\b",),
        meaning="The package was built for newer processors, or a virtual machine hides the host's instructions.",
        fix="lscpu | grep -o -w -e avx -e avx2 -e avx512f shows what is there. Give a virtual machine the host's "
        "processor (Proxmox, KVM: host). Else build the package there (pip install --no-binary :all: NAME)",
        follows=("cuda.illegal",),
    ),
    strong(
        "physx.failed",
        "PhysX's work on the GPU failed",
        r"(PhysX|internal) error ?: GPU .{0,80}(fail\w* to launch|kernel fail)|Fetching GPU \w+ failed|Gym cuda error",
        r"PhysX Internal CUDA error|PxGpuDynamicsMemoryConfig|(Patch|Contact|StackSize) buffer overflow|foundLost\w+C",
        meaning="Its fixed-size buffers or the memory are full, or states and collision shapes are invalid.",
        fix="try --num_envs 16. If it runs, raise what the first PhysX error names (Isaac Lab: "
        "PhysxCfg(gpu_max_rigid_patch_count, gpu_max_rigid_contact_count, gpu_collision_stack_size), Isaac Gym "
        "sim_params.physx.max_gpu_contact_pairs). If it fails, --device cpu tells whether the asset is at fault",
        follows=("oom.",),
    ),
    strong(
        "graphics.context",
        "no OpenGL or Vulkan context could be made: no display, no graphics driver, or no permission",
        r"gladLoadGL error|an OpenGL platform library has not been loaded|has no attribute \W?eglQueryString",
        r"Cannot initialize a EGL device display|EGL_NOT_INITIALIZED|environment variable MUJOCO_GL|NoSuchDisplayExc",
        r"libEGL warning: failed to open /dev/dri|eglInitialize\(\) failed|load driver: swrast|X11: Failed to open",
        r"vkCreateInstance failed|VkResult: ERROR_INCOMPATIBLE_DRIVER|No device could be created\.|X11: The DISPLAY",
        meaning="MuJoCo, Isaac and others render with the driver's graphics libraries, on a server through EGL.",
        fix="export MUJOCO_GL=egl PYOPENGL_PLATFORM=egl (no GPU: osmesa; Mac: neither); sudo apt-get install libegl1 "
        "libgl1 libvulkan1, in a container -e NVIDIA_DRIVER_CAPABILITIES=all, until vulkaninfo --summary lists the "
        "GPU. If /dev/dri is denied: sudo usermod -aG render,video $USER",
    ),
    hint(
        "comfyui.ended",
        "ComfyUI (or Fooocus) ended without a message: probably RAM and the paging file were full",
        r"(got prompt|Requested to load|loaded (complete|partial)|torch attention).{0,3000}>pause ?(Press|请按任意键)",
        meaning="Windows ends a program whose memory it cannot provide, often while a model is loaded.",
        fix="use a larger paging file (System, Advanced, Performance, Virtual memory: 32 GB or more on an SSD). Then "
        "try --disable-pinned-memory, --cache-none, or a smaller model (GGUF, fp8). Task Manager shows the RAM",
        symptom=True,
    ),
    hint(
        "program.waits",
        "the GPU probably waits for the program: for its data, or between many small operations",
        r"primarily intended to run on the CPU when not using a CNN policy|\bMlpPolicy\b.{0,300}\bGPU\b.{0,60}\bidle",
        meaning="Loading, copies and the start of each operation use the CPU while the GPU is idle.",
        fix="`gpucheck run train.py` shows where the time goes. For loading, use more num_workers and smaller files on "
        "a local disk; for small operations a larger batch or torch.compile. `gpucheck bench crossover` shows the size "
        "from which the GPU is faster (reinforcement learning: often the CPU). Not in nvidia-smi: gpucheck doctor",
        weak=(
            r"\bGPU utilization +\[[| ]*[0-4]?\d%\]",
            r"\bdata(_time)?:? [\d.]+ ?\([1-9]\d*\.\d+\)|\bGPU'?s?[- ]?(util\w*|usage)( rate)?\b[^:|]{0,40}\b(low|"
            r"fluctuat\w*|not stable|unstable|[0-4]?\d ?%)|\b(low|poor|0 ?%) GPU[- ]?(util\w*|usage)|\bGPU (is|was|"
            r"sits)( mostly| often)? (idl\w+|waiting)\b|\bGPU\b.{0,40}\b(slower|as slow as)\b.{0,12}\bCPU\b|\bslower "
            r"(on|with|using) (the |my |a )?GPU\b|\bCPU (is )?faster than (the )?GPU|\bdata ?loader\b.{0,40}\bslow\w*|"
            r"\b(slow|long)\b.{0,20}\bdata ?load",
            r"\b(util\w* of (the )?gpu|gpu[- ]?load|rtx \d+ is)\b.{0,50}\b([1-9]|[1-3]\d) ?%|\b(no|zero) gpu[- ]?(util|"
            r"usage)|\bgpu idles\b|\bgpu (is|was|sits|seem\w*|stays)( mostly)? idle\b|"
            r"\b(train\w*|inference|generat\w+|model)\b.{0,30}\bslow(er)? ((on|with|using) [^.]{0,25}\b(gpu|"
            r"cuda)\b|.{0,30}\bthe gpu is\b)",
        ),
        common=(r"\bGPU[- ]?([Uu]til\w*|[Uu]sage)( is| stays| was)?( very| too| so)? low\b",),
        symptom=True,
    ),
    hint(
        "harmless.message",
        "a harmless message: the program continues without what it names",
        r"Torch was not compiled with flash attention|expandable_segments not supported on this platform",
        r"Unable to register cu(FFT|DNN|BLAS) factory|TF-TRT Warning: Could not find TensorRT|SysFS had negative value",
        r"libcuda\.so\.1 is not a symbolic link|is not supported .{0,60}\. Falling back to (fp16|bf16|b?float16)\b",
        r"Can't use GPU pipeline with CPU Physics",
        r"A matching Triton is not available, some|need pytorch with cu1\d\d or higher to use optimized CUDA",
        r"Ran out of memory when regular VAE \w+, retrying|Memcpy nodes are added to the graph|due to low occupancy",
        r"nodes were not assigned to the preferred execution providers|ONNX model has been generated with INT64",
        r"Skipping the post-processing step due to the error above|due to mismatched devices\. XGBoost",
        meaning="The message warns about speed, or about a component that is not needed.",
        fix="ignore the message. If something fails, explain the error that comes after it",
        symptom=True,
        logged=True,
    ),
    hint(
        "program.cpu",
        "the model probably stays on the CPU: the shown code never moves it to the GPU",
        meaning="from_pretrained() loads into RAM unless it gets a device_map or device.",
        fix='call .to("cuda") on the model, or pipeline.to(torch.device("cuda")), and on its inputs. Then gpucheck run '
        "SCRIPT shows whether the GPU works",
        weak=(
            r"from_pretrained\(.{0,3000}\b(slow|real-time factor)\b|\b(slow|real-time factor)\b.{0,3000}from_pretrained"
            r"\(",
        ),
        unless=r"\.to\(|\.cuda\(|device_?map|device ?=|--device",
    ),
    hint(
        "link.slow",
        "the PCIe link runs below what the GPU and the slot can do",
        meaning="An idle GPU lowers the link's speed to save power, never its width. Under load a low speed is a "
        "fault.",
        fix="gpucheck bench transfer measures it under load. Then put the GPU into the slot of 16 lanes at the CPU, "
        "without a riser, and set the slot's generation in the firmware. x16 of PCIe 4.0 carries about 26 GB/s in each "
        "direction",
        weak=(
            r"LnkSta:.{0,60}\(downgraded\)|\bpcie\b.{0,40}\b(degraded|downgraded)|\bpcie (gen ?)?[1-3](\.0)? (x\d+ "
            r")?(instead|only)",
        ),
    ),
    hint(
        "power.capped",
        "the driver lowers the GPU's clock: its power or heat is at a limit",
        meaning="`SW Power Cap` is the power limit, `HW Slowdown` and `HW Power Brake` come from the board or its "
        "supply.",
        fix="nvidia-smi -q -d POWER,TEMPERATURE,PERFORMANCE shows the limits and the reason. Check supply, cables and "
        "air flow. gpucheck bench matmul shows what it costs",
        weak=(
            r"\bsw_power_cap\W+(is )?active",
            r"\b(sw|hw) power (cap|brake)( slowdown)?\b.{0,30}\b(active|appear)|\bhw (thermal )?slowdown ?: "
            r"?active\b",
        ),
    ),
    strong(
        "cuda.remap_pending",
        "the GPU replaced bad memory, which takes effect only at a reset",
        r"Remapped Rows.{0,200}Pending ?: Yes|Pending Page Blacklist ?: Yes",
        meaning="Uncorrectable errors led to a remapping of rows. `Remapping Failure Occurred: Yes` means that the GPU "
        "must be replaced.",
        fix="drain the node, then sudo nvidia-smi --gpu-reset -i INDEX, or reboot. gpucheck devices shows whether the "
        "remap worked. If errors return, replace the GPU",
    ),
    strong(
        "host.memory",
        "the host's RAM has uncorrectable errors: a memory module, not the GPU",
        r"\bEDAC MC\d+: \d+ UE\b|Uncorrectable (ECC|memory).{0,90}DIMM|DIMM\w*.{0,60}uncorrectable",
        meaning="The line names the module or its channel.",
        fix="reseat or replace the named DIMM. The event log of the server's BMC lists all of its errors",
    ),
    strong(
        "cloud.quota",
        "the cloud gives this account no GPU machine here: its quota is used up, or none is free",
        r"more vCPU capacity than your current vCPU limit|Quota \W?(NVIDIA_\w+|GPUS_ALL_REGIONS)\W? exceeded",
        r"No backend with GPU available|cannot (currently )?connect to a GPU (backend|due to usage limits)",
        r"InsufficientInstanceCapacity|ZONE_RESOURCE_POOL_EXHAUSTED|(NC|ND|NV)\w+ Family.{0,80}quota|SkuNotAvailable",
        meaning="New accounts start with a quota of 0 for GPU machines. Capacity differs by zone.",
        fix="ask for more in the cloud's quota page (AWS: Running On-Demand G and VT instances; Google: "
        "GPUS_ALL_REGIONS), or try another zone or type of machine. Colab: try later or another type; its limit on use "
        "ends within about a day, and a paid plan gives no guarantee",
    ),
    strong(
        "download.failed",
        "a download failed: a fault of the network, not of the GPU",
        r"<urlopen error|error occurred while downloading using \W?hf_transfer|LocalEntryNotFoundError",
        r"(connect to|reach) .{0,6}https://huggingface\.co|MaxRetryError.{0,200}(huggingface|pypi|github|pytorch\.org)",
        r"(download\.pytorch|huggingface|hf\.co)\S*.{0,80}(Read timed out|Connection reset|timed out)",
        meaning="The program could not fetch a wheel, a model or a data set. Nothing was computed yet.",
        fix="curl -I URL of the message shows whether this machine reaches it. Set HTTPS_PROXY or a mirror "
        "(HF_ENDPOINT, pip --index-url), HF_HUB_ENABLE_HF_TRANSFER=0 for the plain downloader, or fetch the file "
        "elsewhere, copy it, and pass its path. Nodes without network: HF_HUB_OFFLINE=1 with a filled cache",
        follows=("oom.", "cuda.", "cuinit.", "torch.", "pip.", "import."),
    ),
    strong(
        "file.truncated",
        "a file of weights is incomplete or no such file: usually a download that was cut off",
        r"Error while deserializing header|(Metadata|Header)IncompleteBuffer|InvalidHeaderDeserialization",
        r"PytorchStreamReader failed (reading zip archive|finding central directory|reading file)|unexpected EOF, exp",
        r"invalid load key, .{0,3}(v|<|\\x)|corrupted (record|checkpoint)|tensor \S+ data is not within the file "
        r"bounds",
        meaning="A Git LFS pointer (begins with `version`) or a page of HTML (begins with `<`) has a few hundred "
        "bytes.",
        fix="ls -l FILE: compare its size with the model's page, delete it and download it again (hf download REPO, "
        "git lfs pull). If a run was ended while it saved, take the checkpoint before",
        follows=("disk.", "oom."),
    ),
    strong(
        "memory.block",
        "one allocation is larger than this GPU or its interface allows, although memory is free",
        r"can NOT allocate memory block with size larger than 4 ?GB|exceeds? (the )?(device )?maxMemoryAllocationSize|"
        r"Requested buffer size exceeds device (memory|max)|NvMapMemAlloc\w+: \d+ error 12|cuMemAddressReserve\W+fail",
        meaning="Intel's Arc A and Vulkan drivers limit one block to 4 GiB. A Jetson may refuse large ones.",
        fix="use a smaller batch or picture, tiled VAE and sliced attention, or for llama.cpp a shorter context, -ub "
        "256 or -fa (cuMemAddressReserve: a build with -DGGML_CUDA_NO_VMM=ON). A newer driver or torch may lift it. "
        "For NvMap reboot and start this program first, then update JetPack",
    ),
    hint(
        "container.mac",
        "Docker on a Mac gives its containers no GPU, so the program computes on the CPU",
        meaning="Containers run in a Linux virtual machine without Metal.",
        fix="install the program on macOS itself (Ollama's own release), and connect to it: "
        "OLLAMA_HOST=host.docker.internal:11434 in the container",
        weak=(r"\b(mac(book|os)?|apple|m[1-4] (max|pro|ultra))\b.{0,200}\bslow\w*.{0,40}\bdocker\b",),
    ),
)
