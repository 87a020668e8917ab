// Decoding states: slots, lengths, saving and restoring; the cache of keys and values.
#include "nn/attention/attention_state.h"

#include <algorithm>

#include "autograd/ops.h"
#include "autograd/ops_blocks.h"
#include "nn/attention/attention.h"

namespace brine::nn {

AttentionState::AttentionState(int64_t batch, int64_t capacity, Device device)
    : capacity_(capacity),
      device_(device),
      lengths_(Tensor::zeros({std::max<int64_t>(batch, 1)}, Dtype::i64)) {
  check(batch >= 1 && capacity >= 1, "attention state: ", batch, " sequences of ", capacity,
        " tokens, must be at least 1 each");
}

Tensor& AttentionState::part(const std::string& name, const Shape& shape, Dtype dtype,
                             int token_axis, Rows rows) {
  // Tensors that grow are written before they are read; the others start at 0. Ordinals, i64 as
  // lengths, stay on the CPU, which reads them; lists for kernels, i32, do not.
  const Device device = dtype == Dtype::i64 ? Device{} : device_;
  Tensor tensor =
      token_axis ? Tensor::empty(shape, dtype, device) : Tensor::zeros(shape, dtype, device);
  parts_.push_back({name, tensor, token_axis, std::move(rows)});
  return parts_.back().tensor;
}

int64_t AttentionState::bytes() const {
  int64_t sum = 0;
  for (const Part& p : parts_) sum += p.tensor.numel() * int64_t(item_size(p.tensor.dtype()));
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
  for (Part& p : parts_) move(p.tensor);
  move(lengths_);
}

std::vector<NamedTensor> AttentionState::saved(int64_t slot) const {
  std::vector<NamedTensor> out = {{"length", lengths_.slice(0, slot, 1)}};
  for (const Part& p : parts_) {
    out.push_back({p.name, rows_of(p, slot, length(slot)).to(Device{})});
  }
  return out;
}

const Tensor& AttentionState::named(const std::vector<NamedTensor>& tensors,
                                    const std::string& name, const std::string& source) {
  for (const NamedTensor& t : tensors) {
    if (t.name == name) return t.tensor;
  }
  throw Error(join(source, ": no tensor ", name));
}

// The part of a sequence with that many tokens.
Tensor AttentionState::rows_of(const Part& p, int64_t slot, int64_t tokens) const {
  const Tensor sequence = p.tensor.slice(0, slot, 1);
  if (!p.token_axis) return sequence;
  return sequence.slice(p.token_axis, 0, p.rows ? p.rows(tokens) : tokens);
}

int64_t AttentionState::check_saved(const std::vector<NamedTensor>& tensors,
                                    const std::string& source) const {
  const Tensor& saved_length = named(tensors, "length", source);
  check(saved_length.dtype() == Dtype::i64 && saved_length.shape() == Shape{1}, source,
        ": length is ", saved_length.dtype(), " ", saved_length.shape(), ", wanted i64 [1]");
  const int64_t tokens = saved_length.data<int64_t>()[0];
  check(tokens >= 0 && tokens <= capacity_, source, ": a sequence of ", tokens,
        " tokens, there is room for ", capacity_);
  for (const NamedTensor& t : tensors) {
    const bool known = std::ranges::find(parts_, t.name, &Part::name) != parts_.end();
    check(known || t.name == "length", source, ": a tensor ", t.name,
          " that this attention does not have, with this k");
  }
  for (const Part& p : parts_) {
    const Tensor& from = named(tensors, p.name, source);
    const Tensor to = rows_of(p, 0, tokens);
    check(from.dtype() == to.dtype() && from.shape() == to.shape(), source, ": ", p.name, " is ",
          from.dtype(), " ", from.shape(), ", wanted ", to.dtype(), " ", to.shape(),
          " of this attention with this k");
  }
  check_values(tensors, tokens, source);
  return tokens;
}

void AttentionState::restore(int64_t slot, const std::vector<NamedTensor>& tensors,
                             const std::string& source) {
  const int64_t tokens = check_saved(tensors, source);
  for (const Part& p : parts_) {
    copy_into(rows_of(p, slot, tokens), named(tensors, p.name, source));
  }
  lengths_.data<int64_t>()[slot] = tokens;
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

void AttentionState::extend(int64_t slot, int64_t tokens) {
  int64_t& length = lengths_.data<int64_t>()[slot];
  check(length + tokens <= capacity_, "attention state: ", tokens, " tokens after ", length,
        ", there is room for ", capacity_);
  length += tokens;
}

void AttentionState::advance() {
  int64_t* length = lengths_.data<int64_t>();
  for (int64_t b = 0; b < batch(); ++b) {
    check(length[b] < capacity_, "attention state: sequence ", b, " has ", length[b],
          " tokens, there is no room for more");
  }
  for (int64_t b = 0; b < batch(); ++b) ++length[b];
}

KeyValueState::KeyValueState(const StateRequest& r, const AttentionShape& shape, int64_t block,
                             const Tensor& key_scale)
    : AttentionState(r.batch, r.capacity, r.device),
      keys(r.coded ? part("last_keys", {r.batch, shape.groups(), block, shape.head_size}, r.dtype)
                   : part("keys", {r.batch, shape.groups(), r.capacity, shape.head_size},
                          r.cached(), 2)),
      values(
          part(r.coded ? "last_values" : "values", keys.shape(), keys.dtype(), r.coded ? 0 : 2)) {
  check(shape.causal, "attention: an encoder is not decoded token by token");
  if (!r.coded) return;
  const int64_t G = shape.groups(), d = shape.head_size, N = r.capacity / block;
  auto of_blocks = [&](const char* name, const Shape& rest, Dtype dtype) -> Tensor& {
    Shape all{r.batch, G, N};
    for (int64_t n : rest) all.push_back(n);
    return part(name, all, dtype, 2, [block](int64_t tokens) { return tokens / block; });
  };
  const int64_t half = (d + 1) / 2;
  Tensor& scale = part("key_scale", {r.batch, G, d}, r.dtype);
  codes = std::unique_ptr<Codes>(new Codes{of_blocks("key_codes", {block, half}, Dtype::u8),
                                           of_blocks("key_low_codes", {block, half}, Dtype::u8),
                                           part("first_keys", {r.batch, G, block, d}, r.cached()),
                                           of_blocks("key_steps", {block}, r.cached()),
                                           of_blocks("block_moments_0", {2 * d}, r.cached()),
                                           of_blocks("value_codes", {block, d}, Dtype::u8),
                                           of_blocks("value_steps", {block}, r.cached()), scale,
                                           block, !key_scale.defined()});
  for (int64_t b = 0; b < r.batch && key_scale.defined() && !r.device.is_meta(); ++b)
    copy_into(scale.slice(0, b, 1), key_scale.view({1, G, d}));
}

CodedCache KeyValueState::coded(int64_t first, int64_t count) const {
  auto of = [&](const Tensor& t) { return t.slice(0, first, count); };
  return {.keys = {.codes = of(codes->high),
                   .steps = of(codes->steps),
                   .moments = {of(codes->moments)}},
          .low_codes = of(codes->low),
          .first_keys = of(codes->first_keys),
          .key_scale = of(codes->key_scale),
          .values = of(codes->values),
          .value_steps = of(codes->value_steps),
          .last_keys = of(keys),
          .last_values = of(values)};
}

void KeyValueState::store(int64_t first, int64_t count, int64_t token, const Tensor& k,
                          const Tensor& v) {
  const int64_t n = k.dim(2);
  auto put = [&](const Tensor& to, int64_t at, const Tensor& from) {
    copy_into(to.slice(0, first, count).slice(2, at, from.dim(2)), from);
  };
  if (!codes) {
    put(keys, token, k.detach());
    put(values, token, v.detach());
    return;
  }
  if (count > 1) {  // each by its scale
    for (int64_t b = 0; b < count; ++b)
      store(first + b, 1, token, k.slice(0, b, 1).contiguous(), v.slice(0, b, 1).contiguous());
    return;
  }
  const Tensor scale = codes->key_scale.slice(0, first, 1).view({k.dim(1), k.dim(3)});
  if (codes->scale_per_sequence && token == 0 && n >= codes->block)
    copy_into(scale, calibrated_key_scale(k.slice(2, 0, codes->block), {}, codes->block));
  const CodedCache of = code_cache(k, v, scale, codes->block, codes->value_steps.dtype());
  const int64_t block = token / codes->block;
  if (token == 0) copy_into(codes->first_keys.slice(0, first, 1), of.first_keys);
  for (const auto& [to, from] : {std::pair{&codes->high, &of.keys.codes},
                                 {&codes->low, &of.low_codes},
                                 {&codes->steps, &of.keys.steps},
                                 {&codes->moments, &of.keys.moments[0]},
                                 {&codes->values, &of.values},
                                 {&codes->value_steps, &of.value_steps}})
    if (of.values.dim(2) > 0) put(*to, block, *from);
  const int64_t end = std::min(length(first) - token, n), rest = end % codes->block;
  if (rest == 0) return;
  auto last = [&](const Tensor& x) { return x.detach().slice(2, end - rest, rest); };
  copy_into(keys.slice(0, first, 1).slice(2, 0, rest), last(k));
  copy_into(values.slice(0, first, 1).slice(2, 0, rest), last(v));
}

void KeyValueState::fill(int64_t first, const Tensor& k, const Tensor& v,
                         const Tensor& prompt_lengths) {
  const int64_t B = k.dim(0), tokens = k.dim(2);
  check(tokens <= capacity(), "attention state: a prompt of ", tokens,
        " tokens, there is room for ", capacity());
  begin(first, B, tokens, prompt_lengths);
  store(first, B, 0, k, v);
}

void KeyValueState::extend(int64_t slot, const Tensor& k, const Tensor& v) {
  const int64_t first = length(slot);
  AttentionState::extend(slot, k.dim(2));
  store(slot, 1, first, k, v);
}

void KeyValueState::append(const Tensor& k, const Tensor& v) {
  Tensor at = lengths().clone();
  advance();
  for (int64_t b = 0; codes && b < batch(); ++b) at.data<int64_t>()[b] %= codes->block;
  append_row(keys, k, at);
  append_row(values, v, at);
  for (int64_t b = 0; codes && b < batch(); ++b) {
    const int64_t token = length(b) - codes->block;
    if (length(b) % codes->block == 0)
      store(b, 1, token, keys.slice(0, b, 1), values.slice(0, b, 1));
  }
}

std::pair<Tensor, Tensor> KeyValueState::rows(int64_t slot, Dtype dtype) const {
  if (codes) return decode_cache(coded(slot, 1), lengths().slice(0, slot, 1));
  auto row = [&](const Tensor& cache) {
    const Tensor of_slot = cache.slice(0, slot, 1);
    if (cache.dtype() == dtype) return of_slot;
    return of_slot.slice(2, 0, length(slot)).contiguous().to(dtype);
  };
  return {row(keys), row(values)};
}

Tensor KeyValueState::attend(const Tensor& q, const BlockMask* mask) const {
  if (codes) return merge_heads(coded_attention_step(q, coded(0, batch()), mask, lengths()));
  if (mask) return merge_heads(block_attention_step(q, keys, values, *mask, lengths()));
  const Tensor first = Tensor::zeros(lengths().shape(), Dtype::i64);
  return merge_heads(cached_attention(q, keys, values, first, lengths()));
}

}  // namespace brine::nn
