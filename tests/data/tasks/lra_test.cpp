// Tasks of Long Range Arena: directories that are written, files that are read, tokenizers.
#include <doctest/doctest.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "data/codec/sha256.h"
#include "data/io/json.h"
#include "data/tasks/lra/lra_data.h"
#include "data/tasks/lra/lra_tokenizers.h"
#include "data/tasks/task_tokens.h"
#include "tests/data/tasks/task_files.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/scratch.h"

using namespace brine;
using namespace brine::data;
using test::check_says;
using test::message;
using test::read_split;
using test::Scratch;
using test::write_text;

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

LraData small_pathfinder(const fs::path& out) {
  LraData what = small_listops(out);
  what.task = "pathfinder";
  what.train = 24;
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
  write_lra_data(small_pathfinder(scratch / "p"), 5);
  write_lra_data(small_pathfinder(scratch / "q"), 5);
  for (const std::string& name : names_in(scratch / "p")) {
    CHECK(content("p/" + name) == content("q/" + name));
  }
}

TEST_CASE("lra: a split of Pathfinder has both classes equally often, and is read as pixels") {
  Scratch scratch;
  const auto manifest = write_lra_data(small_pathfinder(scratch / "p"), 1);
  const std::string bytes = read_file(scratch / "p/train.bin");
  REQUIRE(bytes.size() == 24 * 1025);
  const TaskExamples read = read_split("pathfinder", scratch / "p", "train");
  REQUIRE(read.rows.size() == 24);
  double connected = 0;
  const std::unique_ptr<Tokenizer> pixels = pixel_tokenizer();
  for (size_t i = 0; i < 24; ++i) {
    const auto* record = reinterpret_cast<const unsigned char*>(bytes.data()) + i * 1025;
    CHECK(read.rows[i].target == double(record[0]));
    connected += read.rows[i].target;
    const std::vector<int32_t> ids = pixels->encode(read.rows[i].first);
    REQUIRE(ids.size() == 1024);
    bool same = true;
    for (size_t p = 0; p < 1024; ++p) same = same && ids[p] == 5 + record[1 + p];
    CHECK(same);
  }
  CHECK(connected == 12);
  std::set<std::string> images;
  for (const char* split : {"train", "dev", "test"}) {
    for (const TaskExample& e : read_split("pathfinder", scratch / "p", split).rows) {
      CHECK(images.insert(e.first).second);
    }
  }
  CHECK(manifest["splits"]["train"]["largest_class"] == 0.5);
  write_text(scratch / "p/test.bin", bytes.substr(0, 2000));
  check_says(refusal("pathfinder", scratch / "p", "test"), {"test.bin", "2000 bytes", "1025"});
  write_text(scratch / "p/test.bin", "\2" + bytes.substr(1, 1024));
  check_says(refusal("pathfinder", scratch / "p", "test"), {"test.bin", "record 0", "class 2"});
}

TEST_CASE("lra: a directory with files is kept, and a failure leaves nothing") {
  Scratch scratch;
  fs::create_directories(scratch / "empty");
  write_lra_data(small_listops(scratch / "empty"), 1);
  const std::string before = read_file(scratch / "empty/basic_test.tsv");
  check_says(message([&] { write_lra_data(small_listops(scratch / "empty"), 2); }),
             {"empty", "exists already"});
  CHECK(read_file(scratch / "empty/basic_test.tsv") == before);
  LraData impossible = small_listops(scratch / "none");
  impossible.listops = {.max_depth = 2, .max_args = 2, .min_length = 4, .max_length = 4};
  impossible.train = 401;
  check_says(message([&] { write_lra_data(impossible, 1); }), {"no new expression"});
  impossible.listops.min_length = 5;
  check_says(message([&] { write_lra_data(impossible, 1); }), {"min_length 5", "max_length 4"});
  LraData crowded = small_pathfinder(scratch / "none");
  crowded.pathfinder = {.dashes = 10, .distractors = 8};
  check_says(message([&] { write_lra_data(crowded, 1); }), {"did not fit"});
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

TEST_CASE("lra: tokenizers of new models, saved and loaded again") {
  const std::unique_ptr<Tokenizer> words = listops_tokenizer();
  CHECK(words->vocab_size() == 20);
  CHECK(words->special().pad == 0);
  CHECK(words->encode("[MAX 2 9 [SM 0 ] ]") == std::vector<int32_t>{16, 7, 14, 18, 5, 19, 19});
  CHECK(words->encode("[MIN [MED 1 ] ]") == std::vector<int32_t>{15, 17, 6, 19, 19});
  Scratch scratch;
  using Make = std::unique_ptr<Tokenizer> (*)();
  const std::pair<Make, const char*> cases[] = {{listops_tokenizer, "[MAX 2 9 [SM 0 ] ]"},
                                                {pixel_tokenizer, "0 255 17 100"}};
  for (const auto& [make, text] : cases) {
    const std::unique_ptr<Tokenizer> made = make();
    made->save((scratch / "tok").string());
    const std::unique_ptr<Tokenizer> loaded = load_tokenizer((scratch / "tok").string());
    CHECK(loaded->hash() == made->hash());
    CHECK(loaded->encode(text) == made->encode(text));
    CHECK(loaded->id_of("[CLS]") == 2);
    CHECK(loaded->decode(made->encode(text)) == text);
    fs::remove_all(scratch / "tok");
  }
  // A text of a task: the expression between [CLS] and [SEP].
  const Task& task = task_named("listops");
  const TaskTokens tokens = tokenize_task(
      task, {.labels = task.labels, .rows = {{.first = "[MIN 4 2 ]", .target = 2}}}, *words, 16);
  CHECK(tokens.texts[0].ids == std::vector<int32_t>{2, 15, 9, 7, 19, 3});
}
