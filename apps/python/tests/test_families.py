"""Families of transformers under attach(): with every key kept each is its dense model. docs/transformers.md has the
table of them.
"""

from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from students import LIGHT

import brine_sea

SIZES = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2)
SIZES |= dict(vocab_size=96, max_position_embeddings=128, pad_token_id=0, bos_token_id=1, eos_token_id=2)
EXPERTS = dict(num_experts=2, num_local_experts=2, num_experts_per_tok=1, moe_intermediate_size=32)
EXPERTS |= dict(shared_expert_intermediate_size=32)
OF_GPT = dict(vocab_size=96, n_embd=32, n_layer=2, n_head=4, n_positions=128)
GEMMA = SIZES | dict(head_dim=8)
PER_LAYER = dict(vocab_size_per_layer_input=96, hidden_size_per_layer_input=8)
LATENT = dict(q_lora_rank=8, kv_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=4, num_key_value_heads=4)
LATENT |= dict(n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=1, moe_intermediate_size=32)

DECODERS = (
    "arcee, biogpt, bitnet, codegen, cohere, cohere2, deepseek_v3, ernie4_5, exaone4, gemma, gemma3_text, gemma4_text,"
    " glm, glm4, gpt2, gpt_bigcode, gpt_neox, gptj, granite, granitemoe, lfm2, llama, mistral, mixtral, nemotron, olmo,"
    " olmo2, olmo3, olmoe, opt, persimmon, phi, phi3, qwen2, qwen2_moe, qwen3, qwen3_moe, seed_oss, smollm3, stablelm,"
    " starcoder2"
).split(", ")
ENCODERS = "bert, camembert, distilbert, electra, ernie, modernbert, nomic_bert, roberta, xlm-roberta".split(", ")
# By the reason that the page gives: what the error says, and the families.
REFUSED = {
    "a layer is used several times": ("uses a layer several times", ["albert", "diffllama"]),
    "its attention does not go through the interface": (
        "does not go through",
        ["bloom", "deberta-v2", "falcon", "gpt_neo", "mamba", "mpnet", "mpt", "xglm"],
    ),
    "scores have a cap": ("have a cap", ["gemma2"]),
    "scores have a sink": ("have a sink", ["gpt_oss"]),
}
# Of families that do not have SIZES.
OTHER_SIZES = {
    "codegen": OF_GPT | dict(rotary_dim=4),
    "deepseek_v3": SIZES | LATENT | dict(v_head_dim=8),
    "gemma4_text": GEMMA | PER_LAYER | dict(global_head_dim=8, num_kv_shared_layers=0),
    "gptj": OF_GPT | dict(rotary_dim=4),
    "opt": SIZES | dict(ffn_dim=64, word_embed_proj_dim=32),
    "distilbert": dict(vocab_size=96, dim=32, n_layers=2, n_heads=4, hidden_dim=64, max_position_embeddings=128),
    "albert": SIZES | dict(embedding_size=16),
    "bloom": dict(vocab_size=96, hidden_size=32, n_layer=2, n_head=4),
    "gpt_neo": dict(vocab_size=96, hidden_size=32, num_layers=2, num_heads=4, attention_types=[[["global"], 2]]),
    "mpt": dict(vocab_size=96, d_model=32, n_layers=2, n_heads=4, max_seq_len=128),
    "xglm": dict(vocab_size=96, d_model=32, ffn_dim=64, num_layers=2, attention_heads=4),
}
OTHER_SIZES |= dict.fromkeys(["gemma", "gemma2", "gemma3_text"], GEMMA) | dict.fromkeys(["gpt2", "gpt_bigcode"], OF_GPT)
OTHER_SIZES |= dict.fromkeys("granitemoe mixtral olmoe qwen2_moe qwen3_moe gpt_oss".split(), SIZES | EXPERTS)


def model_of(family):
    torch.manual_seed(0)
    try:
        config = transformers.AutoConfig.for_model(family, **OTHER_SIZES.get(family, SIZES))
    except ValueError:
        pytest.skip(f"this transformers has no {family}")
    encoder = family in ENCODERS or family in ("albert", "deberta-v2", "mpnet")
    kind = transformers.AutoModelForMaskedLM if encoder else transformers.AutoModelForCausalLM
    return kind.from_config(config).eval()


@pytest.mark.parametrize("family", [*DECODERS, *ENCODERS])
def test_all_keys_kept_are_the_dense_model(family):
    model = model_of(family)
    settings = dict(method="blocks", k=128, block=8, tile=8, candidates=16)
    if family in ENCODERS:
        settings = LIGHT | dict(k=128, columns=128, prior="none", gate_bias=60.0)
    ids = torch.randint(3, 96, (2, 50))
    mask = torch.ones_like(ids)
    mask[0, :7] = 0

    @torch.no_grad()
    def passes():
        rows = [model(input_ids=ids).logits, model(input_ids=ids, attention_mask=mask).logits[mask.bool()]]
        if family in DECODERS:
            options = dict(max_new_tokens=4, do_sample=False, pad_token_id=0)
            rows.append(model.generate(ids[:, :30], attention_mask=mask[:, :30], **options))
        return rows

    wanted = passes()
    brine_sea.attach(model, settings)
    for got, dense in zip(passes(), wanted, strict=True):
        assert torch.allclose(got, dense, rtol=0, atol=2e-6 * float(dense.abs().max()))


@pytest.mark.parametrize("said, family", [(said, family) for said, families in REFUSED.values() for family in families])
def test_what_cannot_have_blocks_is_refused(said, family, refused):
    refused(said, brine_sea.attach, model_of(family), dict(method="blocks", k=128, block=8, tile=8, candidates=16))


def test_the_page_has_the_table():
    page = Path(__file__).parents[3] / "docs" / "transformers.md"
    if not page.exists():
        pytest.skip("the package alone has no pages")
    lines = [f"| works, decoders | {', '.join(DECODERS)} |", f"| works, encoders (`sea`) | {', '.join(ENCODERS)} |"]
    lines += [f"| refused: {why} | {', '.join(families)} |" for why, (_, families) in REFUSED.items()]
    assert "\n".join(lines) in page.read_text(), "\n".join(lines)
