"""The readers, on files that are written here by the formats' documentation."""

import json

import numpy as np
import pytest

from brine_sea import Dump

h5py = pytest.importorskip("h5py")

LAYERS, HEADS, SIZE, TOKENS, WIDTH = 2, 2, 4, 6, 8


def write_shard(path, first, lengths, causal=1, packed=0, ragged=0, content="maps", seed=0):
    """A shard as in docs/formats.md; returns the maps, queries and tokens of its samples."""
    rng, samples = np.random.default_rng(seed), []
    for length in lengths:
        scores = rng.normal(size=(LAYERS, HEADS, length, length))
        if causal:
            scores = np.where(np.tril(np.ones((length, length), bool)), scores, -np.inf)
        maps = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
        samples.append(
            {
                "attention": maps.astype("f4"),
                "query": rng.normal(size=(LAYERS, HEADS, length, SIZE)).astype("f4"),
                "key": rng.normal(size=(LAYERS, 1 if ragged else HEADS, length, SIZE)).astype("f4"),
                "context": rng.normal(size=(LAYERS, length, WIDTH)).astype("f4"),
                "tokens": rng.integers(0, 11, length, dtype="i4"),
                "values": rng.normal(size=(length, 3)).astype("f4"),
            }
        )

    def padded(x, axes):
        return np.pad(x, [(0, TOKENS - size if axis in axes else 0) for axis, size in enumerate(x.shape)])

    def stored(name, sample, layer):
        x = sample[name][layer]
        axes = {"attention": (1, 2), "query": (1,), "key": (1,), "context": (0,)}[name]
        x = x if ragged else padded(x, axes)
        if name == "attention" and packed:
            rows, columns = np.tril_indices(x.shape[-1])
            x = x[:, rows, columns]
        if not ragged:
            return x[None]
        return x.reshape(-1) if name == "attention" else x.reshape(-1, x.shape[-1])

    with h5py.File(path, "w") as file:
        for layer in range(LAYERS):
            for name in ("attention", "context") if content == "maps" else ("query", "key", "context"):
                file[f"layers/{layer:02d}/{name}"] = np.concatenate([stored(name, s, layer) for s in samples])
        for name, to in (("tokens", "tokens"), ("values", "logits/values")):
            parts = [s[name] if ragged else padded(s[name], (0,))[None] for s in samples]
            file[to] = np.concatenate(parts)
        file["lengths"] = np.array(lengths, "i8")
    return samples


@pytest.mark.parametrize("causal, packed", [(1, 0), (1, 1), (0, 0)])
@pytest.mark.parametrize("ragged", [0, 1])
@pytest.mark.parametrize("content", ["maps", "qk"])
def test_dump(tmp_path, causal, packed, ragged, content, refused):
    lengths = [[6, 4], [5]]
    samples, shards = [], []
    for i, of_shard in enumerate(lengths):
        name = f"shard-{i:05d}.h5"
        samples += write_shard(tmp_path / name, len(samples), of_shard, causal, packed, ragged, content, i)
        shards.append({"name": name, "first": 2 * i, "samples": len(of_shard)})
    manifest = dict(
        format="brine-dump",
        version=4,
        key_heads=1 if ragged else HEADS,
        causal=causal,
        packed=packed,
        ragged=ragged,
        layers=LAYERS,
        heads=HEADS,
        tokens=TOKENS,
        samples=3,
        shards=shards,
        has_tokens=1,
        windows=[4, 7, 9],
    )
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    with Dump(tmp_path) as dump:
        assert len(dump) == 3
        for i in dump:
            sample = samples[i]
            assert dump.length(i) == len(sample["tokens"])
            assert np.array_equal(dump.tokens(i), sample["tokens"])
            assert np.array_equal(dump.logits(i)["values"], sample["values"])
            for layer in range(LAYERS):
                found = dump.layer(i, layer)
                assert "context" in found
                for name, x in found.items():
                    assert np.array_equal(x, sample[name][layer]), name
                attention = dump.attention(i, layer)
                assert attention.shape == (HEADS, dump.length(i), dump.length(i))
                assert np.allclose(attention.sum(-1), 1, atol=1e-6)
                if causal:
                    assert np.all(np.triu(attention, 1) == 0)
        assert [dump.window(i) for i in dump] == [4, 7, 9]
        refused("no sample 3 of 3", dump.tokens, 3, error=IndexError)
        dump.manifest["has_tokens"] = 0
        refused("only windows of its corpus", dump.tokens, 0)


def test_a_dump_of_another_version_is_refused(tmp_path, refused):
    for version in (3, 5):
        (tmp_path / "manifest.json").write_text(json.dumps(dict(format="brine-dump", version=version, shards=[])))
        refused(f"version {version}, this program reads version 4", Dump, tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps(dict(format="other")))
    refused("not the manifest of a dump", Dump, tmp_path)
