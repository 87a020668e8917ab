// `brine logits` against the library in this process, and what it refuses.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/corpus/corpus.h"
#include "data/safetensors/safetensors.h"
#include "data/tokenizer/prompt_tokens.h"
#include "distill/evaluation/evaluate_text.h"
#include "nn/io/model_io.h"
#include "nn/models/bert/bert.h"
#include "tests/apps/world.h"
#include "tests/small_models.h"

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

Tensor logits_in(const std::string& path) { return data::Safetensors(path).tensor("logits"); }

std::string logits_error(const std::string& arguments, const std::string& before = "") {
  const Finished f = world().run("logits " + arguments + " --quiet", before);
  INFO(arguments);
  CHECK(f.out.empty());
  return refusal_in(f);
}

// An encoder with a head for classes, or with one for masked tokens, and its tokenizer.
void save_encoder(const std::string& directory, int64_t labels) {
  nn::ModelConfig config = test::small_bert(300, 32, 0.3);
  config.as<nn::BertConfig>().masked_lm = labels == 0;
  config.attention = "flash";
  if (labels > 0) config.family().set_class_head({.labels = labels});
  const std::unique_ptr<nn::Model> model = nn::make_model(config, 5);
  nn::export_model(config, *model, encoder_tokenizer().get(), directory);
}

}  // namespace

TEST_CASE("logits: of a prompt are those of the library") {
  const World& w = world();
  for (const std::string model : {"teacher", "student"}) {
    INFO(model);
    const std::string call =
        "logits --quiet --model " + model + " --prompt '" + kPrompt + "' --out ";
    const nn::LoadedModel m = nn::load_model(w.path(model));
    const Ids ids = data::prompt_tokens(*nn::tokenizer_of(m.directory), kPrompt, {});
    const std::vector<double> want = oracle(*m.model, ids);
    REQUIRE(ids.size() > 3);
    CHECK(w.must(call + "a.safetensors").out.empty());
    const data::Safetensors file(w.path("a.safetensors"));
    CHECK(file.entries().size() == 2);
    const Tensor logits = file.tensor("logits"), tokens = file.tensor("tokens");
    CHECK(logits.shape() == Shape{int64_t(ids.size()), 300});
    CHECK(values(logits) == want);
    CHECK(tokens.shape() == Shape{int64_t(ids.size())});
    REQUIRE(tokens.dtype() == Dtype::i32);
    CHECK(std::equal(ids.begin(), ids.end(), tokens.data<int32_t>()));

    const Json json = Json::parse(w.must(call + "a.safetensors --json").out);
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
  w.must(call + "w.safetensors --max-windows 3");
  const Tensor three = logits_in(w.path("w.safetensors"));
  CHECK(three.shape() == Shape{3, 16, 300});
  CHECK(values(three) == want(*m.model, 3, {}));

  w.must(call + "all.safetensors --k 2 --query-skip 2");
  const data::Safetensors file(w.path("all.safetensors"));
  const Tensor logits = file.tensor("logits"), tokens = file.tensor("tokens");
  CHECK(logits.shape() == Shape{corpus.windows(), 16, 300});
  CHECK(tokens.shape() == Shape{corpus.windows(), 16});
  const std::vector<double> other = want(*m.model, corpus.windows(), {.k = 2, .query_skip = 2});
  CHECK(values(logits) == other);
  const std::vector<double> trained = values(three);
  CHECK(!std::equal(trained.begin(), trained.end(), other.begin()));
  const Ids last = corpus.window(corpus.windows() - 1);
  CHECK(std::equal(last.begin(), last.end(), tokens.data<int32_t>() + (corpus.windows() - 1) * 16));

  // Another attention than the model's: the numbers of the dense base.
  w.must(call + "full.safetensors --max-windows 2 --attention flash");
  distill::use_attention(m, "flash");
  CHECK(values(logits_in(w.path("full.safetensors"))) == want(*m.model, 2, {}));
}

TEST_CASE("logits: an encoder's masked tokens; of a classifier there are none") {
  const World& w = world();
  save_encoder(w.path("masked"), 0);
  save_encoder(w.path("classes"), 3);
  const nn::LoadedModel masked = nn::load_model(w.path("masked"));
  w.must("logits --quiet --model masked --prompt 'the king' --out m.safetensors");
  const data::Safetensors of_masked(w.path("m.safetensors"));
  const Tensor tokens = of_masked.tensor("tokens");
  const Ids ids(tokens.data<int32_t>(), tokens.data<int32_t>() + tokens.numel());
  CHECK(values(of_masked.tensor("logits")) == oracle(*masked.model, ids));

  const size_t before = w.files().size();
  check_says(logits_error("--model classes --prompt water --out no.safetensors"),
             {"classes has no head for tokens; brine predict prints"});
  CHECK(w.files().size() == before);
}

TEST_CASE("logits: refusals are one line, and leave an earlier file as it was") {
  const World& w = world();
  w.write("kept.safetensors", "earlier");
  fs::create_directories(w.path("folder.safetensors"));
  const size_t before = w.files().size();
  const std::string teacher = "--model teacher --prompt the --out ";
  check_says(logits_error(teacher + "a.txt"),
             {"a.txt: logits are a file that ends in .safetensors"});
  check_says(logits_error(teacher + "folder.safetensors"), {"folder.safetensors: is a directory"});
  check_says(logits_error(teacher + "nowhere/a.safetensors"),
             {"nowhere/a.safetensors: no directory nowhere"});
  check_says(logits_error("--model absent --prompt the --out kept.safetensors"),
             {"absent: no such model"});
  check_says(logits_error("--model teacher --out kept.safetensors"),
             {"one of --prompt and --data is needed"});
  check_says(logits_error(teacher + "kept.safetensors --data text.txt"),
             {"one of --prompt and --data"});
  check_says(logits_error(teacher + "kept.safetensors --window 4"),
             {"--sequence-length has no effect"});
  check_says(logits_error(teacher + "kept.safetensors --k 4"), {"--k has no effect", "'flash'"});
  check_says(logits_error(teacher + "kept.safetensors --preset light"),
             {"attention.preset", "sea"});
  check_says(logits_error("--model teacher --data text.txt --window 33 --out kept.safetensors"),
             {"sequence_length 33 is longer than the model's 32 positions"});
  std::string words;
  for (int i = 0; i < 60; ++i) words += " king";
  check_says(logits_error("--model teacher --prompt '" + words + "' --out kept.safetensors"),
             {"the prompt has", "tokens, the model 32 positions"});
  // A file larger than allowed: the write fails in the middle, as on a full disk.
  check_says(
      logits_error("--model teacher --data text.txt --out kept.safetensors", "ulimit -f 64;"),
      {"kept.safetensors", "cannot write"});
  CHECK(w.files().size() == before);
  CHECK(read_all(w.path("kept.safetensors")) == "earlier");
  w.must("logits --quiet " + teacher + "kept.safetensors");
  CHECK(logits_in(w.path("kept.safetensors")).dim(-1) == 300);
}

}  // namespace brine::tests
