// Attention to the most recent keys and to the first ones (sinks), against its definition.
#include "tests/head_copies.h"
#include "tests/nn/attention/contract/contract.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

constexpr int64_t kRecentHeads = 4, kRecentGroups = 2;

std::unique_ptr<nn::Attention> recent(bool causal, int64_t k, int64_t sinks) {
  nn::Init init{.random = {.seed = 3}, .dtype = Dtype::f64};
  return method_with("recent", {{"k", std::to_string(k)}, {"sinks", std::to_string(sinks)}})
      ->make(init, {.heads = kRecentHeads,
                    .head_size = kSize,
                    .max_positions = 100,
                    .causal = causal,
                    .kv_heads = kRecentGroups});
}

// Whether query t, one of w visible tokens of a causal or a full sequence, sees key j.
bool sees(int64_t t, int64_t j, int64_t w, int64_t k, int64_t sinks, bool causal) {
  if (j >= w) return false;
  if (w <= k || j < sinks) return true;
  const int64_t window = k - sinks;
  if (causal) return j > t - window;
  // The window around t, moved inside the keys that are not sinks.
  const int64_t first = std::max(sinks, std::min(t - window / 2, w - window));
  return j >= first && j < first + window;
}

// [B, T, H d] by the definition; k and v have the heads of q.
std::vector<double> naive_recent(const Tensor& queries, const Tensor& keys, const Tensor& values,
                                 int64_t kept, int64_t sinks, bool causal,
                                 const std::vector<int64_t>& lengths) {
  const int64_t B = queries.dim(0), H = queries.dim(1), T = queries.dim(2), d = queries.dim(3);
  const std::vector<double> q = queries.to_vector(), k = keys.to_vector(), v = values.to_vector();
  std::vector<double> y(q.size(), 0);
  for (int64_t n = 0; n < B * H; ++n) {
    const int64_t L = lengths[size_t(n / H)];
    for (int64_t t = 0; t < L; ++t) {
      double total = 0;
      std::vector<double> sum(size_t(d), 0);
      for (int64_t j = 0; j < T; ++j) {
        if (!sees(t, j, causal ? t + 1 : L, kept, sinks, causal)) continue;
        double score = 0;
        for (int64_t c = 0; c < d; ++c)
          score += q[size_t((n * T + t) * d + c)] * k[size_t((n * T + j) * d + c)];
        const double p = std::exp(score / std::sqrt(double(d)));
        total += p;
        for (int64_t c = 0; c < d; ++c) sum[size_t(c)] += p * v[size_t((n * T + j) * d + c)];
      }
      for (int64_t c = 0; c < d; ++c) {
        y[size_t(((n / H * T + t) * H + n % H) * d + c)] = sum[size_t(c)] / total;
      }
    }
  }
  return y;
}

struct Sequences {
  Tensor q, k, v;

  explicit Sequences(int64_t B, int64_t T)
      : q(normal({B, kRecentHeads, T, kSize}, 1, Dtype::f64)),
        k(normal({B, kRecentGroups, T, kSize}, 2, Dtype::f64)),
        v(normal({B, kRecentGroups, T, kSize}, 3, Dtype::f64)) {}

  nn::AttentionInput part(int64_t from, int64_t n) const {
    return {
        .q = rows(q, 2, from, n), .k = rows(k, 2, from, n), .v = rows(v, 2, from, n), .hidden = {}};
  }
};

}  // namespace

TEST_CASE("recent: the most recent keys, and the first ones if there are sinks") {
  const int64_t T = 23;
  const std::vector<int64_t> lengths = {T, 9};
  const Sequences x(2, T);
  for (bool causal : {true, false}) {
    for (int64_t sinks : {0, 1, 4}) {
      for (int64_t k : {5, 6, 12, 40}) {
        INFO("causal " << causal << " sinks " << sinks << " k " << k);
        nn::AttentionInput in = x.part(0, T);
        in.visible = {.causal = causal, .lengths = lengths_of(lengths)};
        const std::vector<double> wanted =
            naive_recent(x.q, copied_heads(x.k, kRecentHeads), copied_heads(x.v, kRecentHeads), k,
                         sinks, causal, lengths);
        for (bool dense_path : {false, true}) {
          in.options.dense_path = dense_path;
          const Tensor y = recent(causal, k, sinks)->forward(in);
          CHECK(close(y.to_vector(), wanted, 1e-13, 1e-12));
        }
      }
    }
  }
}

TEST_CASE("recent: decoding with sinks gives the rows of the whole pass, also with fewer keys") {
  const int64_t T = 40, k = 7, sinks = 3;
  const Sequences x(1, T);
  NoGrad off;
  // Prompts with fewer tokens than sinks, fewer than keys, and more than both.
  for (int64_t prompt : {1, 2, 3, 5, 7, 8, 20}) {
    const auto block = recent(true, k, sinks);
    const nn::StateRequest request{.batch = 1, .capacity = T, .dtype = Dtype::f64};
    const auto state = block->make_state(request);
    nn::AttentionInput first = x.part(0, prompt);
    first.state = state.get();
    block->forward(first);
    for (int64_t t = prompt; t < T; ++t) {
      INFO("prompt " << prompt << " t " << t);
      const int64_t now = t < 30 ? k : 5;  // fewer keys from a step on
      nn::AttentionInput whole = x.part(0, T), next = x.part(t, 1);
      whole.options.k = next.options.k = now;
      const Tensor wanted = rows(block->forward(whole), 1, t, 1);
      CHECK(close_to_scale(block->step(next, *state), wanted, 1e-13));
    }
  }
}

TEST_CASE("recent: as many sinks as keys are refused") {
  check_refuses([] { recent(true, 4, 4); }, {"recent", "sinks 4", "k 4"});
  nn::AttentionInput in = Sequences(1, 9).part(0, 9);
  in.options.k = 2;
  check_refuses([&] { recent(true, 8, 2)->forward(in); }, {"recent", "sinks 2", "k 2"});
}

}  // namespace brine::test
