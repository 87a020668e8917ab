// Text of files in messages.
#include "data/io/utf8.h"

#include <doctest/doctest.h>

using brine::data::shown;

TEST_CASE("shown: what a terminal obeys and what is not UTF-8 is escaped, other text stays") {
  CHECK(shown("") == "");
  CHECK(shown("a b\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80") ==
        "a b\xc3\xa9\xe2\x82\xac\xf0\x9f\x98\x80");
  CHECK(shown("a\nb\x1b[2J\x7f") == "a\\x0ab\\x1b[2J\\x7f");
  CHECK(shown("\xc2\x9b"
              "2J\xc2\xa0") == "\\xc2\\x9b2J\xc2\xa0");
  CHECK(shown("x\xe2\x80\xa8y\xe2\x80\xa9\xe2\x80\xaa") ==
        "x\\xe2\\x80\\xa8y\\xe2\\x80\\xa9\xe2\x80\xaa");
  CHECK(shown("\xff\xc3") == "\\xff\\xc3");
  CHECK(shown("ok\xe2\x80") == "ok\\xe2\\x80");
}
