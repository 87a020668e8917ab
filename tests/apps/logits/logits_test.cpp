// `brine logits` against the library in this process, and what it refuses.
#include <algorithm>
#include <cstring>
#include <nlohmann/json.hpp>

#include "data/corpus/corpus.h"
#include "data/safetensors/safetensors.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/tokenizer/prompt_tokens.h"
#include "distill/evaluation/evaluate_text.h"
#include "nn/io/model_io.h"
#include "nn/models/bert/bert.h"
#include "tests/apps/world.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Ids = std::vector<int32_t>;

const std::string kPrompt = "the king said unto his people";

std::vector<double> values(const Tensor& x) { return x.detach().to_vector(); }

// Logits [T, V] of one text by the library.
std::vector<double> oracle(nn::Model& model, const Ids& ids,
                           const nn::RuntimeOptions& options = {}) {
  NoGrad off;
  const Tensor x =
      model.hidden({.ids = Tensor::from(ids, {1, int64_t(ids.size())}), .options = options});
  return values(model.logits(x.detach()));
}

// A .npy file by the description of its format: the dictionary's shape, and the numbers.
struct Numpy {
  std::string shape;
  std::vector<double> values;
  explicit Numpy(const std::string& path) {
    const std::string bytes = read_all(path);
    REQUIRE(bytes.size() > 10);
    CHECK(bytes.substr(0, 8) == std::string("\x93NUMPY\x01\0", 8));
    const size_t head =
        10 + size_t((unsigned char)bytes[8]) + 256 * size_t((unsigned char)bytes[9]);
    CHECK(head % 64 == 0);
    REQUIRE(bytes.size() >= head);
    CHECK(bytes[head - 1] == '\n');
    const std::string text = bytes.substr(10, head - 10);
    const std::string before = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
    REQUIRE(text.starts_with(before));
    shape = text.substr(before.size(), text.find(')') - before.size());
    CHECK(text.substr(before.size() + shape.size(), 4) == "), }");
    std::vector<float> numbers((bytes.size() - head) / sizeof(float));
    CHECK(head + numbers.size() * sizeof(float) == bytes.size());
    std::memcpy(numbers.data(), bytes.data() + head, numbers.size() * sizeof(float));
    values.assign(numbers.begin(), numbers.end());
  }
};

std::string logits_error(const std::string& arguments, const std::string& before = "") {
  const Finished f = world().run("logits " + arguments + " --quiet", before);
  INFO(arguments);
  CHECK(f.out.empty());
  return refusal_in(f);
}

// An encoder with a head for pairs, and its tokenizer; or with a head for masked tokens.
void save_encoder(const std::string& directory, int64_t labels) {
  data::BpeTrainOptions options;
  options.vocab_size = 300;
  options.special = {"[PAD]", "[UNK]", "[CLS]", "[SEP]"};
  data::BpeTrainer trainer(options);
  trainer.add(sample_text(60));
  const std::unique_ptr<data::Tokenizer> tokenizer = trainer.train();
  nn::ModelConfig config;
  config.model_type = "bert";
  config.as<nn::BertConfig>() = {.vocab_size = 300,
                                 .hidden_size = 32,
                                 .num_hidden_layers = 2,
                                 .num_attention_heads = 4,
                                 .intermediate_size = 48,
                                 .max_position_embeddings = 32,
                                 .initializer_range = 0.3,
                                 .masked_lm = labels == 0};
  config.attention = "flash";
  if (labels > 0) config.family().set_class_head({.labels = labels});
  const std::unique_ptr<nn::Model> model = nn::make_model(config, 5);
  nn::export_model(config, *model, tokenizer.get(), directory);
}

}  // namespace

