// brine inspect: describes a path.
#include "apps/inspect/inspect.h"

#include <iostream>

#include "apps/cli/program.h"

namespace brine {
namespace {

struct Inspect {
  std::string target;
  InspectOptions options;

  void describe(data::Schema& s) {
    s.field("target", target, "Dump, run, checkpoint, model, tokenizer, or a file: GGUF, text",
            {.required = true, .positional = true});
    s.field("verify", options.verify, "Compare every checksum of a dump or of token shards");
    s.field("tensors", options.tensors, "List the tensors of a model");
    s.field("tokenizer", options.tokenizer,
            "Tokenizer directory: counts a text's tokens, prints its corpus_hash");
  }

  int run(const RunContext& /*context*/) {
    std::cout << inspect(target, options);
    return 0;
  }
};

const RegisterSubcommand<Inspect> registration("inspect", "Describe a path",
                                               {"brine inspect RUN", "docs/guide.md"});

}  // namespace
}  // namespace brine
