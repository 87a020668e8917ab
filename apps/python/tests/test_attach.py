"""Blocks in live models of transformers, against attention with a mask of T x T in plain PyTorch."""

import copy
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from rows import Results
from safetensors.torch import load_file, save_file
from students import (
    BLOCKS,
    LIGHT,
    SIZES,
    VOCABULARY,
    batch,
    check_generation,
    check_lookup,
    close,
    dense_class,
    left_padded,
    logits,
    read,
)
from students import make as make_student
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

import brine_sea
from brine_sea import attached
from brine_sea.columns_brine_sea import column_begins
from brine_sea.configuration_brine_sea import is_of_block

COMMON = SIZES["llama"] | dict(pad_token_id=0)
WINDOW = 8
OF_GEMMA = dict(head_dim=16, query_pre_attn_scalar=20, sliding_window=WINDOW)
MODELS = {
    "llama": ("LlamaConfig", COMMON),
    "qwen3": ("Qwen3Config", COMMON | dict(head_dim=8)),
    "opt": ("OPTConfig", SIZES["opt"]),
    "gpt2": ("GPT2Config", SIZES["gpt2"]),
    "bert": ("BertConfig", SIZES["bert"]),
    "gemma3": (
        "Gemma3TextConfig",
        COMMON | OF_GEMMA | dict(num_hidden_layers=3, layer_types=["sliding_attention", *["full_attention"] * 2]),
    ),
    "phi3": ("Phi3Config", COMMON),
    "gpt_neox": ("GPTNeoXConfig", SIZES["bert"]),
    "olmo2": ("Olmo2Config", COMMON),
}
LAYERS = {"gemma3": [1, 2]}
DECODERS = [name for name in MODELS if name != "bert"]
EACH = [
    (name, settings) for name in MODELS for settings in ("light", "blocks") if (name, settings) != ("bert", "blocks")
]
OF = {"light": LIGHT, "blocks": BLOCKS}
each_model = pytest.mark.parametrize("family, settings", EACH)
each_decoder = pytest.mark.parametrize("family, settings", [x for x in EACH if x[0] != "bert"])


def dense(family, attention="sdpa", **changes):
    """A small random model, in evaluation."""
    torch.manual_seed(7)
    name, sizes = MODELS[family]
    spread = {} if family == "opt" else dict(initializer_range=0.2)
    config = getattr(transformers, name)(**{"vocab_size": VOCABULARY} | sizes | spread | changes)
    kind = transformers.AutoModelForMaskedLM if family == "bert" else transformers.AutoModelForCausalLM
    model = kind.from_config(config, attn_implementation=attention).eval()
    if family != "bert":
        model.generation_config.eos_token_id = None
    return model


def shaken(model, by=0.3):
    """The model, with other numbers in its blocks."""
    torch.manual_seed(13)
    with torch.no_grad():
        for p in brine_sea.blocks(model).parameters():
            p.add_(torch.randn_like(p), alpha=by)
    return model


def make(family, settings, attention="sdpa", **changes):
    return shaken(brine_sea.attach(dense(family, attention), OF[settings] | changes))


# ---- the reference


def seen_keys(block, widths):
    """Which keys the rows of the last call see, of what the block chose: bits [B, H, T, T]."""
    captured, tokens, n = block.capture, len(widths), block.shape.heads // block.shape.groups
    if "kept" in captured:
        kept = captured["kept"].repeat_interleave(block.settings.block, -1)[..., :tokens]
        return kept.repeat_interleave(n, 1).tril()
    seen = torch.zeros(*captured["selected"].shape[:3], tokens, dtype=torch.bool)
    for t, width in enumerate(widths.tolist()):
        begins = column_begins(torch.tensor(width), block.settings.columns).tolist()
        for c, (a, b) in enumerate(zip(begins, begins[1:], strict=False)):
            assert b - a <= block.k  # else a column gives some of its keys only
            seen[:, :, t, a:b] = captured["selected"][:, :, t, c, None]
    return seen


def averages(block, v, causal):
    """What the second gate adds, of v [B, H, T, d]."""
    tokens = v.shape[2]
    if causal:
        return torch.stack([v[:, :, : t + 1].mean(2) for t in range(tokens)], 2)
    share = block.capture["estimate"].sum(2)  # [B, H, K]
    begins = column_begins(torch.tensor(tokens), block.settings.columns).tolist()
    sizes = torch.tensor([b - a for a, b in zip(begins, begins[1:], strict=False)])
    sums = torch.stack([v[:, :, a:b].sum(2) for a, b in zip(begins, begins[1:], strict=False)], 2)
    mean = (share[..., None] * sums).sum(2) / (share * sizes).sum(-1)[..., None]
    return mean[:, :, None]


