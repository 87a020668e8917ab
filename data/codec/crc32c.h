// CRC-32C (Castagnoli), the checksum of TFRecord framing and of Brine's small records.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace brine::data {

// The CRC of `bytes`; to continue over more bytes pass the result as `before`.
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

// TFRecord's masked form, safe to store next to the bytes that it covers.
inline uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace brine::data
