// GPT-2's spelling of bytes: every byte is written as one printable character, so that tokens of
// any bytes can be written to text files. Printable ASCII and most of Latin-1 represent themselves;
// the other 68 bytes are U+0100, U+0101 ... in order (a space is U+0120).
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace brine::data {

// The character of each byte.
const std::array<uint32_t, 256>& byte_alphabet();

// The 256 bytes in the order of their characters: the order of their ids in a new vocabulary.
const std::array<uint8_t, 256>& bytes_by_character();

// `bytes` spelled in the alphabet, as UTF-8.
std::string spell_bytes(std::string_view bytes);

// The bytes of the well-formed `spelled`; nothing if a character is not in the alphabet.
std::optional<std::string> unspell_bytes(std::string_view spelled);

}  // namespace brine::data
