// brine finetune: trains a pretrained (or new) encoder on a task; it becomes the teacher of
// `distill --task`.
#include "apps/cli/training.h"
#include "distill/runs/finetuning.h"

namespace brine {
namespace {

const RegisterSubcommand<TrainingCommand<distill::Finetuning>> registration(
    "finetune", "Train an encoder on a task (GLUE, your files, WordNet, books, Long Range Arena)",
    {"brine finetune --task cola --data GLUE --model BERT --out TEACHER", "docs/guide.md"},
    Ranks::divided);

}  // namespace
}  // namespace brine
