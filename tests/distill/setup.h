// A tiny teacher, student and text for the tests of losses and trainer, and dumps of the teacher.
#pragma once

#include <cmath>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "data/codec/checksums.h"
#include "data/dump/dump_writer.h"
#include "distill/teachers/dump_batch.h"
#include "distill/teachers/dump_teacher.h"
#include "distill/trainer.h"
#include "nn/io/model_io.h"
#include "tensor/functions/top_logits.h"
#include "tests/gradcheck.h"
#include "tests/scratch.h"
#include "tests/small_models.h"

namespace brine::test {

using namespace brine::distill;

struct Sizes {
  int64_t tokens = 16, windows = 7;
  double dropout = 0;
  int64_t hidden = 24;
  Dtype dtype = Dtype::f32;
  std::string widen = "scores";  // of sea
};

inline nn::ModelConfig config_of(const Sizes& s, const std::string& method) {
  nn::ModelConfig c =
      small_opt(37, s.tokens, 0.15, {{"hidden_size", s.hidden}, {"dropout", s.dropout}});
  c.attention = method;
  data::Schema keys;
  c.method().describe(keys);
  if (method == "sea") {
    keys.set_text("k", {"3"});
    keys.set_text("columns", {"12"});
    keys.set_text("widen", {s.widen});
  }
  return c;
}

inline std::vector<int32_t> text(const Sizes& s) {
  Tensor t = ids({s.tokens * s.windows}, 77, 37);
  return {t.data<int32_t>(), t.data<int32_t>() + t.numel()};
}

// A teacher and a student that starts from its weights; equal for equal sizes.
struct Pair {
  explicit Pair(const Sizes& s = {}, const std::string& method = "sea",
                const std::string& teacher_method = "flash")
      : sizes(s), teacher_config(config_of(s, teacher_method)), config(config_of(s, method)) {
    teacher = nn::make_model(teacher_config, 1, s.dtype);
    student = nn::make_model(config, 2, s.dtype);
    std::vector<NamedTensor> base = nn::state_of(*teacher);
    nn::load_state(*student, base, "teacher", [&](const std::string& name) {
      return name.find(".self_attn." + method + ".") != std::string::npos;
    });
    store = std::make_unique<nn::ParameterStore>(*student);
  }
  WindowSource source(uint64_t seed = 4) const { return {text(sizes), sizes.tokens, seed}; }
  std::string hash() const { return nn::tensor_hash(nn::tensors_of(*teacher)); }

