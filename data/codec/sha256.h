// SHA-256 (FIPS 180-4), updated piece by piece: checksums of shards and checkpoints, and the hashes
// by which a dump identifies its teacher and its tokenizer.
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
  // The digest of all bytes so far; more may be added afterwards.
  std::array<uint8_t, 32> digest() const;
  // The digest as 64 lower-case hex digits.
  std::string hex() const;

 private:
  alignas(8) std::array<unsigned char, 128> state_{};  // nettle's context, whose header is not
                                                       // included here
};

std::string sha256_hex(std::string_view bytes);

// Hashes the file at `path`; throws Error naming it when it cannot be read.
std::string sha256_file(const std::string& path);

}  // namespace brine::data
