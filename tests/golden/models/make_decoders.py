# Makes the model directories of llama, mistral, qwen2, qwen3 and gpt2, and the numbers next to
# them: randomly initialised models of Hugging Face's transformers (PyTorch, eager attention, f64),
# saved as transformers saves them, and for one padded batch the hidden states of every layer,
# logits, loss and gradients. Every weight is a number that f32, f16 and bf16 represent, so a copy
# in any of these types has the same results. Those that are named, or all:
#   pip install torch transformers safetensors numpy && python3 make_decoders.py NAME...
import copy
import os
import shutil
import sys

import torch
from safetensors.torch import save_file
from transformers import (GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM,
                          MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM,
                          Qwen3Config, Qwen3ForCausalLM)

VOCAB, T = 64, 20
LENGTHS, FIRST = [20, 13], [0, 3]  # of each row its tokens, and where they begin
SIZES = dict(vocab_size=VOCAB, hidden_size=16, intermediate_size=24, num_hidden_layers=2,
             num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=32,
             bos_token_id=None, eos_token_id=None)

# These families cast scores to f32 for their softmax; here it is f64 throughout.
_softmax = torch.nn.functional.softmax
torch.nn.functional.softmax = lambda x, dim=-1, dtype=None: _softmax(x, dim=dim)


def batch():
    ids = torch.zeros(len(LENGTHS), T, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for b, (length, first) in enumerate(zip(LENGTHS, FIRST)):
        for t in range(length):
            ids[b, first + t] = (7 * t * t + 11 * t + 29 * b + t // 3) % VOCAB
            mask[b, first + t] = 1
    return ids, mask, (mask.cumsum(1) - 1).clamp(min=0)


def perturb(model, seed):
    """Random weights of a useful size that have 8 significant bits and are not subnormal in f16."""
    g = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, p in model.named_parameters():
            norm = name.endswith("weight") and ("norm" in name or "ln_" in name)
            x = (0.3 * torch.randn(p.shape, generator=g) + norm).bfloat16().float()
            p.copy_(torch.where(x.abs() < 1e-4, torch.zeros_like(x), x))


def next_token_loss(logits, ids, mask):
    """The mean over tokens that have a next one in their row, padding left out."""
    terms = []
    for b in range(ids.shape[0]):
        positions = mask[b].nonzero()[:, 0]
        lp = torch.log_softmax(logits[b, positions[:-1]], -1)
        terms.append(-lp.gather(1, ids[b, positions[1:]][:, None])[:, 0])
    return torch.cat(terms).mean()


def make(name, kind, config, seed, dtype=torch.float32, shard=None):
    if sys.argv[1:] and name not in sys.argv[1:]:
        return
    model = kind(config)
    perturb(model, seed)
    shutil.rmtree(name, ignore_errors=True)
    # A copy: of the model itself, dtype would round the rotary frequencies as well.
    stored = copy.deepcopy(model).to(dtype)
    stored.save_pretrained(name, **({"max_shard_size": shard} if shard else {}))
    if os.path.exists(name + "/generation_config.json"):
        os.remove(name + "/generation_config.json")
    model = model.double().eval()
    ids, mask, positions = batch()
    y = model(input_ids=ids, attention_mask=mask, position_ids=positions,
              output_hidden_states=True)
    loss = next_token_loss(y.logits, ids, mask)
    loss.backward()
    out = {f"hidden/{i}": h for i, h in enumerate(y.hidden_states)}
    out |= {"logits": y.logits, "loss": loss[None], "ids": ids.int(), "mask": mask.to(torch.uint8)}
    for parameter, p in model.named_parameters():
        assert torch.isfinite(p.grad).all(), parameter
        out["gradient/" + parameter] = p.grad
    save_file({n: (x.detach().float() if x.is_floating_point() else x).contiguous()
               for n, x in out.items()}, name + "/expected.safetensors")


def llama(**extra):
    return LlamaConfig(**(SIZES | dict(attn_implementation="eager") | extra))


os.chdir(os.path.dirname(os.path.abspath(__file__)))
# Four pairs of features: one keeps its frequency, one is between, two are divided.
make("llama", LlamaForCausalLM,
     llama(head_dim=8, tie_word_embeddings=True, rms_norm_eps=1e-5, max_position_embeddings=64,
           rope_parameters=dict(rope_type="llama3", rope_theta=100.0, factor=8.0,
                                low_freq_factor=1.0, high_freq_factor=4.0,
                                original_max_position_embeddings=32)), 11)
make("llama_linear", LlamaForCausalLM,
     llama(num_key_value_heads=4, attention_bias=True, mlp_bias=True,
           rope_parameters=dict(rope_type="linear", rope_theta=50.0, factor=4.0)),
     12, torch.bfloat16, shard="7KB")
make("mistral", MistralForCausalLM,
     MistralConfig(**SIZES, head_dim=6, sliding_window=24, attn_implementation="eager"),
     13, torch.float16)
make("qwen2", Qwen2ForCausalLM,
     Qwen2Config(**SIZES, tie_word_embeddings=True, attn_implementation="eager"),
     14, torch.bfloat16)
make("qwen3", Qwen3ForCausalLM,
     Qwen3Config(**SIZES, head_dim=10, attn_implementation="eager"), 15, torch.float16)
make("gpt2", GPT2LMHeadModel,
     GPT2Config(vocab_size=VOCAB, n_positions=32, n_embd=16, n_layer=2, n_head=4, n_inner=24,
                resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, bos_token_id=None,
                eos_token_id=None, attn_implementation="eager"), 16)
