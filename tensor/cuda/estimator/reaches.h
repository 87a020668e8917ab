// How many reaches of keys a sequence has, at each of which prefix sums of keys begin anew.
#pragma once

#include <cstdint>

namespace brine::cuda::columns {

// A reach is the shortest power of two, of at least 16 keys, of which a sequence has fewer than so
// many whole ones: half as many or more, where it is long. Tests change it: results differ by
// rounding alone.
inline int64_t& max_reaches() {
  static int64_t limit = 128;
  return limit;
}

}  // namespace brine::cuda::columns
