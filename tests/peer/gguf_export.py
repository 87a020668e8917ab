#!/usr/bin/env python3
"""`brine export` of a GGUF file against the package gguf and transformers.

    pip install torch transformers gguf
    python3 tests/peer/gguf_export.py build/release/brine MODEL.gguf [--text FILE] [--tokens 1024] [--prompt TEXT...]
    python3 tests/peer/gguf_export.py build/release/brine --random SEED

MODEL.gguf, an architecture with the row order of `llama`: every tensor of the export in f32 has the bits of gguf.quants.dequantize; with
--text the perplexity of one window of the first tokens by transformers' LlamaForCausalLM and by `brine eval`, of the GGUF file and of
the export; with --prompt the greedy continuation by both, 32 tokens. --random makes models of one layer whose matrices are random
blocks of one type, with scales from all finite f16 up to 256 in size, subnormal ones too. The exit status is 1 if anything differs.
"""
import argparse
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy
from gguf import GGMLQuantizationType as Type
from gguf import GGUFReader, GGUFWriter
from gguf.constants import GGML_QUANT_SIZES
from gguf.quants import dequantize
from safetensors.numpy import load_file

NAMES = {"token_embd": "model.embed_tokens", "output_norm": "model.norm", "output": "lm_head"}
BLOCK = {"attn_norm": "input_layernorm", "ffn_norm": "post_attention_layernorm", "attn_q": "self_attn.q_proj",
         "attn_k": "self_attn.k_proj", "attn_v": "self_attn.v_proj", "attn_output": "self_attn.o_proj",
         "ffn_gate": "mlp.gate_proj", "ffn_up": "mlp.up_proj", "ffn_down": "mlp.down_proj"}


def hf_name(name):
    parts = name.split(".")
    if parts[0] != "blk":
        return NAMES[parts[0]] + "." + parts[1]
    return f"model.layers.{parts[1]}.{BLOCK[parts[2]]}.{parts[3]}"


