// cuDNN's graphs as C++ classes: descriptors that free themselves, tensors and operations on them,
// and plans, which are executable graphs. Nothing here needs a device: a plan can be made from the
// description of one.
//
// Every refusal of cuDNN is thrown as an Error with its message; callers then use Brine's kernels.
#pragma once

#include <cudnn_graph.h>

#include <deque>
#include <initializer_list>
#include <string>
#include <type_traits>
#include <vector>

#include "tensor/base/dtype.h"

namespace brine::cuda::cudnn {

// Throws an Error with cuDNN's message for a status.
void check_status(cudnnStatus_t status, const char* what);

// A backend descriptor: attributes are set, then finish() makes it usable.
class Descriptor {
 public:
  Descriptor(cudnnBackendDescriptorType_t type, const char* name);
  ~Descriptor();
  Descriptor(Descriptor&& other) noexcept;
  Descriptor& operator=(Descriptor&& other) noexcept;

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t count,
           const void* values);
  template <class T>
  void set(cudnnBackendAttributeName_t name, const T& value) {
    set(name, type_of<T>(), 1, &value);
  }
  void set(cudnnBackendAttributeName_t name, const Descriptor& other) {
    set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &other.it_);
  }
  void set(cudnnBackendAttributeName_t name, const std::vector<int64_t>& values) {
    set(name, CUDNN_TYPE_INT64, int64_t(values.size()), values.data());
  }
  void finish();

  // The number of values; as many of them are read as `values` has space for.
  int64_t get(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t type, int64_t room,
              void* values) const;
  cudnnBackendDescriptor_t get() const { return it_; }

 private:
  template <class T>
  static constexpr cudnnBackendAttributeType_t type_of() {
    if constexpr (std::is_same_v<T, bool>) return CUDNN_TYPE_BOOLEAN;
    if constexpr (std::is_same_v<T, int64_t>) return CUDNN_TYPE_INT64;
    if constexpr (std::is_same_v<T, float>) return CUDNN_TYPE_FLOAT;
    if constexpr (std::is_same_v<T, double>) return CUDNN_TYPE_DOUBLE;
    if constexpr (std::is_same_v<T, cudnnHandle_t>) return CUDNN_TYPE_HANDLE;
    if constexpr (std::is_same_v<T, cudnnDataType_t>) return CUDNN_TYPE_DATA_TYPE;
    if constexpr (std::is_same_v<T, cudnnPointwiseMode_t>) return CUDNN_TYPE_POINTWISE_MODE;
    if constexpr (std::is_same_v<T, cudnnReduceTensorOp_t>) {
      return CUDNN_TYPE_REDUCTION_OPERATOR_TYPE;
    }
    if constexpr (std::is_same_v<T, cudnnBackendHeurMode_t>) return CUDNN_TYPE_HEUR_MODE;
  }

  cudnnBackendDescriptor_t it_ = nullptr;
  const char* name_;
};

// The target of a plan: a device by its handle, or one that is only described.
struct Target {
  cudnnHandle_t handle = nullptr;
  const Descriptor* described = nullptr;
};
// From cuDNN's JSON of a device (CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION).
Descriptor described_device(const std::string& json);

// An executable plan of a graph.
struct Plan {
  Descriptor plan;
  int64_t workspace = 0;  // bytes
};

// One tensor of a graph; a Graph owns it.
struct Node {
  Descriptor descriptor;
  std::vector<int64_t> sizes;
};

// Tensors are given sizes and strides in cuDNN's order: batch, channels or heads, rows, columns.
class Graph {
 public:
  // In memory, identified to run() by its number. Scalars are passed by value, from the host.
  const Node& tensor(int64_t number, cudnnDataType_t type, const std::vector<int64_t>& sizes,
                     const std::vector<int64_t>& strides);
  const Node& scalar(int64_t number, cudnnDataType_t type);
  // Between operations, never in memory; packed.
  const Node& inner(cudnnDataType_t type, const std::vector<int64_t>& sizes);

  // y = mode(x, b, t); b and t if the mode has them, axis for indices. In the type of y.
  const Node& pointwise(cudnnPointwiseMode_t mode, const Node& y, cudnnDataType_t math,
                        std::initializer_list<const Node*> inputs, int64_t axis = -1);
  const Node& reduce(cudnnReduceTensorOp_t how, const Node& y, const Node& x);
  // y = a b; rows, columns and depth of each matrix may be fewer than the tensors', by sequence.
  struct Sizes {
    const Node *rows = nullptr, *columns = nullptr, *depth = nullptr;
  };
  const Node& multiply(const Node& y, const Node& a, const Node& b, const Sizes& sizes);

  // The first deterministic engine that cuDNN's heuristics propose with a workspace below
  // `max_workspace` bytes.
  Plan plan(const Target& target, int64_t max_workspace) const;

 private:
  Descriptor& operation(cudnnBackendDescriptorType_t type, const char* name);
  const Node& keep(Descriptor descriptor, const std::vector<int64_t>& sizes);

  std::deque<Node> tensors_;
  std::deque<Descriptor> operations_;
  int64_t inner_ = 1000;  // numbers of those that are never in memory
};

// A tensor's number and its address.
struct Binding {
  int64_t number;
  const void* data;
};
// False, with nothing done, when cuDNN finds at execution that it does not support it.
bool run(cudnnHandle_t handle, const Plan& plan, const std::vector<Binding>& bindings,
         void* workspace);

cudnnDataType_t type_of(Dtype type);

}  // namespace brine::cuda::cudnn