def reference(module, q, k, v, mask, scaling=None, is_causal=None, **given):
    """Attention with a mask of T x T: of a layer with a block of what it chose."""
    block, tokens, d = module.__dict__.get("of_reference"), q.shape[2], q.shape[3]
    scaling = d**-0.5 if scaling is None else scaling
    n, causal = q.shape[1] // k.shape[1], getattr(module, "is_causal", True)
    keys, values = k.repeat_interleave(n, 1), v.repeat_interleave(n, 1)
    scores = q @ keys.transpose(-1, -2) * scaling
    widths = torch.arange(1, tokens + 1) if causal else torch.full((tokens,), tokens)
    if block is None:
        seen = mask if mask is not None else torch.arange(tokens) < widths[:, None]
        return (scores.masked_fill(~seen, -math.inf).softmax(-1) @ values).transpose(1, 2).contiguous(), None
    block.capture = {}
    with torch.no_grad():
        block(q * (scaling * math.sqrt(d)), k, v)
    seen = seen_keys(block, widths)
    assert not seen.all(-1)[:, :, -1].any()  # not all keys
    shares = scores.masked_fill(~seen, -math.inf).softmax(-1)
    y = shares.masked_fill(~seen, 0) @ values  # 0 for a head without a key: heads share the number of columns
    if "kept" not in block.capture:
        prob, mix = block.gates.sigmoid()[None, :, None].split(1, -1)
        y = mix * prob * y + (1 - mix) * averages(block, values, causal)
    block.capture = None
    return y.transpose(1, 2).contiguous(), None


AttentionInterface.register("of_reference", reference)
AttentionMaskInterface.register("of_reference", sdpa_mask)


@torch.no_grad()
def by_reference(model, ids):
    """The logits of a model with blocks, by the reference."""
    plain = copy.deepcopy(model)
    modules, found = attached.state_of(plain).modules, list(brine_sea.blocks(plain))
    brine_sea.detach(plain)
    for module, block in zip(modules, found, strict=True):
        module.__dict__["of_reference"] = block
    plain.config._attn_implementation = "of_reference"
    return plain(input_ids=ids).logits


def perplexity(of_tokens, ids):
    return float(torch.nn.functional.cross_entropy(of_tokens[:, :-1].flatten(0, 1), ids[:, 1:].flatten()).exp())


@each_model
def test_perplexity_is_that_of_a_reference(family, settings):
    model, ids = make(family, settings), batch(2, 60)
    wanted, got = by_reference(model, ids), logits(model, ids)
    assert close(got, wanted, 1e-4)
    assert perplexity(got, ids) == pytest.approx(perplexity(wanted, ids), rel=1e-5)
    assert not close(got, logits(dense(family), ids), 1e-2)


@pytest.mark.parametrize("family", MODELS)
def test_all_keys_of_columns_are_the_dense_model(family):
    model = brine_sea.attach(dense(family), LIGHT | dict(k=64, columns=64, gate_bias=60.0, prior="none"))
    ids = batch(2, 60)
    assert close(logits(model, ids), logits(dense(family), ids), 2e-5)


@each_model
def test_detach_gives_the_dense_model_back(family, settings, refused):
    model, ids = dense(family), batch()
    before, names = logits(model, ids), set(model.state_dict())
    sparse = logits(shaken(brine_sea.attach(model, OF[settings])), ids)
    assert not close(sparse, before, 1e-3) and set(model.state_dict()) == names
    other = copy.deepcopy(model)
    assert torch.equal(logits(other, ids), sparse)
    assert brine_sea.detach(model) is model
    assert torch.equal(logits(model, ids), before) and torch.equal(logits(other, ids), sparse)
    assert model.config._attn_implementation == "sdpa"
    assert not any(m._forward_pre_hooks or any("brine" in key for key in m.__dict__) for m in model.modules())
    refused("^brine: the model has no blocks, attach\\(\\) them first$", brine_sea.detach, model)
    assert torch.equal(logits(brine_sea.detach(other), ids), before)


