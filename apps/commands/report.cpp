// brine report: one HTML page of runs, models with a text, and sweeps.
#include "apps/report/report.h"

#include <nlohmann/json.hpp>

#include "apps/cli/program.h"
#include "apps/cli/unused_flags.h"
#include "apps/terminal/terminal.h"
#include "data/io/file_io.h"
#include "data/io/human.h"

namespace brine {
namespace {

struct ReportCommand {
  report::Request what;

  void describe(data::Schema& s) { what.describe(s); }

  int run(const RunContext& context) {
    if (what.text.sources() == 0) {
      refuse_unused(context, {"window", "sequence_length", "teacher", "k"},
                    "without a text (--text, --tokens or --data)");
    }
    data::check_target(what.out);
    const report::Report made =
        report::gather(what, context.line, "brine " BRINE_VERSION ", commit " + commit_name());
    const std::string page = report::page(made, what);
    data::write_file_atomic(what.out, page);
    log_info(what.out, ": ", human_bytes(double(page.size())));
    return 0;
  }
};

const RegisterSubcommand<ReportCommand> registration(
    "report", "One HTML page: attention maps, mask health, curves",
    {"brine report RUN --data book.txt --teacher TEACHER", "docs/evaluation.md"});

}  // namespace
}  // namespace brine
