#!/usr/bin/env python3
"""Brine's load of a pytorch_model.bin of OPT-125M's shape: its time, and whether it gives the bits of model.safetensors.

    pip install torch transformers && python3 tests/peer/torch_bin.py build/release/brine TOKENIZER

Random weights by transformers, saved by torch.save and by safetensors, in f32 and in f16, alone and in shards, whole (with the
head that is the embedding) and without the prefix "model.", as files of a model without its head have it. Each is exported by
Brine in f32: the files must have the same SHA-256. The time is that of `brine generate --tokens 1`, program start and tokenizer
(TOKENIZER: vocab.json and merges.txt of OPT) included, the median of five with the files in the page cache; next to it that of
torch.load with load_state_dict, without the start of Python.
"""
import argparse
import hashlib
import json
import pathlib
import shutil
import subprocess
import tempfile

import torch
import transformers
from safetensors.torch import save_file
from timing import median_ms


def save(state, folder, config, kind, shards):
    folder.mkdir()
    config.save_pretrained(folder)
    names = list(state)
    parts = [names[i::shards] for i in range(shards)]
    ending = "bin" if kind == "bin" else "safetensors"
    stem = "pytorch_model" if kind == "bin" else "model"
    places = {}
    for i, part in enumerate(parts):
        name = f"{stem}.{ending}" if shards == 1 else f"{stem}-{i + 1:05}-of-{shards:05}.{ending}"
        tensors = {n: state[n] for n in part}
        if kind == "bin":
            torch.save(tensors, folder / name)
        else:
            save_file({n: t.clone().contiguous() for n, t in tensors.items()}, folder / name)
        places |= dict.fromkeys(part, name)
    if shards > 1:
        index = {"metadata": {"total_size": 0}, "weight_map": places}
        (folder / f"{stem}.{ending}.index.json").write_text(json.dumps(index))
    return folder


def exported(brine, folder, scratch):
    out = scratch / "out"
    subprocess.run(["rm", "-rf", out], check=True)
    subprocess.run([brine, "export", "--checkpoint", folder, "--out", out, "--quiet"], check=True)
    return hashlib.sha256((out / "model.safetensors").read_bytes()).hexdigest()


def generate(brine, folder):
    subprocess.run([brine, "generate", "--model", folder, "--prompt", "The", "--tokens", "1", "--temperature",
                    "0", "--quiet", "--threads", "1"], check=True, capture_output=True)


def load_by_torch(folder, model):
    model.load_state_dict(torch.load(folder / "pytorch_model.bin"))


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("brine")
    parser.add_argument("tokenizer", type=pathlib.Path)
    options = parser.parse_args()
    torch.manual_seed(3)
    config = transformers.OPTConfig()  # the defaults are OPT-125M's
    config.architectures = ["OPTForCausalLM"]
    model = transformers.OPTForCausalLM(config)
    whole = model.state_dict()  # the head is the embedding's tensor
    plain = {name.removeprefix("model."): t for name, t in whole.items() if name != "lm_head.weight"}
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        for dtype in (torch.float32, torch.float16):
            hashes = set()
            for label, state, kind, shards in (("safetensors", whole, "safetensors", 1),
                                               ("bin", whole, "bin", 1),
                                               ("bin, no prefix", plain, "bin", 1),
                                               ("bin, 3 shards", whole, "bin", 3)):
                cast = {n: t.to(dtype) for n, t in state.items()}  # in f32 the same tensors
                folder = save(cast, scratch / f"{dtype}-{label}".replace(" ", ""), config, kind, shards)
                for file in ("vocab.json", "merges.txt"):
                    shutil.copy(options.tokenizer / file, folder)
                digest = exported(options.brine, folder, scratch)
                hashes.add(digest)
                took = median_ms(lambda: generate(options.brine, folder), 0)
                print(f"{str(dtype):14} {label:16} sha256 of the export {digest[:16]}, first token after "
                      f"{took:.0f} ms", end="", flush=True)
                if label == "bin":
                    took = median_ms(lambda: load_by_torch(folder, model), 0)
                    print(f", torch.load {took:.0f} ms", end="")
                print(flush=True)
            bad += len(hashes) != 1
            print(f"{str(dtype):14} {'equal' if len(hashes) == 1 else 'DIFFERENT'}")
    return bad


if __name__ == "__main__":
    raise SystemExit(main())
