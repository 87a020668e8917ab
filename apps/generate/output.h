// The prompts of `brine generate`, and what it prints.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "nn/generate/generation.h"
#include "nn/io/model_io.h"

namespace brine {

// One prompt a line of a text file, without the line ends; an empty line is an error.
std::vector<std::string> prompts_in(const std::string& path);

// Why each continuation ended before `wanted` tokens, and how long prompts and tokens took, to the
// log.
void log_ends(const nn::Generation& done, int64_t wanted, int64_t positions,
              std::optional<int32_t> eos);

// One JSON object on standard output; `texts` are the prompts.
void print_json(const nn::Generation& done, const nn::LoadedModel& model, const std::string& name,
                int64_t query_skip, const std::vector<std::string>& texts);

// The continuation of one text without anything else, of several each with its number.
void print_texts(const nn::Generation& done, const std::vector<std::string>& texts);

}  // namespace brine
