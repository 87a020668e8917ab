// Students of every family against the same students in transformers, computed by apps/python
// (tests/peer/students.py --golden): logits of a batch with padding on the left, on the right and
// inside, at once and, of decoders, token by token.
#include <cmath>

#include "nn/models/model_state.h"
#include "tests/nn/io/model_dirs.h"
#include "tests/paths.h"

namespace brine::test {
namespace {

constexpr double kStudentTolerance = 1e-4;
const std::string kStudentFolder = brine::test::source_dir() + "/tests/golden/students/";

struct Student {
  nn::LoadedModel loaded;
  Tensor ids, mask, logits;

  explicit Student(const std::string& name) : loaded(nn::load_model(kStudentFolder + name)) {
    const data::Safetensors file(data::Path(kStudentFolder + name + "/expected.safetensors"));
    ids = file.tensor("ids").clone();
    mask = file.tensor("mask").clone();
    logits = file.tensor("logits").clone();
  }
  nn::Model& model() const { return *loaded.model; }
  nn::ModelCall call() const { return {.ids = ids, .attention_mask = mask}; }
};

// The largest difference at tokens; x and y [B, T, V].
double difference(const Student& s, const Tensor& x, const Tensor& y) {
  REQUIRE(x.shape() == y.shape());
  const int64_t V = x.dim(2);
  const Tensor a = x.detach().contiguous(), b = y.contiguous();
  double largest = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    if (!s.mask.data<uint8_t>()[i / V]) continue;
    largest = std::max(largest, std::fabs(double(a.data<float>()[i] - b.data<float>()[i])));
  }
  return largest;
}

void check_whole(const Student& s) {
  NoGrad off;
  if (s.model().labels()) {
    // The stock class pools the first position, which of a sequence padded on the left is padding.
    const Tensor logits = s.model().class_logits(s.model().hidden(nn::pack_rows(s.call())));
    for (int64_t b = 0; b < s.ids.dim(0); ++b) {
      if (!s.mask.data<uint8_t>()[b * s.ids.dim(1)]) continue;
      CHECK(close(logits.select(0, b).to_vector(), s.logits.select(0, b).to_vector(),
                  kStudentTolerance, 0, "class logits"));
    }
    return;
  }
  CHECK(difference(s, s.model().logits(s.model().hidden(s.call())), s.logits) < kStudentTolerance);
}

// The tokens of a sequence without its padding, one by one.
void check_steps(const Student& s, int64_t b) {
  NoGrad off;
  const int64_t T = s.ids.dim(1), V = s.logits.dim(2);
  std::vector<int32_t> tokens;
  std::vector<int64_t> positions;
  for (int64_t t = 0; t < T; ++t) {
    if (!s.mask.data<uint8_t>()[b * T + t]) continue;
    tokens.push_back(s.ids.data<int32_t>()[b * T + t]);
    positions.push_back(t);
  }
  auto id = [&](size_t i) { return Tensor::from(std::vector<int32_t>{tokens[i]}, {1}); };
  // Of the default types the sums of the prior would be in bf16.
  nn::ModelState state(s.model(),
                       {.batch = 1, .capacity = int64_t(tokens.size()), .cache = Dtype::f32});
  double largest = 0;
  for (size_t i = 0; i < tokens.size(); ++i) {
    const Tensor hidden =
        i ? nn::step(s.model(), state, id(i)) : nn::prefill(s.model(), state, 0, id(0));
    const std::vector<double> logits = s.model().logits(hidden).to_vector();
    const float* want = s.logits.data<float>() + (b * T + positions[i]) * V;
    for (int64_t c = 0; c < V; ++c) {
      largest = std::max(largest, std::fabs(logits[size_t(c)] - double(want[c])));
    }
  }
  CHECK(largest < kStudentTolerance);
}

}  // namespace

TEST_CASE("students golden: every family, as transformers computes it") {
  for (const std::string name :
       {"llama", "mistral", "qwen2", "qwen3", "opt", "gpt2", "bert_masked_lm", "bert_classifier"}) {
    CAPTURE(name);
    const Student student(name);
    CHECK(student.loaded.config.attention == "sea");
    check_whole(student);
    if (!student.model().shape().causal) continue;
    for (int64_t b = 0; b < student.ids.dim(0); ++b) check_steps(student, b);
  }
}

}  // namespace brine::test
