// The choice of key blocks against its definition, row by row.
#include "tests/block_cases.h"

#include <cmath>

#include "tests/refusals.h"

namespace brine::test {
namespace {

// softmax over candidates of the scores of a level, by the definition: P of every candidate.
std::vector<double> shares(const BlockCase& c, const BlockScores& s, int64_t b, int64_t h,
                           int64_t t, int z, const std::vector<int64_t>& candidates) {
  const int64_t d = c.d, bg = b * c.G + h / (c.H / c.G), parts = c.config.parts;
  auto at = [&](const Tensor& x, int64_t i) { return x.data<double>()[i]; };
  auto product = [&](const Tensor& q, const Tensor& sums, int64_t block, int64_t m) {
    double dot = 0;
    for (int64_t i = 0; i < m; ++i) {
      dot +=
          at(q, ((b * c.H + h) * c.T + t) * m + i) * at(sums, (bg * sums.dim(2) + block) * m + i);
    }
    return dot;
  };
  double total = 0;
  for (int64_t j = 0; c.learned && j <= t; ++j) {
    for (int64_t i = 0; i < 5; ++i) {
      total += at(s.psi_q, ((b * c.H + h) * c.T + t) * 5 + i) * at(s.psi_k, (bg * c.T + j) * 5 + i);
    }
  }
  std::vector<double> plain, scores;
  for (const int64_t block : candidates) {
    double opinion = 0, sum = 0;
    for (int64_t p = 0; p < parts; ++p) {
      const auto& [means, logs] = s.key_parts[size_t(z)];
      const double score = product(s.q, means, block * parts + p, d) / std::sqrt(double(d));
      const double keys = std::exp(at(logs, bg * logs.dim(2) + block * parts + p));
      opinion += keys * std::exp(score);
      sum += keys * std::exp(at(s.gain, h) * score);
    }
    plain.push_back(std::log(opinion));
    double score = std::log(sum);
    if (c.learned) {
      const double mass = product(s.psi_q, s.psi_sums[size_t(z)], block, 5) / total;
      score += at(s.prior_gain, h) * std::log(std::max(mass, 1e-7));
    }
    scores.push_back(score);
  }
  auto softmax = [](std::vector<double> x) {
    double sum = 0;
    for (double& v : x) sum += v = std::exp(v);
    for (double& v : x) v /= sum;
    return x;
  };
  std::vector<double> p = softmax(scores), other = softmax(plain);
  for (size_t i = 0; i < p.size(); ++i) {
    p[i] = (1 - c.config.opinion) * p[i] + c.config.opinion * other[i];
  }
  return p;
}

// The `count` candidates with the largest sums over the group's heads, of equal ones the later.
std::vector<int64_t> largest(const BlockCase& c, const BlockScores& s, int64_t b, int64_t g,
                             int64_t t, int z, const std::vector<int64_t>& candidates,
                             int64_t count, const std::set<int64_t>& without) {
  std::vector<double> sums(candidates.size(), 0.0);
  for (int64_t h = g * (c.H / c.G); h < (g + 1) * (c.H / c.G); ++h) {
    const std::vector<double> p = shares(c, s, b, h, t, z, candidates);
    for (size_t i = 0; i < p.size(); ++i) sums[i] += p[i];
  }
  std::vector<std::pair<double, int64_t>> order;
  for (size_t i = 0; i < sums.size(); ++i) {
    if (!without.count(candidates[i])) order.emplace_back(sums[i], candidates[i]);
  }
  std::sort(order.rbegin(), order.rend());
  std::vector<int64_t> out;
  for (size_t i = 0; i < order.size() && int64_t(i) < count; ++i) out.push_back(order[i].second);
  return out;
}

// The mask by keys of the definition, u8 [B, H, T, T].
Tensor defined_mask(const BlockCase& c, const BlockScores& s) {
  const BlockConfig& f = c.config;
  const Tensor mask = Tensor::zeros({c.B, c.H, c.T, c.T}, Dtype::u8);
  for (int64_t b = 0; b < c.B; ++b) {
    for (int64_t g = 0; g < c.G; ++g) {
      std::set<int64_t> tile;
      for (int64_t t = 0; t < c.all_lengths().data<int64_t>()[b]; ++t) {
        const int64_t row_block = t / f.block;
        if (t % f.tile == 0) tile.clear();
        std::set<int64_t> fixed;
        for (int64_t x = 0; x <= row_block; ++x) {
          if (x < f.sinks || x >= row_block - f.local) fixed.insert(x);
        }
        const int z = f.level(row_block);
        std::set<int64_t> candidates(fixed.begin(), fixed.lower_bound(row_block));
        std::vector<int64_t> all;
        for (int64_t x = 0; x < row_block >> z; ++x) all.push_back(x);
        const std::set<int64_t> none;
        const auto survivors =
            z == 0 ? all : largest(c, s, b, g, t, z, all, f.survivors * f.chosen, none);
        for (int64_t x : survivors) {
          for (int64_t y = x << z; y < (x + 1) << z; ++y) candidates.insert(y);
        }
        for (int64_t y = (row_block >> z) << z; y < row_block; ++y) candidates.insert(y);
        const std::vector<int64_t> list(candidates.begin(), candidates.end());
        for (int64_t x : largest(c, s, b, g, t, 0, list, f.chosen, fixed)) tile.insert(x);
        std::set<int64_t> kept = fixed;
        kept.insert(tile.begin(), tile.end());
        for (int64_t h = g * (c.H / c.G); h < (g + 1) * (c.H / c.G); ++h) {
          for (int64_t j = 0; j <= t; ++j) {
            mask.data<uint8_t>()[((b * c.H + h) * c.T + t) * c.T + j] = kept.count(j / f.block) > 0;
          }
        }
      }
    }
  }
  return mask;
}

}  // namespace

// The clusters of rows x [n, d] of so many keys each, by the definition: sets of rows by cluster.
std::vector<std::set<int64_t>> clusters(const std::vector<std::vector<double>>& x,
                                        const std::vector<double>& keys, int64_t parts) {
  auto squared = [&](size_t a, size_t b) {
    double sum = 0;
    for (size_t c = 0; c < x[a].size(); ++c) sum += (x[a][c] - x[b][c]) * (x[a][c] - x[b][c]);
    return sum;
  };
  std::vector<size_t> centres{0};
  auto nearest = [&](size_t s) {
    size_t best = 0;
    for (size_t i = 1; i < centres.size(); ++i) {
      if (squared(s, centres[i]) < squared(s, centres[best])) best = i;
    }
    return best;
  };
  while (int64_t(centres.size()) < parts) {
    size_t next = 0;
    for (size_t s = 0; s < x.size(); ++s) {
      if (keys[s] > 0 && squared(s, centres[nearest(s)]) > squared(next, centres[nearest(next)]))
        next = s;
    }
    centres.push_back(next);
  }
  std::vector<std::set<int64_t>> out(centres.size());
  for (size_t s = 0; s < x.size(); ++s) {
    if (keys[s] > 0) out[nearest(s)].insert(int64_t(s));
  }
  return out;
}

void check_parts(const Tensor& x, const Tensor& x_logs, int64_t size, int64_t parts) {
  const KeyParts got = block_parts(x, x_logs, size, parts);
  const int64_t groups = x.dim(0) * x.dim(1), T = x.dim(2), d = x.dim(3), N = T / size;
  REQUIRE(got.means.shape() == Shape{x.dim(0), x.dim(1), N * parts, d});
  for (int64_t i = 0; i < groups * N; ++i) {
    std::vector<std::vector<double>> rows;
    std::vector<double> keys;
    for (int64_t s = 0; s < size; ++s) {
      const int64_t row = i / N * T + i % N * size + s;
      rows.emplace_back(x.data<double>() + row * d, x.data<double>() + (row + 1) * d);
      keys.push_back(x_logs.defined() ? std::round(std::exp(x_logs.data<double>()[row])) : 1);
    }
    const std::vector<std::set<int64_t>> wanted = clusters(rows, keys, parts);
    for (int64_t p = 0; p < parts; ++p) {
      double count = 0;
      std::vector<double> mean(size_t(d), 0.0);
      for (const int64_t s : wanted[size_t(p)]) {
        count += keys[size_t(s)];
        for (int64_t c = 0; c < d; ++c)
          mean[size_t(c)] += keys[size_t(s)] * rows[size_t(s)][size_t(c)];
      }
      const double log = got.logs.data<double>()[i * parts + p];
      CHECK(log == doctest::Approx(count > 0 ? std::log(count) : kNoKeysLog));
      for (int64_t c = 0; c < d; ++c) {
        CHECK(got.means.data<double>()[(i * parts + p) * d + c] ==
              doctest::Approx(count > 0 ? mean[size_t(c)] / count : 0));
      }
    }
  }
}

TEST_CASE("block_parts: clusters of keys, and of parts with their numbers of keys") {
  const Tensor x = normal({2, 3, 38, 5}, 3, Dtype::f64);
  for (const int64_t parts : {1, 2, 4, 8}) check_parts(x, {}, 8, parts);
  std::vector<double> logs;
  for (int64_t i = 0; i < 2 * 3 * 38; ++i) {
    logs.push_back(i % 38 % 3 == 1 ? kNoKeysLog : std::log(double(i % 7 + 1)));
  }
  check_parts(x, Tensor::from(logs, {2, 3, 38}), 6, 3);
  // Equal rows are one cluster, the others are empty.
  check_parts(Tensor::full({1, 1, 8, 5}, 2.0, Dtype::f64), {}, 4, 2);
}

TEST_CASE("block_parts: a super-block has the parts of its blocks' parts; sizes are checked") {
  const Tensor x = normal({1, 2, 40, 5}, 4, Dtype::f64);
  const BlockConfig config{.block = 4, .parts = 2, .tile = 2};
  const std::vector<KeyParts> levels = block_parts_by_level(x, config, 3);
  for (size_t z = 1; z < 3; ++z) check_parts(levels[z - 1].means, levels[z - 1].logs, 4, 2);
  CHECK(levels[2].means.dim(2) == 4);
  for (int64_t i = 0; i < levels[2].logs.numel(); i += 2) {  // 16 keys of a super-block
    const double* log = levels[2].logs.data<double>() + i;
    CHECK(std::exp(log[0]) + std::exp(log[1]) == doctest::Approx(16));
  }
  CHECK(block_parts(x, {}, 41, 2).means.numel() == 0);
  CHECK_THROWS_AS(block_parts(x, {}, 2, 3), Error);
  CHECK_THROWS_AS(block_parts(x, levels[0].logs, 4, 2), Error);
  CHECK_THROWS_AS(block_parts(x.view({2, 40, 5}), {}, 4, 2), Error);
}

TEST_CASE("select_blocks: every row keeps what the definition says") {
  for (const BlockCase& c : block_cases()) {
    CAPTURE(c.T);
    const Tensor q = normal({c.B, c.H, c.T, c.d}, 3, Dtype::f64),
                 k = normal({c.B, c.G, c.T, c.d}, 4, Dtype::f64);
    const BlockScores s = block_scores(c, q, k);
    const BlockMask mask = select_blocks(s, c.config, c.visible(), c.T);
    CHECK(block_mask_keys(mask, c.H, c.visible(), c.T).to_vector() ==
          defined_mask(c, s).to_vector());
    CHECK(csr_to_mask(blocks_to_csr(mask, c.H, c.visible(), c.T)).to_vector() ==
          defined_mask(c, s).to_vector());
  }
}

TEST_CASE("select_blocks: among equal blocks the later ones are chosen") {
  const BlockCase c{.T = 32, .config = {.block = 4, .chosen = 2, .tile = 4}};
  const Tensor zero = Tensor::zeros({1, 2, 32, 6}, Dtype::f64);
  const BlockMask mask = select_blocks(block_scores(c, zero, zero), c.config, c.visible(), c.T);
  // The last tile: the sink, the tile's block and the one before; of 1 to 5 the last two.
  const int32_t* entries = mask.entries.data<int32_t>() + 7 * mask.capacity();
  std::vector<int64_t> kept;
  for (int32_t e = 0; e < mask.counts.data<int32_t>()[7]; ++e)
    kept.push_back(entry_block(entries[e]));
  CHECK(kept == std::vector<int64_t>{0, 4, 5, 6, 7});
  const KeptKeys keys = kept_keys(mask, c.visible(), c.T);
  CHECK(keys.row == keys.tile);
}

TEST_CASE("select_blocks: a choice never depends on later rows; shares replace scores") {
  BlockCase c{.T = 32, .config = {.block = 8, .chosen = 1, .sinks = 0, .local = 0, .tile = 8}};
  const Tensor shares = Tensor::zeros({1, 2, 32, 4}, Dtype::f64);
  shares.data<double>()[(0 * 32 + 27) * 4 + 1] = 1;  // row 27 of head 0 chooses block 1
  BlockScores s;
  s.shares = shares;
  s.psi_k = Tensor::zeros({1, 2, 32, 1}, Dtype::f64);  // two groups
  const Tensor keys =
      block_mask_keys(select_blocks(s, c.config, c.visible(), c.T), 2, c.visible(), c.T);
  auto sees = [&](int64_t t, int64_t j) { return keys.data<uint8_t>()[t * 32 + j] != 0; };
  for (int64_t t = 24; t < 32; ++t) CHECK(sees(t, 8) == (t >= 27));
}

TEST_CASE("select_blocks_step: row by row the same masks as in one pass") {
  for (const BlockCase& c : block_cases()) {
    CAPTURE(c.T);
    if (!c.lengths.empty()) continue;
    const Tensor q = normal({c.B, c.H, c.T, c.d}, 3, Dtype::f64),
                 k = normal({c.B, c.G, c.T, c.d}, 4, Dtype::f64);
    const BlockScores s = block_scores(c, q, k);
    const Tensor whole =
        block_mask_keys(select_blocks(s, c.config, c.visible(), c.T), c.H, c.visible(), c.T);
    BlockMask mask =
        empty_block_mask(c.config, c.B, c.G, 1, (c.T + c.config.block - 1) / c.config.block, {});
    for (int64_t t = 0; t < c.T; ++t) {
      BlockScores row = s;
      row.q = s.q.slice(2, t, 1).contiguous();
      if (c.learned) {
        row.psi_q = s.psi_q.slice(2, t, 1).contiguous();
        const int64_t first = t / c.config.block * c.config.block;
        row.psi_k = sum(s.psi_k.slice(2, first, t + 1 - first).contiguous(), {2});
      }
      select_blocks_step(mask, row, c.config, Tensor::full({c.B}, double(t + 1), Dtype::i64));
      std::vector<double> kept(size_t(c.T), 0.0), wanted;
      for (int32_t e = 0; e < mask.counts.data<int32_t>()[0]; ++e) {
        const int64_t first = entry_block(mask.entries.data<int32_t>()[e]) * c.config.block;
        for (int64_t j = first; j < std::min(first + c.config.block, t + 1); ++j)
          kept[size_t(j)] = 1;
      }
      for (int64_t j = 0; j < c.T; ++j)
        wanted.push_back(double(whole.data<uint8_t>()[t * c.T + j]));
      CHECK(kept == wanted);
    }
  }
}

TEST_CASE("select_blocks: settings that do not fit are refused") {
  const Tensor q = normal({1, 2, 30, 6}, 3, Dtype::f64), k = normal({1, 2, 30, 6}, 4, Dtype::f64);
  BlockCase c;
  const BlockScores s = block_scores(c, q, k);
  BlockConfig bad = c.config;
  bad.tile = 3;
  CHECK_THROWS_AS(select_blocks(s, bad, c.visible(), 30), Error);
  bad = c.config;
  bad.parts = 5;
  CHECK_THROWS_AS(select_blocks(s, bad, c.visible(), 30), Error);
  bad.parts = 2;  // of which there are no means
  CHECK_THROWS_AS(select_blocks(s, bad, c.visible(), 30), Error);
  bad = c.config;
  bad.chosen = 0;
  CHECK_THROWS_AS(select_blocks(s, bad, c.visible(), 30), Error);
  CHECK_THROWS_AS(select_blocks(s, c.config, {.causal = false}, 30), Error);
}

}  // namespace brine::test
