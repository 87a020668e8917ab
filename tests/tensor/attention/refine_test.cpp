// The refinement of masks against a full sort of the candidates' scores in f64.
#include "tests/csr_format.h"
#include "tests/head_copies.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// Small whole numbers: scores are exact in f32, and many are equal.
Tensor whole_numbers(const Shape& shape, uint64_t seed, Dtype dtype) {
  Tensor x = ids(shape, seed, 5, Dtype::f64);
  for (int64_t i = 0; i < x.numel(); ++i) x.data<double>()[i] -= 2;
  return x.to(dtype);
}

// Of the candidates [B, H, T, T] of every row and head the `keys` with the largest q . k, of equal
// ones the later; q and k [B, H, T, d].
std::vector<double> naive_refined(const std::vector<double>& candidates, const Tensor& queries,
                                  const Tensor& all_keys, int64_t keys, const MaskCase& m) {
  const std::vector<double> q = queries.to_vector(), k = all_keys.to_vector();
  const int64_t d = queries.dim(3);
  std::vector<double> mask(candidates.size(), 0);
  for (int64_t row = 0; row < m.B * m.H * m.T; ++row) {
    std::vector<std::pair<double, int64_t>> scores;
    for (int64_t j = 0; j < m.T; ++j) {
      if (candidates[size_t(row * m.T + j)] == 0) continue;
      double score = 0;
      for (int64_t c = 0; c < d; ++c) {
        score += q[size_t(row * d + c)] * k[size_t((row / m.T * m.T + j) * d + c)];
      }
      scores.emplace_back(score, j);
    }
    std::sort(scores.rbegin(), scores.rend());
    for (size_t i = 0; i < scores.size() && int64_t(i) < keys; ++i) {
      mask[size_t(row * m.T + scores[i].second)] = 1;
    }
  }
  return mask;
}

// The candidates of a random estimate for `oversample` times the keys.
FlatCsr candidates_of(const MaskCase& m, int64_t oversample) {
  MaskCase wide = m;
  wide.k *= oversample;
  const Tensor x = uniform({m.B, m.H, m.T, m.K}, 51, 0, 1);
  return build_csr(select_columns(x, m.visible(), wide.config()).selected, m.visible(), wide.k);
}

void check_refined(const MaskCase& m, int64_t oversample, int64_t G, int64_t d) {
  INFO(m.name() << " oversample " << oversample << " G " << G << " d " << d);
  const FlatCsr csr = candidates_of(m, oversample);
  const std::vector<double> candidates = csr_to_mask(csr).to_vector();
  for (Dtype dtype : {Dtype::f32, Dtype::f64}) {
    const Tensor q = whole_numbers({m.B, m.H, m.T, d}, 1, dtype);
    const Tensor k = whole_numbers({m.B, G, m.T, d}, 2, dtype);
    const std::vector<double> wanted = naive_refined(candidates, q, copied_heads(k, m.H), m.k, m);
    for (int n : {1, 2, 3}) {
      Threads set(n);
      check_csr_format(refine(q, k, csr, m.k, m.visible()), wanted, m);
    }
  }
}

}  // namespace

TEST_CASE("refine keeps the candidates with the largest scores, of equal ones the later keys") {
  for (const MaskCase& m : mask_cases()) {
    for (int64_t oversample : {2, 5}) check_refined(m, oversample, m.H, 3);
  }
  for (int64_t d : {1, 7, 32, 64, 100, 128}) check_refined(mask_cases()[1], 3, 3, d);
}

TEST_CASE("refine reads the keys of a head's group") {
  const MaskCase m{.B = 2, .H = 6, .T = 41, .K = 8, .k = 3, .lengths = {41, 30}};
  for (int64_t G : {1, 2, 3}) {
    for (int64_t d : {5, 64}) check_refined(m, 4, G, d);
  }
}

