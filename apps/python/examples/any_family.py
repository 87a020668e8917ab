#!/usr/bin/env python3
"""A student of a family that Brine does not load: a dump in PyTorch, blocks calibrated by Brine, the model with them.

    any_family.py gemma3 --text TEXT [--model DIR] [--brine build/release/brine]

A small random model of the family learns TEXT for a moment, unless DIR has a model and its tokenizer.
"""

import argparse
import os
import subprocess
import tempfile
from pathlib import Path

import torch
import transformers

import brine_sea

SIZES = dict(hidden_size=64, intermediate_size=128, num_hidden_layers=3, num_attention_heads=4, vocab_size=259)
SIZES |= dict(max_position_embeddings=256, pad_token_id=0, bos_token_id=1, eos_token_id=2)
KINDS = ["sliding_attention", "full_attention", "full_attention"]
FAMILIES = {
    "gemma3": ("Gemma3TextConfig", dict(num_key_value_heads=2, head_dim=32, sliding_window=32, layer_types=KINDS)),
    "phi3": ("Phi3Config", dict(num_key_value_heads=2)),
    "gpt_neox": ("GPTNeoXConfig", dict()),
    "olmo2": ("Olmo2Config", dict(num_key_value_heads=2)),
}
SETTINGS = dict(attention="blocks", k=56, block=8, tile=8, candidates=12)


def byte_ids(text, **options):
    """A tokenizer: the bytes of a text, after three special tokens."""
    return {"input_ids": [3 + byte for byte in text.encode()]}


def learn(model, ids, steps=150):
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for step in range(steps):
        optimizer.zero_grad()
        batch = ids[step * 8 % (len(ids) - 8) :][:8]
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()


@torch.no_grad()
def perplexity(model, ids):
    return float(torch.stack([model(input_ids=row[None], labels=row[None]).loss for row in ids]).mean().exp())


parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("family", choices=FAMILIES)
for name, default in (("text", None), ("model", None), ("brine", os.environ.get("BRINE", "brine"))):
    parser.add_argument(f"--{name}", default=default, required=name == "text")
given = parser.parse_args()
torch.manual_seed(0)
text, length, tokenizer = Path(given.text).read_text(errors="ignore")[:60000], 192, byte_ids
if given.model:
    tokenizer = transformers.AutoTokenizer.from_pretrained(given.model)
    model = transformers.AutoModelForCausalLM.from_pretrained(given.model)
else:
    config, more = FAMILIES[given.family]
    model = transformers.AutoModelForCausalLM.from_config(getattr(transformers, config)(**SIZES | more))
ids = tokenizer(text)["input_ids"]
ids = torch.tensor(ids[: len(ids) // length * length]).view(-1, length)
if not given.model:
    learn(model, ids[:-8])
print(f"dense {perplexity(model.eval(), ids[-8:]):.3f}")
settings = {key: value for key, value in SETTINGS.items() if key != "attention"}
brine_sea.attach(model, {"method": "blocks"} | settings)
print(f"by the first prompt {perplexity(model, ids[-8:]):.3f}", flush=True)
layers = brine_sea.layers(model)  # those without a sliding window
brine_sea.detach(model)
with tempfile.TemporaryDirectory() as work:
    brine_sea.dump(model, tokenizer, text, f"{work}/dump", length=length, layers=layers, value=True)
    command = [given.brine, "distill", "--stages", "attention", "--dump", f"{work}/dump", "--out", f"{work}/blocks"]
    subprocess.run([*command, *(f"--{key}={SETTINGS[key]}" for key in SETTINGS)], check=True)
    brine_sea.attach(model, f"{work}/blocks")
print(f"calibrated {perplexity(model, ids[-8:]):.3f}")
print("generated", model.generate(ids[-1:, :64], max_new_tokens=16, do_sample=False, pad_token_id=0)[0, 64:].tolist())
