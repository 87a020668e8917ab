// A block of an attention method; unless told otherwise H = 12, d = 64, causal.
#pragma once

#include <algorithm>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "apps/bench/bench.h"
#include "nn/attention/attention.h"
#include "nn/optim/parameter_store.h"

namespace brine::bench {

// A T x T method stops when its maps would take more bytes than this.
inline constexpr double kMaxMapBytes = 6e9;
inline constexpr int64_t kHeads = 12, kHeadSize = 64, kKept = 64, kColumns = 64, kWideColumns = 256;

struct Block {
  std::string name;  // "sea paper"
  std::unique_ptr<nn::Attention> attention;
  std::unique_ptr<nn::ParameterStore> store;
};

// Sets the common keys that the method has; `variant` is added to its name. Null when it refuses
// such a model.
Block make_block(const std::string& method, const data::Json& settings,
                 const nn::AttentionShape& shape, const std::string& variant = "");

// Whether the maps of a method fit: by the memory that it took at a shorter length, which grows at
// most with the square of it; before any was measured, three maps of T x T a head.
class MapMemory {
 public:
  MapMemory(const nn::Attention& attention, int64_t heads)
      : maps_(attention.traits().quadratic), heads_(heads) {}
  double bytes_at(int64_t T) const {
    const double ratio = double(T) / double(length_);
    return length_ > 0 ? bytes_ * ratio * ratio : 4.0 * 3 * double(heads_) * double(T) * double(T);
  }
  bool fits(int64_t T) const { return !maps_ || bytes_at(T) <= kMaxMapBytes; }
  void took(int64_t T, int64_t bytes) {
    bytes_ = T == length_ ? std::max(bytes_, double(bytes)) : double(bytes);
    length_ = T;
  }

 private:
  bool maps_;
  int64_t heads_, length_ = 0;
  double bytes_ = 0;
};

struct BlockKind {
  int64_t heads = kHeads, head_size = kHeadSize;
  bool causal = true;
  int64_t kv_heads = 0;  // 0: as many as heads
  int64_t k = 0;         // kept keys; 0: kKept, of blocks their own
  int64_t columns = kColumns;
  bool forward = false;  // no rows with backward
};

// "[1, 12 over 4, 512, 64]": the shape of the queries of T tokens, with another number of key
// heads.
std::string block_shape(BlockKind kind, int64_t T);

// Forward without gradients, or with `train` forward and backward from the gradient dy.
void pass(nn::Attention& attention, const nn::AttentionInput& in, const Tensor& dy, bool train);

// f of every registered method, or of these those that are named in `only`; one that has presets
// with the paper's decoder, as `light`, and as `light` with kWideColumns columns.
// A method that refuses the kind is left out; what f throws is a failure of that block.
void each_block(RowSink& rows, int64_t positions, const std::vector<std::string>& only,
                BlockKind kind, const std::function<void(Block&)>& f);

// Random q, k, v of one sequence as leaves, and a gradient for the result. Queries of neighbouring
// rows are alike, as in trained models: rows of a tile would choose blocks without overlap
// otherwise.
struct Inputs {
  explicit Inputs(int64_t T, int64_t heads = kHeads, int64_t head_size = kHeadSize,
                  bool causal = true, int64_t kv_heads = 0);
  nn::AttentionInput input() const {
    return {.q = leaves[0],
            .k = leaves[1],
            .v = leaves[2],
            .hidden = hidden,
            .visible = {.causal = causal}};
  }

  std::vector<Tensor> leaves;
  Tensor hidden, dy;
  bool causal = true;
};

}  // namespace brine::bench
