// The last layer of a student at a given length.
#include "apps/bench/parts/trained_layer.h"

#include <nlohmann/json.hpp>

#include "data/io/file_io.h"
#include "nn/io/extend.h"

namespace brine::bench {

std::vector<int32_t> text_tokens(const std::string& model, const std::string& data, int64_t count) {
  const std::vector<int32_t> ids =
      nn::tokenizer_of(nn::resolve_model(model))->encode(data::read_file(data));
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
  kept = keys.to_json().at("k");
  const nn::ModelCall call{.ids = Tensor::from(ids, {1, T})};
  const int64_t last = net.shape().layers - 1;
  nn::Tap tap(net.attention_name());
  {
    NoGrad off;
    Tensor x = net.embed(call);
    for (int64_t i = 0; i < last; ++i) x = net.layer(i, x, call, nullptr);
    net.layer(last, x, call, &tap);
  }
  for (const char* name : {"q", "k", "v"}) {
    const Tensor t = tap.get(name).detach().contiguous();
    leaves.push_back(gradients ? require_grad(t, Tensor::zeros_like(t)) : t);
  }
  selected = tap.get("selected");
  dy = Tensor::full(tap.get("attention_output").shape(), 1, Dtype::f32, default_device());
  method = &net.attention(last);
}

}  // namespace brine::bench
