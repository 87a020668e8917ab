// BERT's tokenizers from and to files: roles, settings, errors.
#include "data/tokenizer/wordpiece.h"

#include <doctest/doctest.h>

#include <filesystem>

#include "data/corpus/corpus.h"
#include "data/io/utf8.h"
#include "tensor/base/error.h"
#include "tests/data/bpe_golden.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;
using nlohmann::json;

namespace {

const std::string kWordPieceText =
    "In the [MASK] B\u00e9ginning \u4e2d\u6587 God's, cre\u0301ated!";

std::string message_of(const std::function<void()>& f) {
  const std::string what = test::message(f);
  CHECK(what.find('\n') == std::string::npos);
  return what;
}

std::string wordpiece_refusal(const std::function<void(json&)>& change) {
  Scratch scratch;
  json root = golden_json("wordpiece.json");
  change(root);
  const std::string path = scratch / "tokenizer.json";
  write_text(path, root.dump());
  const std::string what = message_of([&] { load_tokenizer(path); });
  CHECK(what.starts_with(path + ": "));
  return what;
}

// The golden tokenizer as a directory with vocab.txt alone.
std::string vocab_directory(const Scratch& scratch) {
  const std::string dir = scratch / "bert";
  load_tokenizer(kTokenizerGolden + "wordpiece.json")->save(dir);
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"})
    std::filesystem::remove(std::filesystem::path(dir) / name);
  return dir;
}

}  // namespace

TEST_CASE("wordpiece files: tokenizer.json is written again to the byte") {
  const auto tokenizer = load_tokenizer(kTokenizerGolden + "wordpiece.json");
  CHECK(tokenizer->to_json() == read_text(kTokenizerGolden + "wordpiece.json"));
  const SpecialIds special = tokenizer->special();
  CHECK(special.pad == 0);
  CHECK(special.unk == 1);
  CHECK(special.cls == 2);
  CHECK(special.sep == 3);
  CHECK(special.mask == 4);
  CHECK_FALSE(special.bos.has_value());
  CHECK(tokenizer->id_of("[CLS]") == 2);
  CHECK(tokenizer->token_of(3) == "[SEP]");
}

TEST_CASE("wordpiece files: vocab.txt alone is the same tokenizer, and can be saved again") {
  Scratch scratch;
  const std::string dir = vocab_directory(scratch), copy = scratch / "copy";
  const auto golden = load_tokenizer(kTokenizerGolden + "wordpiece.json");
  const auto from_text = load_tokenizer(dir);
  CHECK(from_text->hash() == golden->hash());
  CHECK(framed(*from_text, kWordPieceText) == framed(*golden, kWordPieceText));
  CHECK(from_text->special().mask == 4);
  from_text->save(copy);
  CHECK(load_tokenizer(copy)->to_json() == from_text->to_json());
  const json config = json::parse(read_text(copy + "/tokenizer_config.json"));
  CHECK(config["tokenizer_class"] == "BertTokenizer");
  CHECK(config["do_lower_case"] == true);
  CHECK(config["cls_token"] == "[CLS]");
  CHECK(read_text(copy + "/vocab.txt") == read_text(dir + "/vocab.txt"));
}

