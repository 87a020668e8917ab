// Training methods that estimate no attention of a teacher: what they learn from.
#include <nlohmann/json.hpp>
#include <sstream>

#include "data/config/schema.h"
#include "data/io/json.h"
#include "tests/apps/world.h"

namespace brine::tests {
namespace {

// The lines of a run's log that have the key.
std::vector<data::Json> logged(const World& w, const std::string& run, const char* key) {
  std::istringstream in(read_all(w.path(run + "/log.jsonl")));
  std::vector<data::Json> out;
  for (std::string line; std::getline(in, line);) {
    data::Json one = parse_json_or_discard(line);
    if (one.contains(key)) out.push_back(std::move(one));
  }
  return out;
}

}  // namespace

TEST_CASE("distill: a method without an estimate learns without attention losses, also resumed") {
  const World& w = world();
  const std::string call =
      "distill --teacher teacher --data text.txt --batch-size 2 --out plain "
      "--attention performer --steps ";
  const Finished first = w.must(call + "2");
  CHECK(contains(first.error, "'performer' is trained without attention losses"));
  const std::string settings = read_all(w.path("plain/config.toml"));
  for (const char* loss : {"approx", "prob", "context"}) {
    CHECK(contains(settings, std::string(loss) + " = 0.0"));
  }
  CHECK_FALSE(contains(settings, "kd = 0.0"));
  const std::vector<data::Json> lines = logged(w, "plain", "kd");
  REQUIRE_FALSE(lines.empty());
  CHECK_FALSE(lines[0].contains("context"));
  w.must(call + "2 --resume");  // the same configuration, with the weights that were decided
}

TEST_CASE("distill: a selection's own loss is a mean over micro-batches and layers") {
  const World& w = world();
  auto norm = [&](const std::string& name, const std::string& more) {
    w.must(
        "distill --teacher teacher --data text.txt --attention indexer --k 4 --steps 1 "
        "--seed 4 --out " +
        name + " " + more);
    return logged(w, name, "gradient_norm").at(0).at("gradient_norm").get<double>();
  };
  const double together = norm("norm-whole", "--batch-size 2 --attention.loss-weight 5000");
  CHECK(norm("norm-apart", "--batch-size 1 --accumulate 2 --attention.loss-weight 5000") ==
        doctest::Approx(together).epsilon(1e-4));
  const double without = norm("norm-without", "--batch-size 2 --attention.loss-weight 0");
  CHECK(together > 1.05 * without);
}

TEST_CASE("distill: a selection is learned by its own loss and the output of its layer") {
  const World& w = world();
  for (const char* method :
       {"indexer", "tdsa", "block-topk --attention.block 4 --attention.gate"}) {
    CAPTURE(std::string(method));
    const std::string run = std::string("learned-") + method[0];
    w.must(
        std::string("distill --stages attention --teacher teacher --data text.txt --lengths 32 ") +
        "--batch-size 2 --steps 12 --k 4 --attention " + method + " --out " + run);
    const std::vector<data::Json> lines = logged(w, run, "selection");
    REQUIRE(lines.size() >= 2);
    CHECK(lines.back().at("selection").get<double>() < lines[0].at("selection").get<double>());
    CHECK_FALSE(lines[0].contains("approx"));
  }
  check_refusal(
      w.run("distill --stages attention --teacher teacher --data text.txt --lengths 32 --steps 2 "
            "--attention reformer --out nothing"),
      {"reformer", "no parameters"});
}

}  // namespace brine::tests
