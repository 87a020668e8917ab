// Windows of mixed lengths and windows with retrieval: functions of the text, the seed and a
// number.
#include "distill/batches/mixed_source.h"

#include <map>
#include <set>

#include "tests/distill/task_setup.h"
#include "tests/messages.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

using data::TokenList;

// Tokens of a text in which every token is a letter.
std::shared_ptr<const data::TokenSource> letters_text(int64_t n) {
  std::string text;
  RandomSlice slice{5, 6, 0};
  for (int64_t i = 0; i < n; ++i) text += char('a' + slice.word(uint64_t(i)) % 26);
  const std::unique_ptr<data::Tokenizer> tokenizer = byte_tokenizer();
  return std::make_shared<TokenList>(tokenizer->encode(text));
}

Retrieval retrieval_of(const std::shared_ptr<const data::TokenSource>& tokens) {
  return {tokens, byte_tokenizer(), 260};
}

MixedSource mixed_source(double share, int64_t step_windows = 4, uint64_t seed = 3) {
  const auto tokens = letters_text(20000);
  return {tokens,
          retrieval_of(tokens),
          {.lengths = {128, 256, 512},
           .retrieval_share = share,
           .step_windows = step_windows,
           .seed = seed}};
}

std::vector<int32_t> mixed_tokens(const Batch& b) {
  return {b.ids.data<int32_t>(), b.ids.data<int32_t>() + b.ids.numel()};
}

std::string decoded(std::span<const int32_t> window) { return byte_tokenizer()->decode(window); }

// Whether some stretch of `count` tokens occurs twice without overlap.
bool repeats(std::span<const int32_t> window, size_t count) {
  std::map<std::vector<int32_t>, size_t> first;
  for (size_t i = 0; i + count <= window.size(); ++i) {
    std::vector<int32_t> part(window.begin() + int64_t(i), window.begin() + int64_t(i + count));
    const auto [it, fresh] = first.emplace(std::move(part), i);
    if (!fresh && i >= it->second + count) return true;
  }
  return false;
}

}  // namespace

TEST_CASE("lengths: one, a list, a range of multiples of 64") {
  CHECK(parse_lengths("1024") == std::vector<int64_t>{1024});
  CHECK(parse_lengths("512,96,2") == std::vector<int64_t>{512, 96, 2});
  CHECK(parse_lengths("100-256") == std::vector<int64_t>{128, 192, 256});
  for (const char* wrong : {"12,", "a", "1", "64-", "-64", "5.5", "12 13"}) {
    CHECK_REFUSES(parse_lengths(wrong), "lengths", wrong);
  }
  CHECK_REFUSES(parse_lengths(""), "lengths", "''");
  CHECK_REFUSES(parse_lengths("65-127"), "65-127", "64");
}

TEST_CASE("mixed windows: micro-batches have the windows of the batch, every step one length") {
  MixedSource whole = mixed_source(0.5), parts = mixed_source(0.5);
  std::set<int64_t> lengths;
  for (int64_t step = 0; step < 12; ++step) {
    const Batch batch = whole.batch(step, 4);
    CHECK(batch.tokens == batch.ids.numel());
    lengths.insert(batch.ids.dim(1));
    std::vector<int32_t> cut;
    for (int64_t i = 0; i < 2; ++i) {
      for (int32_t id : mixed_tokens(parts.batch(step * 2 + i, 2))) cut.push_back(id);
    }
    CHECK(cut == mixed_tokens(batch));
  }
  CHECK(lengths == std::set<int64_t>{128, 256, 512});
  CHECK_REFUSES(mixed_source(0).batch(0, 3), "3", "4");
  CHECK(mixed_tokens(mixed_source(0.5, 4, 4).batch(0, 4)) != mixed_tokens(whole.batch(0, 4)));
}

