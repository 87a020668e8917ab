#!/usr/bin/env python3
"""Causal attention of PyTorch on a GPU, 1 x 12 heads x T x 64 in bf16: what SEA is held against.

scaled_dot_product_attention with its FlashAttention and cuDNN backends, forward, and forward with
backward; the rows of `brine bench attention --device cuda --compute bf16` have the same shapes.
"""
import argparse
import json

import torch
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from timing import cuda_median_ms

HEADS, SIZE = 12, 64
BACKENDS = {"FlashAttention": SDPBackend.FLASH_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--tokens", type=int, nargs="+",
                        default=[2048, 4096, 8192, 16384, 32768, 65536, 131072])
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device")
    rows = []
    if not args.json:
        print(f"PyTorch {torch.__version__}, {torch.cuda.get_device_name()}")
    for tokens in args.tokens:
        x = [torch.randn(1, HEADS, tokens, SIZE, device="cuda", dtype=torch.bfloat16,
                         requires_grad=True) for _ in range(3)]
        dy = torch.randn_like(x[0])

        def forward():
            with torch.no_grad():
                F.scaled_dot_product_attention(*x, is_causal=True)

        def both():
            for leaf in x:
                leaf.grad = None
            F.scaled_dot_product_attention(*x, is_causal=True).backward(dy)

        for name, backend in BACKENDS.items():
            for what, run in [("forward", forward), ("forward + backward", both)]:
                try:
                    with sdpa_kernel(backend):
                        ms = cuda_median_ms(run, args.seconds)
                except RuntimeError as refusal:
                    if not args.json:
                        print(f"T {tokens:7d} {name:15s} {what:18s} refused: {str(refusal)[:60]}")
                    continue
                rows.append({"tokens": tokens, "backend": name, "what": what, "ms": ms})
                if not args.json:
                    print(f"T {tokens:7d} {name:15s} {what:18s} {ms:9.3f} ms", flush=True)
    if args.json:
        print(json.dumps({"torch": torch.__version__, "rows": rows}))


if __name__ == "__main__":
    main()
