// ListOps of Long Range Arena: directories that are written, files that are read, the tokenizer.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "data/codec/checksums.h"
#include "data/io/json.h"
#include "data/tasks/lra/listops.h"
#include "data/tasks/task_readers.h"
#include "data/tasks/task_tokens.h"
#include "tests/data/tasks/task_files.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

namespace fs = std::filesystem;

LraData small_listops(const fs::path& out, int64_t train = 40) {
  LraData what;
  what.task = "listops";
  what.out = out.string();
  what.train = train;
  what.valid = 20;
  what.test = 30;
  what.listops = {.min_length = 8, .max_length = 40};
  return what;
}

std::vector<std::string> names_in(const fs::path& dir) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(dir)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

std::string refusal(const std::string& task, const fs::path& dir, const std::string& split) {
  return message([&] { read_split(task, dir, split); });
}

}  // namespace

TEST_CASE("lra: a directory of ListOps has three splits of different expressions, and a manifest") {
  Scratch scratch;
  const auto manifest = write_lra_data(small_listops(scratch / "a"), 5);
  CHECK(names_in(scratch / "a") == std::vector<std::string>{"basic_test.tsv", "basic_train.tsv",
                                                            "basic_val.tsv", "manifest.json"});
  CHECK(parse_ordered_json(read_file(scratch / "a/manifest.json")) == manifest);
  CHECK(manifest["seed"] == 5);
  CHECK(manifest["rules"]["min_length"] == 8);
  std::set<std::string> all;
  for (const auto& [name, split] :
       std::map<std::string, std::string>{{"train", "train"}, {"valid", "dev"}, {"test", "test"}}) {
    const TaskExamples read = read_split("listops", scratch / "a", split);
    const auto& about = manifest["splits"][name];
    REQUIRE(int64_t(read.rows.size()) == about["examples"].get<int64_t>());
    std::map<double, int64_t> classes;
    int64_t largest = 0;
    for (const TaskExample& e : read.rows) {
      all.insert(e.first);
      CHECK(e.target == double(listops_value(e.first)));
      largest = std::max(largest, ++classes[e.target]);
    }
    CHECK(about["largest_class"].get<double>() == double(largest) / double(read.rows.size()));
    const Path file = scratch / ("a/" + about["file"].get<std::string>());
    CHECK(about["sha256"] == sha256_file(file.string()));
  }
  CHECK(all.size() == 40 + 20 + 30);
}

TEST_CASE("lra: files are a function of the seed; other splits do not change the test split") {
  Scratch scratch;
  write_lra_data(small_listops(scratch / "a"), 5);
  write_lra_data(small_listops(scratch / "b"), 5);
  write_lra_data(small_listops(scratch / "c", 90), 5);
  write_lra_data(small_listops(scratch / "d"), 6);
  auto content = [&](const std::string& name) { return read_file(scratch / name); };
  for (const std::string& name : names_in(scratch / "a")) {
    CHECK(content("a/" + name) == content("b/" + name));
    CHECK(content("a/" + name) != content("d/" + name));
  }
  CHECK(content("a/basic_test.tsv") == content("c/basic_test.tsv"));
  CHECK(content("c/basic_train.tsv").starts_with(content("a/basic_train.tsv")));
  CHECK(content("a/basic_test.tsv").starts_with("Source\tTarget\n["));
}

TEST_CASE("lra: a directory with files is kept, and a failure leaves nothing") {
  Scratch scratch;
  fs::create_directories(scratch / "empty");
  write_lra_data(small_listops(scratch / "empty"), 1);
  const std::string before = read_file(scratch / "empty/basic_test.tsv");
  CHECK_REFUSES(write_lra_data(small_listops(scratch / "empty"), 2), "empty", "exists already");
  CHECK(read_file(scratch / "empty/basic_test.tsv") == before);
  LraData impossible = small_listops(scratch / "none");
  impossible.listops = {.max_depth = 2, .max_args = 2, .min_length = 4, .max_length = 4};
  impossible.train = 401;
  CHECK_REFUSES(write_lra_data(impossible, 1), "no new expression");
  impossible.listops.min_length = 5;
  CHECK_REFUSES(write_lra_data(impossible, 1), "min_length 5", "max_length 4");
  CHECK(names_in(scratch.path()) == std::vector<std::string>{"empty"});
}

