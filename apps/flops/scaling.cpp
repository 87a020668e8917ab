// The scaling law of bytes per step (docs/distributed.md) and its table.
#include "apps/flops/scaling.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <iostream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "data/io/human.h"
#include "data/io/json.h"
#include "tensor/comm/parts.h"

namespace brine {
namespace {

constexpr double kLeast = 0.8;
constexpr int kMostRanks = 1024;
// Tokens, loss terms and the question whether to stop, to each other rank: their lengths, and the
// contents of the first two.
constexpr int64_t kSmallMessages = 5;
constexpr int64_t kSmallBytes = 120;  // about; of all of them, to one other rank

double mean_of(const std::vector<double>& x) {
  return std::accumulate(x.begin(), x.end(), 0.0) / double(x.size());
}

// The expected maximum of n independent draws from the measured times.
double expected_maximum(std::vector<double> x, int n) {
  std::sort(x.begin(), x.end());
  const double count = double(x.size());
  double sum = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    const double upper = std::pow(double(i + 1) / count, n), lower = std::pow(double(i) / count, n);
    sum += x[i] * (upper - lower);
  }
  return sum;
}

}  // namespace

StepTraffic step_traffic(int64_t parameters, int ranks, bool zero) {
  StepTraffic most;
  if (ranks == 1) return most;
  const int64_t buckets = buckets_of(parameters, ranks), others = ranks - 1;
  int64_t filled = 0;  // a few parameters leave some empty
  std::vector<int64_t> own(size_t(ranks), 0), own_buckets(size_t(ranks), 0);
  for (int64_t b = 0; b < buckets; ++b) {
    const int64_t size = bucket_of(parameters, b, buckets).size();
    own[size_t(b % ranks)] += size;
    own_buckets[size_t(b % ranks)] += size > 0;
    filled += size > 0;
  }
  for (size_t r = 0; r < own.size(); ++r) {
    // To the owners, and an owner's sums to all; with ZeRO-1 the values of its moments, too.
    const int64_t values = zero ? elements_of(parameters, int(r), ranks).size() : 0;
    most.bytes = std::max(most.bytes, 4 * (parameters - own[r]) + 4 * others * (own[r] + values));
    const int64_t pieces = (values + kPiece - 1) / kPiece;
    most.messages =
        std::max(most.messages, filled - own_buckets[r] + others * (own_buckets[r] + pieces));
  }
  most.bytes += kSmallBytes * others;
  most.messages += kSmallMessages * others;
  return most;
}

ScalingRow scaling_of(const ScalingInput& input, int ranks) {
  ScalingRow row{.ranks = ranks, .sent = step_traffic(input.parameters, ranks, input.zero)};
  row.communication = double(row.sent.messages) * input.link.latency * 1e-6 +
                      double(row.sent.bytes) * 8e-9 / input.link.bandwidth;
  const double mean = mean_of(input.step_seconds);
  row.slowest = expected_maximum(input.step_seconds, ranks);
  row.efficiency = mean / (row.slowest + row.communication);
  // The times keep their spread: all are scaled by one factor.
  const double spread = row.slowest / mean;
  row.needed = spread < 1 / kLeast ? row.communication / (1 / kLeast - spread) : INFINITY;
  return row;
}

int first_below(const ScalingInput& input, double least, int most) {
  for (int ranks = 2; ranks <= most; ++ranks)
    if (scaling_of(input, ranks).efficiency < least) return ranks;
  return 0;
}

namespace {

data::Json to_json(const ScalingInput& input, const std::vector<ScalingRow>& rows) {
  data::Json table = data::Json::array();
  for (const ScalingRow& r : rows) {
    data::Json row = {{"ranks", r.ranks},
                      {"bytes", r.sent.bytes},
                      {"messages", r.sent.messages},
                      {"communication_seconds", r.communication},
                      {"slowest_seconds", r.slowest},
                      {"efficiency", r.efficiency}};
    row["seconds_for_80_percent"] = std::isfinite(r.needed) ? data::Json(r.needed) : data::Json();
    table.push_back(row);
  }
  const int below = first_below(input, kLeast, kMostRanks);
  return {{"parameters", input.parameters},
          {"step_seconds", input.step_seconds},
          {"bandwidth_gbit", input.link.bandwidth},
          {"latency_us", input.link.latency},
          {"zero", input.zero},
          {"ranks", table},
          {"below_80_percent_from", below ? data::Json(below) : data::Json()}};
}

void print_table(const ScalingInput& input, const std::vector<ScalingRow>& rows) {
  std::printf("%s trained parameters, %s of work a step and rank, %g Gbit/s, %g us%s\n",
              human_count(double(input.parameters)).c_str(),
              human_seconds(mean_of(input.step_seconds)).c_str(), input.link.bandwidth,
              input.link.latency, input.zero ? ", ZeRO-1" : "");
  std::printf("  %6s %12s %10s %14s %11s %18s\n", "ranks", "bytes", "messages", "communication",
              "efficiency", "work for 80 %");
  for (const ScalingRow& r : rows) {
    std::printf("  %6d %12.4g %10lld %12.4g s %9.1f %% %16.4g s\n", r.ranks, double(r.sent.bytes),
                (long long)r.sent.messages, r.communication, 100 * r.efficiency, r.needed);
  }
  if (const int below = first_below(input, kLeast, kMostRanks)) {
    std::printf("Efficiency is below 80 %% from %d ranks on.\n", below);
  } else {
    std::printf("Efficiency is 80 %% or more up to %d ranks.\n", kMostRanks);
  }
}

}  // namespace

void ScalingRequest::describe(data::Schema& s) {
  s.field("ranks", ranks,
          "Numbers of ranks: print instead how a step of training scales over them "
          "(docs/distributed.md)",
          {.min = 1, .max = 65536});
  s.field("step_seconds", step_seconds,
          "With --ranks: measured seconds of one rank's own work in a step, one or more",
          {.above = 0});
  s.field("rate", rate,
          "With --ranks: measured multiply-adds per second, instead of --step-seconds; a step is "
          "three forward passes of --windows sequences of --tokens tokens",
          {.min = 0});
  s.field("windows", windows, "Sequences of a step and rank, for --rate", {.min = 1});
  s.field("bandwidth", link.bandwidth, "With --ranks: Gbit/s that a rank can send", {.above = 0});
  s.field("latency", link.latency, "With --ranks: microseconds that a message costs", {.min = 0});
  s.field("zero", zero, "With --ranks: as training with --zero");
}

void print_scaling(const ScalingRequest& request, const nn::MetaModel& model, int64_t tokens,
                   bool json) {
  check((request.rate > 0) == request.step_seconds.empty(),
        "--ranks needs the time of one rank's work: --step-seconds, or --rate");
  ScalingInput input{.parameters = model.store.size(),
                     .step_seconds = request.step_seconds,
                     .link = request.link,
                     .zero = request.zero};
  if (request.rate > 0) {
    const double forward = nn::total(nn::forward_costs(*model.model, tokens)).macs;
    input.step_seconds = {3 * forward * double(request.windows) / request.rate};
  }
  std::vector<ScalingRow> rows;
  for (const int64_t n : request.ranks) rows.push_back(scaling_of(input, int(n)));
  if (json) {
    std::cout << json_text(to_json(input, rows)) << std::endl;
  } else {
    print_table(input, rows);
  }
}

}  // namespace brine
