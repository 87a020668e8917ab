// Labels of lines: a tab makes a pair for every classifier.
#include "distill/evaluation/tasks/prediction.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>

#include "distill/inputs/task_split.h"
#include "nn/models/bert/bert.h"
#include "tests/distill/task_setup.h"
#include "tests/messages.h"
#include "tests/refusals.h"

using namespace brine;
using namespace brine::test;

namespace {

nn::LoadedModel classifier(int64_t labels, const std::string& task = "") {
  nn::LoadedModel m;
  m.config = encoder_config("flash", labels);
  m.config.as<nn::BertConfig>().finetuning_task = task;
  m.model = nn::make_model(m.config, 3);
  m.store = std::make_unique<nn::ParameterStore>(*m.model);
  return m;
}

std::vector<LineLabel> labels(const nn::LoadedModel& m, std::vector<TextLine> lines) {
  return label_lines(m, *byte_tokenizer(), lines, 0, {});
}

}  // namespace

TEST_CASE("lines: a tab makes a pair, for a model that was made for no known task too") {
  const std::vector<TextLine> lines = text_lines("in", "ab\tcd\r\nab cd\ny\tx\nlast", {});
  REQUIRE(lines.size() == 4);
  CHECK(lines[0].first == "ab");
  CHECK(lines[0].second == "cd");
  CHECK(lines[1].first == "ab cd");
  CHECK_FALSE(lines[1].second.has_value());
  CHECK(lines[2].first == "y");
  CHECK(lines[2].second == "x");
  CHECK(lines[3].first == "last");
  CHECK_REFUSES(text_lines("in", "a\nb\tc\td", {}), "in:2", "more than one tab", "pair");
}

TEST_CASE("lines: empty texts are refused, and a pair where the task has one text") {
  const std::pair<const char*, const char*> cases[] = {{"a\n\nb", "in:2: the text is empty"},
                                                       {"a\n \t\n", "in:2: the text is empty"},
                                                       {"\tb", "in:1: the text is empty"},
                                                       {"a\t ", "in:1: the second text is empty"}};
  for (const auto& [text, wanted] : cases)
    CHECK(message([&, text = text] { text_lines("in", text, {}); }) == wanted);
  CHECK(text_lines("in", "a", false).size() == 1);
  CHECK(message([] { text_lines("in", "a\na\tb", false); }) ==
        "in:2: has a tab, as a pair of texts, but the model was made for single texts");
}

TEST_CASE("lines: a model of a task of pairs refuses a line without a tab") {
  CHECK(text_lines("in", "a\tb", true).size() == 1);
  for (const char* bad : {"a\tb\nno tab", "a\tb\nx\ty\tz"}) {
    CHECK(message([&] { text_lines("in", bad, true); }) ==
          "in:2: the model needs a pair of texts separated by one tab");
  }
  auto pairs = [](const std::string& task) { return takes_pairs({.labels = 2, .task = task}); };
  CHECK(pairs("mrpc") == true);
  CHECK(pairs("cola") == false);
  CHECK(pairs("tsv:text,label") == false);
  CHECK(pairs("tsv:premise,claim,label") == true);
  CHECK_FALSE(pairs("").has_value());
  CHECK_FALSE(pairs("of another program").has_value());
}

TEST_CASE(
    "lines: a pair is encoded as a pair: both texts with a [SEP] between, the second segment 1") {
  const nn::LoadedModel m = classifier(2);
  const std::vector<LineLabel> got = labels(m, text_lines("in", "ab\tcd\nab\nab cd", {}));
  REQUIRE(got.size() == 3);
  const data::TextTokens pair = data::TextEncoder(*byte_tokenizer(), 16).encode_pair("ab", "cd");
  auto tokens = std::make_shared<data::TaskTokens>(
      data::TaskTokens{.labels = {"LABEL_0", "LABEL_1"}, .labelled = false});
  tokens->texts = {pair};
  tokens->targets = {0};
  tokens->longest = int64_t(pair.ids.size());
  const TaskAnswers want = answer(*m.model, TaskSource(tokens, 0), {});
  const auto best = size_t(want.predictions[0]);
  CHECK(got[0].value == doctest::Approx(want.probabilities[best]).epsilon(1e-6));
  CHECK(got[0].name == "LABEL_" + std::to_string(best));
  REQUIRE(got[0].all.size() == 2);
  CHECK(got[0].all[0] == std::pair(got[0].name, got[0].value));
  CHECK(got[0].all[1].first == "LABEL_" + std::to_string(1 - best));
  CHECK(got[0].all[1].second == doctest::Approx(1 - got[0].value).epsilon(1e-6));
  CHECK(got[0].value != got[2].value);  // one text with a blank in it is something else
}

TEST_CASE("lines: a regression gives scores without names") {
  const nn::LoadedModel m = classifier(1);
  const std::vector<LineLabel> got = labels(m, text_lines("in", "ab\tcd", {}));
  REQUIRE(got.size() == 1);
  CHECK(got[0].name.empty());
  CHECK(got[0].all.empty());
  CHECK(std::isfinite(got[0].value));
  CHECK(labels(m, {}).empty());
}

TEST_CASE("lines: the probability is that of the head's problem_type") {
  nn::LoadedModel m = classifier(3);
  auto& config = m.config.as<nn::BertConfig>();
  const std::vector<TextLine> lines = text_lines("in", "ab", {});
  config.problem = nn::Problem::regression;
  const LineLabel score = labels(m, lines).at(0);
  NoGrad off;
  const std::vector<int32_t> ids = data::TextEncoder(*byte_tokenizer(), 16).encode("ab").ids;
  const Tensor input = Tensor::from(ids, {1, int64_t(ids.size())});
  const std::vector<double> logits =
      m.model->class_logits(m.model->hidden({.ids = input})).to_vector();
  const size_t best = size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
  const std::string name = "LABEL_" + std::to_string(best);
  CHECK(score.name == name);
  CHECK(score.value == doctest::Approx(logits[best]).epsilon(1e-5));
  config.problem = nn::Problem::multi_label;
  const LineLabel any = labels(m, lines).at(0);
  CHECK(any.name == name);
  CHECK(any.value == doctest::Approx(1 / (1 + std::exp(-logits[best]))).epsilon(1e-5));
  for (auto single : {std::optional<nn::Problem>(), std::optional(nn::Problem::single_label)}) {
    config.problem = single;
    double sum = 0;
    for (const double logit : logits) sum += std::exp(logit);
    CHECK(labels(m, lines).at(0).value ==
          doctest::Approx(std::exp(logits[best]) / sum).epsilon(1e-5));
  }
}

TEST_CASE("lines: one label that is a class has a name and the logistic function's probability") {
  nn::LoadedModel m = classifier(1);
  const std::vector<TextLine> lines = text_lines("in", "ab", {});
  const double logit = labels(m, lines).at(0).value;  // a regression without a problem_type
  m.config.as<nn::BertConfig>().problem = nn::Problem::multi_label;
  const LineLabel got = labels(m, lines).at(0);
  CHECK(got.name == "LABEL_0");
  CHECK(got.value == doctest::Approx(1 / (1 + std::exp(-logit))).epsilon(1e-6));
}
