"""Random students of every family, small."""

import inspect
import json
from pathlib import Path
from typing import Any

import torch
import transformers

LIGHT = {
    "method": "sea",
    "preset": "light",
    "k": 6,
    "columns": 16,
    "decoder": "none",
    "prior": "learned",
    "prior_features": 8,
    "pooled_prior": True,
    "prior_units": 2,
    "gates": "head",
    "gate_bias": 2.0,
}
PERFORMER = {"method": "sea", "k": 6, "columns": 16, "decoder": "paper", "prior": "performer", "gates": "token"}
PAPER = {"method": "sea", "k": 6, "columns": 16, "decoder": "paper", "prior": "none", "gates": "token"}
BLOCKS = {"method": "blocks", "k": 20, "block": 4, "tile": 2, "candidates": 3, "columns": 5}

COMMON = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, max_position_embeddings=128)
SIZES: dict[str, dict[str, Any]] = {
    "llama": COMMON | dict(num_key_value_heads=2, intermediate_size=48),
    "opt": COMMON | dict(ffn_dim=48, word_embed_proj_dim=32, dropout=0.0, attention_dropout=0.0, init_std=0.2),
    "gpt2": dict(n_embd=32, n_layer=2, n_head=4, n_positions=128, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0),
    "bert": COMMON | dict(intermediate_size=48, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
}
for _family in ("mistral", "qwen2", "qwen3"):
    SIZES[_family] = SIZES["llama"] | dict(head_dim=8)
SIZES["mistral"] = SIZES["mistral"] | dict(sliding_window=None)

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "opt": "OPTForCausalLM",
    "gpt2": "GPT2LMHeadModel",
    "bert": "BertForMaskedLM",
}
DECODERS = [name for name in ARCHITECTURES if name != "bert"]
VOCABULARY = 60


def section(attention: dict[str, Any]) -> dict[str, Any]:
    return {"attention": dict(attention), "format": 1}


def make(family: str, attention: dict[str, Any] = LIGHT, architecture: str | None = None, **sizes: Any) -> Any:
    """A student with random weights, in evaluation."""
    from brine_sea.modeling_brine_sea import STUDENTS

    torch.manual_seed(7)
    student, _ = STUDENTS[architecture or ARCHITECTURES[family]]
    ids = {} if family == "bert" else dict(pad_token_id=0, bos_token_id=1, eos_token_id=2)
    spread = {} if family == "opt" else dict(initializer_range=0.2)
    config = student.config_class(**({"vocab_size": VOCABULARY} | SIZES[family] | spread | ids | sizes))
    config.brine = section(attention)
    model = student(config).eval()
    with torch.no_grad():
        for block in model.sea_blocks():
            for p in block.parameters():
                p.add_(torch.randn_like(p), alpha=0.3)
            if hasattr(block, "key_scale"):
                block.key_scale.mul_(torch.rand_like(block.key_scale) + 0.5)
    return model


def dense_class(model: Any) -> Any:
    return getattr(transformers, type(model).__name__.removeprefix("Sea"))


def read_config(directory: Path) -> dict[str, Any]:
    return json.loads((directory / "config.json").read_text())


def batch(rows: int = 2, tokens: int = 40) -> torch.Tensor:
    torch.manual_seed(11)
    return torch.randint(3, VOCABULARY, (rows, tokens))


def left_padded(rows: int = 2, tokens: int = 40, padding: int = 9) -> tuple[torch.Tensor, torch.Tensor]:
    """Ids, and their mask with padding in the first row."""
    ids = batch(rows, tokens)
    mask = torch.ones_like(ids)
    mask[0, :padding] = 0
    return ids, mask


def close(a: torch.Tensor, b: torch.Tensor, tolerance: float = 1e-5) -> bool:
    return torch.allclose(a, b, rtol=0, atol=tolerance)


@torch.no_grad()
def logits(model: Any, ids: torch.Tensor, mask: torch.Tensor | None = None, **inputs: Any) -> torch.Tensor:
    return model(input_ids=ids, attention_mask=mask, **inputs).logits


def cache_of(model: Any) -> str:
    """The name of the argument."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


@torch.no_grad()
def read(
    model: Any, ids: torch.Tensor, ends: list[int], mask: torch.Tensor | None = None, cache: Any = None
) -> torch.Tensor:
    """The logits of passes to the ends of `ends`, one after another, with a cache; None: the model makes it."""
    parts = []
    for a, b in zip([0, *ends], ends, strict=False):
        given = {"attention_mask": None if mask is None else mask[:, :b], "use_cache": True, cache_of(model): cache}
        out = model(input_ids=ids[:, a:b], **given)
        cache = out[cache_of(model)] if cache is None else cache
        parts.append(out.logits)
    return torch.cat(parts, 1)


def check_generation(model: Any) -> None:
    """A cache, padding and other texts change nothing, nor a cache with beams."""
    ids, mask = left_padded(2, 20, 6)
    ids[0, :6] = 0
    options = dict(max_new_tokens=12, do_sample=False, eos_token_id=None, pad_token_id=0)
    both = model.generate(ids, attention_mask=mask, **options)
    assert both.shape == (2, 32)
    assert torch.equal(both[:1, 6:], model.generate(ids[:1, 6:], attention_mask=mask[:1, 6:], **options))
    for beams in (1, 3):
        given = dict(attention_mask=mask, num_beams=beams, **options)
        assert torch.equal(model.generate(ids, **given), model.generate(ids, use_cache=False, **given))


def check_lookup(model: Any) -> None:
    """Prompt lookup, which cuts the cache, changes nothing."""
    ids = torch.tensor([[5, 6, 7, 8, 9] * 6])
    options = dict(max_new_tokens=16, do_sample=False, pad_token_id=0)
    looked_up = model.generate(ids, prompt_lookup_num_tokens=4, **options)
    plain = model.generate(ids, **options)
    assert torch.equal(looked_up, plain)
