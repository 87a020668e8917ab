// Attention on masks and its gradients: the device against the CPU, in all widths of rows, with
// more columns than entries, for some of the gradients only, on rows of 16 bits.
#include <cstring>

#include "autograd/compute_type.h"
#include "autograd/ops.h"
#include "tensor/kernels/attention.h"
#include "tests/cuda/compare.h"
#include "tests/sparse_oracle.h"

using namespace brine;
using namespace brine::test;

namespace {

struct SparseCase {
  MaskCase mask;
  int64_t d = 32;
  int64_t groups = 0;  // of heads that share keys and values; 0: one for every head
  int64_t keys = 0;    // 0: as many as rows
  int64_t spare = 0;   // columns beyond the entries
  bool dq = true, dk = true, dv = true;
  int64_t shift = 0;          // numbers by which rows begin off their alignment
  Dtype stored = Dtype::f32;  // of k and v, and of q for the gradients; f32: as the rest
  bool widened = false;       // after rounding, so that kernels for f32 take the same numbers
};

// A mask of the CPU; `spare` columns more than it has entries, of no meaning.
FlatCsr mask_of(const SparseCase& c) {
  const MaskCase& m = c.mask;
  Tensor x = uniform({m.B, m.H, m.T, m.K}, 11, 0, 1);
  FlatCsr csr =
      build_csr(select_columns(x, m.visible(), m.config()).selected, m.visible(), m.k, c.keys);
  if (c.spare == 0) return csr;
  Tensor more = Tensor::full({csr.entries() + c.spare}, -77, Dtype::i32);
  std::copy_n(csr.columns.data<int32_t>(), csr.entries(), more.data<int32_t>());
  csr.columns = more;
  return csr;
}

// The same numbers, `shift` into a longer tensor.
Tensor shifted(const On& on, const Tensor& x, int64_t shift) {
  if (shift == 0) return on(x);
  Tensor more = Tensor::zeros({x.numel() + shift}, x.dtype());
  const size_t size = item_size(x.dtype());
  std::memcpy(more.raw() + size_t(shift) * size, x.raw(), size_t(x.numel()) * size);
  return on(more).slice(0, shift, x.numel()).view(x.shape());
}

std::vector<Tensor> attention_on(const On& on, Dtype dtype, const SparseCase& c,
                                 const FlatCsr& mask) {
  const MaskCase& m = c.mask;
  const Shape row_shape{m.B, m.H, m.T, c.d};
  const Shape key_shape{m.B, c.groups ? c.groups : m.H, mask.keys, c.d};
  const FlatCsr csr = mask_on(on.device, mask);
  auto moved = [&](const Tensor& x) { return shifted(on, x, c.shift); };
  auto stored = [&](const Tensor& x) {
    if (c.stored == Dtype::f32) return moved(x);
    return moved(c.widened ? x.to(c.stored).to(dtype) : x.to(c.stored));
  };
  const Tensor of_q = normal(row_shape, 1, dtype), of_dy = normal(row_shape, 4, dtype);
  Tensor q = moved(of_q), k = stored(normal(key_shape, 2, dtype));
  Tensor v = stored(normal(key_shape, 3, dtype)), dy = moved(of_dy);
  Tensor p = on(normal({csr.entries()}, 5, dtype)), y = Tensor::like(q);
  const double scale = 1 / std::sqrt(double(c.d));
  BRINE_CALL(q, sparse_attention, y, p, q, k, v, csr, scale);
  auto fresh = [&](bool wanted, const Shape& shape) {
    return wanted ? Tensor::empty(shape, dtype, on.device) : Tensor();
  };
  Tensor dq = fresh(c.dq, row_shape), dk = fresh(c.dk, key_shape), dv = fresh(c.dv, key_shape);
  const Tensor rows = stored(of_q);
  // The kernel's rounding, dy for dv alone, is reproduced by a separate pass in f32.
  const Tensor first = c.widened ? Tensor() : dv;
  BRINE_CALL(q, sparse_attention_backward, dq, dk, first, dy, rows, k, v, p, csr, scale);
  if (c.widened) {
    BRINE_CALL(q, sparse_attention_backward, {}, {}, dv, stored(of_dy), rows, k, v, p, csr, scale);
  }
  return {y, p, dq, dk, dv};
}

// Rows of 16 bits on either backend: against the CPU, and against the same backend for the rounded
// numbers in f32.
void compare_stored(SparseCase c) {
  const FlatCsr mask = mask_of(c);
  for (Dtype stored : {Dtype::bf16, Dtype::f16}) {
    c.stored = stored;
    const std::string name = join(c.mask.name(), " d", c.d, " ", stored);
    compare(name, 2e-6, [&](const On& on) { return attention_on(on, Dtype::f32, c, mask); });
    SparseCase widened = c;
    widened.widened = true;
    for (Device device : {kCpu, kCuda}) {
      if (device.is_cuda() && !has_device()) continue;
      const auto got = attention_on(On{device}, Dtype::f32, c, mask);
      const auto wanted = attention_on(On{device}, Dtype::f32, widened, mask);
      for (size_t i = 0; i < got.size(); ++i) {
        INFO(name << ", output " << i << (device.is_cuda() ? " of the device" : " of the cpu"));
        check_close(name, wanted[i].to(kCpu), got[i].to(kCpu), 1e-6);
      }
    }
  }
}

void compare_sparse_attention(const SparseCase& c) {
  const FlatCsr mask = mask_of(c);
  compare_both(join(c.mask.name(), " d", c.d),
               [&](const On& on, Dtype dtype) { return attention_on(on, dtype, c, mask); });
}

// Root of the mean square of a - b over that of b.
double distance(const Tensor& a, const Tensor& b) {
  const std::vector<double> x = a.to(kCpu).to_vector(), y = b.to(kCpu).to_vector();
  double off = 0, all = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    off += (x[i] - y[i]) * (x[i] - y[i]);
    all += y[i] * y[i];
  }
  return std::sqrt(off / all);
}

