// The grid of a suite: its prompts, means, intervals, and the sparsest sufficient k.
#include "distill/evaluation/suites/grid.h"

#include <doctest/doctest.h>

#include "distill/evaluation/suites/suite.h"
#include "tests/data/suites/solving.h"
#include "tests/distill/setup.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

SuiteCall call_of(std::vector<std::string> tasks) {
  SuiteCall call;
  call.grid.suite = "ruler";
  call.grid.tasks = std::move(tasks);
  call.grid.lengths = {700, 900};
  call.grid.depths = {0, 100};
  call.grid.samples = 3;
  call.grid.answer_tokens = 10;
  return call;
}

TEST_CASE("suite grid: a block for every task and length, samples for every depth") {
  const std::vector<PromptBlock> blocks =
      make_blocks(call_of({"passkey", "copy"}), suite_tokenizer());
  REQUIRE(blocks.size() == 4);
  CHECK(blocks[0].task->name == "passkey");
  CHECK(blocks[1].length == 900);
  CHECK(blocks[0].depths == std::vector<int64_t>{0, 0, 0, 100, 100, 100});
  CHECK(blocks[2].depths == std::vector<int64_t>{-1, -1, -1});
  for (const PromptBlock& b : blocks) CHECK(b.prompts.size() == b.depths.size());
  CHECK(blocks[0].prompts[0].text.find(data::kNoise) > blocks[0].prompts[0].text.find("pass key"));
  CHECK(blocks[0].prompts[0].references != blocks[0].prompts[1].references);
}

TEST_CASE("suite grid: so many depths from 0 to 100") {
  SuiteCall call = call_of({"passkey"});
  call.grid.lengths = {700};
  call.grid.samples = 1;
  call.grid.depth_count = 4;
  CHECK(make_blocks(call, suite_tokenizer())[0].depths == std::vector<int64_t>{0, 33, 67, 100});
  call.grid.depth_count = 1;
  CHECK(make_blocks(call, suite_tokenizer())[0].depths == std::vector<int64_t>{0});
}

TEST_CASE("suite grid: unknown, duplicate and too short tasks are refused") {
  CHECK_REFUSES(make_blocks(call_of({"needle"}), suite_tokenizer()), "'needle'", "known",
                "niah_single");
  CHECK_REFUSES(make_blocks(call_of({"copy", "copy"}), suite_tokenizer()), "copy", "duplicate");
  SuiteCall short_call = call_of({"cwe"});
  short_call.grid.lengths = {200};
  CHECK_REFUSES(make_blocks(short_call, suite_tokenizer()), "cwe", "at least", "200");
}

TEST_CASE("wilson: intervals of published tables") {
  // Newcombe, Statistics in Medicine 17 (1998), table I: the score method without continuity
  // correction.
  const struct {
    int64_t hits, n;
    double low, high;
  } cases[] = {{81, 263, 0.2553, 0.3662},
               {15, 148, 0.0624, 0.1605},
               {0, 20, 0, 0.1611},
               {1, 29, 0.0061, 0.1718}};
  for (const auto& c : cases) {
    const Interval i = wilson(double(c.hits) / double(c.n), c.n);
    CHECK(i.low == doctest::Approx(c.low).epsilon(6e-5));
    CHECK(i.high == doctest::Approx(c.high).epsilon(6e-5));
  }
  for (const int64_t n : {7, 9, 12}) {  // where rounding would leave the mean outside
    CHECK(wilson(0, n).low == 0);
    CHECK(wilson(1, n).high == 1);
  }
  CHECK(wilson(0.5, 0).low == 0);
  CHECK(wilson(0.5, 0).high == 1);
  CHECK_REFUSES(wilson(1.5, 3), "wilson", "1.5", "3");
}

// Blocks of hand-made prompts: of niah_single 4 at two depths, of copy 2.
std::vector<PromptBlock> hand_made() {
  std::vector<PromptBlock> out(2);
  out[0] = {.task = &data::prompt_task("niah_single"), .length = 8, .depths = {0, 0, 100, 100}};
  out[1] = {.task = &data::prompt_task("copy"), .length = 16, .depths = {-1, -1}};
  for (PromptBlock& b : out) b.prompts.resize(b.depths.size());
  return out;
}

MethodScores row(const std::string& method, std::optional<int64_t> k, double niah, double copy) {
  MethodScores out{.method = method, .k = k};
  out.scores = {std::vector<PromptScore>(4, {.generated = niah, .forced = niah, .nll = 1}),
                std::vector<PromptScore>(2, {.forced = copy, .nll = 4})};
  return out;
}

