"""Writes dumps of teachers of any kind from NumPy arrays (docs/dump-format.md)."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
Layers = Sequence[Any]  # an array for each layer

DTYPES = ("f32", "f16", "bf16")
CONTENTS = ("qk", "maps", "none")
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

    content: "qk" (query and key), "maps" (attention) or "none". Shards are written atomically; a writer of the
    same dump continues after the `written` samples of the shards that are complete, up to the first damaged one.
    samples_per_shard 0: as many as make 1 GiB. Hashes: that of the function teacher_hash, and what `brine inspect`
    prints of a tokenizer; "none" if they are not known. ValueError for arrays of other sizes, or with numbers that
    are not finite or do not fit `dtype`, and for another dump in `out`.
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
        teacher_hash: str = "none",
        tokenizer_hash: str = "none",
        samples_per_shard: int = 0,
    ):
        if content not in CONTENTS:
            raise ValueError(f"brine: content is {content!r}, known are {', '.join(CONTENTS)}")
        if dtype not in DTYPES:
            raise ValueError(f"brine: dtype is {dtype!r}, known are {', '.join(DTYPES)}")
        sizes = dict(layers=layers, heads=heads, head_size=head_size, vocab=vocab, tokens=tokens, samples=samples)
        for name, size in sizes.items():
            if size < 1:
                raise ValueError(f"brine: {name} is {size}, must be at least 1")
        self.directory, self.samples = os.fspath(out), samples
        self.header: dict[str, Any] = {
            "format": "brine-dump",
            "version": 1,
            "content": content,
            "dtype": dtype,
            "causal": int(causal),
            "packed": 0,
            "layers": layers,
            "heads": heads,
            "head_size": head_size,
            "hidden": heads * head_size,
            "tokens": tokens,
            "vocab": vocab,
            "has_context": int(context),
            "has_output": int(output),
            "logits": "top" if top_logits else "none",
            "top_n": min(top_logits, vocab),
            "has_tokens": 1,
            "teacher_hash": teacher_hash,
            "tokenizer_hash": tokenizer_hash,
            "corpus_hash": "none",
        }
        a_sample = sum(int(np.prod(shape)) * size for shape, size in self.datasets().values())
        self.per_shard = max(1, min(samples_per_shard or SHARD // a_sample, samples))
        self.shards: list[dict[str, Any]] = []
        self.file: Any = None
        os.makedirs(self.directory, exist_ok=True)
        # As the program has it: a second writer would delete the shard of the first.
        self.lock = os.open(self.directory, os.O_RDONLY)
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.resume()
        except BlockingIOError:
            os.close(self.lock)
            raise ValueError(f"{self.directory}: another process is writing this dump") from None
        except BaseException:
            os.close(self.lock)
            raise

    def datasets(self) -> dict[str, tuple[tuple[int, ...], int]]:
        """The shape of a sample and the bytes of a number of each dataset."""
        h = self.header
        heads, tokens, hidden = h["heads"], h["tokens"], h["hidden"]
        size = 4 if h["dtype"] == "f32" else 2
        out: dict[str, tuple[tuple[int, ...], int]] = {}
        for layer in range(h["layers"]):
            at = f"layers/{layer:02d}/"
            if h["content"] == "maps":
                out[at + "attention"] = (heads, tokens, tokens), size
            if h["content"] == "qk":
                for name in ("query", "key"):
                    out[at + name] = (heads, tokens, h["head_size"]), size
            if h["has_context"]:
                out[at + "context"] = (tokens, hidden), size
            if h["has_output"]:
                out[at + "output"] = (tokens, hidden), size
        if h["logits"] != "none":
            out["logits/values"] = (tokens, h["top_n"]), size
            out["logits/ids"] = (tokens, h["top_n"]), 4
            out["logits/lse"] = (tokens,), 4
        out["tokens"] = (tokens,), 4
        out["lengths"] = (), 8
        return out

    @property
    def written(self) -> int:
        """Samples that are written; after a new start those of complete shards."""
        return sum(s["samples"] for s in self.shards) + (self.filled if self.file is not None else 0)

    # ---- files

    def path(self, name: str) -> str:
        return os.path.join(self.directory, name)

    def resume(self) -> None:
        """Continues the dump that is in the directory, if one is."""
        manifest = self.path("manifest.json")
        present = [n for n in os.listdir(self.directory) if re.fullmatch(r"shard-\d+\.h5(\.tmp)?", n)]
        if not os.path.exists(manifest):
            shards = [n for n in present if not n.endswith(".tmp")]
            if shards:
                raise ValueError(f"{self.directory}: has {shards[0]} but no manifest.json; choose another directory")
        else:
            with open(manifest, encoding="utf-8") as file:
                there = json.load(file)
            wanted = self.header | {"samples": self.samples, "samples_per_shard": self.per_shard}
            for key, value in wanted.items():
                if there.get(key) != value:
                    raise ValueError(f"{manifest}: is of another dump: {key} is {there.get(key)!r}, not {value!r}")
            for shard in there["shards"]:
                if self.sum_of(shard["name"]) != (shard["bytes"], shard["sha256"]):
                    break  # it and those after it are written again
                self.shards.append(shard)
        listed = {s["name"] for s in self.shards}
        for name in present:
            if name not in listed:
                os.remove(self.path(name))
        if self.shards:
            self.write_manifest()

    def sum_of(self, name: str) -> tuple[int, str]:
        """Bytes and SHA-256 of a file; of one that is missing (0, "")."""
        if not os.path.exists(self.path(name)):
            return 0, ""
        digest = hashlib.sha256()
        with open(self.path(name), "rb") as file:
            while part := file.read(1 << 20):
                digest.update(part)
        return os.path.getsize(self.path(name)), digest.hexdigest()

    def write_manifest(self) -> None:
        text = json.dumps(
            self.header
            | {
                "samples": self.samples,
                "samples_per_shard": self.per_shard,
                "shards": self.shards,
                "windows": [],
            },
            indent=2,
        )
        replace(self.path("manifest.json"), text.encode() + b"\n")

    def open_shard(self) -> None:
        import h5py

        self.first = sum(s["samples"] for s in self.shards)
        self.room, self.filled = min(self.per_shard, self.samples - self.first), 0
        self.name = f"shard-{len(self.shards):05d}.h5"
        self.file = h5py.File(self.path(self.name + ".tmp"), "w")
        for key, value in (self.header | {"first_sample": self.first, "samples": self.room}).items():
            self.file.attrs[key] = np.bytes_(value) if isinstance(value, str) else np.int64(value)
        floats = {"f32": np.float32, "f16": np.float16}.get(self.header["dtype"])
        types = {"logits/ids": np.int32, "logits/lse": np.float32, "tokens": np.int32, "lengths": np.int64}
        for name, (shape, size) in self.datasets().items():
            chunk = list((1, *shape))
            while len(chunk) > 1 and int(np.prod(chunk)) * size > CHUNK and chunk[1] > 1:
                chunk[1] = (chunk[1] + 1) // 2
            kind = types.get(name, floats)
            if kind is None:
                self.create_bf16(name, (self.room, *shape), tuple(chunk))
            else:
                self.file.create_dataset(name, (self.room, *shape), kind, chunks=tuple(chunk))

    def create_bf16(self, name: str, shape: tuple[int, ...], chunk: tuple[int, ...]) -> None:
        import h5py

        creation, links = h5py.h5p.create(h5py.h5p.DATASET_CREATE), h5py.h5p.create(h5py.h5p.LINK_CREATE)
        creation.set_chunk(chunk)
        links.set_create_intermediate_group(True)
        space = h5py.h5s.create_simple(shape)
        h5py.h5d.create(self.file.id, name.encode(), bf16_type(), space, creation, links)

    def close_shard(self) -> None:
        file, self.file = self.file, None
        tmp = self.path(self.name + ".tmp")
        try:
            file.close()
            sync(tmp)
            size, digest = self.sum_of(self.name + ".tmp")
            os.replace(tmp, self.path(self.name))
        except BaseException:
            remove(tmp)
            raise
        sync(self.directory)
        self.shards.append(
            {"name": self.name, "bytes": size, "sha256": digest, "first": self.first, "samples": self.room}
        )
        self.write_manifest()

    # ---- samples

    def write(
        self,
        *,
        tokens: Any,
        query: Layers | None = None,
        key: Layers | None = None,
        attention: Layers | None = None,
        context: Layers | None = None,
        output: Layers | None = None,
        logits: Any = None,
        lengths: Any = None,
    ) -> None:
        """The next n samples. tokens [n, T] and lengths [n] (all T if None): integers.

        A list of the layers' arrays each: query, key [n, H, T, d] after the rotation, before the scale of
        1 / sqrt(d), keys of grouped heads for each head; attention [n, H, T, T]; context [n, T, C] before the
        output projection; output [n, T, C], of the last layer before the final norm. logits [n, T, V], or
        (values, ids, lse) of the largest, [n, T, N], [n, T, N] and [n, T].
        """
        ids = np.asarray(tokens)
        count = len(ids)
        arrays: dict[str, Any] = {"tokens": ids}
        arrays["lengths"] = np.full(count, self.header["tokens"]) if lengths is None else np.asarray(lengths)
        given = dict(query=query, key=key, attention=attention, context=context, output=output)
        wanted = {name.rsplit("/", 1)[1] for name in self.datasets() if name.startswith("layers/")}
        for name, values in given.items():
            if (values is not None) != (name in wanted):
                raise ValueError(f"brine: {name} is {'missing' if values is None else 'not of this dump'}")
            if values is not None and len(values) != self.header["layers"]:
                raise ValueError(f"brine: {name} has {len(values)} arrays, the dump {self.header['layers']} layers")
            for layer, array in enumerate(values or ()):
                arrays[f"layers/{layer:02d}/{name}"] = np.asarray(array)
        if (logits is not None) != (self.header["logits"] != "none"):
            raise ValueError(f"brine: logits are {'missing' if logits is None else 'not of this dump'}")
        if logits is not None:
            largest = logits if isinstance(logits, tuple) else largest_of(np.asarray(logits), self.header["top_n"])
            for name, array in zip(("values", "ids", "lse"), largest, strict=True):
                arrays[f"logits/{name}"] = np.asarray(array)
        if self.written + count > self.samples:
            raise ValueError(f"brine: {self.written + count} samples, the dump has {self.samples}")
        self.check(arrays, count)
        done = 0
        while done < count:
            if self.file is None:
                self.open_shard()
            part = min(count - done, self.room - self.filled)
            for name, array in arrays.items():
                self.store(name, array[done : done + part])
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
            if array.dtype.kind in "iub":
                continue
            largest = float(np.abs(array).max(initial=0))
            if not np.isfinite(largest):
                raise ValueError(f"brine: {name} has a number that is not finite")
            if limit and name != "logits/lse" and largest > limit:
                kind = self.header["dtype"]
                raise ValueError(f"brine: {name} has the number {largest:.6g}, {kind} ends at {limit:g}")
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
        for layer in range(self.header["layers"] if self.header["content"] == "maps" else 0):
            sums = arrays[f"layers/{layer:02d}/attention"].astype(np.float64).sum(-1)
            apart = {"f32": 0.001, "f16": 0.01, "bf16": 0.03}[self.header["dtype"]]
            if np.abs(sums - 1).max(initial=0, where=seen[:, None]) > apart:
                raise ValueError(f"brine: rows of the attention of layer {layer} do not sum to 1")

    def store(self, name: str, array: Array) -> None:
        import h5py

        into = self.file[name]
        if self.header["dtype"] != "bf16" or array.dtype.kind in "iu" or name == "logits/lse":
            into[self.filled : self.filled + len(array)] = array
            return
        # The library's conversion of numbers to such a type need not round.
        space = into.id.get_space()
        space.select_hyperslab((self.filled, *[0] * (array.ndim - 1)), array.shape)
        into.id.write(h5py.h5s.create_simple(array.shape), space, bf16_bits(array), bf16_type())

    def close(self) -> None:
        """Ends the writing. A shard that is not complete is deleted; the same calls continue the dump."""
        file, self.file = self.file, None
        try:
            if file is not None:
                file.close()
        finally:
            if file is not None:
                remove(self.path(self.name + ".tmp"))
            if self.lock >= 0:
                os.close(self.lock)
            self.lock = -1

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        missing = self.samples - self.written
        self.close()
        if kind is None and missing:
            raise ValueError(f"{self.directory}: {missing} of {self.samples} samples are missing")


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


def remove(path: str) -> None:
    if os.path.exists(path):
        os.remove(path)


def sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: str, content: bytes) -> None:
    """Writes a file so that it is there as a whole or not at all."""
    with open(path + ".tmp", "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(path + ".tmp", path)
    sync(os.path.dirname(path) or ".")
