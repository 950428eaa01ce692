"""Tables of names: torch's functions that create and move tensors or start CUDA, and names that programs often use."""

from __future__ import annotations


def words(text: str) -> frozenset[str]:
    return frozenset(text.split())


def of_torch(text: str, where: str = "torch") -> frozenset[str]:
    return frozenset(f"{where}.{name}" for name in text.split())


_TYPES = " ".join(f"{kind}Tensor" for kind in words("Float Long Int Double Bool Byte Half BFloat16 Short Char"))
CUDA_TYPES = of_torch(_TYPES, "torch.cuda")
# Factories whose data determines the number of dimensions. lint knows the dimensions of literal lists only.
BY_DATA = of_torch("randint normal tensor as_tensor asarray from_numpy Tensor") | of_torch(_TYPES)
# Factories that create a tensor on the default device unless `device=` names another.
FACTORIES = BY_DATA | of_torch(
    "arange bartlett_window blackman_window empty empty_strided eye full hamming_window hann_window kaiser_window "
    "linspace logspace ones rand randn randperm range tril_indices triu_indices zeros "
    "nn.Transformer.generate_square_subsequent_mask"
)
LIKE = of_torch("zeros_like ones_like empty_like full_like rand_like randn_like randint_like")
# Functions that read only the shape or type of an argument, or whose arguments may be on different devices.
NOT_COMBINING = (
    of_torch(
        "is_tensor numel result_type save load is_floating_point is_complex tensor_split manual_seed no_grad "
        "enable_grad inference_mode autocast device compile jit set_grad_enabled is_grad_enabled get_default_dtype "
        "set_default_dtype broadcast_shapes promote_types can_cast Size finfo iinfo Generator vmap func split "
        "scalar_tensor cond while_loop get_device get_autocast_dtype is_autocast_enabled index_put index_put_ "
        "typename _assert _check _check_is_size set_printoptions from_dlpack to_dlpack equal"
    )
    # The weights of multi_head_attention_forward may be empty.
    | of_torch("ctc_loss interpolate pad multi_head_attention_forward", "torch.nn.functional")
)
# Functions that start CUDA, when the driver reads CUDA_VISIBLE_DEVICES. device_count() and manual_seed() do not.
STARTS_CUDA = of_torch(
    "is_available init current_device set_device get_device_name get_device_properties get_device_capability "
    "mem_get_info synchronize current_stream Stream is_bf16_supported reset_peak_memory_stats",
    "torch.cuda",
)
# The last parts of the names of modules' base classes outside torch.nn.
MODULE_BASES = words("ScriptModule GraphModule PreTrainedModel")
_DATASETS = "Dataset IterableDataset TensorDataset ConcatDataset Subset MapDataPipe IterDataPipe"
DATASETS = of_torch(_DATASETS, "torch.utils.data") | of_torch(_DATASETS, "torch.utils.data.dataset")
LOADERS = words("torch.utils.data.DataLoader torch.utils.data.dataloader.DataLoader")
# Parts of the names of torch.nn's classes without tensors. Their device does not matter.
EMPTY_PARTS = (
    "Dropout", "Pool", "Pad", "Flatten", "Identity", "Softm", "LogSoftmax", "Softplus", "Softsign", "Softshrink",
    "Upsampl", "PixelShuffle", "PixelUnshuffle", "Fold", "CosineSimilarity", "PairwiseDistance", "ReLU", "GELU", "ELU",
    "SiLU", "Mish", "Tanh", "Sigmoid", "Hardshrink", "GLU", "Threshold", "ChannelShuffle", "ZeroPad", "Loss",
)  # fmt: skip
WITH_STATE = ("PReLU", "AdaptiveLogSoftmaxWithLoss")
CONTAINERS = of_torch("Sequential ModuleList ModuleDict", "torch.nn")
# Methods of a module that return the module.
MODULE_SELF = words(
    "to cuda cpu eval train half float double bfloat16 requires_grad_ apply xpu share_memory type to_empty"
)
MOVES = words("to cuda cpu xpu npu hpu mps ipu")
TENSOR_ONLY = words(
    "unsqueeze view permute detach contiguous masked_fill masked_fill_ is_cuda new_zeros new_ones new_tensor new_full "
    "new_empty grad_fn expand expand_as view_as scatter scatter_ index_select shape size ndim is_leaf "
    "is_contiguous softmax log_softmax relu matmul bmm unbind chunk flatten argmax unfold numel squeeze transpose"
)
# Methods of a tensor whose result is no tensor.
NO_TENSOR = words(
    "item tolist numpy size dim numel data_ptr stride is_contiguous is_pinned get_device element_size nelement "
    "backward register_hook storage untyped_storage equal allclose storage_offset"
)
# Methods whose arguments may be on another device, or that read only the arguments' shape.
METHODS_APART = words(
    "to copy_ type_as expand_as view_as reshape_as sum_to_size index_put index_put_ is_same_size new_tensor "
    "tensor_split split set_ __setitem__ view reshape expand size repeat type record_stream resize_as_ backward"
)
REDUCTIONS = words("sum mean max min prod std var norm any all argmax argmin median amax amin logsumexp nansum nanmean")
# Methods whose result may be a number although the tensor has dimensions.
MAY_BE_NUMBERS = words(
    "squeeze select dot vdot inner trace det logdet matmul einsum tensordot norm dist count_nonzero quantile mode take"
)
NO_GRADIENT = words(
    "detach detach_ argmax argmin argsort any all eq ne lt gt le ge long int bool byte short char isnan isinf isfinite "
    "isclose isin logical_and logical_or logical_xor logical_not one_hot count_nonzero nonzero bincount bucketize"
)
# Methods that return a view or read the shape, and do not read a tensor's data.
NO_READ = words(
    "size dim data_ptr numel nelement record_stream is_pinned copy_ element_size squeeze unsqueeze view reshape "
    "permute transpose expand expand_as view_as flatten detach t swapaxes movedim narrow unflatten stride "
    "storage_offset requires_grad_ is_contiguous get_device unbind chunk split"
)
WITH_DIMENSIONS = words(
    "view reshape expand repeat flatten expand_as view_as reshape_as unfold repeat_interleave ravel tile unsqueeze "
    "cat concat stack hstack vstack outer where"
)
LOSS_NAMES = words("criterion loss_fn loss_func loss_function criteria")
# Common names of objects of tokenizers and graph libraries. These objects move in place.
IN_PLACE_NAMES = words("batch encoding encodings encoded enc graph graphs g bg batch_encoding batched_graph")
WAITS = words("synchronize wait wait_event wait_stream barrier join result query")
# Functions that make the host wait for the values or the shape of their result.
NEEDS_VALUES = words("item tolist numpy equal allclose nonzero argwhere masked_select unique unique_consecutive")
NO_GRAPH = words("torch.no_grad torch.inference_mode torch.autograd.no_grad torch.autograd.inference_mode")
# Names of the forward methods of modules and of Lightning modules.
FORWARDS = words("forward training_step validation_step test_step predict_step forward_features")
# Steps that a framework runs without a graph, or with its own backward.
FRAMEWORK_STEPS = FORWARDS - {"forward", "forward_features"}
# Common names of forward's parameters that are tensors.
INPUT_NAMES = words(
    "x y z h u v q k w xs inp input inputs_embeds image images img imgs hidden hidden_states features feats feat "
    "tokens ids input_ids labels label target targets mask attention_mask src tgt query key value queries keys values "
    "logits pixel_values embeddings embeds audio waveform states memory out output residual noise latents timesteps"
)
