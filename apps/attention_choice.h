// The section [attention] of a configuration: a registered method and that method's own keys.
#pragma once

#include <map>
#include <memory>
#include <string>

#include "nn/attention.h"

namespace brine {

// `[attention] method = "sea"` and the keys of sea; as flags --attention sea --k 16.
// Use it as a member of a subcommand: attention.describe(s) inside describe(s).
class AttentionChoice {
 public:
  explicit AttentionChoice(const std::string& method = "dense");
  void describe(nn::Schema& s);
  const std::string& name() const { return method_; }
  nn::AttentionMethod& chosen() const;

 private:
  std::string method_;
  std::map<std::string, std::unique_ptr<nn::AttentionMethod>> methods_;
};

}  // namespace brine
