"""Dumps of models of transformers: what their attention reads and gives, without a change to the model."""

import inspect
import os
import sys
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from .columns_brine_sea import hash_of
from .configuration_brine_sea import check_integer
from .shards import name_of
from .tap import ATTACHMENT, Tap, positions_of, run, tapped
from .writer import CONTENTS, SHARD, DumpWriter

Text = str | tuple[str, str]


def teacher_hash(model: nn.Module) -> str:
    """SHA-256 of a model's weights, the one that `brine inspect` prints for what save_pretrained() writes of it."""
    names: dict[int, str] = {}
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    tensors = model.state_dict(keep_vars=True)
    if away := [name for name, x in tensors.items() if x.is_meta]:
        raise ValueError(f"brine: {away[0]} is offloaded or has no data; load the model into memory")
    for name in sorted(tensors, key=lambda n: (n in tied, n)):
        names.setdefault(id(tensors[name]), name)
    return hash_of({name: tensors[name] for name in names.values()})


def token_windows(tokenizer: Any, texts: Iterable[str], length: int) -> tuple[np.ndarray, ...]:
    """All texts, one after another, as windows; the tokens at the end that fill none are left out. As token_rows()."""
    ids: list[int] = []
    for text in texts:
        ids += tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
    count = len(ids) // length
    if count == 0:
        raise ValueError(f"brine: the texts have {len(ids)} tokens, not even a window of {length}")
    rows = np.array(ids[: count * length], np.int32).reshape(count, length)
    return rows, np.zeros_like(rows), np.full(count, length)


def token_rows(tokenizer: Any, texts: Iterable[Text], length: int, pad: int) -> tuple[np.ndarray, ...]:
    """Each text, or pair of texts, as a sample, with what the tokenizer adds; longer ones are cut.

    ids [n, longest], types of the tokens (the same) and lengths [n]. pad: the id after the end of a text.
    """
    pairs = [(text,) if isinstance(text, str) else tuple(text) for text in texts]
    for at, pair in enumerate(pairs):
        if not all(text.strip() for text in pair):
            raise ValueError(f"brine: text {at} is empty; leave it out")
    made = [tokenizer(*pair, truncation=True, max_length=length) for pair in pairs]
    rows = [row["input_ids"] for row in made]
    if not rows or not all(rows):
        raise ValueError("brine: a text without tokens" if rows else "brine: no texts")
    cut = sum(len(tokenizer(*pair, verbose=False)["input_ids"]) > length for pair in pairs)
    if cut:
        warnings.warn(f"brine: {cut} of {len(rows)} texts were cut to {length} tokens", stacklevel=3)
    lengths = np.array([len(row) for row in rows])
    ids = np.full((len(rows), int(lengths.max())), pad, np.int32)
    types = np.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, : len(row)] = row
        types[at, : len(row)] = made[at]["token_type_ids"] if "token_type_ids" in made[at] else 0
    return ids, types, lengths


def process(rank: int | None, ranks: int | None) -> tuple[int, int]:
    """The number of this process and that of all: as given, or as torch.distributed has them."""
    if rank is None and ranks is None and torch.distributed.is_available() and torch.distributed.is_initialized():
        return torch.distributed.get_rank(), torch.distributed.get_world_size()
    return rank or 0, ranks or 1


