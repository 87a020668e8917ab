#!/usr/bin/env python3
"""Dumps of brine_sea.dump against those of `brine dump`: the same models, windows and values.

    tests/peer/dumps.py build/release/brine TEXT

Random models of every family that Brine loads, with a tokenizer trained on TEXT, are saved and dumped by both in f32,
with every content. Exit 1 if hashes differ, or numbers by more than 1e-5 of the largest of their tensor. A student
then learns from the dump of PyTorch alone.
"""
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2] / "apps/python"))
import brine_sea  # noqa: E402

SIZES = dict(vocab_size=512, hidden_size=32, num_hidden_layers=3, num_attention_heads=4, max_position_embeddings=128)
GROUPED = SIZES | dict(intermediate_size=64, num_key_value_heads=2)
CONFIGS = {
    "LlamaConfig": GROUPED,
    "MistralConfig": GROUPED | dict(sliding_window=None),
    "Qwen2Config": GROUPED,
    "Qwen3Config": GROUPED | dict(head_dim=8),
    "OPTConfig": SIZES | dict(ffn_dim=64, word_embed_proj_dim=32, dropout=0.0),
    "GPT2Config": dict(vocab_size=512, n_embd=32, n_layer=3, n_head=4, n_positions=128),
    "BertConfig": SIZES | dict(intermediate_size=64, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0),
}
CONTENTS = {"qk": {"value": True}, "maps": {}, "pooled": {"columns": 12, "value": True}, "none": {}}


def run(*command):
    subprocess.run([str(part) for part in command], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def main():
    brine, text = sys.argv[1:]
    failed = False
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        (work / "text.txt").write_bytes(Path(text).read_bytes()[:6000])
        run(brine, "tokenizer", "--train", text, "--vocab-size", 512, "--out", work / "tok")
        tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(work / "tok/tokenizer.json"))
        for name, settings in CONFIGS.items():
            torch.manual_seed(0)
            encoder = name.startswith("Bert")
            kind = transformers.AutoModelForMaskedLM if encoder else transformers.AutoModelForCausalLM
            model = kind.from_config(getattr(transformers, name)(**settings))
            model.save_pretrained(work / name)
            for file in (work / "tok").iterdir():
                (work / name / file.name).write_bytes(file.read_bytes())
            for content, options in CONTENTS.items():
                ours, theirs = work / f"{name}.brine.{content}", work / f"{name}.torch.{content}"
                flags = [f"--{key}" if value is True else f"--{key}={value}" for key, value in options.items()]
                run(brine, "dump", "--model", work / name, "--data", work / "text.txt", "--sequence-length", 48,
                    "--top-logits", 8, "--dtype", "f32", "--content", content, *flags, "--out", ours)
                brine_sea.dump(model, tokenizer, (work / "text.txt").read_text(), theirs, length=48, dtype="f32",
                               top_logits=8, content=content, progress=False, **options)
                worst = largest_difference(brine_sea.Dump(ours), brine_sea.Dump(theirs))
                print(f"{name:14s} {content:7s} largest difference {worst:.1e}", flush=True)
                failed |= not worst <= 1e-5
            dump, out = work / f"{name}.torch.qk", work / f"{name}.run"
            of_text = ["--losses.task", 0] if encoder else []  # an encoder predicts no next tokens
            run(brine, "distill", "--teacher", work / name, "--dump", dump, "--steps", 2, *of_text, "--out", out)
    sys.exit(failed)


def largest_difference(a, b):
    """The largest difference, over the largest number of its tensor."""
    for key in ("samples", "layers", "heads", "head_size", "key_heads", "hidden", "vocab", "tokens", "columns",
                "has_value", "teacher_hash", "version"):
        if a.manifest[key] != b.manifest[key]:
            raise SystemExit(f"{key} is {a.manifest[key]} and {b.manifest[key]}")
    worst = 0.0
    for sample in range(a.manifest["samples"]):
        if a.names() != b.names():
            raise SystemExit(f"tensors are {a.names()} and {b.names()}")
        layers = [(a.layer(sample, i), b.layer(sample, i)) for i in range(a.manifest["layers"])]
        pairs = [(x, theirs[name]) for ours, theirs in layers for name, x in ours.items()]
        pairs += [(a.logits(sample)[name], b.logits(sample)[name]) for name in ("values", "lse")]
        for x, y in pairs:
            worst = max(worst, float(np.abs(x - y).max() / np.abs(x).max()))
    return worst


if __name__ == "__main__":
    main()
