// The parts of the sparse path, and the attention losses: cost per token as T grows.
#include <algorithm>
#include <cmath>

#include "apps/bench/bench.h"
#include "apps/bench/parts/block.h"
#include "autograd/ops.h"
#include "tensor/kernels/attention.h"
#include "tensor/kernels/teacher.h"

namespace brine::bench {
namespace {

// Columns redrawn for every row have the worst locality; a trained estimate changes slowly, which
// columns drawn only for every 64th row imitate.
Tensor estimate_of(int64_t T, bool steady) {
  Tensor x = noise({1, kHeads, T, kColumns}, 7).to(Device{});
  float* row = x.data<float>();
  for (int64_t i = 0; steady && i < kHeads * T; ++i) {
    if (i % T % 64) std::copy_n(row + (i - 1) * kColumns, kColumns, row + i * kColumns);
  }
  return x.to(default_device());
}

// Memory for a result on the default device.
Tensor room(const Shape& shape) { return Tensor::empty(shape, Dtype::f32, default_device()); }

class Timer {
 public:
  // `first`: microseconds per token at the first T, which this is or not.
  Timer(RowSink& rows, std::string shape, int64_t T,
        std::vector<std::pair<std::string, double>>& first, bool is_first)
      : rows(rows), shape(std::move(shape)), T(T), first(first), is_first(is_first) {}

  // `work` in units of 1e9: gigabytes gathered or GFLOP.
  void operator()(const std::string& name, double work, const char* unit,
                  const std::function<void()>& f) {
    rows.attempt(name, shape, [&] { measure(name, work, unit, f); });
  }

 private:
  void measure(const std::string& name, double work, const char* unit,
               const std::function<void()>& f) {
    BenchRow row{.name = name, .shape = shape, .ms = median_time(f), .unit = unit};
    row.rate = work / row.ms * 1e3;
    double per_token = row.ms * 1e3 / double(T);
    auto known = std::find_if(first.begin(), first.end(),
                              [&](const auto& entry) { return entry.first == name; });
    if (is_first) {
      first.emplace_back(name, per_token);
    } else if (known != first.end()) {
      row.ratio = per_token / known->second;
    }
    row.notes = {{"us/token", per_token}};
    rows.add(row);
  }

  RowSink& rows;
  std::string shape;
  int64_t T;
  std::vector<std::pair<std::string, double>>& first;
  bool is_first;
};

void sparse_rows(Timer& timer, int64_t T, bool steady) {
  const std::string kind = steady ? " steady" : " random";
  const Shape shape{1, kHeads, T, kHeadSize};
  Tensor q = noise(shape, 1), k = noise(shape, 2), v = noise(shape, 3), dy = noise(shape, 4);
  Tensor estimate = estimate_of(T, steady);
  Selection chosen = select_columns(estimate, {}, {.k = kKept});
  FlatCsr csr = build_csr(chosen.selected, {}, kKept);
  Tensor p = room({csr.entries()}), y = Tensor::like(q);
  Tensor dq = Tensor::like(q), dk = Tensor::like(k), dv = Tensor::like(v);
  const double scale = 1 / std::sqrt(double(kHeadSize));
  const double row = double(csr.entries()) * double(kHeadSize) * 4e-9;  // of K or V, all entries
  const Tensor hq = q.to(Dtype::bf16), hk = k.to(Dtype::bf16), hv = v.to(Dtype::bf16);
  timer("select columns" + kind, double(estimate.numel()) * 4e-9, "GB/s",
        [&] { select_columns(estimate, {}, {.k = kKept}); });
  timer("build csr" + kind, double(csr.entries()) * 4e-9, "GB/s",
        [&] { build_csr(chosen.selected, {}, kKept, 0, csr.entries()); });
  timer("sparse attention" + kind, 2 * row, "GB/s",
        [&] { BRINE_CALL(q, sparse_attention, y, p, q, k, v, csr, scale); });
  timer("sparse attention backward" + kind, 6 * row, "GB/s",
        [&] { BRINE_CALL(q, sparse_attention_backward, dq, dk, dv, dy, q, k, v, p, csr, scale); });
  // The gathers of a GPU under --compute bf16, without the rounding.
  timer("sparse attention bf16" + kind, row, "GB/s",
        [&] { BRINE_CALL(q, sparse_attention, y, p, q, hk, hv, csr, scale); });
  timer("sparse attention bf16 backward" + kind, 3 * row, "GB/s", [&] {
    BRINE_CALL(q, sparse_attention_backward, dq, dk, dv, dy, hq, hk, hv, p, csr, scale);
  });
}

void loss_rows(Timer& timer, int64_t B, int64_t H, int64_t T, int64_t d) {
  const Shape shape{B, H, T, d};
  Tensor q = noise(shape, 1), k = noise(shape, 2),
         dy = Tensor::full({2}, 1, Dtype::f32, default_device());
  TeacherAttention teacher{{}, noise(shape, 3), noise(shape, 4)};
  Tensor y = room({2}), lse = room({B, H, T}), other = Tensor::like(lse);
  Tensor dq = Tensor::like(q), dk = Tensor::like(k), scores = noise({B, H, T, kColumns}, 5);
  Tensor dscores = Tensor::like(scores);
  const double scale = 1 / std::sqrt(double(d));
  // One product over the visible half of the map.
  const double product = double(B * H * T) * double(T + 1) * double(d) * 1e-9;
  const double columns = double(scores.numel()) * 4e-9;
  TeacherSummary summary = summarize_teacher(teacher, kColumns, {});
  timer("prob loss", 2 * product, "GFLOP/s",
        [&] { BRINE_CALL(q, prob_loss, y, lse, other, q, k, teacher, {}, scale); });
  timer("prob loss backward", 4 * product, "GFLOP/s", [&] {
    BRINE_CALL(q, prob_loss_backward, dq, dk, dy, q, k, teacher, lse, other, {}, scale);
  });
  timer("teacher summary", product, "GFLOP/s",
        [&] { summary = summarize_teacher(teacher, kColumns, {}); });
  timer("approx loss", 2 * columns, "GB/s",
        [&] { BRINE_CALL(q, approx_loss, y, scores, summary, {}); });
  timer("approx loss backward", 3 * columns, "GB/s",
        [&] { BRINE_CALL(q, approx_loss_backward, dscores, dy, scores, summary, {}); });
}

}  // namespace

void bench_sparse(RowSink& rows) {
  std::vector<std::pair<std::string, double>> first;
  for (int64_t T : token_counts()) {
    const std::string shape = join("T=", T, " H=12 d=64 K=k=64");
    Timer timer(rows, shape, T, first, T == token_counts().front());
    for (bool steady : {false, true}) {
      rows.attempt(steady ? "steady columns" : "random columns", shape,
                   [&] { sparse_rows(timer, T, steady); });
    }
  }
  std::vector<std::pair<std::string, double>> none;
  const int64_t B = sized(8, 1), T = sized(512, 96);
  Timer small(rows, join("B=", B, " H=8 T=", T, " d=32"), B * T, none, true);
  loss_rows(small, B, 8, T, 32);
}

}  // namespace brine::bench
