// The checked front of selection and CSR building.
#include "tensor/csr.h"

#include "tensor/kernels/kernels_sparse.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

constexpr const char* kModeNames[] = {"per-query", "per-head", "per-batch", "causal-per-batch"};

Shape group_shape(SelectMode mode, int64_t B, int64_t H, int64_t T) {
  switch (mode) {
    case SelectMode::per_query:
      return {B, H, T};
    case SelectMode::per_head:
      return {B, H};
    case SelectMode::per_batch:
      return {B};
    case SelectMode::causal_per_batch:
      break;
  }
  return {B, T};
}

// Keys that the selected columns of all groups can have: what every group selects is known from its
// sizes, and no column has more than ceil(w / K) keys or gives more than k.
int64_t most_entries(const Visibility& visible, const SelectConfig& config, int64_t B, int64_t H,
                     int64_t T, int64_t K) {
  const RowWidths widths(visible, T);
  const int64_t k = config.k;
  auto group = [&](int64_t members, int64_t w) {
    if (w <= k) return members * w;
    return columns_to_select(members, k, K, w) * std::min(k, (w + K - 1) / K);
  };
  const bool by_head = config.mode == SelectMode::per_query || config.mode == SelectMode::per_head;
  const bool by_row =
      config.mode == SelectMode::per_query || config.mode == SelectMode::causal_per_batch;
  const int64_t heads = by_head ? 1 : H, times = H / heads;
  int64_t most = 0;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t rows = widths.valid(b);
    if (rows > 0 && !by_row) most += times * group(heads * rows, widths(b, 0));
    for (int64_t t = 0; by_row && t < rows; ++t) most += times * group(heads, widths(b, t));
  }
  return most;
}

// Entries when every row keeps min(k, w) keys of each head: what a selection comes to within the
// rounding to whole columns. The meta device, which selects nothing, has masks of this size.
int64_t budgeted_entries(const Visibility& visible, int64_t k, int64_t B, int64_t H, int64_t T) {
  const RowWidths widths(visible, T);
  int64_t entries = 0;
  for (int64_t b = 0; b < B; ++b) {
    for (int64_t t = 0; t < widths.valid(b); ++t) entries += H * std::min(k, widths(b, t));
  }
  return entries;
}

}  // namespace

const char* name_of(SelectMode mode) { return kModeNames[int(mode)]; }

SelectMode parse_select_mode(const std::string& name) {
  for (int i = 0; i < 4; ++i) {
    if (name == kModeNames[i]) return SelectMode(i);
  }
  throw Error(join("select_columns: unknown mode '", name,
                   "', wanted per-query, per-head, per-batch or causal-per-batch"));
}

void check_visibility(const char* op, const Visibility& visible, int64_t batch, int64_t keys) {
  if (!visible.lengths.defined()) return;
  check(visible.lengths.dtype() == Dtype::i64 && visible.lengths.shape() == Shape{batch}, op,
        ": lengths must be i64 ", Shape{batch}, ", got ", visible.lengths.dtype(), " ",
        visible.lengths.shape());
  if (!visible.lengths.device().is_cpu()) return;  // reading them would wait for the device
  Tensor lengths = visible.lengths.contiguous();
  for (int64_t b = 0; b < batch; ++b) {
    int64_t own = lengths.data<int64_t>()[b];
    check(own >= 0 && own <= keys, op, ": length ", own, " of sequence ", b, " is outside 0..",
          keys);
  }
}

Selection select_columns(const Tensor& estimate, const Visibility& visible,
                         const SelectConfig& config) {
  check(estimate.rank() == 4, "select_columns: the estimate must be [B, H, T, K], got ",
        estimate.shape());
  check(config.k > 0, "select_columns: k must be positive, got ", config.k);
  check(!visible.causal ||
            (config.mode != SelectMode::per_head && config.mode != SelectMode::per_batch),
        "select_columns: mode ", name_of(config.mode),
        " looks across time, a causal mask refuses it");
  int64_t B = estimate.dim(0), H = estimate.dim(1), T = estimate.dim(2), K = estimate.dim(3);
  check(K > 0, "select_columns: the estimate has no columns");
  check(H * T * K < int64_t(1) << 32, "select_columns: H T K of ", estimate.shape(),
        " is above 2^32");
  check_visibility("select_columns", visible, B, visible.causal ? T : int64_t(1) << 31);
  Tensor x = estimate.detach().contiguous();
  Selection result{Tensor::empty({B, H, T, K}, Dtype::u8, x.device()),
                   Tensor::empty(group_shape(config.mode, B, H, T), Dtype::i64, x.device())};
  Tensor nan_count = Tensor::empty({1}, Dtype::i64, x.device());
  BRINE_CALL(x, select_columns, result.selected, result.n_sel, nan_count, x, visible, config);
  if (x.device().is_cuda()) result.most_entries = most_entries(visible, config, B, H, T, K);
  int64_t nans = !x.device().is_cpu() ? 0 : nan_count.data<int64_t>()[0];
  count_bytes(double(x.numel()) * double(item_size(x.dtype())) + double(x.numel()));
  check(nans == 0, "select_columns: ", nans, " values of the estimate are NaN");
  return result;
}

FlatCsr build_csr(const Tensor& selected, const Visibility& visible, int64_t k, int64_t keys,
                  int64_t most_entries) {
  check(selected.rank() == 4 && selected.dtype() == Dtype::u8,
        "build_csr: selected must be u8 [B, H, T, K], got ", selected.dtype(), " ",
        selected.shape());
  check(k > 0, "build_csr: k must be positive, got ", k);
  int64_t B = selected.dim(0), H = selected.dim(1), T = selected.dim(2);
  FlatCsr csr{{}, {}, {}, B, H, T, keys ? keys : T};
  check(H * csr.keys < int64_t(1) << 31, "build_csr: ", H, " heads x ", csr.keys,
        " keys do not fit 32-bit columns");
  check(!visible.causal || csr.keys >= T, "build_csr: ", T, " causal rows need as many keys, got ",
        csr.keys);
  check(visible.lengths.defined() || visible.causal || csr.keys == T,
        "build_csr: lengths must be given when rows and keys differ");
  check_visibility("build_csr", visible, B, csr.keys);
  Tensor s = selected.contiguous();
  csr.row_pointers = Tensor::empty({B, T + 1}, Dtype::i64, s.device());
  csr.head_offsets = Tensor::empty({B, T, H + 1}, Dtype::i32, s.device());
  BRINE_CALL(s, count_csr, csr, s, visible, k);
  int64_t entries = most_entries;
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
  Tensor mask =
      Tensor::empty({csr.batch, csr.heads, csr.length, csr.keys}, Dtype::u8, csr.columns.device());
  BRINE_CALL(mask, csr_to_mask, mask, csr);
  return mask;
}

void check_csr(const char* op, const FlatCsr& csr, const Tensor& q, const Tensor& k) {
  check(q.rank() == 4 && k.rank() == 4 && q.dim(3) == k.dim(3), op,
        ": wanted q [B, H, T, d] and k [B, H, S, d], got ", q.shape(), " and ", k.shape());
  check(q.dim(0) == csr.batch && q.dim(1) == csr.heads && q.dim(2) == csr.length &&
            k.dim(0) == csr.batch && k.dim(1) == csr.heads && k.dim(2) == csr.keys,
        op, ": q ", q.shape(), " and k ", k.shape(), " do not fit a mask of ", csr.batch,
        " sequences, ", csr.heads, " heads, ", csr.length, " rows and ", csr.keys, " keys");
}

}  // namespace brine