TEST_CASE("logits: of a prompt are those of the library, in both formats") {
  const World& w = world();
  for (const std::string model : {"teacher", "student"}) {
    INFO(model);
    const std::string call =
        "logits --quiet --model " + model + " --prompt '" + kPrompt + "' --out ";
    const nn::LoadedModel m = nn::load_model(w.path(model));
    const Ids ids = data::prompt_tokens(*nn::tokenizer_of(m.directory), kPrompt, {});
    const std::vector<double> want = oracle(*m.model, ids);
    REQUIRE(ids.size() > 3);
    std::string list;
    for (const int32_t id : ids) list += (list.empty() ? "" : ",") + std::to_string(id);
    CHECK(w.must(call + "a.npy").out == list + "\n");
    const Numpy numpy(w.path("a.npy"));
    CHECK(numpy.shape == std::to_string(ids.size()) + ", 300");
    CHECK(numpy.values == want);

    CHECK(w.must(call + "a.safetensors").out.empty());
    const data::Safetensors file(w.path("a.safetensors"));
    CHECK(file.entries().size() == 2);
    const Tensor logits = file.tensor("logits"), tokens = file.tensor("tokens");
    CHECK(logits.shape() == Shape{int64_t(ids.size()), 300});
    CHECK(values(logits) == want);
    CHECK(tokens.shape() == Shape{int64_t(ids.size())});
    REQUIRE(tokens.dtype() == Dtype::i32);
    CHECK(std::equal(ids.begin(), ids.end(), tokens.data<int32_t>()));

    const Json json = Json::parse(w.must(call + "a.npy --json").out);
    CHECK(json["tokens"] == ids);
    CHECK(json["shape"] == std::vector<int64_t>{int64_t(ids.size()), 300});
    CHECK(json["model"] == model);
  }
}

TEST_CASE("logits: of windows of text, in the order of the text; options change them") {
  const World& w = world();
  const std::string call = "logits --quiet --model student --data text.txt --window 16 --out ";
  nn::LoadedModel m = nn::load_model(w.path("student"));
  const std::unique_ptr<data::Tokenizer> tokenizer = nn::tokenizer_of(m.directory);
  const data::TokenCorpus corpus = data::load_corpus({w.path("text.txt")}, *tokenizer, 16);
  REQUIRE(corpus.windows() > 3);
  auto want = [&](nn::Model& model, int64_t windows, const nn::RuntimeOptions& options) {
    std::vector<double> all;
    for (int64_t i = 0; i < windows; ++i) {
      const std::vector<double> one = oracle(model, corpus.window(i), options);
      all.insert(all.end(), one.begin(), one.end());
    }
    return all;
  };
  const std::string lines = w.must(call + "w.npy --max-windows 3").out;
  CHECK(std::count(lines.begin(), lines.end(), '\n') == 3);
  const Numpy three(w.path("w.npy"));
  CHECK(three.shape == "3, 16, 300");
  CHECK(three.values == want(*m.model, 3, {}));

  w.must(call + "all.safetensors --k 2 --query-skip 2");
  const data::Safetensors file(w.path("all.safetensors"));
  const Tensor logits = file.tensor("logits"), tokens = file.tensor("tokens");
  CHECK(logits.shape() == Shape{corpus.windows(), 16, 300});
  CHECK(tokens.shape() == Shape{corpus.windows(), 16});
  const std::vector<double> other = want(*m.model, corpus.windows(), {.k = 2, .query_skip = 2});
  CHECK(values(logits) == other);
  CHECK(!std::equal(three.values.begin(), three.values.end(), other.begin()));
  const Ids last = corpus.window(corpus.windows() - 1);
  CHECK(std::equal(last.begin(), last.end(), tokens.data<int32_t>() + (corpus.windows() - 1) * 16));

  // Another attention than the model's: the numbers of the dense base.
  w.must(call + "full.npy --max-windows 2 --attention flash");
  distill::use_attention(m, "flash");
  CHECK(Numpy(w.path("full.npy")).values == want(*m.model, 2, {}));
}

