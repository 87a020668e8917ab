#!/usr/bin/env python3
"""Makes the golden files of decoders' tokenizers with `tokenizers` (0.23): the structure of
tokenizer.json that Llama 2, Llama 3, Mistral, Qwen 2 and SmolLM2 have, around small vocabularies.

Writes beside itself: sentencepiece.json (a BPE of characters with bytes for unknown ones, trained on
text.txt), families.json (for each family what it changes in sentencepiece.json or tokenizer.json,
texts with ids, ids with texts; and pieces that Split makes) and pieces.json (hashes of
the pieces around every character).
"""
import hashlib
import json
import random

from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from make_encodings import ADVERSARIAL, random_unicode, row
from make_golden import HERE, TEXTS, random_texts

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = LLAMA3.replace("{1,3}", "")
# The expression of cl100k, with possessive quantifiers.
CL100K = (r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}"
          r"| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+")

CASES = ["I'M WE'LL he'Ve 'S 'LL'Ll'lL x'RE'd'D '\u017f '\u212a 'l 'V", "1 12 123 1234 12345678 3.14",
         "a\r\nb\r\n\r\nc", "x !!\n\n\ny", "\t\tint main() {\n\n    return 0;\n}\n", "  \n  \n  x  ",
         "foo.bar(baz)", "\u00a0\u00a0a \u3000b", "\u2581a \u2581\u2581 \u2581", "a\u2581b",
         "cafe\u0301 \u1100\u1161\u11a8 \u212b", "<0x0A>\n<0xE4>", "<|end|><|end|> x <|end|>",
         "<s>x</s> y<unk>", "God  created", "   ", "\u4e2d\u6587\U0001f600\u0301", "the\u2028earth"]


def split(pattern, behavior="Isolated", invert=False, kind="Regex"):
    return {"type": "Split", "pattern": {kind: pattern}, "behavior": behavior, "invert": invert}


def byte_level(**changes):
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
            "use_regex": True, **changes}


def sequence(*steps, key="pretokenizers"):
    return {"type": "Sequence", key: list(steps)}


