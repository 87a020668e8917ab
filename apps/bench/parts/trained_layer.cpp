// The last layer of a student at a given length.
#include "apps/bench/parts/trained_layer.h"

#include <nlohmann/json.hpp>

#include "data/corpus/corpus.h"
#include "data/io/utf8.h"
#include "distill/runs/training_run.h"
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

std::vector<int32_t> student_tokens(const std::string& model, const std::string& data,
                                    int64_t count) {
  const nn::ModelConfig config = nn::load_config(model);
  check(config.attention == "sea" && config.shape().causal, "bench: trained needs a causal ",
        "student with attention 'sea', ", model, " has '", config.attention, "'");
  return text_tokens(model, data, count);
}

TrainedLayer::TrainedLayer(const std::string& path, const std::vector<int32_t>& ids,
                           bool gradients) {
  const int64_t T = int64_t(ids.size());
  model = nn::load_model(path);
  if (model.config.shape().max_positions < T) model = nn::extend_positions(model, T);
  if (gradients) model.store->add_gradients();
  nn::Model& net = *model.model;
  data::Schema keys;
  model.config.method().describe(keys);
  const data::Json settings = keys.to_json();
  const bool blocks = settings.contains("mask") && settings["mask"] == "blocks";
  kept = settings.at("k");
  nn::ModelCall call{.ids = Tensor::from(ids, {1, T})};
  const int64_t last = net.shape().layers - 1;
  nn::Tap tap(net.attention_name());
  if (blocks) tap.request("kept_keys");
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
  if (blocks) {
    kept_keys = tap.get("kept_keys").data<double>()[0];
    tile_keys = tap.get("kept_keys").data<double>()[1];
  } else {
    selected = tap.get("selected");
  }
  dy = Tensor::full({1, T, net.shape().heads * net.shape().head_size()}, 1, Dtype::f32,
                    default_device());
  method = &net.attention(last);
}

}  // namespace brine::bench
