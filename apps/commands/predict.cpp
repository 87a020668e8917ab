// brine predict: labels lines of text.
#include <iostream>

#include "apps/cli/unused_flags.h"
#include "apps/terminal/terminal.h"
#include "distill/evaluation/tasks/prediction.h"

namespace brine {
namespace {

struct Predict {
  std::string model;
  distill::Prediction what;

  void describe(data::Schema& s) {
    s.field("model", model, "Directory or run of a model with a classification head",
            {.required = true});
    what.describe(s);
  }

  int run(const RunContext& context) {
    nn::LoadedModel m = distill::load_model(model, log_messages());
    refuse_unused_options(context, *m.model);
    const std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
    distill::predict(m, *tokenizer, what, std::cin, std::cout, log_messages());
    return 0;
  }
};

const RegisterSubcommand<Predict> registration("predict", "Label lines of text",
                                               {"brine predict --model RUN lines.txt",
                                                "docs/guide.md"});

}  // namespace
}  // namespace brine
