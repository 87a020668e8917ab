// Subcommands whose work the ranks of a launcher divide.
#pragma once

#include <functional>

#include "apps/cli/program.h"
#include "tensor/comm/communicator.h"

namespace brine {

// Compares program and keys of all ranks, then calls `body` on each and returns its status. An
// error of any rank ends all with one line, wherever the others are: all exchanges in `body` are
// those of tensor/comm/shared_work.h. Only the first rank prints.
int run_divided(const RunContext& context, const std::function<int(Communicator&)>& body);

}  // namespace brine
