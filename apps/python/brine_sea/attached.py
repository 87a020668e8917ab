"""Blocks of Brine in live models of transformers, of any family whose attention goes through its interface.

    brine_sea.attach(model, "BLOCKS")     # the blocks of `brine distill --stages attention`, or settings of new ones
    optimizer = torch.optim.AdamW([*model.parameters(), *brine_sea.blocks(model).parameters()])
    brine_sea.save(model, "DIR", base=True)
    brine_sea.detach(model)               # dense again

The blocks are no part of the model's modules: its state_dict(), its files and its class stay those of the dense
model. Each runs where the attention of its layer calls the attention function; other layers keep their attention.
"""

from __future__ import annotations

import copy
import json
import os
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal, cast

import torch
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_of
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache, StaticCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .blocks_brine_sea import BlockAttention
from .compiled import NUMBER, block_attention, new_state, number_of, padding_of
from .configuration_brine_sea import SECTION, BlockSettings, Shape, settings_of
from .modeling_brine_sea import Block, CacheStore, SeaStudent, check_key_scales, make_block, sea_mask
from .shards import write_whole
from .tap import ATTACHMENT, Layer, Tap, causal_of, positions_of, tapped, window_of

# Whose masks of T x T are needed: of no layer, of those with a sliding window, of any.
Masks = Literal["none", "windowed", "any"]

MODEL_TYPE = "brine_blocks"
WEIGHTS = (".safetensors", ".bin")  # what files of a model's weights end in
LENGTHS = "brine_sea_lengths"
left_out = threading.local()  # where the rows of the last mask begin that attached_mask() did not make


