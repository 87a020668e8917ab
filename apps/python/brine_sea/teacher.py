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

from .files import Dump
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
        x = tensors[name].detach().cpu().float().contiguous()
        digest.update(f"{name} f32 [{', '.join(map(str, x.shape))}]\n".encode())
        digest.update(x.numpy().data)
    return digest.hexdigest()


class Tap:
    """The tensors of a pass, in the order of the layers: q and k as attention sees them, its result, its map."""

    def __init__(self, content: str, context: bool) -> None:
        self.content, self.context = content, context
        self.layers: list[dict[str, Tensor]] = []
        self.modules: list[nn.Module] = []  # the attention of the pass, in its order
        self.names: list[str] = []  # of the layers, in the order of a pass
        self.causal: set[bool] = set()
        self.sizes = 0, 0  # heads and their size
        # Why attention is not softmax(q k / sqrt(d)) of what a row sees, and the content that is right.
        self.apart: tuple[str, str] | None = None

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
        causal = causal_of(module) if given.get("is_causal") is None else bool(given["is_causal"])
        if q.shape[2] != k.shape[2]:
            raise ValueError("brine: attention to other tokens than a row's own sequence cannot be dumped")
        layer: dict[str, Tensor] = {}
        if self.content == "qk":
            # As Brine has it: the scores are q k / sqrt(d), whatever the family divides by and where.
            layer = {"query": q * (scaling * math.sqrt(d)), "key": k.repeat_interleave(groups, 1)}
        capped, sinks = given.get("softcap"), given.get("s_aux")
        if sinks is not None:
            self.apart = "scores have a sink", "none"
        elif capped is not None:
            self.apart = "scores have a cap", "maps"
        elif mask is not None and q.shape[2] > 1 and hides_more(mask, causal):
            self.apart = "a layer hides earlier keys (a sliding window)", "maps"
        if capped is not None or sinks is not None or self.content == "maps":
            scores = q.float() @ k.repeat_interleave(groups, 1).float().transpose(-1, -2) * scaling
            if capped is not None:
                scores = torch.tanh(scores / capped) * capped
            if mask is not None:
                scores = scores.masked_fill(~mask, -math.inf) if mask.dtype == torch.bool else scores + mask
            elif causal and q.shape[2] > 1:
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -math.inf)
            if sinks is not None:
                scores = torch.cat([scores, sinks.view(1, -1, 1, 1).expand(*scores.shape[:3], 1)], -1)
            # A row of padding may see nothing; as not a number it would reach the rows that see it.
            weights = scores.softmax(-1)[..., : k.shape[2]].nan_to_num()
            y = weights.to(v.dtype) @ v.repeat_interleave(groups, 1)
            if self.content == "maps":
                layer["attention"] = weights
        else:
            plain = mask is None and causal and q.shape[2] > 1
            y = F.scaled_dot_product_attention(
                q, k, v, attn_mask=mask, is_causal=plain, scale=scaling, enable_gqa=groups > 1
            )
        y = y.transpose(1, 2).contiguous()
        if self.context:
            layer["context"] = y.flatten(2)
        self.causal.add(causal)
        self.sizes = q.shape[1], d
        self.modules.append(module)
        self.layers.append({name: x.cpu() for name, x in layer.items()})
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
def tapped(model: nn.Module, content: str, context: bool) -> Iterator[Tap]:
    """The model's attention goes through a tap; afterwards it is as it was."""
    tap, modules = Tap(content, context), list(model.modules())
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
def run(model: Any, tap: Tap, ids: Tensor, lengths: Tensor, outputs: bool) -> tuple[list[dict[str, Tensor]], Any]:
    """The layers of a pass over ids [B, T], with "output" of each if asked for, and what the model gives."""
    tap.modules, tap.layers = [], []
    kept: dict[str, list[Tensor]] = {name: [] for name in tap.names}  # a layer may be used several times
    visible = torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]

    def keep(name: str) -> Any:
        def hook(module: nn.Module, inputs: Any, given: Any) -> None:
            kept[name].append((given[0] if isinstance(given, tuple) else given).cpu())

        return model.get_submodule(name).register_forward_hook(hook)

    hooks = [keep(name) for name in dict.fromkeys(tap.names)] if outputs else []
    try:
        given = model(input_ids=ids, attention_mask=None if bool(visible.all()) else visible.long(), **no_cache(model))
    finally:
        for hook in hooks:
            hook.remove()
    for name, layer in zip(tap.names, tap.layers, strict=True):
        if outputs:
            layer["output"] = kept[name].pop(0)
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
    attention interface's, that are encoder and decoder in one, or whose heads do not make up the hidden size, and
    for a content that cannot say what attention is: "qk" with capped scores or a sliding window shorter than the
    sample, "qk" and "maps" with sinks.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError("brine: a dump is of a decoder or an encoder, this model has both")
    positions = positions_of(model)
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
    words = model.get_input_embeddings().weight
    device = words.device
    with tapped(model, content, context or output) as tap:
        longest = int(lengths.argmax())
        first = torch.tensor(ids[longest : longest + 1, : lengths[longest]], device=device)
        tap.find_layers(model, first[:, :2])
        tap.apart = None
        layers, given = run(model, tap, first, torch.tensor(lengths[longest : longest + 1], device=device), output)
        if len(tap.causal) > 1:
            raise ValueError("brine: some layers are causal and others are not, a dump is of one kind")
        if tap.apart and content not in ("none", tap.apart[1]):
            raise ValueError(
                f"brine: {tap.apart[0]}, so a student's attention cannot follow from {content};"
                f" content={tap.apart[1]!r} is possible"
            )
        heads, d = tap.sizes
        if output and (wide := layers[0]["output"].shape[-1]) != heads * d:
            raise ValueError(
                f"brine: {heads} heads of {d} do not make up the hidden size {wide}; output=False leaves the layers'"
                " outputs out"
            )
        if model.get_output_embeddings() is None or getattr(given, "logits", None) is None:
            top_logits = 0
        with DumpWriter(
            out,
            layers=len(layers),
            heads=heads,
            head_size=d,
            vocab=given.logits.shape[-1] if top_logits else words.shape[0],
            tokens=ids.shape[1],
            samples=len(ids),
            content=content,
            dtype=dtype,
            causal=tap.causal.pop(),
            context=context,
            output=output,
            top_logits=top_logits,
            teacher_hash=teacher_hash(model),
            tokenizer_hash=tokenizer_hash,
            samples_per_shard=samples_per_shard,
        ) as writer:
            same_samples(writer, ids, lengths)
            begin, before = time.monotonic(), writer.written
            while (at := writer.written) < len(ids):
                end = min(at + batch_size, len(ids))
                part, sizes = torch.tensor(ids[at:end], device=device), torch.tensor(lengths[at:end], device=device)
                layers, given = run(model, tap, part, sizes, output)
                write(writer, layers, given, part, sizes)
                if progress:
                    show(writer.written, len(ids), time.monotonic() - begin, before)


