// The contract of every method with decoding: token by token it gives the results of the full pass,
// for any prompts and batch, and wherever it was stopped and continued.
#include "sea/base/mask.h"
#include "tensor/kernels/dense.h"
#include "tests/estimator_oracle.h"
#include "tests/messages.h"
#include "tests/nn/attention/contract/contract.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

constexpr int64_t kKept = 4;  // of make_block()

using Settings = std::map<std::string, std::string>;

nn::AttentionInput step_input(const Inputs& in, const std::vector<int64_t>& positions,
                              const nn::RuntimeOptions& options, nn::Tap* tap = nullptr) {
  const int64_t B = in.hidden.dim(0), T = in.hidden.dim(1), C = in.hidden.dim(2);
  return {.q = rows_at(in.q, positions),
          .k = rows_at(in.k, positions),
          .v = rows_at(in.v, positions),
          .hidden = rows_at(in.hidden.view({B, 1, T, C}), positions).view({B, 1, C}),
          .options = options,
          .tap = tap};
}

// Puts the first prompts[b] tokens of sequence b into slot b; 0 leaves it empty.
void prefill(const nn::Attention& block, nn::AttentionState& state, const Inputs& in,
             const std::vector<int64_t>& prompts, const nn::RuntimeOptions& options) {
  NoGrad off;
  auto head = [&](const Tensor& x, int axis, int64_t b) {
    return rows(x.slice(0, b, 1), axis, 0, prompts[size_t(b)]);
  };
  for (int64_t b = 0; b < int64_t(prompts.size()); ++b) {
    if (prompts[size_t(b)] == 0) continue;
    const_cast<nn::Attention&>(block).forward({.q = head(in.q, 2, b),
                                               .k = head(in.k, 2, b),
                                               .v = head(in.v, 2, b),
                                               .hidden = head(in.hidden, 1, b),
                                               .options = options,
                                               .state = &state,
                                               .slot = b});
  }
}

// How far masks of two paths may differ (docs: equal except for near ties), and how often they did.
struct MaskCount {
  int64_t rows = 0, excused = 0;
};

// `full` and `step` have a row of one sequence, [1, H, 1, K]. Columns chosen by only one path must
// be within `margin` of each other.
void check_masks(const Tensor& estimate, const Tensor& full, const Tensor& step, double margin,
                 MaskCount& count) {
  ++count.rows;
  double low = 1e30, high = -1e30;
  const std::vector<double> value = estimate.to_vector(), a = full.to_vector(),
                            b = step.to_vector();
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] == b[i]) continue;
    low = std::min(low, value[i]);
    high = std::max(high, value[i]);
  }
  if (high < low) return;
  ++count.excused;
  CHECK(high - low < margin);
}

struct Protocol {
  double tolerance;  // of the outputs and estimates, to scale
  nn::RuntimeOptions options = {};
  bool prompts_together = false;  // one pass over padded prompts instead of one for each
  Dtype dtype = Dtype::f32;
  std::string mode = "causal-per-batch";
};

