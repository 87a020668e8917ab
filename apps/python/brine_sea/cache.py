"""A cache of transformers that keeps keys and values in 8 bits: what `brine generate --cache q8` keeps.

    model.generate(..., past_key_values=brine_sea.QuantizedCache(model.config))

Keys of complete blocks are two planes of 4 bits relative to the block's mean, of which the high one is the copy that
blocks of attach() are chosen by; values are 8 bits with a step a key (docs/method.md 8.9). The keys of the first block
are bf16; the incomplete last block is not quantized.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from .blocks_brine_sea import in_steps, packed, unpacked

__all__ = ["QuantizedCache"]


class QuantizedLayer(DynamicLayer):
    """The cache of one layer; of keys and values [B, G, T, d], for blocks of `block` keys and channels of scale
    `key_scale` [G, d], None: the square root of the root mean square of k - mean in a text's first block."""

    def __init__(self, block: int = 32, key_scale: Tensor | None = None, **options: Any) -> None:
        super().__init__(**options)
        self.block, self.key_scale = block, key_scale
        self.kept: dict[str, Tensor] = {}

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        if (scale := self.key_scale) is not None:
            wanted = (key_states.shape[1], key_states.shape[3])
            if scale.shape != wanted or not bool((torch.isfinite(scale) & (scale > 0)).all()):
                raise ValueError(f"brine: key_scales must be positive and finite, {list(wanted)} of each layer")
        super().lazy_initialization(key_states, value_states)
        self.kept = {"last_keys": key_states[:, :, :0], "last_values": value_states[:, :, :0]}

    def scale(self, like: Tensor) -> Tensor:
        """[B or 1, G, 1, 1, d]"""
        scale = self.kept["scale"] if self.key_scale is None else self.key_scale[None]
        return scale.to(like)[:, :, None, None]

    def coded(self, keys: Tensor, values: Tensor) -> dict[str, Tensor]:
        """Of complete blocks [B, G, N, block, d]; steps, means and deviations in bf16."""
        wide = torch.float64 if keys.dtype == torch.float64 else torch.float32
        k, v = keys.to(wide), values.to(wide)
        x, *numbers = in_steps(k, self.scale(k), torch.bfloat16)
        means, deviations, steps = (x.bfloat16() for x in numbers)
        z = x.floor().clamp(-8, 7)
        y = torch.where(steps[..., None] > 0, ((x - z) * 16).floor().clamp(0, 15), 8)
        value_steps = (v.abs().amax(-1) / 127).bfloat16()
        c = v / torch.where(value_steps > 0, value_steps.to(wide), 1)[..., None]
        return {
            "high": packed(z + 8),
            "low": packed(y),
            "steps": steps,
            "means": means,
            "deviations": deviations,
            "bytes": c.round().clamp(-127, 127).to(torch.int8),
            "value_steps": value_steps,
        }

    def decoded(self) -> tuple[Tensor, Tensor]:
        """All keys and values [B, G, T, d]."""
        last_keys, last_values = self.kept["last_keys"], self.kept["last_values"]
        if "high" not in self.kept:
            return last_keys, last_values
        wide = torch.float64 if last_keys.dtype == torch.float64 else torch.float32
        d = last_keys.shape[-1]
        high, low = (unpacked(self.kept[name], d).to(wide) for name in ("high", "low"))
        steps, means = self.kept["steps"].to(wide)[..., None], self.kept["means"].to(wide)[..., None, :]
        k = means + self.scale(means) * steps * (16 * high + low - 127.5) / 16
        k[:, :, 0] = self.kept["first_keys"]
        v = self.kept["value_steps"].to(wide)[..., None] * self.kept["bytes"].to(wide)
        return (
            torch.cat((k.flatten(2, 3).to(last_keys.dtype), last_keys), 2),
            torch.cat((v.flatten(2, 3).to(last_values.dtype), last_values), 2),
        )

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_options: Any) -> tuple[Tensor, Tensor]:
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        before = self.decoded()
        keys, values = (torch.cat(x, 2) for x in zip(before, (key_states, value_states), strict=True))
        self.keep(keys, values, self.blocks())
        return keys, values

    def keep(self, keys: Tensor, values: Tensor, known: int) -> None:
        """All of these, of which the first `known` blocks are coded already."""
        first, end = known * self.block, keys.shape[2] // self.block * self.block
        if end > first:
            blocks = (end - first) // self.block, self.block
            if self.key_scale is None and "scale" not in self.kept:
                of_first = keys[:, :, : self.block].to(torch.float64)
                squares = (of_first - of_first.mean(2, keepdim=True)).square().mean(2)
                self.kept["scale"] = torch.where(squares > 0, squares.sqrt().sqrt(), 1)
            new = self.coded(*(x[:, :, first:end].unflatten(2, blocks) for x in (keys, values)))
            if first == 0:
                self.kept["first_keys"] = keys[:, :, : self.block].bfloat16()
            if "deviations" not in self.kept:  # only blocks read them
                del new["deviations"]
            self.kept |= {n: torch.cat((self.kept[n], x), 2) if n in self.kept else x for n, x in new.items()}
        self.kept |= {"last_keys": keys[:, :, end:].clone(), "last_values": values[:, :, end:].clone()}

    def copies(self, keys: Tensor, values: Tensor, key_scale: Tensor, block: int) -> tuple[Tensor, ...] | None:
        """What blocks of `block` keys are chosen by: the parts of Copies (blocks_brine_sea.py) of all complete blocks.

        keys, values: those that update() returned, of which the first call codes all blocks again, by key_scale. None
        if they are others: some families change keys after their cache.
        """
        if "deviations" not in self.kept or self.block != block:
            known = self.kept.get("first_keys" if self.blocks() else "last_keys", keys[:, :, :0])
            if not known.numel() or not torch.equal(known, keys[:, :, : known.shape[2]].to(known.dtype)):
                return None
            keys, values = keys.to(self.kept["last_keys"].dtype), values.to(self.kept["last_values"].dtype)
            none = keys.new_empty(*keys.shape[:2], 0, keys.shape[3], dtype=torch.bfloat16)
            self.block, self.kept = block, {"scale": key_scale.repeat(len(keys), 1, 1), "deviations": none}
            self.keep(keys, values, 0)
        numbers = torch.cat([self.kept[name] for name in ("means", "deviations", "steps")], -1).to(key_scale.dtype)
        return self.kept["high"].flatten(3), numbers, self.scale(numbers).flatten(0, 3)

    def blocks(self) -> int:
        return self.kept["high"].shape[2] if "high" in self.kept else 0

    def get_seq_length(self) -> int:
        return self.blocks() * self.block + self.kept["last_keys"].shape[2] if self.kept else 0

    def nbytes(self) -> int:
        """Bytes of what is kept."""
        return sum(x.numel() * x.element_size() for x in self.kept.values())

    def each(self, f: Callable[[Tensor], Tensor]) -> None:
        self.kept = {name: f(x) for name, x in self.kept.items()}

    def reset(self) -> None:
        self.kept, self.is_initialized = {}, False
        super().reset()

    def crop(self, tokens_to_remove: int) -> None:
        if not self.kept:  # as layers that share another one's keys
            return
        length = self.get_seq_length()
        # Until transformers 5.15 a positive number is that of the tokens that stay.
        left = min(tokens_to_remove, length) if tokens_to_remove > 0 else length + tokens_to_remove
        if left < 0:
            raise ValueError(f"brine: crop({tokens_to_remove}) of a cache of {self.get_seq_length()} tokens")
        keys, values = (x[:, :, :left] for x in self.decoded())
        whole = left // self.block
        once = {n: x for n, x in self.kept.items() if n in ("scale", "first_keys")}
        of_blocks = {n: x[:, :, :whole] for n, x in self.kept.items() if n not in (*once, "last_keys", "last_values")}
        self.kept = of_blocks | once if whole else {}
        self.keep(keys, values, whole)

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.each(lambda x: x.index_select(0, beam_idx.to(x.device)))

    def batch_repeat_interleave(self, repeats: int) -> None:
        self.each(lambda x: x.repeat_interleave(repeats, 0))

    def batch_select_indices(self, indices: Tensor) -> None:
        self.each(lambda x: x[indices, ...])


class QuantizedCache(DynamicCache):
    """Keys and values in 8 bits, for any causal model of transformers, with or without blocks: .53 to .60 of a cache in
    bf16, on CPU and GPU tensors. A pass reads a layer's cache as numbers while it runs.

    `block`: keys of a block, those of blocks of attach() where there are any. `key_scales`: of every layer's keys
    [G, d]; None: those of attached blocks, without them of a text's first block.
    """

    def __init__(self, config: Any, block: int = 32, key_scales: Sequence[Tensor] | None = None) -> None:
        if block < 1:
            raise ValueError(f"brine: blocks of {block} keys, must have at least 1")
        text = config.get_text_config(decoder=True)
        kinds = set(getattr(text, "layer_types", None) or []) - {"full_attention"}
        if kinds:
            raise ValueError(f"brine: QuantizedCache is for full attention, this model has {', '.join(sorted(kinds))}")
        scales = [None] * int(text.num_hidden_layers) if key_scales is None else list(key_scales)
        if len(scales) != text.num_hidden_layers:
            raise ValueError(f"brine: key_scales of {len(scales)} layers, the model has {text.num_hidden_layers}")
        Cache.__init__(self, layers=[QuantizedLayer(block, scale) for scale in scales])
