// Decoding with a model: the loop over the layers for a prompt and for a single token.
#include "nn/models/model_state.h"

#include <algorithm>
#include <functional>

#include "autograd/ops.h"
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
  check(!request.coded || model.attention_traits().codes, "decoding: attention '",
        model.attention_name(), "' keeps no cache in 8 bits; blocks, windows and flash do");
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
  auto where = [&](size_t i) { return join(source, ": layer ", i); };
  int64_t first = 0;
  for (size_t i = 0; i < layers_.size(); ++i) {
    const int64_t tokens = layers_[i]->check_saved(layer_tensors[i], where(i));
    if (i == 0) first = tokens;
    check(tokens == first, where(i), ": a sequence of ", tokens, " tokens, layer 0 has ", first);
  }
  for (size_t i = 0; i < layers_.size(); ++i) layers_[i]->restore(slot, layer_tensors[i], where(i));
}

int64_t part_step(const Model& model, const RuntimeOptions& options) {
  const AttentionTraits traits = model.attention_traits();
  // Skipped queries are counted from the first token.
  return traits.query_skip && options.query_skip > 1 ? 0 : traits.part_step;
}

int64_t part_bytes(const ModelShape& s) {
  const int64_t heads = 2 * s.head_size() * (s.heads + s.attention().groups());
  return 4 * (4 * s.hidden_size + 3 * s.inner_size + heads);
}

int64_t default_part(const ModelShape& shape) {
  return std::max<int64_t>((int64_t(1) << 29) / part_bytes(shape), 256);
}

namespace {

// Called with what the layers give for the tokens [first, first + n) of a prompt: [1, n, C].
using OnPart = std::function<void(const Tensor& x, int64_t first, int64_t n)>;

void read_prompt(Model& model, ModelState& state, int64_t slot, const Tensor& ids, int64_t part,
                 const OnPart& on_part) {
  check(ids.rank() == 1 && ids.numel() >= 1, "decoding: a prompt must be ids [T], got ",
        ids.shape());
  check(part >= 0, "decoding: parts of ", part, " tokens");
  const int64_t T = ids.dim(0), begin = state.length(slot);
  const int64_t step_of_parts = part_step(model, state.options);
  if (part == 0) part = default_part(model.shape());
  if (step_of_parts) part = std::max(part / step_of_parts, int64_t(1)) * step_of_parts;
  for (int64_t done = 0; done < T;) {
    const int64_t first = begin + done;
    const bool alone = first > 0 && (step_of_parts == 0 || first % step_of_parts != 0);
    check(!alone || state.batch() == 1, "decoding: a prompt goes on after ", first,
          " tokens beside other sequences");
    int64_t n = alone ? 1 : T - done;
    if (step_of_parts) n = std::min(n, part);
    ModelCall call{.ids = ids.slice(0, done, n).contiguous().view({1, n}), .slot = slot};
    call.more = done + n < T;
    if (first > 0) {
      call.token_positions = Tensor::from(std::vector<int64_t>{first}, {1});
      call.prompt = !alone;
    }
    on_part(through_layers(model, state, call).detach(), done, n);
    done += n;
  }
}

}  // namespace

Tensor prefill(Model& model, ModelState& state, int64_t slot, const Tensor& ids, int64_t part) {
  NoGrad off;
  Tensor last;
  read_prompt(model, state, slot, ids, part, [&](const Tensor& x, int64_t first, int64_t n) {
    if (first + n < ids.dim(0)) return;
    const Tensor y = model.finish(x.slice(1, n - 1, 1).contiguous());
    last = y.view({1, y.dim(2)});
  });
  return last;
}

Tensor hidden_through_cache(Model& model, const Tensor& ids, const CachedReading& reading,
                            const RuntimeOptions& options) {
  NoGrad off;
  const int64_t B = ids.dim(0), T = ids.dim(1);
  Tensor out;
  for (int64_t b = 0; b < B; ++b) {
    ModelState state(
        model, {.capacity = T, .cache = reading.cache, .coded = reading.coded, .options = options});
    const Tensor of_sequence = ids.slice(0, b, 1).contiguous().view({T});
    read_prompt(model, state, 0, of_sequence, reading.part,
                [&](const Tensor& x, int64_t first, int64_t n) {
                  const Tensor y = model.finish(x);
                  if (!out.defined()) out = Tensor::empty({B, T, y.dim(2)}, y.dtype(), y.device());
                  copy_into(out.slice(0, b, 1).slice(1, first, n), y);
                });
  }
  return out;
}

Tensor step(Model& model, ModelState& state, const Tensor& ids) {
  NoGrad off;
  check(ids.shape() == Shape{state.batch()}, "decoding: a step takes one token of each of ",
        state.batch(), " sequences, got ", ids.shape());
  ModelCall call{.ids = ids.view({state.batch(), 1}), .token_positions = state.lengths().clone()};
  const Tensor y = model.finish(through_layers(model, state, call));
  return y.view({state.batch(), y.dim(2)});
}

}  // namespace brine::nn
