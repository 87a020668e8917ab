// The suites of `brine bench`: which there are, what each needs, which of them a call runs.
#include "apps/bench/suites.h"

#include <algorithm>

#include "nn/attention/attention.h"
#include "nn/io/model_io.h"
#include "tensor/base/error.h"

namespace brine::bench {
namespace {

void train(const BenchRequest&, RowSink& rows) { bench_train(rows); }
void trained(const BenchRequest& r, RowSink& rows) {
  bench_trained(rows, r.model, r.data, r.tokens, r.attention);
}
void generate(const BenchRequest& r, RowSink& rows) {
  bench_generate(rows, r.model, r.data, r.weights, r.tokens, r.attention);
}
void attention(const BenchRequest& r, RowSink& rows) {
  bench_attention(rows, r.tokens, r.methods,
                  {.heads = r.heads,
                   .head_size = r.head_size,
                   .causal = !r.bidirectional,
                   .kv_heads = r.kv_heads,
                   .k = r.k,
                   .columns = r.columns,
                   .forward = r.forward},
                  r.against);
}
void breakdown(const BenchRequest& r, RowSink& rows) { bench_breakdown(rows, r.tokens, r.methods); }

const Suite kSuites[] = {
    {"attention", attention, false, "a block of each method by length, forward and backward"},
    {"breakdown", breakdown, false, "time and memory of a block by component"},
    {"train", train, false, "whole steps: an encoder layer, the distillation of a small decoder"},
    {"trained", trained, true, "the blocks of a model on a text; needs --model and --data"},
    {"generate", generate, true, "a model token by token; needs --model and --data"}};

bool is_named(const BenchRequest& request, const Suite& suite) {
  return std::find(request.what.begin(), request.what.end(), suite.name) != request.what.end();
}

}  // namespace

std::span<const Suite> suites() { return kSuites; }

std::vector<std::string> suite_names() {
  std::vector<std::string> names;
  for (const Suite& suite : kSuites) names.push_back(suite.name);
  return names;
}

void BenchRequest::describe(data::Schema& s) {
  s.choice("what", what, suite_names(), "What to measure; none given: lists the benchmarks",
           {.positional = true});
  s.field("model", model,
          "A model, for the suites generate and trained (there a causal one with a mask)");
  attention.describe(s);
  s.choice("weights", weights, nn::kWeightTypes,
           join(nn::kWeightsHelp, "; for the suite generate"));
  s.field("tokens", tokens,
          "Lengths in tokens, for attention, breakdown, generate and trained; none: their own",
          {.min = 16});
  s.field("heads", heads, "Query heads of a block, for the suite attention", {.min = 1});
  s.field("head_size", head_size, "Features of a head, for the suite attention", {.min = 1});
  s.field("k", k, "Kept keys of a row, for attention; 0: 64; of blocks their own", {.min = 0});
  s.field("columns", columns, "Columns of estimates by columns, for the suite attention",
          {.min = 1});
  s.field("kv_heads", kv_heads,
          "Heads of keys and values, for attention; 0: as many as query heads");
  s.field("against", against,
          "Method measured in turns with each, for attention; times_NAME is its time over theirs");
  s.field("bidirectional", bidirectional,
          "Blocks of encoders, which see every token, for the suite attention");
  s.field("forward", forward, "No rows with backward, for the suite attention");
  s.field("methods", methods,
          "Methods for attention and breakdown, by name or row (\"sea light\"); none: all");
  s.field("data", data, "Text file, for the suites generate and trained");
}

void BenchRequest::validate() const {
  // Unknown methods are refused.
  for (const std::string& name : methods) nn::attention_method(name.substr(0, name.find(' ')));
  const bool has_files = !model.empty() && !data.empty();
  for (const Suite& suite : kSuites) {
    check(has_files || !suite.needs_model || !is_named(*this, suite),
          "bench: generate and trained need --model RUN and --data TEXT");
  }
  check(data.empty() == model.empty(), "bench: --data goes together with --model");
}

std::vector<const Suite*> chosen_suites(const BenchRequest& request) {
  std::vector<const Suite*> out;
  for (const Suite& suite : kSuites) {
    if (is_named(request, suite)) out.push_back(&suite);
  }
  return out;
}

std::string list_of_suites() {
  std::string out;
  for (const Suite& suite : kSuites) {
    const std::string name = suite.name;
    out += "  " + name + std::string(12 - name.size(), ' ') + suite.about + "\n";
  }
  return out + "brine bench NAME... measures these; --quick checks that they run\n";
}

}  // namespace brine::bench
