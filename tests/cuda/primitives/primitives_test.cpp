// The primitives on the device, as on the CPU: strided inputs, every type, and ops with gradients.
#include "tensor/kernels/primitives.h"

#include "autograd/ops.h"
#include "tests/cuda/compare.h"

using namespace brine;
using namespace brine::test;

namespace {

constexpr Dtype kTypes[] = {Dtype::f32, Dtype::f64, Dtype::bf16, Dtype::f16,
                            Dtype::i32, Dtype::i64, Dtype::u8};

// A tensor of the shape [4, 1, 3] with gaps, whose middle axis repeats n times.
Tensor repeated(const Tensor& x, int64_t n) {
  return x.as_strided({4, n, 3}, {x.stride(0), 0, x.stride(1)});
}

Tensor spaced(const On& on, uint64_t seed, double low, double high, Dtype dtype) {
  return on(uniform({3, 8}, seed, low, high, dtype)).transpose(0, 1).slice(0, 2, 4);  // [4, 3]
}

// Leaves on the device, the output of f, and the gradients.
template <class F>
std::vector<Tensor> with_gradients(const std::vector<Tensor>& inputs, const On& on, F f) {
  std::vector<Tensor> leaves, results;
  for (const Tensor& x : inputs) leaves.push_back(require_grad(on(x)));
  const Tensor y = f(leaves);
  backward(y, on(normal(y.shape(), 99, y.dtype())));
  results.push_back(y.detach());
  for (const Tensor& leaf : leaves) results.push_back(grad(leaf));
  return results;
}

}  // namespace

TEST_CASE("cuda: unary primitives") {
  for (UnaryOp op : {UnaryOp::exp, UnaryOp::log, UnaryOp::sqrt, UnaryOp::abs, UnaryOp::sin,
                     UnaryOp::cos, UnaryOp::clamp}) {
    compare_both(join("unary ", int(op)), [&](const On& on, Dtype dtype) {
      const Tensor x = spaced(on, 1, 0.1, 3, dtype), many = on(uniform({700}, 2, 0.1, 3, dtype));
      const Tensor y = Tensor::empty({4, 3}, dtype, x.device()), z = Tensor::like(many);
      const Tensor none = Tensor::empty({0, 2}, dtype, x.device());
      BRINE_CALL(y, map_unary, y, x, op, 0.5, 2.0);
      BRINE_CALL(y, map_unary, z, many, op, 0.5, 2.0);
      BRINE_CALL(y, map_unary, none, none, op, 0.5, 2.0);
      return std::vector{y, z, none};
    });
  }
}

