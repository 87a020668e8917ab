// Keys and values in 8 bits against their formula, and attention over them against attention over
// the rows that they stand for.
#include <cmath>

#include "tests/block_cases.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

struct Case {
  int64_t B = 2, H = 6, G = 2, T = 75, d = 7, block = 8;
};

struct Made {
  Tensor q, k, v, sigma;
  CodedCache cache;
  Tensor lengths;
};

// A cache of sequences of T tokens and of one fewer, rows of d numbers of unequal channels.
Made make(const Case& c, Dtype type, Dtype stored) {
  Made m{.q = normal({c.B, c.H, 1, c.d}, 1, type),
         .k = normal({c.B, c.G, c.T, c.d}, 2, type),
         .v = normal({c.B, c.G, c.T, c.d}, 3, type),
         .sigma = exp(normal({c.G, c.d}, 4, type)),
         .cache = {},
         .lengths = Tensor::zeros({c.B}, Dtype::i64)};
  m.cache = code_cache(m.k, m.v, m.sigma, c.block, stored);
  m.cache.last_keys = Tensor::zeros({c.B, c.G, c.block, c.d}, type);
  m.cache.last_values = Tensor::zeros({c.B, c.G, c.block, c.d}, type);
  for (int64_t b = 0; b < c.B; ++b) {
    const int64_t length = c.T - b, rest = length % c.block;
    m.lengths.data<int64_t>()[b] = length;
    if (rest == 0) continue;
    auto fill = [&](const Tensor& to, const Tensor& from) {
      copy_into(to.slice(0, b, 1).slice(2, 0, rest),
                from.slice(0, b, 1).slice(2, length - rest, rest));
    };
    fill(m.cache.last_keys, m.k);
    fill(m.cache.last_values, m.v);
  }
  return m;
}

}  // namespace

TEST_CASE("coded cache: keys and values are within half a step, the high plane is key_codes'") {
  for (const auto& [type, stored] :
       {std::pair{Dtype::f64, Dtype::f64}, {Dtype::f32, Dtype::f32}, {Dtype::f32, Dtype::bf16}}) {
    CAPTURE(join(stored));
    const Case c;
    Made m = make(c, type, stored);
    const KeyCodes codes = key_codes(m.k, m.sigma, {.block = c.block, .tile = 1}, 1, stored);
    CHECK(same_bits(m.cache.keys.codes, codes.codes));
    const auto [k, v] = decode_cache(m.cache, m.lengths);
    REQUIRE(k.shape() == m.k.shape());
    const Tensor wide_k = m.k.to(Dtype::f64), wide_v = m.v.to(Dtype::f64),
                 sigma = m.sigma.to(Dtype::f64), got_k = k.to(Dtype::f64), got_v = v.to(Dtype::f64),
                 steps = m.cache.keys.steps.to(Dtype::f64),
                 value_steps = m.cache.value_steps.to(Dtype::f64);
    const int64_t N = c.T / c.block;
    const double round = type == Dtype::f64 ? 1e-12 : 1e-5;
    for (int64_t b = 0; b < c.B; ++b) {
      const int64_t length = c.T - b;
      for (int64_t g = 0; g < c.G; ++g) {
        for (int64_t t = 0; t < length; ++t) {
          const bool exact = t / c.block == length / c.block;
          const int64_t at = ((b * c.G + g) * c.T + t) * c.d,
                        step = ((b * c.G + g) * N + t / c.block) * c.block + t % c.block;
          for (int64_t i = 0; i < c.d; ++i) {
            const double key = got_k.data<double>()[at + i] - wide_k.data<double>()[at + i];
            const double value = got_v.data<double>()[at + i] - wide_v.data<double>()[at + i];
            if (t < c.block) {  // the first block, stored as numbers
              REQUIRE(std::fabs(key) <= (stored == type ? 0 : std::ldexp(1, -8)) *
                                            std::fabs(wide_k.data<double>()[at + i]));
            }
            if (exact) {
              REQUIRE(key == 0);
              REQUIRE(value == 0);
              continue;
            }
            const double limit =
                sigma.data<double>()[g * c.d + i] * steps.data<double>()[step] / 32;
            if (t >= c.block) REQUIRE(std::fabs(key) <= limit * (1 + round) + round);
            REQUIRE(std::fabs(value) <=
                    value_steps.data<double>()[step] * (stored == Dtype::bf16 ? 0.8 : 0.5) + round);
          }
        }
      }
    }
  }
}

