// Exact attention to keys that follow from the position of a query alone: windows, first tokens,
// blocks. A method gives the lists of keys; the mask and attention on it are here.
#pragma once

#include <functional>
#include <vector>

#include "nn/attention/attention.h"
#include "nn/attention/key_lists.h"

namespace brine::nn {

class PlacedKeys : public Attention {
 public:
  explicit PlacedKeys(const AttentionShape& shape) : shape_(shape) {}

  AttentionTraits traits() const override { return {.sparse = true, .groups = true}; }
  Tensor forward(const AttentionInput& in) override;

 protected:
  // Appends the keys of query t of head h, which sees the keys below w > 0, ascending, each once.
  using KeysOfQuery =
      std::function<void(int64_t h, int64_t t, int64_t w, std::vector<int32_t>& keys)>;
  // Throws when the method does not accept the options.
  virtual KeysOfQuery keys_of(const RuntimeOptions& options) const = 0;
  virtual HeadLists lists() const { return HeadLists::equal; }

  AttentionShape shape_;
};

}  // namespace brine::nn