@torch.no_grad()
def test_blocks_calibrate_by_the_first_prompt(tmp_path):
    model, ids = brine_sea.attach(dense("llama"), BLOCKS), batch(2, 42)
    assert all(bool((block.key_scale == 1).all()) for block in brine_sea.blocks(model))
    logits(model, ids[:, :3])  # no complete block
    brine_sea.save(model, tmp_path / "early")
    first = logits(model, ids)
    assert torch.equal(logits(brine_sea.attach(dense("llama"), tmp_path / "early"), ids), first)
    scales = [block.key_scale.clone() for block in brine_sea.blocks(model)]
    assert all(bool((x != 1).all()) for x in scales)
    assert torch.equal(logits(model, ids), first)
    logits(model, batch(1, 60))
    assert all(torch.equal(x, block.key_scale) for x, block in zip(scales, brine_sea.blocks(model), strict=True))
    brine_sea.save(model, tmp_path / "b")
    assert torch.equal(logits(brine_sea.attach(dense("llama"), tmp_path / "b"), ids), first)


@each_decoder
def test_generation_with_a_cache(family, settings):
    check_generation(make(family, settings))


@pytest.mark.parametrize("family", ["olmo2", "gemma3"])
@pytest.mark.parametrize("settings", ["light", "blocks"])
def test_lookup_decoding_cuts_the_cache(family, settings):
    check_lookup(make(family, settings))


@each_decoder
def test_pieces_equal_the_whole(family, settings):
    model, ids = make(family, settings), batch(2, 40)
    cache = transformers.DynamicCache(config=model.config)
    assert close(read(model, ids, [20, 21, 29, *range(30, 41)], cache=cache), logits(model, ids), 2e-5)


@each_model
@pytest.mark.parametrize("side", ["left", "right"])
def test_padding(family, settings, side):
    changes = {"mode": "per-query"} if family == "bert" else {}  # the mode of other queries depends on them
    model, ids = make(family, settings, **changes), batch(1, 30)
    plain = logits(model, ids)
    columns = slice(10, 40) if side == "left" else slice(0, 30)
    wide, mask, positions = torch.full((2, 40), 5), torch.zeros(2, 40, dtype=torch.long), torch.zeros(2, 40).long()
    wide[1], mask[1], positions[1] = batch(1, 40), 1, torch.arange(40)
    wide[0, columns], mask[0, columns], positions[0, columns] = ids[0], 1, torch.arange(30)
    got = logits(model, wide, mask, position_ids=positions)
    assert close(got[0, columns], plain[0], 2e-5)
    assert close(got[1], logits(model, wide[1:])[0], 2e-5)


@each_decoder
def test_gradients(family, settings):
    model, ids = make(family, settings).train(), batch()
    model(input_ids=ids, labels=ids).loss.backward()
    assert not [name for name, p in model.named_parameters() if p.grad is None]
    assert all(p.grad.abs().max() > 0 for n, p in brine_sea.blocks(model).named_parameters() if "gates" in n)
    found = [p.grad for p in model.parameters()]
    model.zero_grad()
    model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert all(close(a, p.grad, 1e-5) for a, p in zip(found, model.parameters(), strict=True))


def write_blocks(student, directory, **changes):
    """The blocks of a student as a directory of blocks."""
    tensors = {f"layers.{i}.{n}": x for i, b in enumerate(student.sea_blocks()) for n, x in b.state_dict().items()}
    config = student.config
    directory.mkdir()
    save_file(tensors, directory / "model.safetensors")
    heads = config.num_attention_heads
    sizes = {
        "model_type": "brine_blocks",
        "brine": config.brine,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": heads,
        "num_key_value_heads": getattr(config, "num_key_value_heads", heads),
        "head_dim": config.hidden_size // heads,
        "max_position_embeddings": config.max_position_embeddings,
        "causal": True,
        "teacher_hash": "none",
    }
    (directory / "config.json").write_text(json.dumps(sizes | changes))
    return directory


