// How a step of training scales over ranks: bytes, messages and time by the number of ranks, from
// measured times of one rank's own work and a link's bandwidth and latency.
#pragma once

#include <vector>

#include "data/config/schema.h"
#include "nn/models/model_costs.h"

namespace brine {

struct Link {
  double bandwidth = 10;  // Gbit/s that a rank sends
  double latency = 30;    // microseconds of a message
};

struct ScalingInput {
  int64_t parameters = 0;            // that are trained
  std::vector<double> step_seconds;  // of one rank's slots, without communication; one or more
  Link link;
  bool zero = false;
};

// What the busiest rank sends in a step. Every rank has one node of the tree, as when the slots of
// a rank are a power of two.
struct StepTraffic {
  int64_t bytes = 0, messages = 0;
};
StepTraffic step_traffic(int64_t parameters, int ranks, bool zero);

struct ScalingRow {
  int ranks = 1;
  StepTraffic sent;
  double communication = 0;  // seconds: latency of each message and the time of the bytes
  double slowest = 0;        // seconds: the expected maximum of the ranks' own work
  double efficiency = 1;     // mean work of a rank over the time of the step
  double needed = 0;         // seconds of work at which the efficiency is 80 %
};
// Ranks compute, wait for the slowest, then communicate: nothing overlaps. The work of each rank is
// drawn from the measured times, independently of the others.
ScalingRow scaling_of(const ScalingInput& input, int ranks);
// The smallest number of ranks in [2, most] with an efficiency below `least`; 0: none.
int first_below(const ScalingInput& input, double least, int most);

// The keys of `brine flops` that ask for it.
struct ScalingRequest {
  std::vector<int64_t> ranks = {};
  std::vector<double> step_seconds = {};
  double rate = 0;  // multiply-adds per second, for a step of `windows` sequences
  int64_t windows = 8;
  Link link = {};
  bool zero = false;

  void describe(data::Schema& s);
};
// A table, or JSON, on standard output, of training all parameters of a model with sequences of
// `tokens` tokens. Throws unless the time of a step is given, by one of the two ways.
void print_scaling(const ScalingRequest& request, const nn::MetaModel& model, int64_t tokens,
                   bool json);

}  // namespace brine
