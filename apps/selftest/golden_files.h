// A few golden files (tests/golden) in the program, so that an installed one can compare with them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace brine::selftest {

struct GoldenFile {
  std::string name;        // "causal_light_t34.h5"
  std::string_view bytes;  // in the program
};
const std::vector<GoldenFile>& golden_files();

}  // namespace brine::selftest