@dataclass
class Attachment:
    """What the attention function of its layer needs of a block. An attribute of the attention module."""

    block: Block
    number: int  # of the layer in the model
    window: int | None
    slot: int  # the layer's in a cache, which has `slots`
    slots: int
    attached: Attached
    handle: int  # of the block among those of compiled.py
    caches: dict[int, Any] = field(default_factory=dict)  # of the calls of threads

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copied or unpickled block gets a new handle."""
        self.__dict__.update(state)
        self.block.__dict__.pop(NUMBER, None)
        self.handle, self.caches = number_of(self.block), {}


@dataclass
class Attached:
    """What attach() did to a model. The attachments of its layers have it."""

    config: dict[str, Any]  # config.json of the blocks
    modules: list[nn.Module]  # those with a block, in the order of the layers
    before: list[tuple[nn.Module, Any]]  # modules, and the configs of which they have copies
    functions: list[tuple[Masks, str | None]]  # what implementation() has registered

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        for masks, original in self.functions:  # of another process
            implementation(masks, original)


# ---- the attention function and its mask


def attached_attention(
    masks: Masks,
    original: str | None,
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    **given: Any,
) -> tuple[Tensor, Tensor | None]:
    """query [B, H, R, d], key, value [B, G, S, d] -> [B, R, H, d]; dense, as by `original`, without a block."""
    attachment: Attachment | None = module.__dict__.get(ATTACHMENT)
    count, keys, d = query.shape[2], key.shape[2], query.shape[3]
    if attachment is None:
        made = masks == "any" or (masks == "windowed" and window_of(module, given) is not None)
        if not made and (attention_mask is None or attention_mask.dim() == 2):  # of a model made of this one's config
            attention_mask = dense_mask(original, module, attention_mask, count, keys, query.dtype, given)
        dense = dense_function(original, module)
        return cast(
            "tuple[Tensor, Tensor | None]", dense(module, query, key, value, attention_mask, scaling=scaling, **given)
        )
    block, cache = attachment.block, attachment.caches.pop(this_thread(), None)
    if given.get("is_causal") is not None and bool(given["is_causal"]) != block.shape.causal:
        raise ValueError(f"brine: is_causal is {given['is_causal']}, but the blocks were made for {block.shape.causal}")
    if scaling is not None and abs(scaling * d**0.5 - 1) > 1e-6:
        query = query * (scaling * d**0.5)
    if isinstance(block, BlockAttention) and (torch.compiler.is_compiling() or isinstance(cache, StaticCache)):
        return compiled_attention(attachment, cache, query, key, value, attention_mask), None
    total = keys if cache is None else max(keys, length_in(cache, attachment.slot))
    if attachment.window is not None and total > attachment.window:
        raise ValueError(
            f"brine: layer {attachment.number} has a sliding window of {attachment.window} keys, the sequence has"
            f" {total} tokens; leave it out of layers"
        )
    if total > keys:
        raise ValueError(f"brine: the cache has dropped the first tokens of layer {attachment.number}")
    if total > block.shape.max_positions:
        raise ValueError(f"brine: {total} tokens, but the model has {block.shape.max_positions} positions")
    if keys > count and cache is None:
        raise ValueError("brine: keys of earlier tokens need a cache")
    visible = padding_of(attention_mask, len(query), count, keys, block.shape.causal)
    if next(chain(block.parameters(), block.buffers())).device != query.device:
        block.to(query.device)  # blocks are not submodules, so model.to() does not move them
    store = None
    if cache is not None:
        store, lengths = CacheStore(cache, attachment.slot, attachment.slots), cache.__dict__.setdefault(LENGTHS, {})
        seen, lengths[attachment.slot] = lengths.get(attachment.slot, 0), keys
        if seen < keys - count:
            raise ValueError(
                f"brine: the cache has keys of {keys - count} tokens, of which the block of layer {attachment.number}"
                f" has seen {seen}; fill a new cache after attach()"
            )
    return block(query, key, value, visible, None, store).transpose(1, 2).contiguous(), None


def compiled_attention(
    attachment: Attachment, cache: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None
) -> Tensor:
    """The same of a block as one operation, for graphs and caches of a fixed size: [B, R, H, d]."""
    length = state = None
    if cache is not None:
        if not isinstance(cache, StaticCache):
            raise ValueError(f"brine: in compiled models the cache must be a StaticCache, not a {type(cache).__name__}")
        layer: Any = cache.layers[attachment.slot]
        length = layer.cumulative_length
        if not hasattr(layer, NUMBER):
            setattr(layer, NUMBER, new_state(key))
        state = getattr(layer, NUMBER)
    if attachment.window is not None:
        raise ValueError(f"brine: layer {attachment.number} has a sliding window: leave it out of layers")
    return block_attention(query, key, value, mask, length, state, attachment.handle)


def length_in(cache: DynamicCache, slot: int) -> int:
    """The tokens that a layer's part of a cache counts; 0 of a layer that reads another one's keys."""
    layer = cache.layers[slot] if slot < len(cache.layers) else None
    return 0 if layer is None or not hasattr(layer, "get_seq_length") else int(cache.get_seq_length(slot))


def this_thread() -> int:
    """Key of a thread's calls; 0 in a compiled graph."""
    return 0 if torch.compiler.is_compiling() else threading.get_ident()


def dense_mask(
    original: str | None,
    module: nn.Module,
    padding: Tensor | None,
    rows: int,
    keys: int,
    dtype: torch.dtype,
    given: dict[str, Any],
) -> Tensor | None:
    """What attached_mask() left out, for a layer without a block: its mask, of padding [B, S] or None."""
    window, causal = window_of(module, given), causal_of(module, given.get("is_causal"))
    if original is not None and original.startswith("flash"):
        return padding
    added = original in (None, "eager", "flex_attention")
    first = left_out.first
    if padding is None and not (causal and (added or (window or keys) < keys or rows < keys)):
        return None
    device = next(module.parameters()).device if padding is None else padding.device
    seen = torch.ones(rows, keys, dtype=torch.bool, device=device)
    if causal:
        key, row = torch.arange(keys, device=device), first + torch.arange(rows, device=device)[:, None]
        seen = key <= row if window is None else (key <= row) & (key > row - window)
    if padding is not None:
        padding = torch.nn.functional.pad(padding.bool(), (0, max(0, keys - padding.shape[1])))
    seen = seen[None, None] if padding is None else seen & padding[:, None, None, :keys]
    if added:
        return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)
    return seen | ~seen.any(-1, keepdim=True)  # rows of padding, whose results are not used, must see something


