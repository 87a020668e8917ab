#!/usr/bin/env python3
"""Dumps of the small models here by brine_sea.dump, in ../dumps: what PyTorch computes, for tests in C++.

Needs torch, transformers 5 and h5py; PYTHONPATH must have apps/python.
"""

import shutil
from pathlib import Path

import torch
import transformers

import brine_sea

HERE = Path(__file__).resolve().parent
LENGTHS = (9, 6)


class Ids:
    """Stands for a tokenizer: a text is the number of its tokens."""

    def __init__(self, vocabulary):
        self.vocabulary = vocabulary

    def __call__(self, text, **options):
        return {"input_ids": [3 + (i * 17 + 5) % (self.vocabulary - 3) for i in range(int(text))]}


for name in ("llama", "mistral", "qwen2", "qwen3", "gpt2", "opt", "bert_masked_lm"):
    config = transformers.AutoConfig.from_pretrained(HERE / name)
    kind = transformers.AutoModelForMaskedLM if name.startswith("bert") else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(HERE / name, dtype=torch.float32)
    out = HERE.parent / "dumps" / name
    shutil.rmtree(out, ignore_errors=True)
    texts = [str(n) for n in LENGTHS]
    ids = Ids(config.vocab_size)
    brine_sea.dump(model, ids, texts, out, windows=False, dtype="f32", value=True, top_logits=8, progress=False)