TEST_CASE("logits: an encoder's masked tokens, a classifier's lines and pairs") {
  const World& w = world();
  save_encoder(w.path("masked"), 0);
  save_encoder(w.path("classes"), 3);
  const nn::LoadedModel masked = nn::load_model(w.path("masked"));
  w.must("logits --quiet --model masked --prompt 'the king' --out m.safetensors");
  const data::Safetensors of_masked(w.path("m.safetensors"));
  const Tensor tokens = of_masked.tensor("tokens");
  const Ids ids(tokens.data<int32_t>(), tokens.data<int32_t>() + tokens.numel());
  CHECK(values(of_masked.tensor("logits")) == oracle(*masked.model, ids));

  w.write("pairs.txt", "the king went up from his place\nthe city\twhere his people said\nwater\n");
  w.must("logits --quiet --model classes --data pairs.txt --out c.safetensors");
  const data::Safetensors file(w.path("c.safetensors"));
  CHECK(file.entries().size() == 3);
  const Tensor logits = file.tensor("logits"), all = file.tensor("tokens");
  const Tensor types = file.tensor("type_ids");
  REQUIRE(logits.shape() == Shape{3, 3});
  REQUIRE(types.shape() == all.shape());
  const nn::LoadedModel m = nn::load_model(w.path("classes"));
  NoGrad off;
  std::vector<double> want;
  int64_t second = 0, padding = 0;
  for (int64_t i = 0; i < 3; ++i) {
    Ids unpadded, segments;
    for (int64_t t = 0; t < all.dim(1); ++t) {
      const int32_t id = all.data<int32_t>()[i * all.dim(1) + t];
      const int32_t type = types.data<int32_t>()[i * all.dim(1) + t];
      padding += id < 0;
      CHECK((id < 0) == (type < 0));
      if (id < 0) continue;
      unpadded.push_back(id);
      segments.push_back(type);
      second += type == 1;
    }
    const Shape shape{1, int64_t(unpadded.size())};
    const Tensor x = m.model->hidden(
        {.ids = Tensor::from(unpadded, shape), .type_ids = Tensor::from(segments, shape)});
    const std::vector<double> one = values(m.model->class_logits(x.detach()));
    want.insert(want.end(), one.begin(), one.end());
  }
  CHECK(second > 3);   // the tokens after the tab
  CHECK(padding > 3);  // of the line with one word
  CHECK(values(logits) == want);

  w.must("logits --quiet --model classes --prompt water --out p.npy");
  const Numpy one(w.path("p.npy"));
  CHECK(one.shape == "3,");
  CHECK(one.values == std::vector<double>(want.end() - 3, want.end()));
  w.must("logits --quiet --model classes --data pairs.txt --max-windows 2 --out two.npy");
  CHECK(Numpy(w.path("two.npy")).shape == "2, 3");

  std::string line;
  for (int i = 0; i < 40; ++i) line += " king";
  w.write("long-line.txt", "the king\n" + line + "\n");
  check_says(logits_error("--model classes --data long-line.txt --out no.npy"),
             {"long-line.txt:2 has", "tokens, the model 32 positions"});
  check_says(logits_error("--model classes --prompt '" + line + "' --out no.npy"),
             {"the prompt has", "tokens, the model 32 positions"});
  check_says(logits_error("--model classes --data pairs.txt --window 8 --out no.npy"),
             {"--sequence-length has no effect on a classifier"});
  w.write("no-lines.txt", "");
  check_says(logits_error("--model classes --data no-lines.txt --out no.npy"), {"no-lines.txt"});
  CHECK_FALSE(fs::exists(w.path("no.npy")));
}

TEST_CASE("logits: refusals are one line, and leave an earlier file as it was") {
  const World& w = world();
  w.write("kept.npy", "earlier");
  fs::create_directories(w.path("folder.npy"));
  const size_t before = w.files().size();
  const std::string teacher = "--model teacher --prompt the --out ";
  check_says(logits_error(teacher + "a.txt"), {"a.txt: ends in neither .npy nor .safetensors"});
  check_says(logits_error(teacher + "folder.npy"), {"folder.npy: is a directory"});
  check_says(logits_error(teacher + "nowhere/a.npy"), {"nowhere/a.npy: no directory nowhere"});
  check_says(logits_error("--model absent --prompt the --out kept.npy"), {"absent: no such model"});
  check_says(logits_error("--model teacher --out kept.npy"),
             {"one of --prompt and --data is needed"});
  check_says(logits_error(teacher + "kept.npy --data text.txt"), {"one of --prompt and --data"});
  check_says(logits_error(teacher + "kept.npy --window 4"), {"--sequence-length has no effect"});
  check_says(logits_error(teacher + "kept.npy --k 4"), {"--k has no effect", "'flash'"});
  check_says(logits_error(teacher + "kept.npy --preset light"), {"attention.preset", "sea"});
  check_says(logits_error("--model teacher --data text.txt --window 33 --out kept.npy"),
             {"sequence_length 33 is longer than the model's 32 positions"});
  std::string words;
  for (int i = 0; i < 60; ++i) words += " king";
  check_says(logits_error("--model teacher --prompt '" + words + "' --out kept.npy"),
             {"the prompt has", "tokens, the model 32 positions"});
  // A file larger than allowed: the write fails in the middle, as on a full disk.
  check_says(logits_error("--model teacher --data text.txt --out kept.npy", "ulimit -f 64;"),
             {"kept.npy", "cannot write"});
  CHECK(w.files().size() == before);
  CHECK(read_all(w.path("kept.npy")) == "earlier");
  w.must("logits --quiet " + teacher + "kept.npy");
  CHECK(Numpy(w.path("kept.npy")).shape.ends_with(", 300"));
}

}  // namespace brine::tests
