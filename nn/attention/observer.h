// Observation of layers: a Tap carries named tensors out of (and imposed ones into) an attention
// method, a LayerObserver computes losses inside the layers.
#pragma once

#include <map>
#include <set>
#include <string>
#include <utility>

#include "tensor/tensor.h"

namespace brine::nn {

// Nullable and neutral: methods store what they have, losses get what they need.
class Tap {
 public:
  explicit Tap(std::string method) : method_(std::move(method)) {}

  void put(const std::string& name, const Tensor& value) { values_[name] = value; }
  bool has(const std::string& name) const { return values_.count(name) > 0; }
  const Tensor& get(const std::string& name) const {
    auto it = values_.find(name);
    check(it != values_.end(), "tap: attention method '", method_, "' gives no '", name, "'");
    return it->second;
  }
  const std::map<std::string, Tensor>& values() const { return values_; }

  // Imposes a tensor on the method (for example a mask) so that two paths can be compared under one
  // selection. A method throws for a forced tensor that it does not support.
  void force(const std::string& name, const Tensor& value) { forced_[name] = value; }
  Tensor forced(const std::string& name) const {
    auto it = forced_.find(name);
    return it == forced_.end() ? Tensor() : it->second;
  }

  // Asks a method for entries that it does not give by itself, because they cost memory or time. A
  // method without them ignores it.
  void request(const std::string& name) { requested_.insert(name); }
  bool requested(const std::string& name) const { return requested_.count(name) > 0; }

 private:
  std::string method_;
  std::map<std::string, Tensor> values_, forced_;
  std::set<std::string> requested_;
};

// Of the keys of a mask, for pictures.
inline constexpr const char* kProbabilities = "probabilities";

// Called by the model inside each layer's recompute region.
struct LayerObserver {
  virtual ~LayerObserver() = default;
  // Called with the empty tap before the layer runs: for Tap::request().
  virtual void prepare(Tap& /*tap*/) const {}
  // Called after the layer ran: `tap` contains "q", "k", "v" [B,H,T,d], "attention_output" [B,T,C]
  // and the entries of the attention method, `output` [B,T,C] is the layer's output. Returns a
  // scalar [1] whose gradient joins the backward pass, or an undefined tensor. With recomputation
  // it is called twice, the first time without a tape.
  virtual Tensor observe(int64_t layer, const Tap& tap, const Tensor& output) = 0;
};

}  // namespace brine::nn
