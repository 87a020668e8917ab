// tokenizer.json, vocab.json and merges.txt: writing and reading back, roles, and errors.
#include <doctest/doctest.h>

#include <filesystem>

#include "data/corpus/corpus.h"
#include "data/io/utf8.h"
#include "data/tokenizer/bpe/bpe.h"
#include "tensor/base/error.h"
#include "tests/data/bpe_golden.h"
#include "tests/faults.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;
using nlohmann::json;

namespace {

const std::string kText = "In the beginning <mask> God created\u00a0</s> the\u4e2d\u6587 heaven.";

// What is said of a tokenizer.json with this text.
std::string refusal_of_text(const std::string& text) {
  Scratch scratch;
  const std::string path = scratch / "tokenizer.json", what = test::message([&] {
                                                         write_text(path, text);
                                                         load_tokenizer(path);
                                                       });
  CHECK(what.starts_with(path + ": "));
  CHECK(what.find('\n') == std::string::npos);
  return what;
}

// The same of the golden one with a change, without its path.
std::string refusal(const std::function<void(json&)>& change) {
  json root = golden_json("tokenizer.json");
  change(root);
  const std::string said = refusal_of_text(root.dump());
  const std::string path = "tokenizer.json: ";
  return said.substr(said.find(path) + path.size());
}

}  // namespace

TEST_CASE("tokenizer files: tokenizer.json is written again to the byte") {
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "tokenizer.json");
  CHECK(tokenizer->to_json() == read_text(kTokenizerGolden + "tokenizer.json"));
}

TEST_CASE("tokenizer files: both spellings of merges, settings and added tokens are kept") {
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "variants.json");
  json wanted = golden_json("variants.json");
  for (json& merge : wanted["model"]["merges"]) {
    const auto line = merge.get<std::string>();
    const size_t space = line.find(' ');
    merge = {line.substr(0, space), line.substr(space + 1)};
  }
  CHECK(json::parse(tokenizer->to_json()) == wanted);
}

TEST_CASE("tokenizer files: a saved directory is the same tokenizer by either of its files") {
  Scratch scratch;
  const std::string dir = scratch / "made/here";
  const auto tokenizer = train_bpe({kTokenizerGolden + "text.txt"}, {.vocab_size = 500});
  tokenizer->save(dir);
  for (const char* name : {"vocab.json", "merges.txt", "special_tokens_map.json",
                           "tokenizer_config.json", "tokenizer.json"})
    CHECK(std::filesystem::exists(std::filesystem::path(dir) / name));
  const auto whole = load_tokenizer(dir);
  CHECK(whole->hash() == tokenizer->hash());
  CHECK(whole->to_json() == tokenizer->to_json());
  std::filesystem::remove(std::filesystem::path(dir) / "tokenizer.json");
  const auto parts = load_tokenizer(dir);
  for (const Tokenizer* other : {whole.get(), parts.get()}) {
    CHECK(other->encode(kText) == tokenizer->encode(kText));
    CHECK(other->special().bos == 2);
    CHECK(other->special().eos == 2);
    CHECK(other->special().pad == 1);
    CHECK(other->special().unk == 3);
  }
}

TEST_CASE("tokenizer files: configuration files name the roles and are kept") {
  Scratch scratch;
  const auto tokenizer = train_bpe({kTokenizerGolden + "text.txt"}, {.vocab_size = 300});
  const std::string dir = scratch / "a", copy = scratch / "b";
  tokenizer->save(dir);
  const std::string config = R"({"bos_token": "<pad>", "add_bos_token": true})";
  const std::string map = R"({"bos_token": {"content": "<s>", "lstrip": false}, "mask": "x"})";
  write_text(dir + "/tokenizer_config.json", config);
  write_text(dir + "/special_tokens_map.json", map);
  const auto loaded = load_tokenizer(dir);
  CHECK(loaded->special().bos == 0);
  CHECK(loaded->special().eos == 2);
  CHECK(loaded->hash() == tokenizer->hash());
  loaded->save(copy);
  CHECK(read_text(copy + "/tokenizer_config.json") == config);
  CHECK(read_text(copy + "/special_tokens_map.json") == map);
  write_text(dir + "/tokenizer_config.json", "[1]");
  CHECK_THROWS_WITH_AS(load_tokenizer(dir), doctest::Contains("tokenizer_config.json: "), Error);
}