def dense_function(original: str | None, module: nn.Module) -> Any:
    """The attention function of a name; "eager" is a function in the file of each family."""
    if original in (None, "eager"):
        files = (sys.modules[kind.__module__] for kind in type(module).__mro__)
        return next(file.eager_attention_forward for file in files if hasattr(file, "eager_attention_forward"))
    return ALL_ATTENTION_FUNCTIONS[original]


def attached_mask(masks: Masks, original: str | None, **given: Any) -> Any:
    """The mask that the layers of a kind get: padding [B, S] or None if all of them have a block."""
    windowed = given.get("local_size") is not None
    if masks == "any" or (masks == "windowed" and windowed):
        make = ALL_MASK_ATTENTION_FUNCTIONS.get("eager" if original is None else original)
        return None if make is None else make(**given)
    function = given.get("mask_function", causal_mask_function)
    several = "brine: blocks mask only later keys and padding: not several sequences in one row"
    compiling, plain = torch.compiler.is_compiling(), ("causal_mask_function", "bidirectional_mask_function")
    known = windowed or getattr(function, "__name__", "") in plain
    if not known and (not compiling or given.get("allow_is_causal_skip", False)):
        raise ValueError(several)
    fits = windowed and given.get("attention_mask") is None and given["kv_length"] <= given["local_size"]
    if not known if compiling else fits:
        # The mask may be of several sequences; of one, which fits a window, the last row sees the first key.
        device = given["device"] if "device" in given else given["cache_position"].device  # transformers 5.0
        batch = torch.arange(given["batch_size"], device=device)
        none, last = torch.zeros_like(batch), torch.full_like(batch, given["kv_length"] - 1)
        seen = torch.as_tensor(function(batch, none, last, none), device=device).all()
        if compiling:
            torch._assert_async(seen, several)
        elif not bool(seen):
            raise ValueError(several)
    offset, count, mask = given.get("q_offset", 0), given.get("q_length"), given.get("attention_mask")
    left_out.first = offset.clone() if isinstance(offset, Tensor) else offset
    if torch.compiler.is_compiling() or isinstance(offset, Tensor):  # the operation knows how many tokens there are
        return None if mask is None else mask.bool()
    return sea_mask(**given | ({} if count is None else {"kv_length": offset + count}))


def implementation(masks: Masks, original: str | None) -> str:
    """The name under which transformers knows the two functions."""
    name = f"brine_sea_attached_{masks}_{original or 'eager'}"
    AttentionInterface.register(name, cast(Any, partial(attached_attention, masks, original)))
    AttentionMaskInterface.register(name, cast(Any, partial(attached_mask, masks, original)))
    return name