// The protocol: the same tokens by one pass and by steps after prompts of `prompts` tokens.
void check_decoding(Block& block, const std::vector<int64_t>& prompts, int64_t steps,
                    const Protocol& how) {
  const int64_t B = int64_t(prompts.size());
  std::vector<int64_t> ends, at = prompts;
  for (int64_t p : prompts) ends.push_back(p + steps);
  const int64_t T = *std::max_element(ends.begin(), ends.end());
  const Inputs in = inputs(B, T, how.dtype);
  nn::Tap full(block.name);
  NoGrad off;
  const Tensor y = block.module->forward({.q = in.q,
                                          .k = in.k,
                                          .v = in.v,
                                          .hidden = in.hidden,
                                          .visible = {.lengths = lengths_of(ends)},
                                          .options = how.options,
                                          .tap = &full});
  const bool selects = full.has("selected");
  auto state = block.module->make_state(
      {.batch = B, .capacity = T, .dtype = how.dtype, .cache = how.dtype, .options = how.options});
  if (how.prompts_together) {
    const int64_t longest = *std::max_element(prompts.begin(), prompts.end());
    block.module->forward({.q = rows(in.q, 2, 0, longest),
                           .k = rows(in.k, 2, 0, longest),
                           .v = rows(in.v, 2, 0, longest),
                           .hidden = rows(in.hidden, 1, 0, longest),
                           .visible = {.lengths = lengths_of(prompts)},
                           .options = how.options,
                           .state = state.get()});
  } else {
    prefill(*block.module, *state, in, prompts, how.options);
  }
  MaskCount count;
  double worst = 0;
  for (int64_t n = 0; n < steps; ++n, std::for_each(
                                          at.begin(), at.end(), [](auto& t) { ++t; })) {
    INFO("step " << n);
    nn::Tap tap(block.name);
    if (selects) tap.force("selected", rows_at(full.get("selected"), at));
    const Tensor out = block.module->step(step_input(in, at, how.options, &tap), *state);
    REQUIRE(out.shape() == Shape{B, 1, kHeads * kSize});
    for (int64_t b = 0; b < B; ++b) {
      const Tensor wanted = rows(y.slice(0, b, 1), 1, at[size_t(b)], 1);
      const Tensor got = rows(out, 0, b, 1);
      const double scale = largest(y.to_vector());
      std::vector<double> x = got.to_vector(), w = wanted.to_vector();
      for (size_t i = 0; i < x.size(); ++i) worst = std::max(worst, std::abs(x[i] - w[i]) / scale);
      REQUIRE(close(got, wanted, how.tolerance * scale, 0, "output"));
      if (!selects) continue;
      auto row = [&](const Tensor& t) { return rows(t.slice(0, b, 1), 2, at[size_t(b)], 1); };
      const Tensor estimate = rows(tap.get("estimate"), 0, b, 1);
      REQUIRE(close(estimate, row(full.get("estimate")), how.tolerance, 0, "estimate"));
      const int64_t kept = how.options.k ? how.options.k : kKept;
      const sea::Mask own =
          sea::make_mask(estimate, {.causal = false, .lengths = lengths_of({at[size_t(b)] + 1})},
                         {.k = kept, .mode = *data::value_of(how.mode, nn::kSelectModes)}, T);
      check_masks(row(full.get("estimate")), row(full.get("selected")), own.selection.selected,
                  1e-5, count);
    }
  }
  for (int64_t b = 0; b < B; ++b) CHECK(state->length(b) == ends[size_t(b)]);
  if (selects) {
    MESSAGE(join(block.name, ": ", count.excused, " of ", count.rows,
                 " masks differ, at near ties; outputs differ by ", worst, " of their scale"));
    CHECK(count.excused * 50 <= count.rows);
  }
}

template <class F>
void each_decodable(Dtype dtype, F f) {
  int made = 0;
  each_block(
      dtype,
      [&](Block& block) {
        if (!block.causal || !block.module->traits().incremental) return;
        f(block);
        ++made;
      },
      600);
  CHECK(made >= 3);  // dense, recent and sea at least
}

// Outputs of `steps` tokens of every sequence, in order.
std::vector<Tensor> decode(const nn::Attention& block, nn::AttentionState& state, const Inputs& in,
                           std::vector<int64_t> at, int64_t steps,
                           const nn::RuntimeOptions& options = {}) {
  std::vector<Tensor> out;
  for (int64_t n = 0; n < steps; ++n) {
    out.push_back(block.step(step_input(in, at, options), state));
    for (int64_t& t : at) ++t;
  }
  return out;
}

}  // namespace

TEST_CASE("decoding contract: 512 tokens one by one equal the full pass, prompts of any length") {
  each_decodable(Dtype::f32, [](Block& block) {
    check_decoding(block, {0, 0}, 512, {.tolerance = 2e-5});
    check_decoding(block, {1, 77, 0, 30}, 60, {.tolerance = 2e-5});
    check_decoding(block, {40, 9, 23}, 20, {.tolerance = 2e-5, .prompts_together = true});
    check_decoding(block, {129, 31, 70}, 40, {.tolerance = 2e-5, .prompts_together = true});
  });
}

