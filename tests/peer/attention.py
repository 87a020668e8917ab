#!/usr/bin/env python3
"""The rows of flash attention in `brine bench attention`, in PyTorch.

Causal softmax attention, or with --bidirectional an encoder's, 1 x 12 heads x T x 64, f32 or bf16, q, k, v to
context; forward, and forward with backward. scaled_dot_product_attention and softmax(q k^T / sqrt(d)) v are
timed, the latter while its maps fit; the rate counts the visible part of the T x T products, as Brine's does.
"""
import argparse
import math

import torch
from torch.nn import functional as F

from timing import median_ms

HEADS, SIZE = 12, 64
MAX_MAPS = 6e9  # bytes


def explicit(q, k, v, causal):
    tokens = q.shape[-2]
    scores = q @ k.transpose(-1, -2) / math.sqrt(SIZE)
    if causal:
        hidden = torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        scores = scores.masked_fill(hidden, -math.inf)
    return torch.softmax(scores, dim=-1) @ v


def fused(q, k, v, causal):
    return F.scaled_dot_product_attention(q, k, v, is_causal=causal)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=1.5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--compute", choices=["f32", "bf16"], default="f32")
    parser.add_argument("--bidirectional", action="store_true")
    args = parser.parse_args()
    causal = not args.bidirectional
    dtype = torch.bfloat16 if args.compute == "bf16" else torch.float32
    torch.set_num_threads(args.threads)
    forms = {"softmax(qk)v": explicit}
    if hasattr(F, "scaled_dot_product_attention"):
        forms["scaled_dot_product_attention"] = fused
    print(f"PyTorch {torch.__version__}, {args.threads} threads, {args.compute}")
    for tokens in args.tokens:
        x = [torch.randn(1, HEADS, tokens, SIZE, dtype=dtype, requires_grad=True)
             for _ in range(3)]
        dy = torch.randn(1, HEADS, tokens, SIZE, dtype=dtype)
        for name, form in forms.items():
            if form is explicit and 12.0 * HEADS * tokens * tokens > MAX_MAPS:
                continue

            def forward():
                with torch.no_grad():
                    form(*x, causal)

            def both():
                for leaf in x:
                    leaf.grad = None
                form(*x, causal).backward(dy)

            for what, run, products in [("forward", forward, 2), ("forward + backward", both, 7)]:
                ms = median_ms(run, args.seconds)
                seen = tokens * (tokens + 1) if causal else 2 * tokens * tokens
                rate = products * HEADS * seen * SIZE / ms / 1e6
                print(f"T {tokens:6d} {ms:10.2f} ms {rate:7.1f} GFLOP/s  {name}, {what}", flush=True)


if __name__ == "__main__":
    main()
