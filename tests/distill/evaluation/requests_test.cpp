// What an evaluation, a prediction and a sweep are, below the command line.
#include <doctest/doctest.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/io/json.h"
#include "distill/evaluation/evaluation.h"
#include "distill/evaluation/sweep_text.h"
#include "distill/evaluation/tasks/prediction.h"
#include "tests/distill/task_setup.h"
#include "tests/messages.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::test;

namespace {

nn::LoadedModel loaded_classifier(int64_t labels) {
  nn::LoadedModel m;
  m.config = encoder_config("flash", labels);
  m.model = nn::make_model(m.config, 3);
  m.store = std::make_unique<nn::ParameterStore>(*m.model);
  return m;
}

std::string predicted(nn::LoadedModel& m, const Prediction& what, const std::string& input) {
  std::istringstream in(input);
  std::ostringstream out;
  predict(m, *byte_tokenizer(), what, in, out);
  return out.str();
}

}  // namespace

TEST_CASE("prediction: lines come from files in their order, or from the input stream") {
  Scratch scratch;
  nn::LoadedModel m = loaded_classifier(2);
  const std::string one = scratch.write("one", "ab\nba"), two = scratch.write("two", "a\tb\n");
  const std::string of_files = predicted(m, {.texts = {one, two}}, "not read");
  CHECK(of_files == predicted(m, {}, "ab\nba\na\tb\n"));
  CHECK(std::count(of_files.begin(), of_files.end(), '\n') == 3);
  CHECK(of_files.starts_with("LABEL_"));
  CHECK(contains(message([&] { predicted(m, {}, "a\nb\xff"); }), "byte offset 3"));
  CHECK(contains(message([&] { predicted(m, {}, "a\tb\tc"); }), "stdin:1"));
}

TEST_CASE("prediction: all classes in descending order, as text and as JSON; - is stdin") {
  Scratch scratch;
  nn::LoadedModel m = loaded_classifier(3);
  const std::string file = scratch.write("one", "ab\ta\n"),
                    json = scratch.write("two.jsonl", "{\"text\": \"ab\", \"second\": \"a\"}"),
                    tsv = scratch.write("three.tsv", "second\ttext\na\tab\n");
  const std::string line = predicted(m, {.texts = {file}}, "");
  CHECK(predicted(m, {.texts = {"-"}}, "ab\ta") == line);
  for (const std::string& table : {json, tsv})
    CHECK(predicted(m, {.texts = {table}, .fields = "text,second"}, "") == line);
  const data::Json got = parse_ordered_json(predicted(m, {.texts = {file}, .json = true}, ""));
  CHECK(got["text"] == "ab");
  CHECK(got["second"] == "a");
  std::string again, separator;
  double sum = 0;
  for (const auto& [name, value] : got["probabilities"].items()) {
    char number[16];
    std::snprintf(number, sizeof number, "%.4f", double(value));
    again += separator + name + "\t" + number;
    separator = "\t";
    sum += double(value);
  }
  CHECK(again + "\n" == line);
  CHECK(line.starts_with(std::string(got["label"]) + "\t"));
  CHECK(sum == doctest::Approx(1));
  CHECK(predicted(m, {.texts = {json}}, "") == predicted(m, {}, "ab\n"));  // the key "text"
  m.config.family().set_class_head({.labels = 3, .task = "tsv:second,label"});
  CHECK(predicted(m, {.texts = {json}}, "") == predicted(m, {}, "a\n"));
  CHECK(message([&] { predicted(m, {}, "a\tb"); }) ==
        "stdin:1: has a tab, as a pair of texts, but the model was made for single texts");
  CHECK(contains(message([&] { predicted(m, {.texts = {tsv}, .fields = "text,second"}, ""); }),
                 "--fields has two texts"));
}

TEST_CASE("prediction: a regression prints scores alone, a model without a head is refused") {
  nn::LoadedModel regression = loaded_classifier(1), headless = loaded_classifier(0);
  const std::string score = predicted(regression, {}, "ab\n");
  CHECK_FALSE(contains(score, "\t"));
  CHECK(std::isfinite(std::stod(score)));
  CHECK(contains(message([&] { predicted(headless, {}, "ab\n"); }), "classification head"));
}

TEST_CASE("evaluation: the settings of text are those of a task, whose windows are texts") {
  Evaluation what;
  what.task = "mrpc";
  what.split = "dev";
  what.text.data = {"glue"};
  what.text.teacher = "t";
  what.text.sequence_length = 17;
  what.text.batch_size = 3;
  what.text.max_windows = 5;
  what.text.k = 2;
  what.text.query_skip = 4;
  what.text.path = AttentionPath::dense;
  const TaskEvaluation task = what.of_task();
  CHECK(task.task == "mrpc");
  CHECK(task.split == "dev");
  CHECK(task.data == what.text.data);
  CHECK(task.teacher == "t");
  CHECK(task.max_tokens == 17);
  CHECK(task.answer.batch_size == 3);
  CHECK(task.answer.max_texts == 5);
  CHECK(task.answer.options.k == 2);
  CHECK(task.answer.options.query_skip == 4);
  CHECK(task.answer.options.dense_path);
}

TEST_CASE("sweep: the columns of the table line up with its title, the file's are tabs apart") {
  const SweepCell cell{.k = 32,
                       .query_skip = 4,
                       .perplexity = 12.345678,
                       .recall = 0.5,
                       .keys_read = 40.5,
                       .ms = 3.25,
                       .bytes = 2e6};
  for (bool recall : {false, true}) {
    CHECK(table_title(recall).size() == table_line(cell, recall).size());
    const std::string title = tsv_title(recall), line = tsv_line(cell, recall);
    CHECK(std::count(title.begin(), title.end(), '\t') == (recall ? 6 : 5));
    CHECK(std::count(line.begin(), line.end(), '\t') == (recall ? 6 : 5));
  }
  CHECK(tsv_line(cell, true) == "32\t4\t12.345678\t40.50\t3.250\t2.000\t0.5000\n");
  CHECK(tsv_line(cell, false) == "32\t4\t12.345678\t40.50\t3.250\t2.000\n");
  SweepCell diverged = cell;
  diverged.perplexity = 1e300;
  const std::string wide = tsv_line(diverged, true);
  CHECK(wide.size() > 300);
  CHECK(wide.ends_with("\t3.250\t2.000\t0.5000\n"));
}
