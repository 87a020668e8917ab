// CRC-32C by table, and by the SSE4.2 instruction if the CPU has it.
#include "data/io/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#endif

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

#if defined(__x86_64__)
__attribute__((target("sse4.2"))) uint32_t crc32c_native(std::string_view bytes, uint32_t before) {
  uint64_t crc = ~before;
  const char* p = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    crc = _mm_crc32_u64(crc, word);
  }
  for (; left > 0; --left, ++p) crc = _mm_crc32_u8(uint32_t(crc), uint8_t(*p));
  return ~uint32_t(crc);
}
#endif

}  // namespace

uint32_t detail::crc32c_portable(std::string_view bytes, uint32_t before) {
  uint32_t crc = ~before;
  for (char c : bytes) crc = crc >> 8 ^ kTable[(crc ^ uint8_t(c)) & 255];
  return ~crc;
}

uint32_t crc32c(std::string_view bytes, uint32_t before) {
#if defined(__x86_64__)
  static const bool native = __builtin_cpu_supports("sse4.2");
  if (native) return crc32c_native(bytes, before);
#endif
  return detail::crc32c_portable(bytes, before);
}

}  // namespace brine::data
