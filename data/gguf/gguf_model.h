// A GGUF file as a model in Hugging Face's layout: its weights under the names of a checkpoint, its
// config.json and its vocabulary.
#pragma once

#include <set>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/config/schema.h"
#include "data/gguf/gguf_file.h"
#include "data/gguf/gguf_metadata.h"
#include "data/weights/weight_file.h"

namespace brine::data {

// Names and layout of a model's tensors: from GGUF's architectures to Hugging Face's checkpoints.

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

// What the metadata does not say.
struct GgufFacts {
  std::set<std::string> tensors;    // names in the file
  uint64_t vocabulary = 0;          // rows of the embedding
  bool tied = false;                // the head is the embedding
  std::vector<float> rope_factors;  // rope_freqs.weight: what divides each rotary frequency
  bool has_factors() const { return !rope_factors.empty(); }
};

// Heads of queries, of keys and values, and features of a head of queries.
struct GgufHeads {
  int64_t queries, keys, size;
};

// "rope_scaling" with the factors of rope_freqs.weight, null if these are all 1: Llama 3's scaling
// with the constants of all of its models (low_freq_factor 1, high_freq_factor 4). Throws if they
// are not that. `context`: the length before scaling, if the file has it, otherwise 8192.
Json llama3_scaling(const std::string& file, const std::vector<float>& factors, double theta,
                    int64_t context);

// Weights are dequantised when they are read, by several threads. Rows of queries and keys that the
// file has in the order of rotary pairs come in that of Hugging Face, weights of GPT-2 as
// [inputs, outputs]. A head that repeats the embedding byte for byte is left out.
class GgufModel : public WeightFile {
 public:
  // The errors of GgufHeader; an architecture that is not supported.
  explicit GgufModel(const Path& path);

  const GgufHeader& header() const { return header_; }
  // The keys of the config.json of Llama, Qwen 2, Qwen 3 or GPT-2. Throws an Error that names a
  // missing key, a setting that cannot be expressed, or a key that is not known and whose value is
  // not that without effect.
  Json config() const;

  Dtype dtype_of(const WeightInfo& entry) const override;
  bool in_order(const WeightInfo& entry) const override;

 protected:
  void gather(const WeightInfo& entry, const Tensor& to) const override;

 private:
  struct Stored {
    const GgufType* type;
    GgufLayout layout;
  };
  void add_tensor(const GgufTensor& tensor);
  void read_rope_factors(const GgufTensor& tensor);
  bool repeats_embedding(const GgufTensor& tensor) const;
  void gather_rows(const WeightInfo& entry, const Stored& stored, const Tensor& to) const;
  void gather_columns(const WeightInfo& entry, const Stored& stored, const Tensor& to) const;

  GgufHeader header_;
  const GgufArchitecture& architecture_;
  GgufHeads heads_;
  GgufFacts facts_;
  std::unordered_map<std::string, Stored> stored_;  // by Hugging Face's name
};

}  // namespace brine::data
