"""The cache in 8 bits: its formula, generation with it, with blocks too, beams and crops."""

import copy

import numpy as np
import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from transformers import DynamicCache, LlamaConfig, LlamaForCausalLM

import brine_sea
from brine_sea.cache import QuantizedLayer


def llama(**more):
    torch.manual_seed(3)
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=97, num_key_value_heads=2, max_position_embeddings=512, **sizes, **more)
    return LlamaForCausalLM(config).eval()


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


@pytest.mark.parametrize("blocks", [False, True])
def test_generation_is_near_that_of_a_plain_cache(blocks):
    model = llama()
    if blocks:
        brine_sea.attach(model, {"method": "blocks", "k": 64, "block": 8, "tile": 8, "candidates": 12})
    ids = torch.randint(0, 97, (2, 150), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        seen = {}
        for name, cache in (("plain", DynamicCache()), ("coded", brine_sea.QuantizedCache(model.config))):
            logits = [model(ids[:, :100], past_key_values=cache).logits]
            logits += [model(ids[:, t : t + 1], past_key_values=cache).logits for t in range(100, 150)]
            seen[name] = torch.cat(logits, 1)
            assert cache.get_seq_length() == 150
            if name == "coded":
                kept = sum(x.nbytes() for x in cache.layers if isinstance(x, QuantizedLayer))
                assert kept < 0.47 * 2 * 2 * 2 * 150 * 12 * 4 * 2  # of f32: two layers, groups, texts, k and v
    difference = (seen["plain"] - seen["coded"]).abs().max()
    near = 0.05 if blocks else 0.02  # of almost equal blocks others may be chosen
    assert 0 < difference < near * seen["plain"].abs().max()


def test_generate_takes_it_with_beams():
    model = llama()
    ids = torch.randint(0, 97, (1, 70), generator=torch.Generator().manual_seed(5))
    options = {"max_new_tokens": 8, "do_sample": False, "num_beams": 3, "pad_token_id": 0}
    plain = model.generate(ids, **options)
    coded = model.generate(ids, past_key_values=brine_sea.QuantizedCache(model.config), **options)
    assert coded.shape == plain.shape and torch.equal(coded[:, :70], ids)


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
