// brine lra: writes the data of Long Range Arena's ListOps.
#include <nlohmann/json.hpp>

#include "apps/cli/program.h"
#include "apps/terminal/terminal.h"
#include "data/tasks/lra/listops.h"

namespace brine {
namespace {

struct Lra {
  data::LraData what;

  void describe(data::Schema& s) { what.describe(s); }

  int run(const RunContext& context) {
    const data::Json manifest = data::write_lra_data(what, context.seed);
    for (const auto& [name, split] : manifest["splits"].items()) {
      log_info(what.out, "/", split["file"].get<std::string>(), ": ",
               split["examples"].get<int64_t>(), " examples of ", split["shortest"].get<int64_t>(),
               " to ", split["longest"].get<int64_t>(), " tokens, the largest class has ",
               100 * split["largest_class"].get<double>(), " %");
    }
    return 0;
  }
};

const RegisterSubcommand<Lra> registration("lra", "Write data of Long Range Arena's ListOps",
                                           {"brine lra --task listops --out DIR",
                                            "docs/evaluation.md"});

}  // namespace
}  // namespace brine
