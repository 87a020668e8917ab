// Tokenizers of the structures of Llama 2 and 3, Mistral, Qwen 2 and SmolLM2 against golden ids and
// texts.
#include <doctest/doctest.h>

#include <filesystem>
#include <functional>
#include <map>
#include <random>

#include "data/codec/checksums.h"
#include "data/tokenizer/bpe/bpe.h"
#include "data/unicode/unicode.h"
#include "tests/data/bpe_golden.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;
using nlohmann::json;

namespace {

const json& golden() {
  static const json value = golden_json("families.json");
  return value;
}

// A tokenizer.json with the changes of a family.
json changed_file(const json& family) {
  json root = golden_json(family["file"].get<std::string>());
  if (family.contains("change")) root.update(family["change"]);
  json& vocab = root["model"]["vocab"];
  for (const json& token : family.value("without", json::array()))
    vocab.erase(token.get<std::string>());
  json merges = json::array();
  for (const json& merge : root["model"]["merges"]) {
    const std::string left = merge[0], right = merge[1];
    const bool known = vocab.contains(left) && vocab.contains(right);
    if (known && vocab.contains(left + right)) merges.push_back(merge);
  }
  const size_t max_merges = family.value("merges", vocab.size());
  while (merges.size() > max_merges) merges.erase(merges.size() - 1);
  root["model"]["merges"] = merges;
  if (family.contains("model")) root["model"].update(family["model"]);
  return root;
}

std::unique_ptr<Tokenizer> load(const json& root) {
  Scratch scratch;
  const std::string path = scratch / "tokenizer.json";
  write_text(path, root.dump());
  return load_tokenizer(path);
}

json family(const std::string& name) {
  for (const json& set : golden()["sets"])
    if (set["name"] == name) return changed_file(set);
  throw Error("no family " + name);
}

std::string pieces_of(const PreTokenizer& pre, const std::string& text, char between) {
  std::string out;
  pre.cut(text, [&](std::string_view word) {
    if (!out.empty()) out += between;
    out += word;
  });
  return out;
}

}  // namespace

TEST_CASE("families: the golden ids") {
  REQUIRE(golden()["sets"].size() == 11);
  size_t tokens = 0;
  for (const json& set : golden()["sets"]) {
    CAPTURE(set["name"].get<std::string>());
    const auto tokenizer = load(changed_file(set));
    for (const json& row : set["rows"]) tokens += check_row(*tokenizer, row);
  }
  CHECK(tokens > 10000);
}

TEST_CASE("families: ids become the golden texts, at once and token by token") {
  size_t texts = 0;
  for (const json& set : golden()["sets"]) {
    CAPTURE(set["name"].get<std::string>());
    const auto tokenizer = load(changed_file(set));
    for (const json& row : set["decoded"]) {
      const Ids ids = row["ids"].get<Ids>();
      const std::string whole = tokenizer->decode(ids);
      CHECK(whole == row["text"].get<std::string>());
      CHECK(tokenizer->decode(ids, true) == row["skipped"].get<std::string>());
      if (ids.empty()) continue;
      std::string shown = tokenizer->decode(std::span(ids).first(1));
      for (size_t i = 1; i < ids.size(); ++i) shown += tokenizer->decode_next(ids[i]);
      CHECK(shown == whole);
      ++texts;
    }
  }
  CHECK(texts > 150);
}

TEST_CASE("families: what is saved is the same tokenizer") {
  const std::string text = "In the 1234 beginning <s>\u00e9\u4e2d  God's\n\ncreated <|end|>";
  for (const json& set : golden()["sets"]) {
    CAPTURE(set["name"].get<std::string>());
    const auto tokenizer = load(changed_file(set));
    Scratch scratch;
    const std::string dir = scratch / "saved";
    tokenizer->save(dir);
    const auto again = load_tokenizer(dir);
    CHECK(framed(*again, text) == framed(*tokenizer, text));
    CHECK(again->to_json() == tokenizer->to_json());
    CHECK(again->hash() == tokenizer->hash());
    // Other programs would read these two as GPT-2's.
    CHECK_FALSE(std::filesystem::exists(dir + "/merges.txt"));
  }
}

