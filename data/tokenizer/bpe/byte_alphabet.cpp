// The two tables of GPT-2's byte alphabet.
#include "data/tokenizer/bpe/byte_alphabet.h"

#include "data/unicode/unicode.h"

namespace brine::data {
namespace {

constexpr uint32_t kCharacters = 0x100 + 68;

bool stands_for_itself(uint32_t byte) {
  return (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte != 0xad);
}

// The byte of each character below kCharacters, -1 where there is none.
const std::array<int16_t, kCharacters>& bytes_of() {
  static const auto table = [] {
    std::array<int16_t, kCharacters> out;
    out.fill(-1);
    for (uint32_t byte = 0; byte < 256; ++byte) out[byte_alphabet()[byte]] = int16_t(byte);
    return out;
  }();
  return table;
}

}  // namespace

const std::array<uint32_t, 256>& byte_alphabet() {
  static const auto table = [] {
    std::array<uint32_t, 256> out;
    uint32_t next = 0x100;
    for (uint32_t byte = 0; byte < 256; ++byte) out[byte] = stands_for_itself(byte) ? byte : next++;
    return out;
  }();
  return table;
}

const std::array<uint8_t, 256>& bytes_by_character() {
  static const auto table = [] {
    std::array<uint8_t, 256> out;
    auto next = out.begin();
    for (const int16_t byte : bytes_of())
      if (byte >= 0) *next++ = uint8_t(byte);
    return out;
  }();
  return table;
}

std::string spell_bytes(std::string_view bytes) {
  std::string out;
  for (char c : bytes) append_utf8(out, byte_alphabet()[uint8_t(c)]);
  return out;
}

std::optional<std::string> unspell_bytes(std::string_view spelled) {
  std::string out;
  for (size_t at = 0; at < spelled.size();) {
    uint32_t c = next_char(spelled, at);
    if (c >= kCharacters || bytes_of()[c] < 0) return std::nullopt;
    out += char(bytes_of()[c]);
  }
  return out;
}

}  // namespace brine::data