TEST_CASE("cuda: binary primitives of inputs that repeat") {
  for (BinaryOp op : {BinaryOp::add, BinaryOp::sub, BinaryOp::mul, BinaryOp::div, BinaryOp::pow,
                      BinaryOp::maximum, BinaryOp::minimum}) {
    compare_both(join("binary ", int(op)), [&](const On& on, Dtype dtype) {
      const Tensor a = repeated(spaced(on, 1, 0.5, 2, dtype), 90);
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
          Relation::greater, Relation::greater_equal, Relation::both, Relation::either}) {
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

TEST_CASE("cuda: reductions over any axes") {
  struct Case {
    Shape x, y;
  };
  for (Reduction reduction : {Reduction::sum, Reduction::mean, Reduction::max}) {
    for (const Case& c : {Case{{7}, {1}}, Case{{3, 40, 5}, {3, 1, 5}}, Case{{3, 40, 5}, {1, 40, 1}},
                          Case{{2, 900}, {2, 1}}, Case{{300, 4}, {1, 1}}, Case{{3, 4}, {3, 4}},
                          Case{{0, 4}, {0, 1}}, Case{{}, {}}}) {
      compare_both(join("reduce ", int(reduction), " ", c.x, " ", c.y),
                   [&](const On& on, Dtype dtype) {
                     const Tensor x = on(normal(c.x, 1, dtype));
                     const Tensor y = Tensor::empty(c.y, dtype, x.device());
                     BRINE_CALL(y, reduce, y, x, reduction);
                     return std::vector{y};
                   });
    }
    compare_both(join("reduce ", int(reduction), " strided"), [&](const On& on, Dtype dtype) {
      Tensor values = normal({9, 8, 50}, 2, dtype);
      dispatch_float(dtype, [&]<class T>() { values.data<T>()[77] = T(NAN); });
      const Tensor x = on(values).permute({2, 0, 1}).slice(2, 1, 5);
      const Tensor y = Tensor::empty({50, 1, 5}, dtype, x.device());
      BRINE_CALL(y, reduce, y, x, reduction);
      return std::vector{y};
    });
  }
}

TEST_CASE("cuda: running sums, gather and scatter_add along any axis") {
  for (int axis : {0, 1, 2}) {
    for (Dtype places : {Dtype::i32, Dtype::i64}) {
      compare_both(join("along ", axis, " ", places), [&](const On& on, Dtype dtype) {
        const Tensor x = on(normal({20, 6, 5}, 1, dtype)).permute({1, 0, 2});  // [6, 20, 5]
        Shape shape{6, 20, 5};
        shape[axis] = 9;
        const Tensor index = on(ids(shape, 2, x.dim(axis), places));
        const Tensor sums = Tensor::empty({6, 20, 5}, dtype, x.device()), back = Tensor::like(sums);
        const Tensor picked = Tensor::empty(shape, dtype, x.device());
        const Tensor added = on(normal({6, 20, 5}, 3, dtype));
        BRINE_CALL(x, cumsum, sums, x, axis, false);
        BRINE_CALL(x, cumsum, back, x, axis, true);
        BRINE_CALL(x, gather, picked, x, index, axis);
        BRINE_CALL(x, scatter_add, added, picked, index, axis);
        return std::vector{sums, back, picked, added};
      });
    }
  }
  for (Dtype dtype : kTypes) {
    compare(join("gather ", dtype), 0, [&](const On& on) {
      return std::vector{gather(on(ids({7, 5}, 1, 100).to(dtype)), 0, ids({4, 1}, 2, 7))};
    });
  }
}

TEST_CASE("cuda: ops of primitives with their gradients") {
  compare_both("maps", [](const On& on, Dtype dtype) {
    return with_gradients({uniform({4, 1, 3}, 1, 0.5, 2, dtype), uniform({5, 1}, 2, 0.5, 2, dtype)},
                          on, [](const std::vector<Tensor>& in) {
                            const Tensor y = pow(in[0], in[1]) / (1 + sqrt(in[1])) - sin(in[0]);
                            return where(greater(y, 0.5), maximum(y, in[0]), -exp(abs(y) * 0.5));
                          });
  });
  compare_both("axes", [](const On& on, Dtype dtype) {
    return with_gradients({normal({4, 6, 3}, 1, dtype), normal({2, 6, 3}, 2, dtype)}, on,
                          [&](const std::vector<Tensor>& in) {
                            const Tensor all = concat({in[0], in[1]}, 0);
                            const Tensor top = max(cumsum(all, 1), {2}, true);
                            const Tensor index = on(ids({3, 1, 1}, 3, 6));
                            return gather(all - top, 0, index) * mean(all, {0, 2}, true);
                          });
  });
}

TEST_CASE("cuda: an index outside is an error, wherever the index is") {
  if (!has_device()) return;
  const Tensor x = normal({3, 4}, 1).to(kCuda);
  const Tensor index = Tensor::from(std::vector<int32_t>{2, 3}, {2, 1});
  const auto says = doctest::Contains("gather: index 3 at position 1 is outside axis 0 of [3, 4]");
  CHECK_THROWS_WITH_AS(gather(x, 0, index), says, Error);
  CHECK_THROWS_WITH_AS(gather(x, 0, index.to(kCuda)), says, Error);
  CHECK_THROWS_WITH_AS(add(x, normal({4}, 2)), doctest::Contains("add: one input is on cuda"),
                       Error);
}
