// Numbers as people read them.
#include "data/io/human.h"

#include <doctest/doctest.h>

#include <limits>

using namespace brine;

TEST_CASE("bytes, counts and seconds for people") {
  CHECK(human_bytes(0) == "0 B");
  CHECK(human_bytes(1023) == "1023 B");
  CHECK(human_bytes(1536) == "1.5 KiB");
  CHECK(human_bytes(1024.0 * 1024 - 1) == "1.0 MiB");
  CHECK(human_bytes(3.25 * (1 << 30)) == "3.2 GiB");
  CHECK(human_count(950) == "950");
  CHECK(human_count(12345) == "12.3 k");
  CHECK(human_count(999960) == "1.0 M");
  CHECK(human_count(1.2e6) == "1.2 M");
  CHECK(human_seconds(0.25) == "0.25 s");
  CHECK(human_seconds(9.999) == "10.0 s");
  CHECK(human_seconds(59.96) == "1m00s");
  CHECK(human_seconds(125) == "2m05s");
  CHECK(human_seconds(3599.6) == "1h00m");
  CHECK(human_seconds(11045) == "3h04m");
  CHECK(human_seconds(std::numeric_limits<double>::infinity()) == "unknown");
  CHECK(human_seconds(86'399) == "23h59m");
  CHECK(human_seconds(200'000) == "2d07h");
}

TEST_CASE("a descriptor that is not a terminal has no columns") {
  CHECK(terminal_columns(-1) == 0);
}
