// A student of a teacher, whose settings are fields and whose results are structs.
#include <brine/distill/evaluation/evaluate_text.h>
#include <brine/distill/inputs/models.h>
#include <brine/distill/runs/stages/conversion.h>

#include <cstdlib>
#include <iostream>

using namespace brine;

int main(int argc, char** argv) try {
  if (argc != 5) {
    std::cerr << "usage: convert TEACHER TEXT NEW_DIRECTORY K\n";
    return 1;
  }
  distill::Conversion what;
  what.teacher = argv[1];
  what.data = {argv[2]};
  what.mask = {.preset = "light", .k = std::atoi(argv[4])};
  what.text.lengths = "16";
  what.training.steps = 4;
  what.training.batch_size = 1;
  distill::convert(what, {.out = argv[3]}, {});

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
