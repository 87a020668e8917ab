"""The writer of dumps, and dumps of models of transformers against what transformers itself gives."""

from __future__ import annotations

import os

import numpy as np
import pytest

from brine_sea import Dump, DumpWriter

h5py = pytest.importorskip("h5py")

SIZES = dict(layers=2, heads=2, head_size=4, vocab=11, tokens=6, samples=5)


def arrays_of(count, seed=0, content="qk"):
    rng = np.random.default_rng(seed)
    rows = dict(context=(count, 6, 8), output=(count, 6, 8))
    if content == "qk":
        rows |= dict(query=(count, 2, 6, 4), key=(count, 2, 6, 4))
    out = {name: [rng.normal(size=shape).astype(np.float32) for _ in range(2)] for name, shape in rows.items()}
    if content == "maps":
        maps = [np.tril(rng.random((count, 2, 6, 6))) for _ in range(2)]
        out["attention"] = [x / x.sum(-1, keepdims=True) for x in maps]
    return out | {"logits": rng.normal(size=(count, 6, 11)), "tokens": rng.integers(0, 11, (count, 6))}


def part(arrays, begin, end):
    return {k: [x[begin:end] for x in v] if isinstance(v, list) else v[begin:end] for k, v in arrays.items()}


@pytest.mark.parametrize("dtype, apart", [("f32", 0), ("f16", 2**-11), ("bf16", 2**-8)])
@pytest.mark.parametrize("content", ["qk", "maps"])
def test_what_was_written_is_read(tmp_path, dtype, apart, content):
    arrays = arrays_of(5, content=content)
    with DumpWriter(tmp_path / "d", **SIZES, content=content, dtype=dtype, top_logits=3) as writer:
        writer.write(**part(arrays, 0, 2), lengths=[6, 4])
        writer.write(**part(arrays, 2, 5))
    dump = Dump(tmp_path / "d")
    for sample in range(5):
        length = 4 if sample == 1 else 6
        assert dump.tokens(sample).tolist() == arrays["tokens"][sample, :length].tolist()
        for layer in range(2):
            for name, values in dump.layer(sample, layer).items():
                wanted = arrays[name][layer][sample]
                wanted = wanted[:length] if name in ("context", "output") else wanted[:, :length]
                wanted = wanted[..., :length] if name == "attention" else wanted
                assert np.all(np.abs(values - wanted) <= apart * np.abs(wanted) + 1e-7), name
        logits = dump.logits(sample)
        rows = arrays["logits"][sample, :length]
        assert np.array_equal(logits["ids"], np.argsort(-rows, -1)[:, :3])
        assert np.allclose(logits["lse"], np.log(np.exp(rows).sum(-1)), atol=1e-5)
        assert np.all(np.diff(logits["values"], axis=-1) <= 0)


