// The tape. An op calls record(); backward() walks nodes from newest to oldest.
#pragma once

#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include "tensor/base/random.h"
#include "tensor/tensor.h"

namespace brine {

struct Node;

// The argument of a backward lambda: which inputs require a gradient, and where to put it.
class Gradients {
 public:
  explicit Gradients(Node& node);
  bool wanted(int input) const;
  // Gives the whole gradient of an input. The tensor must not be written to afterwards: several
  // inputs may be given the same tensor.
  void set(int input, Tensor gradient);
  // A contiguous tensor of the input's shape to *add* the gradient to: the flat gradient buffer of
  // a parameter, or new zeros that are passed on. For kernels that accumulate (beta = 1).
  Tensor accumulate(int input);
  // The gradient that newer ops gave this input, for a kernel that adds it to the gradient that it
  // computes and passes the sum to set(); undefined when there is none yet, or the input is a leaf.
  Tensor take(int input);

 private:
  Node& node_;
};

using Backward = std::function<void(const Tensor& dy, Gradients& grads)>;

struct Node {
  std::string op = "leaf";
  uint64_t order = 0;                         // creation order is a topological order
  std::vector<std::shared_ptr<Node>> inputs;  // edges refer to nodes, never to data; null = no
                                              // gradient
  Backward backward;                          // empty for leaves and once it has run
  Shape shape;
  Dtype dtype = Dtype::f32;
  Device device;
  Tensor grad;                 // of a leaf: kept; the next backward() adds to it
  const char* component = "";  // the meter that its cost is added to (tensor/meter/cost_meter.h)
  bool is_leaf = false;
  bool queued = false;                             // is in the heap of a running backward()
  std::vector<std::pair<Tensor, uint64_t>> saved;  // tensors the lambda reads, and their versions

  ~Node();  // releases a long chain with a loop instead of recursion
};

// Marks x as a leaf that requires a gradient. `grad`, when given, is the buffer that gradients are
// added to (contiguous, x's shape); otherwise the first backward() makes one.
Tensor require_grad(const Tensor& x, Tensor grad = {});

// The gradient of a leaf; throws when backward() has not computed one.
Tensor grad(const Tensor& leaf);
bool has_grad(const Tensor& leaf);
bool wants_grad(const Tensor& x);

// Connects y with its inputs (any of them may be undefined). What the lambda captures is exactly
// what the op keeps alive; tensors that it reads again are listed in `saved`, so that a write in
// place between forward and backward is an error. Returns y as a new handle, which is on the tape;
// y itself is not, so the lambda may capture it.
Tensor record(const char* op, Tensor y, std::initializer_list<Tensor> inputs, Backward backward,
              std::initializer_list<Tensor> saved = {});
Tensor record(const char* op, Tensor y, const std::vector<Tensor>& inputs, Backward backward,
              std::initializer_list<Tensor> saved = {});

// The same of one input: write(dx, dy) gives its gradient to dx, new memory of x's shape.
template <class F>
Tensor record_one(const char* op, Tensor y, const Tensor& x, F write,
                  std::initializer_list<Tensor> saved = {}) {
  return record(
      op, std::move(y), {x},
      [write = std::move(write), shape = x.shape()](const Tensor& dy, Gradients& grads) {
        const Tensor dx = Tensor::empty(shape, dy.dtype(), dy.device());
        write(dx, dy);
        grads.set(0, dx);
      },
      saved);
}

// Gradients of y with cotangent dy (default: 1 for a one-element y) into every leaf below it.
void backward(const Tensor& y, Tensor dy = {});

// While an object lives, ops of this thread are not recorded.
class NoGrad : NonCopyable {
 public:
  NoGrad();
  ~NoGrad();

 private:
  bool before_;
};
bool grad_enabled();

// Recomputation: runs f without a tape and keeps only its inputs; backward runs f again with the
// tape. `random`, when given, is reset for the second run to its state before the first, so that
// dropout repeats. f may use parameters besides its inputs.
Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                  const std::vector<Tensor>& inputs, RandomStream* random = nullptr);

// Anomaly mode: every output and gradient is searched for NaN and infinity, and the error names the
// op that made the first one. Slow; thread-local.
void set_anomaly_detection(bool on);

}  // namespace brine