TEST_CASE("mixed windows: without retrieval, an epoch is the text once") {
  const auto tokens = letters_text(12 * 32 + 5);
  MixedSource s(tokens, retrieval_of(tokens), {.lengths = {32}, .seed = 9});
  for (int64_t epoch = 0; epoch < 2; ++epoch) {
    std::multiset<std::vector<int32_t>> seen, wanted;
    for (int64_t i = 0; i < 12; ++i) {
      seen.insert(mixed_tokens(s.batch(epoch * 12 + i, 1)));
      wanted.insert(tokens->slice(i * 32, 32));
    }
    CHECK(seen == wanted);
  }
}

TEST_CASE("mixed windows: the share of windows with retrieval is the one that was asked for") {
  MixedSource plain = mixed_source(0), mixed = mixed_source(0.3);
  int changed = 0;
  for (int64_t i = 0; i < 400; ++i) {
    changed += mixed_tokens(plain.batch(i, 1)) != mixed_tokens(mixed.batch(i, 1));
  }
  CHECK(changed > 85);  // of 120; four deviations are 37
  CHECK(changed < 157);
}

TEST_CASE("retrieval: passages and random tokens return in the window") {
  const auto tokens = letters_text(4000);
  const Retrieval retrieval = retrieval_of(tokens);
  CHECK_FALSE(repeats(tokens->slice(0, 512), 12));  // the text itself
  for (const RetrievalKind kind : {RetrievalKind::passage, RetrievalKind::random_tokens}) {
    for (uint64_t i = 0; i < 40; ++i) {
      std::vector<int32_t> window = tokens->slice(int64_t(i) * 64, 512);
      Draws draws(RandomSlice{3, 100 + i, 0});
      retrieval.rewrite(window, kind, draws);
      CHECK(repeats(window, 12));
    }
  }
  for (int64_t T = 2; T < 40; ++T) {  // short windows stay windows
    for (uint64_t i = 0; i < 20; ++i) {
      std::vector<int32_t> window = tokens->slice(0, T);
      Draws draws(RandomSlice{4, 100 + i, uint64_t(T)});
      retrieval.rewrite(window, draws);
      for (const int32_t id : window) CHECK((id >= 0 && id < 260));
    }
  }
}

TEST_CASE("retrieval: a needle is in the text, and the end of the window asks for it") {
  const auto tokens = letters_text(4000);
  const Retrieval retrieval = retrieval_of(tokens);
  std::set<size_t> deciles;
  int found = 0;
  for (uint64_t i = 0; i < 60; ++i) {
    std::vector<int32_t> window = tokens->slice(int64_t(i) * 16, 1024);
    Draws draws(RandomSlice{3, 200 + i, 0});
    retrieval.rewrite(window, RetrievalKind::needles, draws);
    REQUIRE(window.size() == 1024);
    const std::string text = decoded(window);
    CHECK(text.back() == '.');
    // The last question, "...KEY ... VALUE.", has its value once more in a fact before it.
    const std::string last = text.substr(text.rfind('\n') + 1);
    const size_t space = last.rfind(' ');
    const std::string value = last.substr(space + 1, last.size() - space - 2);
    const size_t fact = text.find(value);
    REQUIRE(fact != std::string::npos);
    if (fact < text.find('\n')) ++found, deciles.insert(fact * 10 / text.size());
  }
  CHECK(found == 60);
  CHECK(deciles.size() >= 7);  // at all depths
}

TEST_CASE("retrieval: no wording is one of the evaluation's") {
  for (int64_t i = 0; i < needle_wordings(); ++i) {
    const Needle n = needle(i, "KEY", "VALUE");
    CHECK(n.fact.find("KEY") < n.fact.find("VALUE"));
    CHECK(n.question.find("KEY") != std::string::npos);
    CHECK(n.question.find("VALUE") == std::string::npos);
    for (const char* theirs : {"magic", "special", "pass key", "needle", "grass is green"}) {
      CHECK((n.fact + n.question).find(theirs) == std::string::npos);
    }
  }
}

}  // namespace brine::test
