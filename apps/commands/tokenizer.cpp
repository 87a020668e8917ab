// brine tokenizer: trains a byte-level BPE tokenizer.
#include <filesystem>
#include <iostream>

#include "apps/cli/program.h"
#include "apps/cli/terminal.h"
#include "data/checkpoint/checkpoint.h"
#include "data/tokenizer/bpe/bpe.h"

namespace brine {
namespace {

struct TokenizerCommand {
  std::vector<std::string> train;
  int64_t vocab_size = 4096;
  std::string out;
  data::SpecialTokens kind = data::SpecialTokens::decoder;

  void describe(data::Schema& s) {
    s.field("train", train, "Text files to train on", {.required = true});
    s.field("vocab_size", vocab_size, "Tokens, including the 256 bytes and the special ones",
            {.min = 261, .max = 1 << 20});
    s.choice(
        "kind", kind, data::kSpecialTokens,
        "Special tokens: OPT's <s> <pad> </s> <unk>, or BERT's [PAD] [UNK] [CLS] [SEP] [MASK]");
    s.field("out", out, "Directory to write", {.required = true});
  }

  int run(const RunContext&) {
    refuse_model();
    const std::unique_ptr<data::Tokenizer> tokenizer =
        data::train_bpe(train, {.vocab_size = vocab_size, .special = data::special_tokens(kind)});
    tokenizer->save(out);
    log_info(out, ": ", tokenizer->vocab_size(), " tokens");
    if (tokenizer->vocab_size() < vocab_size) {
      log_warning("tokenizer: ", vocab_size,
                  " tokens were requested; the text has no more pairs to "
                  "merge, so the vocabulary is smaller");
    }
    return 0;
  }

  // The rows of a model belong to the tokens that it was trained with.
  void refuse_model() const {
    for (const char* name : {"config.json", "model.safetensors", "model.safetensors.index.json",
                             "pytorch_model.bin", "pytorch_model.bin.index.json"})
      check(!std::filesystem::exists(data::Path(out) / name), out, ": contains a model's ", name,
            ", which another tokenizer would not fit; give another directory");
    check(data::list_checkpoints(out).empty(), out,
          ": contains a run, which another tokenizer would not fit; give another directory");
  }
};
const RegisterSubcommand<TokenizerCommand> registration("tokenizer",
                                                        "Train a byte-level BPE tokenizer");

}  // namespace
}  // namespace brine
