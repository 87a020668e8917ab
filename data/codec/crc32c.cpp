// CRC-32C by table.
#include "data/codec/crc32c.h"

#include <array>

namespace brine::data {
namespace {

constexpr std::array<uint32_t, 256> make_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kTable = make_table();

}  // namespace

uint32_t crc32c(std::string_view bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ uint8_t(c)) & 255];
  return ~crc;
}

}  // namespace brine::data
