"""DataLoader workers, shared memory and processes."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.explain.text import Text

_SHM = (
    "docker run --shm-size=8g … or --ipc=host (in Kubernetes an emptyDir with medium: Memory on /dev/shm); "
    "df -h /dev/shm"
)

# What ends a process by a signal, or is told beside that as its cause.
_ERRORS = ("oom.", "cuda.", "nccl.", "shm.", "loader.", "xid.", "assert.", "import.", "hip.", "cuinit.", "compile.")

# What beside a text of Python's makes it torch's.
_TORCH = r"\b(py)?torch\b|torch/|dataloader|lightning[._]|accelerate|deepspeed"

TEXTS: tuple[Text, ...] = (
    Text(
        "shm.bus",
        "a DataLoader worker found no space in /dev/shm",
        (
            r"is killed by signal: Bus error",
            r"Unexpected bus error encountered in worker",
            r"dataloader'?s workers are out of shared memory",
            r"insufficient shared memory \(shm\)",
        ),
        "Workers pass their batches through shared memory, and a container's /dev/shm is 64 MiB by default.",
        _SHM + "; num_workers=0 works without",
        source="torch/csrc/DataLoader.cpp",
    ),
    Text(
        "shm.open",
        "shared memory for a tensor could not be created",
        (
            r"unable to open (file|shared memory object) </?torch_",
            r"unable to (mmap|resize|allocate) .{0,40}(shared memory|file </?torch)",
            r"unable to write to file </?torch_",
            r"torch_shm_manager",
            r"multiprocessing.{0,200}\bctx\.\w*(Lock|Semaphore)\(.{0,40}No space left on device",
        ),
        "/dev/shm is full or may not be written, or too many files are open: each shared tensor is one.",
        _SHM + "; ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system')",
        common=(
            r"unable to open shared memory object",
            r"Couldn'?t allocate shared memory segment",
        ),
        follows=("loader.files",),
    ),
    Text(
        "loader.files",
        "too many files are open",
        (
            r"received \d+ items of ancdata",
            r"Too many open files\. ?Communication with the workers is no longer possible",
        ),
        "Every tensor that a worker passes uses a file descriptor until it is freed.",
        "ulimit -n 65536, or torch.multiprocessing.set_sharing_strategy('file_system')",
        "proof",
        common=(r"\[Errno 24\]", r"Too many open files"),
        beside=_TORCH,
    ),
    Text(
        "loader.killed",
        "a DataLoader worker was killed",
        (r"DataLoader worker \(pid \d+\) is killed by signal: Killed",),
        "The OOM killer or a user ended it. Each worker has a copy of the dataset's Python objects.",
        "sudo dmesg | grep -i oom; fewer workers, a smaller prefetch_factor, arrays instead of lists",
    ),
    Text(
        "loader.crashed",
        "a DataLoader worker crashed",
        (
            r"DataLoader worker \(pid \d+\) is killed by signal: (Segmentation|Aborted|Illegal|Floating)",
            r"Unexpected (segmentation fault|floating-point exception) encountered in worker",
        ),
        "A library in __getitem__ crashed: OpenCV's threads, a decoder, an HDF5 file opened before the fork.",
        "num_workers=0 or PYTHONFAULTHANDLER=1 shows where; cv2.setNumThreads(0), and open files in the worker",
    ),
    Text(
        "loader.exited",
        "a DataLoader worker is gone",
        (
            r"DataLoader worker \(pid(\(s\))? [\d, ]+\) exited unexpectedly",
            r"DataLoader worker \(pid \d+\) is killed by signal",
            r"Pin memory thread exited unexpectedly",
        ),
        "The message does not name the cause. See the worker's earlier output on stderr.",
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
        "a program starts processes while it is imported",
        (),
        "With spawn, as on Windows and macOS, each child imports the main file again.",
        'put the start of the program under `if __name__ == "__main__":`',
        "proof",
        common=(r"An attempt has been made to start a new process before the current process has finished its",),
        beside=_TORCH,
    ),
    Text(
        "process.pickle",
        "an object cannot be passed to a child process",
        (r"torch/multiprocessing/reductions?\.py.{0,400}pickle",),
        "With spawn the dataset, collate_fn and hooks have to be pickled: no lambda, no local function, no open file.",
        "move the function to the module's top level",
        "proof",
        common=(
            r"Can'?t (pickle|get) local object",
            r"Can'?t pickle <(function|class)",
            r"cannot pickle '?[\w.]+'? object",
        ),
        beside=_TORCH,
    ),
    Text(
        "process.threads",
        "the system cannot start more threads",
        (),
        "The process limit (ulimit -u, a container's pids limit) or the memory limit is reached. Every worker starts "
        "its own threads.",
        "OMP_NUM_THREADS=1 for workers; raise ulimit -u or docker run --pids-limit",
        common=(
            r"OpenBLAS blas_thread_init: pthread_create failed",
            r"libgomp: Thread creation failed",
            messages.NO_THREAD,
            r"Resource temporarily unavailable.{0,40}(thread|fork)",
        ),
        beside=_TORCH,
    ),
    Text(
        "crash.segfault",
        "the process crashed in compiled code",
        (
            r"Signal 11 \(SIGSEGV\)",
            r"exitcode ?: ?-11\b",
            r"Segfault encountered",
            r"exits with return code = -11\b",
            r"\A\W*(fatal python error: )?(segfault|segmentation fault)( \(core dumped\))?\W*\Z",
            r"ERROR: Unexpected segmentation fault encountered in worker",
        ),
        "Libraries do not match (extensions built for another torch), or a driver fails.",
        "python -X faulthandler … shows the line; then run it in a fresh environment with only torch",
        "hint",
        symptom=True,
        common=(
            r"\b(segfaults?|segmentation fault)\b.{0,20} (on|in|with|when|during|at|after)\b",
            r"\bsegmentation faults? (result|error)s?\b",
            r"return ?code ?[=:]? ?-11\b",
            r"terminated with signal SIGSEGV",
            r"Windows fatal exception: access violation",
            r"Process finished with exit code -1073741819",
            r"interrupted by signal 11",
            r"Fatal Python error: Segmentation fault",
            r"Segmentation fault \(core dumped\)",
            r"\b(Segmentation fault|segfault)\W*$",
            r"Segmentation fault: address not mapped",
            r"Caught signal 11 \(Segmentation fault",
            r"\b(SIGSEGV|exit code 139|signal 11)\b",
            r"exit ?code ?:? ?-11\b",
        ),
        follows=_ERRORS,
    ),
    Text(
        "crash.abort",
        "the process aborted in compiled code (SIGABRT)",
        (
            r"Signal 6 \(SIGABRT\)",
            r"exitcode ?: ?-6\b",
        ),
        "A library found an error that it cannot handle and printed it before: a C++ exception (`what():`), an "
        "assertion, or NCCL's watchdog.",
        "explain the lines before the abort: they name the cause",
        "hint",
        symptom=True,
        common=(
            r"double free detected in tcache",
            r"SIGABRT received at time",
            r"Fatal Python error: Aborted",
            r"terminated with signal SIGABRT",
            r"return ?code ?[=:]? ?-6\b",
            r"died with <?(Signals\.)?SIGABRT",
            r"Aborted \(core dumped\)",
            r"Fatal Python error: Aborted",
        ),
        follows=_ERRORS,
    ),
    Text(
        "crash.bus",
        "the process read memory that does not exist",
        (
            r"Signal 7 \(SIGBUS\)|exitcode ?: ?-7\b|exits with return code = -7\b",
            r"\A\W*bus error( \(core dumped\))?\W*\Z",
        ),
        "Usually /dev/shm is full. Otherwise a memory-mapped file was truncated while it was read.",
        _SHM,
        symptom=True,
        common=(
            r"terminated with signal SIGBUS",
            r"Fatal Python error: Bus error",
            r"Bus error \(core dumped\)",
            r"\bBus error$",
            r"\bSIGBUS\b",
            r"(exit|return) ?code ?[=:]? ?-7\b",
            r"Caught signal 7 \(Bus error",
        ),
        follows=_ERRORS,
    ),
    Text(
        "crash.instruction",
        "the processor does not know an instruction of the program",
        (
            r"died with <?(Signals\.)?SIGILL",
            r"Signal 4 \(SIGILL\)",
            r"exitcode ?: ?-4\b",
            r"\A\W*illegal instruction( \(core dumped\))?\W*\Z",
        ),
        "A wheel built for newer processors (AVX2, AVX-512) than this one.",
        "lscpu | grep -i avx; an older or differently built package",
        common=(r"Illegal instruction( \(core dumped\))",),
    ),
)
