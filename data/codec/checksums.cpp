// SHA-256 by nettle, which uses the CPU's SHA instructions if available, and CRC-32C by table.
#include "data/codec/checksums.h"

#include <nettle/sha2.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "tensor/base/error.h"

namespace brine::data {
namespace {

using State = sha256_ctx;
static_assert(sizeof(State) <= sizeof(Sha256) && alignof(State) <= alignof(Sha256));

}  // namespace

Sha256::Sha256() { sha256_init(reinterpret_cast<State*>(state_.data())); }

void Sha256::update(const void* bytes, size_t count) {
  auto* state = reinterpret_cast<State*>(state_.data());
  if (count > 0) sha256_update(state, count, static_cast<const uint8_t*>(bytes));
}

std::string Sha256::hex() const {
  State state;  // a copy: nettle resets the state after a digest
  std::memcpy(&state, state_.data(), sizeof state);
  std::array<uint8_t, 32> digest;
  sha256_digest(&state, digest.size(), digest.data());
  std::string out;
  for (uint8_t byte : digest) {
    out += "0123456789abcdef"[byte >> 4];
    out += "0123456789abcdef"[byte & 15];
  }
  return out;
}

std::string sha256_hex(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

std::string sha256_file(const std::string& path) {
  std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::fopen(path.c_str(), "rb"), std::fclose);
  check(file != nullptr, path, ": cannot be opened: ", std::strerror(errno));
  Sha256 hash;
  std::vector<uint8_t> buffer(1 << 20);
  while (size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get()))
    hash.update(buffer.data(), count);
  check(!std::ferror(file.get()), path, ": cannot be read: ", std::strerror(errno));
  return hash.hex();
}

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
