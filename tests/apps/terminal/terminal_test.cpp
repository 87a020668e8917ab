// The CPU check on made-up CPUs.
#include "apps/terminal/terminal.h"

#include <doctest/doctest.h>

#include <cstring>

#include "apps/cli/cpu_check.h"

using namespace brine;

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

TEST_CASE("the features this build needs are known, and this CPU has them") {
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
