// What every registered attention method does with fewer heads of keys and values than of queries:
// it attends as with a copy of them for every head, or it refuses them by name.
#include "tests/messages.h"
#include "tests/nn/attention/contract/contract.h"

namespace brine::test {
namespace {

constexpr int64_t kQueryHeads = 6;

struct Both {
  std::unique_ptr<nn::Attention> grouped, full;
};

// The same block for G heads of keys, and for one for each head of queries.
Both blocks(const std::string& name, bool causal, int64_t G, Dtype dtype) {
  auto make = [&](int64_t kv_heads) {
    nn::Init init{.random = {.seed = 3}, .dtype = dtype, .linear_std = 0.3};
    return method_with(name, {})->make(init, {.heads = kQueryHeads,
                                              .head_size = kSize,
                                              .max_positions = 100,
                                              .causal = causal,
                                              .kv_heads = kv_heads});
  };
  return {make(G), make(kQueryHeads)};
}

// Calls f(blocks, G, causal) for every method that takes groups of heads.
template <class F>
void each_grouped(Dtype dtype, F f) {
  int made = 0;
  for (const std::string& name : methods_to_test()) {
    nn::Init init{.random = {.seed = 3}};
    const nn::AttentionShape shape{.heads = kQueryHeads, .head_size = kSize};
    const nn::AttentionTraits traits = method_with(name, {})->make(init, shape)->traits();
    if (!traits.groups) continue;
    if (name == "best-blocks") continue;  // the heads of a group choose together, copies do not
    for (bool causal : {true, false}) {
      if (!causal && traits.calibrates) continue;  // for causal models alone
      for (int64_t G : {1, 2, 3}) {
        INFO(name << (causal ? ", causal" : "") << ", kv_heads " << G);
        f(blocks(name, causal, G, dtype), G, causal);
        ++made;
      }
    }
  }
  CHECK(enough(made, 18));
}

// Most bytes alive in a call beyond those alive before it.
template <class F>
int64_t peak_alive(F f) {
  f();
  const int64_t before = allocator_stats().live;
  reset_peak();
  f();
  return allocator_stats().peak_live - before;
}

// A method that does not claim groups.
class Ungrouped : public nn::Attention {
 public:
  Ungrouped(nn::Init&, const nn::AttentionShape&, const nn::NoSettings&) {}
  nn::AttentionTraits traits() const override { return {}; }
  Tensor forward(const nn::AttentionInput& in) override { return merge_heads(in.v); }
};

// Registers it while an object lives: the general contract does not apply to it.
struct UngroupedRegistered {
  UngroupedRegistered() { nn::RegisterAttention<Ungrouped, nn::NoSettings>("ungrouped"); }
  ~UngroupedRegistered() { nn::attention_methods().erase("ungrouped"); }
};

}  // namespace

TEST_CASE("contract: groups of heads are taken by the methods that claim them, refused by others") {
  const UngroupedRegistered ungrouped;
  int taken = 0, refused = 0;
  for (const std::string& name : methods_to_test()) {
    nn::Init init{.random = {.seed = 3}};
    const nn::AttentionShape shape{.heads = kQueryHeads, .head_size = kSize};
    const std::unique_ptr<nn::Attention> full = method_with(name, {})->make(init, shape);
    nn::AttentionShape grouped = shape, uneven = shape;
    grouped.kv_heads = 2, uneven.kv_heads = 4;
    INFO(name);
    CHECK(message([&] { method_with(name, {})->make(init, uneven); }) ==
          name + ": kv_heads 4 do not divide 6 heads");
    if (full->traits().groups) {
      CHECK(method_with(name, {})->make(init, grouped)->traits().groups);
      ++taken;
    } else {
      CHECK(message([&] { method_with(name, {})->make(init, grouped); }) ==
            name + ": kv_heads 2 of 6 heads is not supported");
      ++refused;
    }
  }
  CHECK(enough(taken, 4));
  CHECK(enough(refused, 1));
  CHECK(refused <= 1);
}

TEST_CASE("contract: groups of heads give what copies of their keys give, with every gradient") {
  each_grouped(Dtype::f64, [](const Both& both, int64_t G, bool causal) {
    const int64_t T = 21, group = kQueryHeads / G;
    const Shape queries{2, kQueryHeads, T, kSize}, keys{2, G, T, kSize};
    const std::vector<Tensor> x = {normal(queries, 1, Dtype::f64), normal(keys, 2, Dtype::f64),
                                   normal(keys, 3, Dtype::f64)};
    const Tensor hidden = normal({2, T, kQueryHeads * kSize}, 4, Dtype::f64);
    const Tensor dy = normal(hidden.shape(), 5, Dtype::f64);
    for (const Tensor& lengths : {Tensor(), lengths_of({T, 13})}) {
      for (bool dense_path : {false, true}) {
        auto attend = [&](nn::Attention& block, const Tensor& q, const Tensor& k, const Tensor& v) {
          return block.forward({.q = q,
                                .k = k,
                                .v = v,
                                .hidden = hidden,
                                .visible = {.causal = causal, .lengths = lengths},
                                .options = {.dense_path = dense_path}});
        };
        const Run grouped = run(
            [&](const std::vector<Tensor>& in) {
              return attend(*both.grouped, in[0], in[1], in[2]);
            },
            x, dy);
        const Run copied = run(
            [&](const std::vector<Tensor>& in) {
              return attend(*both.full, in[0], repeat_heads(in[1], group),
                            repeat_heads(in[2], group));
            },
            x, dy);
        CHECK(close_to_scale(grouped.y, copied.y, 1e-13, "output"));
        for (size_t i = 0; i < 3; ++i) {
          CHECK(close_to_scale(grouped.grads[i], copied.grads[i], 1e-13,
                               join("gradient of ", "qkv"[i])));
        }
      }
    }
  });
}

TEST_CASE("contract: decoding with groups of heads gives what copies of their keys give") {
  each_grouped(Dtype::f64, [](const Both& both, int64_t G, bool causal) {
    if (!causal || !both.grouped->traits().incremental) return;
    NoGrad off;
    const int64_t T = 17, prompt = 6, group = kQueryHeads / G;
    const Tensor q = normal({2, kQueryHeads, T, kSize}, 1, Dtype::f64);
    const Tensor k = normal({2, G, T, kSize}, 2, Dtype::f64), v = normal(k.shape(), 3, Dtype::f64);
    const Tensor hidden = normal({2, T, kQueryHeads * kSize}, 4, Dtype::f64);
    const nn::StateRequest request{.batch = 2, .capacity = T, .dtype = Dtype::f64};
    auto few = both.grouped->make_state(request), many = both.full->make_state(request);
    CHECK(few->bytes() < many->bytes());
    auto call = [&](nn::Attention& block, nn::AttentionState& state, int64_t from, int64_t n,
                    int64_t copies) {
      auto part = [&](const Tensor& x) { return rows(x, 2, from, n); };
      const nn::AttentionInput in{.q = part(q),
                                  .k = repeat_heads(part(k), copies),
                                  .v = repeat_heads(part(v), copies),
                                  .hidden = rows(hidden, 1, from, n),
                                  .state = from ? nullptr : &state};
      return from ? block.step(in, state) : block.forward(in);
    };
    for (int64_t t = 0; t < T; t += t ? 1 : prompt) {
      const int64_t n = t ? 1 : prompt;
      CHECK(close_to_scale(call(*both.grouped, *few, t, n, 1), call(*both.full, *many, t, n, group),
                           1e-13));
    }
  });
}

TEST_CASE("contract: groups of heads are not copied, neither in a full pass nor in a step") {
  const int64_t T = 256, bytes = kQueryHeads * T * kSize * int64_t(sizeof(float));
  for (const char* name : {"dense", "flash", "recent", "top"}) {
    INFO(name);
    const Both both = blocks(name, true, 1, Dtype::f32);
    NoGrad off;
    const Tensor q = normal({1, kQueryHeads, T, kSize}, 1), k = normal({1, 1, T, kSize}, 2);
    const Tensor all = repeat_heads(k, kQueryHeads);
    auto pass = [&](nn::Attention& block, const Tensor& keys) {
      return peak_alive([&] { block.forward({.q = q, .k = keys, .v = keys, .hidden = {}}); });
    };
    CHECK(pass(*both.grouped, k) < pass(*both.full, all) + bytes / 2);
    auto state = both.grouped->make_state({.batch = 1, .capacity = 4 * T});
    both.grouped->forward({.q = q, .k = k, .v = k, .hidden = {}, .state = state.get()});
    const Tensor one = rows(q, 2, 0, 1), key = rows(k, 2, 0, 1);
    CHECK(peak_alive([&] {
            both.grouped->step({.q = one, .k = key, .v = key, .hidden = {}}, *state);
          }) < bytes / 2);
  }
}

}  // namespace brine::test