TEST_CASE("tokenizer files: chat templates are written again") {
  Scratch scratch;
  const std::string dir = scratch / "a", copy = scratch / "b";
  train_bpe({kTokenizerGolden + "text.txt"}, {.vocab_size = 300})->save(dir);
  CHECK_FALSE(std::filesystem::exists(dir + "/chat_template.jinja"));
  std::filesystem::create_directories(dir + "/additional_chat_templates");
  write_text(dir + "/chat_template.jinja", "{{ messages }}\n");
  write_text(dir + "/additional_chat_templates/tool_use.jinja", "{{ tools }}");
  write_text(dir + "/additional_chat_templates/notes.txt", "no template");
  for (const char* without : {"", "tokenizer.json"}) {
    if (*without) std::filesystem::remove(dir + "/" + without);
    load_tokenizer(dir)->save(copy);
    CHECK(read_text(copy + "/chat_template.jinja") == "{{ messages }}\n");
    CHECK(read_text(copy + "/additional_chat_templates/tool_use.jinja") == "{{ tools }}");
    CHECK_FALSE(std::filesystem::exists(copy + "/additional_chat_templates/notes.txt"));
    std::filesystem::remove_all(copy);
  }
}

TEST_CASE("tokenizer files: transformers 4.57 and 5 both read tokenizer_config.json") {
  Scratch scratch;
  const std::string gpt2 = scratch / "gpt2", digits = scratch / "digits", copy = scratch / "copy";
  train_bpe({kTokenizerGolden + "text.txt"}, {.vocab_size = 300})->save(gpt2);
  train_bpe({kTokenizerGolden + "text.txt"}, {.vocab_size = 300})->save(digits);
  json root = json::parse(read_text(digits + "/tokenizer.json"));
  const json cut = {{"type", "Digits"}, {"individual_digits", true}};
  root["pre_tokenizer"] = {{"type", "Sequence"},
                           {"pretokenizers", json::array({cut, root["pre_tokenizer"]})}};
  write_text(digits + "/tokenizer.json", root.dump());
  // tokenizer_config.json of a copy.
  auto written = [&](const std::string& dir, const json& config) {
    write_text(dir + "/tokenizer_config.json", config.dump());
    load_tokenizer(dir)->save(copy);
    return json::parse(read_text(copy + "/tokenizer_config.json"));
  };
  auto class_of = [&](const std::string& dir, const json& config) {
    return written(dir, config).value("tokenizer_class", json());
  };
  CHECK(class_of(gpt2, {{"tokenizer_class", "TokenizersBackend"}}) == "PreTrainedTokenizerFast");
  CHECK(class_of(gpt2, {{"tokenizer_class", "GPT2TokenizerFast"}}) == "GPT2TokenizerFast");
  CHECK(class_of(gpt2, {{"model_max_length", 5}}) == json());
  // Only tokenizer.json has this way of cutting.
  for (const json& config :
       {json({{"tokenizer_class", "GPT2Tokenizer"}}),
        json({{"tokenizer_class", "Qwen2TokenizerFast"}}), json({{"model_max_length", 5}})}) {
    CHECK(class_of(digits, config) == "PreTrainedTokenizerFast");
  }
  const json extra = written(gpt2, {{"extra_special_tokens", {"<a>", "<b>"}}, {"x", 1}});
  CHECK(extra == json({{"additional_special_tokens", {"<a>", "<b>"}}, {"x", 1}}));
  const json named = {{"extra_special_tokens", {{"image_token", "<a>"}}}};
  CHECK(written(gpt2, named) == named);
}

