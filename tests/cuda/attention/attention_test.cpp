// Every registered attention method on the device: outputs and gradients as on the CPU.
#include "tests/cuda/compare.h"
#include "tests/nn/attention/contract/contract.h"

using namespace brine;
using namespace brine::test;

namespace {

Inputs moved(const Inputs& in, const On& on) {
  return {on(in.q), on(in.k), on(in.v), on(in.hidden)};
}

struct LayerCase {
  std::string name;
  bool causal;
  std::map<std::string, std::string> settings = {};
};

std::vector<LayerCase> layer_cases() {
  std::vector<LayerCase> out;
  for (const auto& [name, factory] : nn::attention_methods()) {
    for (bool causal : {true, false}) {
      for (const auto& settings : variants(name, causal)) out.push_back({name, causal, settings});
    }
  }
  out.push_back({"sea", true, {{"columns", "16"}}});
  for (const char* mode : {"per-query", "per-head", "per-batch"}) {
    out.push_back({"sea", false, {{"mode", mode}}});
  }
  out.push_back({"sea", true, {{"mu_scope", "token"}, {"prior", "none"}}});
  return out;
}

Passed run_layer(const LayerCase& c, const On& on, Dtype dtype, const Inputs& in,
                 const Tensor& lengths, const Tensor& dy, const nn::RuntimeOptions& options,
                 nn::Tap* tap = nullptr) {
  const OnDefault made(on.device);
  Block block = make_block(c.name, c.causal, dtype, 5, 300, c.settings);
  return pass(block, moved(in, on), lengths, on(dy), options, tap);
}

// `firm`: nothing depends on how a sum was rounded. In f32 values that are almost equal may be
// ordered differently, which changes whole rows.
void compare_methods(Dtype dtype, double tolerance, bool firm) {
  if (!has_device()) return;
  auto compare_close = [&](const std::string& what, const Tensor& wanted, const Tensor& got) {
    if (firm) return check_close(what, wanted, got, tolerance);
    REQUIRE_MESSAGE(wanted.shape() == got.shape(), what);
    const std::string differing = difference(what, wanted, got, tolerance);
    check_emulated(differing.empty(), differing);
  };
  const SmallDevice small(dtype);
  int made = 0;
  for (const LayerCase& c : layer_cases()) {
    std::string what = c.name + (c.causal ? ", causal" : ", bidirectional");
    for (const auto& [key, value] : c.settings) what += ", " + key + " = " + value;
    INFO(what);
    const int64_t T = 37;
    const Inputs in = inputs(3, T, dtype);
    const Tensor lengths = lengths_of({T, 0, 22});
    const Tensor dy = normal({3, T, kHeads * kSize}, 77, dtype);
    for (const nn::RuntimeOptions& options : {nn::RuntimeOptions{}, nn::RuntimeOptions{.k = 3}}) {
      Passed a, b;
      try {
        a = run_layer(c, On{kCpu}, dtype, in, lengths, dy, options);
      } catch (const Error& refusal) {
        MESSAGE(what << ", refuses: " << std::string(refusal.what()));
        continue;
      }
      b = run_layer(c, On{kCuda}, dtype, in, lengths, dy, options);
      CHECK(b.y.device() == kCuda);
      compare_close(what + ": output", a.y, b.y.to(kCpu));
      compare_close(what + ": gradient of q", a.q, b.q.to(kCpu));
      compare_close(what + ": gradient of k", a.k, b.k.to(kCpu));
      compare_close(what + ": gradient of v", a.v, b.v.to(kCpu));
      if (a.parameters.defined()) {
        compare_close(what + ": parameters", a.parameters, b.parameters.to(kCpu));
      }
      ++made;
    }
  }
  CHECK(made >= 16);
}

}  // namespace

TEST_CASE("cuda: every attention method, forward and backward, f64") {
  compare_methods(Dtype::f64, 1e-10, true);
}

TEST_CASE("cuda: every attention method, forward and backward, f32") {
  compare_methods(Dtype::f32, 2e-3, false);
}

TEST_CASE("cuda: the same bits at every run") {
  if (!has_device()) return;
  const Inputs in = inputs(1, 66, Dtype::f32);
  const Tensor lengths = lengths_of({65}), dy = normal({1, 66, kHeads * kSize}, 78);
  for (const LayerCase& c : layer_cases()) {
    INFO(c.name);
    try {
      const Passed a = run_layer(c, On{kCuda}, Dtype::f32, in, lengths, dy, {});
      const Passed b = run_layer(c, On{kCuda}, Dtype::f32, in, lengths, dy, {});
      auto on_host = [](const Passed& p) {
        return Passed{p.y.to(kCpu), p.q.to(kCpu), p.k.to(kCpu), p.v.to(kCpu),
                      p.parameters.defined() ? p.parameters.to(kCpu) : Tensor()};
      };
      check_same_bits(on_host(a), on_host(b), c.name);
    } catch (const Error& refusal) {
      MESSAGE(c.name << " refuses: " << std::string(refusal.what()));
    }
  }
}
