// Construction of flat CSR masks: the checked functions over their kernels.
#include "tensor/mask/csr.h"

#include "tensor/kernels/attention.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
int64_t budgeted_entries(const Visibility& visible, int64_t k, int64_t B, int64_t H, int64_t T) {
  const RowWidths widths(visible, T);
  int64_t entries = 0;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t rows = widths.valid(b);
    if (!visible.causal) {
      entries += H * rows * std::min(k, widths.length(b));
      continue;
    }
    // 1, 2, ... k, and then k a row.
    auto upto = [&](int64_t n) {
      const int64_t rising = std::min(n, k);
      return rising * (rising + 1) / 2 + (n - rising) * k;
    };
    entries += H * (upto(visible.first + rows) - upto(visible.first));
  }
  return entries;
}

void check_visibility(const char* op, const Visibility& visible, int64_t batch, int64_t keys) {
  check(visible.first == 0 || (visible.first > 0 && visible.causal && !visible.lengths.defined()),
        op, ": rows begin at ", visible.first, ", which is for causal rows without lengths");
  if (!visible.lengths.defined()) return;
  check(visible.lengths.dtype() == Dtype::i64 && visible.lengths.shape() == Shape{batch}, op,
        ": lengths must be i64 ", Shape{batch}, ", got ", visible.lengths.dtype(), " ",
        visible.lengths.shape());
  if (!visible.lengths.device().is_cpu()) return;  // reading them would wait for the device
  Tensor lengths = visible.lengths.contiguous();
  for (int64_t b = 0; b < batch; ++b) {
    int64_t length = lengths.data<int64_t>()[b];
    check(length >= 0 && length <= keys, op, ": length ", length, " of sequence ", b,
          " is outside 0..", keys);
  }
}

FlatCsr build_csr(const Tensor& selected, const Visibility& visible, int64_t k, int64_t keys,
                  int64_t max_entries) {
  check(selected.rank() == 4 && selected.dtype() == Dtype::u8,
        "build_csr: selected must be u8 [B, H, T, K], got ", selected.dtype(), " ",
        selected.shape());
  check(k > 0, "build_csr: k must be positive, got ", k);
  int64_t B = selected.dim(0), H = selected.dim(1), T = selected.dim(2);
  FlatCsr csr{{}, {}, {}, B, H, T, keys ? keys : T};
  check(H * csr.keys < int64_t(1) << 31, "build_csr: ", H, " heads x ", csr.keys,
        " keys do not fit 32-bit columns");
  check(!visible.causal || csr.keys >= visible.first + T, "build_csr: ", visible.first + T,
        " causal rows need at least as many keys, got ", csr.keys);
  check(visible.lengths.defined() || visible.causal || csr.keys == T,
        "build_csr: lengths must be given when rows and keys differ");
  check_visibility("build_csr", visible, B, csr.keys);
  Tensor s = selected.contiguous();
  csr.row_pointers = Tensor::empty({B, T + 1}, Dtype::i64, s.device());
  csr.head_offsets = Tensor::empty({B, T, H + 1}, Dtype::i32, s.device());
  BRINE_CALL(s, count_csr, csr, s, visible, k);
  int64_t entries = max_entries;
  if (s.device().is_meta()) {
    entries = budgeted_entries(visible, k, B, H, T);
  } else if (entries == 0 || !s.device().is_cuda()) {
    const Tensor pointers = csr.row_pointers.to(Device{});
    entries = B ? pointers.data<int64_t>()[B * (T + 1) - 1] : 0;
  }
  csr.columns = Tensor::empty({entries}, Dtype::i32, s.device());
  BRINE_CALL(s, fill_csr, csr, s, visible, k);
  count_bytes(double(s.numel()) + 4.0 * double(entries));
  return csr;
}

Tensor csr_to_mask(const FlatCsr& csr) {
  const Shape shape{csr.batch, csr.heads, csr.length, csr.keys};
  return Tensor::filled(shape, Dtype::u8, csr.columns.device(), [&](const Tensor& mask) {
    FlatCsr host = csr;
    for (Tensor* x : {&host.row_pointers, &host.head_offsets, &host.columns}) *x = x->to(Device{});
    const MaskRows rows(host);
    std::fill_n(mask.data<uint8_t>(), mask.numel(), uint8_t(0));
    for (int64_t r = 0; r < csr.batch * csr.heads * csr.length; ++r) {
      const RowEntries at = rows(r);
      for (int64_t e = 0; e < at.count; ++e) mask.data<uint8_t>()[r * csr.keys + at.key(e)] = 1;
    }
  });
}

void check_csr(const char* op, const FlatCsr& csr, const Tensor& q, const Tensor& k) {
  check(q.rank() == 4 && k.rank() == 4 && q.dim(3) == k.dim(3), op,
        ": wanted q [B, H, T, d] and k [B, G, S, d], got ", q.shape(), " and ", k.shape());
  check(q.dim(0) == csr.batch && q.dim(1) == csr.heads && q.dim(2) == csr.length &&
            k.dim(0) == csr.batch && k.dim(1) > 0 && csr.heads % k.dim(1) == 0 &&
            k.dim(2) == csr.keys,
        op, ": q ", q.shape(), " and k ", k.shape(), " do not fit a mask of ", csr.batch,
        " sequences, ", csr.heads, " heads, ", csr.length, " rows and ", csr.keys, " keys");
}

}  // namespace brine
