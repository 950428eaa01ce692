"""Texts of parts that do not match (imports, libraries, compilers, Triton, extensions), and of the kernel log: Xid
errors and lost GPUs.
"""

from __future__ import annotations

from gpucheck import messages, xid
from gpucheck.doctor.condition import Condition
from gpucheck.explain.text import hint, proof, strong, text

# Libraries and symbols of torch, of CUDA and of packages built on them.
_TORCHS = (
    r"(torch|libc10|flash_?attn|xformers|vllm|sgl_kernel|flashinfer|triton|deepspeed|apex_C|amp_C|mmcv|detectron2|"
    r"fbgemm|bitsandbytes|causal_conv1d|mamba|selective_scan|pytorch3d|tensorrt|transformer_engine|exllama|auto_?gptq|"
    r"awq|gsplat|nvdiffrast|cuda|cudnn|cublas|nvidia|nccl)"
)
_CAUSE = {
    "program": "Usually the program is at fault, not the GPU.",
    "device": "The likely cause is the GPU, its memory, its link or its firmware.",
    "either": "The cause may be the program, the driver or the GPU.",
}


# An Xid as people and monitoring tools write it. The words around the number distinguish it from other numbers, so the
# whole phrase must match.
_BEFORE = r"\bXid(s|_errors?| errors?)? ?(\((PCI:)?[0-9a-f:.]+\)|error|code|number|err|detected|is|was)?[:=]? ?#?"
_IN_WORDS = _BEFORE + r"(?P<number>\d+)(?!\d)s?\b"
# Databases and networks have xids too. This pattern matches only a text that consists of an Xid alone. In other texts
# an Xid is a `common` pattern, which counts only if the text mentions GPUs, torch or training.
_TYPED = r"\A.{0,20}" + _BEFORE + r"(?P<number>\d+)(?!\d)\b.{0,20}\Z"
# An Xid in the kernel's log. It is also recognised if a terminal broke a line inside it, because the comma marks the
# end.
_IN_LOG = r"Xid \((PCI:)?[0-9a-f:.]+\): (?P<number>\d+)(,|(?!.))"


# The driver's own words for an Xid, which the log has before the Xid's line or instead of it.
_OTHER_WORDS = {
    119: (r"(?<!Xid \d{3} )GSP RPC timeout", r"_kgspLogXid119\b", r"Timeout waiting for RPC( response)? from GSP")
}


def _of_xid(row: xid.Xid) -> Condition:
    return text(
        "hint" if row in xid.OLDER else "proof" if row.blame == "device" else "strong",
        f"xid.{row.number}",
        f"Xid {row.number}: {row.what}",
        _TYPED,
        _IN_LOG,
        *_OTHER_WORDS.get(row.number, ()),
        number=str(row.number),
        meaning=f"{_CAUSE[row.blame]} The driver reports it in the kernel log.",
        fix=row.step.replace("{card}", "INDEX"),
        follows=tuple(f"xid.{number}" for number in row.follows),
        common=(_IN_WORDS,),
    )


# A setup.py fails like this if neither nvcc nor torch returned a CUDA version: torch is a CPU build, or there is no
# toolkit.
_NO_CUDA = r"NameError: name '?(bare_metal_version|\w*(cuda|nvcc)_version\w*)'? is not defined"