@pytest.mark.parametrize("family", ["llama", "qwen3", "opt", "gpt2"])
@pytest.mark.parametrize("settings", ["light", "blocks"])
def test_agrees_with_the_student(family, settings, tmp_path):
    # Features of q and k before their rotation are of exported students only.
    prior = {"prior": "none"} if family in ("llama", "qwen3") and settings == "light" else {}
    student = make_student(family, OF[settings] | prior)
    stock = dense_class(student)(copy.deepcopy(student.config)).eval()
    stock.load_state_dict({k: v for k, v in student.state_dict().items() if not is_of_block(k)})
    stock.config._attn_implementation = "sdpa"
    model = brine_sea.attach(stock, write_blocks(student, tmp_path / "b"))
    ids, mask = batch(2, 60), torch.ones(2, 60, dtype=torch.long)
    assert torch.equal(logits(model, ids), logits(student, ids))
    mask[1, 50:] = 0
    assert torch.equal(logits(model, ids, mask)[mask.bool()], logits(student, ids, mask)[mask.bool()])
    options = dict(max_new_tokens=8, do_sample=False, eos_token_id=None)
    assert torch.equal(model.generate(ids, **options), student.generate(ids, **options))


@pytest.mark.parametrize("family", ["gemma3", "opt", "bert"])
def test_what_was_saved_is_loaded(family, tmp_path, refused):
    model, ids = make(family, "light"), batch()
    wanted, plain = logits(model, ids), logits(dense(family), ids)
    brine_sea.save(model, tmp_path / "blocks")
    config = json.loads((tmp_path / "blocks/config.json").read_text())
    assert config.get("layers") == LAYERS.get(family) and config["num_hidden_layers"] == 2
    assert config["brine"]["attention"]["k"] == LIGHT["k"] and config["causal"] == (family != "bert")
    again = brine_sea.attach(dense(family), tmp_path / "blocks")
    assert torch.equal(logits(again, ids), wanted)
    brine_sea.save(model, tmp_path / "both", base=True)
    assert "brine" not in (tmp_path / "both/config.json").read_text()
    stock = type(model).from_pretrained(tmp_path / "both").eval()
    assert close(logits(stock, ids), plain, 1e-6)
    loaded = brine_sea.load(tmp_path / "both")
    assert close(logits(loaded, ids), wanted, 1e-6)
    save_file({}, tmp_path / "both/model.safetensors", {"format": "pt"})
    refused(r"both has no tensors (\S+, ){2}\S+ and \d+ more; write it again$", brine_sea.load, tmp_path / "both")
    # Some of a directory's layers, and those again.
    last = LAYERS.get(family, [0, 1])[-1]
    some = brine_sea.attach(dense(family), tmp_path / "blocks", layers=[last])
    brine_sea.save(some, tmp_path / "some")
    assert set(load_file(tmp_path / "some/model.safetensors")) == {
        name.replace("layers.1.", "layers.0.")
        for name in load_file(tmp_path / "blocks/model.safetensors")
        if ".1." in name
    }
    again = brine_sea.attach(dense(family), tmp_path / "some")
    assert torch.equal(logits(again, ids), logits(some, ids)) and not close(logits(some, ids), wanted, 1e-3)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family, layers", [("llama", [1]), ("gemma3", [2]), ("gemma3", None)])
def test_other_layers_stay_dense(family, layers, attention):
    model, (ids, mask) = dense(family, attention), left_padded(2, 30, 7)
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    plain = logits(model, ids, mask, position_ids=positions)
    brine_sea.attach(model, LIGHT | dict(k=64, gate_bias=60.0, columns=64, prior="none"), layers)
    got = logits(model, ids, mask, position_ids=positions)
    assert close(got[mask.bool()], plain[mask.bool()], 2e-5)
    assert brine_sea.layers(model) == (layers or LAYERS[family])
    name = model.config._attn_implementation
    assert ("windowed" if layers is None else "any") in name
    shaken(model)
    options = dict(max_new_tokens=12, do_sample=False, pad_token_id=0)
    with_cache = model.generate(ids, attention_mask=mask, **options)
    assert torch.equal(with_cache, model.generate(ids, attention_mask=mask, use_cache=False, **options))


def test_no_mask_of_all_pairs_if_every_layer_has_a_block():
    model, (ids, mask) = make("olmo2", "blocks"), left_padded(1, 120, 1)
    with Results() as results:
        logits(model, ids, mask)
    assert not [shape for shape in results.shapes if tuple(shape[-2:]) == (120, 120)]


def test_layers_with_a_window(refused):
    model, ids, long = dense("gemma3"), batch(1, WINDOW - 2), batch(2, WINDOW + 1)
    brine_sea.attach(model, BLOCKS, layers=[0, 1, 2])
    assert torch.isfinite(logits(model, batch(2, WINDOW))).all()
    refused(f"layer 0 has a sliding window of {WINDOW} keys, the sequence has 9 tokens", logits, model, long)
    options = dict(do_sample=False, pad_token_id=0)
    assert model.generate(ids, max_new_tokens=3, **options).shape == (1, WINDOW + 1)
    refused("the sequence has 9 tokens", model.generate, ids, max_new_tokens=4, **options)


