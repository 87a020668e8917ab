// A loaded model that gets another attention: what it shares with the former one, what it keeps.
#include "nn/io/shared_student.h"

#include "autograd/ops_blocks.h"
#include "nn/optim/parameter_store.h"
#include "tests/nn/io/model_dirs.h"

namespace brine::test {
namespace {

// The tensors of a model by name: those of its attention methods, or the others.
std::map<std::string, Tensor> tensors(Model& model, bool of_attention) {
  std::map<std::string, Tensor> out;
  for (const NamedTensor& t : nn::state_of(model)) {
    if (model.is_attention_tensor(t.name) == of_attention) out[t.name] = t.tensor;
  }
  return out;
}

void replace_by(LoadedModel& m, const std::string& method) {
  m.config.attention = method;
  nn::replace_attention(m);
  CHECK(m.model->attention_name() == method);
}

}  // namespace

TEST_CASE("replaced attention: the base keeps its memory, the same method what it has learned") {
  LoadedModel m = load_model(golden_dir("opt"));
  const std::map<std::string, Tensor> base = tensors(*m.model, false);
  auto check_base = [&] {
    const std::map<std::string, Tensor> now = tensors(*m.model, false);
    REQUIRE(now.size() == base.size());
    for (const auto& [name, tensor] : base) CHECK_MESSAGE(now.at(name).shares_memory(tensor), name);
  };
  replace_by(m, "sea");
  check_base();
  const auto drawn = tensors(*m.model, true);
  REQUIRE(!drawn.empty());
  REQUIRE(m.store);
  for (const auto& entry : m.store->entries()) CHECK(m.model->is_attention_tensor(entry.path));
  NoGrad off;
  std::map<std::string, std::vector<double>> learned;
  for (const auto& [name, tensor] : drawn) {
    assign(tensor, Tensor::full(tensor.shape(), 0.25, tensor.dtype()));
    learned[name] = tensor.to_vector();
  }
  replace_by(m, "sea");
  check_base();
  for (const auto& [name, tensor] : tensors(*m.model, true)) {
    CHECK_MESSAGE(tensor.to_vector() == learned.at(name), name);
  }
  replace_by(m, "recent");
  check_base();
  CHECK(tensors(*m.model, true).empty());
  CHECK(!m.store);
  CHECK_FALSE(m.uncalibrated);
}

TEST_CASE("replaced attention: blocks are calibrated once, on the keys of full attention") {
  LoadedModel m = load_model(golden_dir("opt"));
  m.config.attention = "blocks";
  data::Schema keys;
  m.config.method().describe(keys);
  for (const char* key : {"block", "tile", "k"}) keys.set_text(key, {"4"});
  nn::replace_attention(m);
  CHECK(m.uncalibrated);
  const Tensor ids = test::ids({1, 12}, 3, m.config.shape().vocab_size);
  CHECK(nn::calibrate_attention(m, ids) == 12);
  CHECK_FALSE(m.uncalibrated);
  struct Keys : nn::AttentionObserver {
    std::vector<Tensor> k;
    void observe(const nn::AttentionInput& in, const Tensor&) override { k.push_back(in.k); }
  } exact;
  NoGrad off;
  load_model(golden_dir("opt")).model->hidden({.ids = ids, .attention_observer = &exact});
  std::map<std::string, std::vector<double>> scales;
  for (const auto& [name, tensor] : tensors(*m.model, true)) scales[name] = tensor.to_vector();
  REQUIRE(scales.size() == exact.k.size());
  for (size_t i = 0; i < exact.k.size(); ++i) {
    const Tensor wanted = calibrated_key_scale(exact.k[i], {}, 4);
    CHECK(m.model->attention(int64_t(i)).named_buffers()[0].buffer->value.to_vector() ==
          wanted.to_vector());
  }
  nn::replace_attention(m);  // the same method
  CHECK_FALSE(m.uncalibrated);
  for (const auto& [name, tensor] : tensors(*m.model, true)) {
    CHECK_MESSAGE(tensor.to_vector() == scales.at(name), name);
  }
}

}  // namespace brine::test
