"""What does not fit together: imports, libraries, compilers, Triton and extensions."""

from __future__ import annotations

from gpucheck import messages
from gpucheck.health.explain.text import Text

_PAIR = "pip install --force-reinstall torch torchvision torchaudio, all from the same index"

TEXTS: tuple[Text, ...] = (
    Text(
        "import.nvjitlink",
        "a foreign CUDA library is loaded in place of torch's",
        (r"undefined symbol: (__nvJitLink|cu(blas|sparse|dnn|solver|fft)|nccl)\w*",),
        "LD_LIBRARY_PATH, a CUDA toolkit or conda brings a libcusparse, libnvJitLink, libcudnn or libnccl of another "
        "version than the wheel's.",
        "unset LD_LIBRARY_PATH and try again; gpucheck doctor shows which libraries are loaded from where",
        source="pytorch issues 111469, 131312 and 134929",
    ),
    Text(
        "import.symbol",
        "a compiled package was built for another torch",
        (
            r"undefined symbol: \w+",
            r"DLL load failed while importing .{0,60}: The specified procedure could not be found",
        ),
        "The file that the message begins with calls something that this torch does not have: it was compiled against "
        "another version.",
        "reinstall that package for this torch (flash-attn, xformers, torchvision …): pip install --no-cache-dir "
        "--force-reinstall --no-deps NAME",
    ),
    Text(
        "import.libcuda",
        "the driver's libcuda is not found",
        (r"libcuda\.so(\.1)?: cannot open shared object file",),
        "No driver, or a container without the capability compute.",
        "gpucheck doctor",
        "proof",
    ),
    Text(
        "import.library",
        "a CUDA library is not found",
        (
            r"lib(cu(dart|dnn|blas|fft|rand|solver|sparse|pti|file)|nccl|nvrtc|nvJitLink|nvToolsExt|nvshmem|torch_cuda)"
            r"[\w-]*\.so[.\d]*: cannot open shared object file",
        ),
        "The package wants a CUDA of another major version than what is installed (the number after .so says which), "
        "or its nvidia-… wheels were left out.",
        _PAIR + "; for another package the wheel of torch's CUDA version",
    ),
    Text(
        "import.nvrtc",
        "NVRTC does not find its own half",
        (r"failed to open (lib)?nvrtc-builtins",),
        "torch compiles some kernels on the way with NVRTC, which loads nvrtc-builtins of exactly its own version. The "
        "NVRTC that was loaded is another than the wheel's, or the wheel's folder lacks the file.",
        "unset LD_LIBRARY_PATH and try again; else " + _PAIR,
    ),
    Text(
        "import.nms",
        "torchvision does not fit torch",
        (
            r"operator torchvision::nms does not exist",
            r"Couldn'?t load custom C\+\+ ops",
            r"extension torchvision.{0,20}not found",
        ),
        "torchvision was built for another torch, or one of the two is the CPU's and the other CUDA's.",
        _PAIR,
        source="torchvision/extension.py",
    ),
    Text(
        "import.torch",
        "torch is not installed here",
        (r"\bNo module named '?torch'?(?![\w.])",),
        "The interpreter that runs has no torch: mostly another environment than the one it was installed in.",
        "python -m pip install torch with that interpreter; gpucheck doctor --python $(which python)",
        "proof",
    ),
    Text(
        "import.shadowed",
        "a file or folder called torch hides torch",
        (
            r"partially initialized module '?torch'? has no attribute",
            r"module '?torch'? has no attribute '?(cuda|Tensor|nn|tensor|__version__)\b",
            r"No module named '?torch\.(nn|cuda|utils)'?; '?torch'? is not a package",
        ),
        "Python imports from the current folder first: a torch.py, or a file named like a module of the standard "
        "library.",
        'python -c "import torch; print(torch.__file__)" shows which; rename it',
    ),
    Text(
        "import.numpy",
        "torch and NumPy do not fit",
        (
            r"A module that was compiled using NumPy 1\.x cannot be run in NumPy 2",
            r"RuntimeError: Numpy is not available",
            r"Failed to initialize NumPy",
        ),
        "A torch before 2.3 was compiled for NumPy 1; or NumPy is missing.",
        "pip install 'numpy<2', or a newer torch",
        "proof",
    ),
    Text(
        "import.glibc",
        "the system's C library is older than the package",
        (r"version [`']?GLIBC(XX)?_[\d.]+'? not found", r"GLIBCXX_[\d.]+'? not found", r"CXXABI_[\d.]+'? not found"),
        "A wheel or extension was built on a newer system, or conda's libstdc++ is hidden by the system's.",
        "conda install -c conda-forge libstdcxx-ng, a newer system, or an older wheel",
        "proof",
    ),
    Text(
        "import.dll",
        "a DLL that torch needs is missing",
        (r"\[WinError (126|127|1114)\].{0,200}", r"fbgemm\.dll"),
        "Windows lacks the Visual C++ runtime, or one of torch's DLLs needs another.",
        "install Microsoft's Visual C++ Redistributable (x64), then reinstall torch",
    ),
    Text(
        "import.segment",
        "a library could not be mapped into memory",
        (messages.NO_SEGMENT,),
        "The host's memory or a limit (ulimit -v) is reached, /tmp is mounted noexec, or too many libraries use "
        "static thread-local storage.",
        "gpucheck memory --device cpu; ulimit -v",
        "hint",
    ),
    Text(
        "bitsandbytes.setup",
        "bitsandbytes finds no CUDA library",
        (
            r"CUDA Setup failed despite (GPU|CUDA) being available",
            r"The installed version of bitsandbytes was compiled without GPU support",
        ),
        "It was installed for another CUDA, or torch sees no GPU.",
        "python -m bitsandbytes; pip install -U bitsandbytes; then gpucheck doctor",
    ),
    Text(
        "compile.libcuda",
        "Triton does not find libcuda",
        (
            r"libcuda\.so cannot found",
            r"libcuda\.so (cannot|can not|could not) be? ?found",
            r"ld: cannot find -lcuda\b",
        ),
        "Triton asks `ldconfig -p` for libcuda.so.1, and the driver's folder is not on its list; old ones leave it to "
        "the linker, which wants a libcuda.so.",
        "sudo ldconfig, or TRITON_LIBCUDA_PATH=/folder/of/libcuda",
        "proof",
        source="triton, backends/nvidia/driver.py",
    ),
    Text(
        "compile.compiler",
        "Triton finds no C compiler",
        (r"Failed to find C compiler", r"No such file or directory: '?(gcc|cc|clang)'?"),
        "torch.compile builds a small launcher with the system's compiler.",
        "apt-get install gcc, or CC=/path/to/compiler",
        "proof",
        source="triton, runtime/build.py",
    ),
    Text(
        "compile.python_h",
        "Python's headers are missing",
        (r"Python\.h: No such file or directory",),
        "torch.compile and extensions build against Python.",
        "apt-get install python3-dev, of the version that runs",
        "proof",
    ),
    Text(
        "compile.resources",
        "a Triton kernel wants more shared memory than the GPU has",
        (r"out of resource: (shared memory|threads|tensor memory|registers)", r"No valid triton configs"),
        "Block sizes and stages were chosen for a larger GPU. It is the memory inside a multiprocessor, not the GPU's "
        "own.",
        "smaller block sizes or num_stages; TORCHINDUCTOR_MAX_AUTOTUNE=0",
        "proof",
        source="triton, runtime/errors.py; triton issue 8182",
    ),
    Text(
        "compile.ptxas",
        "a compiler of CUDA's does not know this GPU, or refuses the code",
        (
            r"PTXASError",
            r"ptxas fatal *: Value '?sm_\w+'? is not defined",
            r"nvrtc: error: invalid value for --gpu-architecture",
            r"Internal Triton PTX codegen error",
            r"`?ptxas`? (stderr|failed with error code)",
        ),
        "The ptxas of Triton's, or torch's NVRTC, is older than the GPU.",
        "a newer torch (it brings Triton), or TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas of a newer CUDA",
    ),
    Text(
        "compile.missing",
        "Triton is not installed",
        (r"Cannot find a working triton installation", r"\bNo module named '?triton'?(?![\w.])", r"TritonMissing"),
        "torch.compile on a GPU needs Triton; on Windows it is a package of its own.",
        "pip install triton (on Windows triton-windows), of the version that this torch asks for",
        "proof",
    ),
    Text(
        "compile.old_gpu",
        "the GPU is too old for torch.compile",
        (r"too old to be supported by the triton GPU compiler", r"GPUTooOldForTriton"),
        "Triton needs compute capability 7.0.",
        "leave torch.compile out; torch._dynamo.config.suppress_errors = True falls back",
        "proof",
    ),
    Text(
        "compile.backend",
        "torch.compile failed",
        (
            r"BackendCompilerFailed",
            r"torch\._inductor\.exc\.InductorError",
            r"torch\._dynamo\.exc\.InternalTorchDynamoError",
        ),
        "The cause stands behind `raised:` in the message.",
        "explain that line; TORCHDYNAMO_VERBOSE=1 and TORCH_LOGS=+dynamo show more",
        "hint",
        symptom=True,
    ),
    Text(
        "nvcc.missing",
        "there is no CUDA toolkit to build with",
        (
            r"CUDA_HOME environment variable is not set",
            r"nvcc: (command )?not found",
            r"error: .{0,40}nvcc.{0,10}No such file",
        ),
        "An extension is compiled at its installation and needs nvcc; torch itself does not.",
        "a wheel in place of a build, or the toolkit of torch's CUDA version with CUDA_HOME set",
        "proof",
    ),
    Text(
        "nvcc.mismatch",
        "the CUDA toolkit is not of torch's version",
        (r"The detected CUDA version \([\d.]+\) mismatches the version that was used to compile\s*PyTorch",),
        "An extension has to be built with the CUDA that torch was built with.",
        "the toolkit of the version in the message with CUDA_HOME set, or a torch of the toolkit's version",
        "proof",
        source="torch/utils/cpp_extension.py",
    ),
    Text(
        "nvcc.arch",
        "the CUDA toolkit does not know an architecture",
        (r"Unsupported gpu architecture '?compute_\w+", r"Unknown CUDA arch \([\w.+]+\) or GPU not supported"),
        "The GPU is newer than the toolkit, or so old that the toolkit dropped it.",
        "another toolkit; TORCH_CUDA_ARCH_LIST names the architectures to build for",
        "proof",
    ),
    Text(
        "nvcc.host_compiler",
        "the C++ compiler is too new for the CUDA toolkit",
        (
            r"unsupported GNU version! gcc versions later than \d+",
            r"unsupported Microsoft Visual Studio version",
            r"The current installed version of .{0,60} is (less|greater) than the",
        ),
        "nvcc accepts host compilers up to a version.",
        "CC=gcc-12 CXX=g++-12, and NVCC_PREPEND_FLAGS='-ccbin g++-12'",
        "proof",
    ),
)
