// Matrix products compared with oneDNN called directly, and the machine's floating-point limit.
#include <omp.h>

#include <algorithm>
#include <cmath>

#include "apps/bench/bench.h"
#include "tensor/cpu/core/onednn.h"
#include "tensor/kernels/dense.h"

namespace brine::bench {
namespace {

#ifdef __AVX512F__
constexpr int kBytes = 64;
#elif defined(__aarch64__)
constexpr int kBytes = 16;
#else
constexpr int kBytes = 32;
#endif
// Keeps a vector in its register, so that identical chains stay twelve.
#ifdef __x86_64__
#define BRINE_KEEP(v) asm volatile("" : "+x"(v))
#else
#define BRINE_KEEP(v) asm volatile("" : "+w"(v))
#endif

struct Product {
  const char* name;
  int64_t batch, M, N, K;
  bool ta = false, tb = false;
};

BenchRow run(const Product& p) {
  Tensor a = ramp(p.ta ? Shape{p.batch, p.K, p.M} : Shape{p.batch, p.M, p.K});
  Tensor b = ramp(p.tb ? Shape{p.batch, p.N, p.K} : Shape{p.batch, p.K, p.N});
  Tensor y = Tensor::empty({p.batch, p.M, p.N});
  const onednn::Gemm g{.M = p.M,
                       .N = p.N,
                       .K = p.K,
                       .ta = p.ta,
                       .tb = p.tb,
                       .lda = p.ta ? p.M : p.K,
                       .ldb = p.tb ? p.K : p.N,
                       .ldc = p.N};
  auto [own, direct] = median_times([&] { BRINE_CALL(y, matmul, y, a, b, p.ta, p.tb, 1, 0); },
                                    [&] {
                                      for (int64_t i = 0; i < p.batch; ++i) {
                                        onednn::gemm_direct(g, a.data<float>() + i * p.M * p.K,
                                                            b.data<float>() + i * p.K * p.N,
                                                            y.data<float>() + i * p.M * p.N);
                                      }
                                    });
  const double rate = 2 * double(p.batch) * double(p.M) * double(p.N) * double(p.K) / own / 1e6;
  const std::string letters = join(p.ta ? 'T' : 'N', p.tb ? 'T' : 'N');
  return {join(p.name, " ", letters),
          join(p.batch, " x ", p.M, " ", p.N, " ", p.K),
          own,
          rate,
          "GFLOP/s",
          rate / peak_flops(),
          own / direct};
}

}  // namespace

double peak_flops() {
  typedef float V __attribute__((vector_size(kBytes)));
  constexpr int kSums = 12;
  const int64_t steps = sized(2000000, 20000);
  // A limit of the machine: the best of ten, whatever other processes do.
  double ms = INFINITY;
  for (int run = 0; run < 10; ++run) {
    double start = now_ms();
#pragma omp parallel
    {
      volatile float one = 1, tiny = 1e-9f;
      V x = V{} + one, y = V{} + tiny, sums[kSums];
#pragma GCC unroll 12
      for (int s = 0; s < kSums; ++s) sums[s] = V{} + tiny * float(s);
      for (int64_t i = 0; i < steps; ++i) {
#pragma GCC unroll 12
        for (int s = 0; s < kSums; ++s) {
          sums[s] = sums[s] * x + y;
          BRINE_KEEP(sums[s]);
        }
      }
#pragma GCC unroll 12
      for (int s = 1; s < kSums; ++s) sums[0] += sums[s];
      volatile V keep = sums[0];
      (void)keep;
    }
    ms = std::min(ms, now_ms() - start);
  }
  constexpr int kLanes = kBytes / 4;
  return 2 * double(kSums) * double(steps) * kLanes * omp_get_max_threads() / ms / 1e6;
}

std::vector<BenchRow> bench_gemm() {
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
  std::vector<BenchRow> rows;
  for (Product p : products) {
    for (int64_t* size : {&p.batch, &p.M, &p.N, &p.K}) *size = std::min(*size, sized(*size, 48));
    rows.push_back(run(p));
  }
  return rows;
}

}  // namespace brine::bench
