// Rows of measurements as a table and as JSON.
#pragma once

#include "apps/bench/bench.h"
#include "data/config/schema.h"

namespace brine::bench {

// On standard output.
void print_title();
void print_row(const BenchRow& row);

data::Json to_json(const char* suite, const BenchRow& row);

}  // namespace brine::bench
