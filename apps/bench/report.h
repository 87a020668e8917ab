// Rows of measurements as a table and as JSON.
#pragma once

#include "apps/bench/suites.h"
#include "data/config/schema.h"

namespace brine::bench {

data::Json to_json(const char* suite, const BenchRow& row);

// The CPU's name in a text like /proc/cpuinfo: "model name", which arm64 lacks: there numbers of
// the implementer and the part.
std::string cpu_model(const std::string& cpuinfo);

// What a call of `brine bench` reports: the rows and the machine.
class Report {
 public:
  enum class Form { table, json };
  static constexpr const char* kJsonHelp = "Print one JSON object: the machine, rows and failures";
  // A table is printed on standard output, its title now and rows as they are
  // added.
  explicit Report(Form form);
  // Rows are kept as they come, and so is what a suite throws or reports as the failure of a part.
  // After one that lost the device the others are failures, too, and do not run.
  void run(const Suite& suite, const BenchRequest& request);
  bool failed() const { return !failures_.empty(); }
  // All that was added, with the device and its peak of reserved bytes until now.
  data::Json json() const;

 private:
  class Sink;
  void fail(const Suite& suite, const BenchFailure& failure);

  Form form_;
  std::string cpu_;
  int threads_;
  std::vector<std::pair<const Suite*, BenchRow>> rows_;
  std::vector<std::pair<const Suite*, BenchFailure>> failures_;
  std::string lost_;  // why the device no longer answers
};

}  // namespace brine::bench
