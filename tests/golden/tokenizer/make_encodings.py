#!/usr/bin/env python3
"""Makes the golden files of WordPiece and of special tokens with `tokenizers` (0.23).

Writes beside itself: wordpiece.json (a tokenizer.json of BERT's kind trained on text.txt and the
texts below), encodings.json (ids of texts through several tokenizers, and of pairs and cut texts
through BERT's) and characters.json (hashes of what normalization makes of every character).
"""
import hashlib
import json
import random

from tokenizers import AddedToken, Tokenizer, models, normalizers, processors, trainers

from make_golden import HERE, TEXTS, byte_level, random_texts, wordpiece

ADVERSARIAL = [
    # Accents, composed and not, several, in the wrong order, reordered across dropped characters.
    "Café CAFÉ café CAFÉ", "a\u0301\u0323 a\u0323\u0301 \u1ea5 \u1ed8", "q\u0307\u0323\u0334x",
    "a\u0301\u200b\u0323b", "a\u0301\x00\u0323b", "\u0301start", "x \u0301 y", "\u0344\u0f73",
    "\u1e9b\u0323 \u212b \u2126 \ufb01 \uff21\uff22", "a\u05b0\u0591 \u05e9\u05c1\u05bc",
    "e\u0301\u0301\u0301\u0301\u0301\u0301\u0301\u0301", "\u0958 \u09dc \u0fb9",
    # Marks newer than the tables of `tokenizers`, alone and among older ones.
    "a\u0898\u0301\u0899b", "a\u1ac1\u0323\u1ac5", "\U00011935\U00011930 \U00011938", "\u0c3c\u0301",
    "\U00011383 \U00016d68 \U000105c9", "x\U0001e4ec\u0323y",
    # Hangul, whole and as jamo; kana with marks; Chinese of every block; near misses.
    "\uac00\uac01\ud7a3 \u1100\u1161\u11a8 \u3131\u314f \uffa1", "\u304c\u304b\u3099\u30d7\u309a",
    "\u4e2d\u6587abc\u4e2d", "\u3400\u4dbf\u4dc0\u9fff\ua000 \uf900\ufaff\U00020000\U0002b820"
    "\U0002b91f\U0002b920\U0002f800\U00030000", "\u3007\u3021 \u3105 \uff0c\u3002\u300c\u300d",
    # Case: dotted and dotless i, final sigma, sharp s, title case, newer pairs.
    "\u0130stanbul I\u0131 \u0130\u0130 i\u0307", "\u03a3\u0391\u03a3 \u03c3\u03b1\u03c2 "
    "\u039f\u0394\u039f\u03a3", "STRASSE Stra\u00dfe \u1e9e", "\u01c4\u01c5\u01c6 \u01f1\u01f2",
    "\u1c89\ua7cb\ua7cc\ua7da \U00010d50 \U00016ea0 \U00010400", "\u13a0\uab70 \u10a0\u1c90\u2c00",
    "\u212a\u017f \u0345 \u03f4 \ua64a\u1c88",
    # Controls, formats, private and unassigned characters, replacement.
    "a\x00b\x01c\x7fd\x80e\x85f\x9fg", "a\ufffdb \ufffd", "zero\u200bwidth\u200cnon\u200djoin\u2060",
    "soft\u00adhyphen \u061c\u200e\u200f\u202a\u202e\ufeff", "\ue000a\uf8ff \U000f0000 \U0010fffd",
    "\u0378 \uffff \ufdd0 \U0001fffe \U000e0001\U000e0041", "\u180e\u1680\u2028\u2029\u0085",
    # White space of every kind.
    " a\tb\nc\rd\x0be\x0cf\u00a0g\u2003h\u202fi\u205fj\u3000k ", "\n\n\t  \r\n", "\u00a0", "\u3000",
    # Emoji: joined, with skin, flags, keycaps.
    "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466", "\U0001f44d\U0001f3fd\u2764\ufe0f",
    "\U0001f1e9\U0001f1ea 1\ufe0f\u20e3 \U0001f3f4\U000e0067\U000e007f",
    # Punctuation: ASCII, Unicode, newer than the tables, symbols that are none.
    "!\"#$%&'()*+,-./:;<=>?@[\\]^_`{|}~", "\u00a1\u00a7\u00ab\u00b6\u00b7\u00bb\u00bf\u2014\u2026",
    "\u2e43\u2e52 \u061d \u1b7d \u0c77 \U00011660 \u166d", "\u00a2\u00a9\u00ac\u00d7\u20ac\u2212\u2192",
    "don't can't I'm he's -- ... (x) [y] {z} a/b #c @d", "\u2018a\u2019 \u201cb\u201d \u201ac\u2019s",
    # Long words: at the limit, above it, in characters and in bytes.
    "a" * 99, "a" * 100, "a" * 101, "\u00e9" * 100, "e\u0301" * 100, "\u0416" * 100, "\u0416" * 101,
    "un" * 60 + " and", "the" * 33, "\U0001d400" * 101, "\u200b" * 200 + "the",
    # Special tokens in the text, whole, broken, touching, in another case.
    "[CLS] in [SEP] the [MASK]", "[MASK]ing x[SEP]y[UNK]", "[mask] [Sep", "[CLS][CLS]", "[ SEP ]",
    "[PAD]\u0301 \u0301[PAD]", "##the the##ing ##", "<s></s><mask> <unk>", "  [MASK]  ",
    "God created [MASK] and the earth", "GOD CREATED", "g\u00f6d Cr\u00e9ated",
]


