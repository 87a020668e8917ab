// `brine tokenize`, and token shards wherever a corpus is taken.
#include <nlohmann/json.hpp>

#include "tests/apps/world.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

std::string refused(const std::string& arguments) {
  return refusal_in(world().run(arguments + " --quiet"));
}

// Made once: the text of the world as shards.
const World& with_shards() {
  static const World& w = [&]() -> const World& {
    world().must("tokenize --tokenizer tok --separator none --out shards text.txt");
    return world();
  }();
  return w;
}

}  // namespace

TEST_CASE("tokenize: shards give the same perplexity, window and dump as their text") {
  const World& w = with_shards();
  const std::string eval = "eval --quiet --json --model teacher --data ";
  const Json text = Json::parse(w.must(eval + "text.txt").out);
  const Json shards = Json::parse(w.must(eval + "shards").out);
  CHECK(text["nll"] == shards["nll"]);
  CHECK(text["cut"]["tokens"] == shards["cut"]["tokens"]);
  // A dump of the text is one of the shards: the student finds its corpus.
  w.must(World::distill().replace(World::distill().find("text.txt"), 8, "shards") +
         " --dump dump --valid shards --out from-shards");
  CHECK(contains(w.must("inspect shards --verify").out, "token shards, every checksum good"));
}

TEST_CASE("tokenize: training on shards is training on their text, bit for bit") {
  const World& w = with_shards();
  const std::string rest = " --config model.toml --tokenizer tok --steps 2 --out ";
  w.must("train --train text.txt" + rest + "on-text");
  w.must("train --train shards --valid shards" + rest + "on-shards");
  CHECK(read_all(w.path("on-text/step-00000002/model.safetensors")) ==
        read_all(w.path("on-shards/step-00000002/model.safetensors")));
}

TEST_CASE("tokenize: the eos token after each document by default") {
  const World& w = with_shards();
  w.write("two.jsonl", "{\"text\": \"the king\"}\n{\"text\": \"the city\"}\n");
  w.must("tokenize --tokenizer tok --out two two.jsonl");
  const Json m = Json::parse(read_all(w.path("two/manifest.json")));
  CHECK(m["documents"] == 2);
  CHECK(m["separator"] == 2);  // </s>
  w.must("tokenize --tokenizer tok --separator '<pad>' --out two-pad two.jsonl");
  CHECK(Json::parse(read_all(w.path("two-pad/manifest.json")))["separator"] == 1);
}

TEST_CASE("tokenize: shards of joined lines replace their text in every protocol") {
  const World& w = with_shards();
  w.write("lines.txt", "\n = Title = \n \nthe king went up\n" + sample_text(20));
  w.must("tokenize --tokenizer tok --joining lines --out joined lines.txt text.txt");
  const std::string eval = "eval --quiet --json --model teacher --window 16 --protocol ";
  for (const char* protocol : {"sea", "gptq", "stride"}) {
    INFO(protocol);
    const Json text = Json::parse(w.must(eval + protocol + " --data lines.txt text.txt").out);
    const Json shards = Json::parse(w.must(eval + protocol + " --data joined").out);
    CHECK(text["nll"] == shards["nll"]);
    for (const char* key : {"joining", "bos", "tokens", "windows", "dropped_tokens"})
      CHECK(text["cut"][key] == shards["cut"][key]);
    CHECK(shards["cut"]["files"] == Json::array({"joined"}));
  }
  const std::string sea = "eval --model teacher --window 16 --protocol sea --data ";
  CHECK(contains(refused(sea + "joined text.txt"), "needs a single directory of shards"));
  CHECK(contains(refused(sea + "text.txt joined"), "needs a single directory of shards"));
  CHECK(contains(refused(sea + "tok"), "tok: is a directory without manifest.json"));
  w.must("tokenizer --train text.txt --vocab-size 290 --out tok-joined");
  w.must("tokenize --tokenizer tok-joined --joining lines --out joined-2 text.txt");
  CHECK(contains(refused(sea + "joined-2"), "joined-2: was made with another tokenizer"));
}

TEST_CASE("tokenize: bad input is refused in one line") {
  const World& w = with_shards();
  w.write("bad.jsonl", "{\"text\": 1}\n");
  const std::string start = "tokenize --tokenizer tok --out new-shards ";
  CHECK(contains(refused(start + "bad.jsonl"), "bad.jsonl:1: key \"text\" is not text"));
  CHECK(contains(refused(start + "none.txt"), "none.txt"));
  CHECK(contains(refused(start + "--separator '<x>' text.txt"), "\"<x>\" is not a token"));
  CHECK_FALSE(fs::exists(w.path("new-shards")));
  CHECK(contains(refused("tokenize --tokenizer tok --out shards text.txt"), "exists already"));
  check_says(refused("eval --model teacher --protocol sea --window 16 --data shards"),
             {"shards", "protocol sea", "lines", "documents"});
  CHECK(contains(refused(start + "--joining lines --separator '<pad>' text.txt"),
                 "--joining lines does not use --separator <pad>"));
  CHECK(contains(refused(start + "--joining lines --key text text.txt"), "does not use --key"));
  // Another tokenizer.
  w.must("tokenizer --train text.txt --vocab-size 290 --out tok-other");
  w.must("tokenize --tokenizer tok-other --out shards-2 text.txt");
  const std::string train =
      "train --config model.toml --tokenizer tok --out run-of-bad-shards --train ";
  CHECK(contains(refused(train + "shards-2"), "shards-2: was made with another tokenizer"));
  fs::copy(w.path("shards"), w.path("shards-3"));
  std::string tokens = read_all(w.path("shards-3/tokens-00000.u16"));
  tokens[10] ^= 1;
  w.write("shards-3/tokens-00000.u16", tokens);
  CHECK(contains(refused(train + "shards-3"), "tokens-00000.u16: is damaged"));
  w.write("shards-3/tokens-00000.u16", tokens.substr(0, 100));
  CHECK(contains(refused(train + "shards-3"), "tokens-00000.u16: has 100 bytes"));
  fs::remove(w.path("shards-3/manifest.json"));
  CHECK(contains(refused(train + "shards-3"), "shards-3: is a directory without manifest.json"));
  CHECK_FALSE(fs::exists(w.path("run-of-bad-shards")));
}

}  // namespace brine::tests
