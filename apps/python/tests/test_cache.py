"""The cache in 8 bits: its formula, its bytes, generation with it, with blocks too, beams and crops."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicLayer

import brine_sea
from brine_sea.cache import QuantizedLayer

BLOCKS = {"method": "blocks", "k": 64, "block": 8, "tile": 8, "candidates": 12}


def llama(blocks=None, **more):
    torch.manual_seed(3)
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    sizes |= {"vocab_size": 97, "num_key_value_heads": 2, "max_position_embeddings": 512}
    model = LlamaForCausalLM(LlamaConfig(**(sizes | more))).eval()
    return brine_sea.attach(model, blocks) if blocks else model


def bytes_of(cache):
    kept = [x for layer in cache.layers for x in (*getattr(layer, "kept", {}).values(), layer.keys, layer.values)]
    return sum(x.numel() * x.element_size() for x in kept if x is not None)


def expected(k, v, sigma):
    """Of one block [block, d], plain NumPy, with means and steps in bf16."""
    bf16 = lambda x: torch.tensor(x).bfloat16().to(torch.float64).numpy()  # noqa: E731
    mean = bf16(k.mean(0))
    r = (k - mean) / sigma
    keys, values = np.empty_like(k), np.empty_like(v)
    for j in range(len(k)):
        a, s = bf16(np.abs(r[j]).max() / 7.5), bf16(np.abs(v[j]).max() / 127)
        byte = np.clip(np.floor(16 * r[j] / a), -128, 127)
        keys[j] = mean + sigma * a * (byte + 0.5) / 16
        values[j] = s * np.clip(np.round(v[j] / s), -127, 127)
    return keys, values


@pytest.mark.parametrize("scaled", [False, True])
@pytest.mark.parametrize("d", [7, 8])
def test_keys_and_values_are_those_of_their_codes(scaled, d):
    torch.manual_seed(1)
    k, v = (torch.randn(2, 3, 21, d, dtype=torch.float64) * (1 + torch.arange(d)) for _ in range(2))
    sigma = torch.rand(3, d, dtype=torch.float64) + 0.5 if scaled else None
    layer = QuantizedLayer(8, sigma)
    for first, end in ((0, 5), (5, 16), (16, 17), (17, 21)):
        seen, _ = layer.update(k[:, :, first:end], v[:, :, first:end])
        assert torch.equal(seen[:, :, first // 8 * 8 :], k[:, :, first // 8 * 8 : end])  # exact in its own pass
    keys, values = layer.decoded()
    assert layer.get_seq_length() == 21 and torch.equal(keys[:, :, 16:], k[:, :, 16:])
    for b, g, n in np.ndindex(2, 3, 2):
        rows = slice(8 * n, 8 * n + 8)
        begin = k[b, g, :8].numpy()
        scale = ((begin - begin.mean(0)) ** 2).mean(0) ** 0.25 if sigma is None else sigma[g].numpy()
        want = expected(k[b, g, rows].numpy(), v[b, g, rows].numpy(), scale)
        if n == 0:  # keys of the first block are numbers
            want = k[b, g, rows].bfloat16().double().numpy(), want[1]
        for got, wanted in zip((keys, values), want, strict=True):
            np.testing.assert_allclose(got[b, g, rows].numpy(), wanted, rtol=0, atol=1e-9)


def test_blocks_are_chosen_by_the_high_plane():
    torch.manual_seed(1)
    k, v = (torch.randn(2, 3, 21, 8, dtype=torch.float64) * (1 + torch.arange(8)) for _ in range(2))
    sigma, layer = torch.rand(3, 8, dtype=torch.float64) + 0.5, QuantizedLayer(5)
    for end, keys in ((4, k), (13, k[:, :, :13])):
        layer.update(keys[:, :, :end] if end == 4 else keys[:, :, 4:], v[:, :, 4 * (end > 4) : end])
    assert layer.copies(k[:, :, :13] * 1.5, v[:, :, :13], sigma, 8) is None  # keys of another cache
    assert layer.copies(k[:, :, :13], v[:, :, :13], sigma, 8) is not None
    keys, values = layer.update(k[:, :, 13:], v[:, :, 13:])
    codes, numbers, scale = layer.copies(keys, values, sigma, 8)
    assert torch.equal(scale, sigma.repeat(2, 1))
    blocks = k[:, :, :16].unflatten(2, (2, 8))
    means = blocks.mean(3).bfloat16().double()
    r = blocks - means[:, :, :, None]
    steps = ((r / sigma[:, None, None]).abs().amax(-1) / 7.5).bfloat16().double()
    deviations = r.square().mean(3).sqrt().bfloat16().double()
    assert torch.equal(numbers, torch.cat([means, deviations, steps], -1))
    z = (r / sigma[:, None, None] / steps[..., None]).floor().clamp(-8, 7)
    pairs = codes.view(2, 3, 2, 8, 4)
    assert torch.equal(torch.cat([pairs & 15, pairs >> 4], -1), (z + 8).to(torch.uint8))


# Of random queries nearly all blocks are in the lists that tiles keep; those of a text take .02 less.
@pytest.mark.parametrize("make, most", [(lambda config: DynamicCache(), 1.26), (brine_sea.QuantizedCache, 0.61)])
@torch.no_grad()
def test_bytes_of_a_model_with_blocks(make, most):
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 1, "num_key_value_heads": 1}
    model = llama(**sizes, max_position_embeddings=8192).bfloat16()
    ids, dense, cache = torch.randint(0, 97, (1, 8192)), DynamicCache(), make(model.config)
    model(ids, past_key_values=dense, logits_to_keep=1)
    assert bytes_of(dense) == 8192 * 2 * 64 * 2
    model = brine_sea.attach(model, {"method": "blocks", "k": 576})
    model(ids[:, :8000], past_key_values=cache, logits_to_keep=1)
    model(ids[:, 8000:], past_key_values=cache, logits_to_keep=1)
    assert bytes_of(cache) < most * bytes_of(dense)


@pytest.mark.parametrize("blocks", [None, BLOCKS])
@pytest.mark.parametrize("padded", [False, True])
@torch.no_grad()
def test_generation_is_near_that_of_a_plain_cache(blocks, padded):
    model, seen = llama(blocks), {}
    ids = torch.randint(0, 97, (2, 150), generator=torch.Generator().manual_seed(5))
    mask = torch.ones_like(ids)
    mask[1, : 11 * padded] = 0
    for name, cache in (("plain", DynamicCache()), ("coded", brine_sea.QuantizedCache(model.config))):
        ends = [0, 100, *range(101, 151)]
        given = [(ids[:, a:b], mask[:, :b]) for a, b in zip(ends, ends[1:], strict=False)]
        logits = [model(x, attention_mask=m, past_key_values=cache).logits for x, m in given]
        seen[name] = torch.cat(logits, 1)[mask.bool()]
        assert cache.get_seq_length() == 150
        if name == "coded":
            kept = sum(x.nbytes() for x in cache.layers if isinstance(x, QuantizedLayer))
            assert kept < 0.47 * 2 * 2 * 2 * 150 * 12 * 4 * 2  # of f32: two layers, groups, texts, k and v
    difference = (seen["plain"] - seen["coded"]).abs().max()
    near = 0.05 if blocks else 0.02  # of almost equal blocks others may be chosen
    assert 0 < difference < near * seen["plain"].abs().max()


@torch.no_grad()
def test_a_prompt_in_pieces_leaves_the_same_codes():
    model = llama(BLOCKS).double()
    ids = torch.randint(0, 97, (2, 100), generator=torch.Generator().manual_seed(5))
    model(ids, use_cache=False)  # calibrates
    kept = []
    for ends in ((0, 100), (0, 5, 37, 40, 41, 99, 100)):
        cache = brine_sea.QuantizedCache(model.config)
        for a, b in zip(ends, ends[1:], strict=False):
            model(ids[:, a:b], past_key_values=cache)
        kept.append(cache.layers[0].kept)  # its keys do not depend on other layers
    assert kept[0].keys() == kept[1].keys() and kept[0]["deviations"].shape[2] == 12
    for name, x in kept[0].items():
        torch.testing.assert_close(kept[1][name], x, rtol=0, atol=1e-12)


@pytest.mark.parametrize("blocks", [None, BLOCKS])
def test_generate_takes_it_with_beams(blocks):
    model = llama(blocks)
    ids = torch.randint(0, 97, (1, 70), generator=torch.Generator().manual_seed(5))
    options = {"max_new_tokens": 8, "do_sample": False, "num_beams": 3, "pad_token_id": 0}
    plain = model.generate(ids, **options)
    coded = model.generate(ids, past_key_values=brine_sea.QuantizedCache(model.config), **options)
    assert coded.shape == plain.shape and torch.equal(coded[:, :70], ids)


@pytest.mark.parametrize("make, near", [(lambda config: DynamicCache(), 1e-5), (brine_sea.QuantizedCache, 0.05)])
@torch.no_grad()
def test_blocks_go_on_after_crops(make, near):
    model = llama(BLOCKS)
    ids = torch.randint(0, 97, (2, 120), generator=torch.Generator().manual_seed(5))
    model(ids, use_cache=False)  # calibrates
    wanted, cache = model(ids, past_key_values=DynamicCache()).logits, make(model.config)
    model(torch.cat([ids[:, :59], ids[:, 3:44]], 1), past_key_values=cache)  # 41 others
    for cut, end in ((41, 100), (45, 58), (55, 70), (1, 120)):  # the third leaves less than a block
        cache.crop(-cut)
        start = cache.get_seq_length()
        got = model(ids[:, start:end], past_key_values=cache).logits
        assert (got - wanted[:, start:end]).abs().max() < near * wanted.abs().max()


@pytest.mark.parametrize("make", [lambda config: DynamicCache(), lambda config: brine_sea.QuantizedCache(config)])
@torch.no_grad()
def test_tokens_that_blocks_have_not_seen_are_refused_after_a_crop(make, refused):
    model = llama(BLOCKS)
    ids = torch.randint(0, 97, (2, 120), generator=torch.Generator().manual_seed(5))
    cache = make(model.config)
    model(ids[:, :100], past_key_values=cache)
    cache.crop(-50)
    for layer in cache.layers[: model.config.num_hidden_layers]:  # tokens of another attention
        layer.update(*(torch.randn(2, 2, 30, 12) for _ in range(2)))
    refused("of 80 tokens in the cache", model, ids[:, :1], past_key_values=cache)


@torch.no_grad()
def test_a_cache_that_was_reset_takes_another_batch():
    model, cache = llama(BLOCKS), DynamicCache()
    ids = torch.randint(0, 97, (3, 40), generator=torch.Generator().manual_seed(6))
    model(ids, past_key_values=cache)
    for layer in cache.layers:  # as reset() before transformers 5.15, whose rows stay
        if type(layer) is DynamicLayer:
            layer.reset()
    wanted = model(ids[:2]).logits
    assert (model(ids[:2], past_key_values=cache).logits - wanted).abs().max() < 1e-4 * wanted.abs().max()


def test_a_crop_leaves_the_codes_before_it(refused):
    torch.manual_seed(2)
    cache, k = brine_sea.QuantizedCache(llama().config, block=8), torch.randn(1, 2, 30, 6)
    cache.update(k, k, 0)
    before = copy.deepcopy(cache.layers[0].kept)
    cache.crop(-9)  # 21 are left: two blocks and five keys of the third
    layer = cache.layers[0]
    assert layer.get_seq_length() == 21
    assert torch.equal(layer.kept["high"], before["high"][:, :, :2])
    assert layer.kept["last_keys"].shape[2] == 5
    cache.update(k[:, :, 21:], k[:, :, 21:], 0)
    assert layer.get_seq_length() == 30
    refused("crop", cache.crop, -31)
    cache.reset()
    assert cache.get_seq_length() == 0
    cache.update(k[:, :, :21], k[:, :, :21], 0)
    assert cache.get_seq_length() == 21


def test_what_does_not_fit_is_refused(refused):
    config = llama().config
    refused("at least 1", brine_sea.QuantizedCache, config, block=0)
    refused("key_scales of 1 layers, the model has 2", brine_sea.QuantizedCache, config, key_scales=[torch.ones(2, 12)])
    k = torch.randn(1, 2, 50, 12)
    for bad in (torch.ones(12), torch.ones(2, 24), torch.zeros(2, 12), torch.full((2, 12), torch.nan)):
        cache = brine_sea.QuantizedCache(config, key_scales=[bad] * 2)
        for _ in range(2):
            refused("must be positive and finite, \\[2, 12\\] of each layer", cache.update, k, k, 0)
    config.layer_types = ["sliding_attention", "full_attention"]
    refused("for full attention, this model has sliding_attention", brine_sea.QuantizedCache, config)
