"""Blocks in graphs of torch.compile, and with caches of a fixed size (StaticCache): their attention is one operation.

The operation looks up what is no tensor, a block and the state of a cache, by numbers.
"""

from __future__ import annotations

import copy
import itertools
import weakref
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import DynamicCache, StaticLayer

from .modeling_brine_sea import CacheStore

NUMBER = "brine_sea_number"
HIDDEN = -5000.0  # masks that are added to scores have at most as much where they hide a key

blocks: weakref.WeakValueDictionary[int, nn.Module] = weakref.WeakValueDictionary()
numbers = itertools.count(1)


@dataclass
class State:
    """What a block keeps of the tokens that it has seen, for one layer of one cache."""

    parts: DynamicCache = field(default_factory=DynamicCache)
    seen: int = 0


states: dict[int, State] = {}


def number_of(block: nn.Module) -> int:
    """The number under which the operation finds a block."""
    if NUMBER not in block.__dict__:
        block.__dict__[NUMBER] = next(numbers)
    blocks[block.__dict__[NUMBER]] = block
    return int(block.__dict__[NUMBER])


# Graphs of CUDA would repeat kernels of other tokens: they must not contain the operations.
TAGS = tuple(tag for name in ("cudagraph_unsafe",) if (tag := getattr(torch.Tag, name, None)) is not None)


@torch.library.custom_op("brine_sea::new_state", mutates_args=(), tags=TAGS)
def new_state(like: Tensor) -> Tensor:
    """The number of a new state, which lives as long as the tensor."""
    number = next(numbers)
    states[number], out = State(), torch.tensor(number)
    weakref.finalize(out, states.pop, number, None)
    setattr(out, "__deepcopy__", partial(copied_state, number))  # noqa: B010  # of copies of caches
    return out


def copied_state(number: int, memo: dict[int, Any]) -> Tensor:
    """The number of a copy of a state."""
    out: Tensor = new_state(torch.empty(0))
    states[int(out)] = copy.deepcopy(states.get(number, State()))
    return out


@new_state.register_fake
def _(like: Tensor) -> Tensor:
    return torch.empty((), dtype=torch.long)


reorder_layer = StaticLayer.reorder_cache


def reorder_cache(layer: Any, beams: Any) -> None:
    """The state of a cache's layer takes part when beams are reordered."""
    reorder_layer(layer, beams)
    if (number := getattr(layer, NUMBER, None)) is not None:
        states[int(number)].parts.reorder_cache(beams)


setattr(StaticLayer, "reorder_cache", reorder_cache)  # noqa: B010  # of all, as the compiled model may make one


def padding_of(mask: Tensor | None, batch: int, rows: int, keys: int, causal: bool) -> Tensor | None:
    """The bits [B, S] of tokens that are not padding, of a mask of those or of R x S (one or B); None if all are."""
    if mask is None:
        return None
    if mask.dim() == 2:
        return mask[:, :keys].bool()
    if mask.dtype != torch.bool:
        if bool(((mask != 0) & (mask > HIDDEN)).any()):
            raise ValueError("brine: attention_mask adds numbers to scores; blocks take no additive mask")
        mask = mask == 0
    seen = mask[..., :keys]
    visible = seen[:, 0, -1].expand(batch, -1)  # the last row sees all that is not padding
    wanted = visible[:, None, None].expand(-1, -1, rows, -1)
    wanted = wanted.tril(keys - rows) if causal else wanted
    is_token = visible[:, None, keys - rows :, None]
    other = (seen != wanted).any(-1, keepdim=True)
    # Rows of padding see what is visible before them, nothing, themselves, or all: no sequence of their own.
    of_padding = ~is_token & ((seen.sum(-1, keepdim=True) < 2) | seen.all(-1, keepdim=True))
    if seen.shape[2] != rows or bool((other & ~of_padding).any()):
        raise ValueError("brine: attention_mask must be [B, S]; blocks mask only later keys and padding")
    return None if bool(visible.all()) else visible


def run(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, length: Tensor | None, state: Tensor | None, block: int
) -> Tensor:
    """The block's attention over the first `length` keys, [B, R, H, d]."""
    store, count = None, q.shape[2]
    total = k.shape[2] if length is None else int(length)
    module: Any = blocks[block]
    if next(module.buffers()).device != q.device:
        module.to(q.device)  # blocks are not submodules, so model.to() does not move them
    if total > module.shape.max_positions:
        raise ValueError(f"brine: {total} tokens, but the model has {module.shape.max_positions} positions")
    if state is not None:
        number = int(state)
        if total == count:  # of a new text
            states[number] = State()
        known = states.get(number, State())
        if known.seen < total - count:
            raise ValueError(
                f"brine: the cache has keys of {total - count} tokens, of which a block has seen {known.seen};"
                " fill a new cache after attach()"
            )
        known.seen, store = total, CacheStore(known.parts, 0, 1)
    if visible is not None:
        if visible.shape[-1] < total:
            raise ValueError(f"brine: attention_mask has {visible.shape[-1]} columns, the tokens are {total}")
        visible = padding_of(visible, len(q), count, total, module.shape.causal)
        visible = None if visible is None or bool(visible.all()) else visible
    y: Tensor = module(q, k[:, :, :total], v[:, :, :total], visible, None, store)
    return y.transpose(1, 2).contiguous()


@torch.library.custom_op("brine_sea::block_attention", mutates_args=(), tags=TAGS)
def block_attention(
    q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, length: Tensor | None, state: Tensor | None, block: int
) -> Tensor:
    """q [B, H, R, d], k, v [B, G, S, d], visible [B, .] of padding, length and state of a cache -> [B, R, H, d]."""
    return run(q, k, v, visible, length, state, block)


@block_attention.register_fake
def _(q: Tensor, k: Tensor, v: Tensor, *_given: Any) -> Tensor:
    return v.new_empty(q.shape[0], q.shape[2], q.shape[1], v.shape[3])


def keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    q, k, v, visible, _, state, block = inputs
    ctx.save_for_backward(q, k, v, visible)
    ctx.block, ctx.cached = block, state is not None


@torch.library.custom_op("brine_sea::block_attention_backward", mutates_args=(), tags=TAGS)
def gradients(
    dy: Tensor, q: Tensor, k: Tensor, v: Tensor, visible: Tensor | None, block: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Those of q, k and v. Computes the attention again."""
    # The dispatcher calls an operation below its recording of gradients.
    recording = torch._C._SetExcludeDispatchKeyGuard(torch._C.DispatchKey.AutogradFunctionality, False)
    with torch.enable_grad(), recording:
        given = [x.detach().requires_grad_() for x in (q, k, v)]
        dq, dk, dv = torch.autograd.grad(run(given[0], given[1], given[2], visible, None, None, block), given, dy)
    return dq.contiguous(), dk.contiguous(), dv.contiguous()


@gradients.register_fake
def _(dy: Tensor, q: Tensor, k: Tensor, v: Tensor, *_given: Any) -> tuple[Tensor, Tensor, Tensor]:
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
    if ctx.cached:
        raise ValueError("brine: no gradients through a cache of a fixed size")
    return (*gradients(dy, *ctx.saved_tensors, ctx.block), None, None, None, None)


block_attention.register_autograd(backward, setup_context=keep)