def test_16_bits_and_new_numbers_of_keys(tmp_path, refused):
    model, ids = make("phi3", "blocks").bfloat16(), batch()
    assert logits(model, ids).dtype == torch.bfloat16
    assert all(p.dtype == torch.float32 for p in brine_sea.blocks(model).buffers())
    before = logits(model, ids)
    for block in brine_sea.blocks(model):
        block.k = 12
    assert not torch.equal(logits(model, ids), before)
    brine_sea.save(model, tmp_path / "b")
    brine_sea.attach(brine_sea.detach(model), tmp_path / "b")
    assert [block.k for block in brine_sea.blocks(model)] == [12, 12]
    next(iter(brine_sea.blocks(model))).k = 16
    refused("several k", brine_sea.save, model, tmp_path / "c")


def test_what_is_refused(tmp_path, refused):
    def says(why, call, *args, **given):
        refused("^brine: .*" + re.escape(why), call, *args, **given)

    model, ids = make("llama", "blocks"), batch()
    says("the model has blocks already", brine_sea.attach, model, BLOCKS)
    whole, both = tmp_path / "whole", tmp_path / "both"
    model.save_pretrained(whole)
    before = (whole / "model.safetensors").read_bytes()
    for base, fits in ((False, f"another directory, such as {whole}/blocks"), (True, "another directory")):
        says(f"{whole} has a model already (config.json); give {fits}", brine_sea.save, model, whole, base)
        for _ in range(2):
            brine_sea.save(model, both / str(base), base)
        says("has a model already", brine_sea.save, model, both / str(base), not base)
    assert (whole / "model.safetensors").read_bytes() == before
    (whole / "config.json").unlink()
    says("has a model already (model.safetensors)", brine_sea.save, model, whole)
    says("130 tokens, but the model has 128 positions", logits, model, batch(1, 130))
    half = torch.ones(2, 1, 40, 40, dtype=torch.bool).tril().triu(-5)
    says("attention_mask must be [B, S]", logits, model, ids, half)
    packed = torch.arange(40).remainder(20)[None]
    says("not several sequences in one row", logits, model, ids, position_ids=packed, use_cache=False)
    student = make_student("llama", BLOCKS)
    says("is a student of Brine", brine_sea.attach, student, BLOCKS)
    says("the cache has dropped the first tokens of layer 1", cached_in_parts, model, ids)

    good = write_blocks(student, tmp_path / "good")
    for family, why in (
        ("gpt2", "good has num_key_value_heads 2, layer 0 of the model 4"),
        ("gemma3", "good has blocks of 2 layers, the model has 3 with attention"),
        ("bert", "good has num_key_value_heads 2, layer 0 of the model 4"),
    ):
        says(why, brine_sea.attach, dense(family), good)
    says("has head_dim 8, layer 0 of the model 16", brine_sea.attach, dense("qwen3", head_dim=16), good)
    says("blocks is for causal models", brine_sea.attach, dense("bert"), BLOCKS)
    says("has no layer 5 with attention, its layers are 0, 1", brine_sea.attach, dense("llama"), good, [5])
    for k, of in ((2.5, BLOCKS), (2.5, LIGHT), ("32", BLOCKS), ("32", LIGHT)):
        says(f"k is {k!r}, must be an integer", brine_sea.attach, dense("llama"), of | {"k": k})
    says("layers is empty", brine_sea.attach, dense("llama"), BLOCKS, [])
    says("unknown settings of attention: speed", brine_sea.attach, dense("llama"), {"speed": 3})
    says("has no config.json", brine_sea.attach, dense("llama"), tmp_path)
    student.save_pretrained(tmp_path / "student")
    says("is of model_type 'llama'", brine_sea.attach, dense("llama"), tmp_path / "student")
    capped = transformers.AutoModelForCausalLM.from_config(transformers.Gemma2Config(**COMMON | dict(head_dim=8)))
    says("scores of layer 1 have a cap", brine_sea.attach, capped, BLOCKS)
    says("this model has both", brine_sea.attach, transformers.T5Model(transformers.T5Config()), BLOCKS)

    def changed(**changes):
        tensors = load_file(good / "model.safetensors")
        for key, x in changes.items():
            tensors.pop(key.replace("__", "."), None)
            tensors |= {} if x is None else {key.replace("__", "."): x}
        save_file(tensors, tmp_path / "bad/model.safetensors")
        return brine_sea.attach(dense("llama"), tmp_path / "bad")

    write_blocks(student, tmp_path / "bad")
    says("bad has no tensor layers.1.key_scale", changed, layers__1__key_scale=None)
    says("layers.1.key_scale is [2, 2], must be [2, 8]", changed, layers__1__key_scale=torch.ones(2, 2))
    for bad, why in ((0.0, "must be positive"), (math.nan, "has a number"), (math.inf, "has a number")):
        says(f"layers.0.key_scale {why}", changed, layers__0__key_scale=torch.full((2, 8), bad))
    says("has the tensor layers.0.x, which", changed, layers__0__x=torch.zeros(2))
    (tmp_path / "bad/model.safetensors").write_bytes(b"x" * 30)
    says("bad/model.safetensors: ", brine_sea.attach, dense("llama"), tmp_path / "bad")
    for text, why in ((b"{", "not JSON"), (b"\xff", "not JSON"), (b"[]", "must be an object")):
        (tmp_path / "bad/config.json").write_bytes(text)
        says(f"bad/config.json: {why}", brine_sea.attach, dense("llama"), tmp_path / "bad")
    (tmp_path / "bad/config.json").write_text('{"model_type": "brine_blocks"}')
    says("bad/config.json: has no brine", brine_sea.attach, dense("llama"), tmp_path / "bad")
    brine_sea.save(model, whole / "blocks")
    says("has a model already", brine_sea.save, model, whole, True)  # beside blocks, not written with them
    assert brine_sea.attach(dense("llama"), good) is not None  # nothing of the above stays