TEST_CASE("tokenizer files: the hash distinguishes tokenizers and nothing else") {
  json root = golden_json("tokenizer.json");
  auto hash_of = [](const json& value) {
    Scratch scratch;
    const std::string path = scratch / "t.json";
    write_text(path, value.dump());
    return load_tokenizer(path)->hash();
  };
  const std::string hash = hash_of(root);
  CHECK(hash.size() == 64);
  json other = root;
  other["truncation"] = {{"max_length", 5}};
  other["post_processor"] = nullptr;
  CHECK(hash_of(other) == hash);
  other = root;
  other["model"]["merges"].erase(other["model"]["merges"].size() - 1);
  CHECK(hash_of(other) != hash);
  other = root;
  other["added_tokens"].erase(3);
  CHECK(hash_of(other) != hash);
  other = root;
  other["pre_tokenizer"]["add_prefix_space"] = true;
  CHECK(hash_of(other) != hash);
}

// The expected ids are those of tokenizers 0.23.
TEST_CASE("tokenizer files: ids of added tokens follow the vocabulary, whatever the file says") {
  struct Listed {
    const char* content;
    int64_t id;
  };
  auto with = [](const json& vocab, std::vector<Listed> added) {
    Scratch scratch;
    json root = json::parse(BpeTrainer({.vocab_size = 261}).train()->to_json());
    root["model"]["vocab"] = vocab;
    root["model"]["merges"] = json::array({{"h", "i"}});
    root["added_tokens"] = json::array();
    for (const Listed& token : added)
      root["added_tokens"].push_back(
          {{"id", token.id}, {"content", token.content}, {"special", true}});
    return load_tokenizer(scratch.write("tokenizer.json", root.dump()));
  };
  const json vocab = {{"h", 0}, {"i", 1}, {"hi", 2}, {"G", 3}};
  const std::string text = "hi<x><y>G";
  const std::pair<std::vector<Listed>, Ids> cases[] = {
      {{{"<x>", 4}, {"<y>", 5}}, {2, 4, 5, 3}},
      {{{"<x>", 20}, {"<y>", 21}}, {2, 4, 5, 3}},            // a hole
      {{{"<y>", 5}, {"<x>", 4}}, {2, 5, 4, 3}},              // another order
      {{{"<x>", 4}, {"<y>", 4}}, {2, 4, 5, 3}},              // one id for two
      {{{"<x>", 4}, {"<x>", 9}, {"<y>", 5}}, {2, 4, 5, 3}},  // listed twice
      {{{"G", 9}, {"<x>", 4}, {"<y>", 5}}, {2, 4, 5, 3}},    // of the vocabulary
      {{{"<x>", 2}, {"<y>", 2000000000}}, {2, 4, 5, 3}}};    // an id that is taken
  for (const auto& [added, ids] : cases) {
    const auto tokenizer = with(vocab, added);
    CHECK(tokenizer->encode(text) == ids);
    CHECK(tokenizer->vocab_size() == 6);
    const bool same = added.front().id == 4 && added.back().id == 5;
    CHECK(tokenizer->notes().empty() == same);
    Scratch scratch;  // what is written needs no note
    const auto again = load_tokenizer(scratch.write("tokenizer.json", tokenizer->to_json()));
    CHECK(again->encode(text) == ids);
    CHECK(again->notes().empty());
  }
  test::check_says(with(vocab, {{"<x>", 20}, {"<y>", 21}})->notes()[0],
                   {"tokenizer.json: added token '<x>' has the id 4, not 20, and 1 more"});
  // The ids of a vocabulary with holes count its tokens, so that one may have the id of another.
  const json holes = {{"h", 0}, {"i", 1}, {"hi", 2}, {"G", 6}};
  CHECK(with(holes, {{"<x>", 7}, {"<y>", 8}})->encode(text) == Ids{2, 4, 5, 6});
  const json taken = {{"h", 0}, {"i", 1}, {"hi", 4}, {"G", 3}};
  CHECK_REFUSES(with(taken, {{"<x>", 5}}), "id 4", "'hi' and '<x>'");
}

