// brine tokenizer: trains a byte-level BPE tokenizer.
#include "apps/cli/program.h"
#include "apps/terminal/terminal.h"
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
    // The rows of a model belong to the tokens that it was trained with.
    data::refuse_occupied(data::Path(out), {data::Holding::tokenizer});
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
};
const RegisterSubcommand<TokenizerCommand> registration(
    "tokenizer", "Train a byte-level BPE tokenizer",
    {"brine tokenizer --train book.txt --vocab-size 4096 --out TOK", "docs/formats.md"});

}  // namespace
}  // namespace brine
