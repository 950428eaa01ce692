"""The driver, NVML and cuInit: why CUDA does not start."""

from __future__ import annotations

from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import CUDA_SAYS, by_code, hint, proof, strong
from gpucheck.messages import FIX

_DOCTOR = "gpucheck doctor on the machine where it happened names the cause"
# Errors that keep the driver from starting. The messages of CUDA and torch then follow from them.
_DRIVER_DOWN = (
    *("nvml.mismatch", "nvml.not_loaded", "nvml.lost", "nvml.unknown", "kernel.", "bus.", "xid.", "container."),
    "nvml.wsl",
    *("driver.open_module_needed", "driver.unsupported_card", "gpu.no_power", "gpu.no_address_space"),
)

# The bounds of a pattern for a short text that a person typed, without other text. Texts about GPU 7, GPU memory or
# CUDA's toolkit do not say that there is no GPU.
_TYPED, _END = r"\A.{0,40}?\b", r"(?!s? (\d|memory|toolkit))\b.{0,30}\Z"


def _code(number: int) -> tuple[str, ...]:
    """Return patterns for the driver's error number as programs other than torch print it."""
    return (
        rf"\b(cuInit|cudaGetDeviceCount|cudaSetDevice|cuDeviceGetCount|cudaGetDevice)\b\W{{0,4}}"
        rf"(failed|returned|error|status|code|with|:|->| |=|\(){{1,8}}{number}\b",
        rf"\b(CUDA initialization fail(ure|ed)|cuda driver library init failure)\W{{0,4}}(with "
        rf"error)?\W{{0,4}}{number}\b",
        by_code(number),
    )


