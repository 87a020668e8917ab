// A student next to its floors, mask health and the distance to the teacher's predictions, by the
// program.
#include <nlohmann/json.hpp>

#include "tests/apps/world.h"

namespace brine::tests {
namespace {

using Json = nlohmann::json;

Json evaluated_briefly(const std::string& arguments) {
  return Json::parse(world().must("eval --data text.txt --json --max-windows 4 " + arguments).out);
}

// The cells of a TSV file by the name and k of its lines.
std::map<std::string, std::vector<std::string>> table_of(const std::string& tsv) {
  std::map<std::string, std::vector<std::string>> out;
  std::istringstream lines(tsv);
  for (std::string line; std::getline(lines, line);) {
    std::vector<std::string> cells(1);
    for (char c : line) {
      if (c == '\t') cells.emplace_back();
      if (c != '\t') cells.back() += c;
    }
    out[cells.at(0) + " " + cells.at(1)] = cells;
  }
  return out;
}

}  // namespace

TEST_CASE("sweep --floors: every row is the evaluation that it names") {
  const World& w = world();
  const std::string table =
      w.must(
           "sweep --model student --teacher teacher --data text.txt --k 2 6 --max-windows 4 "
           "--floors --out floors.tsv")
          .out;
  CHECK(table.rfind("| attention | k | keys read | perplexity |", 0) == 0);
  CHECK(std::count(table.begin(), table.end(), '\n') == 2 + 1 + 2 * 6);
  auto rows = table_of(read_all(w.path("floors.tsv")));
  CHECK(rows.size() == 1 + 1 + 2 * 6);
  auto perplexity = [&](const std::string& row) { return std::stod(rows.at(row).at(3)); };
  auto expected = [&](const std::string& arguments) {
    return double(evaluated_briefly("--model " + arguments).at("perplexity"));
  };
  auto approx = [](double x) { return doctest::Approx(x).epsilon(1e-5); };
  CHECK(perplexity("teacher, dense all") == approx(expected("teacher")));
  CHECK(perplexity("student 2") == approx(expected("student --k 2")));
  CHECK(perplexity("teacher, top keys 2") == approx(expected("teacher --attention top --k 2")));
  CHECK(perplexity("teacher, best columns 6") ==
        approx(expected("teacher --attention best-columns --columns 12 --k 6")));
  // Windows are blocks of 4 keys: k is rounded up to them, and one block leaves no sinks.
  CHECK(perplexity("teacher, most recent 8") ==
        approx(expected("teacher --attention recent --block 4 --k 8")));
  CHECK(perplexity("teacher, 4 sinks + most recent 8") ==
        approx(expected("teacher --attention recent --block 4 --k 6 --sinks 1")));
  const Json window = evaluated_briefly("--model teacher --attention recent --block 4 --k 8");
  CHECK(std::stod(rows.at("teacher, most recent 8").at(2)) ==
        doctest::Approx(double(window.at("keys_read"))).epsilon(0.01));
  const double dense = perplexity("teacher, dense all");
  CHECK(std::stod(rows.at("student 6").at(4)) ==
        doctest::Approx(perplexity("student 6") / dense).epsilon(1e-3));
  // Recall, as the evaluation next to the teacher gives it.
  const Json all =
      evaluated_briefly("--model student --teacher teacher --k 2").at("mask_recall").back();
  const std::pair<const char*, const char*> keys[] = {{"student 2", "mask"},
                                                      {"teacher, top keys 2", "top_keys"},
                                                      {"teacher, best columns 2", "best_columns"},
                                                      {"teacher, most recent 4", "most_recent"},
                                                      {"random keys 2", "random"}};
  for (auto [row, key] : keys) {
    CHECK(std::stod(rows.at(row).at(5)) == doctest::Approx(double(all.at(key))).epsilon(1e-2));
  }
  CHECK(std::stod(rows.at("student 2").at(6)) ==
        doctest::Approx(double(all.at("min"))).epsilon(1e-2));
  CHECK(rows.at("random keys 2").at(3).empty());
  check_refusal(w.run("sweep --model student --data text.txt --floors"), {"--floors", "--teacher"});
}

TEST_CASE("eval: recall of the floors themselves; their upper bounds are reached") {
  const Json top = evaluated_briefly("--model teacher --attention top --k 3 --teacher teacher")
                       .at("mask_recall")
                       .at(0);  // deeper layers of both have other inputs
  CHECK(double(top.at("mask")) == doctest::Approx(double(top.at("top_keys"))).epsilon(1e-6));
  CHECK(double(top.at("top1_hit")) == 1);
  const Json best =
      evaluated_briefly(
          "--model teacher --attention best-columns --k 3 --columns 12 --teacher self")
          .at("mask_recall")
          .at(0);
  CHECK(double(best.at("mask")) == doctest::Approx(double(best.at("best_columns"))).epsilon(1e-6));
  CHECK(double(best.at("mask")) <= double(best.at("top_keys")));
  const Json all = evaluated_briefly("--model student --teacher teacher").at("mask_recall").at(0);
  CHECK(all.at("rows") == 4 * (32 - 4));  // those with more than k keys
  CHECK(all.at("heads").size() == 4);
}

TEST_CASE(
    "eval: a learned mask always reports its health, one of a fixed rule or calibrated never") {
  const Json health = evaluated_briefly("--model student").at("mask_health");
  CHECK(health.at("rows") == 2 * (32 - 4));  // one window, two layers
  const Json recall = Json::parse(world()
                                      .must("eval --data text.txt --json --max-windows 1 --model "
                                            "student --teacher self")
                                      .out)
                          .at("mask_recall");
  CHECK(double(health.at("mask_recall")) == double(recall.back().at("mask")));
  CHECK_FALSE(evaluated_briefly("--model teacher").contains("mask_health"));
  CHECK_FALSE(evaluated_briefly("--model teacher --attention recent").contains("mask_health"));
  const std::string blocks =
      "--model teacher --attention blocks --block 4 --tile 4 --attention.k 16";
  CHECK_FALSE(evaluated_briefly(blocks).contains("mask_health"));  // calibrated, not trained
  CHECK(double(evaluated_briefly(blocks + " --teacher self").at("mask_recall").back().at("mask")) >
        0);
  CHECK(contains(read_all(world().path("student/log.jsonl")), "\"mask_recall_p10\""));
  CHECK_FALSE(contains(read_all(world().path("teacher/log.jsonl")), "mask_recall"));
}

TEST_CASE("eval: a preset of an attention that was not trained decides its settings") {
  auto recall = [](const std::string& preset) {
    const Json out = Json::parse(world()
                                     .must("eval --model teacher --teacher teacher --data text.txt "
                                           "--max-windows 2 --attention sea --k 4 " +
                                           preset + " --json")
                                     .out);
    return out["mask_recall"].back()["mask"].get<double>();
  };
  // Light orders columns by their mean keys, others by the Performer's features.
  const double light = recall("--preset light --columns 12"),
               paper = recall("--preset paper --columns 12");
  CHECK(light != paper);
  CHECK(recall("--columns 12") != light);
  // Columns that are given are not the preset's: 12 are coarser than 48.
  CHECK(recall("--preset light --columns 48") > light);
  check_refusal(world().run("eval --model student --data text.txt --attention sea --preset light"),
                {"--preset", "own attention"});
}

TEST_CASE("--attention light and paper, or a method of these names, are sea with that preset") {
  const World& w = world();
  for (const std::string name : {"light", "paper"}) {
    CAPTURE(name);
    auto evaluated = [&](const std::string& attention) {
      return Json::parse(w.must("eval --model teacher --data text.txt --max-windows 2 --json "
                                "--columns 12 --attention " +
                                attention)
                             .out);
    };
    const Json out = evaluated(name);
    CHECK(out.at("attention") == "sea");
    CHECK(out.at("perplexity") == evaluated("sea --preset " + name).at("perplexity"));
    w.write(name + ".toml", "[attention]\nmethod = \"" + name + "\"\n");
    auto settings = [&](const std::string& flags, const std::string& run) {
      w.must(World::distill() + flags + " --out " + run);
      return Json::parse(read_all(w.path(run + "/step-00000002/config.json"))).at("brine");
    };
    const Json wanted = settings(" --attention sea --preset " + name, name + "-long");
    CHECK(wanted.at("attention").at("preset") == name);
    CHECK(settings(" --attention " + name, name + "-flag") == wanted);
    CHECK(settings(" --config " + name + ".toml", name + "-file") == wanted);
  }
}

TEST_CASE("eval: settings of an attention without it, or that it does not have, are errors") {
  auto error = [](const std::string& arguments) {
    const Finished f = world().run("eval --model teacher --data text.txt " + arguments);
    CHECK(f.status == 1);
    return f.error;
  };
  check_says(error("--columns 8"), {"columns", "attention"});
  check_says(error("--preset light"), {"preset", "attention"});
  check_says(error("--attention top --preset light"), {"preset", "sea", "top"});
  check_says(error("--attention top --columns 8"), {"columns", "top"});
  check_says(error("--attention flash --sinks 4"), {"sinks", "flash"});
}

}  // namespace brine::tests