// The op in 16 bits on the device: its result and gradients against those of the kernels in f64, of
// rounded k and v, dk of rounded q and dv of rounded dy; and how far they are from f32's.
// `loss_scale` times dy: dq and dk use it unrounded, in dv values beyond f16 are infinite.
void check_op_rounds(const MaskCase& m, int64_t d, Dtype half, double loss_scale = 1) {
  INFO(m.name() << " d " << d << " " << name_of(half) << " dy times " << loss_scale);
  const double step = half == Dtype::bf16
                          ? 1.0 / 512
                          : 1.0 / 4096;  // rounding is off by so much of a number at most
  const On on{kCuda};
  const FlatCsr mask = mask_of({.mask = m}), csr = mask_on(kCuda, mask);
  const Shape shape{m.B, m.H, m.T, d};
  const Tensor q = normal(shape, 1), k = normal(shape, 2), v = normal(shape, 3);
  const Tensor dy = normal(shape, 4, Dtype::f32, 0, loss_scale);
  auto f = [=](In x) { return sparse_attention(x[0], x[1], x[2], csr); };
  const std::vector<Tensor> in = {on(q), on(k), on(v)};
  const Run plain = run(f, in, on(dy));
  Run got, again;
  {
    const ComputeType compute(half);
    got = run(f, in, on(dy));
    again = run(f, in, on(dy));
  }
  auto exact = [](const Tensor& x) { return x.to(Dtype::f64); };
  auto rounded = [=](const Tensor& x) { return x.to(half).to(Dtype::f64); };
  const Tensor y = Tensor::empty(shape, Dtype::f64), dq = Tensor::like(y), dk = Tensor::like(y);
  const Tensor dv = Tensor::like(y), p = Tensor::empty({mask.entries()}, Dtype::f64);
  const Tensor xk = rounded(k), xv = rounded(v);
  const double scale = 1 / std::sqrt(double(d));
  BRINE_CALL(y, sparse_attention, y, p, exact(q), xk, xv, mask, scale);
  BRINE_CALL(y, sparse_attention_backward, dq, dk, {}, exact(dy), rounded(q), xk, xv, p, mask,
             scale);
  BRINE_CALL(y, sparse_attention_backward, {}, {}, dv, rounded(dy), exact(q), xk, xv, p, mask,
             scale);
  check_close("y", y.to(Dtype::f32), got.y.to(kCpu), 1e-6);
  const Tensor wanted[] = {dq, dk, dv};
  for (size_t i = 0; i < 3; ++i) {
    INFO("gradient " << i);
    CHECK(same_bits(again.grads[i].to(kCpu), got.grads[i].to(kCpu)));
    check_close("gradient", wanted[i].to(Dtype::f32), got.grads[i].to(kCpu), 2e-6);
    if (loss_scale != 1) {
      const bool overflows = i == 2 && half == Dtype::f16 && loss_scale > 1;
      CHECK(std::isfinite(distance(got.grads[i], wanted[i])) != overflows);
      continue;
    }
    // A few roundings, all of one sign and size; and not none.
    CHECK(distance(got.grads[i], plain.grads[i]) < 3 * step);
    CHECK(distance(got.grads[i], plain.grads[i]) > step / 8);
  }
}

}  // namespace

