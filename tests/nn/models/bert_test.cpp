// The BERT encoder and packing: names, padding anywhere, recomputation, heads; every method in it.
#include "nn/models/bert/bert.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "nn/models/model_config.h"
#include "nn/optim/parameter_store.h"
#include "tests/gradcheck.h"
#include "tests/refusals.h"
#include "tests/small_models.h"

namespace brine::test {
namespace {

nn::ModelConfig with_heads(const std::string& attention = "dense") {
  nn::ModelConfig c = small_bert(37, 20, 0.2);
  auto& bert = c.as<nn::BertConfig>();
  bert.masked_lm = bert.next_sentence = true;
  bert.labels = 3;
  c.attention = attention;
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

}  // namespace

TEST_CASE("bert: parameters bear exactly the names of Hugging Face's checkpoints") {
  auto model = nn::make_model(with_heads(), 1);
  std::vector<std::string> names, wanted;
  for (const auto& t : nn::state_of(*model)) names.push_back(t.name);
  auto both = [&](const std::string& name) {
    wanted.push_back(name + ".weight");
    wanted.push_back(name + ".bias");
  };
  for (const char* table : {"word", "position", "token_type"}) {
    wanted.push_back(join("bert.embeddings.", table, "_embeddings.weight"));
  }
  both("bert.embeddings.LayerNorm");
  for (int i : {0, 1}) {
    for (const char* part : {"attention.self.query", "attention.self.key", "attention.self.value",
                             "attention.output.dense", "attention.output.LayerNorm",
                             "intermediate.dense", "output.dense", "output.LayerNorm"}) {
      both(join("bert.encoder.layer.", i, ".", part));
    }
  }
  for (const char* head : {"bert.pooler.dense", "classifier", "cls.predictions.transform.dense",
                           "cls.predictions.transform.LayerNorm", "cls.seq_relationship"}) {
    both(head);
  }
  wanted.push_back("cls.predictions.bias");
  std::sort(names.begin(), names.end());
  std::sort(wanted.begin(), wanted.end());
  CHECK(names == wanted);
}

TEST_CASE("packing: a mask that is none is refused") {
  auto model = nn::make_model(with_heads(), 1);
  Tensor tokens = ids({2, 4}, 5, 37), mask = mask_of({"xxxx", "xx.."});
  CHECK_THROWS_WITH_AS(model->hidden({.ids = tokens, .attention_mask = mask_of({"xxx", "xx."})}),
                       "model: attention_mask is u8 [2, 3], wanted u8 [2, 4]", Error);
  CHECK_THROWS_WITH_AS(model->hidden({.ids = tokens,
                                      .lengths = Tensor::from(std::vector<int64_t>{4, 2}, {2}),
                                      .attention_mask = mask}),
                       "model: a call has lengths or an attention_mask, not both", Error);
  mask.data<uint8_t>()[2] = 2;
  CHECK_THROWS_WITH_AS(model->hidden({.ids = tokens, .attention_mask = mask}),
                       "model: attention_mask contains 2, wanted 0 or 1", Error);
  CHECK_THROWS_WITH_AS(model->hidden({.ids = tokens, .type_ids = ids({2, 3}, 1, 2)}),
                       "bert: type_ids [2, 3] do not have the shape of ids [2, 4]", Error);
  CHECK_THROWS_WITH_AS(model->hidden({.ids = ids({1, 21}, 5, 37)}),
                       "bert: 21 tokens, but the model has 20 positions", Error);
}

TEST_CASE("bert: a head that the model has not throws") {
  nn::ModelConfig config = with_heads();
  auto& bert = config.as<nn::BertConfig>();
  bert.masked_lm = bert.next_sentence = bert.pooler = false;
  bert.labels = 0;
  auto model = nn::make_model(config, 1);
  NoGrad off;
  Tensor h = model->hidden({.ids = ids({1, 4}, 5, 37)});
  CHECK_THROWS_WITH_AS(model->logits(h), "bert: has no masked-LM head", Error);
  CHECK_THROWS_WITH_AS(model->class_logits(h), "bert: has no classification head", Error);
  bert.labels = 2;
  CHECK_THROWS_WITH_AS(nn::make_model(config, 1), "config: a classification head needs the pooler",
                       Error);
}

TEST_CASE("bert: problem_type comes back; unknown ones and two numbers of labels are refused") {
  nn::ModelConfig config = with_heads();
  config.as<nn::BertConfig>().labels = 3;
  data::Json json = nn::to_hf_config(config);
  CHECK(json["problem_type"] == "single_label_classification");
  for (const char* type :
       {"multi_label_classification", "regression", "single_label_classification"}) {
    json["problem_type"] = type;
    nn::ModelConfig back = nn::from_hf_config(json, "config.json");
    CHECK(nn::to_hf_config(back)["problem_type"] == type);
  }
  json["num_labels"] = 3;
  CHECK(nn::from_hf_config(json, "c.json").as<nn::BertConfig>().labels == 3);
  json["num_labels"] = 4;  // and three names
  CHECK_THROWS_WITH_AS(nn::from_hf_config(json, "c.json"), doctest::Contains("id2label"), Error);
  json.erase("num_labels");
  json["problem_type"] = "ranking";
  CHECK_REFUSES(nn::from_hf_config(json, "config.json"), "config.json: problem_type = \"ranking\"");
  config.as<nn::BertConfig>().labels = 1;
  CHECK(nn::to_hf_config(config)["problem_type"] == "regression");
}

TEST_CASE("recent: an encoder's token sees the k nearest keys") {
  nn::ModelConfig config = with_heads("recent");
  data::Schema keys;
  config.method().describe(keys);
  keys.set_text("k", {"3"});
  config.as<nn::BertConfig>().num_hidden_layers = 1;
  auto model = nn::make_model(config, 1);
  NoGrad off;
  Tensor a = ids({1, 9}, 5, 37);
  Tensor x = model->hidden({.ids = a});
  for (int64_t changed : {0, 4, 8}) {
    Tensor b = a.clone();
    b.data<int32_t>()[changed] = (b.data<int32_t>()[changed] + 5) % 37;
    Tensor y = model->hidden({.ids = b});
    for (int64_t t = 0; t < 9; ++t) {
      int64_t first = std::clamp<int64_t>(t - 1, 0, 6);  // the window [first, first + 3)
      bool sees = changed >= first && changed < first + 3;
      bool same = same_bits(x.slice(1, t, 1).contiguous(), y.slice(1, t, 1).contiguous());
      CHECK(same != sees);
    }
  }
}

}  // namespace brine::test
