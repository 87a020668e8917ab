// brine dump: runs a teacher over text and stores what distillation needs in HDF5.
#include "apps/cli/ranks.h"
#include "apps/cli/unused_flags.h"
#include "apps/terminal/stop_signals.h"
#include "apps/terminal/terminal.h"
#include "distill/runs/dump_run.h"

namespace brine {
namespace {

struct Dump {
  std::string model;
  distill::DumpRequest what;

  void describe(data::Schema& s) {
    s.field("model", model, "Teacher: model directory or run", {.alias = "teacher"});
    what.describe(s);
  }

  int run(const RunContext& context) {
    return run_divided(context, [&](Communicator& ranks) { return dump(context, ranks); });
  }

  int dump(const RunContext& context, Communicator& ranks) {
    check(!model.empty() && (!what.data.empty() || !what.task.empty()) && !what.out.empty(),
          "dump: --model, --data (or --task) and --out are needed");
    refuse_mixed(context, what);
    const nn::LoadedModel m = distill::load_model(model, log_messages());
    const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
    const StopSignals signals;
    const distill::RunHost host{.seed = context.seed,
                                .messages = log_messages(),
                                .stop = [&signals] { return signals.name(); },
                                .ranks = &ranks};
    return distill::dump_teacher(m, *tokenizer, what, host) ? 0 : 130;
  }
};

const RegisterSubcommand<Dump> registration(
    "dump", "Store a teacher's attention in HDF5",
    {"brine dump --teacher TEACHER --data book.txt --value --out DUMP", "docs/formats.md"},
    Ranks::divided);

}  // namespace
}  // namespace brine
