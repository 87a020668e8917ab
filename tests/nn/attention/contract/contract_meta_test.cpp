// Costs that are counted on the meta device are those of a real pass, for every registered method.
#include <set>

#include "autograd/ops.h"
#include "nn/layers/layers.h"
#include "nn/models/model_costs.h"
#include "tests/nn/attention/contract/contract.h"
#include "tests/nn/costs.h"
#include "tests/small_models.h"

namespace brine::test {
namespace {

// Costs of forward() on one sequence, where the block is.
Costs counted(Block& block, int64_t T, const nn::RuntimeOptions& options, Device device) {
  auto drawn = [&](uint64_t seed) {
    return normal({1, kHeads, T, kSize}, seed, Dtype::f32).to(device);
  };
  const nn::AttentionInput in{.q = drawn(1),
                              .k = drawn(2),
                              .v = drawn(3),
                              .hidden = normal({1, T, kHeads * kSize}, 4, Dtype::f32).to(device),
                              .visible = {.causal = block.causal},
                              .options = options};
  NoGrad off;
  CostMeter meter;
  block.module->forward(in);
  Costs costs = meter.costs();
  std::erase_if(costs, [](auto& entry) { return !entry.second.macs && !entry.second.bytes; });
  return costs;
}

// A method as a program outside the tree may register it: it contains nothing about costs or the
// meta device. Every second key is hidden by a mask that the CPU computes.
class EverySecond : public nn::Attention {
 public:
  EverySecond(nn::Init& init, const nn::AttentionShape& shape, const nn::NoSettings&)
      : out_(child<nn::Linear>("out", init, shape.head_size, shape.head_size)) {}

  nn::AttentionTraits traits() const override { return {.quadratic = true}; }

  Tensor forward(const nn::AttentionInput& in) override {
    const int64_t B = in.q.dim(0), H = in.q.dim(1), T = in.q.dim(2);
    Tensor mask = Tensor::zeros({B, H, T, T}, Dtype::u8);
    for (int64_t i = 0; i < mask.numel(); ++i) mask.data<uint8_t>()[i] = i % 2 == 0;
    Tensor p = masked_softmax(matmul(in.q, in.k, false, true), mask.to(in.q.device()));
    return merge_heads(out_(matmul(p, in.v)));
  }

 private:
  nn::Linear& out_;
};

// Registers it while an object lives: the general contract does not apply to it.
struct Registered {
  Registered() { nn::RegisterAttention<EverySecond, nn::NoSettings>("every-second"); }
  ~Registered() { nn::attention_methods().erase("every-second"); }
};

}  // namespace

TEST_CASE("contract: the meta device counts the same as a real pass, for every method") {
  int compared = 0;
  const std::vector<std::map<std::string, std::string>> settings = {
      {},
      {{"columns", "16"}},
      {{"mu_scope", "token"}, {"prior", "none"}},
      {{"k", "7"}},
      {{"features", "softmax"}, {"mode", "per-query"}},
      {{"preset", "light"}},
      {{"prior", "learned"}, {"prior_features", "5"}}};
  for (const std::string& name : methods_to_test()) {
    for (bool causal : {true, false}) {
      for (const auto& keys : settings) {
        CAPTURE(name);
        CAPTURE(causal);
        CAPTURE(keys.size());
        std::optional<Block> real;
        try {
          real = make_block(name, causal, Dtype::f32, 5, 300, keys);
        } catch (const Error&) {
          continue;  // it throws: the contract tests print why
        }
        Block meta = make_meta_block(*real);
        const nn::AttentionTraits traits = real->module->traits();
        for (int64_t skip : {1, 3}) {
          if (skip > 1 && !traits.query_skip) continue;
          for (int64_t T : {1, 4, 193}) {  // of four tokens a mask keeps all that are visible
            CAPTURE(skip);
            CAPTURE(T);
            const nn::RuntimeOptions options{.query_skip = skip};
            check_alike(counted(meta, T, options, Device::meta),
                        counted(*real, T, options, Device{}), traits.sparse && T > 4 ? 0.05 : 0);
            ++compared;
          }
        }
      }
    }
  }
  CHECK(enough(compared, 60));
}

TEST_CASE("contract: a step of training runs on the meta device and takes no memory there") {
  each_block(Dtype::f32, [](Block& real) {
    Block block = make_meta_block(real);
    const int64_t T = 65, before = allocator_stats().live;
    auto leaf = [&](const Shape& shape) {
      return require_grad(Tensor::empty(shape, Dtype::f32, Device::meta));
    };
    const Tensor q = leaf({2, kHeads, T, kSize}), k = leaf(q.shape()), v = leaf(q.shape());
    if (block.store) block.store->zero_gradients();
    const Tensor lengths = lengths_of({T, 9});
    Tensor y = block.module->forward({.q = q,
                                      .k = k,
                                      .v = v,
                                      .hidden = leaf({2, T, kHeads * kSize}),
                                      .visible = {.causal = block.causal, .lengths = lengths}});
    CHECK(y.shape() == Shape{2, T, kHeads * kSize});
    CHECK(y.device() == Device::meta);
    backward(y, Tensor::like(y));
    // The Synthesizer's tables read no queries.
    if (block.name != "synthesizer") REQUIRE(has_grad(q));
    if (has_grad(q)) CHECK(grad(q).device() == Device::meta);
    CHECK(grad(v).shape() == v.shape());
    CHECK(allocator_stats().live - before < 16 * 1024);  // lengths and identifiers of the CPU
  });
}

TEST_CASE("contract: a method without code for costs is counted on the meta device") {
  const Registered registered;
  for (bool causal : {true, false}) {
    Block real = make_block("every-second", causal, Dtype::f32);
    Block meta = make_meta_block(real);
    const double T = 40, d = kSize, n = kHeads * T * d, map = kHeads * T * T;
    const Costs costs = counted(meta, int64_t(T), {}, Device::meta);
    check_alike(costs, counted(real, int64_t(T), {}, Device{}));
    CHECK(costs.at("rest").macs == 2 * map * d + n * d);
    // Scores, softmax under a mask of bytes, product with the values, projection, heads merged.
    CHECK(costs.at("rest").bytes ==
          4 * (2 * n + map) + 8 * map + 4 * (map + 2 * n) + 4 * (2 * n + d * d + d) + 8 * n);
  }
  nn::ModelConfig config = small_opt(50, 60, 0.02, {{"hidden_size", 48}, {"ffn_dim", 64}});
  config.attention = "every-second";
  auto real = nn::make_model(config, 1);
  const nn::ParameterStore store(*real);
  check_alike(nn::forward_costs(*nn::MetaModel(config).model, 60), nn::forward_costs(*real, 60));
}

}  // namespace brine::test
