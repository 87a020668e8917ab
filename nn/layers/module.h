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
#include "tensor/base/random.h"
#include "tensor/tensor.h"

namespace brine::nn {

// Initial values (docs/method.md section 4.4) are drawn from an explicit random stream, in the type
// of the model.

// An argument of every constructor that makes parameters.
struct Init {
  RandomStream random;
  Dtype dtype = Dtype::f32;
  double linear_std = 0.02;
  // The device of new parameters. On the meta device they are shapes: a ParameterStore gives them
  // memory, a file the values.
  Device device = {};
  // false: parameters outside attention methods have memory and no values, since weights that are
  // loaded next replace them all. The random stream advances as if they had been drawn, so what is
  // drawn has the same bits.
  bool base_values = true;

  Tensor normal(const Shape& shape, double std) { return draw(shape, std, true); }
  // U(-bound, bound)
  Tensor uniform(const Shape& shape, double bound) { return draw(shape, bound, false); }
  Tensor zeros(const Shape& shape) const { return full(shape, 0); }
  Tensor full(const Shape& shape, double value) const {
    return Tensor::full(shape, value, dtype, device);
  }

 private:
  Tensor draw(const Shape& shape, double size, bool gaussian) {
    if (device.is_meta()) return Tensor::empty(shape, dtype, device);  // nothing is drawn
    RandomSlice slice = random.take(uint64_t(shape.numel()));
    if (!base_values) return Tensor::empty(shape, dtype, device);
    return Tensor::computed(shape, dtype, device, [&](int64_t i) {
      return size * (gaussian ? slice.normal(uint64_t(i)) : 2 * slice.uniform(uint64_t(i) * 4) - 1);
    });
  }
};

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

class Module : NonCopyable {
 public:
  Module() = default;
  virtual ~Module() = default;

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
