// The tape: recording, the backward walk, recomputation.
#include "autograd/node.h"

#include <atomic>
#include <queue>
#include <utility>

#include "autograd/ops.h"
#include "tensor/kernels/dense.h"
#include "tensor/meter/cost_meter.h"

namespace brine {
namespace {

thread_local bool recording = true;
thread_local bool anomaly = false;

uint64_t next_order() {
  static std::atomic<uint64_t> counter{0};
  return ++counter;
}

void check_finite(const Tensor& t, const std::string& op, const char* what) {
  if (!is_float(t.dtype()) || t.numel() == 0) return;
  const int64_t bad = count_nonfinite(t);
  check(bad == 0, op, ": ", what, " has ", bad, " of ", t.numel(),
        " values that are NaN or infinite (anomaly detection)");
}

Tensor leaf_buffer(Node& node) {
  if (!node.grad.defined()) node.grad = Tensor::zeros(node.shape, node.dtype, node.device);
  return node.grad;
}

void add_to(const Tensor& sum, const Tensor& g) { BRINE_CALL(sum, axpby, sum, g, 1.0, 1.0); }

Node& node_of(const Tensor& leaf, const char* what) {
  check(leaf.defined() && leaf.node() != nullptr, what, ": this tensor requires no gradient");
  return *leaf.node();
}

}  // namespace

Node::~Node() {
  std::vector<std::shared_ptr<Node>> chain;
  auto take = [&chain](std::vector<std::shared_ptr<Node>>& from) {
    for (auto& n : from) {
      if (n) chain.push_back(std::move(n));
    }
    from.clear();
  };
  take(inputs);
  while (!chain.empty()) {
    std::shared_ptr<Node> last = std::move(chain.back());
    chain.pop_back();
    if (last.use_count() == 1) take(last->inputs);
  }
}

Gradients::Gradients(Node& node) : node_(node) {}

bool Gradients::wanted(int input) const { return node_.inputs.at(size_t(input)) != nullptr; }

void Gradients::set(int input, Tensor gradient) {
  Node* in = node_.inputs.at(size_t(input)).get();
  if (!in) return;
  check(gradient.defined() && gradient.shape() == in->shape && gradient.dtype() == in->dtype,
        node_.op, ": the gradient of input ", input, " must be ", in->dtype, " ", in->shape);
  if (anomaly) check_finite(gradient, node_.op, "a gradient");
  gradient = gradient.detach().contiguous();
  if (in->is_leaf) {
    add_to(leaf_buffer(*in), gradient);
  } else if (!in->grad.defined()) {
    in->grad = std::move(gradient);
  } else if (in->grad.is_unique()) {
    add_to(in->grad, gradient);
  } else {
    Tensor sum = Tensor::like(gradient);
    BRINE_CALL(sum, add, sum, in->grad, gradient);
    in->grad = sum;
  }
}

Tensor Gradients::take(int input) {
  Node* in = node_.inputs.at(size_t(input)).get();
  return in && !in->is_leaf ? std::exchange(in->grad, Tensor()) : Tensor();
}

Tensor Gradients::accumulate(int input) {
  Node* in = node_.inputs.at(size_t(input)).get();
  check(in != nullptr, node_.op, ": input ", input, " requires no gradient");
  if (in->is_leaf) return leaf_buffer(*in);
  if (!in->grad.defined()) {
    in->grad = Tensor::zeros(in->shape, in->dtype, in->device);
  } else if (!in->grad.is_unique()) {
    in->grad = in->grad.clone();
  }
  return in->grad;
}

Tensor require_grad(const Tensor& x, Tensor grad) {
  check(is_float(x.dtype()), "require_grad: ", x.dtype(), " has no gradient");
  check(!grad.defined() ||
            (grad.shape() == x.shape() && grad.dtype() == x.dtype() && grad.is_contiguous()),
        "require_grad: the gradient buffer must be contiguous ", x.dtype(), " ", x.shape());
  auto node = std::make_shared<Node>();
  node->order = next_order();
  node->shape = x.shape();
  node->dtype = x.dtype();
  node->device = x.device();
  node->grad = std::move(grad);
  node->is_leaf = true;
  // A separate handle: x itself stays off the tape.
  Tensor leaf = x.detach().as_strided(x.shape(), x.strides());
  leaf.set_node(node);
  return leaf;
}

Tensor grad(const Tensor& leaf) {
  Node& node = node_of(leaf, "grad");
  check(node.grad.defined(), "grad: no gradient reached this tensor");
  return node.grad;
}

bool has_grad(const Tensor& leaf) {
  return leaf.defined() && leaf.node() && leaf.node()->grad.defined();
}

bool wants_grad(const Tensor& x) { return recording && x.defined() && x.node() != nullptr; }

namespace {

// An op's inputs read once and its output written once; nothing for a view. An embedding reads as
// many bytes of its table as it writes.
void count_op(std::string_view op, const Tensor& y, const std::vector<Tensor>& inputs) {
  double bytes = double(y.numel()) * double(item_size(y.dtype()));
  if (op == "embedding") return count_bytes(2 * bytes);
  for (const Tensor& x : inputs) {
    if (!x.defined()) continue;
    if (x.shares_memory(y)) return;
    bytes += double(x.numel()) * double(item_size(x.dtype()));
  }
  count_bytes(bytes);
}

}  // namespace

Tensor record(const char* op, Tensor y, const std::vector<Tensor>& inputs, Backward backward,
              std::initializer_list<Tensor> saved) {
  if (anomaly) check_finite(y, op, "the output");
  if (CostMeter::current()) count_op(op, y, inputs);
  bool wanted = false;
  for (const Tensor& x : inputs) wanted |= wants_grad(x);
  if (!wanted) return y;
  auto node = std::make_shared<Node>();
  for (const Tensor& x : inputs) {
    check(!x.defined() || x.device() == y.device(), op, ": inputs on ", y.device(), " and another",
          " device");
    node->inputs.push_back(x.defined() ? x.node() : nullptr);
  }
  node->op = op;
  node->component = CostScope::component();
  node->order = next_order();
  node->shape = y.shape();
  node->dtype = y.dtype();
  node->device = y.device();
  node->backward = std::move(backward);
  for (const Tensor& t : saved) {
    if (t.defined()) node->saved.emplace_back(t.detach(), t.version());
  }
  // The node is attached to a new handle. y itself, which the lambda may have captured, does not
  // refer to the node; otherwise the two would keep each other alive for ever.
  Tensor out = y.as_strided(y.shape(), y.strides());
  out.set_node(std::move(node));
  return out;
}

Tensor record(const char* op, Tensor y, std::initializer_list<Tensor> inputs, Backward backward,
              std::initializer_list<Tensor> saved) {
  return record(op, std::move(y), std::vector<Tensor>(inputs), std::move(backward), saved);
}

void backward(const Tensor& y, Tensor dy) {
  check(y.defined() && y.node() != nullptr, "backward: nothing to differentiate");
  if (!dy.defined()) {
    check(y.numel() == 1, "backward: y ", y.shape(), " is not a scalar, give its cotangent");
    dy = Tensor::full(y.shape(), 1.0, y.dtype(), y.device());
  }
  check(dy.shape() == y.shape() && dy.dtype() == y.dtype(), "backward: dy ", dy.shape(),
        " must match y ", y.shape());
  NoGrad off;
  if (y.node()->is_leaf) {
    add_to(leaf_buffer(*y.node()), dy.contiguous());
    return;
  }
  auto older = [](const auto& a, const auto& b) { return a->order < b->order; };
  std::priority_queue<std::shared_ptr<Node>, std::vector<std::shared_ptr<Node>>, decltype(older)>
      ready(older);
  y.node()->grad = dy.detach().contiguous();
  y.node()->queued = true;
  ready.push(y.node());
  while (!ready.empty()) {
    std::shared_ptr<Node> node = ready.top();
    ready.pop();
    node->queued = false;
    check(bool(node->backward), node->op, ": backward was already run through this op");
    for (const auto& [tensor, version] : node->saved) {
      check(tensor.version() == version, node->op,
            ": a tensor saved for backward was changed in place");
    }
    Tensor g = std::move(node->grad);
    node->grad = Tensor();
    node->saved.clear();  // From here on, a lambda with the only reference to a tensor may reuse
                          // its memory.
    Gradients gradients(*node);
    {
      CostScope scope(node->component, true);
      node->backward(g, gradients);
    }
    if (anomaly) {  // Values added through accumulate() have not been checked yet.
      for (const auto& in : node->inputs) {
        if (in && in->grad.defined()) check_finite(in->grad, node->op, "a gradient");
      }
    }
    node->backward = nullptr;  // Frees what the op saved.
    g = Tensor();
    for (const auto& in : node->inputs) {
      if (!in || in->is_leaf || in->queued || !in->grad.defined()) continue;
      in->queued = true;
      ready.push(in);
    }
  }
}

NoGrad::NoGrad() : before_(recording) { recording = false; }
NoGrad::~NoGrad() { recording = before_; }
bool grad_enabled() { return recording; }

namespace {

// Turns grad mode on for the second run of a checkpoint, which happens inside backward().
struct WithGrad {
  bool before = recording;
  WithGrad() { recording = true; }
  ~WithGrad() { recording = before; }
};

}  // namespace

Tensor checkpoint(const std::function<Tensor(const std::vector<Tensor>&)>& f,
                  const std::vector<Tensor>& inputs, RandomStream* random) {
  if (!grad_enabled()) return f(inputs);
  RandomStream start = random ? *random : RandomStream{};
  Tensor y;
  {
    NoGrad off;
    y = f(inputs).detach();
  }
  std::vector<Tensor> kept;
  std::vector<Tensor> edges = inputs;
  kept.reserve(inputs.size());
  for (const Tensor& x : inputs) kept.push_back(x.defined() ? x.detach() : x);
  // f may read parameters that are not among its inputs, so the region is always recorded.
  edges.push_back(require_grad(Tensor::zeros({1}, y.dtype(), y.device())));
  Tensor out = y.as_strided(y.shape(), y.strides());
  out = record("checkpoint", out, edges, [=](const Tensor& dy, Gradients& grads) {
    RandomStream end = random ? *random : RandomStream{};
    if (random) *random = start;
    std::vector<Tensor> again = kept;
    for (size_t i = 0; i < again.size(); ++i) {
      if (grads.wanted(int(i))) again[i] = require_grad(again[i]);
    }
    Tensor z;
    {
      WithGrad on;
      z = f(again);
    }
    if (random) *random = end;
    if (wants_grad(z) || z.node()) backward(z, dy);
    for (size_t i = 0; i < again.size(); ++i) {
      if (grads.wanted(int(i)) && has_grad(again[i])) grads.set(int(i), grad(again[i]));
    }
  });
  for (const Tensor& x : kept) {
    if (x.defined()) out.node()->saved.emplace_back(x, x.version());
  }
  return out;
}

void set_anomaly_detection(bool on) { anomaly = on; }

}  // namespace brine
