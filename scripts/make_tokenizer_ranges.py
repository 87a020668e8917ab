#!/usr/bin/env python3
"""Writes data/tokenizer/normalize/tokenizer_ranges.h: what Hugging Face's `tokenizers` (0.23 was used) takes every
character for, found by asking it. Its tables are of several old versions of Unicode, and BERT's ids
depend on them. Needs tokenizers and, to know what newer versions of Unicode decompose,
unicodedata2 (18.0 was used).

    scripts/make_tokenizer_ranges.py > data/tokenizer/normalize/tokenizer_ranges.h
"""
import unicodedata2 as unicode
from make_unicode_ranges import runs, write
from tokenizers import normalizers, pre_tokenizers

CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def bert(**on):
    flags = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**flags, **on}).normalize_str


def chosen(test):
    return runs(lambda c: not 0xD800 <= c < 0xE000 and test(chr(c)))


def lower_runs(pairs):
    out = []
    for c, low in pairs:
        if out and out[-1][1] == c - 1 and low - c == out[-1][2] - out[-1][0]:
            out[-1][1] = c
        else:
            out.append([c, c, low])
    return [f"{{0x{first:x}, 0x{last:x}, 0x{low:x}}}" for first, last, low in out]


def main():
    clean, cjk, accents = bert(clean_text=True), bert(handle_chinese_chars=True), \
        bert(strip_accents=True)
    strip, nfd = normalizers.StripAccents().normalize_str, normalizers.NFD().normalize_str
    lower = normalizers.Lowercase().normalize_str
    words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str

    def inert(c):
        """Newer versions of Unicode decompose or reorder c, `tokenizers` does not."""
        moves = nfd("a" + c + "\u0334") != "a" + c + "\u0334" or \
            nfd("a\u0345" + c) != "a\u0345" + c
        return nfd(c) == c and not moves and (
            unicode.normalize("NFD", c) != c or unicode.combining(c) != 0)

    print("// Which characters Hugging Face's `tokenizers` treats in which way; made by\n"
          "// scripts/make_tokenizer_ranges.py.\n#pragma once\n\n"
          '#include "data/unicode/unicode_ranges.h"\n\nnamespace brine::data {\n\n'
          "struct LowerRun {\n  uint32_t first, last, lower;  // lower: of the first\n};\n\n// clang-format off")
    write("kRemovedRuns", "Dropped by BERT's cleaning.",
          chosen(lambda c: clean("a" + c + "b") == "ab"))
    write("kCjkRuns", "Set apart by BERT as Chinese characters.",
          chosen(lambda c: cjk("a" + c) == "a " + c + " "))
    write("kAccentRuns", "Dropped by BERT as accents.",
          chosen(lambda c: accents("a" + c) == "a"))
    write("kNewMarkRuns",
          "Dropped by StripAccents, too, whose table is of a newer version of Unicode.",
          chosen(lambda c: strip("a" + c) == "a" and accents("a" + c) != "a"))
    write("kPunctuationRuns", "Words by themselves in BERT's pre-tokenisation.",
          chosen(lambda c: len(words("a" + c + "b")) == 3))
    write("kInertRuns", "Neither decomposed nor reordered, being too new.",
          chosen(inert))
    write("kLowerRuns", "Lower case that versions before Unicode 17 lack.",
          lower_runs([(ord(c), ord(lower(c))) for c in CHARACTERS if lower(c) != c.lower()]),
          "LowerRun")
    print("\n// clang-format on\n\n}  // namespace brine::data")


main()
