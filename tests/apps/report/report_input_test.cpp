// What brine report reads, and flags that do not fit.
#include "apps/report/report.h"

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/apps/report/page.h"
#include "tests/apps/world.h"

namespace brine::tests {
namespace {

namespace fs = std::filesystem;

using Json = nlohmann::json;

}  // namespace

TEST_CASE("report: a damaged log, and what is none of its inputs, are one line each") {
  const World& w = world();
  fs::create_directories(w.path("bad-log"));
  w.write("bad-log/log.jsonl", "{\"type\":\"step\",\"step\":1}\nnot a line\n");
  check_says(refusal("bad-log"), {"bad-log/log.jsonl:2", "JSON"});
  check_says(refusal("text.txt"), {"text.txt", "neither a GGUF"});
  check_says(refusal("tok"), {"tok", "run"});
  check_says(refusal("nowhere"), {"nowhere"});
  w.write("sweep-bad.tsv", "k\tquery_skip\tperplexity\n4\t1\n");
  check_says(refusal("sweep-bad.tsv"), {"sweep-bad.tsv:2", "2 cells"});
}

TEST_CASE("report: a text whose queries see at most k keys has no recall of zero") {
  const std::string html = written("student --text 'the'");
  const Json data = page_data(html);
  const Json& a = data.at("attention");
  CHECK(a.at("tokens").get<int>() <= 4);  // k of this student
  CHECK(a.count("recall") == 0);
  CHECK(a.count("health") == 0);
}

TEST_CASE(
    "report: flags without what they choose from are refused, teachers of full attention unused") {
  check_says(refusal("student --layers 1"), {"--layers", "text"});
  check_says(refusal("student --cells 8"), {"--cells", "text"});
  // Full attention is compared with no teacher.
  const Json dense =
      page_data(written(std::string("teacher --teacher teacher ") + kText)).at("attention");
  CHECK(contains(dense.at("about").get<std::string>(), "the model's own dense attention"));
  // A command that can be pasted.
  const Json quoted = page_data(written("student --text 'it'\\''s <b>'"));
  CHECK(contains(quoted.at("command").get<std::string>(), "--text 'it'\\''s <b>'"));
}

TEST_CASE("report: flags without a text are refused, full attention has no recall") {
  const Json dense = page_data(written(std::string("teacher ") + kText));
  CHECK(dense.at("attention").count("recall") == 0);
  check_says(refusal("teacher --window 1"), {"--window", "without a text"});
}

TEST_CASE("report: next to a text, a second model without curves is refused") {
  check_says(refusal(std::string("student export ") + kText), {"first model, student", "export"});
  check_says(refusal(std::string("export export ") + kText), {"first model, export", "curves"});
  // The first may have none, and a run has its own.
  const Json data = page_data(written(std::string("export student ") + kText));
  CHECK(data.at("attention").at("about").get<std::string>().rfind("export: ", 0) == 0);
  CHECK(chart_of(data, "loss").at("lines").size() == 1);
}

TEST_CASE("report: an empty text is refused in one line") {
  check_says(refusal("student --text ''"), {"--text", "empty"});
  check_says(refusal("student --tokens ''"), {"--tokens", "empty"});
  check_says(refusal("student --data ''"), {"--data", "empty"});
}

}  // namespace brine::tests