TEST_CASE("wordpiece files: tokenizer_config.json sets case, accents, Chinese and roles") {
  Scratch scratch;
  const std::string dir = vocab_directory(scratch), config = dir + "/tokenizer_config.json";
  auto with = [&](const json& value) {
    write_text(config, value.dump());
    return load_tokenizer(dir);
  };
  const auto usual = load_tokenizer(dir);
  const auto cased = with({{"do_lower_case", false}});
  CHECK(cased->hash() != usual->hash());
  CHECK(cased->encode("the") == usual->encode("the"));
  CHECK(cased->encode("THE") == Ids{1});
  CHECK(cased->encode("\u00e9") != usual->encode("\u00e9"));
  const auto stripped = with({{"do_lower_case", false}, {"strip_accents", true}});
  CHECK(stripped->encode("e\u0301") == usual->encode("e"));
  const auto joined = with({{"tokenize_chinese_chars", false}});
  CHECK(joined->encode("\u4e2d\u6587").size() == 1);
  CHECK(usual->encode("\u4e2d\u6587").size() == 2);
  CHECK(with({{"pad_token", {{"content", "[MASK]"}}}})->special().pad == 4);
  const auto named =
      with({{"added_tokens_decoder", {{"705", {{"content", "<new one>"}, {"special", false}}}}}});
  CHECK(named->encode("the <NEW one>").back() == usual->vocab_size());
  write_text(dir + "/added_tokens.json", R"({"extra": 900})");
  CHECK(with({{"do_lower_case", true}})->encode("an Extra").back() == usual->vocab_size());
  std::filesystem::remove(dir + "/added_tokens.json");
  has(message_of([&] { with({{"do_lower_case", 1}}); }), "'do_lower_case'");
  has(message_of([&] { with({{"do_basic_tokenize", false}}); }), "do_basic_tokenize");
  has(message_of([&] { with({{"never_split", {"x"}}}); }), "never_split");
  has(message_of([&] { with({{"tokenizer_class", "T5Tokenizer"}}); }), "\"T5Tokenizer\"");
  has(message_of([&] { with({{"unk_token", "nowhere"}}); }), "'nowhere'");
  has(message_of([&] { with({{"added_tokens_decoder", {{"x", json::object()}}}}); }), "'x'");
}

TEST_CASE("wordpiece files: BERT's tokenizer has defaults for what tokenizer_config.json omits") {
  Scratch scratch;
  json root = golden_json("wordpiece.json");
  const auto lowers = load_tokenizer(kTokenizerGolden + "wordpiece.json");
  auto with = [&](const json& config, const json& normalizer) {
    root["normalizer"] = {{"type", "BertNormalizer"},
                          {"clean_text", true},
                          {"handle_chinese_chars", true},
                          {"strip_accents", nullptr},
                          {"lowercase", false}};
    if (normalizer.is_object()) root["normalizer"].update(normalizer);
    if (normalizer.is_null()) root["normalizer"] = nullptr;
    write_text(scratch / "tokenizer.json", root.dump());
    write_text(scratch / "tokenizer_config.json", config.dump());
    return load_tokenizer(scratch.path());
  };
  const json bert = {{"tokenizer_class", "BertTokenizer"}}, none = json::object();
  // As AutoTokenizer of transformers 5 gives them.
  CHECK(with(bert, none)->hash() == lowers->hash());
  CHECK(with(bert, nullptr)->hash() == lowers->hash());
  CHECK(with(bert, {{"strip_accents", true}, {"handle_chinese_chars", false}})->hash() ==
        lowers->hash());
  CHECK(with({{"tokenizer_class", "PreTrainedTokenizerFast"}}, none)->encode("THE") == Ids{1});
  CHECK(with(none, none)->encode("THE") == Ids{1});  // no file says that it is BERT's
  write_text(scratch / "config.json", R"({"model_type": "bert"})");
  CHECK(with(none, none)->hash() == lowers->hash());
  const json cased = {{"do_lower_case", false}, {"strip_accents", true}};
  CHECK(with(cased, none)->encode("e\u0301") == lowers->encode("e"));
  CHECK(with(cased, none)->encode("THE") == Ids{1});
  CHECK(with({{"tokenize_chinese_chars", false}}, {{"handle_chinese_chars", false}})
            ->encode("\u4e2d\u6587")
            .size() == 1);
  has(message_of([&] { with(cased, {{"strip_accents", false}}); }), "'strip_accents' is false");
  root["post_processor"] = nullptr;
  CHECK(with(bert, none)->around().front == Ids{2});
}

