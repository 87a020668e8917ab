// Modules: named parameters and buffers in a tree. A parameter's path is the dotted path of the
// teacher's checkpoint ("model.decoder.layers.0.fc1.weight").
//
// A module declares its members in one line each, name, type and arguments together:
//   Linear& fc1 = child<Linear>("fc1", init, hidden, inner);
//   Parameter& gain = parameter("gain", init.ones({heads}));
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "autograd/node.h"
#include "data/config/named.h"
#include "nn/layers/init.h"

namespace brine::nn {

struct Parameter {
  std::string name;
  Tensor value;       // a leaf that requires a gradient once the tree was flattened
  bool decay = true;  // weight decay applies (not on biases, norms, tables of positions)

  operator const Tensor&() const { return value; }
};

// A tensor that is saved with the model and not trained (random features).
struct Buffer {
  std::string name;
  Tensor value;
  operator const Tensor&() const { return value; }
};

// Parameters of one width that are adjacent in memory, viewed as one: [sum of rows, C].
struct Packed {
  std::vector<Parameter*> members;
  Tensor value;  // set by ParameterStore
};

// Parameters of one learning rate.
enum class ParameterGroup : uint8_t { base, attention };
inline constexpr data::Named<ParameterGroup> kParameterGroups[] = {
    {ParameterGroup::base, "base"}, {ParameterGroup::attention, "attention"}};

class Module {
 public:
  Module() = default;
  virtual ~Module() = default;
  Module(const Module&) = delete;
  Module& operator=(const Module&) = delete;

  // The group of this module and everything below it; empty: that of the module above.
  virtual std::optional<ParameterGroup> group() const { return std::nullopt; }

  struct NamedParameter {
    std::string path;
    ParameterGroup group;
    Parameter* parameter;
  };
  struct NamedBuffer {
    std::string path;
    Buffer* buffer;
  };
  std::vector<NamedParameter> named_parameters();
  std::vector<NamedBuffer> named_buffers();
  std::vector<Packed*> packed();
  // Calls f on this module and all below it, parents first.
  void visit(const std::function<void(Module&)>& f);

 protected:
  template <class M, class... Args>
  M& child(std::string name, Args&&... args) {
    return adopt(std::move(name), std::make_unique<M>(std::forward<Args>(args)...));
  }
  template <class M>
  M& adopt(std::string name, std::unique_ptr<M> module) {
    M& m = *module;
    children_.emplace_back(std::move(name), std::move(module));
    return m;
  }
  Parameter& parameter(std::string name, Tensor value, bool decay = true);
  Buffer& buffer(std::string name, Tensor value);
  // Requests that these parameters are adjacent, in this order. All null (layers without biases):
  // nothing to pack, the result has no value. Some null: an error.
  Packed& pack(std::vector<Parameter*> members);

 private:
  void collect(const std::string& prefix, ParameterGroup group, std::vector<NamedParameter>& out);
  void collect(const std::string& prefix, std::vector<NamedBuffer>& out);

  std::vector<std::pair<std::string, std::unique_ptr<Module>>> children_;
  std::vector<std::unique_ptr<Parameter>> parameters_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<std::unique_ptr<Packed>> packed_;
};

}  // namespace brine::nn