TEST_CASE("families: the hash distinguishes them") {
  std::map<std::string, std::string> seen;
  for (const json& set : golden()["sets"]) {
    const auto name = set["name"].get<std::string>();
    const auto [other, is_new] = seen.emplace(load(changed_file(set))->hash(), name);
    CHECK_MESSAGE(is_new, name << " and " << other->second);
  }
  json root = family("llama3");
  const std::string hash = load(root)->hash();
  root["post_processor"] = nullptr;
  CHECK(load(root)->hash() == hash);
  root["model"]["ignore_merges"] = false;
  CHECK(load(root)->hash() != hash);
  json cut_by_nothing = family("llama2");
  REQUIRE(cut_by_nothing["pre_tokenizer"].is_null());
  const std::string same = load(cut_by_nothing)->hash();
  cut_by_nothing.erase("pre_tokenizer");
  CHECK(load(cut_by_nothing)->hash() == same);
  CHECK(load(cut_by_nothing)->transformers_class() == "");
}

TEST_CASE("families: the pieces around every character are the golden ones") {
  const json all = golden_json("pieces.json");
  REQUIRE(all.size() == 4);
  for (const json& item : all) {
    CAPTURE(item["name"].get<std::string>());
    const PreTokenizer pre(item["pre_tokenizer"], "test");
    Sha256 hash;
    for (uint32_t c = 0; c < 0x110000; ++c) {
      if (c >= 0xd800 && c < 0xe000) continue;
      std::string x;
      append_utf8(x, c);
      const std::string text = "a" + x + "b1" + x + "2 " + x + " " + x + "a!" + x + "?\n" + x +
                               "\r '" + x + "'s" + x + "'L" + x;
      hash.update(pieces_of(pre, text, '\x1f'));
    }
    CHECK(hash.hex() == item["sha256"].get<std::string>());
  }
}

TEST_CASE("families: Split cuts as the golden pieces") {
  const auto texts = golden()["texts"].get<std::vector<std::string>>();
  REQUIRE(golden()["splits"].size() > 40);
  for (const json& item : golden()["splits"]) {
    CAPTURE(item["pre_tokenizer"].dump());
    const PreTokenizer pre(item["pre_tokenizer"], "test");
    for (size_t i = 0; i < texts.size(); ++i) {
      CAPTURE(texts[i]);
      std::vector<std::string> got;
      pre.cut(texts[i], [&](std::string_view word) { got.emplace_back(word); });
      CHECK(got == item["pieces"][i].get<std::vector<std::string>>());
    }
  }
}

TEST_CASE("families: words cut at spaces give the ids of the uncut text") {
  // The same vocabulary with a token that spans a space: no cut is possible then.
  json root = family("llama2");
  const auto cut = load(root);
  root["model"]["vocab"]["a\u2581b"] = root["model"]["vocab"].size();
  const auto whole = load(root);
  std::mt19937 draw(3);
  for (int turn = 0; turn < 100; ++turn) {
    std::string text;
    for (int i = 0; i < 60; ++i)
      text +=
          std::vector<std::string>{" ", "the", "a", "\u2581", "n", "d", "\u00e9", "\n"}[draw() % 8];
    CHECK(cut->encode(text) == whole->encode(text));
  }
  // A token that spans a space and that a merge makes: it is found.
  const int32_t spanning = int32_t(root["model"]["vocab"].size());
  root["model"]["vocab"]["a\u2581"] = spanning;
  json& merges = root["model"]["merges"];
  json first = merges[0].is_string() ? json("a \u2581") : json::array({"a", "\u2581"});
  merges.insert(merges.begin(), first);
  const std::vector<int32_t> ids = load(root)->encode("a a");
  CHECK(std::count(ids.begin(), ids.end(), spanning) == 1);
}

