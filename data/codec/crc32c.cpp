// CRC-32C by table, and by the instructions of SSE4.2 or ARMv8 if the CPU has them.
#include "data/codec/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <nmmintrin.h>
#define BRINE_CRC_INSTRUCTIONS "sse4.2"
#elif defined(__aarch64__)
#include <arm_acle.h>
#include <asm/hwcap.h>
#include <sys/auxv.h>
#define BRINE_CRC_INSTRUCTIONS "+crc"
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

#if defined(BRINE_CRC_INSTRUCTIONS)
#if defined(__x86_64__)
#define BRINE_CRC_WORD _mm_crc32_u64
#define BRINE_CRC_BYTE _mm_crc32_u8
bool has_instructions() { return __builtin_cpu_supports("sse4.2"); }
#else
#define BRINE_CRC_WORD __crc32cd
#define BRINE_CRC_BYTE __crc32cb
bool has_instructions() { return (getauxval(AT_HWCAP) & HWCAP_CRC32) != 0; }
#endif

__attribute__((target(BRINE_CRC_INSTRUCTIONS))) uint32_t crc32c_native(std::string_view bytes,
                                                                       uint32_t before) {
  decltype(BRINE_CRC_WORD(0, 0)) crc = ~before;
  const char* p = bytes.data();
  size_t left = bytes.size();
  for (; left >= 8; left -= 8, p += 8) {
    uint64_t word;
    std::memcpy(&word, p, 8);
    crc = BRINE_CRC_WORD(crc, word);
  }
  for (; left > 0; --left, ++p) crc = BRINE_CRC_BYTE(uint32_t(crc), uint8_t(*p));
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
#if defined(BRINE_CRC_INSTRUCTIONS)
  static const bool native = has_instructions();
  if (native) return crc32c_native(bytes, before);
#endif
  return detail::crc32c_portable(bytes, before);
}

}  // namespace brine::data