TEST_CASE("tokenizer files: without a decoder a text is the tokens as they are spelled") {
  Scratch scratch;
  json root = json::parse(BpeTrainer({.vocab_size = 261}).train()->to_json());
  const auto usual = load_tokenizer(scratch.write("usual.json", root.dump()));
  root["decoder"] = nullptr;
  const auto none = load_tokenizer(scratch.write("none.json", root.dump()));
  const Ids ids = usual->encode(kText);
  CHECK(none->encode(kText) == ids);
  CHECK(none->hash() == usual->hash());
  // tokenizers 0.23: Tokenizer.decode() without a decoder.
  CHECK(none->decode(none->encode("a b")) == "a \u0120 b");
  CHECK(none->decode(none->encode("</s>a b"), true) == "a \u0120 b");
  CHECK(none->decode_next(none->encode("b")[0]) == " b");
  const json written = json::parse(none->to_json());
  CHECK(written["decoder"].is_null());
  root.erase("decoder");
  CHECK(load_tokenizer(scratch.write("missing.json", root.dump()))->decode(ids) ==
        none->decode(ids));
  none->save(scratch / "saved");
  CHECK(load_tokenizer(scratch / "saved")->decode(ids) == none->decode(ids));
}

TEST_CASE("tokenizer files: of merges listed twice the later rank counts") {
  Scratch scratch;
  json root = golden_json("tokenizer.json");
  json& merges = root["model"]["merges"];
  merges.push_back(merges[0]);
  const std::string path = scratch / "t.json";
  write_text(path, root.dump());
  const auto loaded = load_tokenizer(path);
  const auto* tokenizer = dynamic_cast<const BpeTokenizer*>(loaded.get());
  CHECK(tokenizer->model().merges.size() == merges.size() - 1);
  json written = json::parse(tokenizer->to_json());
  CHECK(written["model"]["merges"].back() == merges[0]);
}

TEST_CASE("tokenizer files: what encodes in another way is refused by name") {
  has(refusal([](json& t) { t["normalizer"] = {{"type", "NFKC"}}; }), "\"NFKC\"");
  has(refusal([](json& t) { t["pre_tokenizer"]["type"] = "Whitespace"; }), "\"Whitespace\"");
  has(refusal([](json& t) { t["pre_tokenizer"] = nullptr; }), "without ByteLevel");
  has(refusal([](json& t) { t["decoder"]["type"] = "WordPiece"; }), "\"WordPiece\"");
  has(refusal([](json& t) { t["model"]["type"] = "Unigram"; }), "\"Unigram\"");
  has(refusal([](json& t) { t["model"]["dropout"] = 0.1; }), "dropout");
  has(refusal([](json& t) { t["model"]["continuing_subword_prefix"] = "##"; }), "\"##\"");
  has(refusal([](json& t) { t["model"]["byte_fallback"] = true; }), "byte_fallback");
  has(refusal([](json& t) { t["added_tokens"][0]["single_word"] = true; }), "single_word");
}

