#!/usr/bin/env python3
"""`brine bench generate` against llama.cpp: a prompt, and tokens after it, with the same GGUF model.

    CMAKE_ARGS=-DGGML_NATIVE=ON pip install llama-cpp-python
    python3 tests/peer/llama.py build/release/brine MODEL.gguf STUDENT TEXT [--attention blocks] [--tokens 1024 8192]
        [--type f32|bf16] [--rounds 3] [--cache f32 q8_0] [--layers 1]

Both programs run in turns, two threads each unless --threads says otherwise; medians over the rounds. llama.cpp gets MODEL requantised
to --type, with keys and values of that type (f16 beside bf16 weights), with and without its flash attention, and with it in q8_0; the
fastest counts. Brine holds its weights in --type too, and with bf16 multiplies a prompt in bf16 (--compute bf16); full attention
("flash") and the student's method, or STUDENT under --attention, by type of cache, token by token in turns in one process. Bandwidth
decides the tokens: say which machine. With --layers both read the first layers of MODEL alone, for prompts that a whole model would
read for an hour (needs gguf).
"""
import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import llama_cpp

STEPS = 24
FTYPES = {"f32": 0, "bf16": 32}  # enum llama_ftype
CACHES = {"f32": 0, "bf16": 1, "q8_0": 8}  # enum ggml_type: F32, F16, Q8_0


def requantised(model, kind, directory):
    params = llama_cpp.llama_model_quantize_default_params()
    params.ftype = FTYPES[kind]
    params.allow_requantize = True
    params.nthread = 2
    out = str(pathlib.Path(directory) / f"{kind}.gguf")
    if llama_cpp.llama_model_quantize(model.encode(), out.encode(), params) != 0:
        raise SystemExit(f"llama.cpp did not requantise {model}")
    return out


def first_layers(model, layers, positions, directory):
    import gguf

    source = gguf.GGUFReader(model)
    family = source.get_field("general.architecture").contents()
    out = str(pathlib.Path(directory) / f"{layers}-layers.gguf")
    writer = gguf.GGUFWriter(out, family)
    new = {f"{family}.block_count": layers, f"{family}.context_length": positions}
    for name, field in source.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        inner = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(name, new.get(name, field.contents()), field.types[0], sub_type=inner)
    for tensor in source.tensors:
        if not tensor.name.startswith("blk.") or int(tensor.name.split(".")[1]) < layers:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    for write in (writer.write_header_to_file, writer.write_kv_data_to_file, writer.write_tensors_to_file, writer.close):
        write()
    return out


def llama_times(model, text, tokens, cache, threads, flash):
    llm = llama_cpp.Llama(model, n_ctx=tokens + 2 * STEPS, n_threads=threads, n_threads_batch=threads, verbose=False,
                          flash_attn=flash, type_k=CACHES[cache], type_v=CACHES[cache], use_mmap=False)
    ids = llm.tokenize(text, add_bos=False)
    ids = (ids * (tokens // len(ids) + 1))[:tokens]
    start = time.perf_counter()
    llm.eval(ids)
    prompt = time.perf_counter() - start
    each = []
    for _ in range(STEPS):
        start = time.perf_counter()
        llm.eval(ids[:1])
        each.append(time.perf_counter() - start)
    llm.close()
    return 1e3 * prompt, 1e3 * statistics.median(each)


def brine_times(brine, model, text, tokens, kind, threads, attention):
    out = subprocess.run([brine, "bench", "generate", "--json", "--quiet", "--model", model, "--data", text, "--tokens", str(tokens),
                          "--weights", kind, "--compute", kind, "--threads", str(threads),
                          *(["--attention", attention] if attention else [])], check=True, capture_output=True, text=True).stdout
    return {row["name"]: row["ms"] for row in json.loads(out)["rows"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name in ("brine", "model", "student", "text"):
        parser.add_argument(name)
    parser.add_argument("--attention", help="Brine's method, instead of the student's")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 8192])
    parser.add_argument("--type", choices=FTYPES, default="f32")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--cache", choices=CACHES, nargs="+", help="llama.cpp's types of caches, with flash attention alone")
    parser.add_argument("--layers", type=int, help="the first layers of the model, instead of all")
    args = parser.parse_args()
    if args.layers is not None and (args.layers < 1 or not args.attention):
        parser.error("--layers is at least 1 and needs --attention: STUDENT is not read")
    text = pathlib.Path(args.text).read_bytes()[:6 * max(args.tokens)]
    runs = [(True, cache) for cache in args.cache] if args.cache else [(False, args.type), (True, args.type), (True, "q8_0")]
    print(f"llama.cpp of llama-cpp-python {llama_cpp.__version__}", flush=True)
    with tempfile.TemporaryDirectory() as directory:
        if args.layers:
            args.model = args.student = first_layers(args.model, args.layers, max(args.tokens) + 2 * STEPS, directory)
        model = requantised(args.model, args.type, directory)
        for tokens in args.tokens:
            rows = {}
            for _ in range(args.rounds):
                for flash, cache in runs:
                    prompt, token = llama_times(model, text, tokens, cache, args.threads, flash)
                    name = f"llama.cpp {args.type}{', flash attention' if flash else ''}, cache {cache}"
                    rows.setdefault(f"{name}, prompt", []).append(prompt)
                    rows.setdefault(f"{name}, token", []).append(token)
                for name, ms in brine_times(args.brine, args.student, args.text, tokens, args.type, args.threads, args.attention).items():
                    rows.setdefault(f"brine {name}", []).append(ms)
            median = {name: statistics.median(each) for name, each in rows.items()}
            for what in ("prompt", "token"):
                best = min(ms for name, ms in median.items() if name.startswith("llama") and name.endswith(f", {what}"))
                for name, ms in median.items():
                    if name.endswith(f", {what}"):
                        print(f"{tokens:6} tokens  {name:45} {ms:10.1f} ms  {best / ms:5.2f} of llama.cpp's speed", flush=True)


if __name__ == "__main__":
    main()
