"""SEA students of Brine in transformers: the stock models with the block of attention_brine_sea.py.

    AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True)    # the student
    AutoModelForCausalLM.from_pretrained(DIR)                            # its dense base
    AutoModelForCausalLM.from_pretrained(DIR, trust_remote_code=True, attn_implementation="sdpa")    # also dense

The block of a layer is a submodule of its attention module, with the name of the method: `sea` or `blocks`. It runs
where the stock model calls its attention function, registered under the name "brine_sea". Decoding takes a
DynamicCache, which also keeps what the estimator needs of every token. Padding is a mask [B, S] on any side.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from types import MethodType
from typing import Any, cast

import torch
import transformers
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer, EncoderDecoderCache

from .attention_brine_sea import SeaAttention
from .blocks_brine_sea import BlockAttention
from .columns_brine_sea import hash_of
from .configuration_brine_sea import (
    BACKENDS,
    CONFIGS,
    DECODERS,
    SECTION,
    BlockSettings,
    Settings,
    Shape,
    check_integer,
    is_of_block,
    settings_of,
    shape_of,
)
from .native_brine_sea import library  # noqa: F401  # some transformers copy only what this file itself imports

Block = SeaAttention | BlockAttention


IMPLEMENTATION = "brine_sea"
# From 5.0 on all models call an attention function.
if int(transformers.__version__.split(".")[0]) < 5:
    raise ImportError(f"brine: students need transformers 5.0 or newer, this is {transformers.__version__}")
# The class of a layer's attention module.
ATTENTION_CLASSES = ("BertSelfAttention", *(f"{family}Attention" for family in DECODERS))


# ---- the attention function and its mask


def rotate_half(x: Tensor) -> Tensor:
    """The second half of the features, negated, then the first half."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def unrotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """x [B, H, R, d] before its rotation by the angles of cos and sin [B, R, d]."""
    return x * cos[:, None] - rotate_half(x) * sin[:, None]


class Rows(DynamicLayer):
    """Rows of blocks and of tiles, not of tokens: a call says after which its own are added. Those of tiles are
    integers, of which the first is a number of tokens (BlockAttention.entries()): a crop takes from it."""

    def crop(self, tokens_to_remove: int) -> None:
        if self.keys is None or self.keys.dtype not in (torch.int16, torch.int32):
            return
        seen = self.keys[..., 0].long()
        total, before = seen.sum(2, keepdim=True), seen.cumsum(2) - seen
        # Until transformers 5.15 a positive number is that of the tokens that stay.
        left = total.clamp(max=tokens_to_remove) if tokens_to_remove > 0 else total + tokens_to_remove
        self.keys = self.keys.clone()
        self.keys[..., 0] = (left - before).clamp(min=0).minimum(seen)


@dataclass
class CacheStore:
    """Layers after those of the model have the estimator's tensors: the cache reorders and cuts them with the rest."""

    cache: Any
    layer: int
    layers: int

    def coded(self, *given: Any) -> tuple[Tensor, ...] | None:
        layers = self.cache.layers[self.layer :]
        return layers[0].copies(*given) if layers and hasattr(layers[0], "copies") else None

    def __call__(self, slot: int, new: Tensor, kept: int | None = None) -> Tensor:
        index, layers = self.layers * (1 + slot) + self.layer, self.cache.layers
        while len(layers) <= index:
            layers.append(DynamicLayer() if len(layers) < self.layers else Rows())
        cached = layers[index]
        if cached.get_seq_length() == 0 or kept == 0:
            if not new.shape[2]:
                return new
            cached = layers[index] = DynamicLayer() if kept is None else Rows()
        elif kept is not None:
            cached.keys, cached.values = cached.keys[:, :, :kept], cached.values[:, :, :kept]
        return cast(Tensor, cached.update(new, new[..., :0])[0]) if new.shape[2] else cached.keys


def make_block(shape: Shape, settings: Settings) -> Block:
    """A new block."""
    return BlockAttention(shape, settings) if isinstance(settings, BlockSettings) else SeaAttention(shape, settings)


