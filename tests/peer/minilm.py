#!/usr/bin/env python3
"""Rows "encoder" of `brine bench train` in PyTorch and transformers: a classifier of MiniLM's size (6 layers x 384,
12 heads, 30,522 words, random weights, no dropout), f32, 32 texts of 128 tokens.

Forward and training step (forward, backward, clip, AdamW), each in both forms of attention that
transformers has and every form of AdamW that this PyTorch has; the fastest counts. Prints one JSON
line a combination and the best ones last, with the peak memory of the process.

Usage: minilm.py [--threads N] [--seconds S]
"""
import argparse
import inspect
import json
import resource

import torch
from transformers import BertConfig, BertForSequenceClassification

from timing import median_ms

B, T = 32, 128


def model_with(attention):
    config = BertConfig(vocab_size=30522, hidden_size=384, num_hidden_layers=6,
                        num_attention_heads=12, intermediate_size=1536, hidden_dropout_prob=0,
                        attention_probs_dropout_prob=0, num_labels=2)
    config._attn_implementation = attention
    return BertForSequenceClassification(config)


def main():
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--threads", type=int, default=2)
    arguments.add_argument("--seconds", type=float, default=4)
    args = arguments.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(1)
    ids = torch.randint(30522, (B, T))
    labels = torch.zeros(B, dtype=torch.long)
    forms = [{}] + [{f: True} for f in ("foreach", "fused")
                    if f in inspect.signature(torch.optim.AdamW.__init__).parameters]
    best = {}

    def note(what, how, ms):
        print(json.dumps({"what": what, **how, "ms": round(ms, 2)}), flush=True)
        best[what] = min(best.get(what, ms), ms)

    for attention in ("sdpa", "eager"):
        model = model_with(attention)
        model.eval()
        with torch.no_grad():
            note("forward", {"attention": attention}, median_ms(lambda: model(ids), args.seconds))
        model.train()
        for form in forms:
            optimizer = torch.optim.AdamW(model.parameters(), lr=1e-5, weight_decay=0.01, **form)

            def step():
                optimizer.zero_grad()
                model(ids, labels=labels).loss.backward()
                torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
                optimizer.step()

            note("training step", {"attention": attention, "adamw": list(form)},
                 median_ms(step, args.seconds, warm_up=3))
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"torch": torch.__version__, "best_ms": best, "peak_mib": round(peak)}))


if __name__ == "__main__":
    main()
