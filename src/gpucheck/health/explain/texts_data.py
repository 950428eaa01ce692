"""DataLoader workers, shared memory and processes."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.health.explain.text import Text

_SHM = (
    "docker run --shm-size=8g … or --ipc=host (in Kubernetes an emptyDir with medium: Memory on /dev/shm); "
    "df -h /dev/shm"
)

TEXTS: tuple[Text, ...] = (
    Text(
        "shm.bus",
        "a DataLoader worker found no room in /dev/shm",
        (
            r"is killed by signal: Bus error",
            r"Unexpected bus error encountered in worker",
            r"dataloader'?s workers are out of shared memory",
            r"insufficient shared memory \(shm\)",
        ),
        "Workers hand their batches over in shared memory, and a container's /dev/shm is 64 MiB unless it was asked "
        "for more.",
        _SHM + "; num_workers=0 works without",
        source="torch/csrc/DataLoader.cpp",
    ),
    Text(
        "shm.open",
        "shared memory for a tensor could not be made",
        (
            r"unable to open shared memory object",
            r"unable to (mmap|resize|allocate) .{0,40}(shared memory|file </torch)",
            r"unable to write to file </torch_",
            r"torch_shm_manager",
            r"Couldn'?t allocate shared memory segment",
        ),
        "/dev/shm is full or may not be written, or too many files are open: each shared tensor is one.",
        _SHM + "; ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system')",
    ),
    Text(
        "loader.files",
        "too many files are open",
        (r"received \d+ items of ancdata", r"\[Errno 24\]", r"Too many open files"),
        "Every tensor that a worker hands over is a file descriptor until it is freed.",
        "ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system')",
        "proof",
    ),
    Text(
        "loader.killed",
        "a DataLoader worker was killed",
        (r"DataLoader worker \(pid \d+\) is killed by signal: Killed",),
        "The kernel's out-of-memory killer, or somebody. Each worker has a copy of what the dataset holds in Python "
        "objects.",
        "sudo dmesg | grep -i oom; fewer workers, a smaller prefetch_factor, arrays in place of lists",
    ),
    Text(
        "loader.crashed",
        "a DataLoader worker crashed",
        (
            r"DataLoader worker \(pid \d+\) is killed by signal: (Segmentation|Aborted|Illegal|Floating)",
            r"Unexpected (segmentation fault|floating-point exception) encountered in worker",
        ),
        "A library in __getitem__ crashed: OpenCV's threads, a decoder, an HDF5 file opened before the fork.",
        "num_workers=0 shows where; PYTHONFAULTHANDLER=1; cv2.setNumThreads(0); open files in the worker",
    ),
    Text(
        "loader.exited",
        "a DataLoader worker is gone",
        (
            r"DataLoader worker \(pid(\(s\))? [\d, ]+\) exited unexpectedly",
            r"DataLoader worker \(pid \d+\) is killed by signal",
            r"Pin memory thread exited unexpectedly",
        ),
        "The message does not say why. What the worker wrote to stderr before is the cause.",
        "num_workers=0 shows the real error; sudo dmesg | grep -i -e oom -e killed",
        "proof",
        symptom=True,
    ),
    Text(
        "loader.timeout",
        "a DataLoader worker did not deliver in time",
        (r"DataLoader timed out after \d+ seconds",),
        "A worker hangs: slow storage, a lock inherited by fork, or threads of OpenCV.",
        "py-spy dump --pid of a worker shows where; multiprocessing_context='spawn'",
    ),
    Text(
        "process.main",
        "a program starts processes as it is imported",
        (r"An attempt has been made to start a new process before the current process has finished its",),
        "With spawn, as on Windows and macOS, each child imports the main file again.",
        'put the start of the program under `if __name__ == "__main__":`',
        "proof",
    ),
    Text(
        "process.pickle",
        "an object cannot be handed to a child process",
        (r"Can'?t (pickle|get) local object", r"Can'?t pickle <(function|class)", r"cannot pickle '?[\w.]+'? object"),
        "With spawn the dataset, collate_fn and hooks have to be pickled: no lambda, no local function, no open file.",
        "move the function to the module's top level",
        "proof",
    ),
    Text(
        "process.threads",
        "the system gives no more threads",
        (
            messages.NO_THREAD,
            r"OpenBLAS blas_thread_init: pthread_create failed",
            r"Resource temporarily unavailable.{0,40}(thread|fork)",
        ),
        "The limit of processes (ulimit -u, a container's pids limit) or memory is reached: every worker starts "
        "threads of its own.",
        "OMP_NUM_THREADS=1 for workers; ulimit -u; docker run --pids-limit",
    ),
    Text(
        "crash.segfault",
        "the process crashed in compiled code",
        (
            r"Segmentation fault \(core dumped\)",
            r"\bSegmentation fault$",
            r"Fatal Python error: Segmentation fault",
            r"Signals\.SIGSEGV|died with SIGSEGV|Signal 11 \(SIGSEGV\)",
            r"exit ?code:? -11\b",
        ),
        "Libraries that do not belong together (extensions built for another torch), or a driver that fails.",
        "python -X faulthandler … shows the line; then gpucheck smoke",
        "hint",
        symptom=True,
    ),
    Text(
        "crash.bus",
        "the process read memory that is not there",
        (r"\bBus error( \(core dumped\))?\b|died with SIGBUS|Signal 7 \(SIGBUS\)|exit ?code:? -7\b",),
        "Mostly /dev/shm is full; else a memory-mapped file that was cut while it was read.",
        _SHM,
        symptom=True,
    ),
    Text(
        "crash.instruction",
        "the processor does not know an instruction of the program",
        (r"Illegal instruction \(core dumped\)", r"died with SIGILL", r"Signal 4 \(SIGILL\)"),
        "A wheel built for newer processors (AVX2, AVX-512) than this one.",
        "lscpu | grep -i avx; an older or differently built package",
    ),
)