def halves(weight, heads):
    """Rows in the order of rotary pairs as Hugging Face has them."""
    size = weight.shape[0] // heads
    parts = weight.reshape(heads, size // 2, 2, *weight.shape[1:])
    return parts.swapaxes(1, 2).reshape(weight.shape)


def expected(path):
    reader = GGUFReader(path)
    heads = reader.fields["llama.attention.head_count"].contents()
    groups = reader.fields["llama.attention.head_count_kv"].contents()
    out = {}
    for t in reader.tensors:
        values = numpy.asarray(dequantize(t.data, t.tensor_type), numpy.float32).reshape(
            tuple(int(n) for n in reversed(t.shape)))
        if ".attn_q." in t.name:
            values = halves(values, heads)
        elif ".attn_k." in t.name:
            values = halves(values, groups)
        out[hf_name(t.name)] = values
    return out, sorted({t.tensor_type.name for t in reader.tensors})


def export(brine, path, out):
    subprocess.run([brine, "export", "--checkpoint", path, "--out", out, "--dtype", "f32", "--quiet"],
                   check=True, stderr=subprocess.DEVNULL)


def same_tensors(path, out):
    wanted, types = expected(path)
    got = load_file(out / "model.safetensors")
    head = "lm_head.weight"
    if head in got and head not in wanted:
        del got[head]
    bad = sorted(wanted.keys() ^ got.keys())
    for name in wanted.keys() & got.keys():
        a, b = (numpy.ascontiguousarray(x[name]) for x in (wanted, got))
        if a.shape != b.shape or a.tobytes() != b.tobytes():
            bad.append(name)
    count = sum(x.size for x in wanted.values())
    print(f"{pathlib.Path(path).name:36} {len(wanted):4} tensors, {count} values, {', '.join(types)}: "
          f"{'equal bits' if not bad else 'DIFFERENT: ' + ', '.join(bad[:8])}", flush=True)
    return not bad


def random_model(path, kind, draw):
    """Random blocks of one type in every matrix of a llama of one layer."""
    writer = GGUFWriter(path, "llama")
    vocab, hidden, inner, heads, groups = 24, 256, 512, 4, 2
    for key, value in {"block_count": 1, "context_length": 64, "embedding_length": hidden,
                       "feed_forward_length": inner, "attention.head_count": heads,
                       "attention.head_count_kv": groups}.items():
        writer.add_uint32(f"llama.{key}", value)
    writer.add_float32("llama.attention.layer_norm_rms_epsilon", 1e-5)
    values, size = GGML_QUANT_SIZES[kind]
    scales = {Type.F16: None, Type.BF16: None, Type.F32: None, Type.Q6_K: [208], Type.Q4_1: [0, 2],
              Type.Q5_1: [0, 2], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2]}.get(kind, [0])

    def matrix(rows, columns):
        if scales is None:
            bits = draw.integers(0, 1 << 32, (rows, columns), dtype=numpy.uint32)
            if kind == Type.F16:
                return numpy.where(bits & 0x7C00 == 0x7C00, 0, bits).astype(numpy.uint16).view(numpy.float16)
            bits = numpy.where(bits & 0x7F800000 == 0x7F800000, 0, bits)
            if kind == Type.BF16:
                return (bits >> 16).astype(numpy.uint16).view(numpy.uint8)
            return bits.astype(numpy.uint32).view(numpy.float32)
        blocks = draw.integers(0, 256, (rows * columns // values, size), dtype=numpy.uint8)
        for at in scales:
            bits = draw.integers(0, 1 << 16, len(blocks), dtype=numpy.uint16)
            bits = numpy.where(bits & 0x7FFF > 0x5C00, bits & 0x9FFF, bits)
            blocks[:, at:at + 2] = bits.reshape(-1, 1).view(numpy.uint8)
        return blocks.reshape(rows, -1)
    shapes = {"token_embd": (vocab, hidden), "blk.0.attn_q": (hidden, hidden), "blk.0.attn_k": (hidden // 2, hidden),
              "blk.0.attn_v": (hidden // 2, hidden), "blk.0.attn_output": (hidden, hidden),
              "blk.0.ffn_gate": (inner, hidden), "blk.0.ffn_up": (inner, hidden), "blk.0.ffn_down": (hidden, inner),
              "output": (vocab, hidden)}
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        writer.add_tensor(name + ".weight", numpy.ones(hidden, numpy.float32))
    for name, shape in shapes.items():
        writer.add_tensor(name + ".weight", matrix(*shape),
                          raw_dtype=None if kind in (Type.F32, Type.F16) else kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def brine_perplexity(brine, model, text, tokens):
    done = subprocess.run([brine, "eval", "--model", model, "--data", text, "--sequence-length", str(tokens),
                           "--max-windows", "1", "--json", "--quiet", "--threads", "1"],
                          check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["perplexity"]


def brine_greedy(brine, model, prompt, tokens):
    done = subprocess.run([brine, "generate", "--model", model, "--prompt", prompt, "--tokens", str(tokens),
                           "--temperature", "0", "--json", "--quiet", "--threads", "1"],
                          check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def compare_with_transformers(options, out):
    import torch
    import transformers
    from hf_tokenizer import load

    torch.set_num_threads(1)
    model, info = transformers.LlamaForCausalLM.from_pretrained(out, output_loading_info=True, dtype=torch.float32)
    complaints = {key: list(value) for key, value in info.items() if value}
    good = not complaints
    print(f"transformers loads the export: {complaints or 'no complaint'}")
    tokenizer = load(out)
    if options.text:
        text = pathlib.Path(options.text).read_bytes().decode("utf-8-sig")
        ids = torch.tensor([tokenizer.encode(text[:20 * options.tokens], add_special_tokens=False)
                            .ids[:options.tokens]])
        with torch.no_grad():
            logits = model(input_ids=ids).logits[0, :-1].double()
        theirs = torch.nn.functional.cross_entropy(logits, ids[0, 1:]).exp().item()
        for name, path in (("GGUF", options.model), ("export", out)):
            ours = brine_perplexity(options.brine, path, options.text, options.tokens)
            good &= abs(ours / theirs - 1) < 1e-5
            print(f"perplexity of {options.tokens} tokens: transformers {theirs:.6f}, brine eval of the {name} "
                  f"{ours:.6f}, ratio - 1 = {ours / theirs - 1:.1e}")
    for prompt in options.prompt:
        ids = tokenizer.encode(prompt).ids
        with torch.no_grad():
            theirs = model.generate(torch.tensor([ids]), max_new_tokens=options.new, do_sample=False,
                                    pad_token_id=0)[0].tolist()
        ours = brine_greedy(options.brine, options.model, prompt, options.new)
        found = ours["sequences"][0]["tokens"]
        same = found == theirs[len(ids):]
        good &= same
        print(f"{prompt!r}: {'equal ids' if same else f'DIFFERENT: {theirs[len(ids):]} {found}'}: "
              f"{tokenizer.decode(theirs[len(ids):])!r}")
    return good


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("brine")
    parser.add_argument("model", nargs="?")
    parser.add_argument("--text")
    parser.add_argument("--tokens", type=int, default=1024)
    parser.add_argument("--prompt", nargs="*", default=[])
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--random", type=int, action="append", default=[])
    options = parser.parse_args()
    good = True
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        for seed in options.random:
            draw = numpy.random.default_rng(seed)
            for kind in (Type.F32, Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0,
                         Type.Q4_K, Type.Q5_K, Type.Q6_K):
                path = scratch / f"{kind.name}-{seed}.gguf"
                random_model(path, kind, draw)
                export(options.brine, path, scratch / path.stem)
                good &= same_tensors(path, scratch / path.stem)
        if options.model:
            export(options.brine, options.model, scratch / "out")
            good &= same_tensors(options.model, scratch / "out")
            if options.text or options.prompt:
                good &= compare_with_transformers(options, scratch / "out")
    sys.exit(not good)


if __name__ == "__main__":
    main()
