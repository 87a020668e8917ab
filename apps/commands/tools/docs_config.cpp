// brine docs-config: writes docs/configuration.md from the schemas.
#include <iostream>

#include "apps/cli/program.h"
#include "data/io/file_io.h"

namespace brine {

namespace {

struct DocsConfig {
  std::string out;

  void describe(data::Schema& s) {
    s.field("out", out, "File to write; none: standard output", {.transient = true});
  }

  int run(const RunContext&) {
    if (out.empty()) {
      std::cout << configuration_page();
    } else {
      data::write_file_atomic(out, configuration_page());
    }
    return 0;
  }
};

const RegisterSubcommand<DocsConfig> registration("docs-config",
                                                  "Write the page of all configuration keys",
                                                  {"brine docs-config --out docs/configuration.md",
                                                   "docs/configuration.md"},
                                                  Ranks::refused, Listing::hidden);

}  // namespace

}  // namespace brine
