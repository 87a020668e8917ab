#!/usr/bin/env python3
"""An exported student's attention over blocks on a GPU, in PyTorch: its tiles, its flex_attention, and FlashAttention.

1 x 12 heads (and 9 over 3) x T x 64 in bf16, forward without gradients. `difference` is the largest
difference between the two forms of one mask.
"""
import argparse
import json
import sys
from functools import partial
from pathlib import Path

import torch
from timing import cuda_median_ms
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

sys.path.insert(0, str(Path(__file__).parents[2] / "apps/python"))
from brine_sea import blocks_brine_sea as blocks  # noqa: E402
from brine_sea.configuration_brine_sea import BlockSettings, Shape  # noqa: E402

SIZE = 64


@torch.no_grad()
def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192])
    args = parser.parse_args()
    if not torch.cuda.is_available():
        raise SystemExit("PyTorch sees no CUDA device")
    for tokens in args.tokens:
        for heads, groups in [(12, 12), (9, 3)]:
            shape = Shape(heads=heads, groups=groups, head_size=SIZE, max_positions=tokens, causal=True, rotary=False)
            made = blocks.BlockAttention(shape, BlockSettings()).cuda()
            q = torch.randn(1, heads, tokens, SIZE, device="cuda", dtype=torch.bfloat16)
            k, v = (torch.randn(1, groups, tokens, SIZE, device="cuda", dtype=torch.bfloat16) for _ in range(2))
            row = {"tokens": tokens, "heads": heads, "groups": groups}
            y = {}
            for backend in ("tiles", "flex"):
                made.backend = backend
                y[backend] = made(q, k, v)
                row[backend] = cuda_median_ms(partial(made, q, k, v), args.seconds)
            row["difference"] = (y["tiles"].float() - y["flex"].float()).abs().max().item()
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                dense = partial(F.scaled_dot_product_attention, q, k, v, is_causal=True, enable_gqa=groups < heads)
                row["FlashAttention"] = cuda_median_ms(dense, args.seconds)
            print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
