#!/usr/bin/env python3
"""Makes the golden files of the tokenizer tests with Hugging Face's `tokenizers` (0.23 was used).

    make_golden.py [DATA]       DATA: development data (wikitext-2, books, glue, tokenizers)

Writes beside itself: text.txt (what the small tokenizer is trained on), tokenizer.json (it),
variants.json (the same vocabulary with other settings), cases.json (texts and their ids),
classes.json (the classes of all characters) and, if DATA is given, shared.json (counts and hashes
of ids over whole files).
"""
import hashlib
import json
import pathlib
import random
import subprocess
import sys

from tokenizers import (AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers,
                        processors, trainers)

HERE = pathlib.Path(__file__).parent
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>"]

TEXTS = [
    "", " ", "  ", "\n", "a", " a", "  a", "a ", "a  ", "a\n\nb", "a \n b", "\t\tx", "\r\nx\r\n",
    "In the beginning God created the heaven and the earth.",
    "I'm you're he's we've they'll she'd can't 'sit 'S 'LL ''s '' ' 'r 'v 'l 're've'll",
    "don\u2019t \u2018quote\u2019 \u201cdouble\u201d", "it's's's", " 's 't", "'", "x'", "a' s",
    "1234 56.78 9,000 a1b2 x\u00b2 \u00bd \u2167 \u3007 \u4e09 3\u20e3",
    "\u0661\u0662\u0663 \u0967\u0968 \u09e7 \uff11\uff12 \U0001d7ce\U0001d7cf \U0001f101 \u1369",
    "caf\u00e9 cafe\u0301 e\u0301\u0301\u0301 \u0301 a\u0308o\u0308 n\u0303\u0303",
    "\U0001f600 \U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea "
    "\u2764\ufe0f\U0001f44d\U0001f3fd!",
    "\u6f22\u5b57\u304b\u306a\u30ab\u30ca \ud55c\uad6d\uc5b4 "
    "\u4e2d\u6587\u3002\u3001 \U00020000\U0002a6df",
    "\u041f\u0440\u0438\u0432\u0435\u0442 \u03ba\u03cc\u03c3\u03bc\u03b5 \u05e9\u05dc\u05d5\u05dd "
    "\u0645\u0631\u062d\u0628\u0627 \u0928\u092e\u0938\u094d\u0924\u0947 "
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "a\u00a0b \u00a0c\u00a0 d\u00a0\u00a0e", "a\u0085b\u0085\u0085 c",
    "a\u200bb \u200b c\ufeffd\u2060",
    "a\u3000b\u2003 c\u2028d\u2029e\u202ff\u205fg\u1680h\u180ei",
    "a\u001cb\u001d \u001f\u0000x\u007f",
    "x\u000by\u000cz", "\u00ad\u00aa\u00ba\u00b5\u01c5\u02b0\u0345",
    "\ue000\uf8ff\U000f0000 \uffff\ufffe\U0010ffff",
    "\u0378\u0379 \U000e0001\U000e01ef", "\u1c89\ua7cb\U00010d40\U00016d40\U000105c0",
    "<s>a</s>", "a <unk> b", "<pad><pad>x", "</s", "<s", "< s>", "<s><s></s></s> x <s> ",
    "foo_bar __init__ a-b--c ...!!! $%^&*() C++ #include <x> http://a.b/c?d=e&f=%20",
    "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
    "thethethethethethethethethethethethethethethethethethethethethethethethethe andandand",
    "=" * 200 + " " * 130 + "x" + "\n" * 70, "\u0e33" * 40, "ab" * 300,
]


def hash_of(ids):
    return hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in ids)).hexdigest()


def random_texts(count):
    draw = random.Random(7)
    pool = ["a", "b", "the", "God", " ", " ", "  ", "\n", "'s", "'", "'ll", "1", "23", ".", ",",
            "\u00a0", "\u0085", "\u3000", "\u200b", "\u0301", "\u00e9", "\u4e2d",
            "\u0663", "\u00bd", "\U0001f600", "<s>", "</s>", "<", ">", "\t", "\r\n", "_",
            "\ufeff", "\U0001d7ce"]
    return ["".join(draw.choices(pool, k=draw.randint(1, 24))) for _ in range(count)]


