#!/usr/bin/env python3
"""How fast Hugging Face's `tokenizers` encodes, in one thread: the work of `brine bench tokenizer`.

    tokenizers_speed.py DIR TEXT      DIR: tokenizer.json, vocab.txt, or vocab.json and merges.txt

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

from tokenizers import (BertWordPieceTokenizer, Tokenizer, __version__, models, pre_tokenizers,
                        processors)


def load(directory):
    if (directory / "tokenizer.json").exists():
        return Tokenizer.from_file(str(directory / "tokenizer.json"))
    if (directory / "vocab.txt").exists():
        return BertWordPieceTokenizer(str(directory / "vocab.txt"))
    tokenizer = Tokenizer(models.BPE.from_file(str(directory / "vocab.json"),
                                               str(directory / "merges.txt")))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def main():
    tokenizer = load(pathlib.Path(sys.argv[1]))
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
    batch = getattr(tokenizer, "encode_batch_fast", None) or tokenizer._tokenizer.encode_batch_fast
    measure("by lines, one batch without offsets",
            lambda: count(batch(lines, add_special_tokens=False)))
    measure("by lines, special tokens and offsets",
            lambda: count(tokenizer.encode_batch(lines)))


main()
