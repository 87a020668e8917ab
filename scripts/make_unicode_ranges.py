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


def runs(chosen):
    """The lengths of the runs of characters outside, inside, outside... up to the last one inside."""
    out = [0]
    for c in range(0x110000):
        if chosen(c) != (len(out) % 2 == 0):
            out.append(0)
        out[-1] += 1
    return out[:len(out) // 2 * 2]


def write(name, comment, items, kind="uint32_t"):
    print(f"\n// {comment}\ninline constexpr {kind} {name}[] = {{")
    line = "   "
    for item in items:
        item = f" {item},"
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
          "// clang-format off")
    category = lambda c: unicode.category(chr(c))[0]
    write("kLetterRuns", "General category L.", runs(lambda c: category(c) == "L"))
    write("kNumberRuns", "General category N.", runs(lambda c: category(c) == "N"))
    write("kSpaceRuns", "Property White_Space.", runs(lambda c: c in SPACE))
    print("\n// clang-format on\n\n}  // namespace brine::data")


if __name__ == "__main__":
    main()
