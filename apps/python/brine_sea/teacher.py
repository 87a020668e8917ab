"""Dumps of models of transformers: what their attention reads and gives, without a change to the model."""

from __future__ import annotations

import hashlib
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from .writer import DumpWriter

IMPLEMENTATION = "brine_sea_tap"


def teacher_hash(model: nn.Module) -> str:
    """SHA-256 of a model's weights, the one that `brine inspect` prints for what save_pretrained() writes of it."""
    names: dict[int, str] = {}
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    tensors = model.state_dict(keep_vars=True)
    for name in sorted(tensors, key=lambda n: (n in tied, n)):
        names.setdefault(id(tensors[name]), name)
    digest = hashlib.sha256()
    for name in sorted(names.values()):
        x = tensors[name].detach().float().cpu().contiguous()
        digest.update(f"{name} f32 [{', '.join(map(str, x.shape))}]\n".encode())
        digest.update(x.numpy().tobytes())
    return digest.hexdigest()


class Tap:
    """The tensors of a pass, in the order of the layers: q and k as attention sees them, its result, its map."""

    def __init__(self, maps: bool) -> None:
        self.maps = maps
        self.layers: list[dict[str, Tensor]] = []
        self.modules: list[nn.Module] = []  # the attention of the pass, in its order
        self.names: list[str] = []  # of the layers, in the order of a pass
        self.apart: str | None = None  # why attention is not softmax(q k / sqrt(d)) of what a row sees

    @torch.no_grad()
    def find_layers(self, model: Any, ids: Tensor) -> None:
        """Finds out with a pass which modules are the layers. ids: a few tokens."""
        self.modules, self.layers = [], []
        model(input_ids=ids, **no_cache(model))
        names = {id(module): name for name, module in model.named_modules()}
        if not self.modules:
            raise ValueError("brine: this model's attention does not go through transformers' attention interface")
        self.names = [layer_name(names[id(module)]) for module in self.modules]

    def attention(self, module: nn.Module, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **given: Any) -> Any:
        """The attention function: q [B, H, T, d], k and v [B, G, T, d] -> [B, T, H, d] and the map or None."""
        d, groups = q.shape[-1], q.shape[1] // k.shape[1]
        scaling = given.get("scaling")
        scaling = d**-0.5 if scaling is None else scaling
        # As Brine has it: the scores are q k / sqrt(d), whatever the family divides by and where.
        layer = {"query": q * (scaling * math.sqrt(d)), "key": k.repeat_interleave(groups, 1)}
        capped, sinks = given.get("softcap"), given.get("s_aux")
        if capped is not None:
            self.apart = "scores have a cap"
        elif sinks is not None:
            self.apart = "scores have a sink"
        elif mask is not None and q.shape[2] > 1 and hides_more(mask, causal_of(module)):
            self.apart = "a layer hides earlier keys (a sliding window)"
        if capped is not None or sinks is not None or self.maps:
            scores = layer["query"] @ layer["key"].transpose(-1, -2) / math.sqrt(d)
            if capped is not None:
                scores = torch.tanh(scores / capped) * capped
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
            elif causal_of(module) and q.shape[2] > 1:
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
            if sinks is not None:
                scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
            weights = scores.softmax(-1, dtype=torch.float32)[..., : k.shape[2]]
            y = weights.to(v.dtype) @ v.repeat_interleave(groups, 1)
            if self.maps:
                layer["attention"] = weights
        else:
            causal = mask is None and causal_of(module) and q.shape[2] > 1
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=causal, scale=scaling, enable_gqa=groups > 1
            )
        y = y.transpose(1, 2).contiguous()
        layer["context"] = y.flatten(2)
        self.modules.append(module)
        self.layers.append(layer)
        return y, None


