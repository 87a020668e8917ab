// Masks whose keys a method lists row by row, from positions alone: windows, blocks, buckets.
#pragma once

#include <functional>
#include <vector>

#include "tensor/mask/csr.h"

namespace brine {

// What the lists of the heads of a row have in common: nothing, their lengths, or all.
enum class HeadLists : uint8_t { separate, of_one_length, equal };

struct KeyListShape {
  int64_t batch = 1, heads = 1;
  int64_t rows = 0, keys = 0;  // T and S
  HeadLists lists = HeadLists::separate;
};

// Appends the keys of row t of sequence b and head h to `keys`, ascending, each once, all below S.
// It is called more than once for a row, by several threads at the same time, and also for the meta
// device, where the mask has as many entries as the lists.
using KeysOfRow = std::function<void(int64_t b, int64_t h, int64_t t, std::vector<int32_t>& keys)>;

FlatCsr key_lists(const KeyListShape& shape, Device device, const KeysOfRow& keys_of);

// The mask of the newest query of every sequence of a cache of S keys: row b is that of token
// lengths[b] - 1, for which keys_of is called with t = lengths[b] - 1.
FlatCsr key_lists_of_step(const KeyListShape& shape, const Tensor& lengths, Device device,
                          const KeysOfRow& keys_of);

}  // namespace brine
