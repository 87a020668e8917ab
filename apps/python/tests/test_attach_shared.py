"""Attached models among other users of the same objects: configs, caches, threads, wrappers, compilers."""

import copy
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from students import BLOCKS, batch, close, left_padded, logits, read
from test_attach import DECODERS, OF, dense, each_decoder, each_model, make
from test_families import OTHER_SIZES

import brine_sea

TOKENS = [40, *range(41, 51)]  # at once, and one by one


@each_model
def test_other_models_of_the_config_stay_dense(family, settings):
    one, (ids, mask) = dense(family), left_padded()
    two = copy.deepcopy(one)
    for a, b in zip(one.modules(), two.modules(), strict=True):
        if "config" in a.__dict__:
            b.__dict__["config"] = a.config
    before = logits(two, ids, mask), logits(two, ids)
    brine_sea.attach(one, OF[settings])
    assert two.config._attn_implementation == "sdpa"
    assert torch.equal(logits(two, ids, mask)[mask.bool()], before[0][mask.bool()])
    assert torch.equal(logits(two, ids), before[1])
    assert brine_sea.detach(one).config is two.config


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", [*DECODERS, "bert"])
def test_a_model_made_of_the_config_afterwards_is_dense(family, attention):
    wanted, (ids, mask) = dense(family, attention), left_padded()
    config = brine_sea.attach(dense(family, attention), OF["light"]).config
    made = type(wanted)(copy.deepcopy(config)).eval()
    made.load_state_dict(wanted.state_dict())
    for given in (None, mask):
        real = torch.ones_like(mask).bool() if given is None else mask.bool()
        assert close(logits(made, ids, given)[real], logits(wanted, ids, given)[real])


def test_settings_that_change_while_blocks_are_attached_stay():
    model = dense("llama")
    config = model.config
    brine_sea.attach(model, BLOCKS)
    model.config.use_cache = False
    assert config.use_cache
    brine_sea.detach(model)
    assert model.config is config and not config.use_cache and config._attn_implementation == "sdpa"


@each_decoder
def test_threads_share_a_model(family, settings):
    model, texts = make(family, settings), batch(2, 60)

    def run(ids):
        return read(model, ids, TOKENS, cache=transformers.DynamicCache())

    wanted = [run(texts[:1]), run(texts[1:, :55])]

    def work(n):
        for _ in range(6):
            assert torch.equal(run(texts[n : n + 1, : 60 - 5 * n]), wanted[n])

    with ThreadPoolExecutor(2) as threads:
        list(threads.map(work, (0, 1)))  # raises what a thread raised


def test_attention_that_was_changed_is_refused(refused):
    model, ids = brine_sea.attach(dense("llama"), BLOCKS), batch(1, 40)
    sparse = logits(model, ids)
    model.set_attn_implementation("eager")
    refused("became 'eager' after attach.*detach\\(\\) and attach\\(\\) again", logits, model, ids)
    brine_sea.attach(brine_sea.detach(model), BLOCKS)
    assert close(logits(model, ids), sparse)


def test_attention_that_did_not_call_its_block_is_refused(refused):
    model = brine_sea.attach(dense("llama"), BLOCKS)
    attention = model.model.layers[1].self_attn
    attention.forward = lambda hidden_states, **given: (hidden_states, None)
    refused("layer 1 computed its attention without its block", logits, model, batch(1, 40))


class Wrapper(torch.nn.Module):
    """As PeftModel is one."""

    def __init__(self, model):
        super().__init__()
        self.base_model = model

    def forward(self, **given):
        return self.base_model(**given)

    def __getattr__(self, name):
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(self.base_model, name)


@each_model
def test_wrappers_have_the_blocks_of_their_model(family, settings, tmp_path, refused):
    base, ids = dense(family), batch(1, 40)
    plain, outer = logits(base, ids), Wrapper(base)
    brine_sea.attach(outer, OF[settings])
    assert brine_sea.layers(base) == brine_sea.layers(outer)
    sparse = logits(base, ids)
    assert torch.equal(logits(outer, ids), sparse)
    brine_sea.save(Wrapper(outer), tmp_path)
    brine_sea.detach(base)
    assert torch.equal(logits(outer, ids), plain)
    assert torch.equal(logits(Wrapper(brine_sea.attach(base, tmp_path)), ids), sparse)
    refused("has blocks already", brine_sea.attach, Wrapper(base), OF[settings])


def test_layers_are_known_before_attach(refused):
    assert brine_sea.layers(dense("gemma3")) == [1, 2]
    assert brine_sea.layers(dense("llama")) == [0, 1]
    t5 = transformers.T5Config(d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2, vocab_size=60)
    refused("this model has both", brine_sea.layers, transformers.T5ForConditionalGeneration(t5))