TEST_CASE("families: any text comes back where nothing is dropped or normalized") {
  std::mt19937 draw(29);
  for (const char* name : {"llama3", "digits together", "no expression", "llama2", "mistral"}) {
    CAPTURE(name);
    const auto tokenizer = load(family(name));
    for (int turn = 0; turn < 100; ++turn) {
      std::string text = "x";
      for (int i = 0; i < 100; ++i) {
        const uint32_t below[] = {0x80, 0x100, 0x3100, 0x110000};
        const uint32_t c = draw() % below[draw() % 4];
        append_utf8(text, (c >= 0xd800 && c < 0xe000) || c == 0x2581 ? ' ' : c);
      }
      const std::string back = tokenizer->decode(tokenizer->encode(text));
      CHECK((back == text || back == " " + text));
    }
  }
}

TEST_CASE("families: settings that encode in another way are refused by name") {
  auto refuses = [](const char* name, const std::function<void(json&)>& change,
                    std::initializer_list<std::string> parts) {
    json root = family(name);
    change(root);
    test::check_says(test::message([&] { load(root); }), parts);
  };
  auto pre = [&](const json& value, std::initializer_list<std::string> parts) {
    refuses(
        "llama3", [&](json& t) { t["pre_tokenizer"] = value; }, parts);
  };
  auto sequence = [](const json& a, const json& b) {
    return json{{"type", "Sequence"}, {"pretokenizers", {a, b}}};
  };
  const json bytes = {{"type", "ByteLevel"}}, digits = {{"type", "Digits"}};
  const json split = {{"type", "Split"}, {"pattern", {{"Regex", "a"}}}, {"behavior", "Isolated"}};
  pre({{"type", "Punctuation"}}, {"pre_tokenizer", "Punctuation", "not supported"});
  pre(sequence(bytes, digits), {"Digits", "after ByteLevel"});
  pre(sequence(digits, bytes), {"ByteLevel", "add_prefix_space"});
  pre(sequence(digits, {{"type", "Metaspace"}, {"replacement", "_"}}), {"Metaspace", "after"});
  pre(digits, {"without ByteLevel", "decoder", "with"});
  pre({{"type", "Metaspace"}, {"replacement", "ab"}}, {"Metaspace", "'replacement'"});
  json bad = split;
  bad["behavior"] = "Contiguous";
  pre(bad, {"Split", "behavior", "Contiguous"});
  bad = split;
  bad["pattern"] = {{"Regex", "(?<=a)b"}};
  pre(bad, {"Split", "'(?<=a)b'", "(?<", "not supported"});
  bad["pattern"] = {{"Glob", "a"}};
  pre(bad, {"Split", "'pattern'"});
  auto decoder = [&](const json& value, std::initializer_list<std::string> parts) {
    refuses(
        "llama2", [&](json& t) { t["decoder"] = value; }, parts);
  };
  const json fuse = {{"type", "Fuse"}};
  decoder({{"type", "CTC"}}, {"decoder", "CTC", "not supported"});
  decoder({{"type", "ByteLevel"}}, {"without ByteLevel", "decoder", "with"});
  decoder({{"type", "Sequence"},
           {"decoders", {fuse, {{"type", "Strip"}, {"content", " "}, {"start", 2}, {"stop", 0}}}}},
          {"Strip", "start = 2", "wanted at most 1"});
  decoder({{"type", "Sequence"}, {"decoders", {fuse, {{"type", "ByteFallback"}}}}},
          {"ByteFallback", "after another decoder"});
  refuses("llama2", [](json& t) { t["model"]["vocab"].erase("<0x7F>"); }, {"<0x7F>", "byte 127"});
  refuses("llama2",
          [](json& t) {
            t["model"]["byte_fallback"] = false;
            t["model"]["unk_token"] = nullptr;
          },
          {"without ByteLevel, byte_fallback or unk_token"});
  refuses("llama2", [](json& t) { t["model"]["unk_token"] = "nowhere"; }, {"unk_token", "nowhere"});
  refuses("llama2", [](json& t) { t["normalizer"] = {{"type", "NFKC"}}; }, {"normalizer", "NFKC"});
  refuses("llama2",
          [](json& t) {
            t["normalizer"] = {{"type", "Prepend"}};
          },
          {"Prepend", "'prepend'"});
  refuses("llama3", [](json& t) { t["model"]["byte_fallback"] = true; },
          {"byte_fallback", "ByteLevel"});
}
