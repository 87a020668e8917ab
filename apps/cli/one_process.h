// The environment of a process that is not one of a launcher's ranks, though this one is.
#pragma once

#include <string>
#include <vector>

namespace brine {

// "NAME=VALUE" of every variable of this process but those by which launchers tell ranks apart.
std::vector<std::string> environment_of_one_process();

}  // namespace brine
