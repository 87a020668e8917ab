// Conversion of heads to the channels of an image, and the softmax over its columns.
#include "autograd/dense/contiguous_internal.h"
#include "autograd/ops.h"
#include "autograd/step_checks.h"
#include "tensor/base/math.h"
#include "tensor/kernels/dense.h"
#include "tensor/kernels/estimator.h"
#include "tensor/mask/csr.h"

namespace brine {
namespace {

// Heads [B, H, T, c, W] and the rows of an image that they become, from `before` on, as views of
// one shape. Its axes have the order of the image: its rows are then written one after another.
Tensor rows_of_heads(const Tensor& x, const Shape& heads) {
  return x.view(heads).permute({0, 2, 1, 3, 4});
}
Tensor rows_of_image(const Tensor& image, const Shape& heads, int64_t before) {
  const int64_t row = image.stride(1), channels = image.dim(3);
  return image.as_strided({heads[0], heads[2], heads[1], heads[3], heads[4]},
                          {image.stride(0), row, heads[3], 1, channels}, before * row);
}

// Of y [B times, rows, ...] the rows from a sequence's length + `before` on become 0.
void clear_padding(const Tensor& y, const Tensor& lengths, int64_t times, int64_t before) {
  if (!lengths.defined()) return;
  const Tensor known = lengths.to(Device{});
  std::vector<int64_t> ends;
  for (int64_t i = 0; i < y.dim(0); ++i) ends.push_back(known.data<int64_t>()[i / times] + before);
  BRINE_CALL(y, zero_padding, y, y, Tensor::from(ends, {y.dim(0)}));
}

}  // namespace

Tensor image_from_heads(const Tensor& x, int64_t W, const Halo& halo, const Tensor& lengths) {
  const char* op = "image_from_heads";
  check(x.rank() == 4 && W > 0 && x.dim(3) % W == 0, op, ": x must be [B, H, T, c ", W, "], got ",
        x.shape());
  check(halo.before >= 0 && halo.after >= 0, op, ": a halo of ", halo.before, " and ", halo.after,
        " rows");
  check_visibility(op, {.causal = false, .lengths = lengths}, x.dim(0), x.dim(2));
  const int64_t B = x.dim(0), H = x.dim(1), T = x.dim(2), before = halo.before;
  const Shape split{B, H, T, x.dim(3) / W, W};
  Tensor y = Tensor::empty({B, before + T + halo.after, W, H * split[3]}, x.dtype(), x.device());
  fill(y.slice(1, 0, before), 0);
  fill(y.slice(1, before + T, halo.after), 0);
  copy_into(rows_of_image(y, split, before), rows_of_heads(dense(x), split));
  clear_padding(y, lengths, 1, before);
  return record_one(op, y, x, [=](const Tensor& dx, const Tensor& dy) {
    copy_into(rows_of_heads(dx, split), rows_of_image(dy, split, before));
    clear_padding(dx.view({B * H, T, dx.dim(3)}), lengths, H, 0);
  });
}

Tensor rows_from_table(const Tensor& table, int64_t batch, int64_t rows) {
  const char* op = "rows_from_table";
  check(table.rank() == 2 && batch > 0 && rows > 0, op, ": the table must be [H, K], got ",
        table.shape());
  const int64_t H = table.dim(0), K = table.dim(1);
  Tensor y = Tensor::empty({batch, H, rows, K}, table.dtype(), table.device());
  const Tensor every = table.detach().contiguous().as_strided(y.shape(), {0, K, 0, 1});
  BRINE_CALL(y, copy, y, every);
  return record(op, y, {table}, [=](const Tensor& dy, Gradients& grads) {
    const Tensor sum = grads.accumulate(0);
    for (int64_t n = 0; n < batch * H; ++n) {
      add_sum_of_rows(sum.select(0, n % H), dy.select(0, n / H).select(0, n % H));
    }
  });
}

Tensor column_softmax(const Tensor& scores, const Visibility& visible) {
  check(scores.rank() == 4 && scores.dim(3) > 0,
        "column_softmax: scores must be [B, H, T, K], got ", scores.shape());
  check_visibility("column_softmax", visible, scores.dim(0), scores.dim(2));
  const Tensor x = scores.detach().contiguous();
  Tensor y = Tensor::like(x);
  BRINE_CALL(y, column_softmax, y, x, visible);
  return record_softmax("column_softmax", y, scores, 1);
}

Tensor column_softmax_step(const Tensor& scores, const Tensor& width) {
  const char* op = "column_softmax_step";
  check(scores.rank() == 4 && scores.dim(2) == 1 && scores.dim(3) > 0, op,
        ": scores must be [B, H, 1, K], got ", scores.shape());
  check_positions(op, "width", width, scores.dim(0), int64_t(1) << 31);
  Tensor y = Tensor::like(scores);
  BRINE_CALL(y, column_softmax, y, scores.detach().contiguous(),
             Visibility{.causal = false, .lengths = width});
  return y;
}

Tensor column_sizes(const Visibility& visible, int64_t T, int64_t K, const Tensor& like) {
  const int64_t B = visible.lengths.defined() ? visible.lengths.dim(0) : 1;
  return Tensor::filled({B, 1, T, K}, like.dtype(), like.device(), [&](const Tensor& y) {
    const RowWidths widths(visible, T);
    dispatch_float(y.dtype(), [&]<class F>() {
      F* n = y.data<F>();
      for (int64_t r = 0; r < B * T; ++r) {
        const int64_t w = widths(r / T, r % T);
        for (int64_t c = 0; c < K; ++c) {
          *n++ = F(math::column_begin(c + 1, w, K) - math::column_begin(c, w, K));
        }
      }
    });
  });
}

Tensor column_log_softmax(const Tensor& scores, const Visibility& visible) {
  check(scores.rank() == 4 && scores.dim(3) > 0,
        "column_log_softmax: scores must be [B, H, T, K], got ", scores.shape());
  check_visibility("column_log_softmax", visible, scores.dim(0), scores.dim(2));
  const Tensor n = column_sizes(visible, scores.dim(2), scores.dim(3), scores);
  const Tensor has_keys = greater(n, 0);
  // The score of a column without keys may be anything: it is replaced before it enters a function
  // whose gradient it could make infinite.
  const Tensor row_max = max(where(has_keys, scores.detach(), -1e30), {3}, true);
  const Tensor shifted = where(has_keys, scores - row_max, 0);
  const Tensor total = sum(where(has_keys, exp(shifted), 0), {3}, true);
  const Tensor valid = greater(max(n, {3}, true), 0);  // a row of padding has no keys
  return where(has_keys, shifted - log(where(valid, total, 1)), 0);
}

Tensor resampled_identity(const Shape& shape, bool nearest, const Tensor& lengths, Dtype dtype,
                          Device device) {
  check(shape.rank() == 3, "resampled_identity: the result must be [B, T, d], got ", shape);
  check_visibility("resampled_identity", {.causal = false, .lengths = lengths}, shape[0], shape[1]);
  Tensor y = Tensor::empty(shape, dtype, device);
  BRINE_CALL(y, resampled_identity, y, lengths, nearest);
  return y;
}

}  // namespace brine
