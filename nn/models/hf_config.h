// Helpers for reading Hugging Face's config.json.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <utility>
#include <vector>

#include "data/config/schema.h"
#include "tensor/base/error.h"

namespace brine::nn {

// Sizes by transformers' general names and GPT-2's. A config.json of GPT-2 may have either, and the
// general name counts.
inline constexpr std::pair<const char*, const char*> kGpt2Names[] = {
    {"hidden_size", "n_embd"},
    {"num_attention_heads", "n_head"},
    {"num_hidden_layers", "n_layer"},
    {"max_position_embeddings", "n_positions"}};

// Refuses a key that is present, not null, and differs from the supported value.
void want(const data::Json& json, const std::string& source, const std::string& key,
          const data::Json& value);
// Refuses a key that is present and not null.
void want_absent(const data::Json& json, const std::string& source, const std::string& key);
// Refuses settings that no family supports: quantised weights, cross attention.
void want_plain(const data::Json& json, const std::string& source);
// Refuses positions of other kinds than a learned table.
void want_learned_positions(const data::Json& json, const std::string& source);

// Sets every field of `schema` that the JSON has under the same key; null counts as absent. The
// keys in `required` must be present.
void read_fields(data::Schema& schema, const data::Json& json, const std::string& source,
                 const std::vector<std::string>& required);

// One line for each pair of keys that say the same thing in two ways and differ; the line names
// both and the one that counts, which is that of transformers.
std::vector<std::string> contradictions(const data::Json& json);

// config.json in one of the spellings that mean the same: 32000.0 as 32000, "swish" as "silu",
// "rope_scaling": false as null.
data::Json usual_spelling(data::Json json);

// Prepends the file's name to the errors of a check of its values.
template <class Check>
void naming(const std::string& source, Check check) {
  try {
    check();
  } catch (const Error& e) {
    throw Error(source + ": " + e.what());
  }
}

}  // namespace brine::nn
