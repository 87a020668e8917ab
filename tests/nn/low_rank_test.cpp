// Low-rank additions to linear maps: values, gradients, packed projections, merging, files.
#include "nn/layers/low_rank.h"

#include "nn/io/model_io.h"
#include "nn/layers/projections.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"
#include "tests/refusals.h"
#include "tests/scratch.h"
#include "tests/small_models.h"

namespace brine::test {
namespace {

nn::ModelConfig opt_of_rank(int64_t rank = 0) {
  nn::ModelConfig config = small_opt(31, 16, 0.2, {{"hidden_size", 12}, {"ffn_dim", 20}});
  config.lora_rank = rank;
  return config;
}

// Gives every B values, so that additions have an effect.
void fill_b(nn::Module& root) {
  uint64_t seed = 70;
  for (const auto& p : root.named_parameters()) {
    if (p.path.ends_with("lora_b")) {
      assign(p.parameter->value.detach(),
             normal(p.parameter->value.shape(), ++seed, p.parameter->value.dtype(), 0, 0.3));
    }
  }
}

Tensor hidden_of(nn::Model& model) {
  NoGrad off;
  return model.hidden({.ids = ids({2, 9}, 4, 31)});
}

struct One : nn::Module {
  explicit One(nn::Init& init) : map(child<nn::Linear>("0.map", init, 5, 7)) {}
  nn::Linear& map;
};

}  // namespace

TEST_CASE("lora: y = x W^T + b + x A^T B^T, with its gradients; zero at the start") {
  nn::Init init{.random = {.seed = 3}, .dtype = Dtype::f64, .linear_std = 0.5};
  One one(init);
  const Tensor x = normal({4, 5}, 1, Dtype::f64);
  const Tensor before = one.map(x).detach();
  one.map.add_low_rank(init, 2);
  CHECK(same_bits(before, one.map(x)));
  CHECK(one.map.lora_a->value.shape() == Shape{2, 5});
  CHECK(one.map.lora_b->value.shape() == Shape{7, 2});
  auto f = [&](In in) {
    one.map.lora_a->value = in[1];
    one.map.lora_b->value = in[2];
    return one.map(in[0]);
  };
  const std::vector<Tensor> in = {x, normal({2, 5}, 2, Dtype::f64), normal({7, 2}, 3, Dtype::f64)};
  CHECK(gradcheck(f, in) < 1e-6);
  const Tensor w = add(one.map.weight.value.detach(), matmul(in[2], in[1]));
  CHECK(close(f(in), linear(x, w, one.map.bias->value.detach()), 1e-13, 1e-13));
  CHECK_REFUSES(one.map.add_low_rank(init, 2), "lora", "already");
  CHECK_REFUSES(nn::Linear(init, 2, 2).add_low_rank(init, 0), "lora", "0");
}

TEST_CASE("lora: which maps of a model have additions") {
  auto model = nn::make_model(opt_of_rank(3), 1);
  std::string with;
  for (const auto& p : model->named_parameters()) {
    if (p.path.ends_with("lora_a") && p.path.find("layers.1.") != std::string::npos) {
      with += p.path.substr(p.path.find("layers.1.") + 9) + " ";
    }
    CHECK(nn::is_low_rank(p.path) == (p.path.find("lora_") != std::string::npos));
  }
  CHECK(with ==
        "self_attn.k_proj.lora_a self_attn.v_proj.lora_a self_attn.q_proj.lora_a "
        "self_attn.out_proj.lora_a fc1.lora_a fc2.lora_a ");
  nn::Init init{};
  nn::Linear alone(init, 3, 3);
  CHECK_REFUSES(nn::add_low_rank(alone, 2, init), "lora", "no linear maps");
}

TEST_CASE("lora: packed projections and separate ones agree") {
  auto separate = nn::make_model(opt_of_rank(3), 1), packed = nn::make_model(opt_of_rank(3), 1);
  nn::ParameterStore store(*packed);
  fill_b(*separate);
  fill_b(*packed);
  const Tensor wanted = hidden_of(*separate), plain = hidden_of(*nn::make_model(opt_of_rank(), 1));
  CHECK(close_to_scale(hidden_of(*packed), wanted, 2e-6));
  CHECK(largest(sub(wanted, plain).to_vector()) > 0.05);  // they have an effect
}

TEST_CASE("lora: a model is saved with its additions, and merged into one without") {
  Scratch scratch;
  nn::ModelConfig config = opt_of_rank(2);
  auto model = nn::make_model(config, 1);
  fill_b(*model);
  const Tensor wanted = hidden_of(*model);
  nn::export_model(config, *model, nullptr, (scratch / "apart").string());
  nn::LoadedModel back = nn::load_model((scratch / "apart").string());
  CHECK(back.config.lora_rank == 2);
  CHECK(close_to_scale(hidden_of(*back.model), wanted, 2e-6));
  nn::LoadedModel merged = nn::merged_low_rank(back);
  CHECK(merged.config.lora_rank == 0);
  for (const auto& p : merged.model->named_parameters()) CHECK_FALSE(nn::is_low_rank(p.path));
  CHECK(close_to_scale(hidden_of(*merged.model), wanted, 5e-6));
  nn::export_model(merged.config, *merged.model, nullptr, (scratch / "whole").string());
  nn::LoadedModel whole = nn::load_model((scratch / "whole").string());
  CHECK(same_bits(hidden_of(*whole.model), hidden_of(*merged.model)));
  CHECK_REFUSES(nn::merged_low_rank(whole), "export", "no low-rank additions", "to merge");
}

TEST_CASE("parameter store: only the trained parameters have buffers, others keep their memory") {
  auto model = nn::make_model(opt_of_rank(2), 1);
  std::vector<const void*> memory;
  for (const auto& p : model->named_parameters()) memory.push_back(p.parameter->value.raw());
  nn::ParameterStore store(
      *model, [](const nn::Module::NamedParameter& p) { return nn::is_low_rank(p.path); });
  int64_t trained = 0;
  size_t i = 0;
  for (const auto& p : model->named_parameters()) {
    const bool low = nn::is_low_rank(p.path);
    CHECK((p.parameter->value.raw() == memory[i++]) == !low);
    CHECK(wants_grad(p.parameter->value) == low);
    trained += low ? p.parameter->value.numel() : 0;
  }
  CHECK(store.size() >= trained);
  CHECK(store.size() < 2 * trained);
  fill_b(*model);
  store.zero_gradients();
  backward(sum(model->hidden({.ids = ids({2, 9}, 4, 31)})));
  for (const auto& e : store.entries()) {
    CHECK_MESSAGE(largest(grad(e.parameter->value).to_vector()) > 0, e.path);
  }
  auto only = [&](const std::string& name) {
    return message([&] {
      nn::ParameterStore(*nn::make_model(opt_of_rank(), 1),
                         [&](const nn::Module::NamedParameter& p) {
                           return p.path.find(name) != std::string::npos;
                         });
    });
  };
  check_says(only("q_proj"), {"ParameterStore", "packed"});
  check_says(only("none"), {"ParameterStore", "no parameters"});
}

}  // namespace brine::test
