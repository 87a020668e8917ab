// The last layer of a student at a given length.
#include "apps/bench/parts/trained_layer.h"

#include "apps/terminal/terminal.h"
#include "data/corpus/corpus.h"
#include "data/io/utf8.h"
#include "distill/evaluation/evaluate.h"
#include "nn/io/extend.h"

namespace brine::bench {
namespace {

struct Shown : nn::AttentionObserver {
  nn::AttentionInput input;
  void observe(const nn::AttentionInput& in, const Tensor&) override { input = in; }
};

}  // namespace

std::vector<int32_t> text_tokens(const std::string& model, const std::string& data, int64_t count) {
  const std::unique_ptr<data::Tokenizer> tokenizer = nn::tokenizer_of(nn::resolve_model(model));
  distill::compare_vocabularies(nn::load_config(model), *tokenizer, {});
  const std::vector<int32_t> ids = tokenizer->encode(data::read_text(data));
  check(!ids.empty(), "bench: ", data, " has no tokens");
  std::vector<int32_t> out(static_cast<size_t>(count));
  for (size_t i = 0; i < out.size(); ++i) out[i] = ids[i % ids.size()];
  return out;
}

nn::LoadedModel load_for(const std::string& path, int64_t positions) {
  nn::LoadedModel model = nn::load_model(path);
  if (model.config.shape().max_positions >= positions) return model;
  return nn::extend_positions(model, positions);
}

TrainedLayer::TrainedLayer(const std::string& path, const std::vector<int32_t>& ids,
                           distill::OtherAttention attention, bool gradients) {
  const int64_t T = int64_t(ids.size());
  model = load_for(path, T);
  if (gradients) model.store->add_gradients();
  distill::use_attention(model, attention);
  distill::calibrate_on(model, Tensor::from(ids, {1, T}), log_messages());
  nn::Model& net = *model.model;
  const nn::AttentionTraits traits = net.attention_traits();
  check(net.shape().causal && traits.sparse, "bench: trained needs a causal student with a mask, ",
        path, " has attention '", model.config.attention, "'; give --attention blocks");
  nn::ModelCall call{.ids = Tensor::from(ids, {1, T})};
  const int64_t last = net.shape().layers - 1;
  nn::Tap tap(net.attention_name());
  distill::KeysRead read;
  read.prepare(tap);
  Shown seen;
  {
    NoGrad off;
    Tensor x = net.embed(call);
    for (int64_t i = 0; i < last; ++i) x = net.layer(i, x, call, nullptr);
    call.attention_observer = &seen;
    net.layer(last, x, call, &tap);
  }
  for (const Tensor& of_layer : {seen.input.q, seen.input.k, seen.input.v}) {
    const Tensor t = of_layer.detach().contiguous();
    leaves.push_back(gradients ? require_grad(t, Tensor::zeros_like(t)) : t);
  }
  contents = {seen.input.q_content, seen.input.k_content};
  read.observe(last, tap, seen.input.hidden);
  keys_read = read.mean();
  dy = Tensor::full({1, T, net.shape().heads * net.shape().head_size()}, 1, Dtype::f32,
                    default_device());
  method = &net.attention(last);
}

}  // namespace brine::bench
