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
import dataclasses
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from types import SimpleNamespace
from typing import Any, Literal, cast

import torch
import transformers
from safetensors.torch import load_file
from safetensors.torch import save as safetensors_of
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, DynamicCache, EncoderDecoderCache
from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS, causal_mask_function
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .blocks_brine_sea import BlockAttention
from .configuration_brine_sea import SECTION, SeaSettings, Settings, Shape, settings_of
from .modeling_brine_sea import (
    FIRST_VERSION_WITH_ENCODERS,
    VERSION,
    Block,
    SeaStudent,
    check_key_scales,
    make_block,
    sea_mask,
    store_in,
)
from .shards import write_whole
from .tap import Layer, Tap, positions_of, tapped

# Whose masks of T x T are needed: of no layer, of those with a sliding window, of any.
Masks = Literal["none", "windowed", "any"]

MODEL_TYPE = "brine_blocks"
STATE, PLACE = "brine_sea_attached", "brine_sea_place"


@dataclass
class Place:
    """Where a block is: what the attention function of its layer needs. An attribute of the attention module."""

    block: Block
    number: int  # of the layer in the model
    window: int | None
    slot: int  # the layer's in a cache, which has `slots`
    slots: int
    cache: DynamicCache | None = None  # of the call that is being made


@dataclass
class Attached:
    """What attach() did to a model. An attribute of the model."""

    config: dict[str, Any]  # config.json of the blocks
    modules: list[nn.Module]  # those with a block, in the order of the layers
    before: list[tuple[Any, str | None]]  # configs and the attention implementation that they had


# ---- the attention function and its mask


