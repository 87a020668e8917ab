"""Students of every family as models of transformers."""

import copy

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from safetensors.torch import load_file, save_file
from students import (
    ARCHITECTURES,
    BLOCKS,
    DECODERS,
    LIGHT,
    PAPER,
    PERFORMER,
    batch,
    check_generation,
    check_lookup,
    close,
    dense_class,
    left_padded,
    logits,
    make,
    read,
    read_config,
    section,
)

import brine_sea
from brine_sea.columns_brine_sea import hash_of
from brine_sea.modeling_brine_sea import STUDENTS

FAMILIES = [*DECODERS, "bert"]
AUTO = {name: getattr(transformers, auto) for name, (_, auto) in STUDENTS.items()}


@pytest.fixture(autouse=True, scope="session")
def code_cache(tmp_path_factory):
    """Remote code is copied below a directory of the tests, one for all: it becomes a package."""
    import transformers.dynamic_module_utils as dynamic

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dynamic, "HF_MODULES_CACHE", str(tmp_path_factory.mktemp("modules")))
        yield


@pytest.mark.parametrize("family", FAMILIES)
def test_the_directory_is_the_student_and_its_dense_base(family, tmp_path):
    model = make(family)
    model.save_pretrained(tmp_path)
    ids = batch()
    architecture = ARCHITECTURES[family]
    assert read_config(tmp_path)["architectures"] == [architecture]
    assert read_config(tmp_path)["auto_map"][STUDENTS[architecture][1]] == f"modeling_brine_sea.Sea{architecture}"
    for name in ("attention", "blocks", "columns", "configuration", "modeling"):
        assert (tmp_path / f"{name}_brine_sea.py").exists()
    student = AUTO[architecture].from_pretrained(tmp_path, trust_remote_code=True)
    assert type(student).__name__ == f"Sea{architecture}" and type(student) is not type(model)
    assert close(logits(student, ids), logits(model, ids))
    dense = AUTO[architecture].from_pretrained(tmp_path)
    assert type(dense) is dense_class(model)
    as_dense = AUTO[architecture].from_pretrained(tmp_path, trust_remote_code=True, attn_implementation="sdpa")
    assert close(logits(dense, ids), logits(as_dense, ids))
    assert not close(logits(dense, ids), logits(model, ids), 1e-2)
    assert close(logits(brine_sea.load(tmp_path), ids), logits(model, ids))


@pytest.mark.parametrize("attention, family", [*((LIGHT, x) for x in FAMILIES), *((BLOCKS, x) for x in DECODERS)])
@pytest.mark.parametrize("side", ["left", "right", "inside"])
def test_padding(family, attention, side):
    model = make(family, attention | ({"mode": "per-query"} if family == "bert" else {}))
    ids = batch(1, 30)
    plain = logits(model, ids)
    columns = {"left": range(10, 40), "right": range(30), "inside": [*range(4, 15), *range(21, 40)]}[side]
    columns, wide, mask = list(columns), torch.full((1, 40), 5), torch.zeros(1, 40, dtype=torch.long)
    positions = torch.zeros_like(mask)
    wide[0, columns], mask[0, columns], positions[0, columns] = ids[0], 1, torch.arange(30)
    # BERT counts positions of padding, too.
    inputs = {"position_ids": positions} if family == "bert" else {}
    assert close(logits(model, wide, mask, **inputs)[:, columns], plain)


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("attention", [LIGHT, PERFORMER, PAPER, BLOCKS], ids=["light", "performer", "paper", "blocks"])
def test_a_cache_changes_nothing(family, attention):
    model, (ids, mask) = make(family, attention), left_padded(padding=7)
    parts = read(model, ids, [20, 21, 29, *range(30, 41)], mask)
    assert close(parts[mask.bool()], logits(model, ids, mask)[mask.bool()])


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("attention", [LIGHT, BLOCKS], ids=["light", "blocks"])
def test_generate(family, attention):
    check_generation(make(family, attention))


@pytest.mark.parametrize("attention", [LIGHT, PERFORMER, BLOCKS], ids=["light", "performer", "blocks"])
def test_lookup_decoding_cuts_the_cache(attention):
    check_lookup(make("llama", attention))


@pytest.mark.parametrize("family", FAMILIES)
def test_gradients_reach_what_the_method_trains(family):
    model = make(family, PERFORMER if family != "bert" else PAPER).train()
    ids = batch()
    model(input_ids=ids, labels=ids).loss.backward()
    without = [name for name, p in model.named_parameters() if p.grad is None]
    base = [name for name in without if ".sea." not in name]
    assert not [name for name in base if "pooler" not in name]
    # The mask has no gradient; the average of an encoder reads the estimate.
    masked = ("nu.", "decoder.", "prior.") if family != "bert" else ()
    assert all(any(f".sea.{part}" in name for part in masked) for name in without if ".sea." in name)