def causal_of(module: nn.Module) -> bool:
    return bool(getattr(module, "is_causal", True))


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
def tapped(model: Any, maps: bool) -> Iterator[Tap]:
    """The model's attention goes through a tap; afterwards it is as it was."""
    tap, before, training = Tap(maps), model.config._attn_implementation, model.training
    for module in model.modules():
        object.__setattr__(module, "brine_sea_tap", tap)
    model.eval()
    model.set_attn_implementation(IMPLEMENTATION)
    try:
        yield tap
    finally:
        model.set_attn_implementation(before)
        model.train(training)
        for module in model.modules():
            object.__delattr__(module, "brine_sea_tap")


@torch.no_grad()
def run(model: Any, tap: Tap, ids: Tensor, lengths: Tensor, outputs: bool) -> tuple[list[dict[str, Tensor]], Any]:
    """The layers of a pass over ids [B, T], with "output" of each if asked for, and what the model gives."""
    tap.modules, tap.layers = [], []
    kept: dict[str, Tensor] = {}
    visible = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, given: Any) -> None:
            kept[name] = given[0] if isinstance(given, tuple) else given

        return model.get_submodule(name).register_forward_hook(hook)

    hooks = [keep(name) for name in dict.fromkeys(tap.names)] if outputs else []
    try:
        given = model(input_ids=ids, attention_mask=None if bool(visible.all()) else visible.long(), **no_cache(model))
    finally:
        for hook in hooks:
            hook.remove()
    for name, layer in zip(tap.names, tap.layers, strict=True):
        if outputs:
            layer["output"] = kept[name]
    return tap.layers, given


def no_cache(model: Any) -> dict[str, bool]:
    return {"use_cache": False} if hasattr(model.config, "use_cache") else {}


def token_windows(tokenizer: Any, texts: Iterable[str], length: int) -> np.ndarray:
    """All texts, one after another, as windows [n, length]; the tokens at the end that fill none are left out."""
    ids: list[int] = []
    for text in texts:
        ids += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    count = len(ids) // length
    if count == 0:
        raise ValueError(f"brine: the texts have {len(ids)} tokens, not even a window of {length}")
    return np.array(ids[: count * length], np.int32).reshape(count, length)


def token_rows(tokenizer: Any, texts: Iterable[str], length: int) -> tuple[np.ndarray, np.ndarray]:
    """Each text as a sample, with what the tokenizer adds: ids [n, longest] and lengths [n]; longer ones are cut."""
    rows = [tokenizer(text, truncation=True, max_length=length)["input_ids"] for text in texts]
    if not rows or not all(rows):
        raise ValueError("brine: a text without tokens" if rows else "brine: no texts")
    lengths = np.array([len(row) for row in rows])
    ids = np.zeros((len(rows), int(lengths.max())), np.int32)
    for row, of in zip(ids, rows, strict=True):
        row[: len(of)] = of
    return ids, lengths


