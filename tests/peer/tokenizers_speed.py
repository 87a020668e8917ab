#!/usr/bin/env python3
"""How fast Hugging Face's `tokenizers` encodes, in one thread: the work of `brine bench tokenizer`.

    tokenizers_speed.py TOKENIZER TEXT      TOKENIZER: a directory or a GGUF file

Prints MB/s of the whole text and of its lines without special tokens (Brine's "whole text" and
"by lines") and of lines with special tokens and offsets, the median of five runs each.
"""
import os

os.environ["TOKENIZERS_PARALLELISM"] = "false"
os.environ["RAYON_NUM_THREADS"] = "1"

import pathlib
import statistics
import sys
import time

from hf_tokenizer import load
from tokenizers import __version__


def main():
    tokenizer = load(sys.argv[1])
    text = pathlib.Path(sys.argv[2]).read_text(encoding="utf-8")
    size = len(text.encode())
    lines = [line for line in text.split("\n") if line]
    print(f"tokenizers {__version__}, {size} bytes")

    def measure(name, run):
        run()
        times = []
        for _ in range(5):
            start = time.perf_counter()
            count = run()
            times.append(time.perf_counter() - start)
        seconds = statistics.median(times)
        print(f"{name:40} {seconds * 1e3:10.1f} ms {size / seconds / 1e6:8.2f} MB/s {count} tokens")

    def count(encodings):
        return sum(len(e) for e in encodings)

    # A text of many megabytes at once is slower for `tokenizers` than its lines.
    measure("whole text", lambda: len(tokenizer.encode(text, add_special_tokens=False)))
    measure("by lines", lambda: count(tokenizer.encode(line, add_special_tokens=False)
                                      for line in lines))
    measure("by lines, one batch without offsets",
            lambda: count(tokenizer.encode_batch_fast(lines, add_special_tokens=False)))
    measure("by lines, special tokens and offsets",
            lambda: count(tokenizer.encode_batch(lines)))


main()
