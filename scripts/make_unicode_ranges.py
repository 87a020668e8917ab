#!/usr/bin/env python3
"""Writes data/unicode/unicode_ranges.h: which characters GPT-2's pre-tokenisation takes for letters,
numbers and white space. Needs the tables of Unicode 16.0: pip install unicodedata2==16.0.0

    scripts/make_unicode_ranges.py > data/unicode/unicode_ranges.h
"""
import sys

import unicodedata2 as unicode

# The property White_Space, which the regular expression's \\s means; it has not changed since 6.3.
SPACE = {*range(0x09, 0x0E), 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B),
         0x2028, 0x2029, 0x202F, 0x205F, 0x3000}


def ranges(chosen):
    out = []
    for c in range(0x110000):
        if chosen(c):
            if out and out[-1][1] == c - 1:
                out[-1][1] = c
            else:
                out.append([c, c])
    return out


def write(name, comment, found, kind="CharRange"):
    print(f"\n// {comment}\ninline constexpr {kind} {name}[] = {{")
    line = "   "
    for first, last in found:
        item = f" {{0x{first:x}, 0x{last:x}}},"
        if len(line) + len(item) > 100:
            print(line)
            line = "   "
        line += item
    print(line + "\n};")


def main():
    if unicode.unidata_version != "16.0.0":
        sys.exit(f"make_unicode_ranges: these are the tables of Unicode {unicode.unidata_version}, "
                 "wanted 16.0.0")
    print("// Unicode 16.0's letters, numbers and white space; made by "
          "scripts/make_unicode_ranges.py.\n#pragma once\n\n#include <cstdint>\n\n"
          "namespace brine::data {\n\n"
          "struct CharRange {\n  uint32_t first, last;  // both belong to it\n};\n\n"
          "// clang-format off")
    category = lambda c: unicode.category(chr(c))[0]
    write("kLetterRanges", "General category L.", ranges(lambda c: category(c) == "L"))
    write("kNumberRanges", "General category N.", ranges(lambda c: category(c) == "N"))
    write("kSpaceRanges", "Property White_Space.", ranges(lambda c: c in SPACE))
    print("\n// clang-format on\n\n}  // namespace brine::data")


if __name__ == "__main__":
    main()
