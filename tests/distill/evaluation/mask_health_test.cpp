// Statistics of masks over layers and heads, and the warning of a mask that has degenerated.
#include "distill/evaluation/health/mask_health.h"

#include <nlohmann/json.hpp>

#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/sparse_oracle.h"

namespace brine::test {
namespace {

using namespace brine::distill;

constexpr int64_t kTokens = 40, kKeys = 6;

// A teacher whose row t attends by half to key t / 2, else evenly.
Tensor distant_teacher() {
  Tensor map = Tensor::zeros({1, 2, kTokens, kTokens}, Dtype::f64);
  for (int64_t h = 0; h < 2; ++h) {
    for (int64_t t = 0; t < kTokens; ++t) {
      double* row = map.data<double>() + (h * kTokens + t) * kTokens;
      for (int64_t j = 0; j <= t; ++j) row[j] = 0.5 / double(t + 1);
      row[t / 2] += 0.5;
    }
  }
  return map;
}

// A mask with the keys that `kept` names for row t: kKeys of them, or all that are visible.
template <class F>
FlatCsr mask_of(F&& kept) {
  FlatCsr csr{.row_pointers = Tensor::zeros({1, kTokens + 1}, Dtype::i64),
              .head_offsets = Tensor::zeros({1, kTokens, 3}, Dtype::i32),
              .columns = {},
              .batch = 1,
              .heads = 2,
              .length = kTokens,
              .keys = kTokens};
  std::vector<int32_t> columns;
  for (int64_t t = 0; t < kTokens; ++t) {
    const std::vector<int64_t> keys = kept(t);
    for (int64_t h = 0; h < 2; ++h) {
      for (int64_t key : keys) columns.push_back(int32_t(h * kTokens + key));
      csr.head_offsets.data<int32_t>()[3 * t + h + 1] = int32_t((h + 1) * int64_t(keys.size()));
    }
    csr.row_pointers.data<int64_t>()[t + 1] = int64_t(columns.size());
  }
  csr.columns = Tensor::from(columns, {int64_t(columns.size())});
  return csr;
}

Recall recall_of(const FlatCsr& csr) {
  return attention_recall({distant_teacher(), {}, {}}, csr, 8, {.causal = true},
                          {.k = kKeys, .mode = SelectMode::per_query});
}

// The 4 first and the most recent keys: what a mask becomes that learned nothing about the text.
Recall degenerated() {
  return recall_of(mask_of([](int64_t t) {
    std::vector<int64_t> keys;
    for (int64_t j = 0; j <= t; ++j) {
      if (j < 4 || j > t - (kKeys - 4)) keys.push_back(j);
    }
    return keys;
  }));
}

// Recent keys and the distant one.
Recall useful() {
  return recall_of(mask_of([](int64_t t) {
    const int64_t distant = t / 2;
    std::vector<int64_t> keys;
    for (int64_t j = 0; j <= t; ++j) {
      const bool within = j > t - kKeys + (distant <= t - kKeys ? 1 : 0);
      if (j == distant || within) keys.push_back(j);
    }
    return keys;
  }));
}

}  // namespace

TEST_CASE("mask health: a mask of sinks and recent keys is reported as degenerated") {
  const MaskHealth health = mask_health({degenerated(), degenerated()});
  CHECK(health.recall == doctest::Approx(health.sinks_recent).epsilon(1e-12));
  CHECK(health.degenerate());
  check_says(degenerate_warning(health), {"degenerated", "recall", "4 sinks"});
}

TEST_CASE("mask health: a mask that finds distant keys is not reported") {
  const MaskHealth health = mask_health({useful(), useful()});
  CHECK(health.recall > health.sinks_recent + 0.3);
  CHECK(health.top_hit == 1);
  CHECK_FALSE(health.degenerate());
  CHECK(degenerate_warning(health).empty());
}

TEST_CASE("mask health: within .02 of sinks and recent keys is degenerated, above it is not") {
  struct Case {
    double recall, top_keys;
    bool degenerate;
  };
  // The last: of the .05 that exact scores gain, the mask has .01.
  for (auto [recall, top_keys, degenerate] :
       {Case{0.519, 0.9, true}, {0.521, 0.9, false}, {0.4, 0.9, true}, {0.51, 0.55, false}}) {
    const MaskHealth health{.recall = recall, .sinks_recent = 0.5, .top_keys = top_keys, .rows = 1};
    CHECK(health.degenerate() == degenerate);
  }
  CHECK_FALSE(MaskHealth{}.degenerate());  // no row sees more than k keys
}

TEST_CASE("mask health: mean, least head and 10th percentile over the heads of all layers") {
  std::vector<Recall> layers(6);
  for (size_t i = 0; i < layers.size(); ++i) {
    for (auto& way : layers[i].sums) way = {0, 0};
    layers[i].rows = 10;
    layers[i].sums[recall::kMask] = {double(2 * i) / 2, double(2 * i + 1) / 2};  // .0, .05, .1 ...
    layers[i].sums[recall::kTopHit] = {5, 10};
  }
  const MaskHealth health = mask_health(layers);
  CHECK(health.rows == 60);
  CHECK(health.recall == doctest::Approx(0.275));
  CHECK(health.least == 0);
  CHECK(health.tenth == doctest::Approx(0.055));  // 1.1 steps of .05
  CHECK(health.top_hit == doctest::Approx(0.75));
  CHECK(quantile({3, 1, 2}, 0.5) == 2);
  CHECK(quantile({4, 1, 2, 3}, 0.5) == doctest::Approx(2.5));
  CHECK(quantile({}, 0.5) == 0);
}

TEST_CASE("mask health: rows by layer and for all, with the numbers of every head") {
  const data::Json rows = to_json(mask_rows({useful(), degenerated()}));
  REQUIRE(rows.size() == 3);
  CHECK(rows[1]["layer"] == "1");
  CHECK(rows[2]["layer"] == "all");
  CHECK(rows[0]["heads"].size() == 2);
  CHECK_FALSE(rows[2].contains("heads"));
  for (const char* key :
       {"mask", "top_keys", "best_columns", "most_recent", "random", "sinks_recent", "top1_hit",
        "teacher_recent_64", "teacher_first_4", "mask_recent_64", "mask_first_4"}) {
    CHECK(rows[0]["heads"][1].contains(key));
    CHECK(double(rows[2][key]) ==
          doctest::Approx((double(rows[0][key]) + double(rows[1][key])) / 2));
  }
  CHECK(double(rows[0]["mask"]) > double(rows[1]["mask"]));
  CHECK(double(rows[2]["min"]) == doctest::Approx(double(rows[1]["min"])));
  CHECK(double(rows[0]["teacher_recent_64"]) == doctest::Approx(1));  // no row sees more than 64
}

}  // namespace brine::test