TEST_CASE("suite grid: means over a task, a length, a depth, and all") {
  const std::vector<PromptBlock> blocks = hand_made();
  MethodScores r = row("student", 16, 1, 0.25);
  r.scores[0][3] = {.generated = 0, .forced = 0.5, .nll = 3};
  const MeanScore all = mean_of(r, blocks, {});
  CHECK(all.prompts == 6);
  CHECK(all.generated_prompts == 4);
  CHECK(all.generated == 0.75);
  CHECK(all.forced == doctest::Approx(4. / 6));
  CHECK(all.nll == doctest::Approx(14. / 6));
  CHECK(mean_of(r, blocks, {.task = "copy"}).forced == 0.25);
  CHECK(mean_of(r, blocks, {.task = "copy"}).generated_prompts == 0);
  CHECK(mean_of(r, blocks, {.task = "niah_single", .depth = 100}).generated == 0.5);
  CHECK(mean_of(r, blocks, {.length = 16}).prompts == 2);
}

TEST_CASE("suite grid: the sparsest k within dense's interval, with no larger k outside it") {
  const std::vector<PromptBlock> blocks = hand_made();
  // Wilson's interval of 4 of 4 begins at 0.510.
  const MethodScores dense = row("dense", {}, 1, 1);
  auto sparsest = [&](const std::vector<MethodScores>& rows) {
    return sparsest_k("student", rows, dense, blocks, {.task = "niah_single"});
  };
  CHECK(sparsest({row("student", 8, 0.5, 0), row("student", 16, 0.52, 0), row("student", 32, 1, 0)})
            .generated == 16);
  const SparsestK last =
      sparsest({row("student", 8, 1, 0), row("student", 16, 0.5, 0), row("student", 32, 1, 0)});
  CHECK(last.generated == 32);
  CHECK(last.forced == 32);
  CHECK_FALSE(sparsest({row("student", 8, 1, 0), row("student", 16, 0.5, 0)}).generated);
  CHECK_FALSE(sparsest({row("top", 8, 1, 0)}).generated);
  const SparsestK copy =
      sparsest_k("student", {row("student", 8, 1, 1)}, dense, blocks, {.task = "copy"});
  CHECK_FALSE(copy.generated);  // nothing was generated
  CHECK(copy.forced == 8);
}

TEST_CASE("contenders: a method with settings of its config") {
  const Contender c = parse_contender("recent:k=7");
  CHECK(c.method == "recent");
  CHECK(c.settings.size() == 1);
  const Contender light = parse_contender("light:k=7");
  CHECK(light.name == "light:k=7");
  CHECK(light.method == "sea");
  CHECK(light.settings == parse_contender("sea:preset=light:k=7").settings);
  CHECK_REFUSES(parse_contender("nearest"), "nearest", "known", "recent");
  CHECK_REFUSES(parse_contender("recent:k"), "recent:k", "METHOD:KEY=VALUE");
  CHECK_REFUSES(parse_contender("recent:k=x"), "recent:k=x", "k", "integer");
  CHECK_REFUSES(parse_contender("recent:width=3"), "width");
  for (const std::string& name : default_contenders(1, 16))
    CHECK(parse_contender(name).name == name);
  CHECK(default_contenders(1, 16)[0] == "dense");
  CHECK(default_contenders(1, 8).back() == "recent:block=4:sinks=1");
  CHECK(default_contenders(1, 4).back() == "recent:block=4:sinks=0");
  CHECK(default_contenders(32, 32).back() == "recent:block=32:sinks=0");
  CHECK(default_contenders(1, 16, true) ==
        std::vector<std::string>{"dense", "recent:block=4:sinks=1"});

  Pair pair({.tokens = 24}, "sea");
  nn::LoadedModel m;
  m.config = pair.config;
  m.model = std::move(pair.student);
  const Tensor tokens = ids({1, 24}, 5, 37);
  auto logits = [&](nn::Model& model, int64_t k) {
    NoGrad off;
    return model.logits(model.hidden({.ids = tokens, .options = {.k = k}})).to_vector();
  };
  use_contender(m, parse_contender("recent:block=1:k=3"));
  CHECK(m.model->attention_name() == "recent");
  const std::vector<double> three = logits(*m.model, 0);
  CHECK(three == logits(*m.model, 3));
  CHECK(three != logits(*m.model, 4));
  use_contender(m, parse_contender("recent"));
  CHECK(logits(*m.model, 0) != three);  // the setting is not kept
  use_contender(m, parse_contender("dense"));
  CHECK(logits(*m.model, 0) == logits(*pair.teacher, 0));
}

}  // namespace
}  // namespace brine::test
