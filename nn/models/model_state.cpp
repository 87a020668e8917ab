// Decoding with a model: the loop over the layers for a prompt and for a single token.
#include "nn/models/model_state.h"

#include "tensor/base/stored.h"

namespace brine::nn {
namespace {

Tensor through_layers(Model& model, ModelState& state, ModelCall& call) {
  call.options = state.options;
  Tensor x = model.embed(call);
  for (int64_t i = 0; i < model.shape().layers; ++i) {
    call.state = &state.layer(i);
    x = model.layer(i, x, call, nullptr);
  }
  return x;
}

}  // namespace

ModelState::ModelState(const Model& model, const StateRequest& request) : options(request.options) {
  const ModelShape& shape = model.shape();
  check(shape.causal, "decoding: the model is an encoder");
  check(model.attention_traits().incremental, "decoding: attention '", model.attention_name(),
        "' cannot be decoded token by token; blocks, exact attention, windows and the preset light",
        " of sea can");
  check(request.capacity <= shape.max_positions, "decoding: a capacity of ", request.capacity,
        " tokens, but the model has ", shape.max_positions, " positions");
  check(!request.cache || can_store(request.dtype, *request.cache), "decoding: a cache in ",
        request.cached(), " for a model in ", request.dtype);
  for (int64_t i = 0; i < shape.layers; ++i) {
    layers_.push_back(model.attention(i).make_state(request));
  }
}

int64_t ModelState::bytes() const {
  int64_t sum = 0;
  for (const auto& layer : layers_) sum += layer->bytes();
  return sum;
}

void ModelState::keep(const std::vector<int64_t>& slots) {
  for (const auto& layer : layers_) layer->keep(slots);
}

std::vector<NamedTensor> ModelState::saved(int64_t slot) const {
  std::vector<NamedTensor> out;
  for (size_t i = 0; i < layers_.size(); ++i) {
    for (NamedTensor& t : layers_[i]->saved(slot)) {
      out.push_back({join("layers.", i, ".", t.name), std::move(t.tensor)});
    }
  }
  return out;
}

void ModelState::restore(int64_t slot, const std::vector<NamedTensor>& tensors,
                         const std::string& source) {
  std::vector<std::vector<NamedTensor>> layer_tensors(layers_.size());
  size_t taken = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const std::string prefix = join("layers.", i, ".");
    for (const NamedTensor& t : tensors) {
      if (t.name.rfind(prefix, 0) != 0) continue;
      layer_tensors[i].push_back({t.name.substr(prefix.size()), t.tensor});
      ++taken;
    }
  }
  check(taken == tensors.size(), source, ": ", tensors.size() - taken,
        " tensors belong to none of the model's ", layers_.size(), " layers");
  auto place = [&](size_t i) { return join(source, ": layer ", i); };
  int64_t first = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int64_t tokens = layers_[i]->check_saved(layer_tensors[i], place(i));
    if (i == 0) first = tokens;
    check(tokens == first, place(i), ": a sequence of ", tokens, " tokens, layer 0 has ", first);
  }
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i]->restore(slot, layer_tensors[i], place(i));
}

Tensor prefill(Model& model, ModelState& state, int64_t slot, const Tensor& ids) {
  NoGrad off;
  check(ids.rank() == 1 && ids.numel() >= 1, "decoding: a prompt must be ids [T], got ",
        ids.shape());
  const int64_t T = ids.dim(0);
  ModelCall call{.ids = ids.view({1, T}), .slot = slot};
  const Tensor x = through_layers(model, state, call);
  const Tensor y = model.finish(x.detach().slice(1, T - 1, 1).contiguous());
  return y.view({1, y.dim(2)});
}

Tensor step(Model& model, ModelState& state, const Tensor& ids) {
  NoGrad off;
  check(ids.shape() == Shape{state.batch()}, "decoding: a step takes one token of each of ",
        state.batch(), " sequences, got ", ids.shape());
  ModelCall call{.ids = ids.view({state.batch(), 1}), .token_places = state.lengths().clone()};
  const Tensor y = model.finish(through_layers(model, state, call));
  return y.view({state.batch(), y.dim(2)});
}

}  // namespace brine::nn
