// Pictures and packed bytes, read back by zlib and by hand.
#include <doctest/doctest.h>
#include <zlib.h>

#include "data/codec/packed_text.h"
#include "data/codec/png.h"
#include "tests/messages.h"
#include "tests/png_reader.h"

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

TEST_CASE("png: the pixels of a picture, read back") {
  data::Picture picture(7, 5);
  for (int64_t y = 0; y < 5; ++y) {
    for (int64_t x = 0; x < 7; ++x)
      picture.at(x, y) = {uint8_t(40 * x), uint8_t(60 * y), uint8_t(255 - 11 * x * y)};
  }
  const data::Picture read = test::read_png(data::png(picture));
  CHECK(read.width == 7);
  CHECK(read.height == 5);
  CHECK(read.pixels == picture.pixels);
  CHECK(test::contains(test::message([] { (void)data::png(data::Picture(0, 5)); }), "png: "));
}
