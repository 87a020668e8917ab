#!/usr/bin/env python3
"""What Brine does with damaged weights: one line and exit 1, or the exit 0 of a file that is still good; never a crash,
never memory out of proportion.

    python3 tests/peer/damaged_weights.py build/release/brine FILE... [--cuts 20] [--flips 200] [--seed 1]

FILE: a GGUF file, a pytorch_model.bin or model.safetensors (config.json is next to it). Copies of it are cut at places spread
over the file and over its header, or have single bits, bytes and 8-byte numbers changed in the header, at the end or anywhere.
Each copy is read by `brine inspect` and exported, with the address space limited to 2 or 8 times the file's size and 1 GiB.
With --bombs, small files made to need much memory or time are read, too.
"""
import argparse
import os
import pathlib
import random
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import time
import zipfile


def bombs(folder):
    """(file name, bytes): small files whose parts refer to each other many times."""
    def pickled(text):
        return b"X" + struct.pack("<I", len(text)) + text.encode()

    def archive(pickle):
        path = folder / "bomb.zip"
        with zipfile.ZipFile(path, "w") as out:
            for name, content in (("a/data.pkl", pickle), ("a/byteorder", b"little"), ("a/data/0", bytes(4))):
                out.writestr(name, content)
        return path.read_bytes()
    storage = b"(" + pickled("storage") + b"ctorch\nFloatStorage\n" + pickled("0") + pickled("cpu") + b"K\x01tQ"
    shared = (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x010" + storage + b"q\x020" +
              b"(" + b"K\x01" * 20000 + b"tq\x030")
    tensor = b"h\x01(h\x02K\x00h\x03h\x03\x89Ntq\x04R0"
    yield "many axes, many tensors", "pytorch_model.bin", archive(shared + tensor * 40000 + b"}.")
    arguments = b"\x80\x02ccollections\nOrderedDict\nq\x01" + b"0(" + b"K\x01" * 500000 + b"tq\x020"
    yield "many arguments", "pytorch_model.bin", archive(arguments + b"h\x01h\x02R0" * 10 + b"}.")
    many = (b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\nq\x010" + storage + b"q\x020(K\x01tq\x030" +
            b"(h\x02K\x00h\x03h\x03\x89N" + b"N" * 400000 + b"tq\x040")
    yield "many calls with many arguments", "pytorch_model.bin", archive(many + b"h\x01h\x04R0" * 300000 + b"}.")
    long_key = b"\x80\x02" + storage.replace(pickled("0"), pickled("0" * 10_000_000)).replace(b"tQ", b"tq\x01Q0")
    yield "many storages with a long key", "pytorch_model.bin", archive(long_key + b"h\x01Q0" * 200000 + b"}.")
    yield "dict in itself", "pytorch_model.bin", archive(b"\x80\x02}q\x01(" + pickled("a") + b"h\x01u.")

    def text(x):
        return struct.pack("<Q", len(x)) + x.encode()

    def gguf(keys, tensors=b"", tensor_count=0, data=b""):
        head = struct.pack("<IIQQ", 0x46554747, 3, tensor_count, len(keys)) + b"".join(keys) + tensors
        return head + bytes(-len(head) % 32) + data
    name = text("general.architecture") + struct.pack("<I", 8) + text("llama")

    def number(key, value):
        return text("llama." + key) + struct.pack("<IQ", 10, value)
    sizes = {"block_count": 1, "context_length": 64, "embedding_length": 32, "feed_forward_length": 64,
             "attention.head_count": 4}
    embedding = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 32, 2, 0, 0)
    for key in (*sizes, "attention.key_length", "vocab_size"):
        for value in (0, 1 << 31, 1 << 40, (1 << 62) + 4, (1 << 63) - 1, (1 << 64) - 4):
            keys = [name] + [number(k, v) for k, v in (sizes | {key: value}).items()]
            yield f"{key} = {value}", "model.gguf", gguf(keys, embedding, 1, bytes(256))


def limited(size):
    def set_limits():
        resource.setrlimit(resource.RLIMIT_AS, (size, size))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return set_limits