def row(tokenizer, text):
    return {"first": text, "ids": tokenizer.encode(text).ids}


def framed_row(tokenizer, first, second=None, most=None):
    """A text or a pair, at most that many tokens; `segment`: how many are of the first segment."""
    if most is not None:
        tokenizer.enable_truncation(most)
    e = tokenizer.encode(first) if second is None else tokenizer.encode(first, second)
    tokenizer.no_truncation()
    out = {"first": first, "ids": e.ids, "segment": e.type_ids.count(0)}
    if second is not None:
        out["second"] = second
    if most is not None:
        out["most"] = most
    return out


PAIRS = [("In the beginning God created", "the heaven and the earth."), ("", ""), ("the", ""),
         ("", "the earth"), ("Caf\u00e9 \u4e2d\u6587", " spaces  \u0130n \U0001f468\u200d\U0001f469"),
         ("a [SEP] </s> b", "<mask> [MASK] c"), (" lead", "trail "), ("\u00e9", "\u00a0x\u00a0")]
LONG = "And the evening and the morning were the first day unto them that dwelt therein"


def framed_rows(tokenizer):
    out = [framed_row(tokenizer, a, b) for a, b in PAIRS]
    for most in (6, 7, 8, 9, 12, 13, 20):
        out.append(framed_row(tokenizer, LONG, None, most))
        for a, b in ((LONG, "the sea"), ("the sea", LONG), (LONG, LONG), ("a b c", "d e f"),
                     (LONG + LONG, LONG), ("", LONG)):
            out.append(framed_row(tokenizer, a, b, most))
    return out


def train_wordpiece(lowercase):
    tokenizer = wordpiece(models.WordPiece(unk_token="[UNK]"), lowercase=lowercase)
    text = (HERE / "text.txt").read_text(encoding="utf-8")
    common = "a\u0301\u0130\u0416\u03c3\u00e9\u4e2d\u6587\uac00\U0001f600\u0898\u00df\u0131\u20ac"
    tokenizer.train_from_iterator(
        [text, LONG, " ".join(common), " ".join("x" + c for c in common)] + ADVERSARIAL[:1],
        trainers.WordPieceTrainer(vocab_size=700, min_frequency=2, show_progress=False,
                                  limit_alphabet=160,
                                  special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]))
    surround(tokenizer)
    return tokenizer


def surround(tokenizer):
    cls, sep = tokenizer.token_to_id("[CLS]"), tokenizer.token_to_id("[SEP]")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0", pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)])


def changed(tokenizer, change):
    """The parts of tokenizer.json that `change` sets, and the tokenizer with them."""
    root = json.loads(tokenizer.to_str())
    root.update(change)
    return {"change": change}, Tokenizer.from_str(json.dumps(root))


def random_unicode(count):
    draw = random.Random(11)
    marks = list(range(0x300, 0x370)) + [0x591, 0x5b0, 0x64b, 0x93c, 0xe38, 0x898, 0x1ac1, 0x302e,
                                         0x3099, 0x1d165, 0x1d16d, 0x11930]
    letters = [ord(c) for c in "aeiouAEIOU n'.[]-"] + [0xe9, 0x1ea4, 0x130, 0x4e2d, 0xac01, 0x1f600,
                                                       0xa0, 0x200b, 0, 0xfffd, 0x0f43, 0x1f80, 0x2126]
    def one():
        out = []
        for _ in range(draw.randint(1, 14)):
            kind = draw.random()
            if kind < 0.4:
                out.append(draw.choice(letters))
            elif kind < 0.8:
                out.append(draw.choice(marks))
            else:
                c = draw.choice((draw.randint(0x80, 0x3100), draw.randint(0x80, 0x1ffff)))
                out.append(0x2d if 0xd800 <= c < 0xe000 else c)
        return "".join(map(chr, out))
    return [one() for _ in range(count)]


