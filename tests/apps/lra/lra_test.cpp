// ListOps by the program: data, a model without weights, a student, and bad input.
#include <nlohmann/json.hpp>

#include "tests/apps/world.h"

namespace brine::tests {
namespace {

using Json = nlohmann::json;

// Short expressions, a dense model that learns their values, a student of it.
class LraWorld : public Directory {
 public:
  LraWorld() {
    write("small.json", encoder_json(20, 24, 0));
    must(
        "lra listops --out data --train 900 --valid 60 --test 80 --min-length 4 --max-length 12 "
        "--seed 3");
    must(
        "finetune --task listops --data data --model small.json --epochs 16 --batch-size 32 "
        "--learning-rate 5e-3 --out dense");
    must(
        "distill --task listops --data data --teacher dense --steps 3 --columns 8 --k 3 "
        "--out student");
  }

  Json score(const std::string& model) const {
    const std::string eval = "eval --task listops --data data --split test --json --model ";
    return Json::parse(must(eval + model).out).at("splits").at("test");
  }
};

const LraWorld& lra() {
  static const LraWorld w;
  return w;
}

void check_refused(const std::string& command, std::initializer_list<std::string> parts) {
  const Finished f = lra().run(command + " --quiet");
  CHECK(f.out.empty());
  CHECK(f.error.starts_with("brine " + command.substr(0, command.find(' ')) + ": "));
  check_says(refusal_in(f), parts);
}

}  // namespace

TEST_CASE("lra by the program: a model without weights learns ListOps and has a student") {
  const Json dense = lra().score("dense"), student = lra().score("student");
  const Json manifest = Json::parse(read_all(lra().path("data/manifest.json")));
  const double majority = manifest.at("splits").at("test").at("largest_class");
  MESSAGE("dense ", dense.dump(), ", most frequent value ", majority);
  CHECK(dense.at("texts") == 80);
  CHECK(double(dense.at("accuracy")) > majority + 0.15);
  CHECK(double(student.at("keys_kept")) < 0.9);
  // The tokenizer is next to the model.
  std::ofstream(lra().path("lines.txt")) << "[MAX 9 2 9 9 ]\n[MIN 0 3 0 1 ]\n";
  const std::string labels = lra().must("predict --model dense lines.txt").out;
  INFO(labels);
  CHECK(labels.starts_with("9\t"));
  CHECK(contains(labels, "\n0\t"));
}

TEST_CASE("lra by the program: the seed decides the files, and the log tells their sizes") {
  const LraWorld& w = lra();
  const std::string listops =
      "lra listops --train 20 --valid 5 --test 5 --min-length 4 --max-length 12 --out ";
  const Finished first = w.must(listops + "one --seed 3");
  check_says(first.error, {"basic_train.tsv", "20 examples", "the largest class"});
  w.must(listops + "same --seed 3");
  w.must(listops + "other --seed 4");
  const std::string test = read_all(w.path("one/basic_test.tsv"));
  CHECK(test == read_all(w.path("same/basic_test.tsv")));
  CHECK(test != read_all(w.path("other/basic_test.tsv")));
}

TEST_CASE("lra by the program: errors are one line") {
  check_refused("lra listops --out data", {"data: exists already"});
  check_refused("lra listops --out never --min-length 50 --max-length 40",
                {"min_length 50 is above max_length 40"});
  check_refused("lra listops --out never --max-depth 2 --max-args 3 --min-length 6",
                {"no expression of depth 2", "the longest has 5"});
  check_refused("lra retrieval --out never", {"--task must be one of", "retrieval"});
  check_refused("lra listops", {"--out"});
  check_refused("finetune --task listops --data nothing --model small.json --out never",
                {"basic_train.tsv"});
  check_refused("finetune --task cola --data data --model small.json --out never",
                {"--tokenizer is needed without a model directory"});
  std::string fewer = read_all(lra().path("small.json"));
  fewer.replace(fewer.find("20"), 2, "12");
  std::ofstream(lra().path("fewer.json")) << fewer;
  check_refused("finetune --task listops --data data --model fewer.json --out never",
                {"the model has 12 tokens, the tokenizer 20", "no row"});
  CHECK_FALSE(std::filesystem::exists(lra().path("never")));
}

}  // namespace brine::tests
