#!/usr/bin/env python3
"""A whole model of transformers on a CPU, in turns: with PyTorch's sdpa, and with attached blocks.

    BRINE_LIBRARY=build/release/libbrine.so tests/peer/attached.py DIRECTORY TEXT --tokens 8192

DIRECTORY: a decoder that transformers loads (`brine export --format transformers` of a GGUF file's student has one).
Logits of the last token of the text's first tokens; prints a row a turn, and the median of their ratios.
"""
import argparse
import json
import statistics
import sys
import time
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).parents[2] / "apps/python"))
import brine_sea  # noqa: E402


@torch.no_grad()
def seconds(model, ids):
    start = time.perf_counter()
    model(ids, logits_to_keep=1, use_cache=False)
    return time.perf_counter() - start


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("directory")
    parser.add_argument("text", type=Path)
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    load = transformers.AutoModelForCausalLM.from_pretrained
    dense, student = (load(args.directory, dtype=torch.float32, attn_implementation="sdpa") for _ in range(2))
    tokenizer = transformers.AutoTokenizer.from_pretrained(args.directory)
    ids = tokenizer(args.text.read_text(), return_tensors="pt").input_ids[:, : args.tokens]
    brine_sea.attach(student, {"method": "blocks"})
    for model in (dense, student):  # caches are filled, blocks are calibrated
        seconds(model, ids)
    times = []
    for _ in range(args.rounds):
        sdpa, blocks = seconds(dense, ids), seconds(student, ids)
        times.append(sdpa / blocks)
        print(json.dumps({"tokens": ids.shape[1], "sdpa": sdpa, "blocks": blocks, "ratio": times[-1]}), flush=True)
    print(json.dumps({"torch": torch.__version__, "times as fast": statistics.median(times)}))


if __name__ == "__main__":
    main()