@pytest.mark.parametrize("attention", [PERFORMER, BLOCKS], ids=["performer", "blocks"])
def test_checkpointing_of_layers_changes_no_gradient(attention):
    ids, gradients = batch(2, 60), []
    for checkpointing in (False, True):
        model = make("llama", attention).train()
        if checkpointing:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
        assert attention == PERFORMER or all(p.grad is not None for p in model.parameters())
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    assert all(close(a, b, 1e-6) for a, b in zip(*gradients, strict=True))


def test_classifier(tmp_path):
    model = make("bert", PAPER, "BertForSequenceClassification", num_labels=3)
    model.save_pretrained(tmp_path)
    student = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path, trust_remote_code=True)
    ids, types = batch(), torch.arange(40).expand(2, -1) // 20
    mask = torch.ones_like(ids)
    mask[0, 25:] = 0
    a = logits(model, ids, mask, token_type_ids=types)
    assert a.shape == (2, 3) and close(a, logits(student, ids, mask, token_type_ids=types))
    assert close(a[:1], logits(model, ids[:1, :25], token_type_ids=types[:1, :25]))


def test_adapter_over_its_base(tmp_path, refused):
    model = make("opt")
    base, adapter = tmp_path / "base", tmp_path / "adapter"
    dense = dense_class(model)(
        transformers.OPTConfig(**{k: v for k, v in model.config.to_dict().items() if k not in ("brine", "auto_map")})
    )
    dense.load_state_dict({k: v for k, v in model.state_dict().items() if ".sea." not in k})
    dense.save_pretrained(base)
    model.config.base_model = "../base"
    model.config.brine["base_hash"] = hash_of(load_file(base / "model.safetensors"))
    model.save_pretrained(adapter)
    tensors = {k: v for k, v in load_file(adapter / "model.safetensors").items() if ".sea." in k}
    save_file(tensors, adapter / "model.safetensors", {"format": "pt"})
    student = transformers.AutoModelForCausalLM.from_pretrained(adapter, trust_remote_code=True)
    ids = batch()
    assert close(logits(student, ids), logits(model, ids))
    student.save_pretrained(tmp_path / "whole")
    saved = read_config(tmp_path / "whole")
    assert "base_model" not in saved and "base_hash" not in saved["brine"]
    assert close(logits(brine_sea.load(tmp_path / "whole"), ids), logits(model, ids))
    changed = load_file(base / "model.safetensors")
    changed["model.decoder.layers.0.fc1.bias"][3] += 1
    save_file(changed, base / "model.safetensors", {"format": "pt"})
    refused("not those that the adapter was made for", brine_sea.load, adapter)


@pytest.mark.parametrize("name", ["sea.gates", "q_proj.weight"])
def test_files_without_a_tensor_are_refused(name, tmp_path, refused):
    model, name = make("llama"), f"model.layers.1.self_attn.{name}"
    model.save_pretrained(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    del tensors[name]
    save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
    auto = transformers.AutoModelForCausalLM.from_pretrained
    for load in (brine_sea.load, lambda path: auto(path, trust_remote_code=True)):
        refused(f"has no tensors {name}; write it again", load, tmp_path)
    (tmp_path / "adapter_config.json").write_text("{}")
    refused("is a PEFT adapter, not a model", brine_sea.load, tmp_path)


def test_other_settings_at_run_time(refused):
    model = make("llama")
    ids = batch()
    more = make("llama", LIGHT | {"k": 20})
    model.set_sea(k=20)
    assert close(logits(model, ids), logits(more, ids))
    refused("k is 0", model.set_sea, k=0)


def test_a_student_with_blocks(tmp_path, refused):
    model = make("llama", BLOCKS)
    model.save_pretrained(tmp_path)
    ids = batch(2, 60)
    plain = logits(model, ids)
    student = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, trust_remote_code=True)
    names = {name for name in load_file(tmp_path / "model.safetensors") if ".blocks." in name}
    assert names == {f"model.layers.{i}.self_attn.blocks.key_scale" for i in (0, 1)}
    assert close(logits(student, ids), plain)
    model.set_sea(k=24)
    assert not close(logits(model, ids), plain, 1e-3)
    assert close(logits(make("llama", BLOCKS | {"k": 24}), ids), logits(model, ids))
    for change, message in (
        ({"query_skip": 2}, "is of attention sea"),
        ({"backend": "other"}, "backend is 'other', known are tiles, flex"),
        ({"k": 28}, "candidates is 3, k = 28 chooses 4 blocks"),
        ({"k": 580}, "k is 580, the model has 128 positions: at most 576"),
    ):
        refused(message, model.set_sea, **change)
    refused("a backend is of attention blocks", make("llama").set_sea, backend="flex")
    tensors = load_file(tmp_path / "model.safetensors")
    for bad in (0.0, float("nan")):
        tensors["model.layers.1.self_attn.blocks.key_scale"][1, 2] = bad
        save_file(tensors, tmp_path / "model.safetensors", {"format": "pt"})
        refused("layers.1.self_attn.blocks.key_scale must be positive and finite", brine_sea.load, tmp_path)