def offloaded(model):
    """As accelerate does it: weights are real while their module runs."""
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False))

        def put(module, _args, own=own):
            module._parameters.update(own)

        def drop(module, _args, _output, own=own):
            meta = {name: torch.nn.Parameter(x.to("meta"), x.requires_grad) for name, x in own.items()}
            module._parameters.update(meta)

        module.register_forward_pre_hook(put)
        module.register_forward_hook(drop)
        drop(module, None, None)
    return model


@each_model
def test_offloaded_weights(family, settings):
    ids = batch(1, 40)
    torch.manual_seed(5)
    wanted = logits(brine_sea.attach(dense(family), OF[settings]), ids)
    torch.manual_seed(5)
    model = dense(family)
    torch.manual_seed(5)
    got = logits(brine_sea.attach(offloaded(model), OF[settings]), ids)
    assert got.device.type == "cpu" and wanted.shape == got.shape
    if settings == "blocks":  # blocks have no random weights
        assert torch.equal(got, wanted)


@each_decoder
def test_a_cache_that_the_dense_model_filled_is_refused(family, settings, refused):
    model, ids, cache = dense(family), batch(1, 50), transformers.DynamicCache()
    read(model, ids, [30], cache=cache)
    brine_sea.attach(model, OF[settings])
    refused("keys of 30 tokens, of which the block of layer . has seen 0", read, model, ids[:, 30:], [20], cache=cache)


def test_masks_that_are_added_to_scores(refused):
    model, (ids, mask) = make("llama", "blocks"), left_padded()
    wanted = logits(model, ids, mask)
    for least in (torch.finfo(torch.float32).min, -10000.0):  # what families add where a key is hidden
        seen = mask[:, None, None].bool() & torch.ones(40, 40, dtype=torch.bool).tril()
        added = torch.zeros(2, 1, 40, 40).masked_fill(~seen, least)
        assert close(logits(model, ids, added)[mask.bool()], wanted[mask.bool()])
    added = torch.linspace(-2, 0, 40)[None, None, None].expand(2, 1, 40, 40)
    refused("adds numbers to scores", logits, model, ids, added)


def test_a_call_that_is_not_causal_is_refused(refused):
    model, ids = make("llama", "blocks"), batch(1, 40)
    refused("is_causal is False, but the blocks were made for True", logits, model, ids, is_causal=False)
    assert close(logits(model, ids, is_causal=True), logits(make("llama", "blocks"), ids))
    refused("causal", brine_sea.attach, dense("llama", is_causal=False), BLOCKS)


@each_model
def test_autocast(family, settings):
    model, ids = make(family, settings).train(), batch(2, 40)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=ids, labels=ids).loss
    loss.backward()
    whole = model(input_ids=ids, labels=ids).loss
    assert loss.item() == pytest.approx(whole.item(), rel=0.05)
    assert all(bool(torch.isfinite(p.grad).all()) for p in model.parameters() if p.grad is not None)


@pytest.mark.parametrize("mask", [False, True])
def test_compiled_without_a_mask(mask, refused):
    model, ids = make("llama", "blocks"), batch(2, 60)
    wanted, compiled = logits(model, ids, use_cache=False), torch.compile(model, backend="eager")
    assert close(logits(compiled, ids, torch.ones_like(ids) if mask else None, use_cache=False), wanted)
    if not mask:
        given = dict(position_ids=torch.arange(60).remainder(30)[None].expand(2, -1), use_cache=False)
        refused("not several sequences in one row", logits, compiled, ids, error=RuntimeError, **given)


@pytest.mark.parametrize("layers", [None, [1], [3]])
@pytest.mark.parametrize("cached", [False, True])
def test_layers_that_share_keys(layers, cached):
    if not hasattr(transformers, "Gemma4TextConfig"):
        pytest.skip("this transformers has no Gemma 4")
    torch.manual_seed(1)
    sizes = OTHER_SIZES["gemma4_text"] | dict(num_hidden_layers=4, num_kv_shared_layers=2, max_position_embeddings=512)
    sizes |= dict(sliding_window=64, layer_types=["sliding_attention", "full_attention"] * 2)
    config = transformers.AutoConfig.for_model("gemma4_text", **sizes)
    model = transformers.AutoModelForCausalLM.from_config(config).eval()
    ids = torch.randint(1, 96, (1, 50))
    wanted = logits(model, ids, use_cache=False)
    brine_sea.attach(model, dict(method="blocks", k=512, block=8, tile=8), layers)
    assert brine_sea.layers(model) == (layers or [1, 3])
    assert close(logits(model, ids, use_cache=cached), wanted, 1e-5 * float(wanted.abs().max()))


