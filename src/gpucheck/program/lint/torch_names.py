"""What torch's names are to `lint`: which make tensors, which are modules, which start CUDA. Tables of names only."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    """The words of a text."""
    return frozenset(text.split())


# Factories that make a tensor on the default device unless `device=` says otherwise.
FACTORIES = frozenset(
    f"torch.{name}"
    for name in words(
        "arange bartlett_window blackman_window empty empty_strided eye from_numpy full hamming_window hann_window "
        "kaiser_window linspace logspace normal ones rand randint randn randperm range tensor tril_indices "
        "triu_indices zeros as_tensor asarray Tensor FloatTensor LongTensor IntTensor DoubleTensor BoolTensor "
        "ByteTensor HalfTensor BFloat16Tensor ShortTensor CharTensor complex_window"
    )
)
# The shape is in the positional arguments, one for each dimension, or a tuple.
BY_SHAPE = frozenset(f"torch.{name}" for name in ["empty", "ones", "rand", "randn", "zeros"])
FIRST_IS_SHAPE = frozenset({"torch.full", "torch.empty_strided"})
ONE_DIMENSION = frozenset(
    f"torch.{name}"
    for name in words(
        "arange bartlett_window blackman_window hamming_window hann_window kaiser_window linspace logspace "
        "randperm range"
    )
)
TWO_DIMENSIONS = frozenset({"torch.eye", "torch.tril_indices", "torch.triu_indices"})
# The data says how many dimensions there are: known only for lists that are written out.
BY_DATA = frozenset(
    f"torch.{name}"
    for name in words(
        "tensor as_tensor asarray from_numpy Tensor FloatTensor LongTensor IntTensor DoubleTensor BoolTensor "
        "ByteTensor HalfTensor BFloat16Tensor ShortTensor CharTensor"
    )
)
CUDA_TYPES = frozenset(
    f"torch.cuda.{name}Tensor" for name in words("Float Long Int Double Bool Byte Half BFloat16 Short Char")
)
LIKE = frozenset(f"torch.{name}_like" for name in ["zeros", "ones", "empty", "full", "rand", "randn", "randint"])
# Functions of torch that read only the shape or the type of an argument, or whose arguments may lie apart.
NOT_COMBINING = (
    frozenset(
        f"torch.{name}"
        for name in words(
            "is_tensor numel result_type save load is_floating_point is_complex tensor_split manual_seed no_grad "
            "enable_grad inference_mode autocast device compile jit set_grad_enabled is_grad_enabled get_default_dtype "
            "set_default_dtype broadcast_shapes promote_types can_cast Size finfo iinfo Generator vmap func split "
            "scalar_tensor cond while_loop get_device get_autocast_dtype is_autocast_enabled index_put index_put_ "
            "typename _assert _check _check_is_size set_printoptions from_dlpack to_dlpack equal"
        )
    )
    | {"torch.nn.functional.ctc_loss", "torch.nn.functional.interpolate", "torch.nn.functional.pad"}
    | {
        # Its weights may be empty.
        "torch.nn.functional.multi_head_attention_forward"
    }
)
# What starts CUDA: the driver reads CUDA_VISIBLE_DEVICES there. device_count() asks NVML and manual_seed() waits.
STARTS_CUDA = frozenset(
    f"torch.cuda.{name}"
    for name in words(
        "is_available init current_device set_device get_device_name get_device_properties get_device_capability "
        "mem_get_info synchronize current_stream Stream is_bf16_supported "
        "reset_peak_memory_stats"
    )
)
MODULE_BASES = frozenset(
    {
        "torch.nn.Module",
        "torch.jit.ScriptModule",
        "torch.fx.GraphModule",
        "lightning.LightningModule",
        "lightning.pytorch.LightningModule",
        "lightning.pytorch.core.LightningModule",
        "pytorch_lightning.LightningModule",
        "pytorch_lightning.core.LightningModule",
        "pytorch_lightning.core.lightning.LightningModule",
        "transformers.PreTrainedModel",
        "transformers.modeling_utils.PreTrainedModel",
    }
)
DATASETS = frozenset(
    f"{where}.{name}"
    for where in ("torch.utils.data", "torch.utils.data.dataset")
    for name in (
        "Dataset",
        "IterableDataset",
        "TensorDataset",
        "ConcatDataset",
        "Subset",
        "MapDataPipe",
        "IterDataPipe",
    )
)
LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
# Classes of torch.nn that hold no tensor: where they lie changes nothing.
_EMPTY_PARTS = (
    "Dropout", "Pool", "Pad", "Flatten", "Identity", "Softm", "LogSoftmax", "Softplus", "Softsign", "Softshrink",
    "Upsampl", "PixelShuffle", "PixelUnshuffle", "Fold", "CosineSimilarity", "PairwiseDistance", "ReLU", "GELU", "ELU",
    "SiLU", "Mish", "Tanh", "Sigmoid", "Hardshrink", "GLU", "Threshold", "ChannelShuffle", "ZeroPad", "Loss",
)  # fmt: skip
_WITH_STATE = ("PReLU", "AdaptiveLogSoftmaxWithLoss")
CONTAINERS = frozenset(f"torch.nn.{name}" for name in ("Sequential", "ModuleList", "ModuleDict"))
# Methods of a module that return it.
MODULE_SELF = words(
    "to cuda cpu eval train half float double bfloat16 requires_grad_ apply xpu share_memory type to_empty"
)
MOVES = words("to cuda cpu xpu npu hpu mps ipu")
# Names that only a tensor has (an array has some too, and no `.to`).
TENSOR_ONLY = words(
    "unsqueeze view permute detach contiguous masked_fill masked_fill_ is_cuda new_zeros new_ones new_tensor "
    "new_full new_empty grad_fn expand expand_as view_as scatter scatter_ index_select shape size ndim is_leaf "
    "pin_memory is_contiguous softmax log_softmax relu matmul bmm unbind chunk flatten argmax "
    "unfold numel squeeze transpose "
)
# What a method of a tensor returns that is no tensor.
NO_TENSOR = words(
    "item tolist numpy size dim numel data_ptr stride is_contiguous is_pinned get_device element_size nelement "
    "backward register_hook storage untyped_storage ndimension is_floating_point is_complex has_names "
    "requires_grad__ equal allclose storage_offset is_shared is_set_to record_stream"
)
NO_TENSOR_ATTRIBUTES = words(
    "device dtype shape ndim is_cuda requires_grad is_leaf grad_fn layout itemsize nbytes names is_sparse"
)
# Methods whose arguments may lie on another device, or that read only their shape.
METHODS_APART = words(
    "to copy_ type_as expand_as view_as reshape_as sum_to_size index_put index_put_ is_same_size new_tensor "
    "tensor_split split set_ __setitem__ view reshape expand size repeat type record_stream resize_as_ backward"
)
REDUCTIONS = words("sum mean max min prod std var norm any all argmax argmin median amax amin logsumexp nansum nanmean")
SAME_SHAPE = words(
    "float double half bfloat16 long int bool short byte char type clone detach contiguous abs exp log sqrt sin cos "
    "tanh sigmoid relu neg clamp clamp_min clamp_max round floor ceil flip cumsum cumprod softmax log_softmax tril "
    "triu fill_ zero_ normal_ uniform_ random_ bernoulli_ exponential_ requires_grad_ to cuda cpu type_as "
    "pin_memory masked_fill masked_fill_ add sub mul div pow eq ne lt gt le ge logical_not add_ sub_ mul_ div_ "
    "clamp_ copy_ rsqrt reciprocal log1p expm1 square sign transpose permute t T mT roll sort unsqueeze_ normalize "
    "gelu silu elu selu leaky_relu softplus logsigmoid hardtanh dropout erf erfinv atan tan sinh cosh trunc frac "
    "nan_to_num renorm"
)
# What looks at a tensor without its data: views of it, and its shape.
NO_READ = words(
    "size dim data_ptr numel nelement record_stream is_pinned copy_ element_size squeeze unsqueeze view reshape "
    "permute transpose expand expand_as view_as flatten detach t swapaxes movedim narrow unflatten stride "
    "storage_offset requires_grad_ is_contiguous get_device unbind chunk split"
)
AT_LEAST_ONE = words(
    "view reshape expand repeat flatten expand_as view_as reshape_as unfold repeat_interleave ravel tile"
)
# Functions that make a tensor whatever they are given.
MAKES_TENSOR = words(
    "stack cat concat hstack vstack matmul mm bmm einsum exp log sqrt sin cos sigmoid tanh relu softmax where"
)
# What people call the function that makes a loss.
LOSS_NAMES = words("criterion loss_fn loss_func loss_function criteria")
# What a tokenizer or a graph library gives moves in place, and is called so.
IN_PLACE_NAMES = words("batch encoding encodings encoded enc graph graphs g bg batch_encoding batched_graph")
WAITS = frozenset(["synchronize", "wait", "wait_event", "wait_stream", "barrier", "join", "result"])
# How a forward of a module, or of a Lightning module, is called.
FORWARDS = frozenset(["forward", "training_step", "validation_step", "test_step", "predict_step", "forward_features"])
# Frameworks run these without a graph, or run the backward themselves.
FRAMEWORK_STEPS = FORWARDS - {"forward", "forward_features"}
# Parameters of forward that are tensors wherever these names are used.
INPUT_NAMES = words(
    "x y z h u v q k w xs inp input inputs_embeds image images img imgs hidden hidden_states features feats feat "
    "tokens ids input_ids labels label target targets mask attention_mask src tgt query key value queries keys "
    "values logits pixel_values embeddings embeds audio waveform states memory out output residual noise latents "
    "timesteps"
)


def is_module_class(name: str) -> bool:
    """Whether a dotted name is a class of torch.nn whose objects are modules."""
    last = name.rpartition(".")[2]
    if not name.startswith("torch.nn.") or not last[:1].isupper() or ".functional." in name or ".utils." in name:
        return False
    return last not in ("Parameter", "ParameterList", "ParameterDict", "Buffer", "UninitializedParameter")


def holds_state(name: str) -> bool:
    """Whether a module of this class of torch.nn holds parameters or buffers that must move."""
    last = name.rpartition(".")[2]
    return last in _WITH_STATE or not any(part in last for part in _EMPTY_PARTS)