def check_missing(names: Iterable[str], source: str) -> None:
    """Refuses files without some tensors, which transformers fills with random numbers."""
    # Brine's files have no pooler if their teacher had none, and one bias of a masked head.
    missing = sorted(n for n in names if not n.startswith(("pooler.", "cls.predictions.decoder.bias")))
    if missing:
        more = f" and {len(missing) - 3} more" if len(missing) > 3 else ""
        raise ValueError(f"brine: {source} has no tensors {', '.join(missing[:3])}{more}; write it again")


def check_key_scales(tensors: dict[str, Tensor], source: str) -> None:
    """Refuses scales of keys by which nothing can be divided."""
    for name, x in tensors.items():
        if name.endswith("key_scale") and not bool((torch.isfinite(x) & (x > 0)).all()):
            raise ValueError(f"brine: {source}: {name} must be positive and finite; calibrate it again, or set it to 1")


def sea_attention_forward(module: nn.Module, *inputs: Any, **kwargs: Any) -> tuple[Tensor, None]:
    """The attention function of transformers. Each model has its files, which may be of other versions:
    the module itself knows its function.
    """
    function = getattr(module, "sea_forward", None)
    if function is None:
        raise ValueError(f"brine: {type(module).__name__} has no block; load the model with a class of Brine")
    return cast("tuple[Tensor, None]", function(*inputs, **kwargs))


