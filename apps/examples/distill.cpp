// A student of a teacher, whose settings are fields and whose results are structs.
#include <brine/distill/evaluation/evaluate_text.h>
#include <brine/distill/inputs/models.h>
#include <brine/distill/runs/distillation.h>

#include <cstdlib>
#include <iostream>

using namespace brine;

int main(int argc, char** argv) try {
  if (argc != 5) {
    std::cerr << "usage: distill TEACHER TEXT NEW_DIRECTORY K\n";
    return 1;
  }
  distill::Distillation what{.teacher = argv[1],
                             .data = {argv[2]},
                             .text = {.lengths = "16"},
                             .mask = {.preset = "light", .k = std::atoi(argv[4])},
                             .stages = distill::Stages::attention};
  what.training.steps = 4;
  what.training.batch_size = 1;
  distill::distil(what, {.out = argv[3]}, {});

  nn::LoadedModel student = distill::load_model(argv[3], {});
  const auto tokenizer = distill::tokenizer_of(student, {});
  const distill::TextResult r =
      distill::evaluate_text(argv[3], student, *tokenizer, {.data = {argv[2]}}, {});
  std::cout << "k " << *r.k << ": perplexity " << r.perplexity.value() << ", mask recall "
            << r.mask_health->recall << "\n";
} catch (const Error& e) {
  std::cerr << e.what() << "\n";
  return 1;
}
