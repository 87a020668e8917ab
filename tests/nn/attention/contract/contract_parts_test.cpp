// Prompts that are read in parts: of every method that claims it, the bits of one pass.
#include "tests/messages.h"
#include "tests/nn/attention/contract/contract.h"

namespace brine::test {
namespace {

nn::AttentionInput rows_of(const nn::AttentionInput& in, int64_t first, int64_t n) {
  auto rows = [&](const Tensor& x) { return x.slice(2, first, n).contiguous(); };
  return {.q = rows(in.q), .k = rows(in.k), .v = rows(in.v), .hidden = {}};
}

}  // namespace

TEST_CASE("contract: a prompt in parts leaves the output and the state of one pass") {
  NoGrad off;
  int methods = 0;
  for (const std::string& name : methods_to_test()) {
    for (const auto& settings : variants(name, true)) {
      std::optional<Block> block;
      try {
        block = make_block(name, true, Dtype::f32, 5, 300, settings);
      } catch (const Error&) {
        continue;  // the contract's first case says why
      }
      const int64_t step = block->module->traits().part_step, T = 203;
      if (step == 0) continue;
      ++methods;
      const Shape shape{1, kHeads, T + 1, kSize};
      const nn::AttentionInput all{
          .q = normal(shape, 1), .k = normal(shape, 2), .v = normal(shape, 3), .hidden = {}};
      const nn::StateRequest request{.capacity = 256};
      const auto whole = block->module->make_state(request);
      nn::AttentionInput prompt = rows_of(all, 0, T);
      prompt.state = whole.get();
      const Tensor wanted = block->module->forward(prompt);
      std::vector<NamedTensor> saved = whole->saved(0);
      for (NamedTensor& t : saved) t.tensor = t.tensor.contiguous().clone();
      const Tensor next = block->module->step(rows_of(all, T, 1), *whole);
      for (const int64_t parts : {step, 2 * step, 3 * step, T / 2 / step * step}) {
        INFO(name << ", parts of " << parts);
        const auto state = block->module->make_state({.batch = 3, .capacity = 256});
        for (int64_t first = 0; first < T; first += parts) {
          const int64_t n = std::min(parts, T - first);
          nn::AttentionInput part = rows_of(all, first, n);
          part.state = state.get();
          part.slot = 1;
          CHECK(same_bits(block->module->forward(part), wanted.slice(1, first, n).contiguous()));
        }
        const std::vector<NamedTensor> got = state->saved(1);
        REQUIRE(got.size() == saved.size());
        for (size_t i = 0; i < got.size(); ++i) {
          const bool lists = contains(got[i].name, "entries");  // beyond its count: anything
          CHECK_MESSAGE((lists || same_bits(got[i].tensor, saved[i].tensor)), got[i].name);
        }
        const auto alone = block->module->make_state(request);
        alone->restore(0, got, "parts");
        CHECK(same_bits(block->module->step(rows_of(all, T, 1), *alone), next));
      }
      const auto state = block->module->make_state(request);
      nn::AttentionInput part = rows_of(all, 0, step + 1);
      part.state = state.get();
      block->module->forward(part);
      if (step > 1)
        CHECK(contains(message([&] { block->module->forward(part); }), "begins at a multiple of"));
    }
  }
  CHECK(enough(methods, 7));
}

}  // namespace brine::test
