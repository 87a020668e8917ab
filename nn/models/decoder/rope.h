// The angles of rotary positions as config.json describes them: their base and their scaling.
#pragma once

#include <string>

#include "data/config/schema.h"
#include "tensor/tensor.h"

namespace brine::nn {

enum class RopeType : uint8_t { unscaled, linear, llama3 };
inline constexpr data::Named<RopeType> kRopeTypes[] = {
    {RopeType::unscaled, "default"}, {RopeType::linear, "linear"}, {RopeType::llama3, "llama3"}};

// Field names are those of Hugging Face's config.json.
struct Rope {
  double rope_theta = 10000;
  RopeType rope_type = RopeType::unscaled;
  double factor = 1;  // linear: divides every frequency; llama3: the low ones
  // llama3: wavelengths above original_max_position_embeddings / low_freq_factor are scaled, those
  // below original_max_position_embeddings / high_freq_factor are not, in between it is a blend.
  double low_freq_factor = 1, high_freq_factor = 4;
  int64_t original_max_position_embeddings = 0;

  // f64 [features / 2], for Positions.
  Tensor frequencies(int64_t features) const;

  // Reads "rope_scaling" or else "rope_parameters", and "rope_theta" where that has none; refuses
  // other types of scaling and their settings by name. `source` starts the messages.
  void read(const data::Json& json, const std::string& source);
  // Adds "rope_theta" and "rope_scaling", which all releases of transformers read.
  void write(data::Json& json) const;
};

}  // namespace brine::nn
