// The output of `brine generate`.
#pragma once

#include <string>
#include <vector>

#include "nn/generate/generation.h"
#include "nn/io/model_io.h"

namespace brine {

// Runs a generation and prints it on standard output; `texts` are its prompts. One continuation is
// printed as it grows and without anything else, several when all have ended, each with its number.
void run_and_print(nn::Generation& generation, const std::vector<std::string>& texts);

// Logs why each continuation ended before `wanted` tokens, and the time of prompts and tokens;
// `ends`: nn::end_tokens().
void log_ends(const nn::Generation& done, int64_t wanted, int64_t positions,
              const std::vector<int32_t>& ends);

// What the JSON object says of the call.
struct GenerationCall {
  std::string model;                       // as it was named
  int64_t query_skip = 1, oversample = 0;  // 0: as trained
  std::vector<std::string> texts;          // the prompts
  std::vector<std::string> warnings = {};
};
// One JSON object on standard output.
void print_json(const nn::Generation& done, const nn::LoadedModel& model,
                const GenerationCall& call);

}  // namespace brine
