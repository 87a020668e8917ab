// SHA-256 (FIPS 180-4), fed piece by piece: checksums of shards and checkpoints, and the hashes by
// which a dump recognises its teacher and its tokenizer. Uses the CPU's SHA instructions if it has
// them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

namespace brine::data {

class Sha256 {
 public:
  void update(const void* bytes, size_t count);
  void update(std::string_view bytes) { update(bytes.data(), bytes.size()); }
  // The digest of everything fed so far; more may be fed afterwards.
  std::array<uint8_t, 32> digest() const;
  // The same as 64 lower-case hex digits.
  std::string hex() const;

 private:
  std::array<uint32_t, 8> state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  std::array<uint8_t, 64> block_{};  // the last total_ % 64 bytes, not yet hashed
  uint64_t total_ = 0;
};

std::string sha256_hex(std::string_view bytes);

// Hashes the file at `path`; throws Error naming it when it cannot be read.
std::string sha256_file(const std::string& path);

namespace detail {
// Both hash `blocks` blocks of 64 bytes into `state`; tests compare them.
void sha256_portable(uint32_t* state, const uint8_t* bytes, size_t blocks);
void sha256_native(uint32_t* state, const uint8_t* bytes, size_t blocks);
// Whether this CPU has the instructions of sha256_native.
bool sha256_has_native();
}  // namespace detail

}  // namespace brine::data
