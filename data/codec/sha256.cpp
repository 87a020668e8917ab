// SHA-256 by nettle, which uses the CPU's SHA instructions if available.
#include "data/codec/sha256.h"

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

std::array<uint8_t, 32> Sha256::digest() const {
  State state;  // a copy: nettle resets the state after a digest
  std::memcpy(&state, state_.data(), sizeof state);
  std::array<uint8_t, 32> out;
  sha256_digest(&state, out.size(), out.data());
  return out;
}

std::string Sha256::hex() const {
  std::string out;
  for (uint8_t byte : digest()) {
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

}  // namespace brine::data
