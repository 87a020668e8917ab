// Modules and their state: dotted paths, groups, flat buffers, packing, loading by name.
#include "nn/optim/parameter_store.h"

#include <map>

#include "autograd/ops.h"
#include "nn/layers/layers.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

struct Inner : nn::Module {
  explicit Inner(nn::Init& init)
      : gain(parameter("gain", init.full({3}, 2), false)),
        table(buffer("table", init.normal({2, 3}, 1))) {}
  std::optional<nn::ParameterGroup> group() const override { return nn::ParameterGroup::attention; }
  nn::Parameter& gain;
  nn::Buffer& table;
};

struct Outer : nn::Module {
  explicit Outer(nn::Init& init)
      : first(child<nn::Linear>("first", init, 5, 7)),
        q(child<nn::Linear>("q", init, 5, 3)),
        inner(child<Inner>("block.inner", init)),
        nameless(child<Inner>("", init)),
        k(child<nn::Linear>("k", init, 5, 2)),
        weight(pack({&q.weight, &k.weight})),
        bias(pack({q.bias, k.bias})) {}
  nn::Linear& first;
  nn::Linear& q;
  Inner& inner;
  Inner& nameless;
  nn::Linear& k;
  nn::Packed& weight;
  nn::Packed& bias;
};

nn::Init fresh_tower(uint64_t seed = 3, Dtype dtype = Dtype::f64) {
  return {.random = {.seed = seed}, .dtype = dtype, .linear_std = 0.5};
}

std::string refusal(nn::Module& module, const std::vector<NamedTensor>& state) {
  return message([&] { nn::load_state(module, state, "file.safetensors"); });
}

}  // namespace

TEST_CASE("modules: dotted paths, groups and buffers, parents first") {
  nn::Init init = fresh_tower();
  Outer m(init);
  std::string paths, buffers;
  for (const auto& p : m.named_parameters()) {
    paths += p.path + ":" + data::name_of(p.group, nn::kParameterGroups) + " ";
  }
  for (const auto& b : m.named_buffers()) buffers += b.path + " ";
  CHECK(paths ==
        "first.weight:base first.bias:base q.weight:base q.bias:base block.inner.gain:attention "
        "gain:attention k.weight:base k.bias:base ");
  CHECK(buffers == "block.inner.table table ");
  CHECK(nn::parameter_count(m) == 35 + 7 + 15 + 3 + 3 + 3 + 10 + 2);
  int visited = 0;
  m.visit([&](nn::Module&) { ++visited; });
  CHECK(visited == 6);
}

TEST_CASE("parameter store: packed parameters are adjacent, values survive the move") {
  nn::Init init = fresh_tower();
  Outer m(init);
  std::vector<double> q = m.q.weight.value.to_vector(), k = m.k.weight.value.to_vector();
  nn::ParameterStore store(m);
  REQUIRE(m.weight.value.shape() == Shape{5, 5});
  std::vector<double> both = q;
  both.insert(both.end(), k.begin(), k.end());
  CHECK(m.weight.value.to_vector() == both);
  CHECK(m.q.weight.value.shares_memory(store.values()));
  CHECK(m.weight.value.raw() == m.q.weight.value.raw());
  CHECK(m.q.weight.value.raw() + 15 * sizeof(double) == m.k.weight.value.raw());
  CHECK(m.bias.value.shape() == Shape{5});
  CHECK(m.q.bias->value.raw() + 3 * sizeof(double) == m.k.bias->value.raw());
  // Entries do not overlap.
  int64_t end = 0;
  for (const auto& e : store.entries()) {
    CHECK(e.offset >= end);
    end = e.offset + e.size;
  }
  CHECK(end <= store.size());
}

TEST_CASE("parameter store: one packed product equals separate ones, in value and gradient") {
  nn::Init init = fresh_tower();
  Outer m(init);
  nn::ParameterStore store(m);
  Tensor x = normal({4, 5}, 8, Dtype::f64), dq = normal({4, 3}, 9, Dtype::f64);
  Tensor dk = normal({4, 2}, 10, Dtype::f64);
  Tensor y = linear(x, m.weight.value, m.bias.value);
  Tensor q = m.q(x), k = m.k(x);
  CHECK(close(y.detach().slice(1, 0, 3).contiguous(), q.detach(), 1e-14, 1e-14));
  CHECK(close(y.detach().slice(1, 3, 2).contiguous(), k.detach(), 1e-14, 1e-14));
  backward(y, concat({dq, dk}, -1));
  Tensor packed = store.gradients().clone();
  CHECK(largest(packed.to_vector()) > 0);
  store.zero_gradients();
  CHECK(largest(store.gradients().to_vector()) == 0);
  backward(q, dq);
  backward(k, dk);
  CHECK(close_to_scale(store.gradients(), packed, 1e-14));
  CHECK(grad(m.q.weight).shares_memory(store.gradients()));
}

