// The checked front of the kernels of decoding.
#include <cmath>

#include "autograd/ops_decoding.h"
#include "tensor/kernels/kernels_performer.h"

namespace brine {
namespace {

// i64 [B] with values in [0, limit].
void check_places(const char* op, const char* name, const Tensor& at, int64_t B, int64_t limit) {
  check(at.defined() && at.dtype() == Dtype::i64 && at.shape() == Shape{B}, op, ": ", name,
        " must be i64 [", B, "]");
  for (int64_t b = 0; b < B; ++b) {
    const int64_t place = at.data<int64_t>()[b];
    check(place >= 0 && place <= limit, op, ": ", name, " ", place, " of sequence ", b,
          " is outside 0..", limit);
  }
}

void check_row(const char* op, const Tensor& row, const Tensor& like, int64_t columns) {
  check(row.shape() == Shape{like.dim(0), like.dim(1), 1, columns} && row.dtype() == like.dtype(),
        op, ": a row must be ", like.dtype(), " [", like.dim(0), ", ", like.dim(1), ", 1, ",
        columns, "], got ", row.dtype(), " ", row.shape());
}

}  // namespace

void copy_into(const Tensor& to, const Tensor& from) { assign(to, from); }

Tensor thin_linear(const Tensor& x, const Tensor& w, const Tensor& b) {
  check(w.rank() == 2 && x.rank() >= 1 && x.dim(-1) == w.dim(1) && x.dtype() == w.dtype(),
        "thin_linear: x ", x.dtype(), " ", x.shape(), " and w ", w.dtype(), " ", w.shape(),
        " do not fit");
  const int64_t O = w.dim(0), R = x.rows();
  check(!b.defined() || b.shape() == Shape{O}, "thin_linear: bias must be [", O, "]");
  Shape shape = x.shape();
  shape[shape.rank() - 1] = O;
  Tensor y = Tensor::empty(shape, x.dtype(), x.device());
  BRINE_CALL(y, thin_linear, y.view({R, O}), x.detach().contiguous().view({R, w.dim(1)}),
             w.detach(), b.defined() ? b.detach() : Tensor());
  return y;
}

void append_row(const Tensor& cache, const Tensor& row, const Tensor& at) {
  check_row("append_row", row, cache, cache.dim(3));
  check_places("append_row", "place", at, cache.dim(0), cache.dim(2) - 1);
  BRINE_CALL(cache, append_row, cache, row.detach().contiguous(), at);
}

Tensor cached_attention(const Tensor& q, const Tensor& k, const Tensor& v, const Tensor& first,
                        const Tensor& last) {
  const char* op = "cached_attention";
  check(k.rank() == 4 && v.shape() == k.shape(), op, ": k and v must be [B, H, S, d], got ",
        k.shape(), " and ", v.shape());
  check_row(op, q, k, k.dim(3));
  check_places(op, "first", first, k.dim(0), k.dim(2));
  check_places(op, "last", last, k.dim(0), k.dim(2));
  Tensor y = Tensor::like(q);
  BRINE_CALL(y, cached_attention, y, q.detach().contiguous(), k, v, first, last,
             1 / std::sqrt(double(k.dim(3))));
  return y;
}

Tensor running_mean_step(const Tensor& sums, const Tensor& v, const Tensor& counts) {
  check(sums.rank() == 3 && sums.dtype() == Dtype::f64 &&
            v.shape() == Shape{sums.dim(0), sums.dim(1), 1, sums.dim(2)},
        "running_mean_step: sums ", sums.shape(), " must be f64 [B, H, d] and v [B, H, 1, d], got ",
        v.shape());
  Tensor y = Tensor::empty(v.shape(), v.dtype(), v.device());
  BRINE_CALL(y, running_mean_step, y, sums, v.detach().contiguous(), counts);
  return y;
}

void linear_attention_state(const Tensor& state, const Tensor& sums, const Tensor& phi_k,
                            const Tensor& identity, const Tensor& v, const Visibility& visible) {
  const int64_t B = phi_k.dim(0), H = phi_k.dim(1), m = phi_k.dim(3);
  check(state.shape() == Shape{B, H, m, identity.dim(1) + v.dim(3)} &&
            sums.shape() == Shape{B, H, m} && sums.dtype() == Dtype::f64 &&
            identity.dim(0) >= phi_k.dim(2),
        "linear_attention_state: ", state.shape(), " and ", sums.shape(), " do not fit phi_k ",
        phi_k.shape(), ", v ", v.shape(), " and the table ", identity.shape());
  BRINE_CALL(state, linear_attention_state, state, sums, phi_k.detach().contiguous(),
             identity.detach().contiguous(), v.detach().contiguous(), visible);
}

Tensor linear_attention_step(const Tensor& state, const Tensor& sums, const Tensor& phi_q,
                             const Tensor& phi_k, const Tensor& identity, const Tensor& v,
                             const Tensor& at, double eps) {
  const char* op = "linear_attention_step";
  const int64_t B = state.dim(0), H = state.dim(1), m = state.dim(2), e = state.dim(3);
  check_row(op, phi_q, state, m);
  check_row(op, phi_k, state, m);
  check_row(op, v, state, e - identity.dim(1));
  check_places(op, "place", at, B, identity.dim(0) - 1);
  Tensor y = Tensor::empty({B, H, 1, e}, v.dtype(), v.device());
  BRINE_CALL(y, linear_attention_step, y, state, sums, phi_q.detach(), phi_k.detach(),
             identity.detach().contiguous(), v.detach().contiguous(), at, eps);
  return y;
}

Tensor performer_prior_step(const Tensor& borders, const Tensor& at, const Tensor& scores,
                            const Tensor& gain, const Tensor& phi_q, const Tensor& phi_k,
                            const Tensor& width) {
  const char* op = "performer_prior_step";
  const int64_t B = phi_q.dim(0), H = phi_q.dim(1), m = phi_q.dim(3), K = scores.dim(-1);
  check_row(op, scores, phi_q, K);
  check(borders.dtype() == Dtype::f64 && borders.shape() == Shape{B, H, K + 1, border_columns(m)} &&
            gain.shape() == Shape{H} && phi_k.rank() == 4 && phi_k.dim(0) == B &&
            phi_k.dim(1) == H && phi_k.dim(3) == m,
        op, ": borders ", borders.shape(), ", gain ", gain.shape(), " and phi_k ", phi_k.shape(),
        " do not fit phi_q ", phi_q.shape());
  check_places(op, "width", width, B, phi_k.dim(2));
  check_places(op, "place", at, B, phi_k.dim(2));
  for (int64_t b = 0; b < B; ++b) {
    check(at.data<int64_t>()[b] <= width.data<int64_t>()[b], op, ": sequence ", b,
          " goes back from ", at.data<int64_t>()[b], " keys to ", width.data<int64_t>()[b]);
  }
  Tensor y = Tensor::like(scores);
  BRINE_CALL(y, performer_prior_step, y, borders, at, scores.detach().contiguous(),
             gain.detach().contiguous(), phi_q.detach().contiguous(), phi_k, width);
  return y;
}

Tensor relu_features_step(const Tensor& x, const Tensor& projection, double eps) {
  Tensor scaled = Tensor::like(x);
  BRINE_CALL(x, axpby, scaled, x.detach().contiguous(), std::pow(double(x.dim(-1)), -0.25), 0.0);
  Tensor phi = thin_linear(scaled, projection, Tensor());
  BRINE_CALL(phi, relu_features, phi, eps, Tensor());
  return phi;
}

}  // namespace brine
