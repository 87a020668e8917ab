#!/usr/bin/env python3
"""Writes data/tokenizer/normalize/tokenizer_ranges.h: what Hugging Face's `tokenizers` (0.23 was used) takes every
character for, found by asking it. Its tables are of several old versions of Unicode, and BERT's ids
depend on them. Needs tokenizers and, to know what newer versions of Unicode decompose,
unicodedata2 (18.0 was used).

    scripts/make_tokenizer_ranges.py > data/tokenizer/normalize/tokenizer_ranges.h
"""
import unicodedata2 as unicode
from make_unicode_ranges import ranges, write
from tokenizers import normalizers, pre_tokenizers

CHARACTERS = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]


def bert(**on):
    flags = dict(clean_text=False, handle_chinese_chars=False, strip_accents=False, lowercase=False)
    return normalizers.BertNormalizer(**{**flags, **on}).normalize_str


def chosen(test):
    return ranges(lambda c: not 0xD800 <= c < 0xE000 and test(chr(c)))


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
          "struct CharPair {\n  uint32_t from, to;\n};\n\n// clang-format off")
    write("kRemovedRanges", "Dropped by BERT's cleaning.",
          chosen(lambda c: clean("a" + c + "b") == "ab"))
    write("kCjkRanges", "Set apart by BERT as Chinese characters.",
          chosen(lambda c: cjk("a" + c) == "a " + c + " "))
    write("kAccentRanges", "Dropped by BERT as accents.",
          chosen(lambda c: accents("a" + c) == "a"))
    write("kNewMarkRanges",
          "Dropped by StripAccents, too, whose table is of a newer version of Unicode.",
          chosen(lambda c: strip("a" + c) == "a" and accents("a" + c) != "a"))
    write("kPunctuationRanges", "Words by themselves in BERT's pre-tokenisation.",
          chosen(lambda c: len(words("a" + c + "b")) == 3))
    write("kInertRanges", "Neither decomposed nor reordered, being too new.",
          chosen(inert))
    write("kLowerPairs", "Lower case that versions before Unicode 17 lack.",
          [(ord(c), ord(lower(c))) for c in CHARACTERS if lower(c) != c.lower()], "CharPair")
    print("\n// clang-format on\n\n}  // namespace brine::data")


main()
