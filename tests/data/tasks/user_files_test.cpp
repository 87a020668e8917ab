// The task tsv: files of the user, as TSV and as JSON lines.
#include <doctest/doctest.h>

#include <limits>

#include "tests/data/tasks/task_files.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

// The task with these fields, "text", "label" or "text", "second", "label".
Task with_fields(const std::vector<std::string>& fields,
                 const std::vector<std::string>& labels = {}) {
  Task task = task_named("tsv");
  task.first = fields.front();
  task.second = fields.size() == 3 ? fields[1] : "";
  task.label = fields.back();
  task.labels = labels;
  return task;
}

Task scores() {
  Task task = with_fields({"a", "b", "score"});
  task.metrics = {Metric::pearson};
  task.highest = std::numeric_limits<double>::infinity();
  task.lowest = -task.highest;
  return task;
}

TaskExamples read(const Task& task, const Scratch& s, const std::string& split = "train") {
  return read_task(task, s.path(), split_named(task, split));
}

std::vector<double> targets(const TaskExamples& e) {
  std::vector<double> out;
  for (const TaskExample& row : e.rows) out.push_back(row.target);
  return out;
}

// A train file is refused with its path, then these parts in this order.
void refuses(const Task& task, const std::string& file, const std::string& content,
             std::initializer_list<std::string> parts) {
  Scratch s;
  const std::string path = s.write(file, content);
  const std::string text = message([&] { read(task, s); });
  CHECK_MESSAGE(text.starts_with(path + ":"), text);
  check_says(text.substr(std::min(path.size(), text.size())), parts);
}

}  // namespace

TEST_CASE("user files: columns by name, in any order, with the labels of the file sorted") {
  Scratch s;
  s.write("train.tsv", "id\tlabel\ttext\r\n7\twood\ta b\r\n8\tstone\tc\r\n9\twood\td\r\n");
  const TaskExamples e = read(with_fields({"text", "label"}), s);
  CHECK(e.labels == std::vector<std::string>{"stone", "wood"});
  CHECK(targets(e) == std::vector<double>{1, 0, 1});
  CHECK(e.rows[0].first == "a b");
  CHECK(e.rows[0].second.empty());
  CHECK(labels_of(with_fields({"text", "label"}), s.path(),
                  split_named(task_named("tsv"), "train")) == e.labels);
  // Numbers by their value.
  s.write("train.tsv", "text\tlabel\na\t10\nb\t9\nc\t-1\n");
  CHECK(read(with_fields({"text", "label"}), s).labels ==
        std::vector<std::string>{"-1", "9", "10"});
}

TEST_CASE("user files: columns by number in a file without a header line, pairs, scores") {
  Scratch s;
  s.write("train.tsv", "x\tone\ttwo\tyes\nx\tthree\tfour\tno\nx\tfive\tsix\tyes\n");
  const TaskExamples e = read(with_fields({"2", "3", "4"}), s);
  REQUIRE(e.rows.size() == 3);
  CHECK(e.rows[1].first == "three");
  CHECK(e.rows[1].second == "four");
  CHECK(targets(e) == std::vector<double>{1, 0, 1});
  s.write("train.tsv", "a\tb\tscore\nx\ty\t-2.5\nz\tw\t1e3\n");
  CHECK(targets(read(scores(), s)) == std::vector<double>{-2.5, 1000});
  CHECK(read(scores(), s).labels.empty());
}

TEST_CASE("user files: JSON lines, whose labels are texts, numbers or true and false") {
  Scratch s;
  s.write("train.jsonl",
          "{\"text\": \"a\\tb\", \"label\": 1, \"more\": [1]}\n{\"label\": 0, \"text\": \"c\"}");
  const TaskExamples e = read(with_fields({"text", "label"}), s);
  CHECK(e.labels == std::vector<std::string>{"0", "1"});
  CHECK(targets(e) == std::vector<double>{1, 0});
  CHECK(e.rows[0].first == "a\tb");
  s.write("train.jsonl",
          "{\"text\": \"a\", \"label\": true}\n{\"text\": \"c\", \"label\": \"x\"}\n");
  CHECK(read(with_fields({"text", "label"}), s).labels == std::vector<std::string>{"true", "x"});
  s.write("train.jsonl", "{\"a\": \"x\", \"b\": \"y\", \"score\": 2.5}\n");
  CHECK(targets(read(scores(), s)) == std::vector<double>{2.5});
}