class Runs:
    def __init__(self, brine):
        self.brine, self.bad, self.kinds, self.slowest, self.longest = brine, 0, {}, 0.0, 0

    def run(self, label, arguments, limit):
        start = time.perf_counter()
        try:
            done = subprocess.run([self.brine, *arguments, "--quiet", "--threads", "1"], capture_output=True,
                                  preexec_fn=limited(limit), timeout=120)
            code, said = done.returncode, done.stderr.decode(errors="backslashreplace")
        except subprocess.TimeoutExpired:
            code, said = "more than 120 s", ""
        took = time.perf_counter() - start
        self.slowest = max(self.slowest, took)
        lines = said.split("\n")[:-1]
        memory = any(word in said for word in ("bad_alloc", "memory", "length_error", "the system refused"))
        good = (code == 0 or (code == 1 and len(lines) == 1)) and not memory and took < 20
        self.longest = max(self.longest, len(said))
        self.kinds[(arguments[0], code)] = self.kinds.get((arguments[0], code), 0) + 1
        if not good:
            self.bad += 1
            print(f"BAD {label}: brine {arguments[0]}: exit {code}, {took:.1f} s, {len(lines)} lines: "
                  f"{said[:300]!r}", flush=True)


def damaged(content, draw, cuts, flips):
    size = len(content)
    for i in range(cuts):
        yield f"cut {i}", content[:size * i // cuts]
    for i in range(cuts):
        at = int(min(size, 1 << 22) ** draw.random())
        yield f"cut at {at}", content[:at]
        yield f"cut {at} before the end", content[:size - at]
    for i in range(flips):
        what, where = i % 3, draw.randrange(3)
        span = min(size - 8, 4096 if draw.random() < .5 else 1 << 21)
        at = draw.randrange(span) if where == 0 else size - 8 - draw.randrange(span) if where == 1 else \
            draw.randrange(min(size - 8, 512))
        out = bytearray(content)
        if what == 0:
            out[at] ^= 1 << draw.randrange(8)
        elif what == 1:
            out[at] = draw.choice((0, 1, 0x7F, 0x80, 0xFF))
        else:
            out[at:at + 8] = struct.pack("<Q", draw.choice((0, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)))
        yield f"flip {i} at {at}", bytes(out)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("brine")
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    parser.add_argument("--cuts", type=int, default=20)
    parser.add_argument("--flips", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--bombs", action="store_true")
    options = parser.parse_intermixed_args()
    runs = Runs(options.brine)
    with tempfile.TemporaryDirectory() as scratch:
        scratch = pathlib.Path(scratch)

        def both(label, name, content, config=None):
            folder = scratch / "model"
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
            if config:
                shutil.copy(config, folder)
            (folder / name).write_bytes(content)
            model = folder / name if name.endswith(".gguf") else folder
            limit = 2 * len(content) + (1 << 30)
            runs.run(label, ["inspect", str(folder / name)], limit)
            out = scratch / "out"
            shutil.rmtree(out, ignore_errors=True)
            runs.run(label, ["export", "--checkpoint", str(model), "--out", str(out)], 8 * len(content) + (1 << 30))
            left = [p.name for p in scratch.iterdir() if p.name not in ("model", "out", "bomb.zip")]
            if left:
                print(f"{label}: left {left}")
        if options.bombs:
            for label, name, content in bombs(scratch):
                both(f"{label} ({len(content)} bytes)", name, content,
                     pathlib.Path(__file__).parent.parent / "golden/models/opt/config.json")
        for file in options.files:
            content, draw = file.read_bytes(), random.Random(options.seed)
            config = file.parent / "config.json"
            for label, changed in damaged(content, draw, options.cuts, options.flips):
                both(f"{file.name}: {label}", file.name, changed, config if config.exists() else None)
            print(f"{file}: done", flush=True)
    print(f"runs by command and exit status: {runs.kinds}; slowest {runs.slowest:.1f} s, "
          f"longest message {runs.longest} characters; {runs.bad} bad")
    sys.exit(runs.bad > 0)


if __name__ == "__main__":
    main()
