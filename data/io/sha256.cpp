// SHA-256: the padding and the portable rounds, and the same rounds with the x86 SHA instructions.
#include "data/io/sha256.h"

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <memory>
#include <vector>

#include "tensor/error.h"

#if defined(__x86_64__)
#include <cpuid.h>
#include <immintrin.h>
#endif

namespace brine::data {
namespace {

alignas(16) constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t big_endian(const uint8_t* p) {
  return uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | p[3];
}

void hash_blocks(uint32_t* state, const uint8_t* bytes, size_t blocks) {
  static const bool native = detail::sha256_has_native();
  if (native)
    detail::sha256_native(state, bytes, blocks);
  else
    detail::sha256_portable(state, bytes, blocks);
}

}  // namespace

void detail::sha256_portable(uint32_t* state, const uint8_t* bytes, size_t blocks) {
  for (; blocks > 0; --blocks, bytes += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) w[i] = big_endian(bytes + 4 * i);
    for (int i = 16; i < 64; ++i) {
      uint32_t a = w[i - 15], b = w[i - 2];
      w[i] = w[i - 16] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) + w[i - 7] +
             (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
    }
    uint32_t v[8];
    std::copy(state, state + 8, v);
    for (int i = 0; i < 64; ++i) {
      uint32_t s1 = std::rotr(v[4], 6) ^ std::rotr(v[4], 11) ^ std::rotr(v[4], 25);
      uint32_t t1 = v[7] + s1 + ((v[4] & v[5]) ^ (~v[4] & v[6])) + kRound[i] + w[i];
      uint32_t s0 = std::rotr(v[0], 2) ^ std::rotr(v[0], 13) ^ std::rotr(v[0], 22);
      uint32_t t2 = s0 + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
      for (int j = 7; j > 0; --j) v[j] = v[j - 1];
      v[4] += t1;
      v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; ++i) state[i] += v[i];
  }
}

#if defined(__x86_64__)

bool detail::sha256_has_native() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  bool sha = __get_cpuid_count(7, 0, &a, &b, &c, &d) && (b >> 29 & 1);
  return sha && __builtin_cpu_supports("sse4.1") && __builtin_cpu_supports("ssse3");
}

// The instructions keep the state as (a b e f) and (c d g h), highest lane first, and do two rounds
// at a time; four words of the message schedule are made while four rounds run.
__attribute__((target("sha,sse4.1,ssse3"))) void detail::sha256_native(uint32_t* state,
                                                                       const uint8_t* bytes,
                                                                       size_t blocks) {
  const __m128i swap = _mm_set_epi64x(0x0c0d0e0f08090a0bLL, 0x0405060700010203LL);
  const __m128i abcd = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i*)state), 0x1b);
  const __m128i efgh = _mm_shuffle_epi32(_mm_loadu_si128((const __m128i*)(state + 4)), 0x1b);
  __m128i abef = _mm_unpackhi_epi64(efgh, abcd);
  __m128i cdgh = _mm_unpacklo_epi64(efgh, abcd);
  for (; blocks > 0; --blocks, bytes += 64) {
    const __m128i abef_before = abef, cdgh_before = cdgh;
    __m128i w[4];
    for (int i = 0; i < 4; ++i)
      w[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i*)(bytes + 16 * i)), swap);
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i) {
      __m128i& now = w[i % 4];
      if (i >= 4) {
        const __m128i last = w[(i + 3) % 4];
        __m128i sum = _mm_sha256msg1_epu32(now, w[(i + 1) % 4]);
        sum = _mm_add_epi32(sum, _mm_alignr_epi8(last, w[(i + 2) % 4], 4));
        now = _mm_sha256msg2_epu32(sum, last);
      }
      __m128i term = _mm_add_epi32(now, _mm_load_si128((const __m128i*)(kRound + 4 * i)));
      cdgh = _mm_sha256rnds2_epu32(cdgh, abef, term);
      abef = _mm_sha256rnds2_epu32(abef, cdgh, _mm_shuffle_epi32(term, 0x0e));
    }
    abef = _mm_add_epi32(abef, abef_before);
    cdgh = _mm_add_epi32(cdgh, cdgh_before);
  }
  _mm_storeu_si128((__m128i*)state, _mm_shuffle_epi32(_mm_unpackhi_epi64(cdgh, abef), 0x1b));
  _mm_storeu_si128((__m128i*)(state + 4), _mm_shuffle_epi32(_mm_unpacklo_epi64(cdgh, abef), 0x1b));
}

#else

bool detail::sha256_has_native() { return false; }
void detail::sha256_native(uint32_t* state, const uint8_t* bytes, size_t blocks) {
  sha256_portable(state, bytes, blocks);
}

#endif

void Sha256::update(const void* bytes, size_t count) {
  if (count == 0) return;
  auto p = static_cast<const uint8_t*>(bytes);
  size_t held = total_ % 64;
  total_ += count;
  if (held > 0) {
    size_t taken = std::min(count, 64 - held);
    std::memcpy(block_.data() + held, p, taken);
    if (held + taken < 64) return;
    hash_blocks(state_.data(), block_.data(), 1);
    p += taken;
    count -= taken;
  }
  hash_blocks(state_.data(), p, count / 64);
  if (count % 64 > 0) std::memcpy(block_.data(), p + count / 64 * 64, count % 64);
}

std::array<uint8_t, 32> Sha256::digest() const {
  std::array<uint32_t, 8> state = state_;
  uint8_t tail[128] = {};
  size_t held = total_ % 64, size = held < 56 ? 64 : 128;
  std::memcpy(tail, block_.data(), held);
  tail[held] = 0x80;
  for (size_t i = 0; i < 8; ++i) tail[size - 1 - i] = uint8_t(total_ * 8 >> 8 * i);
  hash_blocks(state.data(), tail, size / 64);
  std::array<uint8_t, 32> out;
  for (size_t i = 0; i < 32; ++i) out[i] = uint8_t(state[i / 4] >> (24 - i % 4 * 8));
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
