"""Writes the seeds of the targets gguf, torch and pickle (Python's standard library only).

    python3 make_weights.py
"""

import pathlib
import struct

here = pathlib.Path(__file__).parent / "seeds"


def u32(x):
    return struct.pack("<I", x)


def u64(x):
    return struct.pack("<Q", x % 2**64)


# GGUF


def text(x):
    return u64(len(x)) + x.encode()


def key(name, value, kind=None):
    if isinstance(value, str):
        return text(name) + u32(8) + text(value)
    if isinstance(value, float):
        return text(name) + u32(6) + struct.pack("<f", value)
    if isinstance(value, list):
        items = b"".join(text(v) if isinstance(v, str) else u32(v) for v in value)
        inner = 8 if value and isinstance(value[0], str) else 5
        return text(name) + u32(9) + u32(inner) + u64(len(value)) + items
    return text(name) + u32(kind or 4) + (u32(value) if not kind else value)


KEYS = [
    key("general.architecture", "llama"),
    key("llama.block_count", 1),
    key("llama.context_length", 8),
    key("llama.embedding_length", 32),
    key("llama.feed_forward_length", 8),
    key("llama.attention.head_count", 2),
    key("llama.rope.freq_base", 5e4),
    key("llama.attention.layer_norm_rms_epsilon", 1e-5),
    key("tokenizer.ggml.model", "gpt2"),
    key("tokenizer.ggml.tokens", ["a", "b"]),
    key("tokenizer.ggml.token_type", [1, 1]),
]
EMBEDDING = ("token_embd.weight", [32, 2], 8, 0)
QUERIES = ("blk.0.attn_q.weight", [32, 4], 3, 96)
GPT2 = [k.replace(b"llama", b"gpt2") for k in KEYS]


def gguf(keys=KEYS, tensors=(EMBEDDING, QUERIES), data=176, version=3, counts=None, align=32):
    out = b"GGUF" + u32(version)
    out += b"".join(map(u64, counts or (len(tensors), len(keys)))) + b"".join(keys)
    for name, sizes, kind, place in tensors:
        out += text(name) + u32(len(sizes)) + b"".join(map(u64, sizes)) + u32(kind) + u64(place)
    out += b"\0" * (-len(out) % align)
    return out + bytes(i % 61 for i in range(data))


gpt2_keys = [k[8:] for k in KEYS[1:6]]
gpt2_keys = [text("gpt2" + k.decode("latin1")[5:i]) + k[i:]
             for k in gpt2_keys for i in [k.index(b"\4\0\0\0")]]
gpt2_keys.append(key("gpt2.attention.layer_norm_epsilon", 1e-5))
K_BLOCKS = [("token_embd.weight", [256, 1], 12, 0), ("a", [256, 1], 13, 160), ("b", [256], 14, 352)]
seeds = {
    "good_llama": gguf(),
    "good_gpt2": gguf(
        [key("general.architecture", "gpt2")] + gpt2_keys,
        [EMBEDDING, ("blk.0.attn_qkv.weight", [32, 3], 2, 96), ("blk.0.attn_qkv.bias", [3], 1, 160)],
        166),
    "good_blocks": gguf(KEYS, K_BLOCKS, 352 + 210),
    "good_aligned": gguf(KEYS + [key("general.alignment", 8)],
                         [EMBEDDING, ("b", [2, 2, 2], 30, 72)], 88, 2, align=8),
    "cut": gguf()[:-1],
    "cut_in_keys": gguf()[:150],
    "version_1": gguf(version=1),
    "big_endian": gguf(version=3 << 24),
    "many_keys": gguf(counts=(2, 2**60)),
    "many_tensors": gguf(counts=(2**62, len(KEYS))),
    "long_text": gguf([text("k") + u32(8) + u64(2**63)] + KEYS),
    "long_array": gguf([text("k") + u32(9) + u32(10) + u64(2**61)] + KEYS),
    "array_of_arrays": gguf([text("k") + u32(9) + u32(9) + u64(1) + u32(9) * 4] + KEYS),
    "key_twice": gguf(KEYS + KEYS[-1:]),
    "tensor_twice": gguf(tensors=[EMBEDDING, EMBEDDING]),
    "overlap": gguf(tensors=[EMBEDDING, ("x", [32, 4], 3, 64)]),
    "hole": gguf(tensors=[EMBEDDING, ("x", [32, 4], 3, 128)], data=208),
    "misaligned": gguf(tensors=[EMBEDDING, ("x", [32, 4], 3, 68)]),
    "beyond_the_end": gguf(tensors=[EMBEDDING, ("x", [2**40, 4], 0, 96)]),
    "huge": gguf(tensors=[EMBEDDING, ("x", [2**63, 2**63], 0, 96)]),
    "part_of_a_block": gguf(tensors=[("token_embd.weight", [16, 4], 8, 0)], data=68),
    "other_type": gguf(tensors=[EMBEDDING, ("x", [256], 10, 96)]),
    "same_name": gguf(tensors=[EMBEDDING, ("model.embed_tokens.weight", [32, 4], 3, 96)]),
    "odd_heads": gguf(tensors=[EMBEDDING, ("blk.0.attn_q.weight", [64, 2], 3, 96)]),
    "no_embedding": gguf(tensors=[QUERIES[:3] + (0,)], data=80),
    "alignment_0": gguf(KEYS + [key("general.alignment", 0)]),
    "heads_0": gguf(KEYS[:5] + [key("llama.attention.head_count", 0)]),
    "other_architecture": gguf([key("general.architecture", "mamba")] + KEYS[1:]),
    "experts": gguf(KEYS + [key("llama.expert_count", 8)]),
}
(here / "gguf").mkdir(exist_ok=True)
for name, content in seeds.items():
    (here / "gguf" / name).write_bytes(content)