  Sizes sizes;
  nn::ModelConfig teacher_config, config;
  std::shared_ptr<nn::Model> teacher;
  std::unique_ptr<nn::Model> student;
  std::unique_ptr<nn::ParameterStore> store;
};

// A pointer to what the test keeps; null for null.
template <class T>
std::shared_ptr<T> borrowed(T* x) {
  return {std::shared_ptr<void>(), x};
}

// A run of the pair's student, which takes its store.
inline TrainerParts parts_of(Pair& pair, Teacher* teacher, const TrainerConfig& config,
                             const LossConfig& losses) {
  return {.config = pair.config,
          .model = borrowed(pair.student.get()),
          .store = std::move(pair.store),
          .teacher = borrowed(teacher),
          .train = std::make_unique<WindowSource>(pair.source()),
          .losses = losses,
          .trainer = config};
}

inline std::string hash_of(const std::string& text) {
  data::Sha256 h;
  h.update(text);
  return h.hex();
}

// softmax(q k^T / sqrt(d)) of a causal teacher.
inline Tensor map_of(const TeacherAttention& a) {
  return softmax(matmul(a.q, a.k, false, true), 1 / std::sqrt(double(a.q.dim(3))),
                 {.causal = true});
}

// Changes what write_dump() writes, as another program would write it.
struct DumpEdit {
  std::function<void(data::DumpSpec&)> spec = {};
  std::function<void(data::DumpBatch&)> batch = {};
};

// Dumps every window in f32, with the contents of `spec`; pooled attention in 12 columns.
inline void write_dump(const Pair& pair, const std::string& dir, data::DumpContent content,
                       int64_t top_n, bool context = true, Dtype dtype = Dtype::f32,
                       const DumpEdit& edit = {}) {
  NoGrad off;
  data::DumpSpec s;
  s.content = content;
  s.columns = content == data::DumpContent::pooled ? 12 : 0;
  s.dtype = dtype;
  s.layers = 2;
  s.heads = 3;
  s.key_heads = pair.teacher->shape().attention().groups();
  s.hidden = pair.sizes.hidden;
  s.head_size = s.hidden / 3;
  s.tokens = pair.sizes.tokens;
  s.vocab = 37;
  s.context = context;
  s.logits = top_n ? data::DumpLogits::top : data::DumpLogits::full;
  s.top_n = top_n;
  s.teacher_hash = pair.hash();
  s.tokenizer_hash = hash_of("tokenizer");
  s.corpus_hash = hash_of("corpus");
  s.samples = pair.sizes.windows;
  for (int64_t w = 0; w < s.samples; ++w) s.windows.push_back(w);
  if (edit.spec) edit.spec(s);
  data::DumpWriter writer(dir, s);
  OnlineTeacher teacher(pair.teacher, top_n);
  WindowSource source = pair.source();
  Downloads arriving;
  data::DumpBatch out = dump_batch(teacher, source.in_order(0, s.samples), s, arriving);
  if (edit.batch) {
    arriving.finish();
    edit.batch(out);
  }
  writer.put(std::move(out), std::move(arriving));
  writer.finish();
}

inline DumpTeacher::Expected expected_of(const Pair& pair) {
  return {.source = {pair.hash(), hash_of("tokenizer"), hash_of("corpus")},
          .window = pair.sizes.tokens,
          .shape = pair.teacher->shape()};
}

// Runs next to the student; one row of its logits, counted through the batch, contains an invalid
// value.
class Unsound : public OnlineTeacher {
 public:
  Unsound(std::shared_ptr<nn::Model> model, int64_t top_n, int64_t row, double value)
      : OnlineTeacher(std::move(model)), top_n_(top_n), row_(row), value_(float(value)) {}
  TopLogits logits(int64_t first, int64_t rows) override {
    const Tensor all = OnlineTeacher::logits(first, rows).values;
    const Tensor host = all.to(Device{}).clone();
    if (row_ >= first && row_ < first + rows)
      host.data<float>()[(row_ - first) * host.dim(1) + 3] = value_;
    return top_logits(host.to(all.device()), top_n_);
  }

 private:
  int64_t top_n_, row_;
  float value_;
};

// Wraps a teacher: counts the system's allocations at each batch, and returns NaN as the attention
// output of batch number `bad`.
class Spy : public Teacher {
 public:
  explicit Spy(std::unique_ptr<Teacher> inner, int64_t bad = -1)
      : inner_(std::move(inner)), bad_(bad) {}
  void require(const TeacherNeeds& needs) override { inner_->require(needs); }
  void plan(const BatchOrder& order, int64_t first) override { inner_->plan(order, first); }
  void begin(const Batch& batch) override {
    system_calls.push_back(allocator_stats().system_calls);
    inner_->begin(batch);
  }
  TeacherLayer layer(int64_t i) override {
    TeacherLayer l = inner_->layer(i);
    if (int64_t(system_calls.size()) - 1 == bad_) {
      l["attention_output"] = l["attention_output"].clone();
      l["attention_output"].data<float>()[3] = NAN;
    }
    return l;
  }
  TopLogits logits(int64_t first, int64_t rows) override { return inner_->logits(first, rows); }

  std::vector<int64_t> system_calls;

 private:
  std::unique_ptr<Teacher> inner_;
  int64_t bad_;
};

}  // namespace brine::test
