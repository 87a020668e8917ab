// Numbers as people read them, and the CPU check on made-up CPUs.
#include "apps/cli/terminal.h"

#include <doctest/doctest.h>

#include <cstring>
#include <limits>

#include "apps/cli/cpu_check.h"

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
}

TEST_CASE("the CPU check names exactly what is needed and not present") {
  CpuFeature features[] = {
      {"avx", true, true}, {"avx2", true, false}, {"fma", false, false}, {"avx512f", true, false}};
  char out[64];
  missing_features(features, 4, out, sizeof out);
  CHECK(std::string(out) == "avx2 avx512f");
  missing_features(features, 1, out, sizeof out);
  CHECK(std::string(out).empty());
  char small[6];
  missing_features(features, 4, small, sizeof small);
  CHECK(std::string(small) == "avx2 ");
}

TEST_CASE("this build's needs are known and this CPU meets them") {
  int count = 0;
  const CpuFeature* features = cpu_features(&count);
  char out[512];
  missing_features(features, count, out, sizeof out);
  CHECK(std::string(out).empty());
#if defined(__AVX2__)
  bool found = false;
  for (int i = 0; i < count; ++i) {
    if (std::strcmp(features[i].name, "avx2") == 0) found = features[i].needed;
  }
  CHECK(found);
#endif
}