TEST_CASE("coded cache: blocks of equal keys and of zeros are exact") {
  const Tensor k = Tensor::full({1, 1, 16, 4}, 3), v = Tensor::zeros({1, 1, 16, 4});
  CodedCache cache = code_cache(k, v, Tensor::full({1, 4}, 1), 8, Dtype::f32);
  cache.last_keys = Tensor::zeros({1, 1, 8, 4});
  cache.last_values = Tensor::zeros({1, 1, 8, 4});
  const auto [a, b] = decode_cache(cache, Tensor::full({1}, 16, Dtype::i64));
  CHECK(close(a, k, 0, 0));
  CHECK(close(b, v, 0, 0));
}

TEST_CASE("coded cache: a step attends to the rows that the codes stand for") {
  // Heads share the conversion of bytes by four; sizes of heads with and without whole vectors.
  std::vector<Case> cases = {{},
                             {.T = 72},
                             {.H = 3, .G = 3, .T = 5},
                             {.B = 1, .T = 700, .d = 32},
                             {.B = 1, .H = 7, .G = 1, .d = 72},
                             {.B = 1, .H = 5, .G = 1, .d = 80},
                             {.B = 1, .H = 4, .G = 2, .d = 24},
                             {.B = 1, .H = 3, .G = 1, .d = 7, .block = 6},
                             {.B = 1, .H = 4, .G = 1, .d = 80, .block = 7}};
  for (const Case& c : cases) {
    for (const auto& [type, stored] :
         {std::pair{Dtype::f64, Dtype::f64}, {Dtype::f32, Dtype::bf16}, {Dtype::f32, Dtype::f32}}) {
      CAPTURE(c.T);
      const double near = type == Dtype::f64 ? 1e-12 : 2e-6;
      const Made m = make(c, type, stored);
      const auto [k, v] = decode_cache(m.cache, m.lengths);
      const Tensor first = Tensor::zeros({c.B}, Dtype::i64);
      const Tensor all = coded_attention_step(m.q, m.cache, nullptr, m.lengths);
      CHECK(close(all, cached_attention(m.q, k, v, first, m.lengths), near, 0));
      // Every other block, and the one that fills.
      const int64_t blocks = (c.T + c.block - 1) / c.block;
      BlockMask mask{.counts = Tensor::zeros({c.B, c.G, 1}, Dtype::i32),
                     .entries = Tensor::zeros({c.B, c.G, 1, blocks}, Dtype::i32),
                     .tiles = {},
                     .block = c.block,
                     .tile = 1};
      for (int64_t bg = 0; bg < c.B * c.G; ++bg) {
        const int64_t own = (m.lengths.data<int64_t>()[bg / c.G] - 1) / c.block;
        int32_t& count = mask.counts.data<int32_t>()[bg];
        for (int64_t n = bg % 2; n <= own; ++n)
          if (n % 2 == bg % 2 || n == own)
            mask.entries.data<int32_t>()[bg * blocks + count++] = block_entry(n, 0);
      }
      const Tensor some = coded_attention_step(m.q, m.cache, &mask, m.lengths);
      const Tensor exact_some = block_attention_step(m.q, k, v, mask, m.lengths);
      const Tensor exact = cached_attention(m.q, k, v, first, m.lengths);
      CHECK(close(some, exact_some, near, 0));
      if (c.T > 100) CHECK(largest(sub(some, all).to_vector()) > 1e-3);
      for (const int threads : {1, 2, 3}) {
        Threads set(threads);
        CHECK(same_bits(coded_attention_step(m.q, m.cache, nullptr, m.lengths), all));
        CHECK(same_bits(block_attention_step(m.q, k, v, mask, m.lengths), exact_some));
        CHECK(same_bits(cached_attention(m.q, k, v, first, m.lengths), exact));
      }
    }
  }
}

TEST_CASE("coded cache: what does not fit is refused") {
  const Made m = make({}, Dtype::f32, Dtype::bf16);
  CodedCache other = m.cache;
  other.low_codes = other.values;
  CHECK_REFUSES(decode_cache(other, m.lengths), "decode_cache", "do not fit");
  CHECK_REFUSES(coded_attention_step(normal({2, 6, 2, 7}, 1), m.cache, nullptr, m.lengths),
                "coded_attention_step", "q must be [2, H, 1, 7] of 2 groups");
  const BlockMask mask{.counts = {}, .entries = {}, .tiles = {}, .block = 4, .tile = 1};
  CHECK_REFUSES(coded_attention_step(m.q, m.cache, &mask, m.lengths), "coded_attention_step",
                "blocks of 4 keys", "blocks of 8");
  CHECK_REFUSES(code_cache(m.k, m.v, m.sigma, 8, Dtype::i32), "code_cache", "stored in i32");
}

}  // namespace brine::test
