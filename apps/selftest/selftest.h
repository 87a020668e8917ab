// The comparison of a GPU with the CPU: golden files, every op, attention method and model part.
#pragma once

#include <ostream>
#include <string>

#include "tensor/device/device.h"

namespace brine::selftest {

struct Count {
  int64_t compared = 0, failed = 0;
};

// The comparisons whose names contain `only`. A line for every one that fails, with the place and
// the size of the difference; an error of the device counts as one. `verbose`: for the others, too.
Count run(Device device, const std::string& only, bool verbose, std::ostream& out);

}  // namespace brine::selftest
