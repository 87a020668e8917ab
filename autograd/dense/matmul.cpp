// Products: batched matmul, the linear layer, and the linear layer of two concatenated inputs.
#include "autograd/compute_type.h"
#include "autograd/ops.h"
#include "tensor/kernels/dense.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

// Passes on the gradient of one operand, summed over the batch if the batch shares the operand.
void give(Gradients& grads, int input, const Tensor& operand, const Shape& batch,
          const std::function<void(Tensor)>& compute) {
  int64_t rows = operand.dim(-2), columns = operand.dim(-1), matrices = 1;
  for (int i = 0; i < operand.rank() - 2; ++i) matrices *= operand.dim(i);
  Shape whole = batch;
  whole.push_back(rows);
  whole.push_back(columns);
  Tensor every = Tensor::empty(whole, operand.dtype(), operand.device());
  compute(every);
  if (matrices == batch.numel()) return grads.set(input, every.view(operand.shape()));
  Tensor sum = grads.accumulate(input);
  add_sum_of_rows(sum.view({rows * columns}), every.view({batch.numel(), rows * columns}));
}

Shape leading_axes(const Tensor& x) {
  Shape s;
  for (int i = 0; i < x.rank() - 2; ++i) s.push_back(x.dim(i));
  return s;
}

// The axes of a weight.
struct WeightAxes {
  int in, out;
};

void check_linear(const char* op, const Tensor& x, const Tensor& w, const Tensor& b,
                  WeightAxes axes) {
  check(w.rank() == 2, op, ": weight ", w.shape(), " must be ",
        axes.out == 0 ? "[out, in]" : "[in, out]");
  check(x.rank() >= 1 && x.dim(-1) == w.dim(axes.in), op, ": x ", x.shape(), " must end in ",
        w.dim(axes.in), ", as weight ", w.shape());
  check(can_store(x.dtype(), w.dtype()) && (x.dtype() == Dtype::f32 || x.dtype() == Dtype::f64), op,
        ": x is ", x.dtype(), " and the weight ", w.dtype());
  check(x.dtype() == w.dtype() || !(wants_grad(x) || wants_grad(w)), op,
        ": no gradients with a weight stored in ", w.dtype());
  check(!b.defined() || (b.shape() == Shape{w.dim(axes.out)} && b.dtype() == x.dtype()), op,
        ": bias ", b.defined() ? b.shape() : Shape{}, " must be [", w.dim(axes.out),
        "] of the weight's type");
}

// The weight as the product reads it: one in 16 bits stays so when the product is in f32.
Tensor factor(const Tensor& w, const ProductInput& taken) {
  return item_size(w.dtype()) < item_size(taken.type) ? w : taken(w);
}

}  // namespace

Tensor matmul(const Tensor& a, const Tensor& b, bool ta, bool tb, double alpha) {
  check(a.rank() >= 2 && b.rank() >= 2, "matmul: ", a.shape(), " and ", b.shape(),
        " must be matrices");
  check(a.dtype() == b.dtype() && (a.dtype() == Dtype::f32 || a.dtype() == Dtype::f64),
        "matmul: ", a.dtype(), " and ", b.dtype(), " must both be f32 or f64");
  int64_t M = a.dim(ta ? -1 : -2), K = a.dim(ta ? -2 : -1);
  int64_t N = b.dim(tb ? -2 : -1);
  check(b.dim(tb ? -1 : -2) == K, "matmul: ", a.shape(), ta ? "^T" : "", " and ", b.shape(),
        tb ? "^T" : "", " differ in the inner size");
  Shape batch_a = leading_axes(a), batch_b = leading_axes(b);
  bool one_a = batch_a.numel() == 1, one_b = batch_b.numel() == 1;
  Shape batch = one_a && batch_b.rank() >= batch_a.rank() ? batch_b : batch_a;
  check((one_a && batch_a.rank() <= batch.rank()) || batch_a == batch, "matmul: leading axes of ",
        a.shape(), " and ", b.shape(), " differ");
  check((one_b && batch_b.rank() <= batch.rank()) || batch_b == batch, "matmul: leading axes of ",
        a.shape(), " and ", b.shape(), " differ");
  Shape shape = batch;
  shape.push_back(M);
  shape.push_back(N);
  Tensor y = Tensor::empty(shape, a.dtype(), a.device());
  Tensor x = a.detach(), w = b.detach();
  BRINE_CALL(y, matmul, y, x, w, ta, tb, alpha, 0.0);
  count_macs(double(y.numel()) * double(K));
  return record("matmul", y, {a, b},
                [=](const Tensor& dy, Gradients& grads) {
                  if (grads.wanted(0)) {
                    give(grads, 0, x, batch, [&](Tensor dx) {
                      if (ta) {
                        BRINE_CALL(dx, matmul, dx, w, dy, tb, true, alpha, 0.0);
                      } else {
                        BRINE_CALL(dx, matmul, dx, dy, w, false, !tb, alpha, 0.0);
                      }
                    });
                  }
                  if (grads.wanted(1)) {
                    give(grads, 1, w, batch, [&](Tensor dw) {
                      if (tb) {
                        BRINE_CALL(dw, matmul, dw, dy, x, true, ta, alpha, 0.0);
                      } else {
                        BRINE_CALL(dw, matmul, dw, x, dy, !ta, false, alpha, 0.0);
                      }
                    });
                  }
                },
                {x, w});
}