TEST_CASE("wordpiece files: malformed vocab.txt") {
  Scratch scratch;
  const std::string dir = vocab_directory(scratch), vocab = dir + "/vocab.txt";
  const std::string good = read_text(vocab);
  const auto expected = load_tokenizer(dir)->encode(kWordPieceText);
  std::string crlf;
  for (char c : good) crlf += c == '\n' ? std::string("\r\n") : std::string(1, c);
  write_text(vocab, crlf);
  CHECK(load_tokenizer(dir)->encode(kWordPieceText) == expected);
  write_text(vocab, good.substr(0, good.size() - 1));
  CHECK(load_tokenizer(dir)->encode(kWordPieceText) == expected);
  write_text(vocab, good + "\n\nnewest\n");  // two ids without a token
  const auto holes = load_tokenizer(dir);
  CHECK(holes->encode("newest") == Ids{int32_t(holes->vocab_size()) - 1});
  CHECK_REFUSES(holes->token_of(int32_t(holes->vocab_size()) - 2), "no token has the id");
  auto refused = [&](const std::string& text) {
    write_text(vocab, text);
    return message_of([&] { load_tokenizer(dir); });
  };
  has(refused(good + "[CLS]\n"), "vocab.txt: line 644: token '[CLS]' is also on line 3");
  has(refused("[PAD]\na\xff\n"), "vocab.txt: line 2: not UTF-8");
  has(refused(""), "vocab.txt: ");
  has(refused("\n\n"), "contains no tokens");
  has(refused("[PAD]\nthe\n"), "'[UNK]'");
  has(refused("[PAD]\n[UNK]\nthe\n"), "the vocabulary has no ");
}

TEST_CASE("wordpiece files: what encodes in another way or is malformed is refused by name") {
  has(wordpiece_refusal([](json& t) { t["pre_tokenizer"] = nullptr; }), "pre_tokenizer");
  has(wordpiece_refusal([](json& t) { t["pre_tokenizer"]["type"] = "Whitespace"; }),
      "\"Whitespace\"");
  has(wordpiece_refusal([](json& t) { t["normalizer"]["type"] = "NFKC"; }), "\"NFKC\"");
  has(wordpiece_refusal([](json& t) { t["normalizer"] = 3; }), "normalizer");
  has(wordpiece_refusal([](json& t) { t["normalizer"]["lowercase"] = "yes"; }), "'lowercase'");
  has(wordpiece_refusal([](json& t) { t["decoder"]["type"] = "BPEDecoder"; }), "\"BPEDecoder\"");
  has(wordpiece_refusal([](json& t) { t["post_processor"]["type"] = "RobertaProcessing"; }),
      "post_processor of type \"RobertaProcessing\"");
  has(wordpiece_refusal([](json& t) { t["post_processor"]["single"] = json::array(); }),
      "'single'");
  has(wordpiece_refusal([](json& t) { t["post_processor"]["special_tokens"].erase("[SEP]"); }),
      "'[SEP]'");
  has(wordpiece_refusal(
          [](json& t) { t["post_processor"]["special_tokens"]["[SEP]"]["ids"] = {100000}; }),
      "100000");
  has(wordpiece_refusal([](json& t) { t["model"]["type"] = "Unigram"; }), "\"Unigram\"");
  has(wordpiece_refusal([](json& t) { t["model"]["unk_token"] = "nowhere"; }), "'nowhere'");
  has(wordpiece_refusal([](json& t) { t["model"]["max_input_chars_per_word"] = -1; }),
      "'max_input_chars");
  has(wordpiece_refusal([](json& t) { t["model"]["vocab"]["[CLS]"] = 3; }), "both have the id 3");
  has(wordpiece_refusal([](json& t) { t["model"]["vocab"].erase("[UNK]"); }), "'[UNK]'");
}

TEST_CASE("wordpiece files: an old file without the model's type loads, a contradiction does not") {
  Scratch scratch;
  json root = golden_json("wordpiece.json");
  root["model"].erase("type");
  root["truncation"] = {{"max_length", 3}};
  write_text(scratch / "tokenizer.json", root.dump());
  const auto old = load_tokenizer(scratch.path());
  CHECK(old->encode(kWordPieceText) ==
        load_tokenizer(kTokenizerGolden + "wordpiece.json")->encode(kWordPieceText));
  write_text(scratch / "tokenizer_config.json", R"({"do_lower_case": false})");
  has(message_of([&] { load_tokenizer(scratch.path()); }), "'do_lower_case' = false");
}

TEST_CASE("wordpiece files: too many levels are refused") {
  Scratch scratch;
  const std::string path = scratch / "tokenizer.json";
  for (const char* bracket : {"[", "{\"a\":"}) {
    std::string deep = "{\"padding\": ";
    for (int i = 0; i < 300000; ++i) deep += bracket;
    write_text(path, deep);
    has(message_of([&] { load_tokenizer(path); }), "levels deep");
  }
}
