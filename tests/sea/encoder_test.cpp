// Every attention method inside the encoder, with padding on all sides.
#include "nn/models/bert/bert.h"
#include "nn/models/model_config.h"
#include "nn/optim/parameter_store.h"
#include "tests/gradcheck.h"

namespace brine::test {
namespace {

nn::ModelConfig small(const std::string& attention) {
  nn::ModelConfig c;
  c.model_type = "bert";
  c.as<nn::BertConfig>() = {.vocab_size = 37,
                            .hidden_size = 24,
                            .num_hidden_layers = 2,
                            .num_attention_heads = 3,
                            .intermediate_size = 40,
                            .max_position_embeddings = 20,
                            .hidden_dropout_prob = 0,
                            .initializer_range = 0.2};
  c.attention = attention;
  data::Schema keys;
  c.method().describe(keys);
  if (keys.find("k")) keys.set_text("k", {"3"});
  if (keys.find("columns")) keys.set_text("columns", {"8"});
  return c;
}

Tensor mask_of(const std::vector<std::string>& rows) {
  Tensor mask = Tensor::empty({int64_t(rows.size()), int64_t(rows[0].size())}, Dtype::u8);
  int64_t i = 0;
  for (const std::string& row : rows) {
    for (char c : row) mask.data<uint8_t>()[i++] = c == 'x';
  }
  return mask;
}

// Whether a method takes an encoder; a refusal is its own business.
bool bidirectional(const std::string& name) {
  try {
    nn::make_model(small(name), 1);
  } catch (const Error& e) {
    MESSAGE("refused: " << e.what());
    return false;
  }
  return true;
}

}  // namespace

TEST_CASE("encoder: values at padding affect neither outputs nor gradients, in any method") {
  for (const auto& [name, factory] : nn::attention_methods()) {
    CAPTURE(name);
    if (!bidirectional(name)) continue;
    auto model = nn::make_model(small(name), 1, Dtype::f64);
    nn::ParameterStore store(*model);
    Tensor mask = mask_of({"xxxxxxxxx", "...xxxxxx", "xx.x..xx."});
    auto run = [&](uint64_t seed) {
      nn::ModelCall call{.ids = ids({3, 9}, 5, 37), .attention_mask = mask};
      call.type_ids = ids({3, 9}, 6, 2);
      for (int64_t i = 0; i < 27; ++i) {
        if (!mask.data<uint8_t>()[i]) call.ids.data<int32_t>()[i] = int32_t((seed * 7 + i) % 37);
      }
      store.zero_gradients();
      Tensor y = model->hidden(call);
      backward(y, cotangent(y));
      return std::pair(y.detach(), store.gradients().clone());
    };
    auto [y, g] = run(1);
    auto [y2, g2] = run(2);
    CHECK(largest(y.to_vector()) > 0);
    CHECK(same_bits(y, y2));
    CHECK(same_bits(g, g2));
  }
}

}  // namespace brine::test
