// Checksums: CRC-32C, and SHA-256 (FIPS 180-4), updated piece by piece, of shards and checkpoints,
// by which a dump also identifies its teacher and its tokenizer.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace brine::data {

class Sha256 {
 public:
  Sha256();
  void update(const void* bytes, size_t count);
  void update(std::string_view bytes) { update(bytes.data(), bytes.size()); }
  // The digest of all bytes so far as 64 lower-case hex digits; more may be added afterwards.
  std::string hex() const;

 private:
  alignas(8) std::array<unsigned char, 128> state_{};  // nettle's context, whose header is not
                                                       // included here
};

std::string sha256_hex(std::string_view bytes);

// Hashes the file at `path`; throws Error naming it when it cannot be read.
std::string sha256_file(const std::string& path);

// The CRC-32C (Castagnoli) of `bytes`, the checksum of TFRecord framing and of Brine's small
// records; to continue over more bytes pass the result as `before`.
uint32_t crc32c(std::string_view bytes, uint32_t before = 0);

// TFRecord's masked form, safe to store next to the bytes that it covers.
inline uint32_t masked_crc32c(std::string_view bytes) {
  uint32_t crc = crc32c(bytes);
  return ((crc >> 15) | (crc << 17)) + 0xa282ead8u;
}

}  // namespace brine::data
