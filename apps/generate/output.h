// The calibration before, and the output of `brine generate`.
#pragma once

#include <string>
#include <vector>

#include "nn/generate/text_generation.h"

namespace brine {

// nn::begin_generation() of a calibrated model, unless the machine has too little memory, which
// throws. With `dry_run` only prints the memory.
nn::Generation begin(nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                     const nn::TextGeneration& what, const std::vector<std::string>& prompts,
                     uint64_t seed, bool dry_run);

// Logs nn::unapplied_settings(), if there are any.
void log_unapplied(const nn::LoadedModel& model, const nn::TextGeneration& what,
                   const nn::Generation& generation);

// Runs a generation and prints it on standard output; `texts` are its prompts. One continuation is
// printed as it grows and without anything else, several when all have ended, each with its number.
void run_and_print(nn::Generation& generation, const std::vector<std::string>& texts);

// Logs why each continuation ended before `wanted` tokens, and the time of prompts and tokens;
// `ends`: nn::end_tokens().
void log_ends(const nn::Generation& done, int64_t wanted, int64_t positions,
              const std::vector<int32_t>& ends);

// What the JSON object says of the call.
struct GenerationCall {
  std::string model;  // as it was named
  const nn::TextGeneration& what;
  std::vector<std::string> texts;  // the prompts
  std::vector<std::string> warnings = {};
};
// One JSON object on standard output.
void print_json(const nn::Generation& done, const nn::LoadedModel& model,
                const GenerationCall& call);

}  // namespace brine
