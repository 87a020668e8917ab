// Selection of columns: the checked function over its kernel, and the names of its modes.
#include "tensor/csr.h"
#include "tensor/kernels/attention.h"
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

// The most keys that the selected columns of all groups can have: the number that every group
// selects follows from its sizes, and no column has more than ceil(w / K) keys or gives more than
// k.
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

}  // namespace

const char* name_of(SelectMode mode) { return kModeNames[int(mode)]; }

SelectMode parse_select_mode(const std::string& name) {
  for (int i = 0; i < 4; ++i) {
    if (name == kModeNames[i]) return SelectMode(i);
  }
  throw Error(join("select_columns: unknown mode '", name,
                   "', wanted per-query, per-head, per-batch or causal-per-batch"));
}

Selection select_columns(const Tensor& estimate, const Visibility& visible,
                         const SelectConfig& config) {
  check(estimate.rank() == 4, "select_columns: the estimate must be [B, H, T, K], got ",
        estimate.shape());
  check(config.k > 0, "select_columns: k must be positive, got ", config.k);
  check(!visible.causal ||
            (config.mode != SelectMode::per_head && config.mode != SelectMode::per_batch),
        "select_columns: mode ", name_of(config.mode),
        " depends on later positions, so a causal mask is not allowed");
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

}  // namespace brine