def dump(
    model: Any,
    tokenizer: Any,
    texts: str | Iterable[str],
    out: str | os.PathLike[str],
    *,
    content: str = "qk",
    length: int | None = None,
    windows: bool = True,
    samples: int = 0,
    dtype: str = "f16",
    context: bool = True,
    output: bool = True,
    top_logits: int = 64,
    batch_size: int = 4,
    samples_per_shard: int = 0,
    tokenizer_hash: str = "none",
    seed: int = 1,
    progress: bool = True,
) -> None:
    """Dumps what `brine distill --dump` needs of a model of transformers, decoder or encoder.

    texts: a text or several, cut into windows of `length` tokens (default: the model's positions, at most
    1,024), of which `samples` are drawn by `seed` (0: all); with windows=False each text is a sample of its own
    length. content: "qk", "maps" or "none". Stored are q and k as attention sees them, after the rotation and
    without a scale, its result before the output projection, each layer's output (of the last one before the
    final norm), the `top_logits` largest logits of each token with the log-sum-exp of all (0: none), and the
    tokens. Killed, the same call goes on. ValueError for models whose attention is not transformers'
    attention interface's, or whose heads do not make up the hidden size, and with "qk" where a cap, a sink or a
    sliding window shorter than the sample makes attention another one than q and k say.
    """
    positions = getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1024
    length = min(positions, 1024) if length is None else length
    if length > positions:
        raise ValueError(f"brine: windows of {length} tokens, the model has {positions} positions")
    texts = [texts] if isinstance(texts, str) else texts
    if windows:
        ids = token_windows(tokenizer, texts, length)
        lengths = np.full(len(ids), length)
    else:
        ids, lengths = token_rows(tokenizer, texts, length)
    if 0 < samples < len(ids):
        drawn = np.sort(np.random.default_rng(seed).choice(len(ids), samples, replace=False))
        ids, lengths = ids[drawn], lengths[drawn]
    device = next(model.parameters()).device
    with tapped(model, content == "maps") as tap:
        tap.find_layers(model, torch.tensor(ids[:1, :2], device=device))
        longest = int(lengths.argmax())
        first_ids = torch.tensor(ids[longest : longest + 1, : lengths[longest]], device=device)
        tap.apart = None
        layers, given = run(model, tap, first_ids, torch.tensor(lengths[longest : longest + 1], device=device), output)
        heads, d, hidden = layers[0]["query"].shape[1], layers[0]["query"].shape[-1], layers[0]["context"].shape[-1]
        if content == "qk" and tap.apart:
            raise ValueError(f"brine: {tap.apart}, so maps do not follow from q and k; content='maps' stores them")
        if output and (wide := layers[0]["output"].shape[-1]) != hidden:
            raise ValueError(
                f"brine: {heads} heads of {d} do not make up the hidden size {wide}; output=False leaves the layers'"
                " outputs out"
            )
        logits: Tensor | None = getattr(given, "logits", None)
        if logits is None or logits.dim() != 3:
            logits, top_logits = None, 0
        vocab = model.get_input_embeddings().weight.shape[0] if logits is None else logits.shape[-1]
        with DumpWriter(
            out,
            layers=len(layers),
            heads=heads,
            head_size=d,
            vocab=vocab,
            tokens=ids.shape[1],
            samples=len(ids),
            content=content,
            dtype=dtype,
            causal=causal_of(tap.modules[0]),
            context=context,
            output=output,
            top_logits=top_logits,
            teacher_hash=teacher_hash(model),
            tokenizer_hash=tokenizer_hash,
            samples_per_shard=samples_per_shard,
        ) as writer:
            begin, first = time.monotonic(), writer.written
            while (at := writer.written) < len(ids):
                end = min(at + batch_size, len(ids))
                part, sizes = torch.tensor(ids[at:end], device=device), torch.tensor(lengths[at:end], device=device)
                layers, given = run(model, tap, part, sizes, output)
                write(writer, layers, given, part, sizes)
                if progress:
                    show(writer.written, len(ids), time.monotonic() - begin, first)


def write(writer: DumpWriter, layers: list[dict[str, Tensor]], given: Any, ids: Tensor, lengths: Tensor) -> None:
    """A batch of a pass. Rows of padding become 0."""
    seen = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]  # [n, T]

    def array(x: Tensor, heads: bool) -> np.ndarray:
        rows = seen[:, None, :, None] if heads else seen[..., None]
        return x.masked_fill(~rows, 0).float().cpu().numpy()

    h = writer.header
    names = {"qk": ("query", "key"), "maps": ("attention",), "none": ()}[h["content"]]
    names += ("context",) * h["has_context"] + ("output",) * h["has_output"]
    stored = {name: [array(layer[name], name not in ("context", "output")) for layer in layers] for name in names}
    logits = None
    if h["logits"] != "none":
        rows = given.logits.float()
        values, places = rows.topk(h["top_n"], -1)
        logits = values.cpu().numpy(), places.int().cpu().numpy(), rows.logsumexp(-1).cpu().numpy()
    writer.write(tokens=ids.cpu().numpy(), lengths=lengths.cpu().numpy(), logits=logits, **cast(Any, stored))


def show(done: int, of: int, seconds: float, first: int) -> None:
    left = seconds / max(done - first, 1) * (of - done)
    end = "\n" if done == of else ""
    print(f"\rdump: {done} of {of} samples, {left:.0f} s left ", end=end, file=sys.stderr, flush=True)
