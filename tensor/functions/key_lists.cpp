// Compressed rows from lists of keys: one pass counts them, a second one writes them.
#include "tensor/functions/key_lists.h"

#include <algorithm>

#include "tensor/base/parallel.h"

namespace brine {
namespace {

constexpr int64_t kRows = 64;  // of a piece of a loop

// Calls f(row, h, keys) for the heads [0, heads) of every row b T + t.
template <class F>
void each_list(const KeyListShape& s, int64_t heads, const KeysOfRow& keys_of, F f) {
  parallel_for(s.batch * s.rows, kRows, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> keys;
    for (int64_t row = begin; row < end; ++row) {
      for (int64_t h = 0; h < heads; ++h) {
        keys.clear();
        keys_of(row / s.rows, h, row % s.rows, keys);
        f(row, h, keys);
      }
    }
  });
}

// Where the heads of every row begin, [B, T, H + 1], counted from the start of the row.
Tensor head_offsets(const KeyListShape& s, const KeysOfRow& keys_of) {
  const int64_t H = s.heads, counted = s.lists == HeadLists::separate ? H : std::min<int64_t>(H, 1);
  Tensor offsets = Tensor::zeros({s.batch, s.rows, H + 1}, Dtype::i32);
  int32_t* all = offsets.data<int32_t>();
  each_list(s, counted, keys_of, [&](int64_t row, int64_t h, const std::vector<int32_t>& keys) {
    int32_t* row_offsets = all + row * (H + 1);
    for (int64_t g = h; g < (counted == H ? h + 1 : H); ++g)
      row_offsets[g + 1] = row_offsets[g] + int32_t(keys.size());
  });
  return offsets;
}

// [B, T + 1]: where every row begins.
Tensor row_pointers(const KeyListShape& s, const Tensor& offsets) {
  Tensor pointers = Tensor::empty({s.batch, s.rows + 1}, Dtype::i64);
  int64_t entries = 0, *pointer = pointers.data<int64_t>();
  for (int64_t b = 0; b < s.batch; ++b) {
    *pointer++ = entries;
    for (int64_t t = 0; t < s.rows; ++t) {
      entries += offsets.data<int32_t>()[(b * s.rows + t) * (s.heads + 1) + s.heads];
      *pointer++ = entries;
    }
  }
  return pointers;
}

}  // namespace

FlatCsr key_lists(const KeyListShape& s, Device device, const KeysOfRow& keys_of) {
  check(s.heads * s.keys < int64_t(1) << 31, "attention: ", s.heads, " heads x ", s.keys,
        " keys do not fit 32 bits");
  const Tensor offsets = head_offsets(s, keys_of), pointers = row_pointers(s, offsets);
  const int64_t H = s.heads, S = s.keys;
  const int64_t entries = s.batch ? pointers.data<int64_t>()[pointers.numel() - 1] : 0;
  const bool equal = s.lists == HeadLists::equal;
  Tensor columns = Tensor::filled({entries}, Dtype::i32, device, [&](const Tensor& x) {
    int32_t* column = x.data<int32_t>();
    auto write = [&](int64_t row, int64_t h, const std::vector<int32_t>& keys) {
      const int64_t first = pointers.data<int64_t>()[row / s.rows * (s.rows + 1) + row % s.rows] +
                            offsets.data<int32_t>()[row * (H + 1) + h];
      for (size_t i = 0; i < keys.size(); ++i)
        column[first + int64_t(i)] = int32_t(h * S) + keys[i];
    };
    each_list(s, equal ? 1 : H, keys_of,
              [&](int64_t row, int64_t h, const std::vector<int32_t>& keys) {
                for (int64_t g = h; g < (equal ? H : h + 1); ++g) write(row, g, keys);
              });
  });
  return {.row_pointers = pointers.to(device),
          .head_offsets = offsets.to(device),
          .columns = columns,
          .batch = s.batch,
          .heads = H,
          .length = s.rows,
          .keys = S};
}

FlatCsr key_lists_of_step(const KeyListShape& shape, const Tensor& lengths, Device device,
                          const KeysOfRow& keys_of) {
  KeyListShape one = shape;
  one.rows = 1;
  return key_lists(one, device, [&](int64_t b, int64_t h, int64_t, std::vector<int32_t>& keys) {
    keys_of(b, h, lengths.data<int64_t>()[b] - 1, keys);
  });
}

}  // namespace brine