def take_cache(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before an attention module: the attention function gets its cache from here, whatever the family calls it."""
    attachment: Attachment = module.__dict__[ATTACHMENT]
    used = getattr(getattr(module, "config", None), "_attn_implementation", "brine_sea_attached")
    if not str(used).startswith("brine_sea_attached"):
        raise ValueError(
            f"brine: the attention implementation became {used!r} after attach(), so layer {attachment.number} would be"
            " dense; detach() and attach() again"
        )
    cache = next((x for x in (*args, *kwargs.values()) if isinstance(x, Cache)), None)
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if getattr(cache, "offloading", False):
        raise ValueError("brine: a cache that is offloaded to the CPU is not supported")
    fits = (DynamicCache, StaticCache) if isinstance(attachment.block, BlockAttention) else DynamicCache
    if cache is not None and not isinstance(cache, fits):
        raise ValueError(
            f"brine: the cache is a {type(cache).__name__}, DynamicCache is supported, StaticCache by blocks"
        )
    attachment.caches[this_thread()] = cache


def check_ran(module: nn.Module, _args: Any, _output: Any) -> None:
    """After an attention module: checks that its block used the cache of take_cache()."""
    attachment: Attachment = module.__dict__[ATTACHMENT]
    if this_thread() in attachment.caches:
        del attachment.caches[this_thread()]
        raise ValueError(f"brine: layer {attachment.number} computed its attention without its block")


# ---- directories


def read_blocks(blocks: Any) -> tuple[str, dict[str, Any], dict[str, Tensor] | None]:
    """What errors call the blocks, their config and tensors; of settings a config without sizes, and None."""
    if isinstance(blocks, dict):
        return "settings", {SECTION: {"attention": {"method": "sea"} | blocks, "format": 1}}, None
    directory = os.fspath(blocks)
    path = os.path.join(directory, "config.json")
    if not os.path.exists(path):
        raise ValueError(f"brine: {directory} has no config.json, so it is not a directory of blocks")
    with open(path, encoding="utf-8") as file:
        try:
            config = json.load(file)
        except (json.JSONDecodeError, UnicodeDecodeError) as error:
            raise ValueError(f"brine: {path}: not JSON: {error}") from None
    if not isinstance(config, dict):
        raise ValueError(f"brine: {path}: must be an object")
    if config.get("model_type") != MODEL_TYPE:
        raise ValueError(
            f"brine: {directory} is of model_type {config.get('model_type')!r}, blocks have {MODEL_TYPE!r}"
        )
    sizes = ("num_attention_heads", "num_key_value_heads", "head_dim", "max_position_embeddings", "causal")
    for key in (SECTION, "num_hidden_layers", *sizes):
        if key not in config:
            raise ValueError(f"brine: {path}: has no {key}")
    try:
        return directory, config, load_file(os.path.join(directory, "model.safetensors"))
    except Exception as error:  # of the library, of several types, or there is no file
        line = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"brine: {directory}/model.safetensors: {line}") from None


def load_block(block: Block, tensors: dict[str, Tensor], prefix: str, source: str) -> None:
    """The tensors of one block, all of them; ValueError names the one that is not right."""
    expected = block.state_dict()
    given = {name.removeprefix(prefix): x for name, x in tensors.items() if name.startswith(prefix)}
    for name in sorted(expected.keys() | given.keys()):
        if name not in given:
            raise ValueError(f"brine: {source} has no tensor {prefix}{name}")
        if name not in expected:
            raise ValueError(f"brine: {source} has the tensor {prefix}{name}, which blocks of its settings do not have")
        if given[name].shape != expected[name].shape:
            sizes = list(given[name].shape), list(expected[name].shape)
            raise ValueError(f"brine: {source}: {prefix}{name} is {sizes[0]}, must be {sizes[1]}")
        if not bool(torch.isfinite(given[name]).all()):
            raise ValueError(f"brine: {source}: {prefix}{name} has a number that is not finite")
    check_key_scales({prefix + name: x for name, x in given.items()}, source)
    block.load_state_dict({name: x.float() for name, x in given.items()})


def config_of(section: dict[str, Any], layers: list[Layer], positions: int) -> dict[str, Any]:
    """config.json of new blocks of these layers, but for their numbers."""
    first = layers[0]
    return {
        "model_type": MODEL_TYPE,
        SECTION: section,
        "num_hidden_layers": len(layers),
        "num_attention_heads": first.heads,
        "num_key_value_heads": first.groups,
        "head_dim": first.head_size,
        "max_position_embeddings": positions,
        "causal": first.causal,
        "teacher_hash": "none",
    }


# ---- models


def layers_to_attach(
    tap: Tap, source: str, config: dict[str, Any], layers: Sequence[int] | None
) -> dict[int, tuple[int, Layer]]:
    """The layers of a model that get a block: by number the block's index in the files and the layer."""
    known = dict(zip(tap.numbers, tap.layers, strict=True))
    if len({id(layer.module) for layer in tap.layers}) < len(tap.layers):
        raise ValueError("brine: the model uses a layer several times, so it cannot have blocks of its own")
    if "num_hidden_layers" in config:
        count = config["num_hidden_layers"]
        numbers = list(config.get("layers", range(count)))
        if len(numbers) != count:
            raise ValueError(f"brine: {source} has {count} blocks, but numbers of {len(numbers)} layers")
        if "layers" not in config and numbers != tap.numbers:
            raise ValueError(f"brine: {source} has blocks of {count} layers, the model has {len(known)} with attention")
    else:
        without = [number for number, layer in known.items() if layer.window is None]
        numbers = list(without or known) if layers is None else sorted(layers)
    wanted = sorted(numbers if layers is None else layers)
    tap.choose(wanted)
    for number in wanted:
        if number not in numbers:
            raise ValueError(f"brine: {source} has no block of layer {number}")
    if not wanted:
        raise ValueError("brine: layers is empty")
    return {number: (numbers.index(number), known[number]) for number in wanted}


def check_layer(number: int, layer: Layer, source: str, config: dict[str, Any]) -> None:
    """Raises ValueError if the block of a config cannot take the place of a layer's attention."""
    if layer.more:
        raise ValueError(f"brine: scores of layer {number} have {layer.more}, which blocks do not have")
    if layer.value_size != layer.head_size:
        raise ValueError(f"brine: values of layer {number} have another size than keys")
    names = ("num_attention_heads", "num_key_value_heads", "head_dim", "causal")
    sizes = layer.heads, layer.groups, layer.head_size, layer.causal
    for name, size in zip(names, sizes, strict=True):
        if config[name] != size:
            raise ValueError(f"brine: {source} has {name} {config[name]}, layer {number} of the model {size}")


def check_model(model: Any) -> None:
    """Raises ValueError for a model that cannot have blocks."""
    if isinstance(model, SeaStudent):
        raise ValueError("brine: the model is a student of Brine, with blocks of its own")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError("brine: blocks are for decoders and encoders, this model has both")


def attach(model: Any, blocks: str | os.PathLike[str] | dict[str, Any], layers: Sequence[int] | None = None) -> Any:
    """Puts blocks into a live model of transformers, which is returned: their layers attend sparsely from then on.

    blocks: a directory that `brine distill --dump --out` or save() wrote, or the settings of new blocks, such as
    {"method": "blocks", "k": 576}: these calibrate the scales of their keys by the first prompt, as do those that
    were saved before one. layers: the numbers of the layers that get a block; default: all of the directory, and of
    settings those without a sliding window, or all if every layer has one. A layer with a window takes sequences
    that are not longer than it.

    The changes are the layers' own: other models of the same config stay dense, threads may share the model, and
    blocks(), save() and detach() find the blocks through wrappers such as those of PEFT.

    Passes may have a cache (DynamicCache), padding as attention_mask [B, S] on any side, and gradients. Blocks
    compute in f32 and have no dropout. ValueError for blocks of other sizes and for attention that they cannot
    replace: of encoders with decoders, with caps, sinks or biases of scores, or with values of another size than keys.
    """
    check_model(model)
    if attachments_of(model):
        raise ValueError("brine: the model has blocks already, detach() them first")
    source, config, tensors = read_blocks(blocks)
    settings = settings_of(cast(Any, SimpleNamespace(**{SECTION: config[SECTION]})))
    with tapped(model, Tap()) as tap:
        tap.find_layers(model)
    wanted = layers_to_attach(tap, source, config, layers)
    known = positions_of(model)
    found = {number: layer for number, (_, layer) in wanted.items()}
    if tensors is None:
        config = config_of(config[SECTION], list(found.values()), known or 1 << 20)
    positions = config["max_position_embeddings"]  # the rows of V_I's table
    if isinstance(settings, BlockSettings):
        positions = known or positions
    made: dict[int, Block] = {}
    for number, (at, layer) in wanted.items():
        check_layer(number, layer, source, config)
        # A learned prior has q and k only, after any rotation.
        shape = Shape(layer.heads, layer.groups, layer.head_size, positions, layer.causal, rotary=False)
        block = made[number] = make_block(shape, settings).float()
        if tensors is not None:
            load_block(block, tensors, f"layers.{at}.", source)
        if isinstance(block, BlockAttention):
            block.calibrates = bool((block.key_scale == 1).all())  # 1 before (section 8.6)
    config = dict(config, num_hidden_layers=len(wanted))
    if list(wanted) != tap.numbers or tap.numbers != list(range(len(wanted))):
        config["layers"] = list(wanted)
    put(model, config, made, found, tap)
    return model


def put(model: nn.Module, config: dict[str, Any], made: dict[int, Block], found: dict[int, Layer], tap: Tap) -> None:
    """Changes the model. made, found: the blocks and the layers by number."""
    dense = [layer for number, layer in zip(tap.numbers, tap.layers, strict=True) if number not in made]
    masks: Masks = "any"
    if not dense:
        masks = "none"
    elif all(x.window is None for x in found.values()) and all(x.window is not None for x in dense):
        masks = "windowed"
    configs = {id(c): c for layer in tap.layers if (c := getattr(layer.module, "config", None)) is not None}
    copies = {key: copy.copy(c) for key, c in configs.items()}
    for key, c in configs.items():
        if masks == "any" and c._attn_implementation == "flex_attention":
            raise ValueError("brine: with flex_attention all layers must get blocks; load the model with sdpa")
        copies[key]._attn_implementation_internal = implementation(masks, c._attn_implementation)
    functions = [(masks, c._attn_implementation) for c in configs.values()]
    attached = Attached(config, [found[number].module for number in made], copied_configs(model, copies), functions)
    for number, block in made.items():
        module = found[number].module
        weight = next(module.parameters(), None)
        if weight is not None and weight.device.type != "meta":
            block.to(weight.device)
        of = getattr(module, "config", None) or model.config
        at = getattr(module, "layer_idx", None)
        slots = max(int(getattr(of, "num_hidden_layers", 0)), len(tap.layers))
        attachment = Attachment(
            block, number, found[number].window, number if at is None else int(at), slots, attached, number_of(block)
        )
        module.__dict__[ATTACHMENT] = attachment
        module.register_forward_pre_hook(take_cache, with_kwargs=True)
        module.register_forward_hook(check_ran)


def copied_configs(model: nn.Module, copies: dict[int, Any]) -> list[tuple[nn.Module, Any]]:
    """Gives the modules `copies` of their configs, by id, and of configs that contain these: other models may have the
    same objects. Returns the modules and what they had.
    """
    having = [(module, c) for module in model.modules() if (c := module.__dict__.get("config")) is not None]
    for _, c in having:
        parts = {name: copies[id(x)] for name, x in vars(c).items() if id(x) in copies}
        if parts and id(c) not in copies:
            copies[id(c)] = copy.copy(c)
            vars(copies[id(c)]).update(parts)
    before = [(module, c) for module, c in having if id(c) in copies]
    for module, c in before:
        module.__dict__["config"] = copies[id(c)]
    return before


def attachments_of(model: nn.Module) -> list[Attachment]:
    """Of the layers that have a block, in their order. A wrapper of the model has them, too."""
    found = [module.__dict__[ATTACHMENT] for module in model.modules() if ATTACHMENT in module.__dict__]
    return sorted(found, key=lambda attachment: attachment.number)


def state_of(model: nn.Module) -> Attached:
    attachments = attachments_of(model)
    if not attachments:
        raise ValueError("brine: the model has no blocks, attach() them first")
    return attachments[0].attached


def detach(model: Any) -> Any:
    """Takes the blocks out of a model, which is returned: it is the dense model again. ValueError without blocks."""
    state = state_of(model)
    for module, config in state.before:
        changed = vars(module.__dict__["config"])  # settings that were changed since attach() stay
        kept = (
            "_attn_implementation_internal",
            *(name for name, x in vars(config).items() if hasattr(x, "model_type")),
        )
        vars(config).update({name: x for name, x in changed.items() if name not in kept})
        module.__dict__["config"] = config
    for module in state.modules:
        del module.__dict__[ATTACHMENT]
        for key in [key for key, hook in module._forward_pre_hooks.items() if hook is take_cache]:
            del module._forward_pre_hooks[key], module._forward_pre_hooks_with_kwargs[key]
        for key in [key for key, hook in module._forward_hooks.items() if hook is check_ran]:
            del module._forward_hooks[key]
    return model


def blocks(model: Any) -> nn.ModuleList:
    """The blocks that are attached to a model, in the order of its layers.

    Their parameters are to be trained, their `k` may be changed between calls. ValueError without blocks.
    """
    state_of(model)
    return nn.ModuleList(attachment.block for attachment in attachments_of(model))


def layers(model: Any) -> list[int]:
    """The numbers of the layers that have a block, ascending; without blocks, of those that attach() would give one."""
    if attachments := attachments_of(model):
        return [attachment.number for attachment in attachments]
    check_model(model)
    with tapped(model, Tap()) as tap:
        tap.find_layers(model)
    return list(layers_to_attach(tap, "settings", {}, None))


def save(model: Any, directory: str | os.PathLike[str], base: bool = False) -> None:
    """Writes the blocks of a model, for attach(); with base=True the model, and the blocks into blocks/ of it.

    The model's files are those of the dense one, save_pretrained()'s; brine_sea.load() reads both parts. ValueError
    for a directory with a model that save() did not write.
    """
    state, directory = state_of(model), Path(directory)
    to = directory / "blocks" if base else directory
    config_file = to / "config.json"
    own: Any = None
    with suppress(OSError, ValueError):
        own = json.loads(config_file.read_text(encoding="utf-8"))
    own = own if isinstance(own, dict) and own.get("model_type") == MODEL_TYPE else {}
    found = sorted(p.name for p in directory.glob("*") if p.name == "config.json" or p.suffix in WEIGHTS)
    if base and not hasattr(model, "save_pretrained"):
        raise ValueError(f"brine: a {type(model).__name__} has no save_pretrained(), give the model that it wraps")
    if found and not (own and own.get("with_model", True) >= base):
        fits = "another directory" + ("" if base else f", such as {directory / 'blocks'}")
        raise ValueError(f"brine: {directory} has a model already ({found[0]}); give {fits}")
    tensors = {
        f"layers.{at}.{name}": x.detach().cpu().contiguous()
        for at, block in enumerate(blocks(model))
        for name, x in block.state_dict().items()
    }
    config = copy.deepcopy(state.config)
    kept: set[int] = {cast(Any, block).k for block in blocks(model)}
    if len(kept) > 1:
        raise ValueError(f"brine: blocks have several k, {sorted(kept)}, a directory has one")
    config["brine"]["attention"]["k"] = kept.pop()
    if "layers" in config:
        config["layers"] = layers(model)
    config["with_model"] = base or bool(own.get("with_model"))
    os.makedirs(to, exist_ok=True)
    # First, so that save() can overwrite an interrupted save.
    write_whole(str(config_file), json.dumps(config, indent=2).encode() + b"\n")
    write_whole(str(to / "model.safetensors"), safetensors_of(tensors, {"format": "pt"}))
    if base:
        model.save_pretrained(str(directory))
