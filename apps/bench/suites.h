// The suites of `brine bench`: which there are, what each needs, which of them a call runs; their
// rows as a table and as JSON.
#pragma once

#include <string>
#include <vector>

#include "apps/bench/bench.h"
#include "apps/bench/parts/block.h"
#include "data/config/schema.h"
#include "distill/inputs/models.h"

namespace brine::bench {

struct BenchRequest {
  std::vector<std::string> what = {};      // names of suites; empty: a list of them
  std::string model = {}, data = {};       // files of the suites trained and generate
  std::vector<int64_t> tokens = {};        // of the suites attention and trained; empty: default
  std::vector<std::string> methods = {};   // of the suite attention; empty: all
  int64_t heads = kHeads;                  // of the suite attention
  int64_t head_size = kHeadSize;           // of the suite attention
  int64_t columns = kColumns;              // of the suite attention
  int64_t k = 0;                           // of the suite attention; 0: that of each block
  int64_t kv_heads = 0;                    // of the suite attention; 0: as many as heads
  std::string against = {};                // of the suite attention: a block, as in `methods`
  bool bidirectional = false;              // of the suite attention
  bool forward = false;                    // of the suite attention: without backward
  Dtype weights = Dtype::f32;              // of the model of the suite generate
  distill::OtherAttention attention = {};  // of the model

  void describe(data::Schema& s);
  // Throws when a suite that is named lacks its files, or one of two files is missing.
  void validate() const;
};

// Keys of the suite attention alone.
inline constexpr const char* kAttentionKeys[] = {"heads", "head_size", "columns",       "kv_heads",
                                                 "k",     "against",   "bidirectional", "forward"};

struct Suite {
  const char* name;
  RunSuite* run;
  bool needs_model = false;  // and the text `data`
  const char* about = "";    // what it measures
};
std::vector<std::string> suite_names();

// Those that a request names, in order.
std::vector<const Suite*> chosen_suites(const BenchRequest& request);
// The suites as lines, with what each measures.
std::string list_of_suites();

// ---- rows of measurements as a table and as JSON

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
