// The state of an attention method for the tokens so far while a batch of sequences is decoded: the
// keys and values, running sums, everything that its step() reads.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tensor/mask/coded_cache.h"
#include "tensor/named_tensor.h"

namespace brine::nn {

struct AttentionShape;  // of attention.h
struct StateRequest;

// Sequences have slots 0..batch-1 and lengths of up to `capacity` tokens, which may differ.
class AttentionState : NonCopyable {
 public:
  AttentionState(int64_t batch, int64_t capacity, Device device);
  virtual ~AttentionState() = default;

  int64_t batch() const { return lengths_.dim(0); }
  int64_t capacity() const { return capacity_; }
  const Tensor& lengths() const { return lengths_; }  // i64 [batch]
  int64_t length(int64_t slot) const { return lengths_.data<int64_t>()[slot]; }
  int64_t bytes() const;  // of memory, for the capacity

  // Keeps slots.size() sequences: slot i gets the one of slots[i]; slots[i] >= i, each named once.
  void keep(const std::vector<int64_t>& slots);

  // The complete state of one sequence by name, with its actual tokens only, each tensor [1, ...]:
  // views of this state's memory, or copies of a device's. restore() into any slot of a state made
  // with the same settings gives the same bits; it throws an Error that starts with `source` and
  // names the tensor that is missing or does not fit, and then changes nothing.
  std::vector<NamedTensor> saved(int64_t slot) const;
  void restore(int64_t slot, const std::vector<NamedTensor>& tensors, const std::string& source);
  // The checks of restore() without its effect; returns the tokens of the sequence.
  int64_t check_saved(const std::vector<NamedTensor>& tensors, const std::string& source) const;

  // Prompts of lengths[b] tokens (undefined = `tokens`) went into slots first, first + 1...; these
  // must be empty. Throws when the capacity is exceeded.
  void begin(int64_t first, int64_t batch, int64_t tokens, const Tensor& prompt_lengths);
  // Tokens of a prompt were appended to those of a slot. Throws as begin() does.
  void extend(int64_t slot, int64_t tokens);
  // Every sequence has one token more. Throws, and changes nothing, when one is full.
  void advance();

 protected:
  // How many rows of an axis a number of tokens has.
  using Rows = std::function<int64_t(int64_t tokens)>;
  // A tensor of the state, its first axis the slots; on the state's device, of i64 on the CPU.
  // `token_axis` > 0 grows with the tokens: its first rows are in use, `rows` of them (null: one
  // for each token).
  Tensor& part(const std::string& name, const Shape& shape, Dtype dtype, int token_axis = 0,
               Rows rows = nullptr);

  // Further checks of a method: `tensors` have the names, types and shapes of the parts.
  virtual void check_values(const std::vector<NamedTensor>& /*tensors*/, int64_t /*tokens*/,
                            const std::string& /*source*/) const {}
  static const Tensor& named(const std::vector<NamedTensor>& tensors, const std::string& name,
                             const std::string& source);

 private:
  struct Part {
    std::string name;
    Tensor tensor;
    int token_axis;
    Rows rows;
  };

  Tensor rows_of(const Part& part, int64_t slot, int64_t tokens) const;

  int64_t capacity_;
  Device device_;
  Tensor lengths_;
  std::deque<Part> parts_;  // references into it stay valid
};

// Keys and values of every token. In 8 bits (StateRequest::coded) complete blocks are codes, and
// the rest of a prompt in which they are read is exact.
class KeyValueState : public AttentionState {
 public:
  // `block` and `key_scale` [G, d] are those of codes; without a scale it is that of a sequence's
  // first block (calibrated_key_scale()).
  KeyValueState(const StateRequest& request, const AttentionShape& shape, int64_t block = 32,
                const Tensor& key_scale = {});

  // k and v [B, G, T, d] of prompts, as in AttentionState::begin().
  void fill(int64_t first, const Tensor& k, const Tensor& v, const Tensor& prompt_lengths);
  // k and v [1, G, n, d] of the next tokens of one sequence.
  void extend(int64_t slot, const Tensor& k, const Tensor& v);
  // One token of every sequence, k and v [batch, G, 1, d]; advances.
  void append(const Tensor& k, const Tensor& v);
  // Keys and values of one sequence [1, G, S, d] in a type, S at least its length: the state's own
  // memory where that has the type.
  std::pair<Tensor, Tensor> rows(int64_t slot, Dtype dtype) const;
  // Attention of one query of every sequence q [batch, H, 1, d] -> [batch, 1, H d]: over all keys
  // of the state or those in the blocks of a mask.
  Tensor attend(const Tensor& q, const BlockMask* mask = nullptr) const;

  Tensor &keys, &values;  // [batch, G, capacity, d]; with codes the incomplete last block

 protected:
  struct Codes {
    // As in CodedCache.
    Tensor &high, &low, &first_keys, &steps, &moments, &values, &value_steps, &key_scale;
    int64_t block;
    bool scale_per_sequence;  // calibrated on each prompt
  };
  std::unique_ptr<Codes> codes;  // null: no codes

 private:
  // Of `count` sequences from `first` on; undefined key_scale of CodedCache where there are none.
  CodedCache coded(int64_t first, int64_t count) const;
  // k and v [count, G, n, d] of sequences from `first` on, of tokens from a block's first one on.
  void store(int64_t first, int64_t count, int64_t token, const Tensor& k, const Tensor& v);
};

}  // namespace brine::nn
