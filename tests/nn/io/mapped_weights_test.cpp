// Models whose weights stay in the mapped file: the same numbers, files that never change, and the
// way to gradients.
#include "nn/optim/parameter_store.h"

#include <map>

#include "data/codec/checksums.h"
#include "tensor/device/allocator.h"
#include "tests/gradcheck.h"
#include "tests/messages.h"
#include "tests/nn/io/model_dirs.h"
#include "tests/refusals.h"

namespace brine::test {
namespace {

LoadedModel load(const std::string& directory, bool map) {
  return load_model(directory, {.map = map});
}

// Of `sequences` times six tokens.
Tensor logits_of(LoadedModel& m, int64_t sequences = 1) {
  NoGrad off;
  std::vector<int32_t> all;
  for (int64_t b = 0; b < sequences; ++b) all.insert(all.end(), {4, 7, 1, 9, 30, 2});
  const Tensor ids = Tensor::from(all, {sequences, 6});
  return m.model->logits(m.model->hidden({.ids = ids}));
}

std::string bits(const Tensor& x) {
  return {reinterpret_cast<const char*>(x.raw()), size_t(x.numel()) * item_size(x.dtype())};
}

}  // namespace

TEST_CASE("mapped weights: the same hash and the same bits as of copied ones, in less memory") {
  for (const char* golden : {"opt", "opt_350m", "bert_masked_lm"}) {
    CAPTURE(golden);
    const int64_t before = allocator_stats().live;
    LoadedModel copied = load(golden_dir(golden), false);
    const int64_t between = allocator_stats().live;
    LoadedModel mapped = load(golden_dir(golden), true);
    CHECK(allocator_stats().live - between < (between - before) / 2);
    CHECK(mapped.hash() == copied.hash());
    CHECK(bits(logits_of(mapped)) == bits(logits_of(copied)));
  }
}

TEST_CASE("mapped weights: writes to them do not reach the file") {
  Scratch scratch;
  const std::string dir = copy_of(scratch, "opt", {});
  const std::string file = dir + "/model.safetensors", sum = data::sha256_file(file);
  LoadedModel m = load(dir, true);
  for (const auto& p : m.model->named_parameters()) {
    assign(p.parameter->value, Tensor::full(p.parameter->value.shape(), 0.5));
  }
  CHECK(data::sha256_file(file) == sum);
  LoadedModel again = load(dir, true);
  CHECK(again.hash() == load(dir, false).hash());
  CHECK(again.hash() != m.hash());
}

TEST_CASE("mapped weights: gradients bring them into the flat buffer, unchanged") {
  LoadedModel m = load(golden_dir("opt"), true), copied = load(golden_dir("opt"), false);
  const std::string hash = m.hash();
  CHECK(m.store->size() < copied.store->size());
  m.store->add_gradients();
  copied.store->add_gradients();
  CHECK(bits(m.store->values()) == bits(copied.store->values()));
  CHECK(tensor_hash(tensors_of(*m.model)) == hash);
  for (size_t i = 0; i < m.store->entries().size(); ++i) {
    const auto &a = m.store->entries()[i], &b = copied.store->entries()[i];
    CHECK(a.path == b.path);
    CHECK(a.offset == b.offset);
    CHECK(a.parameter->value.shares_memory(m.store->values()));
  }
}

TEST_CASE("parameter store: a packed parameter cannot stay in place") {
  LoadedModel m = load(golden_dir("opt"), false);
  nn::Parameter* packed = m.model->packed().at(0)->members.at(0);
  CHECK_REFUSES(nn::ParameterStore(*m.model, nn::ParameterStore::Gradients::later, {}, {packed}),
                "is packed and cannot stay in place");
}

TEST_CASE("weights held in 16 bits: the logits of the rounded model, few rows or many") {
  for (const char* golden : {"opt", "llama", "gpt2", "bert_masked_lm"}) {
    CAPTURE(golden);
    for (bool map : {false, true}) {
      LoadedModel held = load(golden_dir(golden), map), rounded = load(golden_dir(golden), false);
      const Tensor exact = logits_of(held, 7);
      hold_weights_in(Dtype::bf16, held);
      bool exact_weights = true;  // files in bf16 lose nothing
      size_t matrices = 0, wide = 0;
      std::map<std::string, Dtype> types;
      for (const auto& p : held.model->named_parameters())
        types[p.path] = p.parameter->value.dtype();
      for (const auto& p : rounded.model->named_parameters()) {
        Tensor& value = p.parameter->value;
        if (value.rank() == 2 && types.at(p.path) == Dtype::f32) ++wide;
        if (types.at(p.path) == Dtype::f32) continue;
        const Tensor narrow = value.to(Dtype::bf16).to(Dtype::f32);
        exact_weights = exact_weights && bits(narrow) == bits(value);
        assign(value, narrow);
        ++matrices;
      }
      CHECK(matrices > 1);
      CHECK((wide > 0) == (std::string(golden) == "gpt2"));  // its matrices are [in, out]
      // Few rows of bf16 are added in another order than those of f32, many are not.
      CHECK(close_to_scale(logits_of(held), logits_of(rounded), 1e-5));
      CHECK(bits(logits_of(held, 7)) == bits(logits_of(rounded, 7)));
      CHECK((bits(logits_of(held, 7)) == bits(exact)) == exact_weights);
      CHECK_REFUSES(held.store->add_gradients(), "bf16", "inference");
    }
  }
}

}  // namespace brine::test
