// libFuzzer's entry: the environment's BRINE_FUZZ_TARGET names the target.
#include <cstdint>
#include <cstdlib>

#include "tests/fuzz/targets.h"
#include "tests/scratch.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  static const char* name = std::getenv("BRINE_FUZZ_TARGET");
  static const brine::fuzz::FuzzTarget& target = brine::fuzz::target_named(name ? name : "");
  static const brine::test::Scratch dir;
  // What it throws ends the program, which libFuzzer reports with the input.
  brine::fuzz::feed(target, dir.path(), {reinterpret_cast<const char*>(bytes), size});
  return 0;
}
