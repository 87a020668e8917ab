// Parameters and their gradients in two flat buffers: zeroing, norm, clipping and AdamW are one
// pass each, and packed parameters are adjacent and run as one GEMM.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "nn/layers/module.h"
#include "tensor/named_tensor.h"

namespace brine::nn {

class ParameterStore {
 public:
  // Gradients take as much memory as values; a model used only for inference does without them.
  enum class Gradients { now, later };

  // Moves every parameter of `root` into the buffers; `root` must outlive the store's use.
  // Parameters that were made on the meta device get memory, not values.
  // The flat buffers, and the buffers of the module (random features), are on `device` from then
  // on. Values `in_place` stay in their present memory (weights of a mapped file) until there are
  // gradients; a packed parameter cannot.
  using InPlace = std::unordered_set<const Parameter*>;
  explicit ParameterStore(Module& root, Gradients gradients = Gradients::now,
                          Device device = default_device(), InPlace in_place = {});
  // Only the parameters for which `trained` is true are entries, with gradients. The others keep
  // their present memory, which may be that of another model, and are constants; they must not be
  // on the meta device. Packed parameters are trained together or not at all.
  using Trained = std::function<bool(const Module::NamedParameter&)>;
  ParameterStore(Module& root, const Trained& trained);
  // Allocates gradients that were deferred. zero_gradients() does it too. Throws after narrow().
  void add_gradients();
  // For inference: the parameters for which `which` is true are rounded to `dtype` (bf16 or f16)
  // and leave the buffer, which is freed where nothing else uses it. Packed ones leave together.
  // Throws when there are gradients.
  void narrow(Dtype dtype, const std::function<bool(const Parameter&)>& which);

  struct Entry {
    std::string path;
    ParameterGroup group;
    Parameter* parameter;
    int64_t offset, size;  // elements in the flat buffers; offset -1: the value is in place
  };
  const std::vector<Entry>& entries() const { return entries_; }
  const Tensor& values() const { return values_; }        // [n]
  const Tensor& gradients() const { return gradients_; }  // [n], undefined before add_gradients()
  int64_t size() const { return values_.numel(); }
  void zero_gradients();

 private:
  struct PackedRange {
    Packed* packed;
    Shape shape;
    size_t first;  // its first member in entries_
  };
  // A view into the buffers: a leaf with its gradient once there are gradients.
  Tensor view_of(const Shape& shape, int64_t begin) const;
  void list_entries(Module& root, const Trained& trained = {});
  int64_t lay_out();                             // sets the offsets, returns the total number of
                                                 // elements
  void fill_buffer(Dtype dtype, Device device);  // with the parameters' present values
  void attach();

  std::vector<Entry> entries_;
  std::vector<bool> follows_;  // of each entry: it directly follows the one before, packed with it
  std::vector<PackedRange> packed_;
  InPlace in_place_;
  std::optional<Dtype> narrowed_;
  Tensor values_, gradients_;
};

// Puts the buffers of a module on a device; a ParameterStore does so for its module, this function
// for one without parameters. Those of the meta device become 0.
void move_buffers(Module& root, Device device);

// Copies between a module and named tensors, both by dotted path. load() lists missing and unknown
// names and refuses wrong shapes, unless `partial` allows missing ones; types are converted.
std::vector<NamedTensor> state_of(Module& root);
void load_state(Module& root, const std::vector<NamedTensor>& tensors, const std::string& source,
                const std::function<bool(const std::string&)>& may_be_missing = {});

int64_t parameter_count(Module& root);

}  // namespace brine::nn