def dump(
    model: Any,
    tokenizer: Any,
    texts: str | Iterable[Text],
    out: str | os.PathLike[str],
    *,
    content: str = "qk",
    value: bool = False,
    columns: int = 64,
    layers: Sequence[int] | None = None,
    length: int | None = None,
    windows: bool | None = None,
    samples: int = 0,
    dtype: str = "f16",
    context: bool = True,
    output: bool = True,
    top_logits: int = 64,
    batch_size: int = 4,
    samples_per_shard: int = 0,
    tokenizer_hash: str = "none",
    seed: int = 1,
    rank: int | None = None,
    ranks: int | None = None,
    timeout: float = 3600,
    progress: bool = True,
) -> None:
    """Dumps what `brine distill --dump` needs of a model of transformers, decoder or encoder.

    texts: a text or several, cut into windows of `length` tokens (default: the model's positions, at most
    1,024), of which `samples` are drawn by `seed` (0: all); with windows=False, and of a model that classifies
    texts always, each text or pair of texts is a sample with its length; of a classifier padding is not stored,
    and shorter texts come first. content: "qk", "maps", "pooled" (at
    `columns` columns) or "none"; value: the values of heads, too; layers: the numbers of those to dump (None: all).
    Stored are q, k and v as attention sees them, after the rotation and without a scale, its result before the
    output projection, each layer's output (of the last one before the final norm), the `top_logits` largest
    logits of each token with the log-sum-exp of all (0: none) or the logits of a classifier, and the tokens.

    batch_size: samples of a pass at most; fewer if their values are more than 1 GiB in f32, twice.

    If interrupted, the same call continues. Several processes share the work if each says its `rank` of `ranks`
    (default: those of torch.distributed, if it is initialised); the files are those of one process. rank 0 ends when
    the others have, with ValueError if they write nothing for `timeout` seconds. ValueError for models whose
    attention is not transformers' attention interface's or that are encoder and decoder in one, and for a content
    that cannot say what attention is: "qk" with caps or biases of scores or a sliding window shorter than the sample,
    all but "none" with sinks.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        raise ValueError("brine: a dump is of a decoder or an encoder, this model has both")
    if content not in CONTENTS:
        raise ValueError(f"brine: content is {content!r}, known are {', '.join(CONTENTS)}")
    if content == "pooled" and (not isinstance(columns, int) or columns < 1):
        raise ValueError(f"brine: columns is {columns!r}, must be an integer of at least 1")
    if any(ATTACHMENT in module.__dict__ for module in model.modules()):
        raise ValueError("brine: the model has blocks, a dump is of its own attention; detach() them first")
    positions = positions_of(model)
    length = min(positions or 1024, 1024) if length is None else length
    check_integer("length", length)
    check_integer("top_logits", top_logits, 0)
    if positions and length > positions:
        raise ValueError(f"brine: samples of {length} tokens, the model has {positions} positions")
    known = teacher_hash(model)
    words = model.get_input_embeddings().weight
    device = words.device
    tap = Tap(content, context, value, columns)
    with tapped(model, tap):
        classes = classes_of(tap.find_layers(model))
        if classes and windows:
            raise ValueError("brine: a model that classifies texts reads each as a whole, windows must be False")
        texts = cast("Iterable[Text]", [texts] if isinstance(texts, str) else texts)
        pad = getattr(model.config.get_text_config(), "pad_token_id", None)
        if classes or windows is False:
            ids, types, lengths = token_rows(tokenizer, texts, length, pad or 0)
        else:
            ids, types, lengths = token_windows(tokenizer, cast("Iterable[str]", texts), length)
        typed = bool(types.any()) and "token_type_ids" in inspect.signature(model.forward).parameters
        numbers = np.arange(len(ids))
        if not 0 <= samples <= len(ids):
            kind = "texts" if classes or windows is False else "windows"
            raise ValueError(f"brine: {samples} {kind} requested, there are {len(ids)} (0: all)")
        if 0 < samples < len(ids):
            numbers = np.sort(np.random.default_rng(seed).choice(len(ids), samples, replace=False))
            ids, types, lengths = ids[numbers], types[numbers], lengths[numbers]
        if classes:  # batches of similar lengths
            order = np.argsort(lengths, kind="stable")
            numbers, ids, lengths = numbers[order], ids[order, : lengths.max()], lengths[order]
            types = types[order, : ids.shape[1]]

        def passed(at: int, end: int, cut: bool) -> tuple[Any, ...]:
            """The tokens of samples and their lengths, and what run() gives of them, cut to the longest or not."""
            part, of_tokens, sizes = (torch.tensor(x[at:end], device=device) for x in (ids, types, lengths))
            seen = int(sizes.max()) if cut else part.shape[1]
            return part, sizes, *run(model, tap, part[:, :seen], sizes, output, of_tokens[:, :seen] if typed else None)

        # A classifier finds the end of a text by the id of padding. Without one it is given each text by itself.
        alone = classes > 0 and pad is None
        if layers is not None:
            if not list(layers):
                raise ValueError("brine: layers is empty")
            tap.choose(list(layers))
        longest = int(lengths.argmax())
        tap.checks_masks = True
        *_, tensors, given = passed(longest, longest + 1, True)
        tap.checks_masks = False
        check_layers(tap, content)
        indices = [index for index in range(len(tap.layers)) if tap.wants(index)]
        of = tap.layers[indices[0]]
        dumped = [tap.numbers[index] for index in indices]
        if classes or model.get_output_embeddings() is None or getattr(given, "logits", None) is None:
            top_logits = 0
        at_rank, of_ranks = process(rank, ranks)
        hidden = tensors[0]["output"].shape[-1] if output else model.config.get_text_config().hidden_size
        with DumpWriter(
            out,
            layers=len(indices),
            heads=of.heads,
            key_heads=of.groups,
            head_size=of.head_size,
            hidden=hidden,
            vocab=given.logits.shape[-1] if top_logits else words.shape[0],
            tokens=ids.shape[1],
            samples=len(ids),
            content=content,
            value=value,
            columns=columns if content == "pooled" else 0,
            dtype=dtype,
            causal=of.causal,
            context=context,
            output=output,
            top_logits=top_logits,
            classes=classes,
            lengths=lengths.tolist() if classes else None,
            model_layers=None if dumped == list(range(len(tap.layers))) else dumped,
            teacher_hash=known,
            tokenizer_hash=tokenizer_hash,
            samples_per_shard=samples_per_shard,
            rank=at_rank,
            ranks=of_ranks,
            timeout=timeout,
        ) as writer:
            same_samples(writer, ids, lengths)
            # Arrays in f32 and their copies without padding are not more than 1 GiB, or a sample.
            at_once = 1 if alone else max(1, min(batch_size, SHARD // (2 * writer.sample_bytes)))
            begin, before = time.monotonic(), writer.progress[0]
            while (at := writer.written) < len(ids):
                # The batches do not depend on the number of processes.
                end = min(at + at_once, writer.end)
                part, sizes, tensors, given = passed(at, end, classes > 0)
                write(writer, tensors, given, part, sizes, numbers[at:end])
                if progress and at_rank == 0:
                    show(*writer.progress, time.monotonic() - begin, before)


def classes_of(given: Any) -> int:
    """The logits of a text, if a model gives those and not some of each token."""
    logits = getattr(given, "logits", None)
    return int(logits.shape[-1]) if logits is not None and logits.dim() == 2 else 0


def check_layers(tap: Tap, content: str) -> None:
    """Raises ValueError if the layers of a pass cannot be in one dump, or not with this content."""
    wanted = {index: layer for index, layer in enumerate(tap.layers) if tap.wants(index)}
    for what, kinds in (
        ("some layers are causal and others are not", {layer.causal for layer in wanted.values()}),
        ("layers have heads of other sizes", {(x.heads, x.groups, x.head_size) for x in wanted.values()}),
        ("values have another size than keys", {x.value_size == x.head_size for x in wanted.values()} | {True}),
    ):
        if len(kinds) > 1:
            raise ValueError(f"brine: {what}, a dump is of one kind")
    for index, layer in wanted.items():
        if layer.deviation is None or content in layer.deviation[1]:
            continue
        hint = f"content={layer.deviation[1][0]!r} is possible"
        others = [tap.numbers[p] for p, x in wanted.items() if x.deviation is None or content in x.deviation[1]]
        if others:
            hint += f", or the layers without, layers={others}"
        raise ValueError(
            f"brine: in layer {tap.numbers[index]} {layer.deviation[0]}, so a student's attention cannot follow from"
            f" {content}; {hint}"
        )


def same_samples(writer: DumpWriter, ids: np.ndarray, lengths: np.ndarray) -> None:
    """Raises ValueError if the samples of a dump that is continued are others."""
    import h5py

    for number in sorted(writer.shards.finished):
        first = writer.shards.first(number)
        with h5py.File(writer.shards.path(name_of(number)), "r") as file:
            stored, sizes = np.asarray(file["tokens"]), np.asarray(file["lengths"])
        ragged = stored.ndim == 1  # without padding
        tokens = np.split(stored, np.cumsum(sizes)[:-1]) if ragged else list(stored)
        for at, (row, size) in enumerate(zip(tokens, sizes, strict=True), first):
            if size != lengths[at] or row[:size].tolist() != ids[at, :size].tolist():
                raise ValueError(f"{writer.directory}: its sample {at} has other tokens; choose another directory")


def write(
    writer: DumpWriter, layers: list[dict[str, Tensor]], given: Any, ids: Tensor, lengths: Tensor, numbers: np.ndarray
) -> None:
    """A batch of a pass over the first of the tokens [n, T], or all. Rows of padding become 0."""
    seen = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).cpu()  # [n, T]
    shapes = {name.rsplit("/", 1)[1]: shape for name, (shape, _) in writer.datasets().items() if "layers/" in name}

    def array(x: Tensor, name: str) -> np.ndarray:
        whole = torch.zeros(len(x), *shapes[name])
        whole[tuple(slice(size) for size in x.shape)] = x
        rows = seen if name in ("context", "output") else seen[:, None]  # tokens, or heads and tokens
        return whole.masked_fill_(~rows.view(*rows.shape, *[1] * (x.dim() - rows.dim())), 0).numpy()

    h = writer.header
    stored: dict[str, Any] = {name: [array(layer[name], name) for layer in layers] for name in shapes}
    if h["logits"] != "none":
        parts = []
        for sample in given.logits:  # one at a time: a vocabulary may be large
            values, indices = sample.float().topk(h["top_n"], -1)
            parts.append((values.cpu(), indices.int().cpu(), sample.float().logsumexp(-1).cpu()))
        stored["logits"] = tuple(torch.stack(x).numpy() for x in zip(*parts, strict=True))
    if h["classes"]:
        stored |= {"classes": given.logits.float().cpu().numpy(), "windows": numbers}
    writer.write(tokens=ids.cpu().numpy(), lengths=lengths.cpu().numpy(), **stored)


def show(done: int, of: int, seconds: float, first: int) -> None:
    left = seconds / max(done - first, 1) * (of - done)
    end = "\n" if done == of else ""
    print(f"\rdump: {done} of {of} samples, {left:.0f} s left ", end=end, file=sys.stderr, flush=True)
