"""The driver, NVML and cuInit: why CUDA does not start."""

from __future__ import annotations

from gpucheck.health.explain.text import Text

_DOCTOR = "gpucheck doctor"
_DRIVER = "NVIDIA, CUDA Driver API, CUresult"
_NVML = "NVIDIA, NVML API reference, nvmlReturn_t"

TEXTS: tuple[Text, ...] = (
    Text(
        "cuinit.3",
        "CUDA's driver does not initialise",
        (
            r"CUDA driver initialization failed, you might not have a CUDA gpu",
            r"CUDA_ERROR_NOT_INITIALIZED",
            r"Error 3: initialization error",
        ),
        "cuInit answers 3. With the open kernel module and some kernels it is its memory management (HMM) that does "
        "not start, and nvidia-smi works all the same.",
        _DOCTOR,
        source="NVIDIA/open-gpu-kernel-modules issues 797, 901 and 947",
    ),
    Text(
        "cuinit.34",
        "the libcuda that is found is a stub",
        (r"CUDA driver is a stub library",),
        "A CUDA toolkit's stubs folder is in LD_LIBRARY_PATH, and its libcuda was loaded in place of the driver's.",
        "take the folder that ends in /stubs out of LD_LIBRARY_PATH",
        "proof",
        source="NVIDIA/warp issue 219",
    ),
    Text(
        "cuinit.46",
        "another process has the GPU for itself",
        (r"all CUDA-capable devices are busy or unavailable", r"CUDA-capable device\(s\) is/are busy or unavailable"),
        "The GPU's compute mode lets one process at a time use it, or none; a virtual GPU without licence says so too.",
        "nvidia-smi -q -d COMPUTE; sudo nvidia-smi -c 0 lets several in",
        source=_DRIVER,
    ),
    Text(
        "cuinit.100",
        "CUDA finds no GPU",
        (
            r"No CUDA GPUs are available",
            r"no CUDA-capable device is detected",
            r"CUDA_ERROR_NO_DEVICE",
        ),
        "cuInit answers 100: CUDA_VISIBLE_DEVICES hides every GPU, MIG is on without an instance, a container has "
        "none, or the driver sees none.",
        _DOCTOR,
        source=_DRIVER,
    ),
    Text(
        "cuinit.no_driver",
        "there is no NVIDIA driver for torch to find",
        (r"Found no NVIDIA driver on your system",),
        "libcuda could not be loaded: the driver is not installed, or a container was started without it (`--gpus "
        "all`, and NVIDIA_DRIVER_CAPABILITIES with compute).",
        _DOCTOR,
        source="torch/cuda/__init__.py, torch/csrc/cuda",
    ),
    Text(
        "cuinit.too_old",
        "the driver is older than torch's CUDA",
        (
            r"The NVIDIA driver on your system is too old \(found version",
            r"CUDA driver version is insufficient for CUDA runtime version",
            r"cudaErrorInsufficientDriver",
            r"forward compatibility was attempted on non.supported HW.{0,40}insufficient",
        ),
        "The driver serves CUDA up to the number that nvidia-smi shows, and the wheel is of a newer major version: "
        "13.x needs 580 or newer, 12.x 525, 11.x 450.",
        "update the driver, or install a wheel of an older index; gpucheck doctor names it",
        "proof",
        source="NVIDIA, CUDA compatibility, minimum driver versions",
    ),
    Text(
        "cuinit.101",
        "CUDA_VISIBLE_DEVICES names a GPU that is not there",
        (r"Error 101: invalid device ordinal",),
        "The list was read and one of its entries is no device.",
        "gpucheck devices shows the indices and UUIDs that exist",
    ),
    Text(
        "cuinit.802",
        "the fabric between the GPUs is not ready",
        (r"system not yet initialized", r"CUDA_ERROR_SYSTEM_NOT_READY", r"\bError 802\b"),
        "cuInit answers 802: on machines with NVSwitch the fabric manager does not run, or is not of exactly the "
        "driver's version; in a confidential virtual machine the GPUs are not set ready.",
        "systemctl status nvidia-fabricmanager; then gpucheck doctor",
        source="pytorch issue 35710; huggingface_hub issue 4134",
    ),
    Text(
        "cuinit.803",
        "libcuda and the kernel module are of different versions",
        (r"unsupported display driver / cuda driver combination", r"\bError 803\b"),
        "cuInit answers 803: the driver was updated and not reloaded, or a container or LD_LIBRARY_PATH brings "
        "another libcuda.",
        "restart the container, or reboot; gpucheck doctor shows both versions",
        source=_DRIVER,
    ),
    Text(
        "cuinit.804",
        "the forward-compatibility libcuda does not serve this GPU",
        (r"forward compatibility was attempted on non.supported HW", r"\bError 804\b"),
        "cuInit answers 804: a folder called compat brings a newer libcuda, which works on data-centre GPUs alone.",
        "take the compat folder out of LD_LIBRARY_PATH (or of the image), or update the driver",
        "proof",
        source=_DRIVER,
    ),
    Text(
        "cuinit.mps",
        "the MPS daemon does not serve this process",
        (
            r"\bError (80[5-9]|810)\b",
            r"MPS client failed to connect to the MPS control daemon",
            r"remote procedural call between the MPS server and the MPS client failed",
            r"MPS server is not ready to accept new MPS client requests",
            r"hardware resources required to (create MPS client|support device connections) have been exhausted",
            r"MPS client has been terminated",
        ),
        "CUDA_MPS_PIPE_DIRECTORY, or its usual place, leads to a daemon that is not there, belongs to another user, or "
        "takes no more clients.",
        "start nvidia-cuda-mps-control -d, or unset CUDA_MPS_PIPE_DIRECTORY; gpucheck doctor tells which it is",
        source=_DRIVER,
    ),
    Text(
        "cuinit.999",
        "CUDA does not start and gives no reason",
        (
            r"CUDA unknown error - this may be due to an incorrectly set up environment",
            r"Error 999: unknown error",
            r"CUDA_ERROR_UNKNOWN",
            r"CUDA error: unknown error",
        ),
        "cuInit answers 999: /dev/nvidia-uvm is missing or not allowed, the memory module lost its state in a "
        "suspend, or CUDA_VISIBLE_DEVICES was changed after CUDA had started.",
        _DOCTOR,
        "hint",
        source="pytorch issues 49081 and 88639",
    ),
    Text(
        "cuinit.unexpected",
        "CUDA does not start",
        (r"Unexpected error from cudaGetDeviceCount\(\)",),
        "cuInit's code stands behind the word Error at the end of the message.",
        _DOCTOR,
        "hint",
        symptom=True,
    ),
    Text(
        "torch.cpu_only",
        "this torch is built without CUDA",
        (
            r"Torch not compiled with CUDA enabled",
            r"Torch not compiled with XPU enabled",
            r"Cannot get CUDA generator without ATen_cuda library",
        ),
        "The wheel is the CPU's: pip took it from an index without CUDA, or another package pulled it in over a CUDA "
        "one.",
        "gpucheck doctor names the command that installs the right one",
        "proof",
        source="torch/cuda/__init__.py; pytorch issue 30528",
    ),
    Text(
        "torch.no_accelerator",
        "torch has no device beside the CPU",
        (
            r"Cannot access accelerator device when none is available",
            r"\bfp16 mixed precision requires a GPU",
            r"No supported gpu backend found",
            r"using GPU.{0,20}but (there are no GPUs|no GPU is) available",
        ),
        "Something asked for the accelerator (pinned memory, mixed precision, a trainer's GPU) and torch sees none.",
        _DOCTOR,
        "proof",
    ),
    Text(
        "nvml.mismatch",
        "NVIDIA's libraries and the kernel module are of different versions",
        (
            r"Driver/library version mismatch",
            r"RM has detected an NVML/RM version mismatch",
            r"NVRM: API mismatch",
        ),
        "The driver was updated and the old kernel module is still loaded.",
        "reboot, or unload and load the modules: sudo rmmod nvidia_uvm nvidia_drm nvidia_modeset nvidia && sudo "
        "modprobe nvidia",
        "proof",
        source=_NVML,
    ),
    Text(
        "nvml.unknown",
        "NVML lost its right to the devices",
        (r"Failed to initialize NVML: Unknown Error",),
        "In a container: systemd reloaded its units and took the devices away from the container's cgroup.",
        "start the container anew; to prevent it, hand the devices in by CDI or with --device",
        source="NVIDIA/nvidia-container-toolkit issue 48",
    ),
    Text(
        "nvml.permission",
        "the device nodes may not be opened",
        (
            r"Failed to initialize NVML: Insufficient Permissions",
            r"NVMLError_NoPermission",
            r"NVML: Insufficient Permissions",
        ),
        "The user is not allowed to read and write /dev/nvidia*, or what was asked needs root.",
        "ls -l /dev/nvidia*; on clusters ask for a GPU in the job",
        source=_NVML,
    ),
    Text(
        "nvml.not_loaded",
        "the driver's kernel module is not loaded",
        (
            r"couldn'?t communicate with the NVIDIA driver",
            r"Failed to initialize NVML: Driver Not Loaded",
            r"NVMLError_DriverNotLoaded",
            r"\bDriver Not Loaded\b",
        ),
        "After a kernel update the module was not built for the new one, nouveau has the card, or Secure Boot refuses "
        "it.",
        "sudo modprobe nvidia says why; then gpucheck doctor",
        source=_NVML,
    ),
    Text(
        "nvml.no_library",
        "NVML is not installed",
        (
            r"NVML Shared Library Not Found",
            r"NVMLError_LibraryNotFound",
            r"NVIDIA Management Library \(NVML\) not found",
        ),
        "libnvidia-ml.so.1 cannot be loaded: no driver, or a container without the capability utility.",
        _DOCTOR,
        source=_NVML,
    ),
    Text(
        "nvml.no_devices",
        "the driver is there and finds no GPU",
        (r"No devices were found",),
        "The module is loaded and no card answers it: Blackwell needs the open kernel module, a card may be handed to "
        "a virtual machine or have failed to start.",
        "sudo dmesg | grep -i nvrm; then gpucheck doctor",
        source="NVIDIA/open-gpu-kernel-modules issues 862 and 872",
    ),
    Text(
        "nvml.lost",
        "a GPU does not answer any more",
        (
            r"GPU is lost",
            r"Unable to determine the device handle for GPU",
            r"NVMLError_GpuIsLost",
        ),
        "The card was there and is gone: fallen off the bus, mostly by power, heat or its seat.",
        "sudo dmesg | grep -i -e xid -e 'fallen off'; then power the machine off and on",
        "proof",
        source=_NVML,
    ),
    Text(
        "nvml.reset",
        "a GPU has to be reset before it can be used",
        (r"GPU requires reset", r"NVMLError_ResetRequired"),
        "The driver stopped using the card after an error that it could not clear.",
        "sudo nvidia-smi --gpu-reset -i INDEX; gpucheck devices shows the recovery action that the driver asks for",
        "proof",
        source=_NVML,
    ),
    Text(
        "nvml.wsl",
        "Windows does not let WSL use the GPU",
        (r"GPU access blocked by the operating system",),
        "Windows' driver is too old, the card is in TCC mode, or a Linux driver inside WSL hides Windows' library.",
        "update NVIDIA's driver in Windows and remove every nvidia package inside WSL",
        source="microsoft/WSL issues 9938 and 11865",
    ),
    Text(
        "nvml.pynvml",
        "the pynvml package is deprecated",
        (r"The pynvml package is deprecated", r"pynvml package is deprecated"),
        "A warning alone: the maintained package of the same module is nvidia-ml-py.",
        "pip uninstall pynvml && pip install --force-reinstall nvidia-ml-py",
        "proof",
    ),
    Text(
        "container.no_runtime",
        "docker does not know how to hand in GPUs",
        (
            r"could not select device driver .{0,6}with capabilities: \[\[gpu\]\]",
            r"unknown or invalid runtime name: nvidia",
            r"unresolvable CDI devices nvidia\.com/gpu",
            r"failed to discover GPU vendor from CDI",
        ),
        "NVIDIA's container toolkit is not installed on the host, or docker was not told of it.",
        "sudo nvidia-ctk runtime configure --runtime=docker && sudo systemctl restart docker",
        "proof",
    ),
    Text(
        "container.cli",
        "NVIDIA's container toolkit finds no driver on the host",
        (r"nvidia-container-cli: (initialization error|requirement error|mount error|detection error)",),
        "What follows in the message is the host's fault, not the image's: no driver, another version, or a CUDA that "
        "the image requires and the driver does not serve.",
        "nvidia-smi on the host; then gpucheck doctor there",
    ),
    Text(
        "kernel.key_rejected",
        "Secure Boot refuses the driver's kernel module",
        (
            r"modprobe: ERROR: could not insert 'nvidia.{0,10}: Key was rejected by service",
            r"could not insert 'nvidia.{0,10}: Required key not available",
            r"Loading of module with unavailable key is rejected",
        ),
        "The module is not signed with a key that the firmware trusts.",
        "enrol the key (sudo mokutil --import …, then reboot), or turn Secure Boot off",
        "proof",
    ),
    Text(
        "kernel.build",
        "the driver's kernel module could not be built",
        (
            r"Bad return status for module build on kernel",
            r"Building module.{0,200}/nvidia/.{0,200}make\.log",
        ),
        "DKMS compiles the module for each kernel, and the compiler refused it: the kernel is newer than the driver "
        "knows, its headers are missing, or it was built by another compiler. Without a module there is no GPU.",
        "tail -n 40 the make.log that is named; then a newer driver, or the kernel of before",
    ),
    Text(
        "jetson.memory",
        "a Jetson's memory manager does not answer",
        (r"NvRmMemInit(Nvmap)? ?failed", r"NvRmMemMgrInit ?failed"),
        "CUDA on a Jetson starts with /dev/nvmap. `Permission denied`: the user is not in the groups video and render; "
        "`No such file`: the container was started without NVIDIA's runtime, or its image is of another JetPack.",
        "sudo usermod -aG video,render $USER, then log in anew; for a container docker run --runtime nvidia with an "
        "image of the host's JetPack",
        source="dusty-nv/jetson-containers issues 384 and 1136",
    ),
    Text(
        "kernel.wrong_module",
        "the driver's module was not built for the kernel that runs",
        (r"modprobe: FATAL: Module nvidia not found in directory", r"nvidia: version magic"),
        "After a kernel update the module has to be built again.",
        "install the headers of the running kernel, then sudo dkms autoinstall",
        "proof",
    ),
)
