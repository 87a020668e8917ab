// The named protocols of `brine eval`: their output, and that they cut the text as documented.
#include "distill/evaluation/evaluate_text.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "data/corpus/corpus.h"
#include "nn/io/model_io.h"
#include "tests/apps/world.h"
#include "tests/small_models.h"

namespace brine::tests {
namespace {

const std::vector<std::string> kSettings = {
    "name",   "split",  "files",          "joining",        "bos",     "window",
    "stride", "tokens", "dropped_tokens", "scored_windows", "windows", "predicted_tokens"};

nlohmann::json scored(const std::string& arguments) {
  const Finished f = world().must("eval --quiet --json --model teacher " + arguments);
  return nlohmann::json::parse(f.out);
}

}  // namespace

TEST_CASE("protocols: each prints all of its settings, in words and as JSON") {
  for (const auto& known : distill::kProtocolNames) {
    const std::string name = known.name;
    INFO(name);
    const std::string arguments = "--data text.txt --window 16 --protocol " + name;
    const nlohmann::json out = scored(arguments);
    for (const std::string& key : kSettings) CHECK_MESSAGE(out["cut"].contains(key), key);
    CHECK(out["cut"]["name"] == name);
    CHECK(out["cut"]["files"] == nlohmann::json::array({"text.txt"}));
    CHECK(out["cut"]["predicted_tokens"] == out["tokens"]);
    const std::string words = world().must("eval --quiet --model teacher " + arguments).out;
    CHECK(contains(words, out["protocol"].get<std::string>()));
    for (const char* key : {"window", "predicted_tokens"})
      CHECK(contains(words, std::to_string(out["cut"][key].get<int64_t>())));
  }
}

TEST_CASE("protocols: sea and gptq differ by the token in front, and drop the rest") {
  const nlohmann::json sea = scored("--data text.txt --window 16 --protocol sea");
  const nlohmann::json gptq = scored("--data text.txt --window 16 --protocol gptq");
  const auto tokenizer = data::load_tokenizer(world().path("teacher"));
  const auto text =
      int64_t(tokenizer->encode(data::read_joined_lines({world().path("text.txt")})).size());
  const auto in_front = int64_t(tokenizer->around().front.size());
  CHECK(sea["cut"]["split"] == "validation");
  CHECK(gptq["cut"]["split"] == "test");
  CHECK(sea["cut"]["tokens"] == text);
  CHECK(gptq["cut"]["tokens"] == text + in_front);
  CHECK(sea["cut"]["dropped_tokens"] == text % 16);
  CHECK(sea["tokens"] == text / 16 * 15);
  CHECK(gptq["tokens"] == (text + in_front) / 16 * 15);
}

TEST_CASE(
    "protocols: a tokenizer with a BOS puts it once in front of gptq and stride, not of sea") {
  const World& w = world();
  std::filesystem::create_directories(w.path("bos"));
  for (const auto& e : std::filesystem::directory_iterator(w.path("tok")))
    std::filesystem::copy(e.path(), w.path("bos"),
                          std::filesystem::copy_options::overwrite_existing);
  nlohmann::json config = nlohmann::json::parse(read_all(w.path("bos/tokenizer_config.json")));
  config["bos_token"] = "</s>";
  w.write("bos/tokenizer_config.json", config.dump());
  nlohmann::json files = nlohmann::json::parse(read_all(w.path("bos/tokenizer.json")));
  test::put_end_in_front(files);
  w.write("bos/tokenizer.json", files.dump());
  const auto tokenizer = data::load_tokenizer(w.path("bos"));
  const int32_t bos = *tokenizer->id_of("</s>");
  auto tokens_of = [&](distill::ProtocolName name) {
    return distill::make_protocol(
        {.name = name, .files = {w.path("text.txt")}, .window = 16, .positions = 32}, *tokenizer);
  };
  const distill::Protocol sea = tokens_of(distill::ProtocolName::sea);
  for (auto name : {distill::ProtocolName::gptq, distill::ProtocolName::stride}) {
    const distill::Protocol p = tokens_of(name);
    CHECK(p.bos == "BOS </s> once in front");
    REQUIRE(p.tokens.size() == sea.tokens.size() + 1);
    CHECK(p.tokens[0] == bos);
    CHECK(std::equal(sea.tokens.begin(), sea.tokens.end(), p.tokens.begin() + 1));
  }
  w.write("begun.txt", "</s>" + read_all(w.path("text.txt")));
  auto warned = [&](distill::ProtocolName name) {
    return distill::make_protocol(
               {.name = name, .files = {w.path("begun.txt")}, .window = 16, .positions = 32},
               *tokenizer)
        .warning;
  };
  CHECK(contains(warned(distill::ProtocolName::gptq), "begins with </s>"));
  CHECK(warned(distill::ProtocolName::sea).empty());
  CHECK(sea.bos == "no BOS");
  CHECK(sea.tokens[0] != bos);
}

TEST_CASE("protocols: the perplexity is that of the tokens and the cut that they name") {
  const World& w = world();
  const nn::LoadedModel m = nn::load_model(w.path("teacher"));
  const auto tokenizer = nn::tokenizer_of(m.directory);
  const std::vector<int32_t> ids = tokenizer->encode(data::read_joined_lines({w.path("text.txt")}));
  const nlohmann::json sea = scored("--data text.txt --window 16 --protocol sea");
  CHECK(sea["nll"].get<double>() ==
        doctest::Approx(
            distill::evaluate(*m.model, distill::WindowSource(ids, 16, 0), {.batch_size = 3}).nll)
            .epsilon(1e-6));
  const nlohmann::json stride = scored("--data text.txt --window 16 --stride 5 --protocol stride");
  CHECK(stride["cut"]["dropped_tokens"] == 0);
  CHECK(stride["tokens"] == stride["cut"]["tokens"].get<int64_t>() - 1);
  const nlohmann::json few =
      scored("--data text.txt --window 16 --stride 5 --protocol stride --max-windows 3");
  CHECK(few["tokens"] == 15 + 5 + 5);
  CHECK(few["cut"]["scored_windows"] == 3);
  CHECK(contains(few["protocol"], "the first 3 of"));
}

TEST_CASE("protocols: what does not go together is refused in one line") {
  const std::pair<const char*, const char*> cases[] = {
      {"--protocol sea", "a window of 2048 tokens does not fit the model's 32 positions"},
      {"--protocol stride --window 33", "33 tokens does not fit the model's 32"},
      {"--protocol gptq --window 16 --stride 8", "--stride is for the protocol stride"},
      {"--stride 8", "--stride is for the protocol stride"},
      {"--protocol stride --window 16 --stride 17", "--stride 17 skips tokens"},
      {"--protocol sea --window 16 --loss-from 2", "does not accept loss_from"},
      {"--protocol stride --window 16 --teacher teacher", "adjacent windows"},
      {"--protocol paper", "paper"}};
  for (const auto& [arguments, said] : cases) {
    INFO(arguments);
    const Finished f =
        world().run(std::string("eval --quiet --model teacher --data text.txt ") + arguments);
    CHECK(f.status == 1);
    CHECK(std::count(f.error.begin(), f.error.end(), '\n') == 1);
    CHECK_MESSAGE(contains(f.error, said), f.error);
  }
}

}  // namespace brine::tests
