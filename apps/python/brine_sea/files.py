"""Reader of Brine's dumps as NumPy arrays."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

Path = str | os.PathLike[str]
Array = NDArray[Any]


class Dump:
    """The tensors that `brine dump` stored of a teacher (docs/formats.md), by sample.

    `dump.layer(sample, i)` are the tensors of a layer with the sample's length t: "attention" [H, t, t],
    "query" [H, t, d], "key", "value" [G, t, d], "context" [t, H d], "output" [t, C], "tau" [H, t, K] and what else
    it has; `dump.tokens(sample)` [t], `dump.logits(sample)` "values", "ids", "lse", of a task "classes".
    """

    BY_HEAD = ("attention", "query", "tau", "t_log_t", "t_square")
    BY_KEY_HEAD = ("key", "value")
    VERSION = 4

    def __init__(self, directory: Path):
        path = os.path.join(directory, "manifest.json")
        with open(path, encoding="utf-8") as file:
            self.manifest: dict[str, Any] = json.load(file)
        if self.manifest.get("format") != "brine-dump":
            raise ValueError(f"{path}: not the manifest of a dump")
        if self.manifest["version"] != self.VERSION:
            raise ValueError(f"{path}: version {self.manifest['version']}, this program reads version {self.VERSION}")
        self.directory = os.fspath(directory)
        self.ragged = bool(self.manifest["ragged"])  # samples are stored one after another, each with its length
        self.key_heads = int(self.manifest["key_heads"])  # heads of keys and values
        given = self.manifest.get("model_layers")  # the numbers that the layers have in the model
        self.model_layers = [int(n) for n in given.split(",")] if given else list(range(self.manifest["layers"]))
        self.open_shards: dict[int, Any] = {}

    def __enter__(self) -> Dump:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        for file in self.open_shards.values():
            file.close()
        self.open_shards = {}

    def __len__(self) -> int:
        return sum(shard["samples"] for shard in self.manifest["shards"])

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self)))

    def shard_of(self, sample: int) -> tuple[Any, int]:
        """The file with a sample, and the sample's row in it."""
        import h5py

        for index, shard in enumerate(self.manifest["shards"]):
            row = sample - shard["first"]
            if 0 <= row < shard["samples"]:
                if index not in self.open_shards:
                    path = os.path.join(self.directory, shard["name"])
                    size = os.path.getsize(path) if os.path.exists(path) else 0
                    if size != shard.get("bytes", size):
                        raise ValueError(f"{path}: has {size} bytes, the manifest says {shard['bytes']}")
                    self.open_shards[index] = h5py.File(path, "r")
                return self.open_shards[index], row
        raise IndexError(f"{self.directory}: no sample {sample} of {len(self)}")

    def length(self, sample: int) -> int:
        file, row = self.shard_of(sample)
        return int(file["lengths"][row])

    def values(self, sample: int, name: str, size: int = 1) -> Array:
        """A dataset's part of one sample; `size`: numbers on axis 0 for each token, if it is ragged.

        size = 0: for each pair of tokens of a map.
        """
        file, row = self.shard_of(sample)
        data = file[name]
        if not self.ragged:
            return np.asarray(data[row])
        lengths = np.asarray(file["lengths"][: row + 1], np.int64)
        rows = lengths * size if size else self.pairs(lengths) * self.manifest["heads"]
        return np.asarray(data[int(rows[:-1].sum()) : int(rows.sum())])

    def pairs(self, tokens: Any) -> Any:
        packed = self.manifest["causal"] and self.manifest["packed"]
        return tokens * (tokens + 1) // 2 if packed else tokens * tokens

    def names(self) -> list[str]:
        file, _ = self.shard_of(0)
        return sorted(file["layers/00"])

    def tensor(self, sample: int, layer: int, name: str) -> Array:
        path, heads, tokens = f"layers/{layer:02d}/{name}", self.manifest["heads"], self.length(sample)
        if name == "attention":
            return self.map_of(self.values(sample, path, 0), tokens)
        if name in self.BY_KEY_HEAD:
            heads = self.key_heads
        by_head = name in self.BY_HEAD + self.BY_KEY_HEAD
        values = self.values(sample, path, heads if by_head else 1)
        if not self.ragged:
            return values[:, :tokens] if by_head else values[:tokens]
        return values.reshape(heads, tokens, *values.shape[1:]) if by_head else values

    def map_of(self, stored: Array, tokens: int) -> Array:
        """[H, t, t] of a stored map; packed ones have the lower triangles, row by row."""
        heads = self.manifest["heads"]
        stored = stored.reshape(heads, -1)
        size = tokens if self.ragged else self.manifest["tokens"]
        if not (self.manifest["causal"] and self.manifest["packed"]):
            return stored.reshape(heads, size, size)[:, :tokens, :tokens]
        out = np.zeros((heads, size, size), stored.dtype)
        rows, columns = np.tril_indices(size)
        out[:, rows, columns] = stored
        return out[:, :tokens, :tokens]

    def layer(self, sample: int, layer: int) -> dict[str, Array]:
        return {name: self.tensor(sample, layer, name) for name in self.names()}

    def attention(self, sample: int, layer: int) -> Array:
        """The teacher's attention [H, t, t], stored or computed from its q and k."""
        if not 0 <= layer < self.manifest["layers"]:
            raise ValueError(f"{self.directory}: no layer {layer} of {self.manifest['layers']}")
        if "attention" in self.names():
            return self.tensor(sample, layer, "attention")
        if "query" not in self.names():
            raise ValueError(f"{self.directory}: content {self.manifest['content']} has no attention by key")
        q, k = (self.tensor(sample, layer, name).astype(np.float64) for name in ("query", "key"))
        k = np.repeat(k, self.manifest["heads"] // self.key_heads, 0)
        scores = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1])
        if self.manifest["causal"]:
            scores = np.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        return scores / scores.sum(-1, keepdims=True)

    def window(self, sample: int) -> int:
        """The number of the sample's window in its corpus, or of a task its text in the split."""
        if not self.manifest["windows"]:
            raise ValueError(f"{self.directory}: has no numbers of windows, its samples are its own")
        return int(self.manifest["windows"][sample])

    def tokens(self, sample: int) -> Array:
        """[t], where the dump has them: of windows of a corpus it has the numbers only."""
        if not self.manifest["has_tokens"]:
            raise ValueError(f"{self.directory}: has no tokens, only windows of its corpus")
        return self.values(sample, "tokens")[: self.length(sample)]

    def logits(self, sample: int) -> dict[str, Array]:
        """Of each token: "values", "lse" and, if only the largest are stored, "ids"; of a task "classes"."""
        file, row = self.shard_of(sample)
        out = {}
        for name in file["logits"] if "logits" in file else ():
            if name == "classes":
                out[name] = np.asarray(file["logits/classes"][row])
            else:
                out[name] = self.values(sample, f"logits/{name}")[: self.length(sample)]
        return out
