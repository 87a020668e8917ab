"""The writer of dumps, and dumps of models of transformers against what transformers itself gives."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from brine_sea import Dump, DumpWriter

h5py = pytest.importorskip("h5py")

SIZES = dict(layers=2, heads=2, head_size=4, vocab=11, tokens=6, samples=5)


def arrays_of(count, seed=0, content="qk"):
    rng = np.random.default_rng(seed)
    rows = dict(context=(count, 6, 8), output=(count, 6, 10 if content == "pooled" else 8))
    if content in ("qk", "value"):
        rows |= dict(query=(count, 2, 6, 4), key=(count, 1 if content == "value" else 2, 6, 4))
    if content == "value":
        rows |= dict(value=(count, 1, 6, 4))
    if content == "pooled":
        rows |= dict(t_log_t=(count, 2, 6), t_square=(count, 2, 6))
    out = {name: [rng.normal(size=shape).astype(np.float32) for _ in range(2)] for name, shape in rows.items()}
    if content in ("maps", "pooled"):
        maps = [np.tril(rng.random((count, 2, 6, 6))) for _ in range(2)]
        if content == "pooled":
            maps = [rng.random((count, 2, 6, 3)) for _ in range(2)]
        out["tau" if content == "pooled" else "attention"] = [x / x.sum(-1, keepdims=True) for x in maps]
    return out | {"logits": rng.normal(size=(count, 6, 11)), "tokens": rng.integers(0, 11, (count, 6))}


# What a writer is told of each of them.
KINDS = {
    "qk": dict(),
    "maps": dict(content="maps"),
    "value": dict(value=True, key_heads=1, model_layers=[1, 4]),
    "pooled": dict(content="pooled", columns=3, hidden=10),
}


def part(arrays, begin, end):
    return {k: [x[begin:end] for x in v] if isinstance(v, list) else v[begin:end] for k, v in arrays.items()}


def write_each(arrays, out, end=5, **options):
    """Writes a sample after another, up to `end`."""
    with DumpWriter(out, **SIZES, **options) as writer:
        while writer.written < min(end, 5):
            writer.write(**part(arrays, writer.written, writer.written + 1))


@pytest.mark.parametrize("dtype, error", [("f32", 0), ("f16", 2**-11), ("bf16", 2**-8)])
@pytest.mark.parametrize("content", KINDS)
def test_what_was_written_is_read(tmp_path, dtype, error, content):
    arrays, of = arrays_of(5, content=content), KINDS[content]
    with DumpWriter(tmp_path / "d", **SIZES, **of, dtype=dtype, top_logits=3) as writer:
        writer.write(**part(arrays, 0, 2), lengths=[6, 4])
        writer.write(**part(arrays, 2, 5))
    dump = Dump(tmp_path / "d")
    assert dump.manifest["version"] == 4 and dump.key_heads == of.get("key_heads", 2)
    assert dump.model_layers == of.get("model_layers", [0, 1])
    if content != "pooled":
        assert np.allclose(dump.attention(1, 0)[:, 1:4].sum(-1), 1, atol=0.03)
    for sample in range(5):
        length = 4 if sample == 1 else 6
        assert dump.tokens(sample).tolist() == arrays["tokens"][sample, :length].tolist()
        for layer in range(2):
            for name, values in dump.layer(sample, layer).items():
                wanted = arrays[name][layer][sample]
                wanted = wanted[:length] if name in ("context", "output") else wanted[:, :length]
                wanted = wanted[..., :length] if name == "attention" else wanted
                assert np.all(np.abs(values - wanted) <= error * np.abs(wanted) + 1e-7), name
        logits = dump.logits(sample)
        rows = arrays["logits"][sample, :length]
        assert np.array_equal(logits["ids"], np.argsort(-rows, -1)[:, :3])
        assert np.allclose(logits["lse"], np.log(np.exp(rows).sum(-1)), atol=1e-5)
        assert np.all(np.diff(logits["values"], axis=-1) <= 0)


def test_a_killed_writer_continues_with_the_same_bytes(tmp_path, refused):
    arrays = arrays_of(5)
    write_each(arrays, tmp_path / "whole", samples_per_shard=2)
    stopped = DumpWriter(tmp_path / "cut", **SIZES, samples_per_shard=2)
    for sample in range(3):
        stopped.write(**part(arrays, sample, sample + 1))
    stopped.file.close()  # as a kill leaves it: one shard, one that is not complete
    os.close(stopped.shards.locks[0])
    assert (tmp_path / "cut/shard-00001.h5.tmp").exists()
    again = DumpWriter(tmp_path / "cut", **SIZES, samples_per_shard=2)
    assert again.written == 2 and not (tmp_path / "cut/shard-00001.h5.tmp").exists()
    refused("another process is writing this dump", DumpWriter, tmp_path / "cut", **SIZES, samples_per_shard=2)
    again.close()
    write_each(arrays, tmp_path / "cut", samples_per_shard=2)
    for name in ("manifest.json", "shard-00000.h5", "shard-00001.h5", "shard-00002.h5"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    (tmp_path / "cut/shard-00001.h5").write_bytes(b"damaged")
    refused(r"shard-00001.h5: has 7 bytes, the manifest says \d+$", Dump(tmp_path / "cut").tokens, 2)
    mended = DumpWriter(tmp_path / "cut", **SIZES, samples_per_shard=2)
    assert mended.written == 2
    mended.write(**part(arrays, 2, 3))
    mended.write(**part(arrays, 3, 5))  # the last shard is there, and not written again
    assert mended.written == 5
    mended.close()
    for name in ("manifest.json", "shard-00001.h5", "shard-00002.h5"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with pytest.raises(ValueError, match=r"is of another dump: vocab is 11, not 12"):
        DumpWriter(tmp_path / "cut", **SIZES | {"vocab": 12}, samples_per_shard=2)


def test_what_brine_would_refuse(tmp_path, refused):
    good = arrays_of(2)

    def unwritten(why, **changes):
        writer = DumpWriter(tmp_path / "d", **SIZES)
        refused(why, writer.write, **good | changes)
        writer.close()

    unwritten("query is missing", query=None)
    unwritten("attention is not of this dump", attention=good["query"])
    unwritten("key has 1 arrays, the dump 2 layers", key=good["key"][:1])
    cut = [c[..., : 8 - i] for i, c in enumerate(good["context"])]
    unwritten(r"layers/01/context is \[2, 6, 7\], must be \[2, 6, 8\]", context=cut)
    unwritten("layers/00/output has a number that is not finite", output=[np.full((2, 6, 8), np.nan)] * 2)
    unwritten("has the number 1e\\+06, the largest f16 is 65504", output=[np.full((2, 6, 8), 1e6)] * 2)
    unwritten("has the number 1e\\+06, the largest f16 is 65504", output=[np.full((2, 6, 8), 10**6)] * 2)
    unwritten("tokens must be integers from 0 to 10", tokens=good["tokens"] + 11)
    unwritten("lengths must be from 1 to 6", lengths=[0, 6])
    unwritten("logits are missing", logits=None)
    top = np.zeros((2, 6, 11)), np.zeros((2, 6, 11), int), np.ones((2, 6))
    unwritten("logits/ids must be from 0 to 10", logits=(top[0], top[1] + 11, top[2]))
    unwritten("logits/values are not in descending order", logits=(top[0] + np.arange(11), *top[1:]))
    (tmp_path / "x").mkdir()
    (tmp_path / "x/shard-00000.h5").write_bytes(b"of another program")
    refused("has shard-00000.h5 but no manifest.json", DumpWriter, tmp_path / "x", **SIZES)
    (tmp_path / "model").mkdir()
    (tmp_path / "model/config.json").write_text("{}")
    with pytest.raises(ValueError, match="model: has config.json, which is not of a dump; give another directory"):
        DumpWriter(tmp_path / "model", **SIZES, ranks=2)
    assert os.listdir(tmp_path / "model") == ["config.json"]
    writer = DumpWriter(tmp_path / "m", **SIZES, content="maps", top_logits=0, context=False, output=False)
    with pytest.raises(ValueError, match="rows of the attention of layer 0 do not sum to 1"):
        writer.write(attention=[np.ones((2, 2, 6, 6))] * 2, tokens=good["tokens"])
    writer.close()
    refused("5 of 5 samples are missing", write_each, good, tmp_path / "e", end=0)
    for changes, why in (
        (dict(dtype="f64"), "dtype is 'f64', known are f32, f16, bf16"),
        (dict(key_heads=3), "3 heads of keys do not divide 2 heads"),
        (dict(value=True, content="none"), "values are of a dump with content qk, maps or pooled, this one has none"),
        (dict(content="pooled"), "columns is 0, must be at least 1"),
        (dict(columns=4), "columns are of content pooled, this dump has qk"),
        (dict(classes=2), "a dump with classes has no logits of tokens, top_logits must be 0"),
        (dict(classes=2, top_logits=0, lengths=[1] * 4), "lengths are of the 5 samples of a dump with classes, got 4"),
        (dict(model_layers=[3]), r"model_layers must be 2 ascending numbers, got \[3\]"),
        (dict(rank=2, ranks=2), "rank is 2, must be from 0 to 1"),
    ):
        refused(why, DumpWriter, tmp_path / "f", **SIZES, **changes)


@pytest.mark.parametrize("content", ["value", "maps", "pooled"])
@pytest.mark.parametrize("dtype", ["f32", "f16", "bf16"])
def test_without_padding_it_is_the_same_dump(content, dtype, tmp_path):
    lengths, rng = [1, 2, 4, 4, 6], np.random.default_rng(0)
    given = {name: arrays for name, arrays in arrays_of(5, content=content).items() if name != "logits"}
    given |= dict(classes=rng.random((5, 2)), windows=[4, 0, 3, 1, 2])
    for name, more in (("padded", {}), ("ragged", dict(lengths=lengths))):
        options = SIZES | KINDS[content] | more | dict(dtype=dtype, top_logits=0, classes=2, samples_per_shard=3)
        with DumpWriter(tmp_path / name, **options) as writer:
            writer.write(**given, lengths=lengths)
    padded, ragged = Dump(tmp_path / "padded"), Dump(tmp_path / "ragged")
    assert ragged.manifest["lengths"] == lengths
    assert ragged.manifest["windows"] == padded.manifest["windows"] == given["windows"] and padded.window(1) == 0
    for sample in range(5):
        assert ragged.tokens(sample).tolist() == padded.tokens(sample).tolist()
        assert np.array_equal(ragged.logits(sample)["classes"], padded.logits(sample)["classes"])
        assert np.allclose(padded.logits(sample)["classes"], given["classes"][sample])
        for layer in range(2):
            for name, x in padded.layer(sample, layer).items():
                assert np.array_equal(ragged.layer(sample, layer)[name], x), name
    size = {name: (tmp_path / name / "shard-00000.h5").stat().st_size for name in ("padded", "ragged")}
    assert size["ragged"] < size["padded"]
    with (
        pytest.raises(ValueError, match="lengths are not those of the dump's samples"),
        DumpWriter(tmp_path / "f", **options) as writer,
    ):
        writer.write(**given, lengths=[1, 2, 4, 5, 6])


# Writes the samples of a file of arrays, slowly: rank, ranks, out.
SLOWLY = """
import sys, time
import numpy as np
sys.path.insert(0, {source!r})
from brine_sea import DumpWriter
rank, ranks, out, pause = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3], float(sys.argv[4])
sizes = dict(layers=1, heads=2, head_size=4, vocab=11, tokens=6, samples=12)
with DumpWriter(out, **sizes, samples_per_shard=2, top_logits=0, rank=rank, ranks=ranks) as writer:
    while writer.written < 12:
        rng = np.random.default_rng(writer.written)
        heads, rows = rng.normal(size=(1, 2, 6, 4)), rng.normal(size=(1, 6, 8))
        writer.write(query=[heads], key=[heads], context=[rows], output=[rows], tokens=rng.integers(0, 11, (1, 6)))
        time.sleep(pause)
