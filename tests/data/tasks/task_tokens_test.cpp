// Texts of tasks as tokens of an encoder.
#include "data/tasks/task_tokens.h"

#include <doctest/doctest.h>

#include "data/tokenizer/bpe/bpe.h"
#include "tensor/base/error.h"

using namespace brine;
using namespace brine::data;

namespace {

// [CLS] = 2, [SEP] = 3, and a token for each byte.
std::unique_ptr<Tokenizer> byte_level_tokenizer(std::vector<std::string> special = {
                                                    "[PAD]", "[UNK]", "[CLS]", "[SEP]"}) {
  BpeTrainOptions options;
  options.vocab_size = int64_t(special.size()) + 256;
  options.special = std::move(special);
  return BpeTrainer(options).train();
}

std::string shown(const Tokenizer& tokenizer, const TextTokens& text) {
  return tokenizer.decode(text.ids);
}

}  // namespace

TEST_CASE("task tokens: texts and pairs are framed, the longer one is cut first") {
  auto tokenizer = byte_level_tokenizer();
  TextEncoder encoder(*tokenizer, 10);
  auto single = [&](const std::string& a) { return shown(*tokenizer, encoder.encode(a)); };
  auto pair = [&](const std::string& a, const std::string& b) {
    return shown(*tokenizer, encoder.encode_pair(a, b));
  };
  CHECK(single("abc") == "[CLS]abc[SEP]");
  CHECK(single("") == "[CLS][SEP]");
  CHECK(single("abcdefgh") == "[CLS]abcdefgh[SEP]");
  CHECK(single("abcdefghi") == "[CLS]abcdefgh[SEP]");
  CHECK(pair("abc", "de") == "[CLS]abc[SEP]de[SEP]");
  CHECK(pair("abc", "") == "[CLS]abc[SEP][SEP]");
  CHECK(pair("abcdef", "xy") == "[CLS]abcde[SEP]xy[SEP]");
  CHECK(pair("ab", "uvwxyz") == "[CLS]ab[SEP]uvwxy[SEP]");
  TextTokens cut = encoder.encode_pair("abcdefgh", "stuvwxyz");
  CHECK(cut.ids.size() == 10);
  CHECK(cut.cut == 9);
  CHECK(cut.first == 5);
  CHECK(shown(*tokenizer, cut) == "[CLS]abc[SEP]stuv[SEP]");  // as `tokenizers` cuts equal lengths
  CHECK(encoder.encode("abc").cut == 0);
  CHECK(encoder.encode("abc").first == 5);
  CHECK_THROWS_WITH_AS(TextEncoder(*tokenizer, 3), "task: texts of 3 tokens, at least 4 are needed",
                       Error);
  auto plain = byte_level_tokenizer({"<s>", "[CLS]"});
  CHECK_THROWS_WITH_AS(TextEncoder(*plain, 10), doctest::Contains("has no token [SEP]"), Error);
}

TEST_CASE("task tokens: long texts become passages of the full length") {
  auto tokenizer = byte_level_tokenizer();
  const Task& books = task_named("books");
  TaskExamples examples{.labels = {"x", "y"},
                        .rows = {{.first = "abcdefghijklm", .target = 1},
                                 {.first = "short", .target = 0},
                                 {.first = "123456", .target = 0}}};
  TaskTokens tokens = tokenize_task(books, examples, *tokenizer, 8);
  REQUIRE(tokens.texts.size() == 3);
  CHECK(shown(*tokenizer, tokens.texts[0]) == "[CLS]abcdef[SEP]");
  CHECK(shown(*tokenizer, tokens.texts[1]) == "[CLS]ghijkl[SEP]");
  CHECK(shown(*tokenizer, tokens.texts[2]) == "[CLS]123456[SEP]");
  CHECK(tokens.targets == std::vector<double>{1, 1, 0});
  CHECK(tokens.longest == 8);
  CHECK(tokens.cut_texts == 0);
  CHECK_THROWS_WITH_AS(tokenize_task(books, examples, *tokenizer, 64),
                       "task books: no text fills a passage of 64 tokens", Error);
}

TEST_CASE("task tokens: a task's rows in order, with the number of those that were cut") {
  auto tokenizer = byte_level_tokenizer();
  const Task& mrpc = task_named("mrpc");
  TaskExamples examples{.labels = mrpc.labels,
                        .rows = {{.first = "a", .second = "b", .target = 1},
                                 {.first = "abcdefgh", .second = "c", .target = 0}}};
  TaskTokens tokens = tokenize_task(mrpc, examples, *tokenizer, 9);
  CHECK(tokens.pairs);
  CHECK_FALSE(tokens.regression);
  CHECK(tokens.targets == std::vector<double>{1, 0});
  CHECK(tokens.longest == 9);
  CHECK(tokens.cut_texts == 1);
  CHECK(shown(*tokenizer, tokens.texts[1]) == "[CLS]abcde[SEP]c[SEP]");
}
