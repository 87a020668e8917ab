// Names and layout of a model's tensors: from GGUF's architectures to Hugging Face's checkpoints.
#pragma once

#include <string>
#include <vector>

namespace brine::data {

// How the rows of a tensor in a GGUF file become those of Hugging Face's.
enum class GgufLayout {
  same,
  query_pairs,  // of each head, rows 2i and 2i + 1 are the features i and i + d/2
  key_pairs,    // the same for the heads of keys
  transposed,   // GPT-2's Conv1D has [inputs, outputs]
};

struct GgufArchitecture {
  struct Name {
    const char* gguf;
    const char* hf;
    GgufLayout layout = GgufLayout::same;  // of weights; of biases unless `transposed`
  };

  std::string name;                // general.architecture, and model_type of config.json
  std::string hf_class;            // "architectures" of config.json
  std::string blocks;              // "model.layers.": in front of a block's number
  std::vector<Name> outer, inner;  // without ".weight" and ".bias"; inner: of a block
};

// An Error starting with `file` for a name that is not supported.
const GgufArchitecture& gguf_architecture(const std::string& file, const std::string& name);

struct HfName {
  std::string name;
  GgufLayout layout = GgufLayout::same;
};
// Hugging Face's name of a tensor; an unknown one stays as it is.
HfName hf_name(const GgufArchitecture& architecture, const std::string& name);

}  // namespace brine::data
