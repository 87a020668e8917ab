// Scores of prompts: a model against single tokens and a plain greedy loop, and solvers that read
// the text or guess.
#include "distill/evaluation/suites/solver.h"

#include <doctest/doctest.h>

#include <cmath>

#include "tests/data/suites/solving.h"
#include "tests/distill/setup.h"
#include "tests/distill/task_setup.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

// The logits after `tokens`, from a pass over them alone.
std::vector<double> logits_after(nn::Model& model, const std::vector<int32_t>& tokens) {
  NoGrad off;
  const Tensor ids = Tensor::from(tokens, {1, int64_t(tokens.size())});
  const Tensor logits = model.logits(model.hidden({.ids = ids}));
  return logits.slice(1, logits.dim(1) - 1, 1).to_vector();
}

int32_t best_of(const std::vector<double>& logits) {
  return int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

std::vector<int32_t> greedy(nn::Model& model, std::vector<int32_t> tokens, size_t n) {
  const size_t begin = tokens.size();
  while (tokens.size() < begin + n) tokens.push_back(best_of(logits_after(model, tokens)));
  return {tokens.begin() + int64_t(begin), tokens.end()};
}

std::vector<int32_t> drawn(int64_t n, uint64_t seed) {
  const Tensor t = ids({n}, seed, 37);
  return {t.data<int32_t>(), t.data<int32_t>() + n};
}

// Prompts of different lengths with answers of different lengths.
std::vector<data::Prompt> some_prompts() {
  std::vector<data::Prompt> out;
  for (int64_t i = 0; i < 5; ++i) {
    data::Prompt p{.ids = drawn(6 + 3 * i, uint64_t(i)),
                   .answer = drawn(4 + i % 3, 90 + uint64_t(i)),
                   .scored = {},
                   .references = {"?"},
                   .answer_tokens = 6,
                   .text = {}};
    for (size_t a = 0; a < p.answer.size(); ++a) p.scored.push_back(a % 3 != 1);
    out.push_back(p);
  }
  return out;
}

TEST_CASE("solver: forced answers are the sums over single tokens, each from its own pass") {
  for (const char* method : {"flash", "sea"}) {
    Pair pair({.tokens = 40}, method);
    std::vector<data::Prompt> prompts = some_prompts();
    {
      // One whose last token is the likeliest, others before it are not.
      std::vector<int32_t> before = prompts[1].ids;
      before.insert(before.end(), prompts[1].answer.begin(), prompts[1].answer.end() - 1);
      prompts[1].answer.back() = best_of(logits_after(*pair.student, before));
    }
    ModelSolver solver(*pair.student, *byte_tokenizer());
    const std::vector<ForcedAnswer> got = solver.forced(prompts);
    REQUIRE(got.size() == prompts.size());
    for (size_t i = 0; i < prompts.size(); ++i) {
      const data::Prompt& p = prompts[i];
      std::vector<int32_t> prefix = p.ids;
      ForcedAnswer wanted{.all_hit = true};
      for (size_t a = 0; a < p.answer.size(); ++a) {
        const std::vector<double> logits = logits_after(*pair.student, prefix);
        const bool hit = best_of(logits) == p.answer[a];
        double sum = 0;
        for (double x : logits) sum += std::exp(x - logits[size_t(p.answer[a])]);
        wanted.all_hit = wanted.all_hit && hit;
        prefix.push_back(p.answer[a]);
        if (!p.scored[a]) continue;
        ++wanted.tokens;
        wanted.hits += hit;
        wanted.nll += std::log(sum);
      }
      INFO(method << " " << i);
      CHECK(got[i].tokens == wanted.tokens);
      CHECK(got[i].hits == wanted.hits);
      CHECK(got[i].all_hit == wanted.all_hit);
      CHECK(got[i].nll == doctest::Approx(wanted.nll).epsilon(1e-5));
    }
  }
}

TEST_CASE("solver: generated texts are those of a greedy loop, up to the last reference") {
  Pair pair({.tokens = 40}, "flash");
  const auto tokenizer = byte_tokenizer();
  std::vector<data::Prompt> prompts = some_prompts();
  std::vector<std::string> wanted;
  for (size_t i = 0; i < prompts.size(); ++i) {
    const std::vector<int32_t> ids = greedy(*pair.student, prompts[i].ids, 6);
    // The first prompts are to contain a text that comes early, the others one that never comes.
    const size_t until = i < 2 ? 3 + i : 6;
    wanted.push_back(tokenizer->decode(std::span(ids).first(until)));
    prompts[i].references = {i < 2 ? wanted[i] : "never"};
  }
  ModelSolver solver(*pair.student, *tokenizer);
  CHECK(solver.can_generate());
  CHECK(solver.generated(prompts) == wanted);
}

TEST_CASE("solver: an answer that is the likeliest throughout is what decoding gives") {
  Pair pair({.tokens = 40}, "flash");
  const auto tokenizer = byte_tokenizer();
  data::Prompt p = some_prompts()[2];
  p.answer = greedy(*pair.student, p.ids, 5);
  p.scored.assign(5, 1);
  p.references = {tokenizer->decode(p.answer)};
  ModelSolver solver(*pair.student, *tokenizer);
  const PromptScore score = score_prompts(solver, {&p, 1}, {})[0];
  CHECK(score.forced == 1);
  CHECK(score.generated == 1);
  CHECK(solver.generated({&p, 1})[0] == p.references[0]);
}

// Answers with what the text of a prompt says, or with nonsense; counts what it was asked.
class Reader : public Solver {
 public:
  explicit Reader(bool reads) : reads_(reads) {}
  std::vector<ForcedAnswer> forced(Prompts prompts) override {
    std::vector<ForcedAnswer> out;
    for (const data::Prompt& p : prompts) {
      const auto n = int64_t(std::count(p.scored.begin(), p.scored.end(), 1));
      out.push_back({.tokens = n, .hits = reads_ ? n : 0, .nll = double(n), .all_hit = false});
    }
    return out;
  }
  bool can_generate() const override { return true; }
  std::vector<std::string> generated(Prompts prompts) override {
    asked += int64_t(prompts.size());
    std::vector<std::string> out;
    for (const data::Prompt& p : prompts) {
      std::string text;
      if (reads_) {
        for (const std::string& answer : solve(p.text)) text += answer + "\n";
      } else {
        data::Draws draws(uint64_t(asked), "noise");
        for (int i = 0; i < 40; ++i) text += char(' ' + char(draws.below(95)));
      }
      out.push_back(text);
    }
    return out;
  }
  int64_t asked = 0;

 private:
  bool reads_;
};

TEST_CASE("solver: one that reads the text scores 1 in every task, one that guesses about 0") {
  for (const data::PromptTask& task : data::prompt_tasks()) {
    std::vector<data::Prompt> prompts;
    for (int64_t sample = 0; sample < 3; ++sample) {
      prompts.push_back(data::make_prompt(
          task, {suite_tokenizer(), noise()},
          {.length = task.name == "mqar" ? 140 : 1300, .depth = 30 * sample, .sample = sample}));
    }
    Reader reader(true), guesser(false);
    for (const PromptScore& s : score_prompts(reader, prompts, {.batch_size = 2})) {
      INFO(task.name);
      CHECK(s.has_generated() == task.generated);
      if (task.generated) CHECK(s.generated == 1);
      CHECK(s.forced == 1);
      CHECK(s.nll == 1);
    }
    for (const PromptScore& s : score_prompts(guesser, prompts, {.batch_size = 2})) {
      if (task.generated) CHECK(s.generated < 0.2);
      CHECK(s.forced == 0);
    }
    Reader silent(true);
    CHECK_FALSE(score_prompts(silent, prompts, {.generate = false})[0].has_generated());
    CHECK(silent.asked == 0);
  }
}

TEST_CASE("solver: prompts without tokens and encoders are refused") {
  Pair pair({.tokens = 40}, "flash");
  const auto tokenizer = byte_tokenizer();
  ModelSolver solver(*pair.student, *tokenizer);
  std::vector<data::Prompt> prompts = some_prompts();
  CHECK_REFUSES(solver.forced({}), "suite", "no prompts");
  prompts[1].scored.pop_back();
  CHECK_REFUSES(solver.forced(prompts), "suite", "answer", "marks");
  Encoder encoder("flash", 2);
  CHECK_REFUSES(ModelSolver(*encoder.model, *tokenizer), "suite", "causal");
}

}  // namespace
}  // namespace brine::test
