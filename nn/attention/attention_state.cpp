// Decoding states: slots and lengths; the cache of keys and values.
#include "nn/attention/attention_state.h"

#include <algorithm>

#include "autograd/ops.h"
#include "nn/attention/attention.h"
#include "tensor/types.h"

namespace brine::nn {

AttentionState::AttentionState(int64_t batch, int64_t capacity, Device device)
    : capacity_(capacity),
      device_(device),
      lengths_(Tensor::zeros({std::max<int64_t>(batch, 1)}, Dtype::i64)) {
  check(batch >= 1 && capacity >= 1, "attention state: ", batch, " sequences of ", capacity,
        " tokens, must be at least 1 each");
}

Tensor& AttentionState::part(const Shape& shape, Dtype dtype, bool grows) {
  // Ordinals, i64 as lengths, stay on the CPU, which reads them; lists for kernels, i32, do not.
  const Device device = dtype == Dtype::i64 ? Device{} : device_;
  parts_.push_back(grows ? Tensor::empty(shape, dtype, device)
                         : Tensor::zeros(shape, dtype, device));
  return parts_.back();
}

int64_t AttentionState::bytes() const {
  int64_t sum = 0;
  for (const Tensor& p : parts_) sum += p.numel() * int64_t(item_size(p.dtype()));
  return sum;
}

void AttentionState::keep(const std::vector<int64_t>& slots) {
  const int64_t left = int64_t(slots.size());
  check(left >= 1 && left <= batch(), "attention state: ", left, " of ", batch(),
        " sequences cannot be kept");
  std::vector<bool> named(size_t(batch()), false);
  for (int64_t i = 0; i < left; ++i) {
    const int64_t from = slots[size_t(i)];
    check(from >= i && from < batch() && !named[size_t(from)], "attention state: slot ", i,
          " cannot take the sequence of slot ", from);
    named[size_t(from)] = true;
  }
  auto move = [&](Tensor& t) {
    for (int64_t i = 0; i < left; ++i) {
      if (slots[size_t(i)] == i) continue;
      copy_into(t.slice(0, i, 1), t.slice(0, slots[size_t(i)], 1));
    }
    t = t.slice(0, 0, left);
  };
  for (Tensor& p : parts_) move(p);
  move(lengths_);
}

void AttentionState::begin(int64_t first, int64_t batch, int64_t tokens,
                           const Tensor& prompt_lengths) {
  check(first >= 0 && first + batch <= this->batch(), "attention state: slots ", first, " to ",
        first + batch - 1, " of ", this->batch());
  for (bool dry : {true, false}) {
    for (int64_t b = 0; b < batch; ++b) {
      const int64_t prompt_length =
          prompt_lengths.defined() ? prompt_lengths.data<int64_t>()[b] : tokens;
      int64_t& length = lengths_.data<int64_t>()[first + b];
      check(!dry || length == 0, "attention state: slot ", first + b, " has ", length,
            " tokens already");
      check(prompt_length >= 1 && prompt_length <= capacity_, "attention state: a prompt of ",
            prompt_length, " tokens, there is room for 1 to ", capacity_);
      if (!dry) length = prompt_length;
    }
  }
}

void AttentionState::advance() {
  int64_t* length = lengths_.data<int64_t>();
  for (int64_t b = 0; b < batch(); ++b) {
    check(length[b] < capacity_, "attention state: sequence ", b, " has ", length[b],
          " tokens, there is no room for more");
  }
  for (int64_t b = 0; b < batch(); ++b) ++length[b];
}

KeyValueState::KeyValueState(const StateRequest& r, const AttentionShape& shape)
    : AttentionState(r.batch, r.capacity, r.device),
      keys(part({r.batch, shape.groups(), r.capacity, shape.head_size}, r.cached(), true)),
      values(part(keys.shape(), r.cached(), true)) {
  check(shape.causal, "attention: an encoder is not decoded token by token");
}

void KeyValueState::fill(int64_t first, const Tensor& k, const Tensor& v,
                         const Tensor& prompt_lengths) {
  const int64_t B = k.dim(0), tokens = k.dim(2);
  check(tokens <= capacity(), "attention state: a prompt of ", tokens,
        " tokens, there is room for ", capacity());
  begin(first, B, tokens, prompt_lengths);
  copy_into(keys.slice(0, first, B).slice(2, 0, tokens), k.detach());
  copy_into(values.slice(0, first, B).slice(2, 0, tokens), v.detach());
}

void KeyValueState::append(const Tensor& k, const Tensor& v) {
  const Tensor at = lengths().clone();
  advance();
  append_row(keys, k, at);
  append_row(values, v, at);
}

}  // namespace brine::nn