def test_blocks_of_layers_in_another_order(tmp_path):
    model = make("llama", "blocks")
    for block, k in zip(brine_sea.blocks(model), (3.0, 2.0), strict=True):
        block.key_scale.fill_(k)
    brine_sea.save(model, tmp_path / "a", base=True)
    path = tmp_path / "a/blocks/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"layers": [1, 0]}))
    swapped, report = brine_sea.load(tmp_path / "a", output_loading_info=True)
    assert not report["missing_keys"]
    brine_sea.save(swapped, tmp_path / "b", base=True)
    for each in (swapped, brine_sea.load(tmp_path / "b")):
        assert [float(block.key_scale[0, 0]) for block in brine_sea.blocks(each)] == [2, 3]


def test_a_preset_gives_the_settings_of_the_program():
    settings = brine_sea.blocks(brine_sea.attach(dense("llama"), {"method": "sea", "preset": "light"}))[0].settings
    assert (settings.columns, settings.decoder, settings.gates, settings.prior) == (256, "none", "head", "learned")
    assert (settings.pooled_prior, settings.prior_units, settings.gate_bias) == (True, 4, 4.0)
    other = brine_sea.attach(dense("llama"), {"method": "sea", "preset": "light", "columns": 16})
    assert brine_sea.blocks(other)[0].settings.columns == 16


def cached_in_parts(model, ids):
    """Passes with a cache that drops tokens of a layer with a block, which it takes for one with a window."""
    of_cache = transformers.Gemma3TextConfig(
        num_hidden_layers=2, sliding_window=WINDOW, layer_types=["full_attention", "sliding_attention"]
    )
    read(model, ids, [10, 20, 30, 40], cache=transformers.DynamicCache(config=of_cache))


@pytest.mark.parametrize("family", ["gemma3", "phi3", "gpt_neox", "olmo2"])
def test_the_example(family):
    """From the dump to the student, with the program brine: its path is the variable BRINE."""
    if "BRINE" not in os.environ:
        pytest.skip("BRINE, the path of the program, is not set")
    package = Path(__file__).parents[1]
    command = [sys.executable, package / "examples/any_family.py", family]
    environment = os.environ | {"PYTHONPATH": str(package)}
    done = subprocess.run([*command, "--text", __file__], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = dict(
        line.split(" ", 1) for line in done.stdout.splitlines() if line.split(" ")[0] in ("dense", "calibrated")
    )
    assert float(found["calibrated"]) == pytest.approx(float(found["dense"]), rel=0.1)
    assert "generated [" in done.stdout
