#!/usr/bin/env python3
"""Compares the ids of `brine tokenize` with those of Hugging Face's `tokenizers` over whole files.

    tokenizer_ids.py BRINE TOKENIZER FILE...
        TOKENIZER: a directory with tokenizer.json, with vocab.txt or with vocab.json and merges.txt,
        or a GGUF file
    tokenizer_ids.py BRINE --from VOCABULARY FILE...
        VOCABULARY: a directory with GPT-2's vocab.json and merges.txt; the tokenizers of the
        structure of GPT-2, SmolLM2, Llama 3 and Qwen 2 are made around it, and those of Llama 2 and
        Mistral around a vocabulary of 8,000 tokens that is learned from the first file
    tokenizer_ids.py BRINE --random SEED ...        compares on random Unicode, too

Prints a line for each tokenizer and file, and of a file that differs the shortest text found that
does; the exit status is 1 if one differs.
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

from hf_tokenizer import byte_level_root, load


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
    pairs = [m.split(" ") for m in merges if m and not m.startswith("#version")]
    tokens = json.loads((vocabulary / "vocab.json").read_text())
    for name, pre in (("gpt2", "gpt-2"), ("smollm2", "smollm"), ("llama3", "llama-bpe"),
                      ("qwen2", "qwen2")):
        yield name, byte_level_root(tokens, pairs, pre)


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


def shortest_difference(text, differs):
    """A part of `text` that still differs, by leaving out ever smaller parts."""
    count = 2
    while len(text) > 1 and count <= 2 * len(text):
        size = max(1, len(text) // count)
        cuts = [text[:i] + text[i + size:] for i in range(0, len(text), size)]
        shorter = next((cut for cut in cuts if differs(cut)), None)
        if shorter is not None:
            text, count = shorter, max(2, count - 1)
        elif size == 1:
            break
        else:
            count *= 2
    return text


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("brine")
    parser.add_argument("paths", nargs="*", type=pathlib.Path)
    parser.add_argument("--from", dest="vocabulary", type=pathlib.Path)
    parser.add_argument("--random", type=int, action="append", default=[])
    options = parser.parse_intermixed_args()
    files, made = list(options.paths), []
    different = 0
    with tempfile.TemporaryDirectory() as scratch:
        if options.vocabulary:
            for name, root in (*byte_level_families(options.vocabulary),
                               *character_families(files[0])):
                directory = pathlib.Path(scratch) / name
                directory.mkdir()
                (directory / "tokenizer.json").write_text(json.dumps(root))
                made.append((name, directory))
        else:
            made.append((files[0].stem, files.pop(0)))
        files += [random_text(seed, scratch) for seed in options.random]
        for name, path in made:
            tokenizer = load(path)

            def ids(text):
                return numpy.array(tokenizer.encode(text, add_special_tokens=False).ids)

            def differs(text):
                part = pathlib.Path(scratch) / "part.txt"
                part.write_bytes(text.encode())
                return not numpy.array_equal(ids(text), brine_ids(options.brine, path, part, scratch))
            for file in files:
                text = file.read_bytes().decode("utf-8-sig")
                wanted = ids(text)
                got = brine_ids(options.brine, path, file, scratch)
                same = numpy.array_equal(got, wanted)
                print(f"{name:24} {file.name:28} {len(wanted):9} tokens "
                      f"{'equal' if same else 'DIFFERENT'}", flush=True)
                if same:
                    continue
                different += 1
                short = min(len(got), len(wanted))
                at = int(numpy.append(numpy.flatnonzero(got[:short] != wanted[:short]), short)[0])
                around = tokenizer.decode(wanted[max(0, at - 20):at + 20], skip_special_tokens=False)
                example = shortest_difference(around, differs) if differs(around) else around
                print(f"    first at token {at}, e.g. {example!r}", flush=True)
    sys.exit(different > 0)


if __name__ == "__main__":
    main()