# ---- graphs of torch.compile, and caches of a fixed size


def fixed(model, tokens=64):
    return transformers.StaticCache(config=model.config, max_cache_len=tokens)


@pytest.mark.parametrize("family", ["llama", "qwen3", "phi3", "olmo2"])
def test_a_cache_of_a_fixed_size(family, refused):
    model, (ids, mask) = make(family, "blocks"), left_padded()
    ids, mask = torch.cat([ids, batch(2, 10)], 1), torch.cat([mask, torch.ones_like(mask[:, :10])], 1)
    for seen in (None, mask):
        wanted, cache = read(model, ids, TOKENS, seen, transformers.DynamicCache()), fixed(model)
        assert close(read(model, ids, TOKENS, seen, cache), wanted)
        cache.reset()
        assert close(read(model, ids, TOKENS, seen, cache), wanted)
    for beams in (1, 3):
        given = dict(max_new_tokens=12, do_sample=False, attention_mask=mask, num_beams=beams)
        static = dict(cache_implementation="static", disable_compile=True)
        assert torch.equal(model.generate(ids, **given), model.generate(ids, **given, **static))
    dense_model, cache = dense(family), fixed(model)
    read(dense_model, ids, [30], cache=cache)
    brine_sea.attach(dense_model, BLOCKS)
    refused("keys of 30 tokens, of which a block has seen 0", read, dense_model, ids[:, 30:], [20], cache=cache)


def test_columns_refuse_a_cache_of_a_fixed_size(refused):
    model = make("llama", "light")
    refused("the cache is a StaticCache", read, model, batch(2, 50), TOKENS, cache=fixed(model))


@pytest.mark.parametrize("family, backend", [("llama", "eager"), ("qwen3", "aot_eager")])
def test_one_graph_without_breaks(family, backend):
    torch._dynamo.reset()
    model, ids = make(family, "blocks"), batch(2, 50)
    wanted = read(model, ids, TOKENS, cache=transformers.DynamicCache())
    whole = torch.compile(model, fullgraph=True, backend=backend)
    assert close(logits(whole, ids, use_cache=False), logits(model, ids, use_cache=False))
    cache = fixed(model)
    assert close(read(whole, ids, TOKENS, cache=cache), wanted)
    other = batch(2, 50).flip(1)
    cache.reset()
    assert close(read(whole, other, TOKENS, cache=cache), read(model, other, TOKENS, cache=transformers.DynamicCache()))
    assert close(read(whole, ids, TOKENS, cache=fixed(model)), wanted)  # no graph remembers a cache


