// Exact attention to keys that follow from the position of a query alone: windows, first tokens,
// blocks. A method gives the lists of keys; the mask, attention on it and decoding from a cache of
// all keys are here.
#pragma once

#include <functional>
#include <vector>

#include "nn/attention/cached.h"
#include "tensor/functions/key_lists.h"

namespace brine::nn {

class PatternKeys : public CachedAttention {
 public:
  explicit PatternKeys(const AttentionShape& shape) : CachedAttention(shape) {}

  Tensor forward(const AttentionInput& in) override;
  Tensor step(const AttentionInput& in, AttentionState& state) const override;

 protected:
  // Appends the keys of query t of head h, which sees the keys below w > 0, ascending, each once.
  using KeysOfQuery =
      std::function<void(int64_t h, int64_t t, int64_t w, std::vector<int32_t>& keys)>;
  // Throws when the method does not accept the options.
  virtual KeysOfQuery keys_of(const RuntimeOptions& options) const = 0;
  virtual HeadLists lists() const { return HeadLists::equal; }

 private:
  KeyListShape list_shape(const AttentionInput& in, int64_t keys) const;
};

}  // namespace brine::nn
