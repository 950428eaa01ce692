"""A nvidia-smi that asks the NVML it finds and says what NVIDIA's says: `peers.py --doctor` puts it on PATH.

No more of it than the tools that are compared read: the table's head, its rows, `-L`, `-q -x` and `--query-gpu`.
"""

import sys
from typing import Any

import pynvml

FAILED = {
    pynvml.NVML_ERROR_DRIVER_NOT_LOADED: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA "
    "driver. Make sure that the latest NVIDIA driver is installed and running.",
    pynvml.NVML_ERROR_LIBRARY_NOT_FOUND: "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make "
    "sure that the NVIDIA Display Driver is properly installed and present in your system.",
    pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH: "Failed to initialize NVML: Driver/library version mismatch",
    pynvml.NVML_ERROR_UNKNOWN: "Failed to initialize NVML: Unknown Error",
}
MODES = ("Default", "E. Thread", "Prohibited", "E. Process")


def main() -> int:
    """Answer as the arguments ask; the exit status is NVML's code."""
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(FAILED.get(error.value, f"Failed to initialize NVML: {error}"))
        return int(error.value)
    driver, cuda = pynvml.nvmlSystemGetDriverVersion(), pynvml.nvmlSystemGetCudaDriverVersion_v2()
    version = f"{cuda // 1000}.{cuda % 1000 // 10}"
    cards = []
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            cards.append((index, pynvml.nvmlDeviceGetHandleByIndex(index)))
        except pynvml.NVMLError as error:
            print(
                f"Unable to determine the device handle for GPU{index}: 0000:{0x10 + index:02x}:00.0: {_words(error)}"
            )
            return int(error.value)
    _print(driver, version, cards)
    return 0


def _words(error: pynvml.NVMLError) -> str:
    lost = error.value == pynvml.NVML_ERROR_GPU_IS_LOST
    return "GPU is lost.  Reboot the system to recover this GPU" if lost else str(error)


def _print(driver: str, version: str, cards: list[tuple[int, Any]]) -> None:
    asked = next((one.partition("=")[2] for one in sys.argv[1:] if one.startswith("--query-gpu=")), None)
    if asked is not None:
        for index, handle in cards:
            print(", ".join(_field(name, index, handle, driver) for name in asked.split(",")))
    elif "-L" in sys.argv:
        for index, handle in cards:
            print(f"GPU {index}: {pynvml.nvmlDeviceGetName(handle)} (UUID: {pynvml.nvmlDeviceGetUUID(handle)})")
    elif "-x" in sys.argv:
        print(f"<nvidia_smi_log><driver_version>{driver}</driver_version><cuda_version>{version}</cuda_version>")
        print("</nvidia_smi_log>")
    else:
        print(f"| NVIDIA-SMI {driver}   Driver Version: {driver}   CUDA Version: {version} |")
        for index, handle in cards:
            print(f"| {index}  {pynvml.nvmlDeviceGetName(handle)} | {_mode(handle)} | {_mig(handle)} |")


def _field(name: str, index: int, handle: object, driver: str) -> str:
    if name == "memory.total":
        return f"{pynvml.nvmlDeviceGetMemoryInfo(handle).total // 2**20} MiB"
    if name == "compute_cap":
        return "{}.{}".format(*pynvml.nvmlDeviceGetCudaComputeCapability(handle))
    known = {"index": str(index), "driver_version": driver}
    known |= {"name": pynvml.nvmlDeviceGetName(handle), "uuid": pynvml.nvmlDeviceGetUUID(handle)}
    return known.get(name, "[N/A]")


def _mode(handle: object) -> str:
    try:
        return MODES[pynvml.nvmlDeviceGetComputeMode(handle)]
    except pynvml.NVMLError:
        return "N/A"


def _mig(handle: object) -> str:
    try:
        on = pynvml.nvmlDeviceGetMigMode(handle)[0]
    except pynvml.NVMLError:
        return "N/A"
    return "MIG Enabled | No MIG devices found" if on else "MIG Disabled"


if __name__ == "__main__":
    sys.exit(main())
