// What a dump keeps of logits: the device chooses and orders as the CPU does.
#include <array>

#include "tensor/kernels/dense.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

std::vector<Tensor> top_on(const On& on, const Tensor& logits, int64_t n) {
  const Tensor x = on(logits);
  Tensor values = Tensor::empty({x.dim(0), n}, Dtype::f32, x.device());
  Tensor ids = Tensor::empty({x.dim(0), n}, Dtype::i32, x.device());
  Tensor lse = Tensor::empty({x.dim(0)}, Dtype::f32, x.device());
  BRINE_CALL(x, top_logits, values, ids, lse, x);
  return {values, ids, lse};
}

void compare_top(const std::string& what, const Tensor& x, int64_t n) {
  if (!has_device()) return;
  const std::vector<Tensor> wanted = top_on(On{kCpu}, x, n), got = top_on(On{kCuda}, x, n);
  check_close(what + ", values", wanted[0], got[0], 0);
  check_close(what + ", ids", wanted[1], got[1], 0);
  check_close(what + ", lse", wanted[2], got[2], 1e-6);
}

}  // namespace

TEST_CASE("cuda: the largest logits in falling order, of equal ones the first") {
  for (auto [rows, V, n] : {std::array<int64_t, 3>{5, 300, 64},
                            {3, 1037, 1},
                            {2, 40, 40},
                            {1, 1, 1},
                            {2, 700, 300},
                            {0, 9, 3}}) {
    const std::string what = join("[", rows, ", ", V, "], n = ", n);
    Tensor x = normal({rows, V}, 3, Dtype::f32, -2, 6);
    compare_top(what, x, n);
    // Plateaus: the threshold is inside one, zeros of both signs are equal.
    for (int64_t i = 0; i < x.numel(); ++i) {
      float& value = x.data<float>()[i];
      value = std::round(value / 4);
      if (value == 0 && i % 2) value = -0.0f;
    }
    compare_top(what + ", plateaus", x, n);
    compare_top(what + ", all equal", Tensor::full({rows, V}, -1.5), n);
  }
}
