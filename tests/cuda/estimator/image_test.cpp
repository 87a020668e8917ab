// The resampled identity on the device, as on the CPU; other images are in tests/autograd.
#include "tensor/kernels/estimator.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

TEST_CASE("cuda: the identity resampled to the rows of a sequence") {
  for (const Shape& shape : {Shape{3, 37, 8}, Shape{3, 5, 40}, Shape{3, 1, 1}, Shape{3, 0, 4}}) {
    for (bool nearest : {false, true}) {
      for (const Tensor& lengths : {Tensor(), lengths_of({shape[1], 0, (shape[1] + 1) / 2})}) {
        compare_both(join("resampled_identity ", shape, nearest),
                     [&](const On& on, Dtype dtype) {
                       Tensor y = Tensor::empty(shape, dtype, on.device);
                       BRINE_CALL(y, resampled_identity, y, lengths, nearest);
                       return std::vector{y};
                     },
                     {.f32 = 0, .f64 = 0});
      }
    }
  }
}
