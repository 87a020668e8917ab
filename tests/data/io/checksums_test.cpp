// SHA-256 and CRC-32C: published vectors, feeding in pieces, CRC-32C in both ways.
#include <doctest/doctest.h>

#include <fstream>

#include "data/codec/checksums.h"
#include "tensor/base/error.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;

namespace {

std::string varied_bytes(size_t count) {
  std::string bytes(count, '\0');
  for (size_t i = 0; i < count; ++i) bytes[i] = char(i * 131 + i / 256 * 7);
  return bytes;
}

}  // namespace

TEST_CASE("sha256: the vectors of FIPS 180-4") {
  CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(sha256_hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq") ==
        "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  CHECK(sha256_hex(std::string(1000000, 'a')) ==
        "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST_CASE("sha256: any cut into pieces gives the same digest") {
  const std::string bytes = varied_bytes(517);
  for (size_t size : {0, 1, 55, 56, 63, 64, 65, 119, 120, 128, 517}) {
    const std::string whole = sha256_hex(bytes.substr(0, size));
    for (size_t step : {1, 3, 63, 64, 65, 200}) {
      Sha256 hash;
      for (size_t at = 0; at < size; at += step)
        hash.update(std::string_view(bytes).substr(at, std::min(step, size - at)));
      CHECK(hash.hex() == whole);
      CHECK(hash.hex() == whole);  // asking does not change it
    }
  }
}

TEST_CASE("sha256: of a file") {
  test::Scratch scratch;
  const std::string bytes = varied_bytes((1 << 20) + 77), path = scratch / "file";
  std::ofstream(path, std::ios::binary) << bytes;
  CHECK(sha256_file(path) == sha256_hex(bytes));
  const std::string missing = scratch / "none";
  CHECK_THROWS_WITH_AS(sha256_file(missing), doctest::Contains((missing + ": ").c_str()), Error);
  const std::string dir = scratch.path();
  CHECK_THROWS_WITH_AS(sha256_file(dir), doctest::Contains((dir + ": ").c_str()), Error);
}

TEST_CASE("crc32c: the vectors of RFC 3720 and, of one of them, the masked form") {
  CHECK(crc32c("") == 0);
  CHECK(crc32c("123456789") == 0xe3069283u);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
  CHECK(masked_crc32c("123456789") == 0xc78ab0e5u);
}

TEST_CASE("crc32c: in pieces") {
  const std::string bytes = varied_bytes(301);
  for (size_t size : {0, 1, 7, 8, 9, 64, 301}) {
    const std::string part = bytes.substr(0, size);
    for (size_t cut : {size_t(0), size / 3, size})
      CHECK(crc32c(part.substr(cut), crc32c(part.substr(0, cut))) == crc32c(part));
  }
}
