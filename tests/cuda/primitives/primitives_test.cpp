// The primitives of strided inputs and of every type on the device, as on the CPU; others are in
// tests/autograd.
#include "tensor/kernels/primitives.h"

#include "autograd/ops.h"
#include "tests/cuda/compare.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::test;

namespace {

constexpr Dtype kTypes[] = {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16,
                            Dtype::i32, Dtype::i64, Dtype::u8};

// A tensor of the shape [4, 1, 3] with gaps, whose middle axis repeats n times.
Tensor repeated(const Tensor& x, int64_t n) {
  return x.as_strided({4, n, 3}, {x.stride(0), 0, x.stride(1)});
}

}  // namespace

TEST_CASE("cuda: binary primitives of inputs that repeat") {
  for (BinaryOp op : {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::div}) {
    compare_both(join("binary ", int(op)), [&](const On& on, Dtype dtype) {
      const Tensor all = on(uniform({3, 8}, 1, 0.5, 2, dtype));
      const Tensor a = repeated(all.transpose(0, 1).slice(0, 2, 4), 90);
      const Tensor b = on(uniform({4, 90, 3}, 2, 0.5, 2, dtype));
      const Tensor y = Tensor::like(b);
      BRINE_CALL(y, map_binary, y, a, b, op);
      return std::vector{y};
    });
  }
}

TEST_CASE("cuda: comparisons and where of any type") {
  for (Dtype dtype : kTypes) {
    for (Relation relation :
         {Relation::equal, Relation::not_equal, Relation::less, Relation::less_equal,
          Relation::greater, Relation::greater_equal, Relation::both}) {
      compare(join("compare ", int(relation), " ", dtype), 0, [&](const On& on) {
        const Tensor a = repeated(on(ids({4, 3}, 1, 3).to(dtype)), 2);
        const Tensor b = on(ids({4, 2, 3}, 2, 3).to(dtype));
        const Tensor y = Tensor::empty({4, 2, 3}, Dtype::u8, b.device()), z = Tensor::like(b);
        BRINE_CALL(y, compare, y, a, b, relation);
        BRINE_CALL(y, where, z, y, a, b);
        return std::vector{y, z};
      });
    }
  }
}

TEST_CASE("cuda: reductions, running sums, gather and scatter_add of strided inputs") {
  for (int axis : {0, 1, 2}) {
    compare_both(join("along ", axis), [&](const On& on, Dtype dtype) {
      const Tensor x = on(normal({20, 6, 5}, 1, dtype)).permute({1, 0, 2});  // [6, 20, 5]
      Shape shape{6, 20, 5};
      shape[axis] = 9;
      const Tensor index = on(ids(shape, 2, x.dim(axis), Dtype::i64));
      const Tensor sums = Tensor::empty({6, 20, 5}, dtype, x.device()), back = Tensor::like(sums);
      const Tensor picked = Tensor::empty(shape, dtype, x.device());
      const Tensor added = on(normal({6, 20, 5}, 3, dtype));
      const Tensor top = Tensor::empty({1, 20, 5}, dtype, x.device());
      const Tensor mean = Tensor::empty({6, 1, 1}, dtype, x.device());
      BRINE_CALL(x, reduce, top, x, Reduction::max);
      BRINE_CALL(x, reduce, mean, x, Reduction::mean);
      BRINE_CALL(x, cumsum, sums, x, axis, false);
      BRINE_CALL(x, cumsum, back, x, axis, true);
      BRINE_CALL(x, gather, picked, x, index, axis);
      BRINE_CALL(x, scatter_add, added, picked, index, axis);
      return std::vector{top, mean, sums, back, picked, added};
    });
  }
  for (Dtype dtype : kTypes) {
    compare(join("gather ", dtype), 0, [&](const On& on) {
      return std::vector{gather(on(ids({7, 5}, 1, 100).to(dtype)), 0, ids({4, 1}, 2, 7))};
    });
  }
}

TEST_CASE("cuda: an index outside is an error, wherever the index is") {
  if (!has_device()) return;
  const Tensor x = normal({3, 4}, 1).to(kCuda);
  const Tensor index = Tensor::from(std::vector<int32_t>{2, 3}, {2, 1});
  const auto says = doctest::Contains("gather: index 3 at position 1 is outside axis 0 of [3, 4]");
  CHECK_THROWS_WITH_AS(gather(x, 0, index), says, Error);
  CHECK_THROWS_WITH_AS(gather(x, 0, index.to(kCuda)), says, Error);
  CHECK_REFUSES(add(x, normal({4}, 2)), "add: one input is on cuda");
}