namespace {

// x w^T + b of inputs that were checked, and its gradients.
class LinearCall {
 public:
  LinearCall(const Tensor& x, const Tensor& w, const Tensor& b)
      : weight_(w.detach()),
        bias_(b.defined() ? b.detach() : Tensor()),
        in_shape_(x.shape()),
        in_(w.dim(1)),
        out_(w.dim(0)),
        rows_(in_ ? x.numel() / in_ : 0),
        taken_{product_type(x.dtype(), rows_)},
        flat_(taken_(x.detach().contiguous().view({rows_, in_}))) {}

  // Room for the result, [R..., O].
  Tensor result(const Tensor& x) const {
    Shape shape = in_shape_;
    shape[shape.rank() - 1] = out_;
    count_macs(double(rows_) * double(out_) * double(in_));
    return Tensor::empty(shape, x.dtype(), x.device());
  }
  Tensor matrix(const Tensor& y) const { return y.view({rows_, out_}); }
  Tensor stored_weight() const { return factor(weight_, taken_); }
  const Tensor& weight() const { return weight_; }
  const Tensor& bias() const { return bias_; }
  const Tensor& flat() const { return flat_; }

  // Of inputs 0 (x), 1 (w) and 2 (b), for dy [R..., O].
  void give(const Tensor& dy, Gradients& grads) const {
    const Tensor whole = matrix(dy), g = taken_(whole);
    if (grads.wanted(0)) {
      Tensor dx = Tensor::empty({rows_, in_}, dy.dtype(), dy.device());
      BRINE_CALL(dx, matmul, dx, g, taken_(weight_), false, false, 1.0, 0.0);
      grads.set(0, dx.view(in_shape_));
    }
    if (grads.wanted(1)) {
      Tensor dw = grads.accumulate(1);
      BRINE_CALL(dw, matmul, dw, g, flat_, true, false, 1.0, 1.0);
    }
    if (grads.wanted(2)) add_sum_of_rows(grads.accumulate(2), whole);
  }

 private:
  Tensor weight_, bias_;
  Shape in_shape_;
  int64_t in_, out_, rows_;
  ProductInput taken_;
  Tensor flat_;  // x [R, I] in the product's type
};

}  // namespace

Tensor linear(const Tensor& x, const Tensor& w, const Tensor& b) {
  check_linear("linear", x, w, b, {.in = 1, .out = 0});
  const LinearCall call(x, w, b);
  const Tensor y = call.result(x);
  BRINE_CALL(y, linear, call.matrix(y), call.flat(), call.stored_weight(), call.bias());
  return record("linear", y, {x, w, b},
                [=](const Tensor& dy, Gradients& grads) { call.give(dy, grads); },
                {call.flat(), call.weight()});
}

Tensor linear_activation(const Tensor& x, const Tensor& w, const Tensor& b, Activation f) {
  check_linear("linear_activation", x, w, b, {.in = 1, .out = 0});
  const LinearCall call(x, w, b);
  const Tensor y = call.result(x);
  // ReLU's gradient reads its result, the others' their argument.
  const bool keeps = f != Activation::relu && (wants_grad(x) || wants_grad(w) || wants_grad(b));
  const Tensor before = keeps ? Tensor::like(y) : Tensor(), saved = keeps ? before : y;
  BRINE_CALL(y, linear_activation, call.matrix(y), keeps ? call.matrix(before) : Tensor(),
             call.flat(), call.stored_weight(), call.bias(), f);
  return record("linear_activation", y, {x, w, b},
                [=](const Tensor& dy, Gradients& grads) {
                  const Tensor g = Tensor::like(dy);
                  BRINE_CALL(g, activation_backward, g, dy, saved, f);
                  call.give(g, grads);
                },
                {call.flat(), call.weight(), saved});
}

