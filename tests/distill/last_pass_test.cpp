// The last backward pass of a rank: what leaves is complete, with and without recomputation.
#include "distill/ranks/last_pass.h"

#include "tests/distill/setup.h"
#include "tests/messages.h"
#include "tests/tensor/comm/thread_ranks.h"

namespace brine::test {
namespace {

// The gradient of one batch, of a pair of its own.
std::vector<double> gradient_of(const Sizes& sizes, int64_t batch, bool recompute) {
  Pair pair(sizes);
  OnlineTeacher teacher(pair.teacher);
  Objective objective(*pair.student, &teacher, LossConfig{});
  pair.store->zero_gradients();
  RandomStream random{.seed = 5, .stream = uint64_t(batch)};
  objective.accumulate(pair.source().batch(batch, 2),
                       {.share = 0.5, .random = &random, .recompute = recompute});
  return pair.store->gradients().to_vector();
}

TEST_CASE("last pass: the sum over ranks has every gradient, and some left before its end") {
  const Sizes sizes{.dropout = 0.1};
  for (const bool recompute : {false, true}) {
    const std::vector<double> first = gradient_of(sizes, 0, recompute),
                              second = gradient_of(sizes, 1, recompute);
    on_ranks(2, [&](Communicator& c) {
      Pair pair(sizes);
      OnlineTeacher teacher(pair.teacher);
      Objective objective(*pair.student, &teacher, LossConfig{});
      pair.store->zero_gradients();
      RandomStream random{.seed = 5, .stream = uint64_t(c.rank())};
      BucketSum sum(c, "gradients", pair.store->gradients(), 2, {});
      {
        LastPass last(*pair.store, sum);
        objective.accumulate(
            pair.source().batch(c.rank(), 2),
            {.share = 0.5, .random = &random, .recompute = recompute, .last = &last});
        const Tensor weight = pair.store->leaves()[0].value;
        const std::string late = message([&] { backward(brine::sum(mul(weight, weight))); });
        check(contains(late, "that was complete"), "a late gradient is told as: ", late);
      }
      sum.finish();
      check(sum.early_bytes() > 0, "nothing left before the end");
      const std::vector<double> got = pair.store->gradients().to_vector();
      for (size_t i = 0; i < got.size(); ++i) {
        check(float(got[i]) == float(first[i]) + float(second[i]), "element ", i, " of rank ",
              c.rank(), " is ", got[i], ", wanted ", first[i], " + ", second[i]);
      }
    });
  }
}

TEST_CASE("last pass: only what a prefix names is complete") {
  on_ranks(2, [&](Communicator& c) {
    Pair pair(Sizes{});
    pair.store->zero_gradients();
    BucketSum sum(c, "gradients", pair.store->gradients(), 2, {});
    LastPass last(*pair.store, sum);
    const std::string prefix = "model.decoder.layers.1.";
    Tensor inside, outside;
    for (const auto& leaf : pair.store->leaves())
      (leaf.path.rfind(prefix, 0) == 0 ? inside : outside) = leaf.value;
    last.backward(brine::sum(mul(inside, inside)), {}, prefix);
    backward(brine::sum(mul(outside, outside)));
    check(contains(message([&] { backward(brine::sum(mul(inside, inside))); }), "complete"),
          "a late gradient passes");
    check(contains(message([&] { last.backward(brine::sum(outside), {}, prefix); }),
                   "was complete before this pass"),
          "a second pass of the same prefix passes");
    sum.finish();
  });
}

TEST_CASE("last pass: behind a recomputation that may read any parameter nothing leaves early") {
  on_ranks(2, [&](Communicator& c) {
    Pair pair(Sizes{});
    for (const bool any : {true, false}) {
      pair.store->zero_gradients();
      BucketSum sum(c, "gradients", pair.store->gradients(), 2, {});
      LastPass last(*pair.store, sum);
      const Tensor weight = pair.store->leaves()[0].value;
      const std::vector<Tensor> reads{weight};
      last.backward(
          checkpoint([&](const std::vector<Tensor>& x) { return brine::sum(mul(x[0], x[0])); },
                     {weight}, nullptr, any ? nullptr : &reads));
      sum.finish();
      check((sum.early_bytes() == 0) == any, sum.early_bytes(), " bytes left early");
      check(sum.bytes() > 0, "nothing was sent");
    }
  });
}

}  // namespace
}  // namespace brine::test