def characters():
    """Every character beside an a, through every kind of normalization."""
    every = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    bert = normalizers.BertNormalizer
    kinds = {"uncased": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                         "strip_accents": None, "lowercase": True},
             "cased": {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
                       "strip_accents": None, "lowercase": False},
             "accents": {"type": "BertNormalizer", "clean_text": False,
                         "handle_chinese_chars": False, "strip_accents": True, "lowercase": False},
             "nfd": {"type": "NFD"}, "nfc": {"type": "NFC"}, "lowercase": {"type": "Lowercase"},
             "strip": {"type": "StripAccents"}}
    made = {"uncased": bert(), "cased": bert(lowercase=False),
            "accents": bert(clean_text=False, handle_chinese_chars=False, strip_accents=True,
                            lowercase=False),
            "nfd": normalizers.NFD(), "nfc": normalizers.NFC(), "lowercase": normalizers.Lowercase(),
            "strip": normalizers.StripAccents()}
    out = {}
    for name, normalizer in made.items():
        digest = hashlib.sha256()
        for c in every:
            # The mark before has the highest class, the one after the lowest: order shows.
            digest.update(normalizer.normalize_str(f"a\u0345{chr(c)}\u0334|").encode())
        out[name] = {"normalizer": kinds[name], "sha256": digest.hexdigest()}
    return out


def main():
    texts = TEXTS + ADVERSARIAL + random_texts(20) + random_unicode(100)
    uncased = train_wordpiece(True)
    uncased.save(str(HERE / "wordpiece.json"))
    few = ADVERSARIAL[::2] + random_unicode(16)
    sets = [{"file": "wordpiece.json", "change": {}, "rows": [row(uncased, t) for t in texts]}]

    def more(file, base, change, chosen):
        description, tokenizer = changed(base, change)
        sets.append({"file": file, **description, "rows": [row(tokenizer, t) for t in chosen]})

    bert = {"type": "BertNormalizer", "clean_text": True, "handle_chinese_chars": True,
            "strip_accents": None, "lowercase": False}
    more("wordpiece.json", uncased, {"normalizer": bert}, few)
    more("wordpiece.json", uncased, {"normalizer": {
        "type": "Sequence", "normalizers": [{"type": "NFD"}, {"type": "Lowercase"},
                                            {"type": "StripAccents"}]}}, few)
    more("wordpiece.json", uncased, {"post_processor": {
        "type": "BertProcessing", "sep": ["[SEP]", 3], "cls": ["[CLS]", 2]}}, few[:4])
    added = json.loads(uncased.to_str())["added_tokens"]
    make = lambda i, content, **k: {"id": i, "content": content, "single_word": False,
                                    "lstrip": False, "rstrip": False, "normalized": True,
                                    "special": False, **k}
    size = uncased.get_vocab_size()
    more("wordpiece.json", uncased, {"added_tokens": added + [
        make(size, "God Cr\u00e9ated"), make(size + 1, "\u4e2d\u6587", lstrip=True),
        make(size + 2, "Beginning", normalized=False, rstrip=True)]}, few)

    small = Tokenizer.from_file(str(HERE / "tokenizer.json"))
    token = lambda name: {"SpecialToken": {"id": name, "type_id": 0}}
    text = lambda name, kind: {"Sequence": {"id": name, "type_id": kind}}
    opt = {"type": "TemplateProcessing", "single": [token("</s>"), text("A", 0)],
           "pair": [token("</s>"), text("A", 0), text("B", 1)],
           "special_tokens": {"</s>": {"id": "</s>", "ids": [2], "tokens": ["</s>"]}}}
    space = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True, "use_regex": True}
    trim = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
    more("tokenizer.json", small, {}, few)
    more("tokenizer.json", small, {"post_processor": opt}, texts)
    more("tokenizer.json", small, {"pre_tokenizer": space}, texts)
    more("tokenizer.json", small, {"post_processor": {
        "type": "Sequence", "processors": [trim, opt]}}, few[:20])
    more("tokenizer.json", small, {"normalizer": {"type": "Lowercase"}}, few[:20])
    decoded = [{"ids": ids, "text": uncased.decode(ids, skip_special_tokens=False),
                "skipped": uncased.decode(ids)}
               for ids in ([], [2, 3], [0]) + tuple(uncased.encode(t).ids for t in ADVERSARIAL)]
    with open(HERE / "encodings.json", "w", encoding="utf-8") as out:
        # One row a line: small, and a difference shows its text.
        out.write('{"sets": [\n')
        for i, group in enumerate(sets):
            head = json.dumps({"file": group["file"], "change": group["change"]})
            out.write(head[:-1] + ', "rows": [\n')
            out.write(",\n".join(json.dumps(r, separators=(",", ":")) for r in group["rows"]))
            out.write("\n]}" + ("," if i + 1 < len(sets) else "") + "\n")
        out.write('], "framed": [\n')
        out.write(",\n".join(json.dumps(r, separators=(",", ":")) for r in framed_rows(uncased)))
        out.write('\n], "decoded": [\n')
        out.write(",\n".join(json.dumps(r, separators=(",", ":")) for r in decoded) + "\n]}\n")
    (HERE / "characters.json").write_text(json.dumps(characters(), indent=1) + "\n")


if __name__ == "__main__":
    main()