def attached_attention(
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
    place: Place | None = module.__dict__.get(PLACE)
    if place is None:
        dense = dense_function(original, module)
        return cast(
            "tuple[Tensor, Tensor | None]", dense(module, query, key, value, attention_mask, scaling=scaling, **given)
        )
    block, cache, place.cache = place.block, place.cache, None
    count, keys, d = query.shape[2], key.shape[2], query.shape[3]
    total = keys if cache is None else max(keys, int(cache.get_seq_length(place.slot)))
    if place.window is not None and total > place.window:
        raise ValueError(
            f"brine: layer {place.number} has a sliding window of {place.window} keys, the sequence has {total} tokens;"
            " leave it out of layers"
        )
    if total > keys:
        raise ValueError(f"brine: the cache has dropped the first tokens of layer {place.number}")
    if total > block.shape.max_positions:
        raise ValueError(f"brine: {total} tokens, but the model has {block.shape.max_positions} positions")
    if keys > count and cache is None:
        raise ValueError("brine: keys of earlier tokens need a cache")
    if scaling is not None and abs(scaling * d**0.5 - 1) > 1e-6:
        query = query * (scaling * d**0.5)
    visible = padding_of(attention_mask, count, keys, block.shape.causal)
    if next(chain(block.parameters(), block.buffers())).device != query.device:
        block.to(query.device)  # the model was moved, and does not know of its blocks
    store = None if cache is None else store_in(cache, place.slot, place.slots)
    return block(query, key, value, visible, None, store).transpose(1, 2).contiguous(), None


def dense_function(original: str | None, module: nn.Module) -> Any:
    """The attention function of a name; "eager" is a function in the file of each family."""
    if original in (None, "eager"):
        return sys.modules[type(module).__module__].eager_attention_forward
    return ALL_ATTENTION_FUNCTIONS[original]


def padding_of(mask: Tensor | None, rows: int, keys: int, causal: bool) -> Tensor | None:
    """The bits [B, S] of tokens that are not padding, of a mask of those or of R x S; None if all are."""
    if mask is None:
        return None
    if mask.dim() == 2:
        return mask[:, :keys].bool()
    seen = (mask if mask.dtype == torch.bool else mask == 0)[..., :keys]
    visible = seen[:, 0, -1]  # the last row sees all that is not padding
    wanted = visible[:, None, None].expand(-1, -1, rows, -1)
    wanted = wanted.tril(keys - rows) if causal else wanted
    is_token = visible[:, None, keys - rows :, None]
    if seen.shape[2] != rows or bool(((seen != wanted) & is_token).any()):
        raise ValueError("brine: attention_mask must be [B, S]; blocks hide later keys and padding, no others")
    return None if bool(visible.all()) else visible


def attached_mask(masks: Masks, original: str | None, **given: Any) -> Any:
    """The mask that the layers of a kind get: padding [B, S] or None if all of them have a block."""
    windowed = given.get("local_size") is not None
    if masks == "any" or (masks == "windowed" and windowed):
        make = ALL_MASK_ATTENTION_FUNCTIONS.get("eager" if original is None else original)
        return None if make is None else make(**given)
    function = given.get("mask_function", causal_mask_function)
    if not windowed and getattr(function, "__name__", "") not in (
        "causal_mask_function",
        "bidirectional_mask_function",
    ):
        raise ValueError("brine: blocks hide later keys and padding, no others: not several sequences in one row")
    return sea_mask(**given)


def implementation(masks: Masks, original: str | None) -> str:
    """The name under which transformers knows the two functions."""
    name = f"brine_sea_attached_{masks}_{original or 'eager'}"
    AttentionInterface.register(name, cast(Any, partial(attached_attention, original)))
    AttentionMaskInterface.register(name, cast(Any, partial(attached_mask, masks, original)))
    return name


def take_cache(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Before an attention module: the attention function gets its cache from here, whatever the family calls it."""
    cache = next((x for x in (*args, *kwargs.values()) if isinstance(x, Cache)), None)
    if isinstance(cache, EncoderDecoderCache):
        cache = cache.self_attention_cache
    if cache is not None and not isinstance(cache, DynamicCache):
        raise ValueError(f"brine: the cache is a {type(cache).__name__}, only DynamicCache is supported")
    module.__dict__[PLACE].cache = cache


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
        except json.JSONDecodeError as error:
            raise ValueError(f"brine: {path}: not JSON: {error}") from None
    if config.get("model_type") != MODEL_TYPE:
        raise ValueError(
            f"brine: {directory} is of model_type {config.get('model_type')!r}, blocks have {MODEL_TYPE!r}"
        )
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


def config_of(section: dict[str, Any], layers: dict[int, Layer], known: list[int], positions: int) -> dict[str, Any]:
    """config.json of new blocks; layers: those with a block, by their numbers in the model, which has `known`."""
    first = next(iter(layers.values()))
    config = {
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
    return config | ({} if list(layers) == known == list(range(len(known))) else {"layers": list(layers)})


# ---- models


def layers_to_attach(
    tap: Tap, source: str, config: dict[str, Any], layers: Sequence[int] | None
) -> dict[int, tuple[int, Layer]]:
    """The layers of a model that get a block: by number the block's place in the files and the layer."""
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
    wanted = numbers if layers is None else sorted(layers)
    for number in wanted:
        if number not in known:
            listed = ", ".join(map(str, known))
            raise ValueError(f"brine: the model has no layer {number} with attention, its layers are {listed}")
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


def block_for(layer: Layer, settings: Settings, positions: int) -> Block:
    """A block with new weights. A learned prior has q and k only, after any rotation."""
    return make_block(
        Shape(layer.heads, layer.groups, layer.head_size, positions, layer.causal, rotary=False), settings
    ).float()


def attach(model: Any, blocks: str | os.PathLike[str] | dict[str, Any], layers: Sequence[int] | None = None) -> Any:
    """Puts blocks into a live model of transformers, which is returned: their layers attend sparsely from then on.

    blocks: a directory that `brine distill --dump --out` or save() wrote, or the settings of new blocks, such as
    {"method": "blocks", "k": 576}: these calibrate the scales of their keys by the first prompt. layers: the
    numbers of the layers that get a block; default:
    all of the directory, and of settings those without a sliding window, or all if every layer has one. A layer
    with a window takes sequences that are not longer than it.

    Passes may have a cache (DynamicCache), padding as attention_mask [B, S] on any side, and gradients. Blocks
    compute in f32 and have no dropout. ValueError for blocks of other sizes and for attention that they cannot
    replace: of encoders with decoders, with caps, sinks or biases of scores, or with values of another size than keys.
    """
    if VERSION < FIRST_VERSION_WITH_ENCODERS:
        raise ValueError(f"brine: attach() needs transformers 5.0 or newer, this is {transformers.__version__}")
    if isinstance(model, SeaStudent):
        raise ValueError("brine: the model is a student of Brine, with blocks of its own")
    if STATE in model.__dict__:
        raise ValueError("brine: the model has blocks already, detach() them first")
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError("brine: blocks are for decoders and encoders, this model has both")
    source, config, tensors = read_blocks(blocks)
    settings = settings_of(cast(Any, SimpleNamespace(**{SECTION: config[SECTION]})))
    with tapped(model, Tap()) as tap:
        tap.find_layers(model)
    wanted = layers_to_attach(tap, source, config, layers)
    known = positions_of(model)
    if tensors is None:
        found = {number: layer for number, (_, layer) in wanted.items()}
        config = config_of(config[SECTION], found, tap.numbers, known or 1 << 20)
    if isinstance(settings, SeaSettings) and settings.mixes and config["causal"]:
        # The table of V_I has as many rows as the files say.
        settings = dataclasses.replace(
            settings, max_positions=settings.max_positions or config["max_position_embeddings"]
        )
    made: dict[int, Block] = {}
    for number, (at, layer) in wanted.items():
        check_layer(number, layer, source, config)
        block = made[number] = block_for(layer, settings, known or config["max_position_embeddings"])
        if tensors is not None:
            load_block(block, tensors, f"layers.{at}.", source)
        elif isinstance(block, BlockAttention):
            block.calibrates = True
    config = dict(config, num_hidden_layers=len(wanted))
    if list(wanted) != tap.numbers or tap.numbers != list(range(len(wanted))):
        config["layers"] = list(wanted)
    put(model, config, made, {number: layer for number, (_, layer) in wanted.items()}, tap)
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
    before = [(c, cast("str | None", c._attn_implementation)) for c in configs.values()]
    for number, block in made.items():
        module = found[number].module
        weight = next(module.parameters(), None)
        if weight is not None:
            block.to(weight.device)
        of = getattr(module, "config", model.config)
        at = getattr(module, "layer_idx", None)
        slots = max(int(getattr(of, "num_hidden_layers", 0)), len(tap.layers))
        place = Place(block, number, found[number].window, number if at is None else int(at), slots)
        module.__dict__[PLACE] = place
        module.register_forward_pre_hook(take_cache, with_kwargs=True)
    for c, original in before:
        c._attn_implementation_internal = implementation(masks, original)
    model.__dict__[STATE] = Attached(config, [layer.module for layer in found.values()], before)


def state_of(model: nn.Module) -> Attached:
    state: Attached | None = model.__dict__.get(STATE)
    if state is None:
        raise ValueError("brine: the model has no blocks, attach() them first")
    return state


def detach(model: Any) -> Any:
    """Takes the blocks out of a model, which is returned: it is the dense model again. ValueError without blocks."""
    state = state_of(model)
    for config, original in state.before:
        config._attn_implementation_internal = original
    for module in state.modules:
        del module.__dict__[PLACE]
        for key in [key for key, hook in module._forward_pre_hooks.items() if hook is take_cache]:
            del module._forward_pre_hooks[key], module._forward_pre_hooks_with_kwargs[key]
    del model.__dict__[STATE]
    return model


def blocks(model: Any) -> nn.ModuleList:
    """The blocks that are attached to a model, in the order of its layers.

    Their parameters are to be trained, their `k` may be changed between calls. ValueError without blocks.
    """
    return nn.ModuleList(module.__dict__[PLACE].block for module in state_of(model).modules)


def layers(model: Any) -> list[int]:
    """The numbers of the layers that have a block, ascending. ValueError without blocks."""
    return [module.__dict__[PLACE].number for module in state_of(model).modules]


def save(model: Any, directory: str | os.PathLike[str], base: bool = False) -> None:
    """Writes the blocks of a model, for attach(); with base=True the model, and the blocks into blocks/ of it.

    The model's files are those of the dense one, save_pretrained()'s; brine_sea.load() reads both parts.
    """
    state, directory = state_of(model), os.fspath(directory)
    if base:
        model.save_pretrained(directory)
        directory = os.path.join(directory, "blocks")
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
    os.makedirs(directory, exist_ok=True)
    write_whole(os.path.join(directory, "model.safetensors"), safetensors_of(tensors, {"format": "pt"}))
    write_whole(os.path.join(directory, "config.json"), json.dumps(config, indent=2).encode() + b"\n")
