// The state of an attention method for the tokens so far while a batch of sequences is decoded: the
// keys and values, running sums, everything that its step() reads.
#pragma once

#include <deque>
#include <vector>

#include "tensor/tensor.h"

namespace brine::nn {

struct AttentionShape;  // of attention.h
struct StateRequest;

// Sequences have slots 0..batch-1 and lengths of up to `capacity` tokens, which may differ.
class AttentionState {
 public:
  AttentionState(int64_t batch, int64_t capacity, Device device);
  virtual ~AttentionState() = default;
  AttentionState(const AttentionState&) = delete;
  AttentionState& operator=(const AttentionState&) = delete;

  int64_t batch() const { return lengths_.dim(0); }
  int64_t capacity() const { return capacity_; }
  const Tensor& lengths() const { return lengths_; }  // i64 [batch]
  int64_t length(int64_t slot) const { return lengths_.data<int64_t>()[slot]; }
  int64_t bytes() const;  // of memory, for the capacity

  // Keeps slots.size() sequences: slot i gets the one of slots[i]; slots[i] >= i, each named once.
  void keep(const std::vector<int64_t>& slots);

  // Prompts of lengths[b] tokens (undefined = `tokens`) went into slots first, first + 1...; these
  // must be empty. Throws when the capacity is exceeded.
  void begin(int64_t first, int64_t batch, int64_t tokens, const Tensor& prompt_lengths);
  // Every sequence has one token more. Throws, and changes nothing, when one is full.
  void advance();

 protected:
  // A tensor of the state, its first axis the slots; on the state's device, of i64 on the CPU. One
  // that grows is written before it is read, the others start at 0.
  Tensor& part(const Shape& shape, Dtype dtype, bool grows = false);

 private:
  int64_t capacity_;
  Device device_;
  Tensor lengths_;
  std::deque<Tensor> parts_;  // references into it stay valid
};

// Keys and values of every token.
class KeyValueState : public AttentionState {
 public:
  KeyValueState(const StateRequest& request, const AttentionShape& shape);

  // k and v [B, G, T, d] of prompts, as in AttentionState::begin().
  void fill(int64_t first, const Tensor& k, const Tensor& v, const Tensor& prompt_lengths);
  // One token of every sequence, k and v [batch, G, 1, d]; advances.
  void append(const Tensor& k, const Tensor& v);

  Tensor &keys, &values;  // [batch, G, capacity, d]
};

}  // namespace brine::nn
