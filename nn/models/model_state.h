// Decoding with a causal model: prompts one after another, then token by token.
//
//   ModelState state(model, {.batch = 2, .capacity = 300});
//   Tensor a = prefill(model, state, 0, ids_a), b = prefill(model, state, 1, ids_b);
//   for (...) Tensor logits = model.logits(step(model, state, next_ids));
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "nn/models/model.h"

namespace brine::nn {

// The state of all layers for a batch of sequences, whose lengths may differ.
class ModelState {
 public:
  // Throws when the attention method cannot be decoded, or `capacity` is beyond the positions.
  // options.k may be changed from call to call, to at most the value given here.
  ModelState(const Model& model, const StateRequest& request);

  int64_t batch() const { return layers_[0]->batch(); }
  int64_t capacity() const { return layers_[0]->capacity(); }
  int64_t length(int64_t slot) const { return layers_[0]->length(slot); }
  const Tensor& lengths() const { return layers_[0]->lengths(); }  // i64 [batch]
  int64_t bytes() const;
  AttentionState& layer(int64_t i) { return *layers_.at(size_t(i)); }

  // As in AttentionState, for all layers: names start with "layers.0."...
  void keep(const std::vector<int64_t>& slots);
  std::vector<NamedTensor> saved(int64_t slot) const;
  void restore(int64_t slot, const std::vector<NamedTensor>& tensors, const std::string& source);

  RuntimeOptions options;

 private:
  std::vector<std::unique_ptr<AttentionState>> layers_;
};

// Parts of a prompt begin at multiples of it; 0: prompts are read whole.
int64_t part_step(const Model& model, const RuntimeOptions& options);
// About what a layer computes for a token of a prompt, in bytes.
int64_t part_bytes(const ModelShape& shape);
// Tokens of a prompt that are read at once where the user does not say: about half a GiB of them.
int64_t default_part(const ModelShape& shape);
// Adds the prompt ids i32 [T] to a slot, in linear time if the method is linear: in parts of about
// `part` tokens (0: default_part()), or in one pass where the method reads prompts whole. A slot
// with tokens, whose state must be of one sequence, gets single tokens up to the next multiple of
// part_step(), or all tokens singly if that is 0. With a cache in the model's type the bits do not
// depend on the parts. -> [1, E], the input of the head after its last token.
Tensor prefill(Model& model, ModelState& state, int64_t slot, const Tensor& ids, int64_t part = 0);
// How sequences are read through a decoding state, as prompts are: in parts, of which earlier ones
// are in a cache of this type.
struct CachedReading {
  std::optional<Dtype> cache = {};  // as in StateRequest
  bool coded = false;
  int64_t part = 512;
};
// What Model::hidden() gives for ids [B, T], read that way.
Tensor hidden_through_cache(Model& model, const Tensor& ids, const CachedReading& reading,
                            const RuntimeOptions& options);
// Adds one token to every sequence, ids i32 [batch] -> [batch, E].
Tensor step(Model& model, ModelState& state, const Tensor& ids);

}  // namespace brine::nn
