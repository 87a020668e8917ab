// The commit of the program, from a header that the build writes.
#include "apps/terminal/commit.h"

#include <brine_commit.h>

namespace brine {

std::string commit_name() { return BRINE_COMMIT; }

}  // namespace brine
