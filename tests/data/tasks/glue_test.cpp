// GLUE's files as they are distributed, well-formed and not.
#include <doctest/doctest.h>

#include <iostream>

#include "tensor/base/error.h"
#include "tests/data/tasks/task_files.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

struct Row {
  std::string first, second;
  double target;
};

void check_rows(const TaskExamples& got, bool labelled, const std::vector<Row>& want) {
  CHECK(got.labelled == labelled);
  REQUIRE(got.rows.size() == want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    CAPTURE(i);
    CHECK(got.rows[i].first == want[i].first);
    CHECK(got.rows[i].second == want[i].second);
    CHECK(got.rows[i].target == want[i].target);
  }
}

// Reading the split is refused with the file's path, then these parts in this order.
void refuses(const std::string& task, const std::string& split, const std::string& file,
             const std::string& content, std::initializer_list<std::string> parts) {
  Scratch scratch;
  const std::string path = write_task_file(scratch.path(), task_named(task).folder, file, content);
  const std::string text = message([&] { read_split(task, scratch.path(), split); });
  CHECK_MESSAGE(text.starts_with(path + ":"), text);
  check_says(text.substr(std::min(path.size(), text.size())), parts);
}

}  // namespace

TEST_CASE("glue: CoLA has no header but in test; quotes are text; the last newline may be lost") {
  Scratch s;
  write_task_file(s.path(), "CoLA", "train.tsv",
                  "gj04\t1\t\tThey said \"no.\ngj04\t0\t*\tHim \"s\" went.");
  check_rows(read_split("cola", s.path(), "train"), true,
             {{"They said \"no.", "", 1}, {"Him \"s\" went.", "", 0}});
  write_task_file(s.path(), "CoLA", "test.tsv", "index\tsentence\n4\tA.\n7\tB.\n");
  check_rows(read_split("cola", s.path(), "test"), false, {{"A.", "", 0}, {"B.", "", 0}});
  // Either the task's folder or its parent may be given.
  check_rows(read_split("cola", s / "CoLA", "test"), false, {{"A.", "", 0}, {"B.", "", 0}});
}

TEST_CASE("glue: the other tasks, columns by name") {
  Scratch s;
  write_task_file(s.path(), "SST-2", "dev.tsv", "sentence\tlabel\r\nso good \t1\r\nso bad \t0\r\n");
  check_rows(read_split("sst2", s.path(), "dev"), true, {{"so good ", "", 1}, {"so bad ", "", 0}});
  write_task_file(s.path(), "MRPC", "dev.tsv",
                  "\xef\xbb\xbfQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\n"
                  "1\t13\t15\t\" A 's .\tB \" .\n");
  check_rows(read_split("mrpc", s.path(), "dev"), true, {{"\" A 's .", "B \" .", 1}});
  write_task_file(s.path(), "MRPC", "test.tsv",
                  "index\t#1 ID\t#2 ID\t#1 String\t#2 String\n0\t10\t11\ta\tb\n");
  check_rows(read_split("mrpc", s.path(), "test"), false, {{"a", "b", 0}});
  write_task_file(s.path(), "STS-B", "dev.tsv",
                  "index\tgenre\tfilename\tyear\told_index\tsource1\tsource2\tsentence1\tsentence2"
                  "\tscore\n0\tm\tf\t2012\t1\tnone\tnone\ta b\tc d\t3.250\n");
  check_rows(read_split("stsb", s.path(), "dev"), true, {{"a b", "c d", 3.25}});
  std::string mnli =
      "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
      "sentence1_parse\tsentence2_parse\tsentence1\tsentence2";
  std::string parses = "0\t1\t1e\tfiction\t( a )\t( b )\t(A a)\t(B b)\tpremise\thypothesis";
  write_task_file(s.path(), "MNLI", "train.tsv",
                  mnli + "\tlabel1\tgold_label\n" + parses + "\tneutral\tneutral\n");
  check_rows(read_split("mnli", s.path(), "train"), true, {{"premise", "hypothesis", 1}});
  for (const char* side : {"matched", "mismatched"}) {
    write_task_file(s.path(), "MNLI", std::string("dev_") + side + ".tsv",
                    mnli + "\tlabel1\tlabel2\tlabel3\tlabel4\tlabel5\tgold_label\n" + parses +
                        "\tneutral\tneutral\tneutral\tentailment\tneutral\tcontradiction\n");
    check_rows(read_split("mnli", s.path(), std::string("dev_") + side), true,
               {{"premise", "hypothesis", 2}});
    write_task_file(s.path(), "MNLI", std::string("test_") + side + ".tsv",
                    mnli + "\n" + parses + "\n");
    check_rows(read_split("mnli", s.path(), std::string("test_") + side), false,
               {{"premise", "hypothesis", 0}});
  }
  write_task_file(s.path(), "QNLI", "train.tsv",
                  "index\tquestion\tsentence\tlabel\n5\tq?\ts.\tnot_entailment\n");
  check_rows(read_split("qnli", s.path(), "train"), true, {{"q?", "s.", 1}});
  write_task_file(s.path(), "RTE", "train.tsv",
                  "index\tsentence1\tsentence2\tlabel\n0\ta\tb\tentailment\n");
  check_rows(read_split("rte", s.path(), "train"), true, {{"a", "b", 0}});
  write_task_file(s.path(), "WNLI", "train.tsv",
                  "index\tsentence1\tsentence2\tlabel\n0\ta\tb\t1\n");
  check_rows(read_split("wnli", s.path(), "train"), true, {{"a", "b", 1}});
}

