// Kernels that memory bandwidth should limit: pointwise, norm, softmax, losses, optimizer, copies.
#include "apps/bench/bench.h"
#include "tensor/kernels/dense.h"

namespace brine::bench {
namespace {

double bytes_of(std::initializer_list<Tensor> tensors) {
  double bytes = 0;
  for (const Tensor& t : tensors) bytes += double(t.numel()) * double(item_size(t.dtype()));
  return bytes;
}

void bench_norm(RowSink& rows, int64_t R, int64_t C) {
  const std::string shape = join(Shape{R, C});
  Tensor x = noise({R, C}, 1), dy = noise({R, C}, 2), y = Tensor::like(x), w = noise({C}, 3);
  Tensor b = noise({C}, 4), mean = Tensor::empty({R}), rstd = Tensor::empty({R});
  Tensor dw = Tensor::zeros({C}), db = Tensor::zeros({C});
  memory_row(rows, "layernorm", shape, bytes_of({x, y}),
             [&] { BRINE_CALL(x, layernorm, y, {}, mean, rstd, x, {}, w, b, 1e-5); });
  memory_row(rows, "layernorm backward", shape, bytes_of({x, dy, y}),
             [&] { BRINE_CALL(x, layernorm_backward, y, dw, db, dy, {}, x, w, mean, rstd); });
  // Where a residual connection meets a norm: one pass for the sum and its norm, and one for the
  // gradient of both.
  Tensor sum = Tensor::like(x);
  memory_row(rows, "add + layernorm", shape, bytes_of({x, dy, sum, y}),
             [&] { BRINE_CALL(x, layernorm, y, sum, mean, rstd, x, dy, w, b, 1e-5); });
  memory_row(rows, "add + layernorm backward", shape, bytes_of({x, dy, sum, y}),
             [&] { BRINE_CALL(x, layernorm_backward, y, dw, db, dy, sum, x, w, mean, rstd); });
}

void bench_elementwise(RowSink& rows, int64_t R, int64_t C) {
  const std::string shape = join(Shape{R, C});
  Tensor x = noise({R, C}, 1), dy = noise({R, C}, 2), y = Tensor::like(x);
  const double two = bytes_of({x, y}), three = bytes_of({x, dy, y});
  memory_row(rows, "gelu", shape, two, [&] { BRINE_CALL(x, activation, y, x, Activation::gelu); });
  memory_row(rows, "gelu backward", shape, three,
             [&] { BRINE_CALL(x, activation_backward, y, dy, x, Activation::gelu); });
  memory_row(rows, "add", shape, three, [&] { BRINE_CALL(x, add, y, dy, x); });
  memory_row(rows, "dropout", shape, two, [&] {
    BRINE_CALL(x, dropout, y, x, 0.1, RandomSlice{1, 2, 3});
  });
  Tensor sum = Tensor::zeros({C}), square = Tensor::empty({1}, Dtype::f64);
  memory_row(rows, "sum_rows", shape, bytes_of({x}), [&] { BRINE_CALL(x, sum_rows, sum, x); });
  memory_row(rows, "square_sum", shape, bytes_of({x}),
             [&] { BRINE_CALL(x, square_sum, square, x); });
}

void bench_softmax(RowSink& rows, int64_t H, int64_t T, bool causal) {
  Tensor x = noise({1, H, T, T}, 1), y = Tensor::like(x), dx = Tensor::like(x);
  const std::string name = causal ? "softmax, causal" : "softmax", shape = join(x.shape());
  const Visibility visible{.causal = causal, .lengths = {}};
  memory_row(rows, name, shape, bytes_of({x, y}) * (causal ? 0.75 : 1),
             [&] { BRINE_CALL(x, softmax, y, x, 0.125, visible); });
  memory_row(rows, name + " backward", shape, bytes_of({x, y, dx}),
             [&] { BRINE_CALL(x, softmax_backward, dx, x, y, 0.125); });
}

void bench_loss(RowSink& rows, int64_t R, int64_t V) {
  const std::string shape = join(Shape{R, V});
  Tensor x = noise({R, V}, 1), loss = Tensor::empty({R}), lse = Tensor::empty({R});
  Tensor dloss = Tensor::full({R}, 1), target = Tensor::empty({R}, Dtype::i32),
         dx = Tensor::like(x);
  for (int64_t r = 0; r < R; ++r) target.data<int32_t>()[r] = int32_t(r * 37 % V);
  memory_row(rows, "cross_entropy", shape, bytes_of({x}),
             [&] { BRINE_CALL(x, cross_entropy, loss, lse, x, target); });
  memory_row(rows, "cross_entropy backward", shape, bytes_of({x, dx}),
             [&] { BRINE_CALL(x, cross_entropy_backward, dx, dloss, x, lse, target); });
}

void bench_moves(RowSink& rows, int64_t B, int64_t T, int64_t H, int64_t d) {
  Tensor x = noise({B, T, H, d}, 1), y = Tensor::empty({B, H, T, d});
  const std::string shape = join(x.shape());
  memory_row(rows, "split heads", shape, bytes_of({x, y}), [&] {
    BRINE_CALL(x, copy, y, x.permute({0, 2, 1, 3}));
  });
  Tensor flat = x.view({B * T, H * d}), turned = Tensor::empty({H * d, B * T});
  memory_row(rows, "transposition", join(flat.shape()), bytes_of({x, y}),
             [&] { BRINE_CALL(x, copy, turned, flat.transpose(0, 1)); });
  Tensor half = Tensor::empty(x.shape(), Dtype::bf16);
  memory_row(rows, "f32 to bf16", shape, bytes_of({x, half}),
             [&] { BRINE_CALL(x, copy, half, x); });
}

void bench_optimizer(RowSink& rows, int64_t n) {
  Tensor w = noise({n}, 1), g = noise({n}, 2), m = Tensor::zeros({n}), v = Tensor::zeros({n});
  memory_row(rows, "adamw", join(w.shape()), bytes_of({w, w, m, m, v, v, g}), [&] {
    BRINE_CALL(w, adamw, w, m, v, g, {.learning_rate = 1e-4, .weight_decay = 0.01});
  });
}

void bench_embedding(RowSink& rows, int64_t V, int64_t C, int64_t R) {
  Tensor table = noise({V, C}, 1), y = Tensor::empty({R, C}), ids = Tensor::empty({R}, Dtype::i32);
  for (int64_t r = 0; r < R; ++r) ids.data<int32_t>()[r] = int32_t(r * 7919 % V);
  const std::string shape = join(y.shape());
  memory_row(rows, "embedding", shape, bytes_of({y, y}),
             [&] { BRINE_CALL(y, embedding, y, table, ids); });
  memory_row(rows, "embedding backward", shape, bytes_of({y, y, y}),
             [&] { BRINE_CALL(y, embedding_backward, table, y, ids); });
}

}  // namespace

void bench_pointwise(RowSink& rows) {
  const int64_t R = sized(16384, 64), T = sized(1024, 32), V = sized(50272, 500);
  bench_norm(rows, R, 768);
  bench_elementwise(rows, R, 768);
  bench_softmax(rows, 12, T, true);
  bench_softmax(rows, 12, T, false);
  bench_loss(rows, sized(512, 16), V);
  bench_moves(rows, 8, sized(2048, 16), 12, 64);
  bench_embedding(rows, V, 768, R);
  bench_optimizer(rows, sized(12 << 20, 1 << 12));
}

}  // namespace brine::bench