"""


def test_two_processes_write_what_one_does_and_may_be_killed(tmp_path):
    script = SLOWLY.format(source=str(Path(__file__).parents[1]))

    def start(rank, ranks, out, pause=0.0):
        command = [sys.executable, "-c", script, str(rank), str(ranks), str(tmp_path / out), str(pause)]
        return subprocess.Popen(command, stderr=subprocess.PIPE)

    assert start(0, 1, "whole").wait(60) == 0
    both = [start(rank, 2, "cut", 0.15) for rank in range(2)]
    shards = {f"shard-{n:05d}.h5" for n in range(6)}
    for _ in range(600):
        if len(shards & set(os.listdir(tmp_path / "cut") if (tmp_path / "cut").exists() else ())) >= 3:
            break
        time.sleep(0.02)
    for process in both:
        process.send_signal(signal.SIGKILL)
        process.wait()
    left = set(os.listdir(tmp_path / "cut"))
    assert "manifest.json" not in left and 3 <= len(shards & left) < 6
    before = {name: (tmp_path / "cut" / name).stat().st_mtime_ns for name in shards & left}
    both = [start(rank, 2, "cut") for rank in range(2)]
    assert [process.wait(60) for process in both] == [0, 0]
    whole = sorted(os.listdir(tmp_path / "whole"))
    assert sorted(os.listdir(tmp_path / "cut")) == whole == ["manifest.json", *sorted(shards)]
    for name in whole:
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert all((tmp_path / "cut" / name).stat().st_mtime_ns == time for name, time in before.items())


def test_processes_wait_for_their_shards_only(tmp_path, refused):
    arrays = arrays_of(5)

    def write_part(rank, ranks, end=5):
        write_each(arrays, tmp_path / "d", end, samples_per_shard=1, rank=rank, ranks=ranks, timeout=0.0)

    refused("shard-00001.h5 of another process is missing", write_part, 0, 2)
    refused("samples are missing", write_part, 1, 2, end=2)
    first = DumpWriter(tmp_path / "d", **SIZES, samples_per_shard=1, rank=1, ranks=2)
    assert first.written == 3
    for who in ((1, 2), (0, 1)):
        refused("another process is writing this dump", write_part, *who)
    refused("2 samples, the shard of sample 3 has room for 1", first.write, **part(arrays, 3, 5))
    first.close()
    with pytest.raises(ValueError, match="is of another dump: dtype is 'f16', not 'f32'"):
        DumpWriter(tmp_path / "d", **SIZES, samples_per_shard=1, dtype="f32")
    write_part(0, 1)  # one process ends what two began
    assert sorted(os.listdir(tmp_path / "d")) == ["manifest.json", *(f"shard-0000{n}.h5" for n in range(5))]
    dump = Dump(tmp_path / "d")
    assert [dump.tokens(s).tolist() for s in range(5)] == arrays["tokens"].tolist()


# ---- models of transformers

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
from brine_sea import attach, dump, teacher_hash  # noqa: E402

COMMON = dict(vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=64)
GROUPED = COMMON | dict(intermediate_size=48, num_key_value_heads=2)
FAMILIES = {
    "LlamaConfig": GROUPED,
    "MistralConfig": GROUPED,
    "Qwen2Config": GROUPED,
    "Qwen3Config": GROUPED | dict(head_dim=16),  # heads that do not make up the hidden size
    "Gemma2Config": GROUPED | dict(head_dim=8, query_pre_attn_scalar=20, attn_logit_softcapping=None),
    "Phi3Config": GROUPED | dict(pad_token_id=0),
    "Olmo2Config": GROUPED,
    "GPTNeoXConfig": COMMON | dict(intermediate_size=48),
    "OPTConfig": COMMON | dict(ffn_dim=48, word_embed_proj_dim=32),
    "GPT2Config": dict(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64),
    "BertConfig": COMMON | dict(intermediate_size=48),
    "AlbertConfig": COMMON | dict(intermediate_size=48, embedding_size=16),  # a layer that is used several times
}
ENCODERS = ("AlbertConfig", "BertConfig")
# The norm after the last layer, which its output does not have.
NORMS = ("model.norm", "gpt_neox.final_layer_norm", "model.decoder.final_layer_norm", "transformer.ln_f")


class Words:
    """A tokenizer of letters, with 1 between two texts."""

    def __call__(self, text, pair=None, **options):
        ids = [2 + ord(c) % 62 for c in text]
        types = [0] * len(ids)
        if pair is not None:
            ids, types = ids + [1] + [2 + ord(c) % 62 for c in pair], types + [1] * (1 + len(pair))
        limit = options.get("max_length", len(ids))
        return {"input_ids": ids[:limit], "token_type_ids": types[:limit]}


TEXT = "the quick brown fox jumps over the lazy dog, " * 4


def make(name, kind=transformers.AutoModelForCausalLM, **changes):
    torch.manual_seed(0)
    config = getattr(transformers, name)(**FAMILIES.get(name, GROUPED) | changes)
    if name in ENCODERS and kind is transformers.AutoModelForCausalLM:
        kind = transformers.AutoModelForMaskedLM
    return kind.from_config(config, attn_implementation="eager").eval()


def dumped(model, texts, out, **options):
    """The dump of a model, read again."""
    dump(model, Words(), texts, out, **dict(dtype="f32", progress=False) | options)
    return Dump(out)


def ids_of(found, samples):
    """Tokens of a dump, for a model."""
    return torch.tensor(np.stack([found.tokens(sample) for sample in samples]).astype(np.int64))


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_dump_has_what_the_model_computes(name, tmp_path):
    model = make(name)
    found = dumped(model, TEXT, tmp_path / "d", length=20, top_logits=5, batch_size=3, value=True)
    assert model.config._attn_implementation == "eager" and not hasattr(model, "brine_sea_tap")
    assert found.manifest["samples"] == len(TEXT) // 20 and found.manifest["teacher_hash"] == teacher_hash(model)
    assert found.manifest["causal"] == (name not in ENCODERS) and found.manifest["hidden"] == 32
    ids = ids_of(found, found)
    wanted = model(ids, output_hidden_states=True, output_attentions=True)
    norms = [model.get_submodule(n) for n in NORMS if n in dict(model.named_modules())]
    for sample in range(len(ids)):
        for layer in range(3):
            got = {k: torch.tensor(v) for k, v in found.layer(sample, layer).items()}
            assert len(got["key"]) == getattr(model.config, "num_key_value_heads", 4)
            key = got["key"].repeat_interleave(4 // len(got["key"]), 0)
            scores = got["query"] @ key.transpose(-1, -2) / (16 if name == "Qwen3Config" else 8) ** 0.5
            if name not in ENCODERS:
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
            assert torch.allclose(scores.softmax(-1), wanted.attentions[layer][sample], atol=1e-5)
            value = got["value"].repeat_interleave(4 // len(got["value"]), 0)
            context = (scores.softmax(-1) @ value).transpose(0, 1).flatten(1)
            assert torch.allclose(context, got["context"], atol=1e-5)
            output = got["output"]
            if layer == 2 and norms:
                output = norms[0](output)
            assert torch.allclose(output, wanted.hidden_states[layer + 1][sample], atol=1e-5)
        logits = {k: torch.tensor(v) for k, v in found.logits(sample).items()}
        assert torch.allclose(logits["lse"], wanted.logits[sample].logsumexp(-1), atol=1e-5)
        assert torch.equal(logits["ids"].long(), wanted.logits[sample].topk(5, -1).indices)


@pytest.mark.parametrize(
    "name, changes",
    [
        ("LlamaConfig", {}),
        ("BertConfig", {}),
        ("MistralConfig", dict(sliding_window=4)),
        ("Gemma2Config", dict(attn_logit_softcapping=50.0)),
    ],
)
@torch.no_grad()
def test_texts_of_several_lengths(name, changes, tmp_path):
    texts = ["a short one", "one that is quite a bit longer", "x"]
    model = make(name, **changes)
    found = dumped(model, texts, tmp_path / "d", windows=False, content="maps")
    for sample, text in enumerate(texts):
        ids = torch.tensor([Words()(text)["input_ids"]])
        assert found.tokens(sample).tolist() == ids[0].tolist()
        wanted = model(ids, output_attentions=True)
        for layer in range(3):
            maps = torch.tensor(found.layer(sample, layer)["attention"])
            assert torch.allclose(maps, wanted.attentions[layer][0], atol=1e-5)


@torch.no_grad()
def test_a_killed_dump_continues_and_knows_its_samples(tmp_path, monkeypatch, refused):
    model = make("LlamaConfig").bfloat16()
    model.train()
    model.lm_head.eval()

    def again(out, of=TEXT, **more):
        return dumped(model, of, out, **dict(length=20, batch_size=3, samples_per_shard=2, dtype="f16") | more)

    whole = again(tmp_path / "whole")
    assert model.training and not model.lm_head.training
    written = DumpWriter.write

    def killed(self, **arrays):
        if self.written == 4:
            raise KeyboardInterrupt
        written(self, **arrays)

    monkeypatch.setattr(DumpWriter, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        again(tmp_path / "cut")
    monkeypatch.undo()
    refused("its sample 0 has other tokens", again, tmp_path / "cut", TEXT.upper())
    cut = again(tmp_path / "cut")
    for sample in range(whole.manifest["samples"]):
        assert np.array_equal(whole.layer(sample, 2)["query"], cut.layer(sample, 2)["query"])
    model.model.layers[1].mlp.down_proj.weight.mul_(1e20)
    refused("has a number|is 65504", again, tmp_path / "huge")
    again(tmp_path / "huge", dtype="bf16", output=False, context=False)


@pytest.mark.parametrize("name", ["LlamaConfig", "BertConfig"])
@torch.no_grad()
def test_masses_of_columns(name, tmp_path, monkeypatch):
    import brine_sea.tap

    monkeypatch.setattr(brine_sea.tap, "TILE", 3 * 4 * 30 * 7)  # 7 rows at a time
    model, texts = make(name), ["a short one", "one that is quite a bit longer", "xy"]
    pooled = dumped(model, texts, tmp_path / "p", windows=False, content="pooled", columns=5)
    maps = dumped(model, texts, tmp_path / "m", windows=False, content="maps")
    for sample, text in enumerate(texts):
        for layer in range(3):
            got, t = pooled.layer(sample, layer), maps.attention(sample, layer).astype(np.float64)
            for row in range(len(text)):
                width = row + 1 if name == "LlamaConfig" else len(text)
                begins = [(2 * c * width + 5) // 10 for c in range(6)]
                tau = [t[:, row, a:b].sum(-1) for a, b in zip(begins, begins[1:], strict=False)]
                assert np.allclose(got["tau"][:, row], np.stack(tau, -1), atol=1e-6)
            logs = np.where(t > 0, t * np.log(np.where(t > 0, t, 1)), 0)
            assert np.allclose(got["t_log_t"], logs.sum(-1), atol=1e-5)
            assert np.allclose(got["t_square"], (t * t).sum(-1), atol=1e-6)


@pytest.mark.parametrize("name", ["BertConfig", "LlamaConfig", "GPT2Config"])
@torch.no_grad()
def test_classes_of_texts(name, tmp_path, refused):
    padding = {} if name == "LlamaConfig" else dict(pad_token_id=0)
    model = make(name, transformers.AutoModelForSequenceClassification, num_labels=3, **padding)
    texts = ["a short one", ("one that is", "quite a bit longer"), "x", "the last"]
    found = dumped(model, texts, tmp_path / "d", samples=3)
    assert found.manifest["classes"] == 3 and found.manifest["logits"] == "none"
    assert len(found.manifest["windows"]) == 3 and found.manifest["corpus_hash"] == "none"
    for sample in range(3):
        text = texts[found.window(sample)]
        row = Words()(*text) if isinstance(text, tuple) else Words()(text)
        inputs = {key: torch.tensor([ids]) for key, ids in row.items() if key == "input_ids" or name == "BertConfig"}
        assert found.tokens(sample).tolist() == row["input_ids"]
        if name == "GPT2Config":  # whose tokens have types, too, as words
            inputs["token_type_ids"] = torch.tensor([row["token_type_ids"]])
        assert np.allclose(found.logits(sample)["classes"], model(**inputs).logits[0], atol=1e-5)
    # Padding is not stored: rows of each text alone, shorter ones first.
    sizes = found.manifest["lengths"]
    assert found.manifest["ragged"] == 1 and sizes == sorted(sizes) and sizes[0] < sizes[-1]
    with h5py.File(tmp_path / "d" / "shard-00000.h5") as file:
        assert file["tokens"].shape == (sum(sizes),) and len(file["layers/00/context"]) == sum(sizes)
        assert len(file["layers/00/query"]) == found.manifest["heads"] * sum(sizes)
    refused("reads each as a whole, windows must be False", dumped, model, texts, tmp_path / "e", windows=True)
    refused("^brine: text 1 is empty; leave it out$", dumped, model, [("x", "y"), ("x", " ")], tmp_path / "e")


@torch.no_grad()
def test_some_layers(tmp_path):
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    model, text = make("Gemma3TextConfig", head_dim=8, sliding_window=4, layer_types=kinds), TEXT[:43]
    options = dict(length=20, value=True)
    with pytest.raises(ValueError, match=r"in layer 0 a layer hides.*'maps' is possible, or.* layers=\[1\]$"):
        dumped(model, text, tmp_path / "d", **options)
    found = dumped(model, text, tmp_path / "d", layers=[1], **options)
    assert found.manifest["layers"] == 1 and found.model_layers == [1] and found.manifest["model_layers"] == "1"
    wanted = model(ids_of(found, [1]), output_attentions=True, output_hidden_states=True)
    assert np.allclose(found.attention(1, 0), wanted.attentions[1][0], atol=1e-5)
    assert np.allclose(found.layer(1, 0)["output"], wanted.hidden_states[2][0], atol=1e-5)
    assert dumped(model, text, tmp_path / "all", content="maps", **options).model_layers == [0, 1, 2]


def test_two_ranks_dump_what_one_does(tmp_path):
    model, options = make("LlamaConfig"), dict(length=20, batch_size=3, samples_per_shard=2, progress=False)
    dump(model, Words(), TEXT, tmp_path / "one", **options)
    for rank in (1, 0):
        dump(model, Words(), TEXT, tmp_path / "two", rank=rank, ranks=2, **options)
    names = sorted(os.listdir(tmp_path / "one"))
    assert names == sorted(os.listdir(tmp_path / "two")) and len(names) > 4
    for name in names:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_scores_with_a_bias(refused):
    from brine_sea.tap import Tap

    torch.manual_seed(0)
    tap, module = Tap("maps", True), torch.nn.Module()
    q, (k, v), bias = torch.randn(1, 4, 9, 8), torch.randn(2, 1, 2, 9, 8), torch.randn(1, 4, 9, 9)
    y, _ = tap.attention(module, q, k, v, None, scaling=0.3, position_bias=bias)
    later = torch.ones(9, 9, dtype=torch.bool).triu(1)
    k, v = (x.repeat_interleave(2, 1) for x in (k, v))
    t = (q @ k.transpose(-1, -2) * 0.3 + bias).masked_fill(later, -torch.inf).softmax(-1)
    assert torch.allclose(tap.tensors[0]["attention"], t) and torch.allclose(y, (t @ v).transpose(1, 2), atol=1e-6)
    assert tap.layers[0].deviation == ("scores have a bias of positions", ("maps", "pooled", "none"))
    refused("has sparse attention or sinks of its own", tap.attention, module, q, k, v, None, indices=torch.zeros(1))


def test_models_that_a_dump_cannot_hold(tmp_path, refused):
    both = transformers.BartForConditionalGeneration(
        transformers.BartConfig(vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1)
    )
    other = transformers.AutoModelForCausalLM.from_config(
        transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)
    )
    llama, broken, attached = (make("LlamaConfig") for _ in range(3))
    attach(attached, {"method": "blocks"})
    capped, sliding = make("Gemma2Config", attn_logit_softcapping=50.0), make("MistralConfig", sliding_window=8)
    with torch.no_grad():
        broken.model.layers[1].self_attn.q_proj.weight[0, 0] = torch.nan
    for model, changes, why in (
        (both, {}, "of a decoder or an encoder, this model has both"),
        (other, {}, "does not go through transformers' attention interface"),
        (llama, dict(length=0), "^brine: length is 0, must be at least 1$"),
        (llama, dict(length=2.5), "^brine: length is 2.5, must be an integer$"),
        (llama, dict(top_logits=-1), "^brine: top_logits is -1, must be at least 0$"),
        (llama, dict(length=65), "samples of 65 tokens, the model has 64 positions"),
        (llama, dict(layers=[1, 3]), "has no layer 3 with attention, its layers are 0, 1, 2"),
        (llama, dict(content="pooled", columns=0), "^brine: columns is 0, must be an integer of at least 1$"),
        (attached, {}, "^brine: the model has blocks, .*; detach\\(\\) them first$"),
        (llama, dict(samples=-1), "^brine: -1 windows requested, there are 5 "),
        (llama, dict(samples=2, texts=["x"], windows=False), "^brine: 2 texts requested, there are 1 "),
        (llama, dict(texts="x" * 10), "have 10 tokens, not even a window of 20"),
        (broken, {}, "^brine: layers/01/query has a number that is not finite$"),
        (make("LlamaConfig").to("meta"), {}, "^brine: .* is offloaded or has no data; load the model into memory$"),
        (capped, {}, "scores have a cap.*content='maps' is possible"),
        (sliding, {}, "a layer hides earlier keys.*content='maps' is possible"),
    ):
        refused(why, dumped, model, out=tmp_path / "d", **dict(texts="x" * 100, length=20, dtype="f16") | changes)
