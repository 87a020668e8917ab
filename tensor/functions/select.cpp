// Selection of columns: the checked function over its kernel, and the names of its modes.
#include "tensor/kernels/attention.h"
#include "tensor/mask/csr.h"
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

// The most keys of a group whose rows see w keys each: the number of columns follows from the
// sizes, and no column has more than ceil(w / K) keys or gives more than k.
int64_t max_keys(int64_t members, int64_t k, int64_t K, int64_t w) {
  if (w <= k) return members * w;
  return columns_to_select(members, k, K, w) * std::min(k, (w + K - 1) / K);
}

// The last width from w > k on, at most n, for which max_keys() is the same. From k K on it does
// not change; below, the number of columns n_sel falls with w, and their size grows every K.
int64_t last_alike(int64_t members, int64_t k, int64_t K, int64_t w, int64_t n) {
  if (w < K) return std::min(n, K - 1);  // n_sel = members k columns of one key
  const int64_t size = (w + K - 1) / K;
  if (size < k) n = std::min(n, size * K);
  const int64_t columns = columns_to_select(members, k, K, w);
  if (columns <= members) return n;
  // round_half_even(wanted / w) >= columns if wanted / w > columns - 1/2; at a tie, if columns is
  // even.
  const int64_t twice = 2 * members * k * K, half = 2 * columns - 1;
  const bool tie_below = twice % half == 0 && columns % 2 != 0;
  return std::min(n, twice / half - tie_below);
}

// The sum of max_keys() over the widths 1..n.
int64_t max_keys_of_rows(int64_t members, int64_t k, int64_t K, int64_t n) {
  const int64_t whole = std::min(n, k);
  int64_t sum = members * (whole * (whole + 1) / 2);
  for (int64_t w = whole + 1, last = 0; w <= n; w = last + 1) {
    last = last_alike(members, k, K, w, n);
    sum += (last - w + 1) * max_keys(members, k, K, w);
  }
  return sum;
}

}  // namespace

int64_t max_selected_entries(const Visibility& visible, const SelectConfig& config, int64_t B,
                             int64_t H, int64_t T, int64_t K) {
  const RowWidths widths(visible, T);
  const int64_t k = config.k;
  const bool by_head = config.mode == SelectMode::per_query || config.mode == SelectMode::per_head;
  const bool by_row =
      config.mode == SelectMode::per_query || config.mode == SelectMode::causal_per_batch;
  const int64_t heads = by_head ? 1 : H, times = H / heads;
  int64_t total = 0, known_rows = -1, known_width = -1, of_sequence = 0;
  for (int64_t b = 0; b < B; ++b) {
    const int64_t rows = widths.valid(b);
    if (rows == 0) continue;
    const int64_t width = widths(b, 0);
    if (rows != known_rows || width != known_width) {
      known_rows = rows, known_width = width;
      of_sequence = !by_row          ? max_keys(heads * rows, k, K, width)
                    : visible.causal ? max_keys_of_rows(heads, k, K, visible.first + rows) -
                                           max_keys_of_rows(heads, k, K, visible.first)
                                     : rows * max_keys(heads, k, K, width);
    }
    total += times * of_sequence;
  }
  return total;
}

const char* name_of(SelectMode mode) { return kModeNames[int(mode)]; }

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
  if (x.device().is_cuda()) {
    result.max_entries = max_selected_entries(visible, config, B, H, T, K);
  }
  int64_t nans = !x.device().is_cpu() ? 0 : nan_count.data<int64_t>()[0];
  count_bytes(double(x.numel()) * double(item_size(x.dtype())) + double(x.numel()));
  check(nans == 0, "select_columns: ", nans, " values of the estimate are NaN");
  return result;
}

}  // namespace brine