def test_a_killed_writer_continues_with_the_same_bytes(tmp_path):
    arrays = arrays_of(5)

    def write_all(out):
        with DumpWriter(out, **SIZES, samples_per_shard=2) as writer:
            while writer.written < 5:
                writer.write(**part(arrays, writer.written, writer.written + 1))

    write_all(tmp_path / "whole")
    stopped = DumpWriter(tmp_path / "cut", **SIZES, samples_per_shard=2)
    for sample in range(3):
        stopped.write(**part(arrays, sample, sample + 1))
    stopped.file.close()  # as a kill leaves it: one shard, one that is not complete
    os.close(stopped.lock)
    assert (tmp_path / "cut/shard-00001.h5.tmp").exists()
    again = DumpWriter(tmp_path / "cut", **SIZES, samples_per_shard=2)
    assert again.written == 2 and not (tmp_path / "cut/shard-00001.h5.tmp").exists()
    with pytest.raises(ValueError, match="another process is writing this dump"):
        DumpWriter(tmp_path / "cut", **SIZES, samples_per_shard=2)
    again.close()
    write_all(tmp_path / "cut")
    for name in ("manifest.json", "shard-00000.h5", "shard-00001.h5", "shard-00002.h5"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    (tmp_path / "cut/shard-00001.h5").write_bytes(b"damaged")
    mended = DumpWriter(tmp_path / "cut", **SIZES, samples_per_shard=2)
    assert mended.written == 2
    mended.close()
    with pytest.raises(ValueError, match=r"is of another dump: vocab is 11, not 12"):
        DumpWriter(tmp_path / "cut", **SIZES | {"vocab": 12}, samples_per_shard=2)


def test_what_brine_would_refuse(tmp_path):
    good = arrays_of(2)

    def refused(why, **changes):
        writer = DumpWriter(tmp_path / "d", **SIZES)
        with pytest.raises(ValueError, match=why):
            writer.write(**good | changes)
        writer.close()

    refused("query is missing", query=None)
    refused("attention is not of this dump", attention=good["query"])
    refused("key has 1 arrays, the dump 2 layers", key=good["key"][:1])
    cut = [c[..., : 8 - i] for i, c in enumerate(good["context"])]
    refused(r"layers/01/context is \[2, 6, 7\], must be \[2, 6, 8\]", context=cut)
    refused("layers/00/output has a number that is not finite", output=[np.full((2, 6, 8), np.nan)] * 2)
    refused("has the number 1e\\+06, f16 ends at 65504", output=[np.full((2, 6, 8), 1e6)] * 2)
    refused("tokens must be integers from 0 to 10", tokens=good["tokens"] + 11)
    refused("lengths must be from 1 to 6", lengths=[0, 6])
    refused("logits are missing", logits=None)
    top = np.zeros((2, 6, 11)), np.zeros((2, 6, 11), int), np.ones((2, 6))
    refused("logits/ids must be from 0 to 10", logits=(top[0], top[1] + 11, top[2]))
    refused("logits/values are not in descending order", logits=(top[0] + np.arange(11), *top[1:]))
    (tmp_path / "x").mkdir()
    (tmp_path / "x/shard-00000.h5").write_bytes(b"of another program")
    with pytest.raises(ValueError, match="has shard-00000.h5 but no manifest.json"):
        DumpWriter(tmp_path / "x", **SIZES)
    writer = DumpWriter(tmp_path / "m", **SIZES, content="maps", top_logits=0, context=False, output=False)
    with pytest.raises(ValueError, match="rows of the attention of layer 0 do not sum to 1"):
        writer.write(attention=[np.ones((2, 2, 6, 6))] * 2, tokens=good["tokens"])
    writer.close()
    with pytest.raises(ValueError, match="5 of 5 samples are missing"), DumpWriter(tmp_path / "e", **SIZES):
        pass
    with pytest.raises(ValueError, match="dtype is 'f64', known are f32, f16, bf16"):
        DumpWriter(tmp_path / "f", **SIZES, dtype="f64")


# ---- models of transformers

transformers = pytest.importorskip("transformers")
torch = pytest.importorskip("torch")
from brine_sea import dump, teacher_hash  # noqa: E402

COMMON = dict(vocab_size=64, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=64)
GROUPED = COMMON | dict(intermediate_size=48, num_key_value_heads=2)
FAMILIES = {
    "LlamaConfig": GROUPED,
    "MistralConfig": GROUPED,
    "Qwen2Config": GROUPED,
    "Qwen3Config": GROUPED | dict(head_dim=8),
    "Gemma2Config": GROUPED | dict(head_dim=8, query_pre_attn_scalar=20, attn_logit_softcapping=None),
    "Phi3Config": GROUPED | dict(pad_token_id=0),
    "Olmo2Config": GROUPED,
    "GPTNeoXConfig": COMMON | dict(intermediate_size=48),
    "OPTConfig": COMMON | dict(ffn_dim=48, word_embed_proj_dim=32),
    "GPT2Config": dict(vocab_size=64, n_embd=32, n_layer=3, n_head=4, n_positions=64),
    "BertConfig": COMMON | dict(intermediate_size=48),
}
# The norm behind the last layer, which its output does not have.
NORMS = ("model.norm", "gpt_neox.final_layer_norm", "model.decoder.final_layer_norm", "transformer.ln_f")


class Words:
    """A tokenizer of letters."""

    def __call__(self, text, **options):
        return {"input_ids": [ord(c) % 64 for c in text][: options.get("max_length", len(text))]}


def make(name):
    torch.manual_seed(0)
    config = getattr(transformers, name)(**FAMILIES[name])
    kind = transformers.AutoModelForMaskedLM if name == "BertConfig" else transformers.AutoModelForCausalLM
    return kind.from_config(config, attn_implementation="eager").eval()


@pytest.mark.parametrize("name", FAMILIES)
@torch.no_grad()
def test_a_dump_has_what_the_model_computes(name, tmp_path):
    model, text = make(name), "the quick brown fox jumps over the lazy dog, " * 4
    dump(model, Words(), text, tmp_path / "d", length=20, dtype="f32", top_logits=5, batch_size=3, progress=False)
    assert model.config._attn_implementation == "eager" and not hasattr(model, "brine_sea_tap")
    found = Dump(tmp_path / "d")
    assert found.manifest["samples"] == len(text) // 20 and found.manifest["teacher_hash"] == teacher_hash(model)
    assert found.manifest["causal"] == (name != "BertConfig")
    ids = torch.tensor(np.stack([found.tokens(s) for s in range(found.manifest["samples"])]).astype(np.int64))
    wanted = model(ids, output_hidden_states=True, output_attentions=True)
    norms = [model.get_submodule(n) for n in NORMS if n in dict(model.named_modules())]
    for sample in range(len(ids)):
        for layer in range(3):
            got = {k: torch.tensor(v) for k, v in found.layer(sample, layer).items()}
            scores = got["query"] @ got["key"].transpose(-1, -2) / 8**0.5
            if name != "BertConfig":
                scores = scores.masked_fill(torch.ones_like(scores, dtype=torch.bool).triu(1), -torch.inf)
            assert torch.allclose(scores.softmax(-1), wanted.attentions[layer][sample], atol=1e-5)
            output = got["output"]
            if layer == 2 and norms:
                output = norms[0](output)
            assert torch.allclose(output, wanted.hidden_states[layer + 1][sample], atol=1e-5)
        logits = {k: torch.tensor(v) for k, v in found.logits(sample).items()}
        assert torch.allclose(logits["lse"], wanted.logits[sample].logsumexp(-1), atol=1e-5)
        assert torch.equal(logits["ids"].long(), wanted.logits[sample].topk(5, -1).indices)


@pytest.mark.parametrize("name", ["LlamaConfig", "BertConfig", "sliding"])
@torch.no_grad()
def test_texts_of_their_own_lengths(name, tmp_path):
    texts = ["a short one", "one that is quite a bit longer", "x"]
    if name == "sliding":
        made = transformers.MistralConfig(**GROUPED | dict(sliding_window=4))
        model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager").eval()
    else:
        model = make(name)
    dump(model, Words(), texts, tmp_path / "d", windows=False, content="maps", dtype="f32", progress=False)
    found = Dump(tmp_path / "d")
    for sample, text in enumerate(texts):
        ids = torch.tensor([Words()(text)["input_ids"]])
        assert found.tokens(sample).tolist() == ids[0].tolist()
        wanted = model(ids, output_attentions=True)
        for layer in range(3):
            maps = torch.tensor(found.layer(sample, layer)["attention"])
            assert torch.allclose(maps, wanted.attentions[layer][0], atol=1e-5)


@torch.no_grad()
def test_a_killed_dump_continues_and_knows_its_samples(tmp_path, monkeypatch):
    model, text = make("LlamaConfig").bfloat16(), "the quick brown fox jumps over the lazy dog, " * 4
    model.train()
    model.lm_head.eval()

    def dumped(out, of=text, **more):
        dump(model, Words(), of, out, length=20, batch_size=3, samples_per_shard=2, progress=False, **more)

    dumped(tmp_path / "whole")
    assert model.training and not model.lm_head.training
    written = DumpWriter.write

    def killed(self, **arrays):
        if self.written == 3:
            raise KeyboardInterrupt
        written(self, **arrays)

    monkeypatch.setattr(DumpWriter, "write", killed)
    with pytest.raises(KeyboardInterrupt):
        dumped(tmp_path / "cut")
    monkeypatch.undo()
    with pytest.raises(ValueError, match="its sample 0 has other tokens"):
        dumped(tmp_path / "cut", text.upper())
    dumped(tmp_path / "cut")
    whole, cut = Dump(tmp_path / "whole"), Dump(tmp_path / "cut")
    for sample in range(whole.manifest["samples"]):
        assert np.array_equal(whole.layer(sample, 2)["query"], cut.layer(sample, 2)["query"])
    with pytest.raises(ValueError, match="has a number|ends at 65504"):
        model.model.layers[1].mlp.down_proj.weight.mul_(1e20)
        dumped(tmp_path / "huge")
    dumped(tmp_path / "huge", dtype="bf16", output=False, context=False)


@torch.no_grad()
def test_a_layer_that_is_used_several_times(tmp_path):
    config = transformers.AlbertConfig(**COMMON | dict(intermediate_size=48, embedding_size=16))
    torch.manual_seed(0)
    model = transformers.AutoModelForMaskedLM.from_config(config, attn_implementation="eager").eval()
    dump(model, Words(), "x y z " * 10, tmp_path / "d", length=12, dtype="f32", progress=False)
    found = Dump(tmp_path / "d")
    ids = torch.tensor(found.tokens(1)[None].astype(np.int64))
    wanted = model(ids, output_hidden_states=True).hidden_states
    for layer in range(3):
        assert torch.allclose(torch.tensor(found.layer(1, layer)["output"]), wanted[layer + 1][0], atol=1e-5)


def test_models_that_a_dump_cannot_hold(tmp_path):
    both = transformers.BartForConditionalGeneration(
        transformers.BartConfig(vocab_size=64, d_model=32, encoder_layers=1, decoder_layers=1)
    )
    with pytest.raises(ValueError, match="of a decoder or an encoder, this model has both"):
        dump(both, Words(), "x" * 100, tmp_path / "b", length=20, progress=False)
    wide = transformers.AutoModelForCausalLM.from_config(
        transformers.Qwen3Config(**GROUPED | dict(head_dim=16)), attn_implementation="eager"
    )
    with pytest.raises(ValueError, match="4 heads of 16 do not make up the hidden size 32"):
        dump(wide, Words(), "x" * 100, tmp_path / "d", length=20, progress=False)
    for why, made in {
        "scores have a cap": transformers.Gemma2Config(**GROUPED | dict(head_dim=8)),
        "a layer hides earlier keys": transformers.MistralConfig(**GROUPED | dict(sliding_window=8)),
    }.items():
        model = transformers.AutoModelForCausalLM.from_config(made, attn_implementation="eager")
        with pytest.raises(ValueError, match=f"{why}.*content='maps' is possible"):
            dump(model, Words(), "x" * 100, tmp_path / "c", length=20, progress=False)
        dump(model, Words(), "x" * 100, tmp_path / why, length=20, content="maps", dtype="f32", progress=False)
        with torch.no_grad():
            wanted = model.eval()(torch.full((1, 20), ord("x") % 64), output_attentions=True).attentions
        for layer in range(3):
            maps = torch.tensor(Dump(tmp_path / why).layer(0, layer)["attention"])
            assert torch.allclose(maps, wanted[layer][0], atol=1e-5)
    other = transformers.AutoModelForCausalLM.from_config(
        transformers.MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2)
    )
    with pytest.raises(ValueError, match="does not go through transformers' attention interface"):
        dump(other, Words(), "x" * 100, tmp_path / "e", length=20, progress=False)
    with pytest.raises(ValueError, match="have 10 tokens, not even a window of 20"):
        dump(make("LlamaConfig"), Words(), "x" * 10, tmp_path / "f", length=20, progress=False)
