// brine verify: compares the SEA block with golden files, stage by stage.
#include "apps/verify/verify.h"

#include <iostream>

#include "apps/cli/program.h"

namespace brine {
namespace {

struct Verify {
  Verification what;

  void describe(data::Schema& s) { what.describe(s); }

  int run(const RunContext& context) {
    const VerifyCounts counts = verify(what, context.quiet, std::cout);
    return counts.passed == counts.compared ? 0 : 1;
  }
};
const RegisterSubcommand<Verify> registration("verify",
                                              "Compare attention methods with golden files",
                                              {"brine verify tests/golden/*.h5", "docs/method.md"});

}  // namespace
}  // namespace brine