def byte_level(model, prefix=False):
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def wordpiece(model, **normalizer):
    """BERT's tokenizer around a WordPiece model."""
    tokenizer = Tokenizer(model)
    tokenizer.normalizer = normalizers.BertNormalizer(**normalizer)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    tokenizer.add_special_tokens(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    return tokenizer


def small():
    verses = subprocess.run(["bible", "-f", "gen1:1-gen2:25"], capture_output=True, text=True,
                            check=True).stdout
    text = verses + "\n".join(TEXTS[:40]) + "\n"
    (HERE / "text.txt").write_text(text, encoding="utf-8", newline="")
    tokenizer = byte_level(models.BPE())
    tokenizer.train_from_iterator([text], trainers.BpeTrainer(
        vocab_size=600, min_frequency=2, show_progress=False, special_tokens=SPECIAL,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    return tokenizer


def variants(tokenizer):
    """The same vocabulary, merges spelled in the old way, a prefix space and other added tokens."""
    old = json.loads(tokenizer.to_str())
    old["model"]["merges"] = [" ".join(pair) for pair in old["model"]["merges"]]
    old["pre_tokenizer"]["add_prefix_space"] = True
    other = Tokenizer.from_str(json.dumps(old))
    other.add_special_tokens([AddedToken("<mask>", lstrip=True), AddedToken("<|sep|>", rstrip=True),
                              AddedToken("<|sep|>>", lstrip=True, rstrip=True)])
    other.add_tokens(["God created", AddedToken("\u4e2d\u6587", lstrip=True, normalized=True)])
    saved = json.loads(other.to_str())
    saved["model"]["merges"] = old["model"]["merges"]
    return saved, other


VARIANT_TEXTS = [
    "x <mask> y", "x \u00a0\u3000<mask> y", "<mask>", " <mask> <mask>", "a<|sep|>  b",
    "a<|sep|>\n\n",
    "a <|sep|>> b", "a <|sep|>>  <mask>b", "a<|sep|> <mask> b", "In the beginning God created all",
    "God created <s>God  created", "\u5728 \u4e2d\u6587\u91cc",
    "no \u4e2d\u6587 <mask>\u4e2d\u6587", "a</s>b </s> c",
    "\tstart", "\u00a0start", "",
]


def shared(data):
    def vocab(name, special):
        folder = data / "tokenizers" / name
        files = str(folder / "vocab.json"), str(folder / "merges.txt")
        tokenizer = byte_level(models.BPE.from_file(*files))
        tokenizer.add_special_tokens(special)
        return tokenizer

    def row(path, name, tokenizer):
        ids = tokenizer.encode(path.read_bytes().decode("utf-8-sig"), add_special_tokens=False).ids
        print(path, name, len(ids), flush=True)
        return {"file": str(path.relative_to(data)), "tokenizer": name, "count": len(ids),
                "sha256": hash_of(ids)}

    def bert():
        return wordpiece(models.WordPiece.from_file(
            str(data / "tokenizers/bert-base-uncased/vocab.txt"), unk_token="[UNK]"))

    tokenizers = {"gpt2": vocab("gpt2", ["<|endoftext|>"]), "opt": vocab("opt", ["<pad>", "</s>"]),
                  "bert-base-uncased": bert()}
    files = [p for folder in ("wikitext-2", "books", "glue")
             for p in sorted((data / folder).rglob("*.*"))
             if p.suffix in (".raw", ".txt", ".tokens", ".tsv")]
    return [row(p, name, t) for name, t in tokenizers.items() for p in files]


def classes():
    """What the pre-tokeniser takes every character for, found by putting it beside others."""
    pre = pre_tokenizers.ByteLevel(add_prefix_space=False)
    joins = lambda before, c: len(pre.pre_tokenize_str(before + chr(c))) == 1

    def kind(c):
        if 0xD800 <= c < 0xE000 or c == ord("'"):
            return "O"
        return "L" if joins("a", c) else "N" if joins("1", c) else "O" if joins("!", c) else "S"

    found = "".join(kind(c) for c in range(0x110000))
    return {"sha256": hashlib.sha256(found.encode()).hexdigest(),
            "letters": found.count("L"), "numbers": found.count("N"), "spaces": found.count("S")}


def write(name, value):
    (HERE / name).write_text(json.dumps(value, indent=1) + "\n")


def main():
    tokenizer = small()
    tokenizer.save(str(HERE / "tokenizer.json"))
    saved, other = variants(tokenizer)
    write("variants.json", saved)
    case = lambda t, text: {"text": text, "ids": t.encode(text).ids}
    write("cases.json", {
        "tokenizer": [case(tokenizer, text) for text in TEXTS + random_texts(150)],
        "variants": [case(other, text) for text in TEXTS + VARIANT_TEXTS],
    })
    write("classes.json", classes())
    if len(sys.argv) > 1:
        write("shared.json", shared(pathlib.Path(sys.argv[1])))


if __name__ == "__main__":
    main()
