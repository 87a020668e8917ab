// brine train: next-token prediction, with a new model or another one's weights.
#include "apps/cli/training.h"
#include "distill/runs/pretraining.h"

namespace brine {
namespace {

const RegisterSubcommand<TrainingCommand<distill::Pretraining>> registration(
    "train", "Train a language model on text",
    {"brine train --tokenizer TOK --train book.txt --out TEACHER", "docs/guide.md"},
    Ranks::divided);

}  // namespace
}  // namespace brine