Tensor linear_in_out(const Tensor& x, const Tensor& w, const Tensor& b) {
  check_linear("linear_in_out", x, w, b, {.in = 0, .out = 1});
  const int64_t in = w.dim(0), out = w.dim(1), rows = in ? x.numel() / in : 0;
  Shape shape = x.shape();
  shape[shape.rank() - 1] = out;
  const ProductInput taken{product_type(x.dtype(), rows)};
  const Tensor flat = taken(x.detach().contiguous().view({rows, in})), weight = w.detach();
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  const Tensor whole = y.view({rows, out});
  // The product is added to the bias.
  if (b.defined()) copy_into(whole, b.detach().as_strided({rows, out}, {0, b.stride(0)}));
  BRINE_CALL(y, matmul, whole, flat, factor(weight, taken), false, false, 1.0,
             b.defined() ? 1.0 : 0.0);
  count_macs(double(y.numel()) * double(in));
  const Shape in_shape = x.shape();
  return record("linear_in_out", y, {x, w, b},
                [=](const Tensor& dy, Gradients& grads) {
                  const Tensor whole = dy.view({rows, out}), g = taken(whole);
                  if (grads.wanted(0)) {
                    Tensor dx = Tensor::empty({rows, in}, dy.dtype(), dy.device());
                    BRINE_CALL(dx, matmul, dx, g, taken(weight), false, true, 1.0, 0.0);
                    grads.set(0, dx.view(in_shape));
                  }
                  if (grads.wanted(1)) {
                    Tensor dw = grads.accumulate(1);
                    BRINE_CALL(dw, matmul, dw, flat, g, true, false, 1.0, 1.0);
                  }
                  if (grads.wanted(2)) add_sum_of_rows(grads.accumulate(2), whole);
                },
                {flat, weight});
}

namespace {

// Heads of a [B, H, T, A] that share a group's rows of b [B, G, T, B]; 1 if both have the same
// rows.
int64_t heads_of_pair(const Tensor& a, const Tensor& b) {
  const bool groups = a.rank() == 4 && b.rank() == 4 && b.dim(1) > 0 && a.dim(1) % b.dim(1) == 0 &&
                      a.dim(0) == b.dim(0) && a.dim(2) == b.dim(2);
  return groups ? a.dim(1) / b.dim(1) : 1;
}

}  // namespace

Tensor linear_pair(const Tensor& a, const Tensor& b, const Tensor& w, const Tensor& bias) {
  const int64_t A = a.dim(-1), B = b.dim(-1), R = a.rows(), heads = heads_of_pair(a, b);
  check((a.dtype() == Dtype::f32 || a.dtype() == Dtype::f64) && b.dtype() == a.dtype() &&
            w.dtype() == a.dtype() && b.rows() * heads == R && w.rank() == 2 && w.dim(1) == A + B,
        "linear_pair: a ", a.shape(), ", b ", b.shape(), " and w ", w.shape(),
        " must be [R..., A], [R..., B] and [O, A + B] of one type");
  const Tensor of_a = linear(a, slice(w, 1, 0, A), bias), of_b = linear(b, slice(w, 1, A, B), {});
  return add(of_a, heads == 1 ? reshape(of_b, of_a.shape()) : repeat_heads(of_b, heads));
}

Tensor group_matmul(const Tensor& x, const Tensor& kv, bool transposed) {
  check(x.rank() == 4 && kv.rank() == 4 && kv.dim(1) > 0 && x.dim(1) % kv.dim(1) == 0,
        "group_matmul: x ", x.shape(), " and kv ", kv.shape(),
        " must be [B, H, R, n] and [B, G, S, d]");
  const int64_t B = x.dim(0), H = x.dim(1), rows = x.dim(2), G = kv.dim(1);
  if (G == H) return matmul(x, kv, false, transposed);
  const Tensor y = matmul(reshape(x, {B, G, H / G * rows, x.dim(3)}), kv, false, transposed);
  return reshape(y, {B, H, rows, y.dim(3)});
}

}  // namespace brine
