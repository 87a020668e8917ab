// A tiny encoder, a tokenizer of a few words and a task that can be learned from them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "data/tasks/task_tokens.h"
#include "data/tokenizer/bpe/bpe.h"
#include "distill/evaluation/tasks/evaluate_task.h"
#include "distill/trainer.h"
#include "nn/io/model_io.h"
#include "nn/models/bert/bert.h"
#include "tests/gradcheck.h"
#include "tests/scratch.h"
#include "tests/small_models.h"

namespace brine::test {

using namespace brine::distill;

// A byte-level tokenizer with [CLS] = 2 and [SEP] = 3, which merges nothing: a token a byte.
inline std::unique_ptr<data::Tokenizer> byte_tokenizer() {
  data::BpeTrainOptions options;
  options.special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"};
  options.vocab_size = 260;
  return data::BpeTrainer(options).train();
}

// A Llama with groups of heads whose size is not hidden / heads.
inline nn::ModelConfig small_llama(int64_t layers, int64_t positions) {
  return nn::make_config("llama", {{"vocab_size", 260},
                                   {"hidden_size", 24},
                                   {"num_hidden_layers", layers},
                                   {"num_attention_heads", 4},
                                   {"num_key_value_heads", 2},
                                   {"head_dim", 8},
                                   {"intermediate_size", 40},
                                   {"max_position_embeddings", positions},
                                   {"initializer_range", 0.3}});
}

// Writes a new model of full attention, and a tokenizer of bytes, into a directory.
inline void save_teacher(nn::ModelConfig config, const std::string& directory) {
  config.attention = "flash";
  const std::unique_ptr<nn::Model> model = nn::make_model(config, 1);
  nn::ParameterStore store(*model);
  nn::export_model(config, *model, byte_tokenizer().get(), directory);
}

inline void write_sentences(const std::string& path) {
  std::string words;
  for (int i = 0; i < 60; ++i) words += "the stone of the king " + std::to_string(i * i) + ". ";
  data::write_file_atomic(path, words);
}

// A pair task: the class is whether the second text repeats the first one's first letter; of a
// regression the score is the number of a's. Lengths differ widely.
inline data::TaskExamples letters(int64_t n, bool regression) {
  data::TaskExamples out;
  if (!regression) out.labels = {"no", "yes"};
  uint64_t state = 7;
  auto draw = [&](uint64_t below) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (state >> 33) % below;
  };
  for (int64_t i = 0; i < n; ++i) {
    data::TaskExample e{.first = std::string(1, char('a' + draw(2)))};
    e.second = std::string(1, char('a' + draw(2)));
    e.target =
        regression ? double(e.first == "a") + double(e.second == "a") : double(e.first == e.second);
    for (uint64_t k = draw(8); k > 0; --k) e.first += '.';
    out.rows.push_back(e);
  }
  return out;
}

inline data::Task letter_task(bool regression) {
  return {.name = "letters",
          .about = {},
          .first = "a",
          .second = "b",
          .labels = regression ? std::vector<std::string>{} : std::vector<std::string>{"no", "yes"},
          .metrics = {regression ? data::Metric::pearson : data::Metric::accuracy},
          .splits = {}};
}

inline std::shared_ptr<const data::TaskTokens> letter_tokens(int64_t n, bool regression = false) {
  return std::make_shared<data::TaskTokens>(
      data::tokenize_task(letter_task(regression), letters(n, regression), *byte_tokenizer(), 16));
}

inline nn::ModelConfig encoder_config(const std::string& attention, int64_t labels,
                                      double dropout = 0) {
  nn::ModelConfig c = small_bert(260, 16, 0.15);
  c.as<nn::BertConfig>().hidden_dropout_prob = dropout;
  c.as<nn::BertConfig>().labels = labels;
  c.attention = attention;
  data::Schema keys;
  c.method().describe(keys);
  if (attention == "sea") {
    keys.set_text("k", {"4"});
    keys.set_text("columns", {"8"});
    keys.set_text("decoder", {"paper"});
  }
  return c;
}

struct Encoder {
  Encoder(const std::string& attention, int64_t labels, double dropout = 0, uint64_t seed = 1)
      : config(encoder_config(attention, labels, dropout)), model(nn::make_model(config, seed)) {
    store = std::make_unique<nn::ParameterStore>(*model);
  }
  nn::ModelConfig config;
  std::shared_ptr<nn::Model> model;
  std::unique_ptr<nn::ParameterStore> store;
};

}  // namespace brine::test