# Pickles


def word(x):
    return b"X" + u32(len(x)) + x.encode()


def tensor(storage="0", elements=6, offset=0, sizes=(2, 3), strides=(3, 1), kind="Float"):
    def number(x):
        return b"J" + struct.pack("<i", x)

    def numbers(xs):
        return b"(" + b"".join(map(number, xs)) + b"t"

    return (b"ctorch._utils\n_rebuild_tensor_v2\n((" + word("storage")
            + b"ctorch\n%sStorage\n" % kind.encode() + word(storage) + word("cpu")
            + number(elements) + b"tQ" + number(offset) + numbers(sizes) + numbers(strides)
            + b"\x89ccollections\nOrderedDict\n)RtR")


def pickle(**values):
    body = b"".join(word(name) + value for name, value in values.items())
    return b"\x80\x02ccollections\nOrderedDict\n)Rq\0(" + body + b"u}" + word("_metadata") + b"}sb."


GOOD = pickle(x=tensor())
pickles = {
    "good": GOOD,
    "good_parameter": pickle(x=b"ctorch._utils\n_rebuild_parameter\n(" + tensor() + b"\x88}tR"),
    "good_protocol_4": b"\x80\x04\x95" + u64(3) + b"}\x94.",
    "good_shared": pickle(x=tensor(), y=tensor(sizes=(3, 2), strides=(1, 3))),
    "good_numbers": b"\x80\x02(K\1M\1\2\x8a\2\xff\xffG" + b"\0" * 8 + b"N\x88\x89t0}.",
    "cut": GOOD[:-3],
    "system": b"\x80\x02cos\nsystem\n" + word("true") + b"\x85R.",
    "system_by_stack": b"\x80\x04" + word("os") + word("system") + b"\x93.",
    "instance": b"\x80\x02(ios\nsystem\n.",
    "new_object": b"\x80\x02ccollections\nOrderedDict\n)\x81.",
    "cycle": b"\x80\x02}q\1" + word("x") + b"h\1s.",
    "list_in_itself": b"\x80\x02]q\1h\1ah\1.",
    "deep": b"\x80\x02" + b"]" * 300 + b"a" * 299 + b".",
    "twice": pickle(x=tensor()).replace(b"u}", word("x") + tensor() + b"u}"),
    "not_a_tensor": pickle(x=b"N"),
    "no_mark": b"\x80\x02u.",
    "below_the_mark": b"\x80\x02}(0.",
    "not_stored": b"\x80\x02j" + u32(5) + b".",
    "long_text": b"\x80\x02\x8d" + b"\xff" * 8 + b".",
    "long_number": b"\x80\x02\x8a\xff.",
    "negative_size": pickle(x=tensor(sizes=(-2, 3))),
    "two_types": pickle(x=tensor(), y=tensor(elements=3, kind="Double")),
    "after_the_end": GOOD + b"x",
}
(here / "pickle").mkdir(exist_ok=True)
for name, content in pickles.items():
    (here / "pickle" / name).write_bytes(content)

