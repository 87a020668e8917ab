#!/usr/bin/env python3
"""The encoder layer of `brine bench train` in PyTorch: BERT-base sizes, forward + backward + AdamW.

Post-LN, GELU with erf, dense attention that is not causal, no dropout, batch 8 of 256 tokens; f32,
or bf16 by autocast with --compute bf16.
Attention is tried in both forms, scaled_dot_product_attention (where this PyTorch has it) and
softmax(q k^T / sqrt(d)) v; AdamW in every form that this PyTorch has. Each combination is timed and
the fastest counts. Prints one line per combination and the best one last.
"""
import argparse
import inspect
import json
import math

import torch
from torch import nn
from torch.nn import functional as F

from timing import median_ms

B, T, C, HEADS, INNER = 8, 256, 768, 12, 3072


def explicit_attention(q, k, v):
    scores = torch.matmul(q, k.transpose(-1, -2)) / math.sqrt(q.shape[-1])
    return torch.matmul(torch.softmax(scores, dim=-1), v)


def attention_forms():
    forms = {"softmax(qk)v": explicit_attention}
    if hasattr(F, "scaled_dot_product_attention"):
        forms["scaled_dot_product_attention"] = F.scaled_dot_product_attention
    return forms


class EncoderLayer(nn.Module):
    def __init__(self, attention):
        super().__init__()
        self.attention = attention
        self.qkv = nn.Linear(C, 3 * C)
        self.output = nn.Linear(C, C)
        self.fc1 = nn.Linear(C, INNER)
        self.fc2 = nn.Linear(INNER, C)
        self.norm1 = nn.LayerNorm(C)
        self.norm2 = nn.LayerNorm(C)

    def forward(self, x):
        batch, tokens, _ = x.shape
        qkv = self.qkv(x).view(batch, tokens, 3, HEADS, C // HEADS)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        context = self.attention(q, k, v).transpose(1, 2).reshape(batch, tokens, C)
        h = self.norm1(x + self.output(context))
        return self.norm2(h + self.fc2(F.gelu(self.fc1(h))))


def optimizer_forms():
    known = inspect.signature(torch.optim.AdamW.__init__).parameters
    forms = {"plain": {}}
    for name in ("foreach", "fused"):
        if name in known:
            forms[name] = {name: True}
    return forms


def time_step(attention, adamw, compute, seconds):
    """Median milliseconds of a step, at least five runs after three that are not counted."""
    torch.manual_seed(1)
    layer = EncoderLayer(attention)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-4, weight_decay=0.01, **adamw)
    x = torch.randn(B, T, C, requires_grad=True)
    dy = torch.randn(B, T, C)

    def step():
        optimizer.zero_grad(set_to_none=True)
        x.grad = None
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=compute == "bf16"):
            y = layer(x)
        y.backward(dy.to(y.dtype))
        optimizer.step()

    return median_ms(step, seconds, warm_up=3)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--compute", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--seconds", type=float, default=5, help="of each combination")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    results = {}
    for attention, form in attention_forms().items():
        for adamw, options in optimizer_forms().items():
            try:
                results[f"{attention}, AdamW {adamw}"] = time_step(form, options, args.compute,
                                                                     args.seconds)
            except RuntimeError as error:  # fused needs a GPU in older versions
                if not args.json:
                    print(f"{attention}, AdamW {adamw}: {error}")
    best = min(results, key=results.get)
    if args.json:
        print(json.dumps({"torch": torch.__version__, "threads": args.threads,
                          "compute": args.compute, "ms": results[best], "best": best,
                          "all": results}))
        return
    print(f"PyTorch {torch.__version__}, {args.threads} threads, {args.compute}, [{B}, {T}, {C}]")
    for name, ms in results.items():
        print(f"{ms:8.1f} ms  {name}")
    print(f"{results[best]:8.1f} ms  best: {best}")


if __name__ == "__main__":
    main()