TEXTS: tuple[Condition, ...] = (
    strong(
        "import.nvjitlink",
        "another CUDA library is loaded instead of torch's",
        r"versions_helpers\.cc:\d+: operation \w+.{0,60}failed|undefined symbol: (__nvJitLink|cu(blas|sparse|solver|"
        r"fft|rand|da)|nccl|nvrtc)\w*|lib(cublas|cusparse|cusolver|cufft|nccl|nvJitLink|nvrtc|cudart)\w*\.so[.\d]*: "
        r"undefined symbol|lib(cublas|cusparse|cusolver|cufft|nccl|nvJitLink|nvrtc|cudart)\w*\.so[.\d]*: version "
        r".{1,40} not found|symbol (__nvJitLink|cu(blas|sparse|solver|fft|rand)|nccl)\w*.{0,60}not defined in file|not "
        r"defined in file lib(cublas|cusparse|cusolver|cufft|cudnn|nccl|nvJitLink|nvrtc|cudart)\w*\.so|CublasLt "
        r"version \S{1,12} or higher required|failed to open (lib)?nvrtc-builtins|"
        r"NVRTC_ERROR_BUILTIN_OPERATION_FAILURE|nvrtc-builtins[\w.-]*: (cannot open|not found)|Found cu(SOLVER|BLAS|"
        r"FFT|SPARSE|PTI) version \d+, but JAX was built against",
        r"\bundefined symbol: iJIT_NotifyEvent",
        meaning="LD_LIBRARY_PATH, a CUDA toolkit or conda provides another version of a library than the wheel's.",
        fix="unset LD_LIBRARY_PATH if echo $LD_LIBRARY_PATH prints a folder, and try again. Else pip install the "
        "nvidia-… packages in the versions that `pip show torch` requires, or reinstall torch with them",
    ),
    strong(
        "import.symbol",
        "a compiled package was built for another torch",
        r"undefined symbol: (THP|THC|Py ?Torch|torch_|at_|aoti_torch)\w*",
        r"(libc10|libtorch)\w*\.so[.\d]*:? (cannot open shared object file|version|=> not found)",
        r"was compiled (with|against|for) (a different version of )?(Py)?torch|requires either \W{0,2}pyg-lib",
        r"PyTorch and torch_\w+ were compiled with different CUDA|Cannot (find|load) (DGL C\+\+|Graphbolt)",
        r"(PyTorch|torch) has version .{0,30}(but|while|whereas) .{0,30}(compiled|built) (with|against|for)",
        # Mangled names of at::, c10::, torch:: and caffe2::, and of torch's C interface.
        r"undefined symbol:? _Z\w*([NK](3c10|2at|5torch|6caffe2))",
        _TORCHS + r"[\w./-]*\.so[.\d]*:? undefined symbol(?!:? ?(_*nvJitLink|cu[a-z]|nccl|iJIT))",
        r"DLL load failed while importing \w*" + _TORCHS + r"\w*: The specified procedure could not be found",
        meaning="The first-named file was compiled against another torch and calls functions that this one lacks.",
        fix="reinstall that package for this torch, at the version in its release notes (pip list | grep -i torch): "
        "pip install --no-cache-dir --force-reinstall --no-deps --no-build-isolation NAME==VERSION (or its sources)",
        common=(r"Could not load this library: .{0,200}\.(so|pyd|dll)",),
        follows=("attention.package", "xformers.setup", "bitsandbytes.setup", "import.nvjitlink", "cudnn.version"),
        weak=(r"undefined (\w+/)?\w* ?symbols?", r"The specified procedure could not be found"),
    ),
    strong(
        "import.signature",
        "a package's Python code and its compiled extension are of different releases",
        r"incompatible function arguments\. The following argument types are supported:?.{0,300}(torch|at::)\.?Tensor",
        meaning="The extension's function takes other arguments than the caller passes.",
        fix="pip list shows both releases. Install the pair that belongs together: the release that the caller's "
        "requirements name (mamba-ssm and causal-conv1d are two packages), with --no-build-isolation",
    ),
    proof(
        "import.libcuda",
        "the driver's libcuda is not found",
        r"libcuda\.so(\.1)?: cannot open shared object file(.{0,900}Failed to acquire)?",
        r"CUDA driver library cannot be found|libcuda\.so(\.1)? not found|PTX JIT compiler library not found",
        r"(cudaError|CUDA_ERROR_)Jit_?Compiler_?Not_?Found|libcuda\.so(\.1)?\W{0,3} ?(does not|doesn'?t) exist",
        r"(could not|failed to|unable to|cannot) (load|find|open|dlopen).{0,30}\blib(cuda|nvcuda)\.(so|dll)",
        r"\bmissing libcuda\.so",
        r"\bnvcuda\.dll\b.{0,60}(not found|could not|missing)",
        meaning="There is no driver, or the container lacks the capability compute.",
        fix="install NVIDIA's driver. A container needs --gpus all and NVIDIA_DRIVER_CAPABILITIES=compute,utility",
        follows=("container.", "nvml.", "kernel.", "cuinit.too_old", "compile.libcuda"),
    ),
    strong(
        "import.library",
        "a CUDA library is not found",
        r"Error loading CUDA libraries\. GPU will not be used|Failed to load library \S*onnxruntime_providers_(cuda|"
        r"tensorrt|rocm)|lib(?!cuda\.so|nvidia-ml|nvinfer)(cu|nv)[A-Za-z][\w-]*\.so[.\d]*: cannot open shared object "
        r"file|(could not|failed to|unable to|cannot) (load|open|find) (the )?libcudnn\w*\.so|Library (lib)?(cu(dart|"
        r"blas|fft|rand|solver|sparse)|nvrtc|nvinfer)[\w.]* (is )?not (found|loaded)|Could not load library "
        r"libcudnn\w*|Could not (load|locate) (library )?(lib)?cudnn\w*\.so|Cannot load symbol cudnn\w+|Unable to load "
        r"any of \{lib(cudnn|cublas|nv)|Cannot dlopen some GPU libraries|cu(dart|dnn|blas|fft|rand|solver|sparse)"
        r"\w*\.dll.{0,40}(not (found|conf)|missing|could not)|Could not (load|locate) (library )?(zlibwapi|cudnn\w*|"
        r"cublas\w*|cudart\w*|nvrtc\w*)\.dll|lib(cudart|cublas|cusparse|nvrtc)\.so[.\d]* not found|Failed to create "
        "CUDAExecutionProvider|CUDA backend failed to initialize: Unable to load cu|(libNVVM cannot be found|failed "
        "to open (lib)?nvvm)|CUDA_PATH is set but CUDA wasn'?t able to be loaded|CUDAExecutionProvider (is not avai|"
        "not available in)|"
        r"Specified provider \W?(CUDA|Tensorrt)ExecutionProvider\W? is not in available provider names|lib(nccl|"
        r"torch_cuda)[\w-]*\.so[.\d]*: cannot open shared object file|lib(amdhip64|rocblas|hipblas\w*|MIOpen|rccl|"
        r"hiprtc|rocm\w*|(?<!dlerror: lib)nvinfer\w*|onnxruntime_providers_\w+)[\w-]*\.so[.\d]*: cannot open shared "
        "object file|(Could not|Failed to|Unable to|Cannot) (load|find|open) (dynamic |shared )?(library|module) "
        r"\W?(lib)?(cu(dart|blas|fft|rand|solver|sparse)|nccl|nvrtc)|make sure libcudnn\w*\.so[.\d]* is in your "
        r"library path|execution-provider\w*: invalid choice|LoadLibrary failed with error 126|"
        r"onnxruntime_providers_\w+\.(dll|so) (which )?depends on",
        weak=(
            r"(Applied providers|Available providers|ORT build has|_available_providers).{0,9}\[(Azure.{0,24})?CPUExec"
            r"\w+\]|onnxruntime.{0,200}(get_device\(\)\W{0,20}CPU(?!.?Exec)|(falls?|fell|falling) back to \W?CPU)",
        ),
        meaning="The package needs another major CUDA version (the number after .so), its nvidia-… wheels are missing, "
        "or they are in site-packages/nvidia, where a program other than torch does not look.",
        fix="find / -name 'LIBRARY*' 2>/dev/null shows where it is. If it exists, export LD_LIBRARY_PATH=its folder "
        "(for cuDNN …/site-packages/nvidia/cudnn/lib). Else pip install the nvidia-… package of that version",
        follows=("cudnn.version",),
        logged=True,
    ),
    strong(
        "import.shared",
        "a shared library of a program is not on the loader's path, or not installed",
        meaning="The program was moved away from its libraries, or the image lacks a system package.",
        fix="if the library belongs to the program (libllama, libggml), export LD_LIBRARY_PATH=FOLDER of it (macOS "
        "DYLD_LIBRARY_PATH), or run cmake --install and ldconfig. Else install its package, in a container in the "
        "image: libgomp1, libgl1 (libGL.so.1), libglib2.0-0, libopenmpi-dev (libmpi), libnuma1",
        common=(
            r"error while loading shared libraries: (?!lib(cu|nv|torch|c10|amdhip|hsa|roc))lib\S+: cannot open",
            r"Error: (?!lib(cu|nv|nccl|torch|c10|amdhip|hsa|roc|mio|hip|rccl|bits|onnx|sycl|ur_|ze_|mkl_s))lib[\w.+-]+"
            r"\.so[.\d]*: cannot open|dyld\S*: Library not "
            r"loaded",
        ),
    ),
    strong(
        "import.nms",
        "torchvision does not fit torch",
        r"PyTorch and TorchAudio were compiled with different CUDA|extension torchvision.{0,20}not found",
        r"Couldn'?t load custom C\+\+ ops|partially initialized module '?torchvision'? has no attribute '?extension",
        r"PyTorch and torchvision (were|was|are|have been)? ?compiled with different CUDA",
        r"No module named '?torchvision\._C|torchvision(::|\.)\w+ does not exist",
        r"(No such operator|Could not run|not find the operator) '?torchvision::nms|meta kernel directly to the "
        r"operator \W?torchvision|TorchAudio has CUDA version \d",
        meaning="torchvision was built for another torch, or one is a build for the CPU and the other for CUDA.",
        fix="reinstall torchvision at the release that fits this torch, from the same index of PyTorch",
    ),
    proof(
        "import.torch",
        "torch is not installed here",
        r"\bNo module named '?torch'?(?!\w|\.\w)",
        meaning="The running interpreter has no torch. Usually torch is installed in another environment.",
        fix="python -m pip show torch checks that Python. Use the one with torch, or python -m pip install torch",
        follows=("build.isolation",),
    ),
    strong(
        "build.isolation",
        "a package is built without access to the installed torch",
        r"(Getting requirements to build wheel|get_requires_for_build_wheel|egg_info).{0,3000}Unable to import torch",
        r"(pip-build-env-|get_requires_for_build_wheel|build_meta|Getting requirements to build wheel|pep517|"
        r"build_editable|prepare_metadata_for_build|subprocess-exited-with-error|build-backend|build dependencies|"
        r"builds-v0|setup\.py egg_info|Preparing metadata).{0,8000}(\bNo module named '?torch'?(?!\w|\.\w)|"
        + _NO_CUDA
        + ")",
        r"\bNo module named '?torch'?(?!\w|\.\w).{0,400}(subprocess-exited-with-error|metadata-generation-failed|"
        r"Getting requirements to build wheel did not|egg_info|--no-build-isolation|build isolation)",
        meaning="pip and uv build a package in an isolated environment without torch, but its setup.py imports torch.",
        fix="install torch first, then the package: pip install --no-build-isolation NAME (uv: "
        "no-build-isolation-package in pyproject.toml), and its build tools: setuptools wheel packaging ninja",
        common=(r"--no-build-isolation",),
        # Without a CUDA toolkit, setup.py fails at the same line although torch can be imported.
        unless=r"\binstall\b[^\n]{0,200}--no-build-isolation|--no-build-isolation[^\n]{0,100}\binstall\b|"
        r"nvcc was not found",
    ),
    hint(
        "import.torch_too_old",
        "a package needs another version of torch",
        r"cannot import name '?\w+'? from '?torch\.|Disabling PyTorch because PyTorch >= ?[\d.]+ is required|(requires|"
        r"needs) (at least )?(py)?torch ?(version )?(>=|2\.|1\.|or (newer|above|higher))|Unknown attribute "
        r"allow_fp16_accumulation|invalid literal for int\(\) with base 10: \W?(dev|a0|rc)\d*",
        r"module '?torch(\.\w+)*'? has no attribute '?(?!cuda\b|Tensor\b|nn\b|tensor\b|__version__|_cuda_)\w+|No "
        r"module named '?torch\.(?!_C|nn\b|cuda\b|utils\b)\w+(?!.{0,4}torch.{0,3}is not a package)",
        meaning="The package uses a function that this torch lacks, because torch is older or newer than expected.",
        fix="pip show torch NAME; then install the versions of both that the package's release notes name",
        follows=("import.shadowed", "cuinit.", "torch.cpu_only"),
    ),
    strong(
        "import.shadowed",
        "a file or folder called torch hides torch",
        r"partially initialized module '?torch'? (from .{0,200})?has no attribute",
        r"Failed to load PyTorch C extensions|No module named '?torch\.\w+'?; '?torch'? is not a package",
        r"module '?torch'? has no attribute '?(cuda|Tensor|nn|tensor|__version__)\b",
        r"(cannot import name .{1,40} from|partially initialized module) '?torch'? (\(|has|from).{0,80}circular import",
        meaning="Python first imports from the current folder, which has a torch.py or a file named like a module.",
        fix="python -c 'import importlib.util; print(importlib.util.find_spec(\"torch\").origin)' shows the file. "
        "Rename it if it is yours. If it prints None, torch is half removed: pip uninstall it, delete its folder and "
        "install it again. If you are in torch's own sources, start from another folder",
    ),
    proof(
        "import.numpy",
        "torch, or another package, does not fit this NumPy",
        r"RuntimeError: Numpy is not available|UserWarning: Failed to initialize NumPy",
        meaning="A package was compiled for NumPy 1 (torch before 2.3) and NumPy 2 is installed, or NumPy is missing.",
        fix="pip install 'numpy<2', or update the package that the traceback imports last",
        common=(
            r"NumPy 1\.x cannot be run in|numpy\.dtype size changed|compiled against A[PB]I version 0x",
            r"_ARRAY_API not found|numpy\.core\.multiarray failed to import",
        ),
    ),
    strong(
        "import.twice",
        "two builds of one compiled package are installed or loaded, and register the same names",
        r"generic_type: (cannot initialize )?type .{1,80}(is already registered|name is already defined)",
        r"Only a single TORCH_LIBRARY can be used to register the namespace",
        meaning="Two distributions (NAME and NAME-cu120) share a folder, or LD_LIBRARY_PATH leads to a second copy.",
        fix="pip uninstall -y all that pip list | grep -i NAME shows, and install one. Else unset LD_LIBRARY_PATH",
    ),
    proof(
        "import.glibc",
        "the system's C or C++ library is older than the package",
        r"lib(torch|c10|cu|nccl)\w*\.so[.\d]*: undefined reference to \W?\w+@GLIBC(XX)?_[\d.]+",
        _TORCHS + r"[\w./-]*\.so[.\d]*\)?.{0,120}(GLIBC(XX)?|CXXABI)_[\d.]+'? not found",
        r"(GLIBC(XX)?|CXXABI)_[\d.]+'? not found \(required by [\w./-]{0,99}" + _TORCHS,
        meaning="A wheel or extension was built on a newer system, or the system's libstdc++ hides conda's.",
        fix="conda install -c conda-forge 'libstdcxx-ng>=13', its lib first in LD_LIBRARY_PATH (or module load gcc/13)",
        common=(
            r"lib(c|stdc\+\+|m)\.so\.\d+: version \W?GLIBC(XX)?_[\d.]+\W? not found",
            r"ImportError: .{0,120}(GLIBC(XX)?|CXXABI)_[\d.]+'? not found",
            r"version [`']?GLIBC(XX)?_[\d.]+'? not found|(GLIBCXX|CXXABI)_[\d.]+'? not found",
        ),
        beside=r"torch|cuda|nvidia|flash_attn|xformers|bitsandbytes|vllm|\btriton|singularity|jaxlib|tensorflow|"
        r"onnxruntime",
    ),
    strong(
        "import.dll",
        "a DLL that a compiled package needs is missing",
        r"\[WinError (126|127|182|1114|193|206)\].{0,300}(torch|c10|fbgemm|caffe2|cudnn|cublas|nvrtc|shm\.dll)",
        r"fbgemm\.dll|LoadLibrary failed with error 12[67] .{0,300}onnxruntime_providers_\w+\.dll|module \S+llama\.dll",
        r"Error loading \W?.{0,200}(torch\W{1,2}lib\W{1,2}|torch|c10|fbgemm|caffe2)\w*\.dll",
        r"DLL load failed while importing (?!flash)\w*(cuda|rasteriz|simple_knn|nvdiff|core_cc|onnxrun|tensorf)\w*:",
        r"DLL load failed while importing \w*" + _TORCHS,
        meaning="Windows lacks the Visual C++ runtime, or a DLL that the named one loads (CUDA's, cuDNN's).",
        fix="install Microsoft's Visual C++ Redistributable (x64); then reinstall the package whose DLL is named",
        common=(r"DLL load failed while importing (_C|_ext|\w+_(C|kernels?|ext|ops)):",),
        weak=(r"DLL load failed|WinError 126\b", r"The specified module could not be found"),
        follows=("oom.host",),
    ),
    proof(
        "compile.libcuda",
        "Triton, or the linker, does not find libcuda",
        r"libcuda\.so cannot found|libcuda\.so (cannot|can not|could not) be? ?found",
        r"ld(\.\w+)?: (cannot find|unable to find library|skipping incompatible .{0,120}searching for) -lcuda\b",
        meaning="Triton looks for libcuda.so.1 in `ldconfig -p`; older ones and the linker look for libcuda.so.",
        fix="sudo ldconfig, or set TRITON_LIBCUDA_PATH=FOLDER of libcuda.so. For -lcuda export LIBRARY_PATH=FOLDER "
        "(of a toolkit lib64/stubs). If the folder has only libcuda.so.1: sudo ln -s libcuda.so.1 FOLDER/libcuda.so",
    ),
    proof(
        "compile.compiler",
        "no C or C++ compiler is found",
        r"Failed to find (a )?C(\+\+)? compiler|No working C\+\+ compiler found in torch\._inductor|InvalidCxxCompiler|"
        r"Compiler: (cl|g\+\+|gcc|clang\+\+) is not found|Error checking compiler version for cl|nvcc fatal *: Cannot "
        r"find compiler|Could not find (MSVC|cl\.exe|the compiler).{0,60}(torch|triton|inductor)|Failed to find (MSVC|"
        r"Windows SDK)|\[\W?(which|where)\W{1,4}(g\+\+|c\+\+|gcc|cl)\W?\].{0,4} returned non-zero",
        meaning="Triton, torch.compile and the builds of extensions need the system's compiler.",
        fix="sudo apt-get install build-essential (Fedora, RHEL: sudo dnf install gcc gcc-c++; without root: conda "
        "install -c conda-forge gxx), or set CC=/path/to/compiler. On Windows use Visual Studio's build tools",
        common=(r"No such file or directory: '?(gcc|g\+\+|cc|c\+\+|clang|clang\+\+)'?(?![\w/.])",),
        weak=(
            r"cpp_extension.{0,900}\[WinError 2\]",
            r"\bcl\.exe\b.{0,60}\b(not found|no such file)|\bcl\.exe\b.{0,60}(找不到|未找到)",
        ),
    ),
    proof(
        "setup.shell",
        "NAME=value before a command, and export, are Unix syntax, which Windows's shells do not know",
        r"((CMAKE|CUDA|TORCH|PYTORCH|NCCL|HF|GGML|LLAMA|VLLM|HSA|DS_BUILD|ATTENTION)_\w+?|MAX_JOBS|FORCE_\w+?|export)"
        r"( is not recognized as|不是内部或外部命令| n'est pas reconnu| no se reconoce|(=.{0,90}?)?: The term \1)",
        meaning="The command did not run at all, or without the variable.",
        fix='set NAME=value (no quotes) in its own line, then the command; in PowerShell $env:NAME = "value". For '
        "llama-cpp-python the value is -DGGML_CUDA=on, and pip install needs --force-reinstall --no-cache-dir",
    ),
    hint(
        "compile.launcher",
        "the small launcher that Triton compiles could not be built",
        r"(tcc|gcc|clang|cl)\.exe.{0,300}cuda_utils\.c.{0,500}returned non-zero exit status",
        r"Command '?\[\W*[\w./+-]*(gcc|cc|clang)\W+/tmp/tmp\w+/\w+\.c",
        r"(gcc|cc|clang)\W+/tmp/tmp\w+/(cuda_utils|main|launcher|__triton_launcher)\.c|Failed to compile\. cc_cmd",
        r"CalledProcessError: Command .{0,6}\[.{0,200}\b(cl|gcc|cc|clang|tcc|g\+\+|"
        r"clang\+\+)(\.exe)?\W{1,6}.{0,200}\.c(pp)?\b",
        meaning="The compiler failed, as its output above shows. Usually Python.h or libcuda is missing.",
        fix="run the printed compiler line by hand to see its error. For `cannot find -lcuda`: sudo ldconfig, or set "
        "TRITON_LIBCUDA_PATH=/folder/of/libcuda. For Python.h: apt-get install python3-dev (conda's Python has it)",
        symptom=True,
        follows=("compile.python_h", "compile.libcuda", "compile.compiler", "build.header"),
    ),
    proof(
        "compile.python_h",
        "Python's headers are missing",
        r"include file \W?Python\.h\W? not found|Failed to find Python libs|/tmp/tmp\w+/\w+\.c:\d+.{0,60}Python\.h",
        meaning="torch.compile and extensions need Python's headers.",
        fix="sudo apt-get install python3-dev for the running version (python3.11-dev …; Fedora, RHEL: python3-devel)",
        common=(r"Python\.h: No such file or directory",),
        beside=r"torch|triton|cuda|inductor",
    ),
    proof(
        "compile.cuda_h",
        "CUDA's header cuda.h is not found",
        r"\bcuda\.h: No such file or dir|cuda\.h.{0,4} file not found|Cannot open include file: .{0,2}cuda\.h",
        r"cannot open source file \W?(cuda|cublas|cudnn|cusparse|cusolver|cufft|curand|nccl)\w*\.h",
        meaning="Code is compiled against CUDA. Triton's launcher brings the header; other builds need the toolkit's.",
        fix="set CUDA_HOME to the toolkit of torch's CUDA (Triton: C_INCLUDE_PATH=/usr/local/cuda/include)",
    ),
    proof(
        "compile.resources",
        "a Triton kernel needs more shared memory or stack than the GPU has",
        r"out of resource: (shared memory|threads|tensor memory|registers)",
        r"error: .{0,80}stack frame size \(\d+\) exceeds limit|No valid triton configs|triton.{0,200}OutOfResources",
        meaning="Block sizes and stages were chosen for a larger GPU.",
        fix="use smaller blocks or num_stages in the configuration of the kernel's package, its newest release, or its "
        "option without Triton (vLLM on AMD VLLM_USE_TRITON_FLASH_ATTN=0). Else set TORCHINDUCTOR_MAX_AUTOTUNE=0",
    ),
    proof(
        "compile.ptxas",
        "a CUDA compiler does not know this GPU, or rejects the code",
        r"Triton only supports? CUDA [\d.]+ or higher|Value '?sm_\w+'? is not defined for option",
        r"/ptxas\b.{0,200}returned non-zero exit|Assertion failed: false && .{0,3}computeCapability not supported",
        r"Internal Triton PTX codegen error|`?ptxas`? (stderr|failed with error code)",
        r"ptxas (fatal|error|died)(?!.{0,9}Ptx assembly aborted)|PTX ?\.?version [\d.]+ does not support ?\.?target",
        r"nvrtc: error: invalid value for|'sm_\w+' is not a recognized processor|XLA requires ptxas version",
        r"`?ptxas`? was searched in",
        r"(NVRTC_ERROR|NVJITLINK_ERROR)_(?!BUILTIN)\w+|\.ptx, line .{1,8}; fatal .{1,4}Unsupported ?\.version",
        meaning="Triton's ptxas or torch's NVRTC is older than the GPU.",
        fix="use a newer torch (it brings Triton), or set TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas of a newer CUDA",
        follows=("cuda.feature",),
    ),
    proof(
        "compile.missing",
        "Triton is not installed",
        r"Cannot find a working triton installation|TritonMissing|A matching Triton is not available",
        r"(no working|requires?|needs?) Triton (was )?found|Triton is (not installed|needed for)",
        r"\bNo module named '?triton\b",
        meaning="torch.compile on a GPU needs Triton. On Windows this is a separate package.",
        fix='python -c \'from importlib.metadata import requires; print([r for r in requires("torch") if "triton" in '
        "r])' shows the version that this torch needs: pip install triton==VERSION (on Windows triton-windows)",
    ),
    proof(
        "compile.old_gpu",
        "the GPU is too old for torch.compile",
        r"too old to be supported by the triton GPU compiler|GPUTooOldForTriton",
        meaning="Triton needs compute capability 7.0 or newer.",
        fix="turn torch.compile off. torch._dynamo.config.suppress_errors = True also falls back to eager code",
    ),
    strong(
        "build.header",
        "the compiler does not find a header",
        r"fatal error: \W?mpi\.h\b",
        meaning="The missing header is the cause. The errors below it follow.",
        fix="find / -name 'HEADER' 2>/dev/null shows it: add its folder to CPATH. Else install its package (apt-file "
        "search HEADER, dnf provides '*/HEADER'). In a checkout: git submodule update --init --recursive",
        common=(
            # Headers of CUDA and of Python have their own texts.
            r"fatal error: \W?(?!\S*(cu(da|blas|sparse|solver|rand|fft|dnn)\w*|nvToolsExt|nvrtc\w*|"
            r"Python)\.h)[\w./+-]+\.(h|hpp|cuh)\W{0,4}(No such file|file not found)",
        ),
        follows=("nvcc.", "compile.python_h", "compile.cuda_h", "build.torch"),
    ),
    hint(
        "compile.backend",
        "torch.compile failed",
        r"CompilationError: at \d+:\d+:|FailOnRecompileLimitHit|PY_SSIZE_T_CLEAN macro must be|BackendCompilerFailed|"
        r"hit config\.(recompile_limit|cache_size_limit)|torch\._dynamo\.exc\.(InternalTorchDynamoError|Unsupported|"
        r"TorchRuntimeError|UserError)|torch\._inductor\.exc\.\w+|LoweringException|CppCompileError|PassManager::run "
        r"failed|triton.{0,60}CompileTimeAssertionFailure|while processing an MLIR pass pipeline|Windows not yet "
        r"supported for torch\.compile|(torch\.compile|Dynamo) is not supported on Python \d",
        r"\bInductorError\b|cannot import name '?\w+'? from '?triton\b|triton(\.\w+)*'? has no attribute",
        r"\b(ptxas|Triton) (compilation|codegen) (failed|error)",
        meaning="The message holds the cause, after `raised:` or in the last line of the traceback.",
        fix="set TORCHDYNAMO_DISABLE=1 before the command, or use the program's option without torch.compile: it runs, "
        "more slowly. Then try a newer torch, or the last one that worked. gpucheck explain that line",
        symptom=True,
        weak=(
            r"torch[/\\]_(inductor|dynamo)[/\\]|triton[/\\](compiler|runtime)[/\\]|torchinductor_\w+[/\\]",
            r"\b(torch\.compile|inductor|torch\w*dynamo|triton\.\w+)\b.{0,60}(not working|does not work|error|fail)",
        ),
        follows=("compile.", "cuda.", "oom.", "build.header"),
    ),
    proof(
        "nvcc.missing",
        "the build does not find the CUDA toolkit (nvcc, headers)",
        r"RuntimeError: Failed to find CUDA\.?|CUDA_HOME environment variable is not set|nvcc: (command )?not found|"
        r"(error|make(\[\d\])?): .{0,40}nvcc.{0,10}No such file|No such file or directory: '?[\w./:-]*nvcc|CUDA_HOME "
        r"(does not exist|is not set|not found|must be set)|(cuda_\w+|cublas_v2|cusparse|cusolverDn|curand_kernel|"
        r"nvToolsExt|nvrtc\w*|cudnn\w*)\.h: No such file|Unable to find CUDA_HOME|CUDA_HOME undefined|"
        "MissingCUDAException|(Could not find|Failed to find|No) (nvcc|CUDA_TOOLKIT_ROOT_DIR|CUDA toolkit)|(requires|"
        "needs) nvcc|nvcc (was )?not found|NameError: name '?bare_metal_version'? is not defined|No "
        "CMAKE_CUDA_COMPILER could be found|CUDA_ARCHITECTURES is empty for target|No CUDA toolset found",
        r"set to NOTFOUND.{0,400}CUDA_\w+_LIBRARY",
        r"Could not find (cudnn_LIBRARY|CUDNN\b)|Could NOT find CUDA(Toolkit)?\b|CUDA Toolkit not found|cannot find "
        r"-l(cudart\w*|cudadevrt|cublas|cudnn|curand|cufft|cusparse|cusolver|nvrtc|nvToolsExt)\b",
        r"setup\.py.{0,1500}TypeError: unsupported operand type\(s\) for \+: NoneType and str",
        meaning="The installation compiles an extension and needs nvcc. torch itself does not.",
        fix="install a wheel of the package instead of building it; else install the toolkit of torch's CUDA (python "
        "-c 'import torch; print(torch.version.cuda)' shows X.Y): conda install -c nvidia cuda-toolkit=X.Y, or "
        "NVIDIA's package cuda-toolkit-X-Y, then export CUDA_HOME=/usr/local/cuda-X.Y (one folder without a colon)",
    ),
    proof(
        "nvcc.mismatch",
        "the CUDA toolkit does not match torch's CUDA version",
        r"detected CUDA version \(.{1,12}\) mismatches the version that was used to compile",
        r"Installed CUDA version [\d.]+ does not match the version torch was compiled with|CUDAMismatchException",
        r"compiled with a version of Cuda that does not match the version used to compile Pytorch",
        r"(causal_conv1d|mamba_ssm) is only supported on CUDA [\d.]+ and above",
        meaning="An extension must be built with the same CUDA version as torch.",
        fix="export CUDA_HOME=/usr/local/cuda-X.Y with the installed toolkit of torch's CUDA (python -c 'import torch; "
        "print(torch.version.cuda)'), or install a torch for the version that nvcc --version shows",
    ),
    proof(
        "nvcc.old",
        "nvcc or the C++ compiler is older than the sources expect (C++17, options)",
        r"nvcc fatal *: Value '?(gnu|c)\+\+(1[7-9]|2\d)'? is not defined for option|#error .{0,20}(You need C\+\+1[47]|"
        r"C\+\+1[47] (or later )?compatible compiler)|unrecognized command line option \W?-std=(gnu|c)\+\+1[47]|nvcc "
        r"fatal *: (\S{1,40}: expected a number|Unknown option)|namespace \W?std\W? has no member|The -std=c\+\+1[47] "
        r"flag is not supported with the configured host compiler|namespace \W?cooperative_groups\W? has no member",
        r"cuda_fp8\.h\b|\brequires CUDA \d+(\.\d+)? or (later|newer)\. Current CUDA version",
        r"too old version of GCC",
        meaning="The toolkit is older than CUDA 11, the compiler than gcc 9, or setup.py asks for -std=c++14.",
        fix="nvcc --version shows the toolkit. Install the toolkit of torch's CUDA, set CUDA_HOME, and use gcc 9 or "
        "newer (CXX=g++-11). If the package sets -std=c++14 itself, update it, or write c++17 in its setup.py",
    ),
    strong(
        "nvcc.new",
        "the sources are for an older CUDA toolkit, which still had this header, function or implied #include",
        r"namespace (thrust|cub) has no member|not a member of (thrust|cub(?![a-z]))|texture is not a template|"
        r"(cuda(Un)?BindTexture\w{0,9}?|textureReference|cusparse[SDCZ](csr|bsr|gthr)\w{1,20}?|__shfl(_up|_down|_xor)?)"
        r" ?(is undef|was not decl)|cudaDeviceProp has no member (named )?(\w*clock|compute_?mode)|"
        r"CUDA::nvToolsExt but the target was not found|(cuda/experimental/|texture_fetch)[\w.]+: ?(No such|file n)",
        meaning="CUDA 12 removed texture references and old cuSPARSE calls, 13 cub::Sum and fields of cudaDeviceProp.",
        fix="use the project's newest release or a fork; else set CUDA_HOME to the CUDA toolkit that it names, with a "
        "torch for the same CUDA. For thrust::device write #include <thrust/execution_policy.h> at the top of the file",
    ),
    proof(
        "nvcc.arch",
        "the CUDA toolkit does not know an architecture",
        r"Unsupported gpu architecture '?compute_\w+|Unknown CUDA arch \([\w.+]+\) or GPU not supported",
        r"identifier \W?__(dp[24]a\w*|h(add|mul|fma|sub|max|min)2?|nanosleep|reduce_\w+_sync)\W? is undefined|"
        r"nvcc fatal ?: Unsupported gpu|Value \W?(native|all|all-major|any)\W? is not defined for option",
        meaning="The GPU is newer than the toolkit, or so old that the toolkit dropped it.",
        fix="export TORCH_CUDA_ARCH_LIST with only this GPU's number (nvidia-smi --query-gpu=compute_cap "
        "--format=csv), in CMake CMAKE_CUDA_ARCHITECTURES (OpenCV: CUDA_ARCH_BIN). CUDA 12 dropped numbers below 5.0, "
        "CUDA 13 below 7.5. If nvcc rejects the GPU's own number, use a newer toolkit, for an old GPU an older one",
    ),
    proof(
        "nvcc.host_compiler",
        "the C++ compiler is too new for the CUDA toolkit",
        r"unsupported (GNU|clang) version! (gcc|clang)|unsupported Microsoft Visual Studio version",
        r"No supported gcc/g\+\+ host compiler|argument pack lengths while|class _To> struct std::is_convertible",
        r"nvcc fatal *: Unsupported \w+ compiler found|nvcc fatal *: Host compiler targets unsupported OS",
        r"The current installed version of .{0,60} is (less|greater) than the (min|max)imum required version",
        r"(std_function\.h|\.cuh?|torch\S*)[:(]\d+.{0,30}parameter packs not expanded with",
        r"host_config\.h.{0,60}unsupported|error STL1002: Unexpected compiler version, expected CUDA",
        r"incompatible with that of previous function \W?(cospi|sinpi|rsqrt)|__builtin_ia32\w+\W? is undef",
        meaning="nvcc accepts host compilers only up to a certain version.",
        fix="set CC=gcc-N CXX=g++-N NVCC_PREPEND_FLAGS='-ccbin g++-N' before the build and install that compiler. N is "
        "12 for CUDA 12 (nvcc --version), 10 for CUDA 11, 8 for CUDA 10, 5 for CUDA 9. Else install a newer toolkit",
    ),
    *(_of_xid(row) for row in (*xid.CATALOGUE, *xid.OLDER)),
    hint(
        "xid.unknown",
        "an Xid that gpucheck does not know",
        r"\A.{0,20}" + _BEFORE + r"\d+\b.{0,20}\Z",
        _IN_LOG,
        meaning="NVIDIA's catalogue lists that number as unused, or the number is newer than gpucheck's table.",
        fix=f"look it up: {xid.SOURCE}",
        symptom=True,
        common=(_BEFORE + r"\d+",),
    ),
    strong(
        "nvswitch.sxid",
        "an NVSwitch reported an error (SXid)",
        r"\bSXid ?(\(PCI:[0-9a-f:.]+\))?:? ?\d+",
        meaning="NVSwitches connect the GPUs of a machine and number their errors separately from Xids. After a "
        "`Fatal` error, programs that used the links have ended, and the fabric needs a reset.",
        fix="ignore a non-fatal error. If the line says Fatal, take the node out of use (drain or cordon), then reset "
        "all GPUs and switches together (sudo nvidia-smi -r with nothing running), or reboot",
    ),
    proof(
        "bus.off",
        "a GPU has fallen off the bus",
        r"GPU .{0,60}has fallen off the bus|installed in this system has (NVRM: ?)?fallen off the bus",
        r"fallen off the bus and is not responding|NV_ERR_GPU_IS_LOST|GPU lost from the bus",
        r"\bgpu .{0,12}(fell|f[ae]ll(en|s|ing)?|dropp?(s|ed|ing)) off (of )?(the )?(pcie? )?bus\b",
        meaning="The driver could not reach the GPU over PCIe: because of power, heat, its seat, a riser or the slot.",
        fix=messages.FIX["lost"],
        follows=("xid.",),
    ),
    strong(
        "kernel.rm_init",
        "the driver could not start a GPU",
        "GSP-FMC reported an error|Max GSP-RM boot attempts exceeded|Cannot initialize GSP firmware RM|RmInitAdapter "
        "failed|rm_init_adapter failed|nvidia: probe of [0-9a-f:.]+ failed with error|NVRM: .{0,40}(Cannot attach gpu|"
        "GPU initialization failed)|NVRM: .{0,60}(probe routine failed|Failed to copy vbios)|NVRM: "
        r".{0,60}(kgspBootstrap|GspInit|gpuStateInit)\w*.{0,60}fail|NVRM: None of the NVIDIA devices were initialized|"
        r"NVRM: Open nvidia\.ko is only ready for use on|is not supported by open .{0,10}nvidia\.ko",
        meaning="The GPU exists but did not start: firmware, Above 4G decoding, power, or the wrong kernel module.",
        fix="sudo dmesg | grep -i nvrm shows the lines before it. For a Blackwell GPU install the open kernel module "
        "(nvidia-open); for a large GPU turn on Above 4G decoding. Then power-cycle and reseat the GPU",
        follows=("nvml.mismatch", "bus.", "kernel.key_rejected", "kernel.nouveau", "driver.open_module_needed", "gpu."),
    ),
    hint(
        "kernel.nvrm",
        "NVIDIA's driver logged an error that gpucheck does not know",
        r"NVRM: nv(Check|Assert)(Ok)?Failed\w*:|nv_pmops_suspend\S* \W{0,2}(nvidia\W{1,2})?returns -\d",
        meaning="A check in the driver failed. Many are harmless: a tool queried what the GPU, MIG or firmware lacks.",
        fix="sudo dmesg -T | grep -i -e nvrm -e xid shows the lines around it. nvidia-smi must list every GPU",
        symptom=True,
        follows=("xid.", "bus.", "kernel.", "gpu.", "nvml."),
        weak=(r"\bNVRM: (?!loading).{0,120}(fail|error|fault|time ?out|timed out|invalid|lost|unable|cannot)",),
    ),
    strong(
        "kernel.watchdog",
        "the driver thinks that the GPU hangs",
        r"NVRM: .{0,80}Call timed out \[NV_ERR_TIMEOUT\]|GPU is probably locked|RC watchdog:",
        r"_(kgsp|issue)RpcAndWait|rpcRecvPoll: GSP RPC|_kgspIsHeartbeatTimedOut",
        r"GSP( RM|-RM| firmware)? heartbeat (timeout|timed out|stuck|lost)",
        meaning="A kernel did not end, or the GPU's own processor (GSP) stopped answering. Later Xids follow.",
        fix="drain the node and end what runs on the GPU, then sudo nvidia-smi --gpu-reset -i INDEX, or reboot. If "
        "that fails, power-cycle the machine. If the error returns, use another driver version",
        follows=("xid.", "bus."),
    ),
    hint(
        "kernel.pcie",
        "the PCIe link reports errors",
        r"nvidia [0-9a-f:.]+: AER: can'?t recover|pcieport [0-9a-f:.]+: (AER: )?PCIe Bus Error: severity=",
        r"pcieport [0-9a-f:.]+: AER: (Multiple )?(Un)?correct(ed|able) error (message )?received",
        r"(nvidia|NVRM|amdgpu|GPU).{0,60}(\bAER\b|PCIe Bus Error).{0,80}(Uncorrect|Fatal)",
        meaning="After `Fatal`, the device behind the link may fall off the bus. `Corrected` data were sent again.",
        fix="lspci -tv shows the device at the address. Reseat a GPU, without a riser (gpucheck bench transfer)",
        unless=r"\b(nvme|iwlwifi|ath\d+k?\w*|rtw\w*|r8\d+\w*|e1000e|igb|igc|ixgbe|i40e|ice|mlx\d_core|bnxt_en|xhci_hcd|"
        r"ahci|brcm\w*|megaraid_sas|mpt3sas) [0-9a-f]{4}:",
    ),
    strong(
        "kernel.gpu_hang",
        "an Intel GPU hung and was reset",
        r"\bGPU HANG: ecode|\b(i915|xe)\b.{0,60}(Resetting (chip|rcs\d|\w+) (after|for)|GPU hang|engine reset)",
        meaning="A program's command did not end, and Intel's driver reset the GPU. That program loses its context.",
        fix="start it again. Then update the kernel and Mesa or compute runtime; sudo dmesg | grep -i -e i915 -e xe",
    ),
)
