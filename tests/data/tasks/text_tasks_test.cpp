// The tasks of WordNet's glosses and of passages of books.
#include <doctest/doctest.h>

#include <array>
#include <iostream>
#include <map>

#include "tensor/base/error.h"
#include "tests/data/tasks/task_files.h"
#include "tests/scratch.h"
#include "tests/skip.h"

using namespace brine;
using namespace brine::data;
using namespace brine::test;

namespace {

// A small WordNet; each line contains its offset, as the format requires.
struct SmallWordNet {
  Scratch scratch;

  SmallWordNet() {
    for (const char* name : {"noun", "verb", "adj", "adv"}) write(name, {});
  }
  std::string path(const std::string& name) { return scratch / ("data." + name); }
  void write(const std::string& name, const std::vector<std::string>& synsets) {
    std::string text = "  1 This software is licensed  \n  2 so and so  \n";
    for (const std::string& synset : synsets) {
      std::string offset = std::to_string(text.size());
      text += std::string(8 - offset.size(), '0') + offset + " " + synset + "\n";
    }
    write_text(path(name), text);
  }
};

}  // namespace

TEST_CASE("wordnet: glosses and lexicographer files; equal definitions fall on one side") {
  SmallWordNet wn;
  std::vector<std::string> synsets;
  for (int i = 0; i < 400; ++i) {
    std::string file = i % 2 ? "05" : "44", gloss = "number " + std::to_string(i / 2) + " of all";
    synsets.push_back(file + " n 01 word 0 000 | " + gloss + "; \"use " + std::to_string(i) +
                      "\"  ");
  }
  wn.write("noun", synsets);
  wn.write("adv", {"02 r 01 so 0 000 | in this way"});
  std::map<std::string, std::string> side;  // of a definition
  size_t total = 0;
  for (std::string split : {"train", "dev", "test"}) {
    TaskExamples e = read_split("wordnet", wn.scratch.path(), split);
    CHECK(e.labelled);
    REQUIRE(e.labels.size() == 45);
    total += e.rows.size();
    if (split != "train") {  // 20 are expected, in pairs
      CHECK(e.rows.size() >= 4);
      CHECK(e.rows.size() <= 46);
    }
    for (const TaskExample& row : e.rows) {
      std::string label = e.labels[size_t(row.target)];
      if (row.first == "in this way") {
        CHECK(label == "adv.all");
        continue;
      }
      size_t quote = row.first.find("; \"use ");
      REQUIRE(quote != std::string::npos);
      int number = std::stoi(row.first.substr(quote + 7));
      CHECK(label == (number % 2 ? "noun.animal" : "adj.ppl"));
      CHECK(row.first.back() == '"');
      auto [at, fresh] = side.emplace(row.first.substr(0, quote), split);
      CHECK(at->second == split);
    }
  }
  CHECK(total == 401);
}

TEST_CASE("wordnet: errors name file and line") {
  struct Case {
    std::string synset, message;
  };
  for (const Case& c : std::initializer_list<Case>{
           {"45 n 01 w 0 000 | gloss", ": lexicographer file 45, there are 45"},
           {"5 n 01 w 0 000 | gloss", ": does not start like a synset (\"OFFSET FILE TYPE\")"},
           {"05 n 01 w 0 000", ": synset without a gloss"},
           {"05 n 01 w 0 000 |    ", ": the gloss is empty"}}) {
    SmallWordNet wn;
    wn.write("verb", {"29 v 01 w 0 000 | fine", c.synset});
    CHECK_THROWS_WITH_AS(read_split("wordnet", wn.scratch.path(), "train"),
                         (wn.path("verb") + ":4" + c.message).c_str(), Error);
  }
  SmallWordNet wn;
  write_text(wn.path("adj"), "  1 x\n00000007 00 a 01 w 0 000 | gloss\n");
  CHECK_THROWS_WITH_AS(read_split("wordnet", wn.scratch.path(), "dev"),
                       (wn.path("adj") + ":2: synset offset 7 at byte 6").c_str(), Error);
  CHECK_THROWS_WITH_AS(read_split("wordnet", wn.scratch / "none", "dev"),
                       doctest::Contains("Debian's package is wordnet-base"), Error);
}

TEST_CASE("wordnet: the Debian package (needs WordNet)") {
  const Task& task = task_named("wordnet");
  if (!std::filesystem::exists(task.default_data + "/data.noun")) {
    return test::skip("the package wordnet-base is not installed");
  }
  std::map<std::string, size_t> rows;
  std::array<int, 45> files = {};
  for (std::string split : {"train", "dev", "test"}) {
    TaskExamples e = read_task(task, "", split_named(task, split));
    rows[split] = e.rows.size();
    for (const TaskExample& row : e.rows) ++files[size_t(row.target)];
  }
  // WordNet 3.0: 82115 nouns, 13767 verbs, 18156 adjectives, 3621 adverbs.
  CHECK(rows["train"] + rows["dev"] + rows["test"] == 117659);
  CHECK(files[2] == 3621);
  CHECK(files[5] == 7509);
  CHECK(files[3] == 51);
  for (const char* held_out : {"dev", "test"}) {
    CHECK(rows[held_out] > 117659 / 20 - 400);
    CHECK(rows[held_out] < 117659 / 20 + 400);
  }
}

TEST_CASE("books: stretches of every book, without their headings") {
  Scratch s;
  std::string one, two;
  for (int i = 0; i < 200; ++i) one += "line " + std::to_string(1000 + i) + " of one\n";
  for (int i = 0; i < 100; ++i) two += "and " + std::to_string(1000 + i) + " of two\n";
  write_text(s / "a.txt", "# Title: One\n\n## Author: A\n\n-------\n\n" + one +
                              "<|endoftext|>\n# Title: Two\n" + two + "<|endoftext|>");
  write_text(s / "b.txt", "no heading\n");
  write_text(s / "notes.md", "not a book\n");
  std::map<std::string, std::vector<std::string>> text;
  for (std::string split : {"train", "dev", "test"}) {
    TaskExamples e = read_split("books", s.path(), split);
    CHECK(e.labels == std::vector<std::string>{"One", "Two", "b"});
    text[split].resize(3);
    for (const TaskExample& row : e.rows) text[split][size_t(row.target)] += row.first;
  }
  CHECK(text["dev"][0].starts_with("line 1070 of one\n"));
  CHECK(text["dev"][0].size() == one.size() / 20);
  CHECK(text["test"][1].starts_with("and 1070 of two\n"));
  CHECK(text["test"][1].size() == two.size() / 20);
  CHECK(text["train"][0].size() + text["dev"][0].size() + text["test"][0].size() ==
        one.size() + 1);  // the blank line after the heading
  CHECK(text["train"][2] == "no heading\n");
  for (auto& [split, books] : text) {
    CHECK(books[0].find("Title") == std::string::npos);
    CHECK(books[0].find("Author") == std::string::npos);
    CHECK(books[1].find("one") == std::string::npos);
  }
  // A single file is as good as a directory.
  CHECK(read_split("books", s / "a.txt", "dev").labels.size() == 2);
  CHECK_THROWS_WITH_AS(read_split("books", s / "b.txt", "dev"),
                       doctest::Contains("1 book, but classification needs at least two"), Error);
  write_text(s / "b.txt", "# Title: Two\nagain\n");
  CHECK_THROWS_WITH_AS(read_split("books", s.path(), "dev"),
                       ((s / "b.txt").string() + ": a second book 'Two'").c_str(), Error);
}
