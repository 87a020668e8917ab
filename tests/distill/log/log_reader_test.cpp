// Logs read back, whole and damaged.
#include "distill/log/log.h"

#include <doctest/doctest.h>

#include <cmath>
#include <sstream>

#include "tests/messages.h"
#include "tests/scratch.h"

namespace brine::test {

using namespace brine::distill;

TEST_CASE("a log is read back with its steps, evaluations, events and infinite numbers") {
  Scratch scratch;
  std::ostringstream terminal;
  {
    RunLog log(scratch / "run", terminal);
    log.step({.step = 1, .total = 2, .tokens = 64, .values = {{"loss", 2.5}, {"prob", NAN}}});
    log.evaluation(1, {{"valid_perplexity", 9.25}, {"layer.0.recall", 0.5}});
    log.event("a \"quoted\" event");
  }
  const auto records = read_log(scratch / "run/log.jsonl");
  REQUIRE(records.size() == 3);
  CHECK(records[0].type == LogLine::step);
  CHECK(records[0].step == 1);
  CHECK(records[0].time > 1e9);
  auto value = [](const LogRecord& record, const std::string& name) {
    for (const auto& [key, x] : record.values) {
      if (key == name) return x;
    }
    return -1.0;
  };
  CHECK(value(records[0], "loss") == 2.5);
  CHECK(std::isnan(value(records[0], "prob")));
  CHECK(value(records[0], "tokens") == 64);
  CHECK(records[1].type == LogLine::evaluation);
  CHECK(value(records[1], "layer.0.recall") == 0.5);
  CHECK(records[2].text == "a \"quoted\" event");
  CHECK(records[2].values.empty());
}

TEST_CASE("a log: a line that was cut off is dropped, a damaged one is named") {
  Scratch scratch;
  const std::string good = "{\"type\":\"step\",\"step\":1,\"loss\":1}\n";
  CHECK(read_log(scratch.write("torn", good + "{\"type\":\"st")).size() == 1);
  CHECK(read_log(scratch.write("empty", "")).empty());
  const std::pair<const char*, const char*> cases[] = {
      {"{\"type\":\"st\n", "is not JSON"},
      {"[1]\n", "is not a line of a log"},
      {"{\"type\":\"other\",\"step\":1}\n", "is not a line of a log"},
      {"{\"type\":\"step\"}\n", "without a step"},
      {"{\"type\":\"step\",\"step\":1,\"loss\":\"much\"}\n", "loss is not a number"},
      {"{\"type\":\"step\",\"step\":1,\"step\":2}\n", "is a duplicate"}};
  for (const auto& [line, why] : cases) {
    CAPTURE(line);
    const std::string file = scratch.write("log", good + line + good);
    const std::string said = message([&] { read_log(file); });
    CHECK(contains(said, file + ":2: "));
    CHECK(contains(said, why));
  }
}

}  // namespace brine::test