TEST_CASE("user files: a model's labels by name, whatever their case, or by id") {
  Scratch s;
  const Task task = with_fields({"text", "label"}, {"NEGATIVE", "not-sure", "positive"});
  s.write("dev.tsv", "text\tlabel\na\tPositive\nb\tNot sure\nc\tnegative\nd\t2\n");
  CHECK(targets(read(task, s, "dev")) == std::vector<double>{2, 1, 0, 2});
  CHECK_FALSE(class_of(task, "3").has_value());
  CHECK_FALSE(class_of(task, "-1").has_value());
  // Not where the labels are numbers themselves, nor in the files of other tasks.
  const Task stars = with_fields({"text", "label"}, {"1", "2", "3"});
  CHECK(class_of(stars, "3") == 2);
  CHECK_FALSE(class_of(stars, "0").has_value());
  CHECK_FALSE(class_of(task_named("rte"), "0").has_value());
  CHECK_FALSE(class_of(task_named("rte"), "Entailment").has_value());
}

TEST_CASE("user files: which file is a split") {
  Scratch s;
  const Task task = with_fields({"text", "label"});
  const std::string rows = "text\tlabel\na\tx\nb\ty\n";
  for (const char* name : {"validation.tsv", "valid.tsv", "dev.tsv"}) {
    Scratch one;
    one.write(name, rows);
    CHECK(read(task, one, "dev").rows.size() == 2);
    CHECK(read(task, one, name).rows.size() == 2);
  }
  CHECK_REFUSES(read(task, s, "dev"), "dev.tsv", "dev.jsonl", "valid");
  CHECK_REFUSES(read(task, s), "contains no train.tsv", "train.jsonl");
  CHECK_REFUSES(read_task(task, s / "dev.tsv", split_named(task, "dev")), "dev.tsv",
                "is not a directory", "--data", "--split");
  s.write("valid.tsv", rows);
  s.write("dev.jsonl", "{}");
  CHECK_REFUSES(read(task, s, "dev"), "dev.jsonl", "valid.tsv", "both");
  CHECK_REFUSES(split_named(task, "user.csv"), "user.csv", "FILE.tsv", "FILE.jsonl");
  CHECK_REFUSES(split_named(task_named("rte"), "user.jsonl"), "user.jsonl");
}

TEST_CASE("user files: what is refused, with file and line") {
  const Task task = with_fields({"text", "label"}),
             of_model = with_fields({"text", "label"}, {"x", "y"});
  refuses(task, "train.tsv", "a great film\t1\na bad one\t0\n",
          {":1", "no column 'text'", "'a great film'", "--fields", "without a header"});
  refuses(task, "train.tsv", "text\tclass\na\t1\n", {":1", "no column 'label'", "'class'"});
  refuses(task, "train.tsv", "text\tlabel\na\t1\n\t0\n", {":3", "the text is empty"});
  refuses(task, "train.tsv", "text\tlabel\na\t1\nb\t \n", {":3", "the label is empty"});
  refuses(task, "train.tsv", "text\tlabel\na\t1\nb\n", {":3", "1", "2"});
  refuses(task, "train.tsv", "text\tlabel\na\t1\nb\t1\n", {"one label", "'1'", "--regression"});
  refuses(of_model, "train.tsv", "text\tlabel\na\tx\nb\tz\n",
          {":3", "label 'z'", "'x'", "'y'", "--labels"});
  refuses(with_fields({"a", "b", "label"}), "train.tsv", "a\tb\tlabel\nx\t \t1\n",
          {":2", "the second text is empty"});
  refuses(with_fields({"1", "2"}), "train.tsv", "text\tlabel\na\t1\nb\t0\nc\t1\n",
          {":1", "'label'", "--fields", "header"});
  refuses(with_fields({"1", "5"}), "train.tsv", "a\t1\n", {":1", "'5'", "'1'", "'2'"});
  refuses(scores(), "train.tsv", "a\tb\tscore\nx\ty\thigh\n", {":2", "'high'", "number"});
  refuses(task, "train.jsonl", "{\"text\": \"a\", \"label\": 1}\n\n", {":2", "JSON object"});
  refuses(task, "train.jsonl", "{\"text\": \"a\"}\n", {":1", "no key 'label'", "--fields"});
  refuses(task, "train.jsonl", "{\"text\": 5, \"label\": 1}\n", {":1", "'text' is 5", "a text"});
  refuses(task, "train.jsonl", "{\"text\": \"a\", \"label\": null}\n", {":1", "'label' is null"});
  refuses(task, "train.jsonl", "{\"text\": \"a\", \"label\": \"x\\ny\"}\n", {":1", "line break"});
  refuses(task, "train.jsonl", "{\"text\": \" \", \"label\": 1}\n", {":1", "the text is empty"});
}

TEST_CASE("user files: texts alone, of one field or two") {
  Scratch s;
  const std::string tsv = s.write("a.tsv", "b\ta\n1\t2\n"),
                    json = s.write("a.jsonl", "{\"a\": \"2\", \"b\": \"1\"}\n");
  for (const std::string& file : {tsv, json}) {
    const std::vector<TaskRow> two = read_texts(file, {"a", "b"});
    REQUIRE(two.size() == 1);
    CHECK(two[0].first == "2");
    CHECK(two[0].second == "1");
    CHECK(read_texts(file, {"b"})[0].first == "1");
  }
}