TEST_CASE("decoding contract: a cache in 16 bits changes the outputs by its rounding only") {
  each_decodable(Dtype::f32, [](Block& block) {
    const int64_t T = 90;
    const std::vector<int64_t> prompts = {40, 7};
    const Inputs in = inputs(2, T, Dtype::f32);
    NoGrad off;
    nn::Tap full(block.name);
    const Tensor y =
        block.module->forward({.q = in.q, .k = in.k, .v = in.v, .hidden = in.hidden, .tap = &full});
    const double scale = largest(y.to_vector());
    // Where scores of rounded keys choose the mask, another key or block of nearly the same score
    // may be kept.
    const bool chooses = block.name.rfind("top", 0) == 0 || block.name.rfind("blocks", 0) == 0;
    int64_t exact = 0;
    for (std::optional<Dtype> cache :
         {std::optional(Dtype::f32), {}, {Dtype::bf16}, {Dtype::f16}}) {
      auto state = block.module->make_state({.batch = 2, .capacity = T, .cache = cache});
      prefill(*block.module, *state, in, prompts, {});
      if (cache == Dtype::f32) exact = state->bytes();
      // Keys and values dominate; sums at borders stay in f64. Without a type sums of features by
      // units may be rounded.
      const bool sums = decodes_by_sums(block);
      CHECK((cache == Dtype::f32 || state->bytes() < exact + (!cache || sums)));
      const double tolerance = cache == Dtype::bf16 && !sums  ? 1.5e-2
                               : cache == Dtype::f16 && !sums ? 4e-3
                                                              : 2e-5;
      std::vector<int64_t> at = prompts;
      for (int64_t n = 0; n < 45; ++n, ++at[0], ++at[1]) {
        nn::Tap tap(block.name);
        if (full.has("selected")) tap.force("selected", rows_at(full.get("selected"), at));
        const Tensor out = block.module->step(step_input(in, at, {}, &tap), *state);
        for (int64_t b = 0; b < 2; ++b) {
          auto row = [&](const Tensor& x) { return rows(x.slice(0, b, 1), 2, at[size_t(b)], 1); };
          if (full.has("estimate")) {  // of which columns follow
            REQUIRE(close(rows(tap.get("estimate"), 0, b, 1), row(full.get("estimate")),
                          cache == Dtype::f32 ? 2e-5 : 6e-3, 0, "estimate"));
          }
          if (chooses && (cache == Dtype::bf16 || cache == Dtype::f16)) continue;
          REQUIRE(close(rows(out, 0, b, 1), rows(y.slice(0, b, 1), 1, at[size_t(b)], 1),
                        tolerance * scale, 0, block.name));
        }
      }
      // What was saved has the types of the cache, and a state of another type refuses it.
      if (sums) continue;
      const std::vector<NamedTensor> saved = state->saved(0);
      auto other = block.module->make_state(
          {.batch = 1,
           .capacity = T,
           .cache = cache == Dtype::bf16 ? std::optional(Dtype::f16) : std::optional(Dtype::bf16)});
      CHECK_REFUSES(other->restore(0, saved, "file"), "file", "wanted");
    }
  });
}

TEST_CASE("decoding contract: in f64 the two paths agree to rounding") {
  each_decodable(Dtype::f64, [](Block& block) {
    check_decoding(block, {3, 0, 50}, 70, {.tolerance = 1e-11, .dtype = Dtype::f64});
  });
}

TEST_CASE("decoding contract: every form of SEA, every option") {
  const std::vector<Settings> forms = {
      {},
      {{"mu_scope", "token"}},
      {{"prior", "none"}},
      {{"mu_scope", "token"}, {"mode", "per-query"}},
      {{"preset", "light"}},
      {{"prior", "learned"}, {"prior_features", "5"}},
      {{"decoder", "none"}, {"prior", "none"}, {"pooled_prior", "true"}, {"mode", "per-query"}},
      {{"decoder", "none"}, {"gates", "head"}},
      {{"preset", "light"}, {"prior_units", "1"}},
      {{"preset", "light"}, {"columns", "4"}},
      {{"prior_units", "2"}},
  };
  for (const Settings& form : forms) {
    std::string text;
    for (const auto& [key, value] : form) text += key + " " + value + " ";
    INFO(text);
    const std::string mode = form.count("mode") ? form.at("mode") : "causal-per-batch";
    for (int64_t skip : {1, 2, 5}) {
      INFO("query_skip " << skip);
      Block block = make_block("sea", true, Dtype::f64, 5, 300, form);
      check_decoding(
          block, {0, 13, 8, 31}, 33,
          {.tolerance = 1e-11, .options = {.query_skip = skip}, .dtype = Dtype::f64, .mode = mode});
    }
    Block block = make_block("sea", true, Dtype::f32, 5, 300, form);
    check_decoding(block, {7, 0}, 120, {.tolerance = 2e-5, .options = {.k = 9}, .mode = mode});
  }
}