def test_defaults_of_blocks():
    settings = next(make("llama", {"method": "blocks"}, max_position_embeddings=600).sea_blocks()).settings
    names = ("k", "chosen", "block", "tile", "sinks", "local", "candidates", "columns")
    assert [getattr(settings, name) for name in names] == [576, 15, 32, 32, 1, 1, 96, 1024]
    short = make("llama", {"method": "blocks"})  # all keys of its 128 positions are kept
    kept = logits(short, batch(1, 128))
    short.config._attn_implementation = "sdpa"
    assert close(kept, logits(short, batch(1, 128)))
    check_generation(make("llama", {"method": "blocks"}))


@pytest.mark.parametrize("attention", [LIGHT, PERFORMER, PAPER], ids=["light", "performer", "paper"])
def test_skipped_queries(attention, refused):
    model, (ids, mask) = make("llama", attention), left_padded(2, 20, 6)
    plain = logits(model, ids, mask)
    model.set_sea(query_skip=4)
    skipped = logits(model, ids, mask)
    assert not close(skipped[mask.bool()], plain[mask.bool()], 1e-4)
    options = dict(max_new_tokens=12, do_sample=False, eos_token_id=None)
    for more in ({}, {"num_beams": 3}):
        with_cache = model.generate(ids, attention_mask=mask, **options, **more)
        without = model.generate(ids, attention_mask=mask, use_cache=False, **options, **more)
        assert torch.equal(with_cache, without)
    model.set_sea(query_skip=1)
    assert close(logits(model, ids, mask), plain, 0)
    refused("query_skip is 0", model.set_sea, query_skip=0)
    cache = model(input_ids=ids, use_cache=True).past_key_values
    model.set_sea(query_skip=4)
    refused("changed inside a sequence", read, model, ids, [1], cache=cache)


@pytest.mark.parametrize(
    "change, message",
    [
        ({"attention": {"method": "performer"}}, "attention method 'performer'"),
        ({"attention": LIGHT | {"speed": 3}}, "unknown settings of attention: speed"),
        ({"attention": BLOCKS | {"tile": 3}}, "tile 3 must divide block 4"),
        ({"attention": BLOCKS | {"parts": 5}}, "unknown settings of attention: parts"),
        ({"attention": {"method": "sea", "preset": "blocks"}}, "`brine distill --attention blocks`"),
        ({"attention": LIGHT | {"mask": "blocks", "parts": 4}}, "blocks of an earlier version"),
        ({"attention": LIGHT | {"opinion": 0.5}}, "blocks of an earlier version"),
        ({"attention": LIGHT | {"preset": "lean"}}, "preset is 'lean', known are paper, light"),
        ({"attention": LIGHT | {"decoder_norm": "on"}}, "decoder_norm = 'on' is of an earlier version"),
        ({"attention": LIGHT | {"oversample": 4}}, "oversample = 4 is of an earlier version; now it is 1"),
        ({"format": 2}, "format 2"),
        ({"lora_rank": 8}, "--merge"),
        ({"colour": 1}, "unknown keys colour"),
    ],
)
def test_settings_are_refused_by_name(change, message, refused):
    model = make("llama")
    config = copy.deepcopy(model.config)
    config.brine = section(LIGHT) | change
    refused(message, type(model), config)


def test_files_of_columns_may_name_settings_of_earlier_versions():
    old = {"mask": "columns", "block": 32, "sinks": 1, "local": 1, "parts": 1, "tile": 16, "survivors": 2, "opinion": 0}
    old |= {"pooled": 0.0, "oversample": 1, "width_reduction": 0, "depth": 2, "decoder_norm": "preset"}
    assert close(logits(make("llama", LIGHT | old), batch()), logits(make("llama", LIGHT), batch()), 0)


def test_calls_are_refused_by_name(refused):
    model, ids = make("llama"), batch()
    cache = transformers.StaticCache(config=model.config, max_cache_len=64)
    refused("only DynamicCache", model, input_ids=ids, past_key_values=cache, use_cache=True)
    refused("128 positions", model, input_ids=batch(1, 129))
    refused("decreasing position ids", model, input_ids=ids, position_ids=torch.arange(40).remainder(20)[None])
    refused(r"must be \[B, S\]", model, input_ids=ids, attention_mask=torch.ones(2, 1, 40, 40, dtype=torch.bool))


def test_a_window_limits_positions(refused):
    model = make("mistral", sliding_window=32)
    assert logits(model, batch(1, 32)).shape[1] == 32
    refused("32 positions", logits, model, batch(1, 33))


def test_16_bits(tmp_path):
    model = make("llama")
    model.save_pretrained(tmp_path)
    half = transformers.AutoModelForCausalLM.from_pretrained(
        tmp_path, trust_remote_code=True, torch_dtype=torch.bfloat16
    )
    ids = batch()
    y = logits(half, ids)
    assert y.dtype == torch.bfloat16 and torch.isfinite(y).all()
    generated = half.generate(ids, max_new_tokens=4, do_sample=False, eos_token_id=None)
    assert generated.shape == (2, 44)