TEST_CASE("tokenizer files: a malformed tokenizer.json gives one line") {
  has(refusal([](json& t) { t = 3; }), "object");
  has(refusal([](json& t) { t.erase("model"); }), "'model'");
  has(refusal([](json& t) { t["model"] = "x"; }), "'model'");
  has(refusal([](json& t) { t["model"]["vocab"] = json::array(); }), "vocabulary");
  has(refusal([](json& t) { t["model"]["vocab"]["!"] = -1; }), "'!'");
  has(refusal([](json& t) { t["model"]["vocab"]["!"] = 1e9; }), "'!'");
  has(refusal([](json& t) { t["model"]["vocab"]["!"] = uint64_t(4000000000); }), "'!'");
  has(refusal([](json& t) { t["model"]["vocab"]["!"] = "4"; }), "'!'");
  has(refusal([](json& t) { t["model"]["vocab"]["!"] = 5; }), "both have the id 5");
  has(refusal([](json& t) { t["model"]["vocab"].erase("a"); }), "merge");
  has(refusal([](json& t) {
        t["model"]["vocab"].erase("\u00ff");
        t["model"]["unk_token"] = "<unk>";
      }),
      "byte 255");
  has(refusal([](json& t) { t["model"]["vocab"].erase("\u0120the"); }), "'\u0120the'");
  has(refusal([](json& t) { t["model"]["vocab"][""] = 1000; }), "empty token");
  has(refusal([](json& t) { t["model"]["merges"] = 1; }), "'merges'");
  has(refusal([](json& t) { t["model"]["merges"][7] = "ab"; }), "merge 7");
  has(refusal([](json& t) { t["model"]["merges"][7] = "a b c"; }), "merge 7");
  has(refusal([](json& t) { t["model"]["merges"][7] = {"a"}; }), "merge 7");
  has(refusal([](json& t) { t["model"]["merges"][7] = {"a", "nowhere"}; }), "'nowhere'");
  has(refusal([](json& t) { t["added_tokens"] = 1; }), "'added_tokens'");
  has(refusal([](json& t) { t["added_tokens"][0].erase("content"); }), "'content'");
  has(refusal([](json& t) { t["added_tokens"][0]["id"] = -1; }), "valid 'id'");
  has(refusal([](json& t) { t["added_tokens"][0]["content"] = ""; }), "empty");
  has(refusal([](json& t) { t["added_tokens"][0]["lstrip"] = 1; }), "'lstrip'");
  has(refusal_of_text(""), "tokenizer.json: ");
  has(refusal_of_text("{\"model\": {\n"), "line 2");
  has(refusal_of_text("{\"model\": \"\xff\"}"), "UTF-8");
  std::string twice = read_text(kTokenizerGolden + "tokenizer.json");
  const std::string vocab = "\"vocab\": {";
  twice.insert(twice.find(vocab) + vocab.size(), "\"a\": 70, ");
  has(refusal_of_text(twice), "tokenizer.json: key \"a\" is a duplicate");
}

TEST_CASE("tokenizer files: a failed write leaves no directory without tokenizer.json") {
  namespace fs = std::filesystem;
  using test::Fault;
  const auto old = BpeTrainer({.vocab_size = 261}).train();
  const auto tokenizer = train_bpe({kTokenizerGolden + "text.txt"}, {.vocab_size = 300});
  Scratch scratch;
  const std::string dir = scratch / "t";
  const int calls = test::run_with_fault({}, [&] { tokenizer->save(dir); }).calls;
  REQUIRE(calls > 10);
  for (Fault fault : {Fault::disk_full, Fault::fail, Fault::kill, Fault::torn}) {
    for (int at = 1; at <= calls; ++at) {
      CAPTURE(int(fault));
      CAPTURE(at);
      fs::remove_all(dir);
      test::run_with_fault({fault, at}, [&] { tokenizer->save(dir); });
      const bool whole = fs::exists(dir + "/tokenizer.json");
      if (whole) CHECK(load_tokenizer(dir)->hash() == tokenizer->hash());
      for (const char* name : {"vocab.json", "merges.txt", "tokenizer_config.json"})
        CHECK((whole || !fs::exists(dir + "/" + name)));
      if (fault == Fault::disk_full || fault == Fault::fail) CHECK((whole || !fs::exists(dir)));
      // Another one's directory has its files still, or all new ones.
      fs::remove_all(dir);
      old->save(dir);
      test::run_with_fault({fault, at}, [&] { tokenizer->save(dir); });
      const std::string hash = load_tokenizer(dir)->hash();
      CHECK((hash == old->hash() || hash == tokenizer->hash()));
    }
  }
}