def test_gradients_of_a_graph():
    torch._dynamo.reset()
    model, ids = make("llama", "blocks").train(), batch(2, 50)
    model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    whole = torch.compile(model, fullgraph=True, backend="aot_eager")
    whole(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert all(close(p.grad, wanted[name]) for name, p in model.named_parameters())


# ---- training by others


@pytest.mark.parametrize("way", ["loop", "loop on two processes", "trainer", "accelerate"])
def test_the_example_trains_through_blocks(way, tmp_path):
    if way in ("trainer", "accelerate"):
        pytest.importorskip("accelerate")
    (tmp_path / "text").write_text("The king said unto his people, go ye and sow the field. " * 200)
    start = ["-m", "torch.distributed.run", "--nproc-per-node", "2"] if "two" in way else []
    example = Path(__file__).parents[1] / "examples" / "train_attached.py"
    command = [sys.executable, *start, str(example), way.split()[0], "--text", str(tmp_path / "text"), "--bf16"]
    paths = os.pathsep.join([str(Path(brine_sea.__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    env = os.environ | dict(OMP_NUM_THREADS="1", PYTHONPATH=paths)
    done = subprocess.run(command, env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    words = done.stdout.split("loss ")[-1].split()
    assert float(words[2]) < 0.7 * float(words[0]), done.stdout
    assert done.stdout.strip().endswith("[0, 1]")


# ---- copies, other processes, caches of a fixed size


@pytest.mark.parametrize("layers", [None, [1]])
def test_packed_sequences_are_refused(layers, refused):
    ids, half = batch(1, 40), torch.ones(20, 20)
    mask = torch.block_diag(half, half).tril().bool()[None, None]
    model = brine_sea.attach(dense("llama"), BLOCKS, layers=layers)
    refused("attention_mask must be", model, ids, attention_mask=mask, use_cache=False)
    if layers:
        positions = torch.arange(20).repeat(2)[None]
        refused("attention_mask must be", model, ids, position_ids=positions, use_cache=False)
        return
    windowed = brine_sea.attach(dense("phi3", sliding_window=64), BLOCKS)  # of every layer; the row fits
    windowed(ids, use_cache=False)
    packed = torch.arange(40).remainder(20)[None]
    refused("several sequences in one row", windowed, ids, position_ids=packed, use_cache=False)


@torch.no_grad()
def test_one_mask_serves_a_batch():
    model, ids = make("llama", "blocks"), batch(3, 40)
    seen = torch.ones(1, 40, dtype=torch.bool)
    seen[:, :5] = False
    each = (torch.ones(40, 40, dtype=torch.bool).tril() & seen)[None, None]
    rows = model(ids, attention_mask=each, use_cache=False).logits[:, 5:]
    assert close(rows, model(ids, attention_mask=seen.expand(3, -1), use_cache=False).logits[:, 5:])


@torch.no_grad()
def test_a_copied_model_has_blocks_of_its_own():
    model, ids = make("llama", "blocks"), batch()
    other = copy.deepcopy(model)
    for block in brine_sea.blocks(other):
        block.k = 12
    wanted = logits(other, ids)
    assert not close(wanted, logits(model, ids))
    del model
    assert close(other(ids, cache=fixed(other)).logits, wanted)


@torch.no_grad()
def test_copies_of_a_cache_of_a_fixed_size():
    model, ids = make("llama", "blocks"), batch()
    cache, wanted = fixed(model), logits(model, ids)
    model(ids[:, :20], cache=cache)
    for end in (25, 23):
        assert close(model(ids[:, 20:end], cache=copy.deepcopy(cache)).logits, wanted[:, 20:end])
    copied = copy.deepcopy(cache)
    copied.layers[0].reorder_cache(torch.tensor([1, 0]))
    assert close(model(ids[:, 20:], cache=cache).logits, wanted[:, 20:])


@torch.no_grad()
def test_a_cache_of_a_fixed_size_is_cut():
    model, ids = make("llama", "blocks"), batch()
    cache = fixed(model)
    model(ids[:, :30], cache=cache)
    cache.crop(-5)
    assert close(model(ids[:, 25:], cache=cache).logits, logits(model, ids)[:, 25:])


@torch.no_grad()
def test_some_layers_with_a_cache_of_a_fixed_size():
    model, (ids, mask) = brine_sea.attach(dense("llama"), BLOCKS, layers=[1]), left_padded()
    for given in (None, mask):
        real = torch.ones_like(ids).bool() if given is None else given.bool()
        found = model(ids, attention_mask=given, cache=fixed(model)).logits
        assert close(found[real], logits(model, ids, given)[real])


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_a_model_made_of_the_config_reads_pieces(attention):
    wanted, ids = dense("llama", attention), batch()
    made = type(wanted)(copy.deepcopy(brine_sea.attach(dense("llama", attention), BLOCKS).config)).eval()
    made.load_state_dict(wanted.state_dict())
    for cache in (transformers.DynamicCache(), fixed(made)):
        assert close(read(made, ids, [20, 39, 40], cache=cache), logits(wanted, ids))


def test_a_model_in_another_process(tmp_path):
    model, ids = make("llama", "blocks"), batch()
    torch.save(model, tmp_path / "model.pt")
    torch.save((ids, logits(model, ids)), tmp_path / "wanted.pt")
    code = (
        "import sys, torch, brine_sea\n"
        "model = torch.load(sys.argv[1] + '/model.pt', weights_only=False)\n"
        "ids, wanted = torch.load(sys.argv[1] + '/wanted.pt')\n"
        "assert (model(ids, use_cache=False).logits - wanted).abs().max() < 1e-4\n"
    )
    path = str(Path(brine_sea.__file__).parents[1])
    subprocess.run([sys.executable, "-c", code, tmp_path], check=True, env=os.environ | {"PYTHONPATH": path})


def test_kinds_that_cannot_be_are_refused(tmp_path, refused):
    refused("with flex_attention all layers", brine_sea.attach, dense("llama", "flex_attention"), BLOCKS, layers=[1])
    model = make("llama", "blocks")
    refused("has no save_pretrained", brine_sea.save, torch.nn.DataParallel(model), tmp_path / "to", base=True)
    assert not (tmp_path / "to").exists()
    cache = transformers.DynamicCache()
    cache.offloading = True  # as where a GPU is
    refused("offloaded", model, batch(1, 8), cache=cache)