def bos(name, number):
    special = {"SpecialToken": {"id": name, "type_id": 0}}
    a, b = {"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}
    second = {"SpecialToken": {"id": name, "type_id": 1}}
    return {"type": "TemplateProcessing", "single": [special, a], "pair": [special, a, second, b],
            "special_tokens": {name: {"id": name, "ids": [number], "tokens": [name]}}}


def added(number, content, **changes):
    return {"id": number, "content": content, "single_word": False, "lstrip": False,
            "rstrip": False, "normalized": False, "special": True, **changes}


def changed(root, family):
    """tokenizer.json with the changes of a family."""
    root = json.loads(json.dumps(root))
    root.update(family.get("change", {}))
    for token in family.get("without", []):
        del root["model"]["vocab"][token]
    # Merges with a missing token cannot be listed.
    vocab = root["model"]["vocab"]
    root["model"]["merges"] = [m for m in root["model"]["merges"]
                               if m[0] in vocab and m[1] in vocab and "".join(m) in vocab]
    root["model"]["merges"] = root["model"]["merges"][:family.get("merges", len(vocab))]
    root["model"].update(family.get("model", {}))
    return root


def train_characters():
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"),
                                                 normalizers.Replace(" ", "\u2581")])
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(),
                                           decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    text = (HERE / "text.txt").read_text(encoding="utf-8")
    tokenizer.train_from_iterator([text + "x   y    z  w " * 9], trainers.BpeTrainer(
        vocab_size=620, min_frequency=2, show_progress=False, limit_alphabet=80,
        special_tokens=["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]))
    root = json.loads(tokenizer.to_str())
    # Special are only the first three; words are cut by nothing, as in Llama 2.
    root["added_tokens"] = [t for t in root["added_tokens"] if t["id"] < 3]
    root["pre_tokenizer"] = None
    root["post_processor"] = bos("<s>", 1)
    return root


def families():
    small, metaspace = "tokenizer.json", "sentencepiece.json"
    meta = lambda **k: {"type": "Metaspace", "replacement": "\u2581", "prepend_scheme": "first",
                        "split": False, **k}
    own = json.loads((HERE / small).read_text())["added_tokens"]
    end = added(600, "<|end|>")
    llama3 = sequence(split(LLAMA3), byte_level(use_regex=False))
    trimmed = sequence(byte_level(), bos("<|end|>", 600), key="processors")
    few_bytes = [chr(c) for c in (0xC0, 0xC1, 0xF1, 0xFF, 0x104, 0x106)]
    return [
        {"name": "llama3", "file": small, "merges": 260, "model": {"ignore_merges": True},
         "change": {"pre_tokenizer": llama3, "post_processor": trimmed,
                    "added_tokens": own + [end]}},
        {"name": "qwen2", "file": small,
         "change": {"pre_tokenizer": sequence(split(QWEN2), byte_level(use_regex=False)),
                    "normalizer": {"type": "NFC"}, "post_processor": byte_level(trim_offsets=False),
                    "added_tokens": own + [end, added(601, "<tool>", special=False)]}},
        {"name": "smollm", "file": small, "without": few_bytes,
         "change": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": True},
                                              byte_level())}},
        {"name": "digits together", "file": small,
         "change": {"pre_tokenizer": sequence({"type": "Digits", "individual_digits": False},
                                              byte_level())}},
        {"name": "no expression", "file": small,
         "change": {"pre_tokenizer": byte_level(use_regex=False, add_prefix_space=True)}},
        {"name": "llama2", "file": metaspace},
        {"name": "mistral", "file": metaspace,
         "change": {"normalizer": None, "pre_tokenizer": meta()}},
        {"name": "metaspace always", "file": metaspace,
         "change": {"normalizer": None,
                    "pre_tokenizer": meta(prepend_scheme="always", split=True),
                    "decoder": meta(prepend_scheme="always", split=True)}},
        {"name": "metaspace never", "file": metaspace, "model": {"byte_fallback": False},
         "change": {"normalizer": None,
                    "pre_tokenizer": meta(prepend_scheme="never", split=True),
                    "decoder": meta(prepend_scheme="never", split=True)}},
        {"name": "unknown characters", "file": metaspace,
         "model": {"byte_fallback": False, "fuse_unk": False}},
        {"name": "replace", "file": metaspace,
         "change": {"normalizer": sequence({"type": "NFC"}, {"type": "Replace",
                                                    "pattern": {"Regex": r"\s+"}, "content": "\u2581"},
                                           {"type": "Prepend", "prepend": "\u2581"},
                                           key="normalizers")}},
    ]


def decoded(tokenizer, texts):
    out = []
    for text in texts:
        ids = tokenizer.encode(text).ids
        whole = tokenizer.decode(ids, skip_special_tokens=False)
        # Bytes that are not text become U+FFFD there; Brine returns them as they are.
        if "\ufffd" not in whole:
            out.append({"ids": ids, "text": whole, "skipped": tokenizer.decode(ids)})
    return out


SPLIT_TEXTS = ["", "a", "abc  def\n\n x--y--", "--", "aab ab b", "12 3-4--56 --", "'S's'SS \u00e9\u00c9x",
               "   ", "x\u4e2d\u6587 \u0663\u0664a!", "aXbxc\u017fk\u212a", "a.b|c*d[e]f\\g"]
SPLITS = [split(p) for p in (
    GPT2, LLAMA3, QWEN2, CL100K, r"(?:ab|a)(?:b|c)?", r"(?:a|ab){2}", r"a{2}", r"[a-c]{,2}x|[a-c]", r"(?i:s|x|k)", r"(?i:[a-eSK])", r"[^a-c\s]+",
    r"[\S]-", r"(?=a)\S", r"x(?!-)", r"\P{L}+", r"[\P{N}]+", r".", r"\.|\||\*|\[|\]|\\", r"[-a]+",
    r"[a\-\]]+", r"(a(b)?)+", r"[ab]++c", "\u4e2d|\n")]
SPLITS += [split(p, behavior, invert, kind)
           for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext")
           for invert in (False, True) for p, kind in ((r"-", "Regex"), ("-", "String"), (r"\s+", "Regex"))]
SPLITS += [sequence({"type": "Digits", "individual_digits": True}, split(QWEN2)),
           sequence(split("-", "Removed"), split(LLAMA3))]


def pre_tokenizer(description):
    root = json.loads((HERE / "tokenizer.json").read_text())
    root["pre_tokenizer"] = description
    return Tokenizer.from_str(json.dumps(root)).pre_tokenizer


def pieces(description):
    pre = pre_tokenizer(description)
    return {"pre_tokenizer": description,
            "pieces": [[p for p, _ in pre.pre_tokenize_str(text)] for text in SPLIT_TEXTS]}


def around(c):
    """A text in which a character is next to one of every class."""
    return f"a{c}b1{c}2 {c} {c}a!{c}?\n{c}\r '{c}'s{c}'L{c}"


def all_characters():
    out = []
    digits = {"type": "Digits", "individual_digits": True}
    for name, description in (("gpt2", split(GPT2)), ("llama3", split(LLAMA3)),
                              ("qwen2", split(QWEN2)), ("digits", digits)):
        pre = pre_tokenizer(description)
        digest = hashlib.sha256()
        for c in range(0x110000):
            if 0xD800 <= c < 0xE000:
                continue
            digest.update("\x1f".join(p for p, _ in pre.pre_tokenize_str(around(chr(c)))).encode())
        out.append({"name": name, "pre_tokenizer": description, "sha256": digest.hexdigest()})
    return out


def main():
    (HERE / "sentencepiece.json").write_text(json.dumps(train_characters()) + "\n")
    texts = (CASES + TEXTS[8:-3] + ADVERSARIAL[:30:2] + random_texts(12) + random_unicode(24))
    texts += ["".join(random.Random(i).choices("ab th\n'!1\u00e9\u4e2d\u2581\u0301", k=20))
              for i in range(12)]
    lines = []
    for family in families():
        root = changed(json.loads((HERE / family["file"]).read_text()), family)
        tokenizer = Tokenizer.from_str(json.dumps(root))
        some = texts if family["name"] in ("llama3", "qwen2", "smollm", "llama2") else texts[::2]
        lines.append(json.dumps(family)[:-1] + ', "rows": [\n' + ",\n".join(
            json.dumps(row(tokenizer, text), separators=(",", ":")) for text in some) +
            '\n], "decoded": [\n' + ",\n".join(
                json.dumps(r, separators=(",", ":")) for r in decoded(tokenizer, some[::3])) + "\n]}")
    splits = ",\n".join(json.dumps(pieces(s), separators=(",", ":")) for s in SPLITS)
    (HERE / "families.json").write_text(
        '{"sets": [\n' + ",\n".join(lines) + '\n], "texts": ' + json.dumps(SPLIT_TEXTS) +
        ', "splits": [\n' + splits + "\n]}\n")
    (HERE / "pieces.json").write_text(json.dumps(all_characters(), indent=1) + "\n")


if __name__ == "__main__":
    main()