TEST_CASE("lra: files of ListOps as Long Range Arena has them, and malformed ones") {
  Scratch scratch;
  const std::string file = scratch / "basic_val.tsv";
  auto write = [&](const std::string& rows) { write_text(file, "Source\tTarget\n" + rows); };
  write("( ( ( [MAX 2 ) ( ( ( [SM 4 ) 9 ) ] ) ) ] )\t3\n[MIN 4 2 ]\t2\n");
  const TaskExamples read = read_split("listops", scratch.path(), "dev");
  REQUIRE(read.rows.size() == 2);
  CHECK(read.rows[0].first == "[MAX 2 [SM 4 9 ] ]");
  CHECK(read.rows[0].target == 3);
  CHECK(read.labels.size() == 10);
  CHECK(read.labelled);
  auto refused = [&](const std::string& rows, std::initializer_list<std::string> parts) {
    write(rows);
    check_says(refusal("listops", scratch.path(), "dev"), parts);
  };
  refused("[MIN 4 2 ]\t2\n[MIN 4 2 ]\t4\n", {"basic_val.tsv:3", "Target is 4", "value is 2"});
  refused("[MIN 4 2 ]\t12\n", {"basic_val.tsv:2", "Target '12'"});
  refused("[MIN 4 2\t2\n", {"basic_val.tsv:2", "not closed"});
  refused("[SUM 4 2 ]\t6\n", {"basic_val.tsv:2", "unknown token '[SUM'"});
  refused("[MIN 4 2 ]\n", {"basic_val.tsv:2", "1 fields"});
  refused("", {"no rows"});
  write_text(file, "Text\tTarget\n[MIN 4 2 ]\t2\n");
  check_says(refusal("listops", scratch.path(), "dev"), {"Source"});
  check_says(refusal("listops", scratch.path(), "train"), {"basic_train.tsv"});
}

TEST_CASE("lra: the tokenizer of new models, saved and loaded again") {
  const std::unique_ptr<Tokenizer> words = listops_tokenizer();
  CHECK(words->around().front == std::vector<int32_t>{*words->id_of("[CLS]")});
  CHECK(words->around().back == std::vector<int32_t>{*words->id_of("[SEP]")});
  CHECK(words->vocab_size() == 20);
  CHECK(words->special().pad == 0);
  CHECK(words->encode("[MAX 2 9 [SM 0 ] ]") == std::vector<int32_t>{16, 7, 14, 18, 5, 19, 19});
  CHECK(words->encode("[MIN [MED 1 ] ]") == std::vector<int32_t>{15, 17, 6, 19, 19});
  Scratch scratch;
  words->save((scratch / "tok").string());
  const std::unique_ptr<Tokenizer> loaded = load_tokenizer((scratch / "tok").string());
  const char* text = "[MAX 2 9 [SM 0 ] ]";
  CHECK(loaded->hash() == words->hash());
  CHECK(loaded->encode(text) == words->encode(text));
  CHECK(loaded->id_of("[CLS]") == 2);
  CHECK(loaded->decode(words->encode(text)) == text);
  // A text of a task: the expression between [CLS] and [SEP].
  const Task& task = task_named("listops");
  const TaskTokens tokens = tokenize_task(
      task, {.labels = task.labels, .rows = {{.first = "[MIN 4 2 ]", .target = 2}}}, *words, 16);
  CHECK(tokens.texts[0].ids == std::vector<int32_t>{2, 15, 9, 7, 19, 3});
}