TEST_CASE("glue: a question of QQP may contain line breaks") {
  Scratch s;
  std::string header = "id\tqid1\tqid2\tquestion1\tquestion2\tis_duplicate\n";
  write_task_file(s.path(), "QQP", "train.tsv",
                  header + "9\t1\t2\t\"Is it so?\n\"\tWhy?\t0\n8\t3\t4\ta\tb\n\nc\t1\n");
  check_rows(read_split("qqp", s.path(), "train"), true,
             {{"\"Is it so? \"", "Why?", 0}, {"a", "b  c", 1}});
  write_task_file(s.path(), "QQP", "test.tsv", "id\tquestion1\tquestion2\n0\ta\tb\n1\t\tc\n");
  check_rows(read_split("qqp", s.path(), "test"), false, {{"a", "b", 0}, {"", "c", 0}});
  // A lost field takes the next row with it, and that shows.
  refuses("qqp", "train", "train.tsv",
          header + "9\t1\t2\ta\tb\t0\n8\t3\t4\ta\tb\n7\t5\t6\tc\td\t1\n",
          {":3", "10", "6", "3", "4"});
  refuses("qqp", "train", "train.tsv", header + "8\t3\t4\ta\tb\n", {":2", "5", "6"});
}

TEST_CASE("glue: errors name file and line") {
  std::string cola = "x\t1\t\tA.\n", sst = "sentence\tlabel\n";
  refuses("cola", "train", "train.tsv", cola + "x\t1\tA.\n", {":2", "3", "4"});
  refuses("cola", "train", "train.tsv", cola + "x\t2\t\tA.\n",
          {":2", "label", "'2'", "'0'", "'1'"});
  refuses("sst2", "train", "train.tsv", sst + "a\t1\n\nb\t0\n", {":3", "1", "2"});
  refuses("sst2", "train", "train.tsv", sst + "a\tb\t1\n", {":2", "3", "2"});
  refuses("sst2", "train", "train.tsv", sst + "a\t\n", {":2", "label", "''", "'0'", "'1'"});
  refuses("sst2", "train", "train.tsv", "text\tlabel\na\t1\n",
          {":1", "column", "'sentence'", "'text'", "'label'"});
  refuses("sst2", "train", "train.tsv", "label\tlabel\na\t1\n",
          {":1", "column", "'label'", "twice"});
  refuses("sst2", "train", "train.tsv", "", {"no text"});
  refuses("sst2", "train", "train.tsv", sst + "caf\xe9\t1\n", {"UTF-8", "18", "0xe9"});
  std::string stsb = "sentence1\tsentence2\tscore\n";
  refuses("stsb", "train", "train.tsv", stsb + "a\tb\thigh\n", {":2", "score", "'high'", "number"});
  refuses("stsb", "train", "train.tsv", stsb + "a\tb\t1 \n", {":2", "score", "'1 '", "number"});
  refuses("stsb", "train", "train.tsv", stsb + "a\tb\tnan\n", {":2", "score", "'nan'", "number"});
  refuses("stsb", "train", "train.tsv", stsb + "a\tb\t5.5\n", {":2", "score", "5.5", "[0, 5]"});
  refuses("mnli", "train", "train.tsv", "sentence1\tsentence2\tgold_label\na\tb\t-\n",
          {":2", "label", "'-'", "'entailment'", "'neutral'", "'contradiction'"});
  Scratch s;
  write_task_file(s.path(), "RTE", "dev.tsv", "index\tsentence1\tsentence2\tlabel\n");
  CHECK_REFUSES(read_split("rte", s.path(), "dev"), "split dev of task rte has no rows");
  CHECK_REFUSES(read_split("rte", s.path(), "train"), (s / "RTE" / "train.tsv: ").c_str());
}

TEST_CASE("tasks: names of tasks and splits; a file of the user as a split") {
  CHECK_REFUSES(task_named("glue"), "task", "glue", "cola", "sst2", "mrpc", "qqp", "stsb", "mnli",
                "qnli", "rte", "wnli", "wordnet", "books");
  CHECK_REFUSES(split_named(task_named("cola"), "valid"), "task cola", "valid", "train", "dev",
                "test", "FILE.tsv");
  CHECK_REFUSES(split_named(task_named("wordnet"), "x.tsv"), "task wordnet", "x.tsv", "train",
                "dev", "test");
  CHECK(dev_splits_of(task_named("mnli")).size() == 2);
  CHECK_THROWS_WITH_AS(read_split("cola", "", "dev"), "task cola: its data directory must be given",
                       Error);
  Scratch s;
  write_task_file(s.path(), "MNLI", "own.tsv",
                  "gold_label\tsentence2\tsentence1\nentailment\tb\ta\n");
  check_rows(read_split("mnli", s.path(), "own.tsv"), true, {{"a", "b", 0}});
}
