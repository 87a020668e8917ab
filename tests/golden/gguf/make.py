"""Writes golden GGUF files and what they contain (once, by hand).

    python3 make.py        (gguf 0.19, numpy, safetensors 0.8)

types.gguf, types.safetensors   every type that Brine reads, and gguf.quants' values of it in f32
llama, llama3, qwen2, qwen3, gpt2 (.gguf, .safetensors, .json)
    a small random model, and the same in Hugging Face's layout: tensors and config.json.
    llama and llama3 have the rows of queries and keys in the order of rotary pairs, as the
    converter of llama.cpp writes them; gpt2's weights are transposed.
"""

import json
import math
import pathlib

import numpy
from gguf import GGMLQuantizationType as Type
from gguf import GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize, quantize
from safetensors.numpy import save_file

here = pathlib.Path(__file__).parent
random = numpy.random.default_rng(13)


def normal(*shape):
    return random.standard_normal(shape).astype(numpy.float32)


def blocks(rows, count, kind):
    """Random blocks of a type of 256 values; their f16 scales are of ordinary size."""
    size = GGML_QUANT_SIZES[kind][1]
    out = random.integers(0, 256, (rows, count, size), dtype=numpy.uint8)
    places = [208] if kind == Type.Q6_K else [0, 2]
    for at in places:
        scale = (normal(rows, count) / 64).astype(numpy.float16)
        out[:, :, at : at + 2] = scale.view(numpy.uint8).reshape(rows, count, 2)
    return out.reshape(rows, count * size)


def write(name, arch, keys, tensors):
    """tensors: name -> (array, type); quantised ones are bytes already."""
    writer = GGUFWriter(here / f"{name}.gguf", arch)
    for key, value in keys.items():
        full = key if key.startswith(("general.", "tokenizer.")) else f"{arch}.{key}"
        if isinstance(value, bool):
            writer.add_bool(full, value)
        elif isinstance(value, int):
            writer.add_uint32(full, value)
        elif isinstance(value, float):
            writer.add_float32(full, value)
        elif isinstance(value, list):
            writer.add_array(full, value)
        else:
            writer.add_string(full, value)
    for tensor, (array, kind) in tensors.items():
        raw = None if kind in (Type.F32, Type.F16) else kind
        writer.add_tensor(tensor, array, raw_dtype=raw)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def packed(array, kind):
    return quantize(array, kind), kind


small = {
    "block_count": 1,
    "context_length": 64,
    "embedding_length": 32,
    "feed_forward_length": 64,
    "attention.head_count": 4,
}
tokens = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": ["<|end|>", "a", "b", "ab"],
    "tokenizer.ggml.token_type": [3, 1, 1, 1],
    "tokenizer.ggml.merges": ["a b"],
    "tokenizer.ggml.bos_token_id": 0,
    "tokenizer.ggml.eos_token_id": 0,
    "tokenizer.ggml.add_bos_token": False,
}

# All bytes as byte-level BPE spells them, a merge, and two special tokens.
printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
others = [byte for byte in range(256) if byte not in printable]
alphabet = {byte: chr(byte) for byte in printable}
alphabet |= {byte: chr(256 + i) for i, byte in enumerate(others)}
byte_tokens = tokens | {
    "tokenizer.ggml.tokens": ["<|end|>", *(alphabet[byte] for byte in range(256)), "th", "the", "<|x|>"],
    "tokenizer.ggml.token_type": [3] + [1] * 258 + [3],
    "tokenizer.ggml.merges": ["t h", "th e"],
}

# Every type.
stored = {"token_embd.weight": (normal(3, 32), Type.F32)}
for kind in (Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0):
    stored[kind.name.lower()] = packed(normal(3, 96) * 3, kind)
for kind in (Type.Q4_K, Type.Q5_K, Type.Q6_K):
    stored[kind.name.lower()] = (blocks(3, 2, kind), kind)
keys = small | tokens | {"rope.freq_base": 10000.0}
write("types", "llama", keys, stored)
values = {name: numpy.asarray(dequantize(*pair), numpy.float32) for name, pair in stored.items()}
values["model.embed_tokens.weight"] = values.pop("token_embd.weight")
save_file({name: numpy.ascontiguousarray(value) for name, value in values.items()},
          here / "types.safetensors")


