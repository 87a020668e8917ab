// The suites of `brine bench` by name.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "apps/bench/bench.h"

namespace brine::bench {

struct Suite {
  const char* name;
  std::vector<BenchRow> (*run)();
  bool anywhere = false;  // on a device, too
};
// Those that need no files.
std::span<const Suite> suites();

// All names, including those of suites that need files (trained, tokenizer).
std::vector<std::string> suite_names();

// Throws when one of these suites measures the CPU and models compute on a device: it compares
// kernels of the CPU with the CPU's limits.
void check_suites(const std::vector<std::string>& names);

}  // namespace brine::bench
