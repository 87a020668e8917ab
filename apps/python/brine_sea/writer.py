"""Writes dumps of teachers of any kind from NumPy arrays (docs/formats.md)."""

from __future__ import annotations

import os
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .shards import Shards, name_of, remove

Array = NDArray[Any]
Layers = Sequence[Any]  # an array for each layer

DTYPES = ("f32", "f16", "bf16")
CONTENTS = ("qk", "maps", "pooled", "none")
VERSION = 4
# Datasets are cut into chunks of at most this many bytes.
CHUNK = 4 << 20
# Bytes of a shard, unless its samples are given.
SHARD = 1 << 30


def bf16_bits(x: Array) -> NDArray[np.uint16]:
    """The upper half of each f32 number, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_type() -> Any:
    """HDF5's type of bf16: 16 bits, of which 8 are the exponent and 7 the mantissa."""
    import h5py

    made = h5py.h5t.IEEE_F32LE.copy()
    made.set_fields(15, 7, 8, 0, 7)
    made.set_size(2)
    made.set_ebias(127)
    return made


class DumpWriter:
    """A dump of `samples` samples of `tokens` tokens, written a batch after another.

        with DumpWriter("dump", layers=2, heads=4, head_size=8, vocab=512, tokens=128, samples=1000) as dump:
            while dump.written < dump.samples:
                dump.write(query=q, key=k, context=c, output=y, logits=z, tokens=ids)

    content: "qk" (query and key), "maps" (attention), "pooled" (masses of `columns` columns) or "none"; value:
    values of heads, too. key_heads: heads of keys and values, of which each serves heads / key_heads heads (default:
    heads). hidden: numbers of an output (default: heads * head_size). classes: logits of a head for tasks, whose
    samples have the numbers of their texts; logits of tokens are top_logits = 0 then. lengths: the tokens of every
    sample of a task, whose padding is then not stored. model_layers: the numbers
    that the layers have in the model, if they are not all of it. Shards are written atomically; a writer of the
    same dump continues at the sample `written`, the first one of shards that are missing or damaged.
    samples_per_shard 0: as many as make 1 GiB. Hashes: that of the function teacher_hash, and what `brine inspect`
    prints of a tokenizer; "none" if they are not known. Of several processes, rank of ranks, each writes every
    ranks-th shard, where `written` skips those of the others; rank 0 ends when the others have, and raises
    ValueError if they write nothing for `timeout` seconds. ValueError for arrays of other sizes, or with
    numbers that are not finite or do not fit `dtype`, and for another dump or other files in `out`.
    """

    def __init__(
        self,
        out: str | os.PathLike[str],
        *,
        layers: int,
        heads: int,
        head_size: int,
        vocab: int,
        tokens: int,
        samples: int,
        content: str = "qk",
        dtype: str = "f16",
        causal: bool = True,
        context: bool = True,
        output: bool = True,
        top_logits: int = 64,
        hidden: int | None = None,
        key_heads: int | None = None,
        value: bool = False,
        classes: int = 0,
        columns: int = 0,
        lengths: Sequence[int] | None = None,
        model_layers: Sequence[int] | None = None,
        teacher_hash: str = "none",
        tokenizer_hash: str = "none",
        samples_per_shard: int = 0,
        rank: int = 0,
        ranks: int = 1,
        timeout: float = 3600,
    ):
        if content not in CONTENTS:
            raise ValueError(f"brine: content is {content!r}, known are {', '.join(CONTENTS)}")
        if dtype not in DTYPES:
            raise ValueError(f"brine: dtype is {dtype!r}, known are {', '.join(DTYPES)}")
        groups = heads if key_heads is None else key_heads
        wide = heads * head_size if hidden is None else hidden
        sizes = dict(layers=layers, heads=heads, head_size=head_size, vocab=vocab, tokens=tokens, samples=samples)
        sizes |= dict(key_heads=groups, hidden=wide) | (dict(columns=columns) if content == "pooled" else {})
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"brine: {name} is {size}, must be at least 1")
        if heads % groups:
            raise ValueError(f"brine: {groups} heads of keys do not divide {heads} heads")
        if value and content == "none":
            raise ValueError("brine: values are of a dump with content qk, maps or pooled, this one has none")
        if columns and content != "pooled":
            raise ValueError(f"brine: columns are of content pooled, this dump has {content}")
        if top_logits < 0:
            raise ValueError(f"brine: top_logits is {top_logits}, must be at least 0")
        if classes and top_logits:
            raise ValueError("brine: a dump with classes has no logits of tokens, top_logits must be 0")
        if lengths is not None and (not classes or len(lengths) != samples):
            raise ValueError(f"brine: lengths are of the {samples} samples of a dump with classes, got {len(lengths)}")
        numbers = list(range(layers)) if model_layers is None else [int(number) for number in model_layers]
        if len(numbers) != layers or any(a >= b for a, b in zip(numbers, numbers[1:], strict=False)):
            raise ValueError(f"brine: model_layers must be {layers} ascending numbers, got {numbers}")
        self.directory, self.samples, self.timeout = os.fspath(out), samples, timeout
        self.header: dict[str, Any] = {
            "format": "brine-dump",
            "version": VERSION,
            "content": content,
            "dtype": dtype,
            "causal": int(causal),
            "packed": 0,
            "layers": layers,
            "heads": heads,
            "key_heads": groups,
            "head_size": head_size,
            "hidden": wide,
            "tokens": tokens,
            "vocab": vocab,
            "has_value": int(value),
            "has_context": int(context),
            "has_output": int(output),
            "logits": "top" if top_logits else "none",
            "top_n": min(top_logits, vocab),
            "has_tokens": 1,
            "ragged": int(lengths is not None),
            "classes": classes,
            "columns": columns,
            "teacher_hash": teacher_hash,
            "tokenizer_hash": tokenizer_hash,
            "corpus_hash": "none",
        }
        if model_layers is not None:
            self.header["model_layers"] = ",".join(map(str, numbers))
        a_sample = sum(int(np.prod(shape)) * size for shape, size in self.datasets().values())
        per_shard = max(1, min(samples_per_shard or SHARD // a_sample, samples))
        self.file: Any = None
        self.lengths = None if lengths is None else [int(length) for length in lengths]
        self.shards = Shards(self.directory, self.header, samples, per_shard, rank, ranks, self.lengths)
        self.number, self.filled = self.shards.next, 0  # of the shard to write, its samples that are written

    @property
    def sample_bytes(self) -> int:
        """Of the (longest) sample in f32."""
        return sum(int(np.prod(shape)) * max(size, 4) for shape, size in self.datasets().values())

    def datasets(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """The shape of a sample and the bytes of a number of each dataset."""
        h = self.header
        heads, groups, tokens, d = h["heads"], h["key_heads"], h["tokens"], h["head_size"]
        size = 4 if h["dtype"] == "f32" else 2
        out: dict[str, tuple[tuple[int, ...], int]] = {}
        for layer in range(h["layers"]):
            at = f"layers/{layer:02d}/"
            if h["content"] == "maps":
                out[at + "attention"] = (heads, tokens, tokens), size
            if h["content"] == "qk":
                out[at + "query"] = (heads, tokens, d), size
                out[at + "key"] = (groups, tokens, d), size
            if h["content"] == "pooled":
                out[at + "tau"] = (heads, tokens, h["columns"]), size
                out[at + "t_log_t"] = out[at + "t_square"] = (heads, tokens), 4
            if h["has_value"]:
                out[at + "value"] = (groups, tokens, d), size
            if h["has_context"]:
                out[at + "context"] = (tokens, heads * d), size
            if h["has_output"]:
                out[at + "output"] = (tokens, h["hidden"]), size
        if h["logits"] != "none":
            out["logits/values"] = (tokens, h["top_n"]), size
            out["logits/ids"] = (tokens, h["top_n"]), 4
            out["logits/lse"] = (tokens,), 4
        if h["classes"]:
            out["logits/classes"] = (h["classes"],), 4
            out["windows"] = (), 8
        out["tokens"] = (tokens,), 4
        out["lengths"] = (), 8
        return out

    @property
    def written(self) -> int:
        """The next sample that this process has to write, `samples` if there is none."""
        return self.shards.first(self.number) + self.filled

    @property
    def end(self) -> int:
        """The end of the shard that the sample `written` is of."""
        return self.shards.first(self.number + 1)

    @property
    def progress(self) -> tuple[int, int]:
        """Samples that this process has written, and all that it has to write."""
        numbers = range(self.shards.rank, self.shards.count, self.shards.ranks)
        done = sum(self.shards.size(number) for number in numbers if number in self.shards.finished)
        return done + self.filled, sum(map(self.shards.size, numbers))

    # ---- files

    def open_shard(self) -> None:
        import h5py

        self.rows: dict[str, int] = {}  # of each dataset, that are written
        self.room = self.shards.size(self.number)
        first = self.shards.first(self.number)
        self.file = h5py.File(self.shards.path(name_of(self.number) + ".tmp"), "w")
        for key, value in (self.header | {"first_sample": first, "samples": self.room}).items():
            self.file.attrs[key] = np.bytes_(value) if isinstance(value, str) else np.int64(value)
        of_shard = None if self.lengths is None else self.lengths[first : first + self.room]
        for name, (shape, size) in self.datasets().items():
            chunk = None if of_shard is not None else [1, *shape]
            while chunk and len(chunk) > 1 and int(np.prod(chunk)) * size > CHUNK and chunk[1] > 1:
                chunk[1] = (chunk[1] + 1) // 2
            whole = (self.room, *shape) if of_shard is None else rows_of(name, shape, of_shard)
            kind = type_of(name) or {"f32": np.float32, "f16": np.float16}.get(self.header["dtype"])
            self.file.create_dataset(name, whole, kind or h5py.Datatype(bf16_type()), chunks=chunk and tuple(chunk))

    def close_shard(self) -> None:
        file, self.file, self.filled = self.file, None, 0
        try:
            file.close()
            self.shards.add(self.number)
        except BaseException:
            remove(self.shards.path(name_of(self.number) + ".tmp"))
            raise
        self.number = self.shards.next

    # ---- samples

    def write(
        self,
        *,
        tokens: Any,
        query: Layers | None = None,
        key: Layers | None = None,
        value: Layers | None = None,
        attention: Layers | None = None,
        tau: Layers | None = None,
        t_log_t: Layers | None = None,
        t_square: Layers | None = None,
        context: Layers | None = None,
        output: Layers | None = None,
        logits: Any = None,
        lengths: Any = None,
        classes: Any = None,
        windows: Any = None,
    ) -> None:
        """The next n samples. tokens [n, T] and lengths [n] (all T if None): integers.

        A list of the layers' arrays each: query [n, H, T, d] after the rotation, before the scale of 1 / sqrt(d);
        key, after the rotation, and value [n, G, T, d]; attention [n, H, T, T]; tau [n, H, T, K], t_log_t and
        t_square [n, H, T] of pooled attention; context [n, T, H d] before the output projection; output [n, T, C],
        of the last layer before the final norm. logits [n, T, V], or (values, ids, lse) of the largest, [n, T, N],
        [n, T, N] and [n, T]. Of a task classes [n, classes] and windows [n], the numbers of the texts (default:
        those of the samples).
        """
        ids = np.asarray(tokens)
        count = len(ids)
        arrays: dict[str, Any] = {"tokens": ids}
        arrays["lengths"] = np.full(count, self.header["tokens"]) if lengths is None else np.asarray(lengths)
        given = dict(query=query, key=key, value=value, attention=attention, context=context, output=output)
        given |= dict(tau=tau, t_log_t=t_log_t, t_square=t_square)
        wanted = {name.rsplit("/", 1)[1] for name in self.datasets() if name.startswith("layers/")}
        for name, values in given.items():
            if (values is not None) != (name in wanted):
                raise ValueError(f"brine: {name} is {'missing' if values is None else 'not of this dump'}")
            if values is not None and len(values) != self.header["layers"]:
                raise ValueError(f"brine: {name} has {len(values)} arrays, the dump {self.header['layers']} layers")
            for layer, array in enumerate(values or ()):
                arrays[f"layers/{layer:02d}/{name}"] = np.asarray(array)
        of_task = self.header["classes"] > 0
        others = dict(logits=(logits, self.header["logits"] != "none"), classes=(classes, of_task))
        for name, (thing, expected) in others.items():
            if (thing is not None) != expected:
                raise ValueError(f"brine: {name} are {'missing' if thing is None else 'not of this dump'}")
        if logits is not None:
            if isinstance(logits, tuple) and len(logits) != 3:
                raise ValueError(f"brine: logits are {len(logits)} arrays, must be values, ids and lse")
            if not isinstance(logits, tuple) and np.shape(logits)[-1] != self.header["vocab"]:
                wide = np.shape(logits)[-1]
                raise ValueError(f"brine: logits of {wide} tokens, the vocabulary has {self.header['vocab']}")
            largest = logits if isinstance(logits, tuple) else largest_of(np.asarray(logits), self.header["top_n"])
            for name, array in zip(("values", "ids", "lse"), largest, strict=True):
                arrays[f"logits/{name}"] = np.asarray(array)
        if of_task:
            arrays["logits/classes"] = np.asarray(classes)
            arrays["windows"] = self.written + np.arange(count) if windows is None else np.asarray(windows)
        room = (self.samples if self.shards.ranks == 1 else self.end) - self.written
        if count > room:
            what = f"the shard of sample {self.written}" if self.shards.ranks > 1 else "the dump"
            raise ValueError(f"brine: {count} samples, {what} has room for {room}")
        self.check(arrays, count)
        begin, done = self.written, 0
        while done < count:
            number = (begin + done) // self.shards.per_shard
            if number in self.shards.finished:  # after one that was missing
                done = self.shards.first(number + 1) - begin
                continue
            if self.file is None:
                self.open_shard()
            part = min(count - done, self.room - self.filled)
            for name, array in arrays.items():
                of_part = array[done : done + part]
                if self.lengths is not None:
                    of_part = without_padding(name, of_part, self.lengths[begin + done : begin + done + part])
                self.store(name, of_part)
            self.filled += part
            done += part
            if self.filled == self.room:
                self.close_shard()

    def check(self, arrays: dict[str, Array], count: int) -> None:
        """Raises ValueError for what Brine would refuse."""
        limit = {"f16": 65504.0, "bf16": 3.3895314e38}.get(self.header["dtype"])
        lengths = arrays["lengths"]
        tokens = self.header["tokens"]
        for name, (shape, _) in self.datasets().items():
            array = arrays[name]
            if array.shape != (count, *shape):
                raise ValueError(f"brine: {name} is {list(array.shape)}, must be {[count, *shape]}")
            if array.dtype.kind in "iub" and type_of(name) is not None:
                continue
            largest = float(np.abs(array).max(initial=0))
            if not np.isfinite(largest):
                raise ValueError(f"brine: {name} has a number that is not finite")
            if limit and type_of(name) is None and largest > limit:
                kind = self.header["dtype"]
                raise ValueError(f"brine: {name} has the number {largest:.6g}, the largest {kind} is {limit:g}")
        begin = self.written
        if self.lengths is not None and lengths.tolist() != self.lengths[begin : begin + count]:
            raise ValueError("brine: lengths are not those of the dump's samples")
        if lengths.min(initial=1) < 1 or lengths.max(initial=1) > tokens:
            raise ValueError(f"brine: lengths must be from 1 to {tokens}")
        if "logits/ids" in arrays:
            values, words = arrays["logits/values"], arrays["logits/ids"]
            if words.min(initial=0) < 0 or words.max(initial=0) >= self.header["vocab"]:
                raise ValueError(f"brine: logits/ids must be from 0 to {self.header['vocab'] - 1}")
            if np.any(np.diff(values.astype(np.float64), axis=-1) > 0):
                raise ValueError("brine: logits/values are not in descending order")
        ids = arrays["tokens"]
        if ids.dtype.kind not in "iu" or ids.min(initial=0) < 0 or ids.max(initial=0) >= self.header["vocab"]:
            raise ValueError(f"brine: tokens must be integers from 0 to {self.header['vocab'] - 1}")
        seen = np.arange(tokens) < lengths[:, None]
        shared = {"maps": "attention", "pooled": "tau"}.get(self.header["content"])
        for layer in range(self.header["layers"] if shared else 0):
            sums = arrays[f"layers/{layer:02d}/{shared}"].astype(np.float64).sum(-1)
            tolerance = {"f32": 0.001, "f16": 0.01, "bf16": 0.03}[self.header["dtype"]]
            if np.abs(sums - 1).max(initial=0, where=seen[:, None]) > tolerance:
                raise ValueError(f"brine: rows of the attention of layer {layer} do not sum to 1")

    def store(self, name: str, array: Array) -> None:
        import h5py

        into, at = self.file[name], self.rows.get(name, 0)
        self.rows[name] = at + len(array)
        if self.header["dtype"] != "bf16" or array.dtype.kind in "iu" or type_of(name) is not None:
            into[at : at + len(array)] = array
            return
        # The library's conversion of numbers to such a type need not round.
        space = into.id.get_space()
        space.select_hyperslab((at, *[0] * (array.ndim - 1)), array.shape)
        into.id.write(h5py.h5s.create_simple(array.shape), space, bf16_bits(array), bf16_type())

    def close(self) -> None:
        """Ends the writing. A shard that is not complete is deleted; the same calls continue the dump."""
        file, self.file, self.filled = self.file, None, 0
        try:
            if file is not None:
                file.close()
        finally:
            if file is not None:
                remove(self.shards.path(name_of(self.number) + ".tmp"))
            self.shards.close()

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            if kind is None and self.file is None and self.shards.next == self.shards.count:
                self.shards.finish(self.timeout)
        finally:
            missing = self.samples - self.written
            self.close()
        if kind is None and missing:
            raise ValueError(f"{self.directory}: {missing} of {self.samples} samples are missing")


def axes_of(dataset: str) -> str:
    """The axes of a sample that have its length: "" for none, "t", "ht" after one of heads, "htt" of maps."""
    name = dataset.rsplit("/", 1)[-1]
    if name in ("classes", "windows", "lengths"):
        return ""
    return "htt" if name == "attention" else "t" if name in ("tokens", "context", "output") else "ht"


def rows_of(dataset: str, shape: tuple[int, ...], lengths: Sequence[int]) -> tuple[int, ...]:
    """The shape of a dataset of samples of these lengths without padding; `shape` is that of one with it."""
    axes = axes_of(dataset)
    if axes == "htt":
        return (shape[0] * sum(length * length for length in lengths),)
    rows = len(lengths) if not axes else sum(lengths) * (shape[0] if axes == "ht" else 1)
    return (rows, *shape[len(axes) :])


def without_padding(dataset: str, x: Array, lengths: Sequence[int]) -> Array:
    """Samples [n, ...] of these lengths as rows of a dataset without padding."""
    axes = axes_of(dataset)
    if not axes:
        return x
    cut = {
        "t": lambda a, t: a[:t],
        "ht": lambda a, t: a[:, :t].reshape(-1, *a.shape[2:]),
        "htt": lambda a, t: a[:, :t, :t].reshape(-1),
    }[axes]
    return np.concatenate([cut(sample, length) for sample, length in zip(x, lengths, strict=True)])


def type_of(dataset: str) -> Any:
    """The type of a dataset's numbers, None if it is that of the dump."""
    name = dataset.rsplit("/", 1)[-1]
    floats = ("lse", "classes", "t_log_t", "t_square")
    whole = {"ids": np.int32, "tokens": np.int32, "lengths": np.int64, "windows": np.int64}
    return np.float32 if name in floats else whole.get(name)


def largest_of(logits: Array, count: int) -> tuple[Array, Array, Array]:
    """The `count` largest of each row of logits [n, T, V], descending, their ids, and log(sum of exp) of the row."""
    shape = (*logits.shape[:2], count)
    values, ids = np.empty(shape, np.float32), np.empty(shape, np.int32)
    lse = np.empty(logits.shape[:2], np.float32)
    for at in np.ndindex(*logits.shape[:2]):  # a row at a time: they may be long
        row = logits[at].astype(np.float64)
        largest = np.argpartition(-row, count - 1)[:count]
        largest = largest[np.argsort(-row[largest], kind="stable")]
        values[at], ids[at] = row[largest], largest
        lse[at] = np.log(np.exp(row - row[largest[0]]).sum()) + row[largest[0]]
    return values, ids, lse