def pairs(weight, heads):
    """Rows of each head reordered: feature i of the first half next to feature i of the second."""
    rows = weight.shape[0] // heads
    parts = weight.reshape(heads, 2, rows // 2, *weight.shape[1:])
    return numpy.ascontiguousarray(parts.swapaxes(1, 2).reshape(weight.shape))


def save_model(name, arch, keys, tensors, config):
    """tensors: GGUF name -> (Hugging Face's name, array in its layout, type, reordering)."""
    written, expected = {}, {}
    for gguf_name, (hf_name, array, kind, reorder) in tensors.items():
        array = numpy.ascontiguousarray(array)
        there = packed(reorder(array) if reorder else array, kind)
        written[gguf_name] = there
        value = numpy.asarray(dequantize(*there), numpy.float32)
        # The reordering is undone by applying it to the rows' numbers.
        if reorder is numpy.transpose:
            value = value.T
        elif reorder:
            order = reorder(numpy.arange(len(array)).reshape(-1, 1))[:, 0]
            back = numpy.empty_like(value)
            back[order] = value
            value = back
        expected[hf_name] = numpy.ascontiguousarray(value)
    write(name, arch, keys, written)
    save_file(expected, here / f"{name}.safetensors")
    (here / f"{name}.json").write_text(json.dumps(config, indent=2) + "\n")


def llama_like(biases=False, norms=False, reorder=True, tied=True, types=(Type.F32,) * 3, vocab=24):
    plain, matrix, embedding = types
    hidden, inner, heads, groups, size = 32, 64, 4, 2, 8

    def order(count):
        return (lambda w: pairs(w, count)) if reorder else None

    layer, block = "model.layers.0.", "blk.0."
    out = {
        "token_embd.weight": ("model.embed_tokens.weight", normal(vocab, hidden), embedding, None),
        "output_norm.weight": ("model.norm.weight", normal(hidden), plain, None),
        block + "attn_norm.weight": (layer + "input_layernorm.weight", normal(hidden), plain, None),
        block + "ffn_norm.weight": (
            layer + "post_attention_layernorm.weight", normal(hidden), plain, None),
    }
    for gguf_name, hf_name, rows, columns, reordering in (
        ("attn_q", "self_attn.q_proj", heads * size, hidden, order(heads)),
        ("attn_k", "self_attn.k_proj", groups * size, hidden, order(groups)),
        ("attn_v", "self_attn.v_proj", groups * size, hidden, None),
        ("attn_output", "self_attn.o_proj", hidden, heads * size, None),
        ("ffn_gate", "mlp.gate_proj", inner, hidden, None),
        ("ffn_up", "mlp.up_proj", inner, hidden, None),
        ("ffn_down", "mlp.down_proj", hidden, inner, None),
    ):
        out[f"{block}{gguf_name}.weight"] = (
            f"{layer}{hf_name}.weight", normal(rows, columns), matrix, reordering)
        if biases and gguf_name in ("attn_q", "attn_k", "attn_v"):
            out[f"{block}{gguf_name}.bias"] = (
                f"{layer}{hf_name}.bias", normal(rows), plain, reordering)
    if norms:
        for part in "qk":
            out[f"{block}attn_{part}_norm.weight"] = (
                f"{layer}self_attn.{part}_norm.weight", normal(size), plain, None)
    if not tied:
        out["output.weight"] = ("lm_head.weight", normal(vocab, hidden), matrix, None)
    return out


rotary = small | {"attention.head_count_kv": 2, "attention.layer_norm_rms_epsilon": 1e-5,
                  "rope.freq_base": 100000.0, "rope.dimension_count": 8, "vocab_size": 24}
config = {
    "hidden_act": "silu", "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64,
    "vocab_size": 24, "rms_norm_eps": 1e-5, "rope_theta": 100000.0, "rope_scaling": None,
    "bos_token_id": 0, "eos_token_id": 0,
}
llama = config | {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "head_dim": 8,
                  "attention_bias": False, "mlp_bias": False}

save_model("llama", "llama", rotary | byte_tokens | {"vocab_size": 260},
           llama_like(types=(Type.F32, Type.Q4_1, Type.Q8_0), vocab=260),
           llama | {"tie_word_embeddings": True, "vocab_size": 260})

# Llama 3's scaling by 8, as Meta's reference code has it, with heads of 8.
def llama3_factors(theta, size, factor, low, high, context):
    out = []
    for i in range(size // 2):
        wave = 2 * math.pi * theta ** (2 * i / size)
        if wave < context / high:
            out.append(1.0)
        elif wave > context / low:
            out.append(factor)
        else:
            smooth = (context / wave - low) / (high - low)
            out.append(1 / ((1 - smooth) / factor + smooth))
    return numpy.array(out, numpy.float32)


tensors = llama_like(tied=False)
factors = llama3_factors(500000.0, 8, 8.0, 1.0, 4.0, 8192)
scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
           "original_max_position_embeddings": 8192}
keys = rotary | tokens | {"rope.freq_base": 500000.0}
save_model("llama3", "llama", keys, tensors,
           llama | {"tie_word_embeddings": False, "rope_theta": 500000.0, "rope_scaling": scaling})
written = {name: packed(reorder(array) if reorder else array, kind)
           for name, (_, array, kind, reorder) in tensors.items()}
written["rope_freqs.weight"] = (factors, Type.F32)
write("llama3", "llama", keys, written)

save_model("qwen2", "qwen2", rotary | tokens | {"rope.scaling.type": "linear",
                                                "rope.scaling.factor": 2.5},
           llama_like(biases=True, reorder=False, types=(Type.F32, Type.F16, Type.F16)),
           config | {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"],
                     "tie_word_embeddings": True,
                     "rope_scaling": {"rope_type": "linear", "factor": 2.5}})

save_model("qwen3", "qwen3", rotary | tokens | {"attention.key_length": 8,
                                                "attention.value_length": 8},
           llama_like(norms=True, reorder=False, types=(Type.F32, Type.BF16, Type.Q5_1)),
           config | {"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "head_dim": 8,
                     "attention_bias": False, "tie_word_embeddings": True})

T = numpy.transpose
block, layer = "blk.0.", "transformer.h.0."
gpt2 = {
    "token_embd.weight": ("transformer.wte.weight", normal(24, 32), Type.Q8_0, None),
    "position_embd.weight": ("transformer.wpe.weight", normal(64, 32), Type.F32, None),
    "output_norm.weight": ("transformer.ln_f.weight", normal(32), Type.F32, None),
    "output_norm.bias": ("transformer.ln_f.bias", normal(32), Type.F32, None),
}
for gguf_name, hf_name, shape, turn, kind in (
    ("attn_norm", "ln_1", (32,), None, Type.F32),
    ("attn_qkv", "attn.c_attn", (32, 96), T, Type.Q4_0),
    ("attn_output", "attn.c_proj", (32, 32), T, Type.F16),
    ("ffn_norm", "ln_2", (32,), None, Type.F32),
    ("ffn_up", "mlp.c_fc", (32, 64), T, Type.Q5_0),
    ("ffn_down", "mlp.c_proj", (64, 32), T, Type.F32),
):
    gpt2[f"{block}{gguf_name}.weight"] = (f"{layer}{hf_name}.weight", normal(*shape), kind, turn)
    gpt2[f"{block}{gguf_name}.bias"] = (
        f"{layer}{hf_name}.bias", normal(shape[-1]), Type.F32, None)
save_model("gpt2", "gpt2", small | tokens | {"attention.layer_norm_epsilon": 1e-5}, gpt2,
           {"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 24,
            "n_positions": 64, "n_embd": 32, "n_layer": 1, "n_head": 4, "n_inner": 64,
            "activation_function": "gelu_new", "layer_norm_epsilon": 1e-5,
            "tie_word_embeddings": True, "bos_token_id": 0, "eos_token_id": 0})
# A head that repeats the embedding.
written = {name: packed(numpy.ascontiguousarray(turn(array)) if turn else array, kind)
           for name, (_, array, kind, turn) in gpt2.items()}
written["output.weight"] = written["token_embd.weight"]
write("gpt2", "gpt2", small | tokens | {"attention.layer_norm_epsilon": 1e-5}, written)