TEST_CASE("cuda: sparse attention in 16 bits gathers rounded rows, the rest is as it was") {
  if (!has_device()) return;
  const MaskCase cases[] = {{.B = 2, .H = 2, .T = 70, .K = 16, .k = 9, .lengths = {70, 41}},
                            {.B = 1, .H = 3, .T = 65, .K = 8, .k = 20, .causal = false},
                            {.B = 2, .H = 1, .T = 40, .K = 8, .k = 3, .lengths = {0, 40}}};
  for (const MaskCase& m : cases) {
    for (int64_t d : {5, 32, 64}) {
      for (Dtype half : {Dtype::bf16, Dtype::f16}) check_op_rounds(m, d, half);
    }
  }
  for (Dtype half : {Dtype::bf16, Dtype::f16}) {
    for (int64_t d : {33, 128}) check_op_rounds(cases[2], d, half);
    for (double loss_scale : {0x1p-20, 0x1p15}) check_op_rounds(cases[2], 64, half, loss_scale);
  }
  // A few rows are not worth rounding all keys for.
  const MaskCase few{.B = 2, .H = 2, .T = 23, .K = 8, .k = 3};
  const FlatCsr csr = mask_on(kCuda, mask_of({.mask = few}));
  std::vector<Tensor> x;
  for (uint64_t seed : {1, 2, 3}) x.push_back(normal({2, 2, 23, 32}, seed).to(kCuda));
  const Tensor before = sparse_attention(x[0], x[1], x[2], csr).to(kCpu);
  const ComputeType compute(Dtype::bf16);
  CHECK(same_bits(sparse_attention(x[0], x[1], x[2], csr).to(kCpu), before));
}

TEST_CASE("cuda: sparse attention and its gradients under every kind of mask") {
  for (const MaskCase& m : mask_cases()) compare_sparse_attention({.mask = m, .d = 8, .spare = 3});
}

TEST_CASE("cuda: sparse attention in rows of every width") {
  const MaskCase m{.B = 2, .H = 2, .T = 25, .K = 16, .k = 9, .lengths = {25, 12}};
  for (int64_t d : {1, 31, 32, 33, 64, 128, 130}) compare_sparse_attention({.mask = m, .d = d});
  for (int64_t d : {32, 64, 128}) compare_sparse_attention({.mask = m, .d = d, .shift = 1});
}

TEST_CASE("cuda: sparse attention with many entries in a row and of a key, and many chunks") {
  compare_sparse_attention(
      {.mask = {.B = 1, .H = 2, .T = 140, .K = 16, .k = 70}, .d = 64, .spare = 100});
  compare_sparse_attention({.mask = {.B = 1, .H = 2, .T = 171, .K = 8, .k = 3}, .d = 32});
  // So many heads that each is one chunk, of several steps.
  const std::vector<int64_t> lengths = {97, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 70};
  compare_sparse_attention(
      {.mask = {.B = 13, .H = 10, .T = 97, .K = 4, .k = 2, .lengths = lengths}, .d = 2});
}