TEST_CASE("decoding contract: a sequence of a batch has the same bits as alone") {
  each_decodable(Dtype::f32, [](Block& block) {
    const std::vector<int64_t> prompts = {11, 1, 40, 5, 2};
    const int64_t B = int64_t(prompts.size()), steps = 12;
    const Inputs in = inputs(B, 60, Dtype::f32);
    auto together = block.module->make_state({.batch = B, .capacity = 60});
    prefill(*block.module, *together, in, prompts, {});
    const std::vector<Tensor> all = decode(*block.module, *together, in, prompts, steps);
    for (int64_t b = 0; b < B; ++b) {
      auto mine = [&](const Tensor& x) { return rows(x, 0, b, 1); };
      const Inputs own{mine(in.q), mine(in.k), mine(in.v), mine(in.hidden)};
      auto alone = block.module->make_state({.batch = 1, .capacity = 60});
      prefill(*block.module, *alone, own, {prompts[size_t(b)]}, {});
      const std::vector<Tensor> out =
          decode(*block.module, *alone, own, {prompts[size_t(b)]}, steps);
      for (int64_t n = 0; n < steps; ++n) {
        REQUIRE(same_bits(mine(all[size_t(n)]), out[size_t(n)]));
      }
    }
  });
}

TEST_CASE("decoding contract: a state saved and restored continues with the same bits") {
  each_decodable(Dtype::f32, [](Block& block) {
    const std::vector<int64_t> prompts = {6, 19};
    const Inputs in = inputs(2, 60, Dtype::f32);
    for (int64_t steps : {0, 1, 17}) {
      INFO(steps << " steps before the stop");
      auto first = block.module->make_state({.batch = 2, .capacity = 60});
      prefill(*block.module, *first, in, prompts, {});
      decode(*block.module, *first, in, prompts, steps);
      auto second = block.module->make_state({.batch = 2, .capacity = 50});  // another capacity
      int64_t bytes = 0;
      for (int64_t b = 0; b < 2; ++b) {
        std::vector<NamedTensor> saved;
        for (const NamedTensor& t : first->saved(b)) {
          saved.push_back({t.name, t.tensor.contiguous().clone()});
          bytes += t.tensor.numel() * int64_t(item_size(t.tensor.dtype()));
        }
        std::reverse(saved.begin(), saved.end());
        second->restore(b, saved, "test");
        CHECK(second->length(b) == prompts[size_t(b)] + steps);
      }
      bytes -= 2 * 8;  // the lengths
      CHECK(bytes <= first->bytes());
      // Only the tokens that are there, unless the state's size is the same for any number.
      if (block.name != "recent" && !decodes_by_sums(block)) CHECK(bytes < first->bytes());
      const std::vector<int64_t> at = {6 + steps, 19 + steps};
      const auto a = decode(*block.module, *first, in, at, 14);
      const auto b = decode(*block.module, *second, in, at, 14);
      for (size_t n = 0; n < a.size(); ++n) REQUIRE(same_bits(a[n], b[n]));
    }
  });
}

TEST_CASE("decoding contract: the remaining sequences continue unchanged") {
  each_decodable(Dtype::f32, [](Block& block) {
    const std::vector<int64_t> prompts = {6, 19, 3, 8};
    const Inputs in = inputs(4, 60, Dtype::f32);
    auto all = block.module->make_state({.batch = 4, .capacity = 60});
    auto some = block.module->make_state({.batch = 4, .capacity = 60});
    for (nn::AttentionState* state : {all.get(), some.get()}) {
      prefill(*block.module, *state, in, prompts, {});
      decode(*block.module, *state, in, prompts, 5);
    }
    some->keep({0, 3, 2});
    CHECK(some->batch() == 3);
    auto kept = [](const Tensor& x) {
      Tensor out = Tensor::empty({3, x.dim(1), x.dim(2), x.rank() == 4 ? x.dim(3) : 1}, x.dtype());
      int64_t to = 0;
      for (int64_t b : {0, 3, 2}) {
        Tensor row = out.slice(0, to++, 1);
        BRINE_CALL(row, copy, row, x.slice(0, b, 1).contiguous().view(row.shape()));
      }
      return out;
    };
    const Tensor hidden = kept(in.hidden).view({3, in.hidden.dim(1), in.hidden.dim(2)});
    const Inputs fewer{kept(in.q), kept(in.k), kept(in.v), hidden};
    const auto a = decode(*block.module, *all, in, {11, 24, 8, 13}, 9);
    const auto b = decode(*block.module, *some, fewer, {11, 13, 8}, 9);
    for (size_t n = 0; n < a.size(); ++n) {
      CHECK(same_bits(kept(a[n]).view({3, 1, kHeads * kSize}), b[n]));
    }
    CHECK_THROWS_AS(some->keep({1, 0}), Error);
    CHECK_THROWS_AS(some->keep({2, 2}), Error);
    CHECK_THROWS_AS(some->keep({}), Error);
  });
}