def positions_of(model: Any) -> int:
    """The most tokens of a sample."""
    positions = int(getattr(model.config.get_text_config(), "max_position_embeddings", None) or 1024)
    for name, module in model.named_modules():
        # RoBERTa's positions begin behind that of padding.
        if name.endswith("position_embeddings") and getattr(module, "padding_idx", None) is not None:
            return positions - int(module.padding_idx) - 1
    return positions


def same_samples(writer: DumpWriter, ids: np.ndarray, lengths: np.ndarray) -> None:
    """Raises ValueError if the samples of a dump that is continued are others."""
    if writer.written == 0:
        return
    there = Dump(writer.directory)
    for sample in range(writer.written):
        if there.tokens(sample).tolist() != ids[sample, : lengths[sample]].tolist():
            raise ValueError(f"{writer.directory}: its sample {sample} has other tokens; choose another directory")


def write(writer: DumpWriter, layers: list[dict[str, Tensor]], given: Any, ids: Tensor, lengths: Tensor) -> None:
    """A batch of a pass. Rows of padding become 0."""
    seen = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).cpu()  # [n, T]

    def array(x: Tensor, heads: bool) -> np.ndarray:
        rows = seen[:, None, :, None] if heads else seen[..., None]
        return x.masked_fill(~rows, 0).float().numpy()

    h = writer.header
    names = {"qk": ("query", "key"), "maps": ("attention",), "none": ()}[h["content"]]
    names += ("context",) * h["has_context"] + ("output",) * h["has_output"]
    stored = {name: [array(layer[name], name not in ("context", "output")) for layer in layers] for name in names}
    logits = None
    if h["logits"] != "none":
        parts = []
        for sample in given.logits:  # one at a time: a vocabulary may be large
            values, places = sample.float().topk(h["top_n"], -1)
            parts.append((values.cpu(), places.int().cpu(), sample.float().logsumexp(-1).cpu()))
        logits = tuple(torch.stack(x).numpy() for x in zip(*parts, strict=True))
    writer.write(tokens=ids.cpu().numpy(), lengths=lengths.cpu().numpy(), logits=logits, **cast(Any, stored))


def show(done: int, of: int, seconds: float, first: int) -> None:
    left = seconds / max(done - first, 1) * (of - done)
    end = "\n" if done == of else ""
    print(f"\rdump: {done} of {of} samples, {left:.0f} s left ", end=end, file=sys.stderr, flush=True)
