// Matrix products, those of f32 compared with its peak.
#include <algorithm>

#include "apps/bench/bench.h"
#include "tensor/cpu/core/onednn.h"
#include "tensor/kernels/dense.h"

namespace brine::bench {
namespace {

struct Product {
  const char* name;
  int64_t batch, M, N, K;
  bool ta = false, tb = false;
};

BenchRow run(const Product& p, Dtype type) {
  const bool half = type == Dtype::bf16;
  Tensor a = ramp(p.ta ? Shape{p.batch, p.K, p.M} : Shape{p.batch, p.M, p.K}).to(type);
  Tensor b = ramp(p.tb ? Shape{p.batch, p.N, p.K} : Shape{p.batch, p.K, p.N}).to(type);
  Tensor y = Tensor::empty({p.batch, p.M, p.N});
  double limit = 0;
  const double ms = median_times([&] { BRINE_CALL(y, matmul, y, a, b, p.ta, p.tb, 1, 0); },
                                 [&] { limit = std::max(limit, peak_flops()); })
                        .first;
  const double work = 2 * double(p.batch) * double(p.M) * double(p.N) * double(p.K);
  const std::string letters = join(p.ta ? 'T' : 'N', p.tb ? 'T' : 'N');
  return {join(p.name, " ", letters, half ? " bf16" : ""),
          join(p.batch, " x ", p.M, " ", p.N, " ", p.K),
          ms,
          work / ms / 1e6,
          "GFLOP/s",
          half ? 0 : work / ms / 1e6 / limit};
}

}  // namespace

void bench_gemm(RowSink& rows) {
  const Product products[] = {
      {"projection", 1, 4096, 768, 768, false, false},
      {"mlp up", 1, 4096, 3072, 768, false, true},
      {"mlp down", 1, 4096, 768, 3072, false, true},
      {"projection weights", 1, 768, 768, 4096, true, false},
      {"mlp weights", 1, 3072, 768, 4096, true, false},
      {"vocabulary", 1, 2048, 50272, 768, false, true},
      {"scores", 12, 1024, 1024, 64, false, true},
      {"values", 12, 1024, 64, 1024, false, false},
      {"mu", 1, 16384, 128, 192, false, true},
      {"mu weights", 1, 128, 192, 16384, true, false},
      {"one token", 1, 1, 3072, 768, false, true},
  };
  for (Product p : products) {
    for (int64_t* size : {&p.batch, &p.M, &p.N, &p.K}) *size = std::min(*size, sized(*size, 48));
    rows.add(run(p, Dtype::f32));
    if (onednn::has_bf16_gemm()) rows.add(run(p, Dtype::bf16));
  }
}

}  // namespace brine::bench