TEST_CASE("refine with equal scores keeps the latest candidates, with few candidates all") {
  const MaskCase m{.B = 1, .H = 2, .T = 30, .K = 8, .k = 4};
  const FlatCsr csr = candidates_of(m, 3);
  const Tensor q = Tensor::zeros({1, 2, 30, 4}), k = normal({1, 2, 30, 4}, 1);
  const FlatCsr latest = refine(q, k, csr, 4, {});
  const MaskRows before(csr), after(latest);
  for (int64_t row = 0; row < 60; ++row) {
    const RowEntries from = before(row), to = after(row);
    REQUIRE(to.count == std::min<int64_t>(from.count, 4));
    CHECK(std::equal(to.columns, to.columns + to.count, from.columns + from.count - to.count));
  }
  const FlatCsr all = refine(normal(q.shape(), 2), k, csr, 1000, {});
  CHECK(same_bits(all.columns, csr.columns));
  CHECK(same_bits(all.head_offsets, csr.head_offsets));
  CHECK(same_bits(all.row_pointers, csr.row_pointers));
}

TEST_CASE("refine of keys in 16 bits is that of their values in f32") {
  const MaskCase m{.B = 2, .H = 4, .T = 29, .K = 8, .k = 4};
  const FlatCsr csr = candidates_of(m, 3);
  for (int64_t d : {5, 64}) {
    const Tensor q = normal({2, 4, 29, d}, 1), k = normal({2, 2, 29, d}, 2).to(Dtype::bf16);
    const FlatCsr got = refine(q, k, csr, 4, {}), wanted = refine(q, k.to(Dtype::f32), csr, 4, {});
    CHECK(same_bits(got.columns, wanted.columns));
    CHECK(same_bits(got.head_offsets, wanted.head_offsets));
  }
}

TEST_CASE("refine of a few rows that face all keys gives the rows of the full pass") {
  const MaskCase m{.B = 2, .H = 4, .T = 29, .K = 8, .k = 6};
  const Tensor x = uniform({m.B, m.H, m.T, m.K}, 51, 0, 1);
  const Tensor q = normal({2, 4, 29, 16}, 1), k = normal({2, 2, 29, 16}, 2);
  const Tensor full = csr_to_mask(refine(q, k, candidates_of(m, 1), 2, {}));
  for (int64_t t : {0, 5, 28}) {
    const Visibility visible{false, Tensor::from(std::vector<int64_t>{t + 1, t + 1}, {2})};
    const Selection chosen = select_columns(x.slice(2, t, 1), visible, m.config());
    const FlatCsr csr = build_csr(chosen.selected, visible, m.k, m.T);
    const FlatCsr fine = refine(q.slice(2, t, 1), k, csr, 2, visible);
    CHECK(same_bits(csr_to_mask(fine), full.slice(2, t, 1).contiguous()));
  }
}

TEST_CASE("refine on the meta device has the entries of the kept keys") {
  auto meta = [](const Shape& shape, Dtype type) {
    return Tensor::empty(shape, type, Device::meta);
  };
  const FlatCsr csr = build_csr(meta({2, 3, 40, 8}, Dtype::u8), {}, 20);
  const Tensor q = meta({2, 3, 40, 16}, Dtype::f32), k = meta({2, 1, 40, 16}, Dtype::f32);
  const FlatCsr fine = refine(q, k, csr, 5, {});
  CHECK(fine.entries() == 2 * 3 * (1 + 2 + 3 + 4 + 36 * 5));
  CHECK(fine.head_offsets.shape() == Shape{2, 40, 4});
}

TEST_CASE("refine names what it refuses") {
  const MaskCase m{.B = 1, .H = 6, .T = 9, .K = 4, .k = 2};
  const FlatCsr csr = candidates_of(m, 2);
  const Tensor q = normal({1, 6, 9, 4}, 1);
  check_refuses([&] { refine(q, q, csr, 0, {}); }, {"refine", "keys", "0"});
  check_refuses(
      [&] {
        refine(q, normal({1, 4, 9, 4}, 1), csr, 2, {});
      },
      {"refine", "[1, 6, 9, 4]", "[1, 4, 9, 4]"});
  check_refuses([&] { refine(q, q.to(Dtype::f64), csr, 2, {}); }, {"refine", "f32", "f64"});
}

}  // namespace brine::test
