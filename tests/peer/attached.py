#!/usr/bin/env python3
"""A prompt read by a model of transformers, with sdpa and with attached blocks, in turns on a CPU.

    BRINE_LIBRARY=build/release/libbrine.so python3 tests/peer/attached.py MODEL TEXT --tokens 8192

The hidden states of the text's first tokens, without logits and cache. Blocks are calibrated by the turn that does
not count. Without BRINE_LIBRARY, PyTorch's operations compute the blocks.
"""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import transformers

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "apps" / "python"))

import brine_sea  # noqa: E402


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("text")
    parser.add_argument("--tokens", type=int, nargs="+", default=[8192])
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)

    def load():
        return transformers.AutoModelForCausalLM.from_pretrained(
            args.model, dtype=torch.float32, attn_implementation="sdpa").eval()

    models = {"sdpa": load(), "blocks": brine_sea.attach(load(), {"method": "blocks"})}
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.model)
    ids = tokenizer(Path(args.text).read_text(), return_tensors="pt").input_ids
    for tokens in args.tokens:
        seconds = {name: [] for name in models}
        for turn in range(args.turns + 1):
            for name, model in models.items():
                begin = time.perf_counter()
                with torch.inference_mode():
                    model.model(ids[:, :tokens], use_cache=False)
                if turn:
                    seconds[name].append(time.perf_counter() - begin)
        medians = {name: statistics.median(of) for name, of in seconds.items()}
        print(json.dumps({"tokens": tokens, **medians, "times": medians["sdpa"] / medians["blocks"]}), flush=True)


if __name__ == "__main__":
    main()