TEST_CASE("cuda: sparse attention with only some gradients, of nothing, with more keys than rows") {
  const MaskCase m{.B = 2, .H = 2, .T = 20, .K = 8, .k = 4, .lengths = {20, 11}};
  for (int wanted = 0; wanted < 7; ++wanted) {
    compare_sparse_attention({.mask = m,
                              .d = 32,
                              .dq = (wanted & 1) != 0,
                              .dk = (wanted & 2) != 0,
                              .dv = (wanted & 4) != 0});
  }
  compare_sparse_attention(
      {.mask = {.B = 2, .H = 2, .T = 5, .K = 4, .k = 2, .lengths = {0, 0}}, .d = 32});
  compare_sparse_attention({.mask = {.B = 0, .H = 2, .T = 5, .K = 4, .k = 2}, .d = 32});
  compare_sparse_attention({.mask = {.B = 2, .H = 2, .T = 0, .K = 4, .k = 2}, .d = 32});
  const MaskCase decode{
      .B = 3, .H = 3, .T = 1, .K = 8, .k = 4, .causal = false, .lengths = {29, 0, 130}};
  compare_sparse_attention({.mask = decode, .d = 64, .keys = 130});
}

TEST_CASE("cuda: sparse attention where a key has so many rows that a block shares its list") {
  // The one column gives two keys, the same ones in every row.
  const MaskCase m{.B = 1, .H = 1, .T = 1040, .K = 1, .k = 2, .causal = false};
  compare_sparse_attention({.mask = m, .d = 40});
  compare_stored({.mask = m, .d = 32});
}

TEST_CASE("cuda: sparse attention on rows of 16 bits") {
  for (const MaskCase& m : mask_cases()) compare_stored({.mask = m, .d = 8, .spare = 3});
  const MaskCase m{.B = 2, .H = 2, .T = 25, .K = 16, .k = 9, .lengths = {25, 12}};
  for (int64_t d : {1, 31, 32, 33, 64, 128, 130}) compare_stored({.mask = m, .d = d});
  for (int64_t d : {32, 64, 128}) compare_stored({.mask = m, .d = d, .shift = 1});
  compare_stored({.mask = {.B = 1, .H = 2, .T = 140, .K = 16, .k = 70}, .d = 128, .spare = 100});
  compare_stored({.mask = {.B = 2, .H = 2, .T = 0, .K = 4, .k = 2}, .d = 32});
  const MaskCase decode{
      .B = 3, .H = 3, .T = 1, .K = 8, .k = 4, .causal = false, .lengths = {29, 0, 130}};
  compare_stored({.mask = decode, .d = 64, .keys = 130});
}

TEST_CASE("cuda: sparse attention of groups of heads") {
  const std::vector<MaskCase> masks = {
      {.B = 2, .H = 6, .T = 25, .K = 16, .k = 9, .lengths = {25, 12}},
      {.B = 1, .H = 6, .T = 70, .K = 4, .k = 3},  // lists over several steps and chunks
      {.B = 3, .H = 6, .T = 9, .K = 8, .k = 4, .causal = false, .lengths = {0, 9, 5}}};
  for (const MaskCase& m : masks) {
    for (int64_t G : {1, 2, 3}) {
      compare_sparse_attention({.mask = m, .d = 32, .groups = G});
      compare_sparse_attention({.mask = m, .d = 5, .groups = G, .spare = 3, .dq = G == 1});
    }
  }
  // One key of all rows of a group: a list that all warps of a block share.
  compare_sparse_attention(
      {.mask = {.B = 1, .H = 4, .T = 300, .K = 1, .k = 2, .causal = false}, .d = 32, .groups = 1});
  compare_stored({.mask = masks[0], .d = 64, .groups = 2});
  // Rows of decoding.
  const MaskCase rows{.B = 2, .H = 4, .T = 1, .K = 8, .k = 3, .causal = false, .lengths = {40, 7}};
  compare_sparse_attention({.mask = rows, .d = 32, .groups = 2, .keys = 41});
}

TEST_CASE("cuda: gradients of sparse attention repeat to the bit") {
  if (!has_device()) return;
  const MaskCase many{.B = 1, .H = 1, .T = 1040, .K = 1, .k = 2, .causal = false};
  const std::vector<SparseCase> cases = {
      {.mask = {.B = 1, .H = 2, .T = 80, .K = 16, .k = 20}, .d = 64},
      {.mask = many, .d = 32, .stored = Dtype::bf16}};
  for (const SparseCase& c : cases) {
    const FlatCsr mask = mask_of(c);
    const auto once = attention_on(On{kCuda}, Dtype::f32, c, mask);
    const auto again = attention_on(On{kCuda}, Dtype::f32, c, mask);
    for (size_t i = 0; i < once.size(); ++i) {
      CHECK(same_bits(once[i].to(kCpu), again[i].to(kCpu)));
    }
  }
}
