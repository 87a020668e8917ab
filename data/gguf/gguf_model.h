// A GGUF file as a model in Hugging Face's layout: its weights under the names of a checkpoint, its
// config.json and its vocabulary.
#pragma once

#include <string>
#include <unordered_map>

#include "data/gguf/gguf_config.h"
#include "data/gguf/gguf_file.h"
#include "data/weights/weight_file.h"

namespace brine::data {

// Weights are dequantised when they are read, by several threads. Rows of queries and keys that the
// file has in the order of rotary pairs come in that of Hugging Face, weights of GPT-2 as
// [inputs, outputs]. A head that repeats the embedding byte for byte is left out.
class GgufModel : public WeightFile {
 public:
  // The errors of GgufHeader; an architecture that is not supported.
  explicit GgufModel(const Path& path);

  const GgufHeader& header() const { return header_; }
  // The errors of gguf_config().
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
