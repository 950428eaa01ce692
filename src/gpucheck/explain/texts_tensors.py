"""Tensors on the wrong device, of the wrong data type, or asked for what a device does not have."""

from __future__ import annotations

from gpucheck.explain.text import Text

_TO = (
    "x = x.to(device): .to() returns a new tensor and leaves the old; for a module model.to(device), "
    "before the optimizer is made"
)

TEXTS: tuple[Text, ...] = (
    Text(
        "tensor.device_mismatch",
        "two tensors are on different devices",
        (
            r"Expected all tensors to be on the same device",
            r"but found at least two devices",
            r"tensors? (to be )?on the same device, but got",
            r"Unhandled FakeTensor Device Propagation",
            r"is on .{1,12}, but expected .{0,30} to be on",
            r"found two different devices",
            r"Tensor on device \w+ is not on the expected device",
            r"Placeholder storage has not been allocated on MPS device",
            r"Expected object of (device type|backend) \w+ but got (device type|backend) \w+",
            r"Input and (hidden|parameter) tensors are not at the same device",
            r"arguments are located on different GPUs",
            r"expected device \w+(:\d)? but got device",
            r"legacy constructor expects device type",
            r"argument should be a 1D CPU int64 tensor",
            r"\(device=.{1,12}\) and weight\(device=.{1,12}\) +must be on the same device",
            r"Attempted to set the storage of a tensor on device",
            r"Passed CPU tensor to MPS op",
            r"(query|q|key|value).{0,40}(must|to) (all )?be on the same device",
            r"module must have its parameters and buffers on device",
            r"(tensors|model and input|parameters) .{0,30}on different devices",
        ),
        "One operand was not moved. The message names both devices: the one that is `cpu` is mostly a tensor that was "
        "made in forward() or a buffer that is no registered buffer.",
        _TO + "; torch.zeros(…, device=x.device); self.register_buffer",
        "proof",
    ),
    Text(
        "tensor.type_mismatch",
        "the input and the weights are of different types or devices",
        (
            r"Input type \(.{1,40}\) and (weight|bias) type \(.{1,40}\) should be the same",
            r"Expected object of (type|scalar type|data type) [\w.]+ but (found|got) (type|scalar type|data type)",
            r"expected type torch\.[\w.]+ but got torch\.[\w.]+",
        ),
        "torch.cuda.FloatTensor is on the GPU and torch.FloatTensor on the CPU: one of them was not moved. HalfTensor "
        "against FloatTensor is the data type.",
        _TO,
        "proof",
    ),
    Text(
        "tensor.dtype",
        "two tensors are of different data types",
        (
            r"expected scalar type \w+ but found \w+",
            r"mat1 and mat2 (must|to) have the same dtype",
            r"(must|to) have the same dtype, but got",
            r"expected m1 and m2 to have the same dtype",
            r"Found dtype \w+ but expected \w+",
            r"expected (data type|dtype) .{0,30}but got .{0,30}dtype",
            r"self and mat2 must have the same dtype",
            r"mixed dtype \(CPU\): expect",
            r"(query|q|key|value)\b.{0,30}(must|to|should) (all )?have (the )?same dtype",
            r"Expected tensor for argument .{0,60}to have (one of the following )?scalar types?",
            r"expected mat1 and mat2 to have the same dtype",
            r"value cannot be converted to type at::(Half|BFloat16)",
            r"Index put requires the source and destination dtypes match",
            r"result type \w+ can'?t be cast to the desired output type",
            r"expected query, key, and value to have the same dtype",
        ),
        "A part of the model is in float16 or bfloat16 and another in float32, or an index is no integer.",
        "model.to(dtype) and x.to(dtype) alike, or the step under torch.autocast",
        "proof",
    ),
    Text(
        "tensor.not_implemented",
        "torch has no code for this data type on this device",
        (
            r"not implemented for '?(Half|BFloat16|Float|Double|Long|Int|Bool|Byte|Char)\b",
            r"not implemented for '?(Complex|Float8_)\w+",
            r"\w+ not implemented for '?(UInt\d+|Float4\w+)",
            r"_(cpu|cuda|mps)\w*\W? not (currently )?implemented for",
        ),
        "float16 on the CPU, float8 outside of matrix products and integers in a loss are the usual ones.",
        "x.float(), or bfloat16; on the GPU where the CPU has none",
        "proof",
    ),
    Text(
        "tensor.numpy",
        "a tensor on a device was given to NumPy",
        (
            r"can'?t convert .{1,12} device type tensor to numpy",
            r"can'?t convert (a )?(CUDA|MPS|XPU|HIP) tensor to numpy",
            r"Can'?t call numpy\(\) on Tensor that requires grad",
        ),
        "NumPy works in the host's memory, and knows no gradients.",
        "x.detach().cpu().numpy()",
        "proof",
    ),
    Text(
        "tensor.meta",
        "a tensor without data was used",
        (
            r"Cannot copy out of meta tensor; no data",
            r"Tensor\.item\(\) cannot be called on meta tensors",
            r"is on the meta device, we need a `?value`?",
            r"(weight|bias|parameter|tensor)s? .{0,40}(is|are) on (the )?meta device",
        ),
        "The module was made on the meta device (init_empty_weights, low_cpu_mem_usage, device_map) and a part never "
        "got weights.",
        "model.to_empty(device=…) and load the weights, or load with device_map and leave .to() out",
        "proof",
    ),
    Text(
        "tensor.backend",
        "an operation does not exist on this device",
        (
            r"Could not run '?[\w:.]+'? with arguments from the '?\w+'? backend",
            r"Not compiled with (GPU|CUDA) support",
            r"implementation for device \w+(:\d)? not found",
            r"is not implemented on (CPU|GPU|CUDA)\b",
        ),
        "The operation has no code for the device named: an extension built for the CPU alone, or a torch without "
        "CUDA beside a package with it.",
        "reinstall the package that the operation's name begins with, at the version made for this torch (torchvision: "
        "pip list | grep -i torch, both with or both without +cu…)",
        follows=("xformers.setup", "import.nms"),
    ),
    Text(
        "tensor.load",
        "a checkpoint was saved on a device that is not here",
        (
            r"Attempting to deserialize object on (a )?(CUDA|MPS|XPU) device",
            r"on CUDA device \d+ but torch\.cuda\.device_count\(\) is \d+",
            r"don'?t know how to restore data location of",
        ),
        "torch.load puts tensors where they were saved.",
        'torch.load(path, map_location="cpu"), then model.to(device)',
        "proof",
        follows=("cuinit.", "torch.cpu_only", "nvml."),
    ),
    Text(
        "tensor.indices",
        "an index is on another device than the tensor",
        (r"indices should be either on .{1,12}or on the same device as the indexed tensor",),
        "A tensor on the CPU was indexed with one on the GPU.",
        "x[index.to(x.device)]",
        "proof",
    ),
    Text(
        "tensor.generator",
        "the random generator is on another device",
        (r"Expected a '?\w+'? device type for generator but found '?\w+'?",),
        "torch.randperm, a sampler or a DataLoader got a generator of another device, often after "
        "torch.set_default_device.",
        "torch.Generator(device=…) of the tensors' device; for a DataLoader the CPU's",
        "proof",
    ),
    Text(
        "tensor.pin",
        "a tensor that is not in host memory was to be pinned",
        (r"cannot pin '?.{1,40}'? only dense CPU tensors can be pinned",),
        "The dataset returns tensors on the GPU, and the DataLoader has pin_memory=True.",
        "leave the dataset's tensors on the CPU, or pin_memory=False",
        "proof",
    ),
    Text(
        "tensor.device_string",
        "the name of a device is not understood",
        (r"Invalid device string", r"Expected one of cpu, cuda, ipu, xpu", r"Device string must not be empty"),
        "Devices are cpu, cuda, cuda:1, mps, xpu, meta.",
        "write cuda, cuda:0, cpu, mps or xpu; gpucheck devices shows what torch calls each",
        "proof",
    ),
    Text(
        "mps.float64",
        "Apple's GPU (Metal) has no float64",
        (r"Cannot convert a MPS Tensor to float64", r"MPS framework doesn'?t support float64"),
        "Metal computes in 32 and 16 bits. NumPy's arrays are float64 unless made otherwise.",
        "torch.from_numpy(a.astype('float32')).to('mps')",
        "proof",
    ),
    Text(
        "mps.operation",
        "an operation does not exist for Apple's GPU (Metal)",
        (
            r"MPS(NDArray|Graph)\w*\.mm:\d+: ?failed assertion"
            r"(?!.{0,200}(total bytes|not large enough|product of dim|INT_MAX))",
            r"Device mps not supported",
            r"is not current(ly)? (implemented|supported).{0,60}(for|on|at) the MPS (device|backend)",
            r"not (yet )?(implemented|supported) (on|for|at|by|with) (the )?MPS\b",
            r"\w+ (is|are) not supported (on|for) MPS",
            r"\bMPS: \w+ .{0,60}not (supported|implemented)",
            r"not supported at the MPS device",
            r"\bMPS does not support \w+ (op|operation|operator)\b",
            r"LLVM ERROR: Failed to infer result type",
            r"The operator 'aten::\w+.{0,40}MPS",
        ),
        "torch has no Metal code for it.",
        "PYTORCH_ENABLE_MPS_FALLBACK=1 computes it on the CPU",
        "proof",
    ),
    Text(
        "mps.command_buffer",
        "Metal ended the work on Apple's GPU with an error",
        (
            r"command buffer exited with error status",
            r"kIO(GPU|Accel)CommandBufferCallbackError(?!OutOfMemory)\w+",
            r"Caused GPU (Hang|Timeout|Address Fault) Error",
        ),
        "A kernel took too long, touched memory that is not its own, or was ended beside another program's that "
        "failed; what was computed since is lost.",
        "use a smaller batch and nothing else on the GPU; gpucheck smoke tells whether it still fails",
        "hint",
        follows=("oom.mps",),
    ),
    Text(
        "mps.dtype",
        "Apple's GPU (Metal) does not have this data type",
        (
            r"Trying to convert \w+ to the MPS backend but it does not have support for that dtype",
            r"(Undefined type|MPS does not support) \W?(Float8|BFloat16|Complex|ComplexDouble)\w*",
            r"BFloat16 is not supported on MPS",
            r"(Float8|float8|fp8)\w*.{0,60}\bMPS\b.{0,60}(not support|unsupported|does not)",
            r"\bMPS (backend|device|framework) .{0,30}(does not|doesn'?t) support \W?(float8|bfloat16|complex|int64)",
        ),
        "Metal has no float8 (and older macOS no bfloat16, no complex numbers): a checkpoint or model in that type "
        "cannot be "
        "put on the GPU of a Mac.",
        "load it in float16 or bfloat16 (torch_dtype=torch.float16), or a GGUF or MLX version of the model; else the "
        "CPU",
        "proof",
        source="pytorch issue 148420; Comfy-Org/ComfyUI issue 9263",
    ),
    Text(
        "amp.unscale",
        "the gradient scaler was given float16 gradients",
        (r"Attempting to unscale FP16 gradients",),
        "A GradScaler wants float32 weights and float16 in autocast alone.",
        "leave the model in float32 (no .half()) under torch.autocast, or use bfloat16 without a scaler",
        "proof",
    ),
    Text(
        "amp.bfloat16",
        "this device or torch has no bfloat16",
        (
            r"Your setup doesn'?t support bf16/gpu",
            r"Bfloat16 is only supported on GPUs with compute capability of at least 8",
            r"Current CUDA Device does not support bfloat16",
            r"(bf16|bfloat16) .{0,30}(is )?(only )?(not )?supported (on|by|with) (this|your|the|Ampere|CUDA|GPU)",
            r"(bf16|bfloat16) .{0,20}requires? .{0,20}(Ampere|compute capability|sm_?80)",
            r"Your device does not support bf16",
        ),
        "A GPU has bfloat16 from compute capability 8.0 on; a torch for the CPU sees no GPU at all.",
        "--fp16 in place of --bf16 (dtype=half) on a GPU before Ampere; where the GPU is newer, python -c 'import "
        "torch; "
        "print(torch.version.cuda, torch.cuda.get_device_capability())' shows whether torch sees it",
    ),
    Text(
        "attention.kernel",
        "no attention kernel fits these inputs",
        (
            r"No valid attention backend found.{0,800}compute capability not supported",
            r"FlashAttention.{0,20}with FP8 KV cache (is )?not (yet )?supported",
            r"attention backends? (are|is) not valid for",
            r"No valid attention backend",
            r"attention sinks? (is|are) only supported on",
            r"attention backend .{0,60}(is not supported|does not support) (on|for|this|the|sm)",
            r"No available kernel\. ?Aborting execution",
            r"No viable backend for scaled_dot_product_attention was found",
            r"cutlassF: no kernel found to launch",
            r"is not supported because: ?(device=cpu|dtype=torch|attn_bias|max\(query)",
            r"No operator found for this attention",
            r"no kernel found to launch",
            r"FlashAttention (forward |backward )?(only )?(supports?|for) head dim",
            r"Expected (query|q), (key|k),? and (value|v).{0,40}head (dim|size)",
            r"(Flash|Mem efficient|Memory efficient) attention kernel not used because",
        ),
        "sdpa_kernel allows only backends that the data type, the head size, the mask or the GPU rules out.",
        "warnings above the error say why each was left out; allow SDPBackend.MATH beside",
        "proof",
    ),
    Text(
        "attention.flash",
        "FlashAttention does not run on this GPU",
        (
            r"SM\d+ kernel is not available",
            r"Error running sage attention",
            r"Unsupported CUDA architecture: ?sm_?\d+",
            r"Flash ?Attention-?\d (is )?only supported on",
            r"\bFA ?[234] is only supported on",
            r"(Flash ?Attention|\bFA)-?[34] (is )?not supported (on|for) (this|your|the)",
            r"FlashAttention only supports Ampere GPUs or newer",
            r"FlashAttention only supports? fp16 and bf16",
            r"FlashAttention-?\d? only supports (Ampere|Hopper|Turing)",
            r"Flash ?Attention-?\d? (only support|requires?|needs?) .{0,40}(Ampere|Hopper|capability|fp16|sm_?\d\d)",
            r"Expected is_sm\w+ ?(\|\| ?is_sm\w+ ?)*to be true",
            r"FlashAttention backward for head dim > \d+ requires",
            r"Flash Attention only supports torch\.float16 and torch\.bfloat16",
        ),
        "It needs compute capability 8.0 and float16 or bfloat16.",
        'attn_implementation="sdpa"',
        "proof",
    ),
    Text(
        "dtensor.mixed",
        "an operation got a sharded tensor beside a plain one",
        (
            r"got mixed torch\.Tensor and DTensor",
            r"mixed torch\.Tensor and DTensor",
        ),
        "FSDP2 and tensor parallelism turn parameters into DTensors. A tensor that is made or kept outside of the "
        "wrapped module stays a plain one.",
        "call the wrapped module instead of using its parameters directly; else distribute_tensor(x, mesh, "
        "[Replicate()]) for the plain tensor, or p.full_tensor() for the sharded one",
        "proof",
        source="torch/distributed/tensor/_dispatch.py",
    ),
)
