// A configuration with one of everything, for the tests of flags and files.
#pragma once

#include <string>
#include <vector>

#include "data/config/schema.h"

namespace brine::tests {

struct SampleModel {
  int64_t width = 256;
  void describe(data::Schema& s) { s.field("width", width, "Width", {.min = 1}); }
};

struct SampleSea {
  int64_t k = 16;
  void describe(data::Schema& s) { s.field("k", k, "Kept keys", {.min = 1}); }
};

struct Sample {
  std::string name = "run";
  double rate = 0.5;
  int64_t steps = 10;
  bool fast = false;
  std::vector<std::string> files;
  std::vector<double> betas = {0.9, 0.999};
  SampleModel model;
  std::string method = "dense";
  SampleSea sea;

  void describe(data::Schema& s) {
    s.field("name", name, "Name");
    s.field("rate", rate, "Rate", {.min = 0});
    s.field("steps", steps, "Steps", {.min = 0});
    s.field("fast", fast, "Hurry");
    s.field("files", files, "Files", {.positional = true});
    s.field("betas", betas, "Decays", {.min = 0, .below = 1});
    s.section("model", model);
    s.variants("attention", "method", method,
               {{"dense", nullptr}, {"sea", [this](data::Schema& v) { sea.describe(v); }}},
               "Attention method");
  }
};

}  // namespace brine::tests
