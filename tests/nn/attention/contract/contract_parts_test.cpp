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
  each_block(Dtype::f32, [&](Block& block) {
    const int64_t step = block.module->traits().part_step, T = 203;
    if (step == 0 || !block.causal) return;
    ++methods;
    const Shape shape{1, kHeads, T + 1, kSize};
    const nn::AttentionInput all{
        .q = normal(shape, 1), .k = normal(shape, 2), .v = normal(shape, 3), .hidden = {}};
    const nn::StateRequest request{.capacity = 256};
    const auto whole = block.module->make_state(request);
    nn::AttentionInput prompt = rows_of(all, 0, T);
    prompt.state = whole.get();
    const Tensor wanted = block.module->forward(prompt);
    std::vector<NamedTensor> saved = whole->saved(0);
    for (NamedTensor& t : saved) t.tensor = t.tensor.contiguous().clone();
    const Tensor next = block.module->step(rows_of(all, T, 1), *whole);
    for (const int64_t parts : {step, 2 * step, 3 * step, T / 2 / step * step}) {
      INFO("parts of " << parts);
      const auto state = block.module->make_state({.batch = 3, .capacity = 256});
      for (int64_t first = 0; first < T; first += parts) {
        const int64_t n = std::min(parts, T - first);
        nn::AttentionInput part = rows_of(all, first, n);
        part.state = state.get();
        part.slot = 1;
        part.more = first + n < T;
        CHECK(same_bits(block.module->forward(part), wanted.slice(1, first, n).contiguous()));
      }
      const std::vector<NamedTensor> got = state->saved(1);
      REQUIRE(got.size() == saved.size());
      for (size_t i = 0; i < got.size(); ++i) {
        const bool lists = contains(got[i].name, "entries");  // beyond its count: anything
        if (contains(got[i].name, "features")) {  // products of fewer rows may round differently
          CHECK(close(got[i].tensor.contiguous(), saved[i].tensor, 1e-6, 1e-6));
          continue;
        }
        CHECK_MESSAGE((lists || same_bits(got[i].tensor, saved[i].tensor)), got[i].name);
      }
      const auto alone = block.module->make_state(request);
      alone->restore(0, got, "parts");
      CHECK(same_bits(block.module->step(rows_of(all, T, 1), *alone), next));
    }
    const auto state = block.module->make_state(request);
    nn::AttentionInput part = rows_of(all, 0, step + 1);
    part.state = state.get();
    block.module->forward(part);
    if (step > 1)
      CHECK(contains(message([&] { block.module->forward(part); }), "begins at a multiple of"));
  });
  CHECK(enough(methods, 8));
}

TEST_CASE("contract: a state in 8 bits is that of any parts and steps, and close to an exact one") {
  NoGrad off;
  int methods = 0;
  each_block(Dtype::f32, [&](Block& block) {
    if (!block.module->traits().codes || !block.causal) return;
    ++methods;
    const int64_t T = 203, first = 192, d = kSize;
    const Shape shape{1, kHeads, T + 1, d};
    const nn::AttentionInput all{
        .q = normal(shape, 1), .k = normal(shape, 2), .v = normal(shape, 3), .hidden = {}};
    auto state_of = [&](bool coded) {
      return block.module->make_state({.capacity = 256,
                                       .cache = coded ? std::optional(Dtype::bf16) : std::nullopt,
                                       .coded = coded});
    };
    auto read = [&](nn::AttentionState& state, int64_t begin, int64_t n) {
      nn::AttentionInput part = rows_of(all, begin, n);
      part.state = &state;
      return block.module->forward(part);
    };
    const auto exact = state_of(false), whole = state_of(true), parts = state_of(true),
               steps = state_of(true);
    read(*exact, 0, T);
    read(*whole, 0, T);
    read(*parts, 0, first);
    read(*parts, first, T - first);
    read(*steps, 0, 96);
    for (int64_t t = 96; t < T; ++t) block.module->step(rows_of(all, t, 1), *steps);
    CHECK(whole->bytes() < exact->bytes());
    const auto saved = whole->saved(0);
    for (const nn::AttentionState* other : {parts.get(), steps.get()}) {
      const auto got = other->saved(0);
      REQUIRE(got.size() == saved.size());
      for (size_t i = 0; i < got.size(); ++i) {
        const std::string& part = got[i].name;
        // Beyond a count, or of a block before: anything.
        const bool any = contains(part, "entries") || contains(part, "last_");
        CHECK_MESSAGE((any || same_bits(got[i].tensor, saved[i].tensor)), part);
      }
    }
    const auto restored = state_of(true);
    restored->restore(0, saved, "saved");
    const nn::AttentionInput next = rows_of(all, T, 1);
    const Tensor y = block.module->step(next, *whole);
    CHECK(same_bits(block.module->step(next, *restored), y));
    CHECK(same_bits(block.module->step(next, *parts), y));
    if (!block.settings.count("candidates"))  // of equally good blocks rounding chooses others
      CHECK(close(y, block.module->step(next, *exact), 0.03, 0.05));
    CHECK(contains(message([&] { exact->restore(0, saved, "a.state"); }), "a.state: "));
  });
  CHECK(enough(methods, 7));
}

}  // namespace brine::test
