// Prompts of the suites: their length, depth, answers and refusals.
#include "data/suites/prompt.h"

#include <doctest/doctest.h>

#include <set>

#include "tests/data/suites/solving.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

data::Prompt made(const std::string& task, const data::PromptRequest& request) {
  return data::make_prompt(data::prompt_task(task), {suite_tokenizer(), noise()}, request);
}

size_t times(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

int64_t tokens(const std::string& text) { return int64_t(suite_tokenizer().encode(text).size()); }

int64_t length_of(const data::Prompt& p) {
  return int64_t(p.ids.size()) + std::max(int64_t(p.answer.size()), p.answer_tokens);
}

// The largest number of tokens that one more unit of a task adds.
int64_t unit_of(const std::string& task) {
  if (task == "mqar") return 4;
  if (task == "copy") return 2;
  if (task == "cwe") return 3 * tokens("1000. potatoes ");
  if (task == "fwe") return 8 * tokens(" abcdef");
  return tokens(std::string("\n") + data::kNoise);
}

TEST_CASE("prompts: as many tokens as fit the length, with room for the answer") {
  for (const data::PromptTask& task : data::prompt_tasks()) {
    for (int64_t length : {1801, 4100}) {
      if (task.name == "mqar" && length > 400) length = 150;  // few tokens of letters
      for (int64_t room : {0, 7}) {
        INFO(task.name << " " << length);
        const data::Prompt p = made(task.name, {.length = length, .answer_tokens = room});
        CHECK(length_of(p) <= length);
        CHECK(length_of(p) + unit_of(task.name) > length);
        CHECK(p.scored.size() == p.answer.size());
        if (!task.generated) continue;
        CHECK(p.answer_tokens ==
              std::max(room ? room : task.answer_tokens, int64_t(p.answer.size())));
        CHECK(suite_tokenizer().decode(p.ids, true) == p.text);
      }
    }
  }
}

TEST_CASE("prompts: the needle is at the asked depth") {
  for (const char* task : {"niah_single", "niah_multikey", "passkey"}) {
    for (int64_t depth : {0, 10, 50, 73, 100}) {
      INFO(task << " " << depth);
      const data::Prompt p = made(task, {.length = 2048, .depth = depth});
      const size_t at = p.text.find(p.references[0]);
      const double all = double(times(p.text, data::kNoise));
      const double before = double(times(p.text.substr(0, at), data::kNoise));
      REQUIRE(all > 15);
      CHECK(std::abs(before - all * double(depth) / 100) <= 0.5);
    }
  }
}

TEST_CASE("prompts: the references are what the text says, and the answer spells them") {
  for (const data::PromptTask& task : data::prompt_tasks()) {
    if (!task.generated) continue;
    for (int64_t length : {1500, 4200}) {
      for (int64_t sample = 0; sample < 3; ++sample) {
        INFO(task.name << " " << length << " " << sample);
        const data::Prompt p = made(task.name, {.length = length, .sample = sample});
        std::vector<std::string> found = solve(p.text), wanted = p.references;
        std::sort(found.begin(), found.end());
        std::sort(wanted.begin(), wanted.end());
        CHECK(found == wanted);
        const std::string answer = suite_tokenizer().decode(p.answer);
        CHECK(data::string_match_all(p.references, answer) == 1);
        std::vector<int32_t> scored;
        for (size_t i = 0; i < p.answer.size(); ++i)
          if (p.scored[i]) scored.push_back(p.answer[i]);
        std::string listed;
        for (const std::string& r : p.references) listed += " " + r;
        CHECK(suite_tokenizer().decode(scored) == listed);
      }
    }
  }
}

TEST_CASE("prompts: copy repeats its tokens, mqar asks for every pair once") {
  const data::Prompt copy = made("copy", {.length = 101});
  std::vector<int32_t> all = copy.ids;
  all.insert(all.end(), copy.answer.begin(), copy.answer.end());
  const size_t front = all.size() % 2;  // the BOS of OPT
  const size_t half = all.size() / 2;
  CHECK(half == 50);
  CHECK(std::equal(all.begin() + int64_t(front), all.begin() + int64_t(front + half),
                   all.begin() + int64_t(front + half)));
  CHECK(copy.answer.size() == half - 1);
  CHECK(std::set<int32_t>(all.begin(), all.end()).size() > 20);

  const data::Prompt recall = made("mqar", {.length = 128});
  all = recall.ids;
  all.insert(all.end(), recall.answer.begin(), recall.answer.end());
  const size_t begin = all.size() % 4, pairs = all.size() / 4;
  std::map<int32_t, int32_t> value;
  for (size_t i = 0; i < pairs; ++i) value[all[begin + 2 * i]] = all[begin + 2 * i + 1];
  CHECK(value.size() == pairs);
  size_t asked = 0;
  bool same_order = true;
  for (size_t i = 0; i < recall.answer.size(); ++i) {
    CHECK(bool(recall.scored[i]) == (i % 2 == 0));
    if (!recall.scored[i]) continue;
    const size_t at = recall.ids.size() + i;
    CHECK(recall.answer[i] == value.at(all[at - 1]));
    same_order = same_order && all[at - 1] == all[begin + 2 * asked];
    ++asked;
  }
  CHECK(asked == pairs);
  CHECK_FALSE(same_order);
}

TEST_CASE("prompts: a function of task, length, depth, sample and seed") {
  const data::PromptRequest base{.length = 1400, .depth = 50, .sample = 2, .seed = 9};
  for (const data::PromptTask& task : data::prompt_tasks()) {
    INFO(task.name);
    data::PromptRequest request = base;
    if (task.name == "mqar") request.length = 140;
    const data::Prompt p = made(task.name, request);
    CHECK(made(task.name, request).ids == p.ids);
    CHECK(made(task.name, request).answer == p.answer);
    auto differs = [&](auto change) {
      data::PromptRequest other = request;
      change(other);
      return made(task.name, other).answer != p.answer;
    };
    CHECK(differs([](data::PromptRequest& r) { r.sample = 3; }));
    CHECK(differs([](data::PromptRequest& r) { r.seed = 8; }));
    CHECK(differs([](data::PromptRequest& r) { r.length += 8; }));
    CHECK(differs([](data::PromptRequest& r) { r.depth = 51; }) == task.has_depth);
  }
}

TEST_CASE("prompts: needles in a book, whose sentences continue at its beginning") {
  const data::Haystack book("One \n fish.  Two fish!\n\nRed\tfish? \"Blue fish.\" and no end",
                            "book");
  data::Draws draws(1, "x");
  const std::string text = book.with({{2, "NEEDLE"}}, 5, draws);
  const std::vector<std::string> sentences = {"One fish.", "Two fish!", "Red fish?",
                                              "\"Blue fish.\""};
  bool found = false;
  for (size_t start = 0; start < 4; ++start) {
    std::string wanted;
    for (size_t i = 0; i < 5; ++i) {
      wanted += (i ? " " : "") + std::string(i == 2 ? "NEEDLE " : "") + sentences[(start + i) % 4];
    }
    found = found || text == wanted;
  }
  CHECK_MESSAGE(found, text);
  const data::Prompt p = data::make_prompt(data::prompt_task("niah_single"),
                                           {suite_tokenizer(), book}, {.length = 900});
  CHECK(contains(p.text, "Two fish! "));
  CHECK_FALSE(contains(p.text, data::kNoise));
  CHECK(solve(p.text) == p.references);
}

TEST_CASE("prompts: string_match_all is the share of references in the output, in any case") {
  CHECK(data::string_match_all({"1234567"}, " 1234567.") == 1);
  CHECK(data::string_match_all({"1234567"}, " 123456") == 0);
  CHECK(data::string_match_all({"ab", "cd", "ef", "gh"}, "CD and xabx") == 0.5);
  CHECK(data::string_match_all({"Word"}, "wORD") == 1);
  CHECK(data::string_match_all({"a", "a"}, "a") == 1);
  CHECK(data::string_match_all({"a"}, "") == 0);
  CHECK_REFUSES(data::string_match_all({}, "a"), "string_match_all", "references");
}

TEST_CASE("prompts: refusals name the task, what it got and what it needs") {
  CHECK_REFUSES(data::prompt_task("niah"), "task", "'niah'", "niah_single", "copy");
  for (const data::PromptTask& task : data::prompt_tasks()) {
    INFO(task.name);
    const std::string text = message([&] { made(task.name, {.length = 3}); });
    check_says(text, {"task", task.name, "at least", "length", "3"});
    if (!task.generated) continue;
    // The number that it names is enough, and one less is not.
    const int64_t least = std::stoll(between(text, "at least ", " "));
    // The length is part of what a prompt is drawn from, so its words may be longer.
    CHECK(length_of(made(task.name, {.length = least + 60})) <= least + 60);
    CHECK_REFUSES(made(task.name, {.length = least - 60}), task.name, "at least");
  }
  CHECK_REFUSES(made("niah_single", {.depth = 101}), "depth", "101", "0 to 100");
  CHECK_REFUSES(made("mqar", {.length = 40000}), "mqar", "different tokens");
  CHECK_REFUSES(data::Haystack("no end", "book"), "book", "sentence");
}

}  // namespace
}  // namespace brine::test
