// The commit of the program, from a header that the build writes.
#include <brine_commit.h>

#include "apps/terminal/terminal.h"

namespace brine {

std::string commit_name() { return BRINE_COMMIT; }

}  // namespace brine
