// Packed bytes, read back by zlib.
#include <doctest/doctest.h>
#include <zlib.h>

#include "data/codec/packed_text.h"

using namespace brine;

TEST_CASE("packed text: zlib unpacks what was deflated") {
  std::string bytes;
  for (int i = 0; i < 70000; ++i) bytes += char((i * i) >> 7);
  for (const std::string& text : {bytes, std::string(), std::string(1, '\0')}) {
    const std::string packed = data::deflated(text);
    std::string out(text.size() + 1, 'x');
    uLongf size = uLongf(out.size());
    const int status =
        uncompress(reinterpret_cast<Bytef*>(out.data()), &size,
                   reinterpret_cast<const Bytef*>(packed.data()), uLong(packed.size()));
    REQUIRE(status == Z_OK);
    CHECK(out.substr(0, size) == text);
  }
  CHECK(data::deflated(bytes) == data::deflated(bytes));
}

TEST_CASE("packed text: base64 of RFC 4648's examples and of every byte") {
  const std::pair<const char*, const char*> cases[] = {{"", ""},
                                                       {"f", "Zg=="},
                                                       {"fo", "Zm8="},
                                                       {"foo", "Zm9v"},
                                                       {"foob", "Zm9vYg=="},
                                                       {"fooba", "Zm9vYmE="},
                                                       {"foobar", "Zm9vYmFy"}};
  for (const auto& [text, wanted] : cases) CHECK(data::base64(text) == wanted);
  CHECK(data::base64("\xff\xfe\xfb") == "//77");
  CHECK(data::base64(std::string("\0\0\0", 3)) == "AAAA");
}
