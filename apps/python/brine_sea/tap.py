"""A tap on the attention of a model of transformers: what each layer's attention reads and gives."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from .columns_brine_sea import column_begins

IMPLEMENTATION = "brine_sea_tap"
ATTACHMENT = "brine_sea_attachment"  # what attach() adds to an attention module
SINK = "a sink"
# Numbers of the largest tensor where a map is made for a few rows at a time.
TILE = 1 << 24


@dataclass
class Layer:
    """The attention of a layer, as a pass has shown it. Sizes are those of q, k and v."""

    module: nn.Module
    heads: int
    groups: int
    head_size: int
    value_size: int
    causal: bool
    window: int | None  # keys that a row sees, if it is not all before it
    more: str | None  # what scores have besides q k
    hides: bool = False  # the mask of the pass hid earlier keys

    @property
    def deviation(self) -> tuple[str, tuple[str, ...]] | None:
        """Why attention is not softmax(q k / sqrt(d)) of what a row sees, and the contents that are right."""
        if self.more:
            return f"scores have {self.more}", ("none",) if self.more == SINK else ("maps", "pooled", "none")
        if self.hides:
            return "a layer hides earlier keys (a sliding window)", ("maps", "pooled", "none")
        return None


class Tap:
    """The tensors of a pass, in the order of the layers: q and k as attention sees them, its result, its map."""

    def __init__(self, content: str = "none", context: bool = False, value: bool = False, columns: int = 0) -> None:
        self.content, self.context, self.value, self.columns = content, context, value, columns
        self.layers: list[Layer] = []  # of the pass, as it went
        self.tensors: list[dict[str, Tensor]] = []  # of each of them
        self.names: list[str] = []  # of the modules that are the layers, in the order of a pass
        self.numbers: list[int] = []  # of the layers in the model
        self.wanted: set[int] | None = None  # indices in the order of a pass; None: all
        self.checks_masks = False
        self.lengths: Tensor | None = None  # [B] of the pass

    def begin(self, lengths: Tensor | None = None) -> None:
        self.layers, self.tensors, self.lengths = [], [], lengths

    @torch.no_grad()
    def find_layers(self, model: Any) -> Any:
        """Finds out with a pass over two tokens which modules are the layers. Returns what the model gives."""
        self.begin(torch.tensor([2]))
        device = model.get_input_embeddings().weight.device
        if device.type == "meta":  # offloaded: real only while the module runs
            hook = getattr(model, "_hf_hook", None)
            device = torch.device(getattr(hook, "execution_device", None) or "cpu")
        ids = torch.ones(1, 2, dtype=torch.long, device=device)
        no_interface = "brine: this model's attention does not go through transformers' attention interface"
        try:
            given = model(input_ids=ids, **no_cache(model))
        except Exception as error:  # of models that make no mask for an implementation that they do not know
            if not self.layers:
                raise ValueError(f"{no_interface} ({type(error).__name__}: {error})") from error
            raise
        names = {id(module): name for name, module in model.named_modules()}
        if not self.layers:
            raise ValueError(no_interface)
        self.names = [layer_name(names[id(layer.module)]) for layer in self.layers]
        numbers = [int(name.rsplit(".", 1)[-1]) for name in self.names]
        ascending = all(a < b for a, b in zip(numbers, numbers[1:], strict=False))
        self.numbers = numbers if ascending else list(range(len(numbers)))
        return given

    def choose(self, numbers: list[int]) -> None:
        """Only layers with these numbers are wanted."""
        for number in numbers:
            if number not in self.numbers:
                known = ", ".join(map(str, self.numbers))
                raise ValueError(f"brine: the model has no layer {number} with attention, its layers are {known}")
        self.wanted = {self.numbers.index(number) for number in numbers}

    def wants(self, index: int) -> bool:
        return self.wanted is None or index in self.wanted

    def attention(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **given: Any) -> Any:
        """The attention function: q [B, H, T, d], k and v [B, G, T, d] -> [B, T, H, d] and the map or None."""
        d, groups = q.shape[-1], q.shape[1] // k.shape[1]
        if q.shape[2] != k.shape[2]:
            raise ValueError("brine: attention to other tokens than a row's own sequence is not supported")
        scaling = d**-0.5 if given.get("scaling") is None else given["scaling"]
        causal = causal_of(module, given.get("is_causal"))
        if any(given.get(name) is not None for name in ("indices", "block_indices", "sinks")):
            raise ValueError("brine: the model has sparse attention or sinks of its own")
        kinds = {"a cap": "softcap", SINK: "s_aux", "a bias of positions": "position_bias"}
        capped, sinks, bias = (given.get(name) for name in kinds.values())
        more = next((what for what, name in kinds.items() if given.get(name) is not None), None)
        more = more if sinks is None else SINK
        layer = Layer(module, q.shape[1], k.shape[1], d, v.shape[-1], causal, window_of(module, given), more)
        if self.checks_masks and mask is not None and q.shape[2] > 1:
            layer.hides = hides_more(mask, causal)
        wanted, tensors = self.wants(len(self.layers)), dict[str, Tensor]()

        def weights(a: int, b: int) -> Tensor:
            """The rows a to b of the map, [B, H, b - a, T] in f32."""
            scores = q[:, :, a:b].float() @ k.repeat_interleave(groups, 1).float().transpose(-1, -2) * scaling
            if capped is not None:
                scores = torch.tanh(scores / capped) * capped
            if bias is not None:
                scores = scores + bias[:, :, a:b]
            if mask is not None:
                rows = mask[:, :, a:b]
                scores = scores.masked_fill(~rows, -math.inf) if rows.dtype == torch.bool else scores + rows
            elif causal and q.shape[2] > 1:
                later = torch.ones(b - a, k.shape[2], dtype=torch.bool, device=q.device).triu(a + 1)
                scores = scores.masked_fill(later, -math.inf)
            if sinks is not None:
                scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
            # A row of padding may see nothing; as not a number it would reach the rows that see it.
            return scores.softmax(-1)[..., : k.shape[2]].nan_to_num()

        if wanted and self.content == "qk":
            # As Brine has it: the scores are q k / sqrt(d), whatever the family divides by and where.
            tensors = {"query": q * (scaling * math.sqrt(d)), "key": k}
        if wanted and self.value:
            tensors["value"] = v
        if wanted and self.content == "pooled":
            tensors |= self.pooled(weights, q, causal)
        if more or (wanted and self.content == "maps"):
            whole = weights(0, q.shape[2])
            y = whole.to(v.dtype) @ v.repeat_interleave(groups, 1)
            if wanted and self.content == "maps":
                tensors["attention"] = whole
        else:
            plain = mask is None and causal and q.shape[2] > 1
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=plain, scale=scaling, enable_gqa=groups > 1
            )
        y = y.transpose(1, 2).contiguous()
        if wanted and self.context:
            tensors["context"] = y.flatten(2)
        self.layers.append(layer)
        self.tensors.append({name: x.cpu() for name, x in tensors.items()})
        return y, None

    def pooled(self, weights: Any, q: Tensor, causal: bool) -> dict[str, Tensor]:
        """The masses of the columns of each row [B, H, T, K], and its sums of t log t and of t^2 [B, H, T]."""
        batch, heads, tokens, _ = q.shape
        assert self.lengths is not None
        lengths = self.lengths.to(q.device)
        parts: list[tuple[Tensor, ...]] = []
        step = max(1, TILE // (batch * heads * tokens))
        for a in range(0, tokens, step):
            b = min(a + step, tokens)
            rows = weights(a, b).double()
            widths = torch.arange(a + 1, b + 1, device=q.device)[None] if causal else lengths[:, None]
            begins = column_begins(widths.expand(batch, b - a), self.columns)
            sums = F.pad(rows.cumsum(-1), (1, 0))
            tau = sums.gather(-1, begins[:, None].expand(-1, heads, -1, -1)).diff(dim=-1).clamp(min=0)
            parts.append((tau.float(), torch.xlogy(rows, rows).sum(-1).float(), rows.square().sum(-1).float()))
        tau, t_log_t, t_square = (torch.cat(x, 2) for x in zip(*parts, strict=True))
        return {"tau": tau, "t_log_t": t_log_t, "t_square": t_square}


def causal_of(module: nn.Module, given: bool | None) -> bool:
    """Whether a layer is causal; `given` is the argument of its attention function, or of the call of the model."""
    of_module = getattr(module, "is_causal", None)
    return (of_module is None or bool(of_module)) if given is None else bool(given)


def window_of(module: nn.Module, given: dict[str, Any]) -> int | None:
    """The keys that a row of a layer with a sliding window or chunks sees at most, None of any other."""
    if given.get("sliding_window") is not None:
        return int(given["sliding_window"])
    config, index = getattr(module, "config", None), getattr(module, "layer_idx", None)
    types = getattr(config, "layer_types", None)
    kind = types[index] if types and index is not None and index < len(types) else "full_attention"
    name = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}.get(kind)
    size = getattr(config, name, None) if name else None
    return None if size is None else int(size)


def hides_more(mask: Tensor, causal: bool) -> bool:
    """Whether a mask [B, 1, T, T] hides keys of the first sequence, which has no padding, that are not after a row."""
    seen = mask[0, 0] if mask.dtype == torch.bool else mask[0, 0] == 0
    wanted = torch.ones_like(seen)
    return bool((~seen & (wanted.tril() if causal else wanted)).any())


def layer_name(name: str) -> str:
    """The layer of an attention module: its name up to the last number."""
    parts = name.split(".")
    numbers = [i for i, part in enumerate(parts) if part.isdigit()]
    if not numbers:
        raise ValueError(f"brine: the attention {name} is in no numbered layer")
    return ".".join(parts[: numbers[-1] + 1])


def tap_attention(module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **given: Any) -> Any:
    tap = getattr(module, "brine_sea_tap", None)
    if tap is None:
        raise ValueError("brine: this attention is of a model that is not being dumped")
    return tap.attention(module, q, k, v, mask, **given)


AttentionInterface.register(IMPLEMENTATION, cast(Any, tap_attention))
AttentionMaskInterface.register(IMPLEMENTATION, sdpa_mask)


@contextmanager
def tapped(model: nn.Module, tap: Tap) -> Iterator[Tap]:
    """The model's attention goes through a tap; afterwards it is as it was."""
    modules = list(model.modules())
    configs: dict[int, Any] = {
        id(c): c for m in modules if hasattr(c := getattr(m, "config", None), "_attn_implementation")
    }
    before = {at: config._attn_implementation for at, config in configs.items()}
    training = [module.training for module in modules]
    try:
        for module in modules:
            object.__setattr__(module, "brine_sea_tap", tap)
        for config in configs.values():
            config._attn_implementation = IMPLEMENTATION
        model.eval()
        yield tap
    finally:
        for at, config in configs.items():
            config._attn_implementation = before[at]
        for module, was in zip(modules, training, strict=True):
            module.training = was
            module.__dict__.pop("brine_sea_tap", None)


