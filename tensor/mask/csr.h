// From an estimate to a sparse mask: the selected columns, and their keys as compressed rows.
//
// Column c of a row that sees w keys owns the keys [b(c), b(c+1)), b = math::column_begin. A column
// without keys is never selected. Nothing here is differentiated.
#pragma once

#include "tensor/base/math.h"
#include "tensor/types.h"

namespace brine {

// The groups that share one budget of columns: the columns of one row and head (per_query), of one
// row over all heads (causal_per_batch), of one head over all rows (per_head), of a sequence
// (per_batch). In the last two a row depends on later positions, so they refuse a causal mask.
enum class SelectMode { per_query, per_head, per_batch, causal_per_batch };

const char* name_of(SelectMode mode);  // "per-query", "causal-per-batch", ...

struct SelectConfig {
  int64_t k = 64;  // keys to keep per query and head
  SelectMode mode = SelectMode::causal_per_batch;
};

// The flat compressed rows of a mask. One row per query; a flattened column is h S + key; entries
// are head-major, then by ascending key.
struct FlatCsr {
  Tensor row_pointers;  // i64 [B, T + 1], continuing through the batch
  Tensor head_offsets;  // i32 [B, T, H + 1], counted from the start of the row
  Tensor columns;       // i32 [entries]; on a device it may be longer than the entries
  int64_t batch = 0, heads = 0;
  int64_t length = 0;  // rows T
  int64_t keys = 0;    // S; equals T except in decoding, where a few rows see all keys

  // Capacity in entries: their number, except on a device. On the meta device: min(k, w) per row
  // and head.
  int64_t entries() const { return columns.numel(); }
};

// Columns of a group of `members` rows and heads when each row sees w > 0 keys.
BRINE_HD int64_t columns_to_select(int64_t members, int64_t k, int64_t K, int64_t w) {
  const int64_t columns = K < w ? K : w, limit = members * columns;
  const int64_t wanted = math::round_half_even(members * k * columns, w);
  return wanted < members ? members : (wanted > limit ? limit : wanted);
}

struct Selection {
  Tensor selected;  // u8 [B, H, T, K]
  // i64, columns chosen per group: [B, H, T] per_query, [B, T] causal_per_batch, [B, H] per_head,
  // [B] per_batch. 0 where a group sees no key.
  Tensor n_sel;
  int64_t max_entries = 0;  // upper bound of the keys of the selected columns (build_csr)
};

// Takes the largest n_sel values of each group of the estimate [B, H, T, K], where n_sel is members
// k K_w / w rounded half to even, within [members, members K_w]; K_w = min(K, w) and a group has
// one member per row and head. Among equal values the later flat index (h T + t) K + c wins. Throws
// when a value of a column that owns a key is NaN; a device is not waited for, so there such a NaN
// appears in the gates and losses that are computed from the same features. Takes
// Visibility::first, as build_csr() does.
Selection select_columns(const Tensor& estimate, const Visibility& visible,
                         const SelectConfig& config);
// The most keys that a selection from [B, H, T, K] gives, from the sizes alone: the memory of a
// mask on a device, whose number of entries is not read back. Rows of causal sequences are not
// visited one by one: the sum has a term for each of the at most about k + 2 sqrt(2 H k K) sizes
// that their groups take.
int64_t max_selected_entries(const Visibility& visible, const SelectConfig& config, int64_t B,
                             int64_t H, int64_t T, int64_t K);

// The keys of the selected columns. A row with w <= k sees every visible key; otherwise a column of
// n > k keys gives the k keys b(c+1) - 1 - floor(i n / k), i = 0..k-1. `keys` = 0 means T. With
// `max_entries` of the selection, the number of entries is not read back from a device.
FlatCsr build_csr(const Tensor& selected, const Visibility& visible, int64_t k, int64_t keys = 0,
                  int64_t max_entries = 0);

// Entries when every row keeps min(k, w) keys of each head: the number that a selection gives up to
// the rounding to whole columns. Masks on the meta device, where nothing is selected, have this
// size.
int64_t budgeted_entries(const Visibility& visible, int64_t k, int64_t B, int64_t H, int64_t T);

// The same mask as u8 [B, H, T, S], for the dense path.
Tensor csr_to_mask(const FlatCsr& csr);

// Throws unless q [B, H, T, d] and k [B, G, S, d] fit the mask and G divides H; `op` starts the
// message.
void check_csr(const char* op, const FlatCsr& csr, const Tensor& q, const Tensor& k);
// Throws unless visible.lengths is undefined or i64 [B] with values in [0, keys].
void check_visibility(const char* op, const Visibility& visible, int64_t batch, int64_t keys);

// The number of keys that a row sees, for kernels of every device. On a device `lengths` is device
// memory.
struct RowWidths {
  RowWidths() = default;
  RowWidths(const Visibility& visible, int64_t rows)
      : RowWidths(visible.lengths.defined() ? visible.lengths.data<int64_t>() : nullptr, rows,
                  visible.causal, visible.first) {}
  RowWidths(const int64_t* lengths, int64_t rows, bool causal, int64_t first = 0)
      : lengths(lengths), rows(rows), first(first), causal(causal) {}

  BRINE_HD int64_t length(int64_t b) const { return lengths ? lengths[b] : first + rows; }
  BRINE_HD int64_t operator()(int64_t b, int64_t t) const {
    const int64_t keys = length(b);
    return first + t >= keys ? 0 : (causal ? first + t + 1 : keys);
  }
  // Rows of sequence b that see a key.
  BRINE_HD int64_t valid(int64_t b) const {
    const int64_t seen = length(b) - first;
    return seen < rows ? seen : rows;
  }
  int64_t valid_rows(int64_t batch) const {
    int64_t n = 0;
    for (int64_t b = 0; b < batch; ++b) n += valid(b);
    return n;
  }

  const int64_t* lengths = nullptr;  // null: every sequence has `rows` after the `first`
  int64_t rows = 0, first = 0;
  bool causal = true;
};

// The entries of one row and head: e = first .. first + count - 1, with the keys key(e - first).
struct RowEntries {
  const int32_t* columns;
  int64_t first, count, base;
  BRINE_HD int64_t key(int64_t e) const { return columns[e] - base; }
};

// The entries of each row of a mask, for kernels of every device.
struct MaskRows {
  explicit MaskRows(const FlatCsr& csr)
      : pointers(csr.row_pointers.data<int64_t>()),
        offsets(csr.head_offsets.data<int32_t>()),
        columns(csr.columns.data<int32_t>()),
        H(csr.heads),
        T(csr.length),
        S(csr.keys) {}

  BRINE_HD RowEntries operator()(int64_t b, int64_t h, int64_t t) const {
    const int32_t* offset = offsets + (b * T + t) * (H + 1) + h;
    const int64_t first = pointers[b * (T + 1) + t] + offset[0];
    return {columns + first, first, offset[1] - offset[0], h * S};
  }
  // Row (b H + h) T + t.
  BRINE_HD RowEntries operator()(int64_t row) const {
    const int64_t bh = row / T;
    return (*this)(bh / H, bh % H, row % T);
  }

  const int64_t* pointers;
  const int32_t *offsets, *columns;
  int64_t H, T, S;
};

}  // namespace brine