TEST_CASE("parameter store: gradients add up over backward passes") {
  nn::Init init = fresh_tower();
  Outer m(init);
  nn::ParameterStore store(m);
  Tensor x = normal({4, 5}, 8, Dtype::f64), dy = normal({4, 7}, 9, Dtype::f64);
  backward(m.first(x), dy);
  Tensor once = store.gradients().clone();
  backward(m.first(x), dy);
  CHECK(close_to_scale(store.gradients(), scale(once, 2), 1e-15));
}

TEST_CASE("state: loads by name from any order, converts types, and fills buffers") {
  nn::Init a = fresh_tower(3, Dtype::f32), b = fresh_tower(4);
  Outer from(a), to(b);
  nn::ParameterStore store(to);
  std::vector<NamedTensor> state = nn::state_of(from);
  std::reverse(state.begin(), state.end());
  CHECK(refusal(to, state) == "no error");
  std::vector<NamedTensor> loaded = nn::state_of(to);
  std::reverse(state.begin(), state.end());
  REQUIRE(loaded.size() == state.size());
  for (size_t i = 0; i < state.size(); ++i) {
    CHECK(loaded[i].name == state[i].name);
    CHECK(loaded[i].tensor.dtype() == Dtype::f64);
    CHECK(loaded[i].tensor.to_vector() == state[i].tensor.to_vector());
  }
  CHECK(to.q.weight.value.shares_memory(store.values()));
}

TEST_CASE("state: missing, unknown and wrongly shaped tensors are listed, and nothing is loaded") {
  nn::Init a = fresh_tower(3), b = fresh_tower(4);
  Outer from(a), to(b);
  std::vector<double> before = to.first.weight.value.to_vector();
  std::vector<NamedTensor> state = nn::state_of(from), changed = state;
  changed.erase(changed.begin() + 1, changed.begin() + 3);  // first.bias, q.weight
  CHECK(refusal(to, changed) == "file.safetensors: missing tensors: first.bias q.weight");
  changed = state;
  changed.push_back({"extra", normal({2}, 1, Dtype::f64)});
  check_says(refusal(to, changed), {"file.safetensors", "unexpected", "extra"});
  changed = state;
  changed.back().tensor = normal({9}, 1, Dtype::f64);
  CHECK(refusal(to, changed) == "file.safetensors: tensor " + changed.back().name +
                                    " is [9], the model needs " +
                                    join(state.back().tensor.shape()));
  CHECK(to.first.weight.value.to_vector() == before);
  changed = state;
  changed.erase(changed.begin() + 1);
  nn::load_state(to, changed, "partial", [](const std::string& n) { return n == "first.bias"; });
  CHECK(to.first.weight.value.to_vector() != before);
}

TEST_CASE(
    "parameter store: narrowed weights, packed ones too, have half the memory and no gradients") {
  nn::Init init = fresh_tower(3, Dtype::f32);
  Outer m(init);
  nn::ParameterStore store(m, nn::ParameterStore::Gradients::later);
  std::map<std::string, Tensor> before;
  for (const NamedTensor& t : nn::state_of(m)) before[t.name] = t.tensor.clone();
  const int64_t all = store.size();
  store.narrow(Dtype::bf16, [](const nn::Parameter& p) { return p.name == "weight"; });
  CHECK(store.size() < all);
  for (const NamedTensor& t : nn::state_of(m)) {
    CAPTURE(t.name);
    const bool weight = t.name.ends_with("weight");
    CHECK(t.tensor.dtype() == (weight ? Dtype::bf16 : Dtype::f32));
    const Tensor& was = before.at(t.name);
    CHECK(same_bits(t.tensor.to(Dtype::f32), weight ? was.to(Dtype::bf16).to(Dtype::f32) : was));
  }
  // The packed weights are still one tensor, their biases too.
  CHECK(m.weight.value.dtype() == Dtype::bf16);
  CHECK(m.weight.value.shape() == Shape{5, 5});
  CHECK(m.weight.value.raw() == m.q.weight.value.raw());
  CHECK(m.bias.value.raw() == m.q.bias->value.raw());
  CHECK(m.bias.value.slice(0, 3, 2).raw() == m.k.bias->value.raw());
  CHECK_REFUSES(store.add_gradients(), "bf16", "inference");
  nn::ParameterStore trained(m.inner);
  CHECK_REFUSES(trained.narrow(Dtype::f16, [](const auto&) { return true; }), "gradients", "f16");
  CHECK_REFUSES(store.narrow(Dtype::f32, [](const auto&) { return true; }), "f32", "bf16");
}

}  // namespace brine::test
