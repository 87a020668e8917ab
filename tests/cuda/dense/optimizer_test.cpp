// AdamW on the device, as on the CPU.
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: adamw over several steps") { compare_all(table::adamw_cases()); }