TEST_CASE(
    "decoding contract: memory depends only on the capacity, the same bits with any threads") {
  each_decodable(Dtype::f32, [](Block& block) {
    const Inputs in = inputs(1, 40, Dtype::f32);
    Tensor first;
    for (int n : {1, 2, 3}) {
      Threads set(n);
      auto state = block.module->make_state({.batch = 1, .capacity = 40});
      const int64_t bytes = state->bytes();
      const Tensor last = decode(*block.module, *state, in, {0}, 40).back();
      CHECK(state->bytes() == bytes);
      if (n == 1) first = last;
      CHECK(same_bits(first, last));
    }
    auto small = block.module->make_state({.batch = 1, .capacity = 64});
    auto large = block.module->make_state({.batch = 1, .capacity = 128});
    CHECK(100 * large->bytes() <= 201 * small->bytes());  // whole super-blocks
  });
}

TEST_CASE("decoding contract: what cannot be is refused and changes nothing") {
  each_decodable(Dtype::f32, [](Block& block) {
    const Inputs in = inputs(1, 12, Dtype::f32);
    const nn::Attention& attention = *block.module;
    auto state = attention.make_state({.batch = 1, .capacity = 8});
    prefill(attention, *state, in, {5}, {});
    const int64_t step = attention.traits().part_step;
    if (step != 1)  // of 1 it is the next part
      CHECK(contains(message([&] { prefill(attention, *state, in, {3}, {}); }),
                     step ? "begins at a multiple of " : "slot 0 has 5 tokens already"));
    decode(attention, *state, in, {5}, 3);
    CHECK(contains(message([&] { decode(attention, *state, in, {8}, 1); }),
                   "sequence 0 has 8 tokens, there is no room for more"));
    CHECK(state->length(0) == 8);
    auto empty = attention.make_state({.batch = 1, .capacity = 8});
    CHECK(contains(message([&] { prefill(attention, *empty, in, {9}, {}); }), "there is room for"));
    CHECK_REFUSES(attention.make_state({.batch = 0, .capacity = 8}), "at least 1");
    auto saved = state->saved(0);
    auto tight = attention.make_state({.batch = 1, .capacity = 7});
    CHECK(contains(message([&] { tight->restore(0, saved, "a.state"); }),
                   "a.state: a sequence of 8 tokens, there is room for 7"));
    saved.pop_back();
    auto other = attention.make_state({.batch = 1, .capacity = 8});
    CHECK(contains(message([&] { other->restore(0, saved, "a.state"); }), "a.state: no tensor "));
    saved = state->saved(0);
    saved.back().tensor =
        saved.back().tensor.to(saved.back().tensor.dtype() == Dtype::f64 ? Dtype::f32 : Dtype::f64);
    CHECK_REFUSES(other->restore(0, saved, "a.state"), "a.state: " + saved.back().name + " is ");
    saved = state->saved(0);
    saved.push_back({"strange", Tensor::zeros({1})});
    CHECK(contains(message([&] { other->restore(0, saved, "a.state"); }),
                   "a.state: a tensor strange that this attention does not have"));
    CHECK(other->length(0) == 0);
  });
}

TEST_CASE("decoding contract: a method without decoding throws") {
  each_block(Dtype::f32, [](Block& block) {
    if (block.module->traits().incremental) return;
    CHECK_REFUSES(block.module->make_state({.batch = 1, .capacity = 8}), "token by token");
  });
}

TEST_CASE("sea: a state keeps to the query_skip that it was made for") {
  Block block = make_block("sea", true, Dtype::f32);
  const Inputs in = inputs(1, 12, Dtype::f32);
  auto state = block.module->make_state({.batch = 1, .capacity = 12, .options = {.query_skip = 2}});
  CHECK(contains(message([&] { prefill(*block.module, *state, in, {5}, {}); }),
                 "query_skip is 1, but the state was made for 2"));
  CHECK(contains(message([&] { decode(*block.module, *state, in, {0}, 1); }),
                 "query_skip is 1, but the state was made for 2"));
}

TEST_CASE("sea: the capacity of a state is limited by the rows of the identity table") {
  Block block = make_block("sea", true, Dtype::f32, 5, 16);
  CHECK_NOTHROW(block.module->make_state({.batch = 1, .capacity = 16}));
  CHECK_REFUSES(block.module->make_state({.batch = 1, .capacity = 17}), "17", "v_identity.table",
                "16");
}

}  // namespace brine::test
