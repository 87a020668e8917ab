// Files that were made to take long: quadratic work on them would take minutes.
#include <doctest/doctest.h>

#include <ctime>

#include "data/tasks/tsv.h"
#include "tests/data/bpe_golden.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

namespace brine::test {
namespace {

using namespace brine::data;
using nlohmann::json;

constexpr int kMany = 200'000;

std::string tokenizer_of(const Scratch& dir, const std::function<void(json&)>& change) {
  json root = golden_json("tokenizer.json");
  change(root);
  return dir.write("tokenizer.json", root.dump());
}

// CPU seconds.
double seconds(const std::function<void()>& work) {
  const std::clock_t begin = std::clock();
  work();
  return double(std::clock() - begin) / CLOCKS_PER_SEC;
}

}  // namespace

TEST_CASE("work: many columns, many added tokens, long normal forms") {
  const Scratch dir;
  std::string header = "0";
  for (int i = 1; i < kMany; ++i) header += "\t" + std::to_string(i);
  const std::string table = dir.write("a.tsv", header + "\n");
  CHECK(seconds([&] { CHECK(TsvReader(table).column("17") == 17); }) < 10);
  CHECK_REFUSES(TsvReader(dir.write("b.tsv", header + "\t17\n")), "'17'", "twice");

  json token = golden_json("tokenizer.json")["added_tokens"][0];
  token["special"] = true;
  const std::string many = tokenizer_of(dir, [&](json& root) {
    for (int i = 0; i < kMany / 4; ++i) {
      token["content"] = join("<", i, ">");
      root["added_tokens"].push_back(token);
    }
  });
  CHECK(seconds([&] {
          const auto tokenizer = load_tokenizer(many);
          const int32_t id = tokenizer->id_of("<49999>").value();
          CHECK(tokenizer->encode("<49999>") == std::vector<int32_t>{id});
        }) < 10);

  // Eight stages, each a hundred times as long as the one before.
  const std::string long_form = tokenizer_of(dir, [&](json& root) {
    const json stage = {
        {"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", std::string(100, 'a')}};
    root["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::vector<json>(8, stage)}};
  });
  const auto tokenizer = load_tokenizer(long_form);
  CHECK_REFUSES(tokenizer->encode("banana"), "6 bytes", "normalization");
}

}  // namespace brine::test
