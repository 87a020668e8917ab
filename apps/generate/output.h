// The prompts of `brine generate`, and its output.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/generate/generation.h"
#include "nn/io/model_io.h"

namespace brine {

// One prompt per line of a text file, without the line ends; an empty line is an error.
std::vector<std::string> prompts_in(const std::string& path);

// Logs why each continuation ended before `wanted` tokens, and the time of prompts and tokens.
void log_ends(const nn::Generation& done, int64_t wanted, int64_t positions,
              std::optional<int32_t> eos);

// One JSON object on standard output; `texts` are the prompts.
void print_json(const nn::Generation& done, const nn::LoadedModel& model, const std::string& name,
                int64_t query_skip, const std::vector<std::string>& texts);

// Prints the continuation of one text alone, or of several with their numbers.
void print_texts(const nn::Generation& done, const std::vector<std::string>& texts);

}  // namespace brine