TEXTS: tuple[Condition, ...] = (
    strong(
        "cuinit.3",
        "CUDA's driver does not initialise",
        r"CUDA driver initialization failed, you might not have a CUDA gpu|cuInit failed: initialization error",
        *_code(3),
        meaning="cuInit returns 3: the driver exists but does not start for this process. With the open kernel module "
        "and some kernels its memory management (HMM) does not start, although nvidia-smi works.",
        fix="run nvidia-smi where the program runs. If it does not list the GPU, repair the driver, or start the "
        "container with --gpus all. sudo dmesg | grep -i -e nvrm -e hmm -e request_free_mem shows whether HMM fails: "
        "then put options nvidia_uvm uvm_disable_hmm=1 into /etc/modprobe.d and reboot. " + _DOCTOR,
        common=(r"Error 3: initialization error",),
    ),
    strong(
        "cuinit.34",
        "a CUDA library that was found (usually libcuda) is a stub, or older than the program's CUDA",
        r"(Loaded|Mapped|loading|paths?).{0,120}/stubs/libcuda\.so|CUDA driver is a stub library|"
        r"running using the stub version of \w+",
        # Functions of libcuda. The excluded names are those of CUDA's other libraries.
        r"undefined symbol: cu(?!blas|sparse|solver|fft|rand|da|dnn|pti|file|tensor(?!map))[a-z]\w+",
        meaning="LD_LIBRARY_PATH leads to another libcuda (stubs, compat), or the driver lacks the function.",
        fix="remove folders that end in /stubs or /compat from LD_LIBRARY_PATH. ldconfig -p | grep libcuda shows the "
        "driver's (a container needs NVIDIA_DRIVER_CAPABILITIES=compute,utility). If the file is in ~/.triton/cache, "
        "rm -r ~/.triton/cache. If the function is new, update the driver",
    ),
    strong(
        "cuinit.46",
        "the GPU is busy or unavailable: another process uses it exclusively, or it needs a reset",
        r"all CUDA-capable devices are busy or unavailable|CUDA-capable device\(s\) is/are busy or unavailable",
        r"exclusive-thread device already in use|devices .{1,40}are occupied by other processes and can'?t be used",
        *_code(46),
        meaning="The GPU's compute mode allows one process or none, or an earlier error left it unusable.",
        fix="nvidia-smi -q -d COMPUTE shows the mode, nvidia-smi the processes. sudo nvidia-smi -i INDEX -c 0 allows "
        "several. In exclusive mode each rank must call torch.cuda.set_device(local_rank) first. If the mode is "
        "Default: nvidia-smi -q | grep -i license (vGPU), sudo dmesg | grep -i -e nvrm -e xid, then a reset or reboot",
        follows=("nvml.reset", "xid.", "kernel.nvrm"),
    ),
    strong(
        "cuinit.100",
        "CUDA finds no GPU",
        r"No CUDA GPUs are available|no CUDA-capable device is detected|No visible GPU devices",
        r"no NVIDIA GPU device is present|ggml_cuda_init: failed to initialize CUDA: no CUDA-cap|any available GPU on",
        *_code(100),
        *_code(38),
        r"TensorRT backend supports only GPU device|No visible GPU is found|because no GPU is detected",
        r"\bNo (compatible |suitable |usable )?CUDA([- ]capable)? (device|GPU)s? (is |are |was |were )?"
        r"(found|available|detected)",
        meaning="CUDA_VISIBLE_DEVICES hides all GPUs, MIG has no instance, or the container or driver has no GPU.",
        fix="run nvidia-smi -L where the program runs. If it lists the GPU, unset CUDA_VISIBLE_DEVICES. If not, start "
        "the container with --gpus all, or request a GPU for the cluster's job. " + _DOCTOR,
        follows=(*_DRIVER_DOWN, "cuinit.3", "cuinit.34", "cuinit.46", "cuinit.80", "cuinit.999", "cuinit.too_old"),
    ),
    strong(
        "cuinit.no_driver",
        "no NVIDIA driver is found",
        r"The NVIDIA Driver was not detected\. ?GPU functionality will not be available|Found no NVIDIA driver|"
        r"Could not find cuda drivers on your machine|CUDA driver (is )?not (found|installed)|Failed to "
        r"load libcuda|failed call to cuInit: .{0,60}UNKNOWN ERROR ?\(303\)",
        meaning="The driver is not installed, or a container lacks it (`--gpus all`, NVIDIA_DRIVER_CAPABILITIES).",
        fix="run nvidia-smi on the host. If it works, start the container with --gpus all (podman: --device "
        "nvidia.com/gpu=all); else install NVIDIA's driver (TensorFlow: also pip install 'tensorflow[and-cuda]'). "
        + _DOCTOR,
        follows=(*_DRIVER_DOWN, "import.libcuda"),
        logged=True,
    ),
    strong(
        "cuinit.too_old",
        "the driver is older than the program's CUDA",
        r"NVIDIA driver on your system is too old|compute_cap is not a valid field to query|driver "
        r"(version )?(is )?too old.{0,40}CUDA|CUDA driver version is insufficient for CUDA runtime version|Driver does "
        r"not support the required nvenc|forward compatibility was attempted on .{0,60}insufficient|your nvidia driver "
        r"is too old|API call is not supported in the installed CUDA driver|requires? .{0,20}driver .{0,12}(>=|or "
        r"newer|or later).{0,40}(cuda|nvidia)|libcuda\S{0,40}undefined symbol: cu\w+|driver >= ?\d{3}[\d.]* required|"
        r"symbol lookup for cuCtxCreate_v\d failed",
        r"Found CUDA version \d+, but JAX was built against version \d+, which is newer",
        *_code(35),
        meaning="The wheel needs a newer major version of CUDA: 13.x needs driver 580, 12.x 525. A container without a "
        "GPU, or with a libcuda that is not the host's, also reports `driver version is insufficient`.",
        fix="run nvidia-smi where the program runs. If it fails, start the container with --gpus all; else update the "
        "driver, or install a torch (or program) built for a CUDA that it supports",
        follows=_DRIVER_DOWN,
    ),
    strong(
        "cuinit.101",
        "CUDA_VISIBLE_DEVICES names a GPU that does not exist",
        r"Error 101: invalid device ordinal|cuda driver library init failure: 101\b",
        meaning="One entry of the list names no device.",
        fix="nvidia-smi -L shows the existing indices and UUIDs: export CUDA_VISIBLE_DEVICES with those, or unset it",
    ),
    proof(
        "mask.mig",
        "a program reads the UUID of a MIG instance or GPU as a number",
        r"invalid literal for int\(\) with base 10: '?(MIG|GPU)-",
        meaning="Device plugins set CUDA_VISIBLE_DEVICES to a UUID, but the program expects indices.",
        fix="update the program (vLLM and others read UUIDs today). For a whole GPU set its index: "
        "CUDA_VISIBLE_DEVICES=0. A MIG instance has no index: if only one was passed in, unset the variable",
    ),
    strong(
        "cuinit.802",
        "the fabric between the GPUs is not ready",
        r"\b802\b.{0,60}\bfabric-?manager\b|CUDA .{0,60}\bfails? with 802\b",
        r"Error 802: system not yet initialized|\A\W*(cuda |cuinit )?error 802\W*\Z",
        *_code(802),
        meaning="cuInit returns 802. On machines with NVSwitch the fabric manager does not run, or its version differs "
        "from the driver's. In a confidential virtual machine the GPUs are not set ready.",
        fix="systemctl status nvidia-fabricmanager on the host shows whether it runs. If not, sudo systemctl enable "
        "--now nvidia-fabricmanager. Its version must be exactly the driver's (dpkg -l | grep -e fabricmanager -e "
        "nvidia-driver). On a rented machine ask the owner. Then run gpucheck doctor",
        common=(
            r"(failed|unable) to (start|initialize) .{0,20}fabric ?manager|fabric ?manager.{0,80}(failed|error:|is "
            r"not running|don'?t match|does not match)|system not yet initialized",
            r"\bError 802\b",
        ),
        follows=("nvswitch.none",),
    ),
    hint(
        "nvswitch.none",
        "the fabric manager finds no NVSwitch",
        r"NVSwitch driver failed with error:? ?WARNING Nothing to do|fabric ?manager.{0,80}Nothing to do",
        meaning="Only machines with NVSwitches (HGX, DGX) need it. On others its failure has no effect.",
        fix="lspci | grep -i nvswitch shows the switches. If there are none, sudo systemctl disable --now "
        "nvidia-fabricmanager. If there are some, sudo dmesg | grep -i nvswitch tells why the driver lacks them",
    ),
    strong(
        "cuinit.803",
        "the versions of libcuda and the kernel module differ",
        r"unsupported display driver / cuda driver combination|\A\W*(cuda |cuinit )?error 803\W*\Z",
        *_code(803),
        meaning="The driver was updated and not reloaded, or a container or LD_LIBRARY_PATH brings another libcuda.",
        fix="run nvidia-smi where the program runs. If it works, another libcuda is loaded (ldconfig -p | grep "
        "libcuda): unset LD_LIBRARY_PATH. If it reports a mismatch, restart the container, or load the new module with "
        "the GPU idle (sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo modprobe nvidia), or reboot",
        common=(r"\bError 803\b",),
        follows=("nvml.mismatch",),
    ),
    proof(
        "cuinit.804",
        "the driver is older than the CUDA in use, whose libcuda (folder compat) works only on data-centre GPUs",
        r"forward compatibility was attempted on non.?supported HW|\A\W*(cuda |cuinit )?error 804\W*\Z",
        *_code(804),
        meaning="The image or toolkit brings a newer libcuda in a folder called compat. GeForce GPUs refuse it.",
        fix="update the driver (on the host), or use an image or torch for a CUDA that nvidia-smi shows. Else remove "
        "the folder compat from LD_LIBRARY_PATH. After an update of the driver, reboot",
        common=(r"\bError 804\b",),
        follows=("nvml.mismatch",),
    ),
    strong(
        "cuinit.mps",
        "the MPS daemon does not accept this process, or hangs after a client was killed",
        r"CUDA_ERROR_MPS_\w+|cudaErrorMps\w+|remote procedural call between the MPS server and the MPS client failed",
        r"nvidia-cuda-mps-(server|control).{0,40}(exited with status|failed|not running)",
        r"Receive command failed, assuming client exit|MPS client failed to connect to the MPS control daemon",
        r"MPS server is not ready to accept new MPS client requests|MPS client has been terminated",
        r"hardware resources required to (create MPS client|support device connections) have been exhausted",
        r"\b(CUDA MPS|MPS (server|daemon|client))\b.{0,160}\b(hang|hangs|hung|stuck|freezes?)\b",
        *_code(805),
        *_code(807),
        meaning="The daemon of CUDA_MPS_PIPE_DIRECTORY does not run, is another user's, or accepts no more clients.",
        fix="start nvidia-cuda-mps-control -d, or unset CUDA_MPS_PIPE_DIRECTORY (gpucheck doctor). If it hangs: echo "
        "quit | nvidia-cuda-mps-control, end its clients and nvidia-cuda-mps-server, and start it again",
        common=(r"\bError (80[5-9]|810)\b",),
    ),
    hint(
        "cuinit.999",
        "CUDA does not start and gives no reason",
        r"unknown error - this may be due to an incorrectly set up environment|Error 999: unknown error",
        r"OS call failed or operation not supported on this OS|(cudaError|CUDA_ERROR_)Operating_?System\b",
        *_code(999),
        CUDA_SAYS + r"(?<!\d)unknown error",  # after a source location, CUDA had already started
        r"CUDA: unknown error",
        r"/dev/nvidia-uvm\b.{0,30}(missing|not found|no?t exist|no such)|no?t (have|find|see) .{0,8}/dev/nvidia-u",
        meaning="Error 999, or a system call that failed (304): /dev/nvidia-uvm is missing or forbidden, the memory "
        "module lost its state in a suspend, or CUDA_VISIBLE_DEVICES changed after CUDA had started.",
        fix="ls -l /dev/nvidia-uvm shows whether it exists. If not, sudo nvidia-modprobe -c 0 -u. After a suspend, "
        "sudo rmmod nvidia_uvm && sudo modprobe nvidia_uvm. " + _DOCTOR,
    ),
    hint(
        "cuinit.unexpected",
        "CUDA does not start",
        r"Unexpected error from cudaGetDeviceCount\(\)|failed call to cuInit",
        r"cuInit.{0,20}(failed|returned|error)|CUDA initialization: .{0,20}error|cuda driver library init failure: \d",
        meaning="cuInit's code follows the word Error at the end of the message.",
        fix="explain the whole message, because its end names the cause. " + _DOCTOR,
        symptom=True,
        follows=(*_DRIVER_DOWN, "cuinit."),
    ),
    proof(
        "torch.cpu_only",
        "this torch is built without CUDA",
        r"compiled without (XPU|CUDA|ROCm|HIP) support|was not compiled with (XPU|ROCm|HIP) (support|enabled)|Torch "
        r"not compiled with (CUDA|XPU|ROCm|HIP|MPS|HPU) (enabled|support)|PyTorch is not linked with support for "
        r"(cuda|mps|xpu) devices|Cannot (get CUDA generator|initialize CUDA) without ATen_cuda library|Tried to "
        r"instantiate dummy base class (CUDAGraph|Event|Stream|_?Cuda\w*)|has no attribute '?_Cuda\w+",
        r"\b(py)?torch (is |was )?CPU-only\b|\bCPU-only (build of |version of )?(py)?torch|\b(py)?torch (is |was |"
        r"has been )?((built|compiled|installed) (for|with) (the )?cpu|(built|compiled|installed) without (the "
        r")?CUDA|not (built|compiled|installed) (for|with) (the )?CUDA)\b",
        meaning="Usually pip took a CPU build from an index without CUDA, or another package brought it in.",
        fix="pip install --force-reinstall torch==VERSION --index-url https://download.pytorch.org/whl/cuXYZ, "
        "PyTorch's index of your CUDA (see the selector on pytorch.org and pip show torch). In conda: conda install -c "
        "conda-forge pytorch-gpu. gpucheck doctor on that machine names the command",
        weak=(
            r"\b(py)?torch(vision)?\b.{0,80}\bthe cpu (version|variant|build) (is|gets|was|of) (being )?installed\b",
            "CUDA used to build PyTorch: (None|Could not collect).{0,40}ROCM used to build PyTorch: N/A "
            "?(?!.{0,40}macOS).{0,900}Is CUDA available: False",
            r"Torch not compiled with|\b[12]\.\d+\.\d\+cpu\b.{0,40}\bFalse\b|\bFalse\b.{0,160}torch \d\.\d+\.\d\+cpu\b|"
            r"\bpytorch +\d[\d.]+ +(py\d\S*_)?cpu_\w+|\bcpuonly +\d|\bCPU[- ](build|version) of (py)?torch\b|\b(radeon|"
            r"rx ?[5679]\d00|amd \(rocm\)).{0,400}\btorch\W{1,6}[12][\d.]+\+cu\d|\b(py)?torch\b.{0,40}\b(uninstall|"
            r"replac|overwr|downgrad)\w* .{0,80}\bcpu\b|(Ultralytics|YOLO).{0,60}torch-[\d.]+\+cpu\b.{0,6000}(select_de"
            r"vice|_lazy_init|\bGPU\b)|\b(uninstall|replac|overw|downgrad|upgrad)\w* .{0,60}\btorch\b.{0,80}\bcpu\b",
        ),
    ),
    hint(
        "torch.no_accelerator",
        "torch has no device other than the CPU",
        r"no usable GPU found|Torch is not able to use GPU|Invalid CUDA 'device=.{0,300}is_available\(\): False|No "
        r"GPU being used\. Careful|FP16 is not supported on CPU|Neither CUDA nor MPS are available|Attention enabled "
        r"models: CUDA is not|cannot find any torch accelerator|can only be used on (CUDA|GPU|accelerator)( or \w+)? "
        r"devices|Cannot access accelerator device when none is available|No supported gpu backend found|"
        r"Trainer\(devices=(\[\]|0)\)`? value is not a valid input using (gpu|cuda)|running on UnspecifiedPlatform|"
        r"You requested GPUs?: .{0,40}But your machine only has: ?\[\]|platforms[/\\]interface\.py.{0,60}in "
        r"get_device_capability.{0,200}NotImplementedError|(Error|Exception): No (GPU|CUDA device|accelerator)s? "
        r"(was |were |is |are )?(found|available|detected)|Failed to infer device type|torch\.cuda\.is_available\(\) "
        r"should be True but is False|CUDA (was|is) requested but .{0,30}(not|no)|requires? (a )?(CUDA|GPU|"
        r"NVIDIA).{0,30}but none|User specified an unsupported autocast device_type|Device type CUDA is not "
        r"supported for torch\.Generator|can not run on your system since the accelerator is not available|(Error|"
        r"Exception): .{0,40}torch\.cuda\.is_available\(\) (returned|is|==) False|No (GPU|CUDA device|"
        r"accelerator)s?( or (Intel )?XPU)? (was |were )?(found|available|detected)\.? ?A GPU|with no GPU available|"
        r"no available (GPU )?devices? (were |was )?found|GPUs? requested but none are available|there are no "
        r"visible CUDA devices|no accelerator device is detected|No available accelerator found|supported on CUDA "
        r"and ROCm GPUs, none are|pin_memory=True requires a CUDA|Pinned memory requires CUDA|is not available, you "
        r"should use device=|CUDA requested but CUDAExecutionProvider not available|Invalid cuda 'device=\S*' "
        r"requested\. Backend is not available|NVIDIA Container Runtime is present, but no GPUs found|running on CPU "
        r"but must be on GPU, i\.e|Invalid CUDA '--device .{1,20}' requested|CUDA unavailable, invalid device|Flash "
        r"?Attention ?[\d.]* is not available on CPU|Type fp16 is not supported on your device|Expected a (cuda|non "
        r"cpu) device, but got: cpu|nvidia-smi has failed because|Can'?t initialize NVML|"
        r"_get_cuda_arch_flags.{0,200}IndexError|using GPU.{0,20}but (there are no GPUs|no GPU is) available",
        r"\bNoDevicesFound\b.{0,60}gpu|\bgpus should be a non-empty list|(Error|Exception): .{0,40}\b(CUDA|GPUs?) "
        r"(devices? )?(is |was |are )?(not (ava\w+|found|detected)|unavailable)|There should only be "
        r"one\.?.{0,20}active drivers|\b0 active drivers|\bGPU is required\b|\bCUDA is required\b|\bMegatron requires "
        r"CUDA|but CUDA is not available\.? ?(disabling|$)|CUDA is not available or torch_xla is imported|\bfp16 mixed "
        r"precision requires a GPU(?! \(not mps)|\bcuda\.is_available\(\)\W{0,12}(Out\W{0,2}\d*\W{0,4})?False\b|\bno "
        "(supported|compatible|suitable) (CUDA |NVIDIA )?GPUs?( devices?)? (were |is )?(found|detected|avail)",
        _TYPED + r"torch\.cuda\.is_available\W*( ==| is| returns?| should be true| gives)? ?(False|but)" + _END,
        _TYPED + r"(cuda|gpus?|cuda device|graphics card|nvidia)( is| was| are)? (not|never|isn'?t) "
        r"(available|detected|found|recognized|visible|working|used)" + _END,
        _TYPED + r"(cannot|can'?t|doesn'?t|not) (detect|find|see|use) (my |the |any |a )?(gpu|cuda)" + _END,
        _TYPED + r"no (cuda gpu|nvidia gpu|gpu|cuda)s?( is| are| devices?)?( detected| found| available)?" + _END,
        r"(requires?|needs?) (the model on )?(an? |at least one )?(CUDA |NVIDIA |Apple Silicon )?(GPU|"
        r"CUDA device)s?( or (Intel )?XPU)?(?= ?[.,;]| ?$|,? but| to run)",
        r"only (supported|available) (on|with) (CUDA |NVIDIA )?GPUs?\b(?! with)(?!.{0,40}(capabil|sm_?\d|H100|Amper))",
        meaning="The program requested the accelerator (pinned memory, mixed precision, a trainer's GPU), but torch "
        "sees none: torch is built for the CPU, driver, container or job has no GPU, or CUDA_VISIBLE_DEVICES hides it.",
        fix="python -c 'import torch; print(torch.version.cuda, torch.cuda.device_count())' and nvidia-smi show what "
        "is missing. None means a torch for the CPU. If nvidia-smi fails, repair the driver or the container. "
        + _DOCTOR,
        symptom=True,
        follows=(*_DRIVER_DOWN, "cuinit.", "torch.cpu_only", "mask.", "nvml."),
        common=(r"no (usable |suitable )?accelerator (was |is )?(found|avail|detect)|No hardware acceleration could",),
        logged=True,
        weak=(
            r"\bcuda\.?_?(is_)?available\b\W{0,12}((it|is|was|as|return\w*|always|still|gives?|就?是|为) "
            r"?\W{0,4}){0,3}False|\b(runs?|running|us(es?|ing)|training|shows?) .{0,24}\b(on|only|the|my|in) (the "
            r")?\W?cpu\b.{0,160}\bgpu|\bis_available\b.{0,30}\bTrue\b.{0,60}\b(on|uses?|only|the) cpu\b|\b(us(es?|ing)|"
            r"fall(s|ing)? back (on|to)) (the )?\W?cpu\b(?!.{0,3}(off|ram))|\bcpu is (being )?used\b|\bgpus?\b(?! "
            r"available but).{0,40}\b(not|isn'?t|never) (being |getting )?(us|utiliz|detect|recogniz)ed\b|\b(can'?t|"
            "cannot|doesn'?t|won'?t|isn'?t|not|unable to|how (can|do) i|how to) "
            "(run|use|using|detect(ing)?|see|switch) (on |to |"
            r"it |under |with |my |the |a ){0,3}gpus?\b(?! \d|s? memory)",
        ),
    ),
    proof(
        "nvml.mismatch",
        "the versions of NVIDIA's libraries and the kernel module differ",
        r"Driver/library version mismatch|RM has detected an NVML/RM version mismatch|NVRM: API mismatch",
        r"NVML(_ERROR|Error)_LibRmVersionMismatch|NVML_ERROR_LIB_RM_VERSION_MISMATCH",
        r"kernel (module )?version .{0,40}does not match DSO version",
        meaning="The driver was updated but its old module is still loaded, or a container has its own libraries.",
        fix="drain the node, end what uses the GPUs, and load the modules again: sudo rmmod nvidia_uvm nvidia_drm "
        "nvidia_modeset nvidia && sudo modprobe nvidia; else reboot. If it stays, dpkg -l | grep -i nvidia (rpm -qa): "
        "remove one of two versions",
    ),
    strong(
        "nvml.unknown",
        "NVML lost access to the devices",
        r"Failed to initialize NVML: (N/A|Unknown Error)|nvmlInit\w*.{0,30}Unknown Error",
        weak=(r"\bnvml (vram )?init failure: 999\b|\bNVML initiali[sz]e failed: Unknow",),
        logged=True,
        meaning="In a container: systemd reloaded its units and removed the devices from the container's cgroup.",
        fix="docker restart CONTAINER (or restart the pod). To prevent it, pass the devices by CDI (--device "
        "nvidia.com/gpu=all), or each with --device=/dev/nvidia0 --device=/dev/nvidiactl --device=/dev/nvidia-uvm",
    ),
    strong(
        "nvml.permission",
        "access to the device nodes is denied",
        r"NVML( error)?: Insufficient Permissions",
        r"(Failed|Unable) to .{0,60}(compute|GPU) ?(instances?|[\w:.]+): Insufficient Permissions",
        meaning="The user may not read and write /dev/nvidia*, or the request needs root.",
        fix="use sudo for a command that changes a setting or a MIG instance. If reading fails, ls -l /dev/nvidia* "
        "must show crw-rw-rw-; in a cluster's job request a GPU (--gres=gpu:1)",
        common=(r"ERROR_NO_PERMISSION",),
        weak=(r"\bSELinux\b.{0,200}\b(nvidia|gpus?)\b.{0,60}\b(fail|den[iy]|block)|\bavc: denied\b.{0,99}nvidia",),
    ),
    strong(
        "nvml.not_loaded",
        "the driver's kernel module is not loaded",
        "couldn'?t communicate with the NVIDIA driver|Failed to initialize NVML: Driver Not Loaded|kernel driver does "
        "not appear to be running on this host|cuda driver can'?t be loaded, is cuda enabled|Failed to initialize the "
        "NVIDIA kernel module|nvidia-persistenced failed to initialize|NVIDIA kernel module (is )?(missing|not found)",
        meaning="The module was not built for an updated kernel, Secure Boot rejects it, or nouveau controls the GPU.",
        fix="sudo modprobe nvidia and sudo dmesg | grep -i nvrm show the cause. For `Key was rejected`, enroll the "
        "module's key or turn Secure Boot off (mokutil --sb-state). For `not found`, build it for this kernel (sudo "
        "dkms autoinstall, then reboot). If lsmod | grep nouveau lists nouveau, blacklist that driver",
        follows=("kernel.", "nvml.mismatch", "container."),
        common=(r"\bDriver Not Loaded\b|\bnvidia drivers? (is|are) not loaded", r"ERROR_DRIVER_NOT_LOADED"),
        weak=(r"\bnvidia-smi\b.{0,4} (cannot|can'?t|could ?n.?t|can not) communicate with",),
    ),
    strong(
        "nvml.no_library",
        "NVML is not installed",
        r"libnvidia-ml\.so[.\d]* not found|(NVML Shared Library|NVIDIA Management Library \(NVML\)) Not Found",
        r"couldn'?t find libnvidia-ml\.so|libnvidia-ml\.so[.\d]*: cannot open shared object file",
        r"(could not|failed to|unable to) (load|find|open) (library )?(libnvidia-ml|nvml)",
        r"\bnot (finding|find|loading|load|locate) (the )?NVML\b",
        r"nvidia-smi(\.exe)?: (command )?not found|No such file or directory: '?nvidia-smi",
        r"'?nvidia-smi'? is not recognized as|nvidia-smi.{0,4}: executable file not found",
        meaning="libnvidia-ml.so.1 or nvidia-smi is missing: no driver, or no capability utility in the container.",
        fix="on a host install NVIDIA's driver (Ubuntu: sudo ubuntu-drivers install). For a container use docker run "
        "--gpus all, with NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        follows=("container.", "kubernetes."),
        common=(r"ERROR_LIBRARY_NOT_FOUND",),
    ),
    strong(
        "nvml.no_devices",
        "the driver finds no GPU",
        r"could not insert '?nvidia\w*'?: No such device|Kernel module load error: No such device",
        r"\A\W*No devices were found\W*\Z|NVRM: No NVIDIA (GPU|graphics adapter) found",
        meaning="No GPU answers: Blackwell needs the open module, a virtual machine has it, or it failed to start.",
        fix="sudo dmesg | grep -i nvrm shows the module's errors. For a Blackwell GPU install the open kernel module "
        "(nvidia-open). For RmInitAdapter see gpucheck explain kernel.rm_init",
        follows=("kernel.", "bus.", "xid.", "driver.open_module_needed", "driver.unsupported_card", "gpu."),
        common=(r"No devices were found",),
    ),
    proof(
        "nvml.lost",
        "a GPU does not answer",
        r"GPU is lost|Unable to determine the device handle for GPU|ERROR_GPU_IS_LOST|ERR! ?ERR! ?ERR!|shows? ERR! ",
        meaning="The GPU has fallen off the bus, usually because of power, heat or a bad seat.",
        fix=f"sudo dmesg | grep -i -e xid -e 'fallen off'; {FIX['lost']}",
        follows=("xid.", "bus."),
    ),
    proof(
        "nvml.reset",
        "a GPU has to be reset before it can be used",
        r"NV_ERR_RESET_REQUIRED|GPU requires reset|GPU recovery action .{0,40}reset",
        r"\bGPU\b.{0,80}\b(has a pending reset|is pending reset)",
        r"row remapping (is )?pending\b(?!\W{1,4}(no|false|0))|remapping_pending\W{1,4}true",
        meaning="The driver stopped using the GPU after an error that it could not clear.",
        fix="drain the node and end what runs on the GPU, then sudo nvidia-smi --gpu-reset -i INDEX (with NVLink all "
        "joined GPUs at once). nvidia-smi -q shows the recovery action that the driver requests",
        follows=("xid.",),
        common=(r"ERROR_RESET_REQUIRED",),
    ),
    strong(
        "nvml.hardware",
        "NVML reports a fault of the GPU",
        r"NVMLError_(IrqIssue|CorruptedInforom|InsufficientPower|Timeout)",
        meaning="The GPU's interrupts, configuration (InfoROM) or power failed, or it did not answer in time.",
        fix="sudo dmesg | grep -i nvrm names the GPU. Drain the node and power-cycle it, reseat the GPU and its power "
        "cables, and have a GPU with a corrupted InfoROM serviced",
        follows=("xid.", "bus."),
    ),
    strong(
        "nvml.not_supported",
        "NVML refused a call: this GPU lacks the feature, or the call is wrong",
        r"nvml\w* (returned|returns|failed with|failed:)\W{0,3}Not Supported|NVML_ERROR_NOT_SUPPORTED",
        r"NVIDIA-SMI [\d.]+ .{0,1500}\|\s*Not Supported",
        r"NVMLError_(NotSupported|FunctionNotFound|Uninitialized|AlreadyInitialized|InvalidArgument|NotFound)",
        r"\bnvml\w*.{0,60}: Not Supported\b",
        r"(invalid literal for int.{0,20}|convert string to float): \W{0,2}(N/A\b|Not Supp)",
        meaning="Not every GPU and driver has every counter. The program may also have called NVML before nvmlInit, "
        "after nvmlShutdown, or with an index that does not exist. The GPU is not faulty.",
        fix="catch pynvml.NVMLError around that call, or skip the value (for memory on an integrated GPU use "
        "torch.cuda.mem_get_info()). nvidia-smi -q shows whether this GPU has the value",
        follows=("xid.", "bus.", "nvml.mismatch", "nvml.not_loaded", "nvml.lost"),
    ),
    proof(
        "kubernetes.insufficient",
        "Kubernetes has no node with a free GPU that the pod may use",
        r"UnexpectedAdmissionError.{0,200}(gpu|device number not matched|devices? unavailable)",
        r"Insufficient (nvidia\.com|amd\.com|gpu\.intel\.com)/\w+|untolerated taint .{0,3}(nvidia|amd)\.com/gpu",
        r"nodes? (are|is) available: .{0,200}Insufficient .{0,20}gpu",
        meaning="Other pods have the GPUs, the device plugin does not run, or the node's taint keeps the pod away.",
        fix="kubectl describe node NODE | grep -A8 Allocatable shows nvidia.com/gpu. If it is 0 or absent, the device "
        "plugin or the driver fails (kubectl logs of nvidia-device-plugin); else other pods hold the GPUs. For a "
        "taint, add tolerations: [{key: nvidia.com/gpu, operator: Exists}] to the pod",
        follows=("nvml.", "container.", "xid."),
    ),
    strong(
        "slurm.gres",
        "Slurm has no such GPU for the job",
        r"gres/gpu count reported lower than configured|Invalid generic resource \(gres\) specification",
        r"gres_plugin_\w+.{0,60}(error|fail|mismatch|invalid)|(srun|sbatch|salloc): error: .{0,80}\bgres\b",
        r"invalid GRES core specification|can'?t stat gres\.conf file",
        r"(srun|sbatch|salloc): (fatal|error): .{0,60}\b(is|are) mutually exclusive|You set --ntasks=\d+ in your SLURM",
        meaning="The nodes do not have the type or number in --gres, or one reports fewer GPUs and was drained.",
        fix="scontrol show node NODE | grep -i -e gres -e reason; sinfo -o '%P %G %N' lists what you can request. On a "
        "drained node nvidia-smi -L must list every GPU first; then scontrol update nodename=NODE state=resume",
        follows=("nvml.", "xid.", "bus.", "kernel."),
        common=(r"Requested node configuration is not available",),
        weak=(
            r"\b(slurmstepd|slurmd|srun|sbatch|salloc): error: .{0,200}\b(gpus?|gres|cuda)\b|--gpu-bind=(closest|"
            r"single)",
        ),
    ),
    strong(
        "kubernetes.plugin",
        "NVIDIA's device plugin for Kubernetes does not find the GPUs",
        r"device plugin \w+ rpc failed|No devices found\. ?Waiting indefinitely|error starting plugins?|unable to "
        r"create plugin manager|Failed to start gRPC server for .{0,4}nvidia\.com|failed to validate the driver, "
        r"retrying|lstat /run/nvidia/driver/dev/nvidia\w+: no such file|/run/nvidia/\w+\W{1,3}is mounted on "
        r".{1,12}but it is not a shared mount|If this is a GPU node, did you (set|configure)|"
        r"device-plugin[\w-]{0,24} 0/1 (CrashLoop|Error|Init)|Incompatible (platform|strategy|device "
        r"discovery).{0,40}detected|(nvidia-)?device[- ]?plugin.{0,200}(error starting|failed to|Failed to|no "
        r"devices found|could not)|Allocate failed due to .{0,200}(nvidia|gpu)|Detected non-NVML platform",
        meaning="The plugin's container lacks NVIDIA's runtime and sees no NVML, so the node offers no GPU.",
        fix="install nvidia-container-toolkit on the node, run sudo nvidia-ctk runtime configure --runtime=containerd "
        "--set-as-default && sudo systemctl restart containerd (or set runtimeClassName: nvidia); then restart it",
        weak=(r"\bnvidia\.com/(gpu|mig).{0,120}\b(fail\w*|errors?|unhealthy)\b",),
        follows=("kubernetes.mps",),
    ),
    hint(
        "kubernetes.dcgm",
        "DCGM, which reads the GPUs' counters for monitors, failed",
        r"Error watching fields|third-party Profiling module returned an unrecoverable error",
        r"Error (connecting|initializing).{0,40}(nv-hostengine|DCGM)|DCGM initialization (failed|error)",
        r"\bDCGM_ST_(?!OK)\w+",
        meaning="A profiler (Nsight, ncu) or another DCGM holds the counters, or DCGM is older than the driver or GPU.",
        fix="dcgmi discovery -l, then dcgmi diag -r 1, on that node. End other profilers and a second nv-hostengine. "
        "Remove the DCGM_FI_PROF_… fields from its list of counters, or use a newer DCGM",
        follows=("nvml.", "xid.", "bus."),
        weak=(r"\b(dcgm[\w-]*|nv-hostengine)\b.{0,120}(error|fail)",),
    ),
    proof(
        "jax.versions",
        "JAX, jaxlib and the CUDA plugin are of different releases",
        r"(Mismatched PJRT plugin|Unexpected PJRT_\w+ size|plugin is likely built with a later version)",
        r"module 'jaxlib(\.\w+)*' has no attribute|jaxlib version [\d.]+ is (newer|older|incompatible)",
        r"jaxlib is version [\d.]+, but this version of jax requires|incompatible with (installed )?jaxlib version",
        meaning="All of them must have one release, but pip upgraded only some of them.",
        fix="pip list | grep -i jax shows them. Upgrade all in one command: pip install -U 'jax[cuda12]', or "
        "'jax[cuda12]==VERSION' of the jax that the program needs, which brings jaxlib and the plugins",
    ),
    proof(
        "jax.cpu_only",
        "this jaxlib is built without CUDA",
        r"no supported devices found for platform CUDA|CUDA-enabled jaxlib is not installed",
        r"jaxlib.{0,60}(without|no) (CUDA|GPU) support|No GPU/TPU found, falling back to CPU",
        meaning="JAX found a GPU but has no code for it, because pip installed jaxlib for the CPU.",
        fix='pip install -U "jax[cuda12]" (or cuda13), in the same environment',
    ),
    strong(
        "kernel.nouveau",
        "another driver, usually nouveau, controls the GPU, so NVIDIA's cannot use it",
        r"Nouveau kernel driver is currently in use|NVIDIA probe routine was not called for \d+ device",
        r"nouveau, rivafb, nvidiafb or rivatv",
        meaning="The Linux kernel's driver for NVIDIA GPUs is loaded, and a GPU can have only one driver.",
        fix="lsmod | grep -i -e nouveau -e vfio shows it. For nouveau: echo 'blacklist nouveau' | sudo tee "
        "/etc/modprobe.d/nouveau.conf; sudo update-initramfs -u (Fedora: dracut --force); then reboot",
    ),
    proof(
        "mig.no_room",
        "a MIG instance does not fit on the GPU",
        r"MIG device allocation failed|Insufficient Resources.{0,60}(MIG|GPU instance)|(error creating|Unable to "
        r"create a?|Failed to create) (GPU|compute|MIG) (instance|device).{0,120}Insufficient Resources",
        meaning="The profile does not fit beside the existing instances, or MIG mode is off.",
        fix="nvidia-smi mig -lgi lists the instances, nvidia-smi mig -lgip the profiles with their free slots. Destroy "
        "an unused instance (sudo nvidia-smi mig -i INDEX -dci -ci CI -gi GI, then -dgi -gi GI)",
    ),
    proof(
        "mig.in_use",
        "a MIG instance cannot be destroyed while something uses it",
        r"MIG mode is in pending (enable|disable) state|(unable|failed) to (destroy|enable|disable|change)[\w "
        r"]{0,30}(instance|MIG)[^\n]{0,120}in use by another client",
        meaning="A program, a monitor (DCGM, a device plugin), a display server or the persistence daemon has it open.",
        fix="sudo lsof /dev/nvidia* shows the process. Stop it (sudo systemctl stop nvidia-dcgm dcgm-exporter, the "
        "device plugin's pod) and repeat the command. In a passthrough virtual machine reboot",
    ),
    strong(
        "nvml.wsl",
        "Windows does not let WSL use the GPU",
        r"GPU access (is |was )?blocked (by the operating system|in(side)? WSL)",
        meaning="Windows's driver is too old, the GPU is in TCC mode, or a Linux driver inside WSL hides Windows's.",
        fix="update NVIDIA's driver in Windows and remove every nvidia package inside WSL",
    ),
    proof(
        "nvml.pynvml",
        "the pynvml package is deprecated",
        r"pynvml package is deprecated",
        meaning="The message is only a warning. The maintained package of the same module is nvidia-ml-py.",
        fix="pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py",
    ),
    proof(
        "container.no_runtime",
        "docker cannot pass GPUs to containers: NVIDIA's toolkit is missing or not configured",
        r"could not select device driver .{0,20}with capabilities: \[\[.{0,40}(gpu|compute|utility)|unknown flag: "
        r"--gpus|exec: \\?\W?nvidia-container-runtime(-hook)?\\?\W?: executable file not found|"
        r"nvidia-container-runtime(-hook)?: (command )?not found|unknown (or invalid runtime name:|runtime "
        r"specified) nvidia|exec: \W?\S*nvidia-container-cli\W*: stat|no runtime for \W*nvidia\W* is configured|"
        r"nvidia-container-(toolkit|runtime-hook)\W.{0,40}(not installed|not found|No such file)",
        r"\bnvidia runtime handler not found|runtime handler \W?nvidia\W{0,3} (is )?not (found|supported)",
        meaning="NVIDIA's container toolkit is not installed on the host, or docker is not configured to use it.",
        fix="install nvidia-container-toolkit on the host; sudo nvidia-ctk runtime configure --runtime=docker && sudo "
        "systemctl restart docker (k3s: --runtime=containerd). Docker Desktop has none: docker context use default",
    ),
    proof(
        "container.cdi",
        "the CDI description of the GPU is missing or outdated, or the engine does not read it",
        r"failed to construct nvml ?lib|failed to (generate|save) CDI spec\w*: .{0,120}NVML|(unresolvable|could not "
        r"resolve) CDI device|failed to inject CDI devices|failed to discover GPU vendor from CDI|setting up CDI "
        r"devices|failed to stat CDI host device|CDI (device )?injection failed|could not select device driver "
        r"\W{0,4}cdi|error stat.?ing file \S*(nvidia|libcuda)\S*\.so\.\d{3}\.|"
        r"stat nvidia\.com/gpu=\w+: no such file|failed to (generate|create|get|load|parse) CDI spec",
        meaning="podman, and docker with CDI, read /etc/cdi. It is missing, not readable, or older than the driver.",
        fix="sudo nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml && sudo chmod a+rX /etc/cdi /etc/cdi/*; then "
        "nvidia-ctk cdi list as the user shows the devices (podman 4.1 or newer). Repeat after each driver update. "
        'docker wants version 25 or newer and "features": {"cdi": true} in its daemon.json, then a restart',
    ),
    strong(
        "container.cli",
        "NVIDIA's container toolkit could not set up the container",
        r"nvidia-container-cli: (initialization|requirement|mount|detection|device|container|ldcache|permission)",
        r"nvidia-container-cli(\.real)?\W*: .{0,40}error|unsatisfied condition: (cuda|driver|brand)",
        r"unsupported CUDA version: driver [\d.]+ < image|error (executing|running) hook .{0,60}nvidia-container",
        r"Could not find any (nv|NVIDIA) (files|libraries|binaries) on this host|adding custom device "
        r"\W{0,4}/dev/nvidia",
        r"(CUDA|GPU|NVML)\b.{0,40}\b(fails?|failed|broken|stopped working|not working|unavailable) in (\w+ )?(docker|"
        r"podman|containers?).{0,120}(nvidia-container|container-?toolkit)|Error updating ldcache",
        meaning="The message names the cause: driver, device, cgroup, or a CUDA that only the image has.",
        fix="run nvidia-smi on the host, which must work first. Then read what follows `error:` in the message",
        weak=(r"\b(lib)?nvidia-(container-(cli|runtime)|ctk)[\w.-]*.{0,120}\b(error|fail\w*)\b",),
        follows=("nvml.mismatch", "nvml.not_loaded", "kernel."),
    ),
    proof(
        "kernel.key_rejected",
        "Secure Boot refuses the driver's kernel module",
        r"Secure ?Boot .{0,12}(block|prevent|reject)\w* .{0,20}(nvidia|module)|nvidia.{0,40}module keys? rejected|"
        r"modprobe: ERROR: could not insert 'nvidia.{0,10}: Key was rejected by service|could not insert "
        r"'nvidia.{0,10}: Required key not available|nvidia.{0,80}Loading of (unsigned )?module.{0,30}rejected|Key "
        r"was rejected by service.{0,200}nvidia|Secure boot is enabled on this system, .{0,60}not signed by a key",
        r"modules? (load\w* )?(fail\w*|refused|rejected) (due to|because of|by) Secure ?Boot",
        meaning="The module is not signed with a key that the firmware trusts.",
        fix="sudo mokutil --import KEY (Ubuntu /var/lib/shim-signed/mok/MOK.der, DKMS /var/lib/dkms/mok.pub, Fedora "
        "/etc/pki/akmods/certs/public_key.der), reboot and Enroll MOK; or turn Secure Boot off in the firmware",
    ),
    strong(
        "kernel.build",
        "the driver's kernel module could not be built",
        r"\*\*\* \[.{0,160}Error \d.{0,300}/dkms/nvidia|Building module.{0,200}/nvidia/.{0,200}make\.log|ERROR: "
        r"Unable to build the NVIDIA kernel module|error processing package nvidia-(dkms|kernel)|"
        r"nvidia.{0,40}dkms.{0,60}(failed|bad exit status|error)|Unable to find the kernel source tree for the "
        r"currently running kernel|performing the step: \W?Building kernel modules|Leaving directory "
        r"\W?/var/lib/dkms/nvidia|Unable to load the kernel module 'nvidia\.ko'(?!.{0,900}load error: No such "
        r"device)|The kernel module failed to load.{0,200}nvidia|/dkms/nvidia/.{0,60}dkms\.conf does not exist",
        r"\bDKMS\W{1,3}(build|module).{0,40}\bnvidia.{0,40}(fail|error)|\bnvidia\b.{0,20}\bDKMS\b.{0,40}(fail|"
        r"error)\w*|\bnvidia[\w-]*/[\w-]+\.[ch]:\d+(:\d+)?: (fatal )?error|dkms (build|install) .{0,20}\bnvidia\S* "
        r"-k \S+ exited|Error \d\W{0,3}/var/lib/dkms/nvidia|\*\*\* \[\S*: /var/lib/dkms/nvidia|\bkernel\b.{0,40}"
        r"\b(break|broke)\w* .{0,12}\b(dkms|nvidia)\b.{0,40}\b(dkms|driver|nvidia)\b",
        meaning="The kernel is too new for the driver, its headers are missing, or another compiler built it.",
        fix="tail -n 40 of the named make.log shows the error. Install a newer driver, or boot the previous kernel",
        common=(
            r"Unable to find the kernel source tree|Your kernel headers for kernel .{0,60}cannot be found",
            r"Bad return status for module build on kernel|Failed to install the kernel module through DKMS",
        ),
        beside=r"nvidia",
    ),
    strong(
        "jetson.memory",
        "a Jetson's memory manager does not answer",
        r"NvRm(MemInit|MemInitNvmap|MemMgrInit|GpuLibOpen) ?failed",
        r"cudaAlloc\w*\(\) failed to allocate memory|/dev/nvmap.{0,60}(denied|failed|No such)",
        meaning="The user is not in the groups video and render, or the container lacks NVIDIA's runtime or JetPack.",
        fix="sudo usermod -aG video,render $USER, then log in again; in a container docker run --runtime nvidia",
    ),
    proof(
        "kernel.wrong_module",
        "the driver's module was not built for the kernel that runs",
        r"module uses symbols from proprietary module nvidia|Unknown symbol nvidia\w+|Module nvidia[\w-]* not found "
        r"in directory|nvidia: version magic|nvidia\w*: (disagrees about version of symbol|Unknown symbol)|could not "
        r"insert '?nvidia'?: (Exec format error|Invalid argument|Unknown symbol)",
        meaning="After a kernel update the module must be built again.",
        fix="sudo apt-get install linux-headers-$(uname -r) (Fedora kernel-devel), sudo dkms autoinstall, then sudo "
        "modprobe nvidia. Without DKMS, reinstall the driver's package for the kernel of uname -r",
        follows=("kernel.build",),
    ),
    strong(
        "kubernetes.driver",
        "the GPU operator waits for a driver that does not load",
        r"No pre-?installed driver detected on the host|Waiting for nvidia driver to be loaded",
        r"command .{0,4}nvidia-smi\W{0,4} failed with exit code",
        r"Could not resolve Linux kernel version|Could not unload NVIDIA driver kernel modules",
        r"\b(driver|toolkit|cuda|plugin)-?validation\b.{0,20}(failed|waiting|error)",
        meaning="Its driver container could not build, load or replace the kernel module, and all other pods wait.",
        fix="kubectl logs -n gpu-operator -l app=nvidia-driver-daemonset --all-containers names the step. If the node "
        "has an installed driver, set driver.enabled=false",
        follows=("kernel.", "nvml.", "driver.", "container.", "bus.", "xid.", "cuinit."),
    ),
    strong(
        "kubernetes.mps",
        "NVIDIA's device plugin for Kubernetes has no MPS daemon to share the GPU through",
        r"mps daemon not ready|(waiting for|Failed to start) MPS daemon|using MPS requires --mps-root",
        meaning="Sharing by MPS needs the plugin's control daemon on the node and a folder that both can read.",
        fix="kubectl label node NODE nvidia.com/mps.capable=true, and set mps.root in the plugin's Helm chart",
        follows=("xid.", "bus.", "cuinit.mps"),
    ),
    proof(
        "setup.packages",
        "packages of NVIDIA's driver or of CUDA conflict: usually they come from two sources",
        r"dpkg: error processing archive .{0,160}(nvidia|cuda).{0,200}trying to overwrite",
        r"(nvidia-driver|kmod-nvidia|cuda-drivers)\S* .{0,160}(nothing provides|none of the providers|filtered out by)",
        r"\b(lib)?(nvidia|cuda|cudnn|nccl)[\w.+-]* ?: ?Depends: .{0,200}(to be installed|installable)",
        meaning="Ubuntu's packages and those of NVIDIA's repository are mixed, or an older driver is half installed.",
        fix="sudo apt-get purge '^(lib)?nvidia-.*-[0-9]+' '^cuda-drivers.*' && sudo apt-get autoremove, remove one "
        "source from /etc/apt/sources.list.d (apt-cache policy nvidia-driver-580 shows both), then sudo apt-get update "
        "&& sudo ubuntu-drivers install. For the toolkit take cuda-toolkit-X-Y (the package cuda brings a driver)",
    ),
    strong(
        "setup.vgpu",
        "the virtual GPU (vGPU) has no license, or guest and host have different vGPU releases",
        r"device doesn'?t have valid Grid license|(cudaErrorDevice|CUDA_ERROR_DEVICE_)Not_?Licensed",
        r"License Status *: Unlic|nvidia-gridd\b.{0,99}(fail|error|unlic)|Guest VGPU version is (old|new)",
        meaning="Without a license a vGPU slows down after 20 minutes, and CUDA may refuse to start.",
        fix="in the guest, put the license server's token into /etc/nvidia/ClientConfigToken, then sudo systemctl "
        "restart nvidia-gridd (nvidia-smi -q | grep -i license). Use drivers of one vGPU release in guest and host",
    ),
    strong(
        "windows.device",
        "Windows stopped the GPU, whose driver reports a problem (Code 43; Code 12: it found no memory range)",
        r"\b(gpu|geforce|nvidia|radeon|rtx|gtx|passthrough)\b.{0,120}\b(code|error) 43\b",
        meaning="The driver started and gave up. In a virtual machine, usually the passthrough settings are the cause.",
        fix="for a virtual machine, use UEFI firmware (OVMF), machine q35, CPU host with hidden=1, and a ROM file for "
        "the host's first GPU. Else use DDU in safe mode and the newest driver, then another slot and power cable. If "
        "Code 43 stays, the GPU is probably faulty. For Code 12, turn Above 4G Decoding on and CSM off in the firmware",
        common=(r"stopped this device because it has reported|enough free resources that it can use|\bcode 43\b",),
    ),
    hint(
        "power.loss",
        "the GPU or the machine probably loses power or the PCIe link under load",
        r"\beGPU\b.{0,200}\b(disconnect|drop|los[et]|freez)\w*",
        meaning="A supply, cable, riser or adapter that cannot deliver a GPU's peaks fails before a log is written.",
        fix="as a test, set nvidia-smi -pl WATTS (about 70 % of the limit) and -lgc 300,1500. If it then holds, use a "
        "separate cable for each power plug, a stronger supply and no riser (an eGPU: its supply and cable). "
        "journalctl -b -1 -e shows the last messages, nvidia-smi -q -d TEMPERATURE the heat",
        weak=(
            r"hard-?power-?cut|(\b|_)(train\w*|gpus?|\d0[5-9]0s?|load)\b.{0,160}\b(pc|computer|machine|system|server|"
            r"o/?s)\b.{0,30}\b((shut|turn|power)s? (off|down)|(crash|freez|(re)?(start|boot))\w* .{0,20}(crash|hard|"
            r"instant|and re))",
        ),
        common=(
            r"\b(pc|computer|machine) .{0,30}\b(restart|reboot|shut|turn|power|crash)(s|es|ing)?( down| off)?(?! the)\b"
            r".{0,90}\b(generat\w+|train(ing)?|inference|load)\b|\bcrash\w* my (pc|computer)\b|\bblack ?screens?\b"
            r".{0,200}\b(training|comfy ?ui)\b",
        ),
        symptom=True,
        follows=("xid.", "bus.", "build.", "attention.", "oom.", "kernel."),
    ),
    strong(
        "power.heat",
        "the GPU is at its temperature limit, and slows down or stops the program",
        r"Driver temperature threshold met on GPU|Temperature limit on GPU #?\d+ reached",
        r"(SW|HW) Thermal Slowdown ?: ?Active|\bGPU\b.{0,60}\b(is|was|be|gets?) thermal(ly)?[ -]throttl\w*",
        meaning="At about 83 to 95 °C the driver lowers the clocks. No setting of the program causes it.",
        fix="sudo nvidia-smi -pl WATTS (about 70 % of the limit), clean the fans, and add air flow (a laptop: a "
        "stand). nvidia-smi -q -d TEMPERATURE,PERFORMANCE shows the limit and what slows the GPU",
        conditions=("devices.throttled",),
    ),
    strong(
        "vulkan.software",
        "Vulkan uses the CPU (llvmpipe, lavapipe), not the GPU",
        r"lavapipe is not a conformant vulkan|deviceName ?= ?llvmpipe|(using|selected|device) .{0,30}\bllvmpipe\b",
        meaning="NVIDIA's Vulkan driver is not found: the driver's package or the container has no graphics.",
        fix="export VK_ICD_FILENAMES=/usr/share/vulkan/icd.d/nvidia_icd.json. If that file is missing, install the "
        "driver's package libnvidia-gl-… (a container: NVIDIA_DRIVER_CAPABILITIES=all). Check vulkaninfo --summary",
    ),
    strong(
        "tensorflow.no_gpu",
        "TensorFlow finds no GPU: usually its CUDA libraries are missing or not found",
        r"Num GPUs Available: +0\b|appears to be a GPU, but CUDA is not enabled",
        r"list_physical_devices\(\W{0,3}(device_type ?= ?)?\W{0,2}GPU\W{0,3}\){1,3}\W{0,9}"
        r"(Out\W?\d*\W{0,4}|(is|gives|prints|returns|shows).{0,15})?\[ ?\]",
        meaning="pip's tensorflow needs CUDA's packages beside it. Since 2.11 it has no GPU support in Windows.",
        fix="python -m pip install -U 'tensorflow[and-cuda]' in a new environment (it brings CUDA and cuDNN), and "
        "unset LD_LIBRARY_PATH. 2.16 and 2.17 also need export LD_LIBRARY_PATH=$(python -c 'import glob, nvidia; "
        'print(":".join(glob.glob(nvidia.__path__[0] + "/*/lib")))\'). In Windows use WSL after 2.10',
        weak=(r"\btensorflow\b.{0,300}\b(not|n'?t|cannot|fails?|unable) (\w+ ){0,2}(detect|find|see|us)\w* .{0,9}gpu",),
        follows=("cuinit.", "import.", "nvml.", "cudnn."),
        logged=True,
    ),
    strong(
        "mig.one",
        "a process can use only one MIG instance, and torch shows only that one",
        r"\bMIG\b.{0,900}\bdevice_count\(\)\W{0,4}((is|returns?|shows?|gives?) )?\W{0,8}1\b(?![\d.])",
        r"\bMIG\b.{0,600}(\bonly (1|one|the first) (MIG )?(device|instance|gpu)|\b(uses only|only uses) (1|one)\b)",
        meaning="This is a limit of CUDA. It holds whatever the container or CUDA_VISIBLE_DEVICES lists.",
        fix="start one process for each instance, with one UUID of nvidia-smi -L in its CUDA_VISIBLE_DEVICES. Parallel "
        "training and tensor-parallel servers cannot span instances: use a larger profile, or turn MIG off",
    ),
    strong(
        "mps.none",
        "torch does not see Apple's GPU (Metal)",
        r"MPS device (was )?not found|MPS (is )?not available because",
        r"\bmps\.is_available\(\)\W{0,6}((is|returns?|gives?|shows?) )?\W{0,4}False",
        meaning="Python runs under Rosetta (x86_64), macOS is too old for this torch, or the Mac has an Intel CPU.",
        fix="python -c 'import platform; print(platform.machine(), platform.mac_ver()[0])' must print arm64 (else use "
        "an arm64 Python in a new environment) and 14.0 or newer (torch before 2.9: 13.0). Then pip install -U torch",
        logged=True,
    ),
)
