#!/usr/bin/env python3
"""Compares the ids of `brine tokenize` with those of Hugging Face's `tokenizers` over whole files.

    tokenizer_ids.py BRINE TOKENIZER FILE...        TOKENIZER: a directory with tokenizer.json
    tokenizer_ids.py BRINE --from VOCABULARY FILE...
        VOCABULARY: a directory with GPT-2's vocab.json and merges.txt; the tokenizers of the
        structure of GPT-2, SmolLM2, Llama 3 and Qwen 2 are made around it, and those of Llama 2 and
        Mistral around a vocabulary of 8,000 tokens that is learned from the first file
    tokenizer_ids.py BRINE --random SEED ...        compares on random Unicode, too

Prints a line for each tokenizer and file; the exit status is 1 if one differs.
"""
import argparse
import json
import pathlib
import random
import subprocess
import sys
import tempfile

import numpy
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

sys.path.insert(0, str(pathlib.Path(__file__).parent.parent / "golden/tokenizer"))
from make_families import LLAMA3, QWEN2, byte_level, sequence, split  # noqa: E402


def brine_ids(brine, directory, file, scratch):
    out = pathlib.Path(scratch) / "shards"
    subprocess.run(["rm", "-rf", str(out)], check=True)
    subprocess.run([brine, "tokenize", "--tokenizer", str(directory), "--out", str(out),
                    "--separator", "none", str(file)], check=True, capture_output=True)
    shards = sorted(out.glob("tokens-*"))
    return numpy.concatenate([numpy.fromfile(s, "<u2" if s.suffix == ".u16" else "<u4")
                              for s in shards]).astype(numpy.int64)


def byte_level_families(vocabulary):
    merges = (vocabulary / "merges.txt").read_text(encoding="utf-8").split("\n")
    base = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [],
            "normalizer": None, "post_processor": None, "decoder": byte_level(),
            "model": {"type": "BPE", "vocab": json.loads((vocabulary / "vocab.json").read_text()),
                      "merges": [m.split(" ") for m in merges if m and not m.startswith("#version")]}}
    plain = byte_level(use_regex=False)
    digits = {"type": "Digits", "individual_digits": True}
    for name, change, ignore in (
            ("gpt2", {"pre_tokenizer": byte_level()}, False),
            ("smollm2", {"pre_tokenizer": sequence(digits, byte_level())}, False),
            ("llama3", {"pre_tokenizer": sequence(split(LLAMA3), plain)}, True),
            ("qwen2", {"pre_tokenizer": sequence(split(QWEN2), plain),
                       "normalizer": {"type": "NFC"}}, False)):
        yield name, {**base, **change, "model": {**base["model"], "ignore_merges": ignore}}


def character_families(file):
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.train([str(file)], trainers.BpeTrainer(
        vocab_size=8000, show_progress=False, limit_alphabet=200,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]))
    root = json.loads(tokenizer.to_str())
    root["added_tokens"] = root["added_tokens"][:3]
    decoders = [{"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "},
                {"type": "ByteFallback"}, {"type": "Fuse"},
                {"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    root["decoder"] = {"type": "Sequence", "decoders": decoders}
    llama2 = [{"type": "Prepend", "prepend": "\u2581"},
              {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]
    yield "llama2", {**root, "pre_tokenizer": None,
                     "normalizer": {"type": "Sequence", "normalizers": llama2}}
    yield "mistral", {**root, "normalizer": None, "pre_tokenizer": {
        "type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first", "split": False}}


def random_text(seed, scratch):
    draw = random.Random(seed)
    ends = (0x80, 0x80, 0x250, 0x3100, 0x10000, 0x110000)
    kinds = ["".join(map(chr, (32, 10, 13, 9, 0xA0, 0x3000, 0x85))), "'sStTrReEvVmMlLdD\u017f", "0123456789"]

    def one():
        if draw.random() < 0.4:
            return draw.choice(draw.choice(kinds))
        c = draw.randrange(draw.choice(ends))
        return " " if 0xD800 <= c < 0xE000 or c == 0xFEFF else chr(c)
    file = pathlib.Path(scratch) / f"random-{seed}.txt"
    file.write_bytes("".join(one() for _ in range(400000)).encode())
    return file


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("brine")
    parser.add_argument("paths", nargs="*", type=pathlib.Path)
    parser.add_argument("--from", dest="vocabulary", type=pathlib.Path)
    parser.add_argument("--random", type=int, action="append", default=[])
    options = parser.parse_args()
    files, made = list(options.paths), []
    different = 0
    with tempfile.TemporaryDirectory() as scratch:
        if options.vocabulary:
            made = list(byte_level_families(options.vocabulary)) + list(character_families(files[0]))
        else:
            directory = files.pop(0)
            made = [(directory.name, json.loads((directory / "tokenizer.json").read_text()))]
        files += [random_text(seed, scratch) for seed in options.random]
        for name, root in made:
            directory = pathlib.Path(scratch) / name
            directory.mkdir()
            (directory / "tokenizer.json").write_text(json.dumps(root))
            tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
            for file in files:
                text = file.read_bytes().decode("utf-8-sig")
                wanted = numpy.array(tokenizer.encode(text, add_special_tokens=False).ids)
                got = brine_ids(options.brine, directory, file, scratch)
                same = len(got) == len(wanted) and bool((got == wanted).all())
                different += not same
                print(f"{name:10} {file.name:28} {len(wanted):9} tokens "
                      f"{'equal' if same else 'DIFFERENT'}", flush=True)
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