# Archives


def archive(records, moved=0, method=0, size=0, entries=0, sixty_four=False, front=None):
    """records: (name, content); the other arguments spoil the last record or the directory."""
    out, directory = b"", b""
    for i, (name, content) in enumerate(records):
        last = i == len(records) - 1
        place = len(out) + (moved if last else 0)
        count = len(content) + (size if last else 0)
        common = b"\0\0" + struct.pack("<H", method if last else 0) + b"\0" * 8
        header_name = front if last and front else name
        out += b"PK\3\4\0\0" + common + u32(len(content)) * 2
        out += struct.pack("<HH", len(header_name), 0) + header_name.encode() + content
        extra = b""
        if sixty_four:
            extra = struct.pack("<HHQQQ", 1, 24, count, count, place)
            place = count = 0xFFFFFFFF
        directory += b"PK\1\2\0\0\0\0" + common + u32(count) * 2
        directory += struct.pack("<HHHHHII", len(name), len(extra), 0, 0, 0, 0, place)
        directory += name.encode() + extra
    count = len(records) + entries
    begin = len(out)
    out += directory
    if sixty_four:
        at = len(out)
        out += b"PK\6\6" + u64(44) + b"\0" * 12 + u64(count) * 2 + u64(len(directory)) + u64(begin)
        out += b"PK\6\7" + u32(0) + u64(at) + u32(1)
        return out + b"PK\5\6" + b"\0" * 4 + b"\xff" * 12 + b"\0\0"
    return out + b"PK\5\6\0\0\0\0" + struct.pack("<HHIIH", count, count, len(directory), begin, 0)


STORAGE = bytes(range(24))


def model(pickle=GOOD, storage=STORAGE, **spoilt):
    return archive([("m/data.pkl", pickle), ("m/byteorder", b"little"), ("m/data/0", storage)],
                   **spoilt)


archives = {
    "good": model(),
    "good_64": model(sixty_four=True),
    "good_transposed": model(pickle(x=tensor(sizes=(3, 2), strides=(1, 3)))),
    "good_types": model(pickle(x=tensor(elements=3, sizes=(3,), strides=(1,), kind="Long"))),
    "cut": model()[:-9],
    "compressed": model(method=8),
    "no_header": model(moved=1),
    "moved_far": model(moved=2**31 - 1),
    "too_long": model(size=2**31),
    "too_long_64": model(size=2**62, sixty_four=True),
    "other_name": model(front="m/data/1"),
    "more_entries": model(entries=1),
    "fewer_entries": model(entries=-1),
    "overlap": archive([("m/data.pkl", GOOD), ("m/data/0", STORAGE), ("m/data/1", STORAGE)],
                       moved=-46, front="m/data/1"),
    "twice": archive([("m/data.pkl", GOOD), ("m/data/0", STORAGE), ("m/data/0", STORAGE)]),
    "two_pickles": archive([("m/data.pkl", GOOD), ("n/data.pkl", GOOD)]),
    "no_pickle": archive([("m/data/0", STORAGE)]),
    "no_storage": archive([("m/data.pkl", GOOD)]),
    "short_storage": model(storage=STORAGE[:-1]),
    "big_endian": archive([("m/data.pkl", GOOD), ("m/data/0", STORAGE), ("m/byteorder", b"big")]),
    "script": archive([("m/data.pkl", GOOD), ("m/constants.pkl", b""), ("m/data/0", STORAGE)]),
    "beyond_storage": model(pickle(x=tensor(offset=1))),
    "expanded": model(pickle(x=tensor(sizes=(2**30, 2**30), strides=(0, 0)))),
    "overflow": model(pickle(x=tensor(sizes=(2**30,) * 4, strides=(0,) * 4))),
    "old_format": b"\x80\x02\x8a\nl\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\3.",
    "not_zip": b"x",
}
(here / "torch").mkdir(exist_ok=True)
for name, content in archives.items():
    (here / "torch" / name).write_bytes(content)