@torch.no_grad()
def run(
    model: Any, tap: Tap, ids: Tensor, lengths: Tensor, outputs: bool, types: Tensor | None = None
) -> tuple[list[dict[str, Tensor]], Any]:
    """The wanted layers of a pass over ids [B, T], with "output" of each if asked for, and what the model gives.

    types [B, T]: of the tokens, of models that have them.
    """
    tap.begin(lengths)
    visible = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]

    def keep(module: nn.Module, inputs: Any, given: Any) -> None:
        if tap.wants(len(tap.tensors) - 1):  # a layer ends after its attention and before that of the next
            tap.tensors[-1]["output"] = (given[0] if isinstance(given, tuple) else given).cpu()

    hooks = [model.get_submodule(name).register_forward_hook(keep) for name in dict.fromkeys(tap.names) if outputs]
    more = no_cache(model) | ({} if types is None else {"token_type_ids": types})
    try:
        given = model(input_ids=ids, attention_mask=None if bool(visible.all()) else visible.long(), **more)
    finally:
        for hook in hooks:
            hook.remove()
    return [tensors for index, tensors in enumerate(tap.tensors) if tap.wants(index)], given


def no_cache(model: Any) -> dict[str, bool]:
    return {"use_cache": False} if hasattr(model.config, "use_cache") else {}


def positions_of(model: Any) -> int | None:
    """The largest number of tokens of a sequence, None if the model says nothing."""
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if not positions:
        return None
    for name, module in model.named_modules():
        # RoBERTa's positions begin after that of padding.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return int(positions) - int(module.padding_idx) - 1
    return int(positions)