TEST_CASE("tokenizer files: malformed vocab.json and merges.txt") {
  Scratch scratch;
  const std::string dir = scratch / "t";
  train_bpe({kTokenizerGolden + "text.txt"}, {.vocab_size = 300})->save(dir);
  std::filesystem::remove(dir + "/tokenizer.json");
  const std::string merges = read_text(dir + "/merges.txt");
  const Ids expected = load_tokenizer(dir)->encode(kText);
  write_text(dir + "/merges.txt", merges.substr(merges.find('\n') + 1) + "\n");  // no header
  CHECK(load_tokenizer(dir)->encode(kText) == expected);
  for (const char* line : {"a", "a b c", "a  b", " a", "a "}) {
    write_text(dir + "/merges.txt", merges + line + "\n");
    CHECK_THROWS_WITH_AS(load_tokenizer(dir), doctest::Contains("merges.txt: line 42: "), Error);
  }
  write_text(dir + "/merges.txt", merges + "q qqq\n");
  CHECK_THROWS_WITH_AS(load_tokenizer(dir), doctest::Contains("line 42: token 'qqq'"), Error);
  std::filesystem::remove(dir + "/merges.txt");
  CHECK_THROWS_WITH_AS(load_tokenizer(dir), doctest::Contains("merges.txt: "), Error);
  std::string vocab = read_text(dir + "/vocab.json");
  vocab.insert(vocab.find('{') + 1, "\"a\": 7, ");
  write_text(dir + "/vocab.json", vocab);
  CHECK_THROWS_WITH_AS(load_tokenizer(dir), (dir + "/vocab.json: key \"a\" is a duplicate").c_str(),
                       Error);
  write_text(dir + "/vocab.json", "[]");
  CHECK_THROWS_WITH_AS(load_tokenizer(dir), doctest::Contains("vocab.json: "), Error);
}

TEST_CASE("tokenizer files: OPT and GPT-2 are distinguished by the files next to vocab.json") {
  Scratch scratch;
  const std::string dir = scratch / "t";
  train_bpe({kTokenizerGolden + "text.txt"}, {.vocab_size = 300})->save(dir);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"})
    std::filesystem::remove(std::filesystem::path(dir) / name);
  auto with = [&](const char* config, const char* model = "{}") {
    write_text(dir + "/tokenizer_config.json", config);
    write_text(dir + "/config.json", model);
    if (!*config) std::filesystem::remove(dir + "/tokenizer_config.json");
    return load_tokenizer(dir);
  };
  const Ids plain = with("")->encode("the");
  Ids with_bos = {2};
  with_bos.insert(with_bos.end(), plain.begin(), plain.end());
  const std::string roles = R"("bos_token": "</s>", "eos_token": "</s>", "pad_token": "<pad>")";
  const auto opt = with(("{" + roles + R"(, "add_bos_token": true})").c_str());
  CHECK(framed(*opt, "the") == with_bos);
  CHECK(framed(*with(""), "the") == with_bos);  // by its vocabulary
  CHECK(framed(*with("", R"({"model_type": "gpt2"})"), "the") == plain);
  CHECK(framed(*with(("{" + roles + "}").c_str()), "the") == plain);
  CHECK_THROWS_WITH_AS(with(R"({"tokenizer_class": "RobertaTokenizerFast"})"),
                       doctest::Contains("\"RobertaTokenizer\""), Error);
  CHECK_THROWS_WITH_AS(with("", R"({"model_type": "roberta"})"),
                       doctest::Contains("model_type \"roberta\""), Error);
  CHECK_THROWS_WITH_AS(with(R"({"tokenizer_class": "LlamaTokenizer"})"),
                       doctest::Contains("\"LlamaTokenizer\""), Error);
  // What was recognised is written to tokenizer.json.
  opt->save(scratch / "copy");
  CHECK(framed(*load_tokenizer(scratch / "copy"), "the") == framed(*opt, "the"));
}

TEST_CASE("tokenizer files: paths that contain no tokenizer") {
  Scratch scratch;
  const std::string dir = scratch.path(), none = scratch / "none";
  CHECK_THROWS_WITH_AS(load_tokenizer(none), doctest::Contains("no such file"), Error);
  CHECK_THROWS_WITH_AS(load_tokenizer(dir), doctest::Contains("contains no tokenizer.json"), Error);
  write_text(dir + "/vocab.txt", "[PAD]\n");
  CHECK_THROWS_WITH_AS(load_tokenizer(dir), doctest::Contains("'[UNK]'"), Error);
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "tokenizer.json");
  CHECK_REFUSES(tokenizer->save(dir + "/vocab.txt/x"), "cannot be created");
}