def sea_forward(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sea_rotary: tuple[Tensor, Tensor] | None = None,
    sea_cache: DynamicCache | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query [B, H, R, d], key, value [B, G, S, d], attention_mask [B, S] or None -> [B, R, H, d].

    The block has no dropout of attention weights, and returns no weights.
    """
    sea = next(x for x in module.children() if isinstance(x, Block))
    count, keys, d = query.shape[2], key.shape[2], query.shape[3]
    if attention_mask is not None and attention_mask.dim() != 2:
        raise ValueError(f"brine: attention_mask must be [B, S], got {tuple(attention_mask.shape)}")
    if keys > sea.shape.max_positions:
        raise ValueError(f"brine: {keys} tokens, but the model has {sea.shape.max_positions} positions")
    if keys > count and sea_cache is None:
        raise ValueError("brine: keys of earlier tokens need a cache")
    if scaling is not None and abs(scaling * d**0.5 - 1) > 1e-6:
        query = query * (scaling * d**0.5)  # OPT's are divided already
    content = None
    if sea_rotary is not None and getattr(sea.settings, "prior", None) == "learned":
        cos, sin = sea_rotary
        content = unrotated(query, cos, sin), unrotated(key[:, :, keys - count :], cos, sin)
    store = None
    if sea_cache is not None:
        store = CacheStore(sea_cache, cast(int, module.layer_idx), cast(int, module.config.num_hidden_layers))  # type: ignore[union-attr]
    visible = None if attention_mask is None else attention_mask[:, :keys].bool()
    return sea(query, key, value, visible, content, store).transpose(1, 2), None


def sea_mask(
    batch_size: int, kv_length: int, kv_offset: int = 0, attention_mask: Tensor | None = None, **kwargs: Any
) -> Tensor | None:
    """The mask of padding [B, S], None if there is none: what is visible follows from it."""
    if attention_mask is None:
        return None
    if kv_offset:
        raise ValueError("brine: a cache that has dropped its first tokens is not supported")
    mask = attention_mask[:, :kv_length].bool()
    if mask.shape[1] < kv_length:
        raise ValueError(f"brine: attention_mask has {mask.shape[1]} columns, the tokens are {kv_length}")
    return None if bool(mask.all()) else mask


AttentionInterface.register(IMPLEMENTATION, cast(Callable[..., Any], sea_attention_forward))
AttentionMaskInterface.register(IMPLEMENTATION, cast(Callable[..., Any], sea_mask))


def pass_on(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before an attention module: its cache and its rotation reach the attention function, too."""
    if module.config._attn_implementation != IMPLEMENTATION:  # type: ignore[union-attr]
        return args, kwargs
    cache = next((x for x in (*args, *kwargs.values()) if isinstance(x, Cache)), None)
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if getattr(cache, "offloading", False):
        raise ValueError("brine: a cache that is offloaded to the CPU is not supported")
    if cache is not None and not isinstance(cache, DynamicCache):
        raise ValueError(f"brine: the cache is a {type(cache).__name__}, only DynamicCache is supported")
    return args, {**kwargs, "sea_cache": cache, "sea_rotary": kwargs.get("position_embeddings")}


def count_positions(
    module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Before a decoder: positions are counted without padding, as Brine does, unless they are given."""
    mask, given = kwargs.get("attention_mask"), kwargs.get("position_ids")
    if isinstance(given, Tensor) and mask is None and bool((given.diff(dim=-1) < 0).any()):
        raise ValueError("brine: decreasing position ids, of several sequences in one row, are not supported")
    if kwargs.get("position_ids") is not None or not isinstance(mask, Tensor) or mask.dim() != 2:
        return args, kwargs
    ids = args[0] if args else kwargs.get("input_ids")
    if ids is None:
        ids = kwargs["inputs_embeds"]
    ordinals = (mask.long().cumsum(1) - 1).clamp(min=0)
    return args, {**kwargs, "position_ids": ordinals[:, -ids.shape[1] :]}


# ---- models


def tensors_in(directory: str) -> dict[str, Tensor]:
    """The tensors of all safetensors files of a directory."""
    files = sorted(name for name in os.listdir(directory) if name.endswith(".safetensors"))
    if not files:
        raise ValueError(f"brine: {directory} has no safetensors files")
    return {name: x for file in files for name, x in load_file(os.path.join(directory, file)).items()}


def base_directory(base: str, adapter: str) -> str:
    """The base of an adapter: its path next to the adapter, or as it is."""
    for path in (os.path.join(adapter, base), base):
        if os.path.isdir(path):
            return path
    raise ValueError(f"brine: {adapter} is an adapter of {base}, which is not a directory")


def check_base(model: nn.Module, tensors: dict[str, Tensor], wanted: str | None, source: str) -> None:
    """Refuses a base that an adapter was not made for: its weights have another hash."""
    tied = {"lm_head.weight", "cls.predictions.decoder.weight"} if model.config.tie_word_embeddings else set()  # type: ignore[union-attr]
    tied.add("cls.predictions.decoder.bias")
    names = {name for name, _ in model.named_parameters(remove_duplicate=False) if not is_of_block(name)} - tied
    if not names <= set(tensors):
        warnings.warn(f"brine: {source} has other names of tensors, so its weights are not compared", stacklevel=3)
    elif wanted != hash_of({name: tensors[name] for name in names}):
        raise ValueError(f"brine: the weights in {source} are not those that the adapter was made for")


class SeaStudent:
    """What the students of all families have in common; the other base class is the stock model."""

    def __init__(self, config: PretrainedConfig, *inputs: Any, **kwargs: Any):
        settings, shape = settings_of(config), shape_of(config)
        if getattr(config, "_attn_implementation_internal", None) is None:
            config._attn_implementation = IMPLEMENTATION
        cast(Any, super()).__init__(config, *inputs, **kwargs)
        found = 0
        for module in cast(Any, self).modules():
            if type(module).__name__ in ATTENTION_CLASSES:
                setattr(module, settings.method, make_block(shape, settings))
                module.sea_forward = MethodType(sea_forward, module)
                module.register_forward_pre_hook(pass_on, with_kwargs=True)
                found += 1
        if found != config.num_hidden_layers:
            raise ValueError(f"brine: {found} attention modules in {config.num_hidden_layers} layers")
        if shape.causal:
            base = getattr(self, cast(PreTrainedModel, self).base_model_prefix)
            base.register_forward_pre_hook(count_positions, with_kwargs=True)

    def sea_blocks(self) -> Iterator[Block]:
        """The blocks of all layers, in order."""
        return (m for m in cast(nn.Module, self).modules() if isinstance(m, Block))

    def set_sea(self, k: int | None = None, query_skip: int | None = None, backend: str | None = None) -> None:
        """Another number of kept keys, without training.

        query_skip f: the estimate of every f-th query is reused for the next f - 1. It must not change in the
        middle of a sequence. A cache then keeps the scores of every token, H K numbers. backend, of attention blocks:
        "tiles", or "flex" for flex_attention in whole passes.
        """
        for name, value in (("k", k), ("query_skip", query_skip)):
            if value is not None:
                check_integer(name, value)
        if backend is not None and backend not in BACKENDS:
            raise ValueError(f"brine: backend is {backend!r}, known are {', '.join(BACKENDS)}")
        for block in self.sea_blocks():
            if isinstance(block, BlockAttention):
                if (query_skip or 1) > 1:
                    raise ValueError("brine: query_skip is of attention sea, this student has blocks")
                block.with_k(k or block.k)
                block.k = k or block.k
                block.backend = backend or block.backend
                continue
            if backend is not None:
                raise ValueError("brine: a backend is of attention blocks, this student has sea")
            block.k = k or block.k
            block.query_skip = query_skip or block.query_skip

    @classmethod
    def from_pretrained(cls, directory: Any, *inputs: Any, **kwargs: Any) -> Any:
        """As in transformers. A directory with an adapter (brine export --sea-only) needs that of its base.

        Files without all tensors are an error.
        """
        report = kwargs.pop("output_loading_info", False)
        config: Any = kwargs.get("config")
        if directory is not None and not isinstance(config, PretrainedConfig):
            config = cast(Any, cls).config_class.from_pretrained(directory)
        base = getattr(config, "base_model", None)
        load = cast(Any, super()).from_pretrained
        if base:
            source = base_directory(base, str(directory))
            tensors = tensors_in(source)
            section = dict(getattr(config, SECTION))
            wanted = section.pop("base_hash", None)
            del config.base_model
            setattr(config, SECTION, section)
            kwargs.update(config=config, state_dict=tensors | tensors_in(str(directory)))
            model, info = load(None, *inputs, output_loading_info=True, **kwargs)
            check_base(model, tensors, wanted, source)
            if model.can_generate() and os.path.exists(os.path.join(str(directory), "generation_config.json")):
                model.generation_config = transformers.GenerationConfig.from_pretrained(str(directory))
        else:
            model, info = load(directory, *inputs, output_loading_info=True, **kwargs)
        check_missing(info["missing_keys"], str(directory))
        check_key_scales(dict(model.named_buffers()), str(directory))
        return (model, info) if report else model


def student_of(stock: str) -> type[Any]:
    """The student's class of a stock class, which files name as a class of this module."""
    base = getattr(transformers, stock)
    names = {"__module__": __name__, "config_class": CONFIGS[base.config_class.model_type]}
    made: type[Any] = type(f"Sea{base.__name__}", (SeaStudent, base), names)
    globals()[made.__name__] = made
    return made


# The class of a student by the stock class that config.json names, and the Auto class of both.
STUDENTS: dict[str, tuple[type[Any], str]] = {
    name: (student_of(name), auto_class)
    for auto_class, names in {
        "AutoModelForCausalLM": ["GPT2LMHeadModel", *(f"{x}ForCausalLM" for x in DECODERS if x != "GPT2")],
        "AutoModel": ["BertModel"],
        "AutoModelForMaskedLM": ["BertForMaskedLM"],
        "AutoModelForPreTraining": ["BertForPreTraining"],
        "AutoModelForSequenceClassification": ["BertForSequenceClassification"],
    }.items()
    for name in names
}
for _student, _auto_class in STUDENTS.values():
    # save_pretrained() then writes these files and auto_map.
    _student.register_for_auto_class(_auto_class)
