// Reading a text and continuing it with a whole model, its attention against full attention.
#include <algorithm>
#include <numeric>

#include "apps/bench/parts/trained_layer.h"
#include "apps/bench/suites.h"
#include "apps/terminal/terminal.h"
#include "nn/generate/text_generation.h"
#include "nn/io/shared_student.h"
#include "nn/models/model_state.h"
#include "tensor/device/allocator.h"

namespace brine::bench {
namespace {

constexpr int64_t kSteps = 24;  // tokens that a row takes the median of

// A model that reads a prompt and continues it; milliseconds.
class Reader {
 public:
  Reader(const std::string& name, nn::Model& model, const std::vector<int32_t>& ids, int64_t spare,
         nn::Cache cache = nn::Cache::f32)
      : name_(cache == nn::Cache::f32 ? name
                                      : name + ", cache " + data::name_of(cache, nn::kCaches)),
        model_(model),
        state_(model, {.capacity = int64_t(ids.size()) + spare,
                       .cache = nn::cache_type(cache),
                       .coded = cache == nn::Cache::q8}),
        next_(Tensor::from(std::vector<int32_t>{ids.front()}, {1})) {
    trim();  // each prompt begins with the same memory
    const double start = now_ms();
    nn::prefill(model, state_, 0, Tensor::from(ids, {int64_t(ids.size())}));
    finish();
    prompt_ = now_ms() - start;
    const nn::AttentionShape shape = model.shape().attention();
    auto row = [&](int64_t heads, uint64_t seed) {
      return noise({1, heads, 1, shape.head_size}, seed);
    };
    row_ = {.q = row(shape.heads, 1),
            .k = row(shape.groups(), 2),
            .v = row(shape.groups(), 3),
            .q_content = row(shape.heads, 4),
            .k_content = row(shape.groups(), 5),
            .hidden = noise({1, 1, shape.hidden_size}, 6),
            .options = state_.options};
  }

  void token() {
    timed(tokens_, [&] { model_.logits(nn::step(model_, state_, next_)); });
  }
  // The attention of all layers alone, of one further token.
  void attention() {
    timed(attention_, [&] {
      for (int64_t l = 0; l < model_.shape().layers; ++l) {
        model_.attention(l).step(row_, state_.layer(l));
      }
    });
  }

  // ratio: the time of `full` over this one's.
  void report(const Reader& full, int64_t context, RowSink& rows) const {
    auto row = [&](const char* what, double ms, double reference, double count,
                   std::vector<std::pair<std::string, double>> notes) {
      BenchRow made = {.name = join(name_, ", ", what),
                       .shape = join("context ", context),
                       .ms = ms,
                       .rate = count / ms * 1e3,
                       .unit = "tokens/s",
                       .ratio = reference / ms,
                       .peak = state_.bytes(),
                       .notes = std::move(notes)};
      rows.add(made);
    };
    row("prompt", prompt_, full.prompt_, double(context), {});
    row("token", median(tokens_), median(full.tokens_), 1, {{"mean_ms", mean(tokens_)}});
    // A step in which borders of columns move takes longer: the mean has its share of them.
    row("attention of a token", median(attention_), median(full.attention_), 1,
        {{"mean_ms", mean(attention_)},
         {"mean_ratio", mean(full.attention_) / mean(attention_)},
         {"state_to_full", double(state_.bytes()) / double(full.state_.bytes())}});
  }

 private:
  static void timed(std::vector<double>& times, const std::function<void()>& f) {
    const double start = now_ms();
    f();
    finish();
    times.push_back(now_ms() - start);
  }

  static double mean(const std::vector<double>& x) {
    return std::accumulate(x.begin(), x.end(), 0.0) / double(x.size());
  }

  std::string name_;
  nn::Model& model_;
  nn::ModelState state_;
  Tensor next_;
  nn::AttentionInput row_;
  double prompt_ = 0;
  std::vector<double> tokens_, attention_;
};

}  // namespace

void bench_generate(const BenchRequest& r, RowSink& rows) {
  std::vector<int64_t> contexts = r.tokens;
  if (contexts.empty()) {
    contexts = is_quick() ? std::vector<int64_t>{48} : std::vector<int64_t>{1024, 4096, 8192};
  }
  const int64_t longest = *std::max_element(contexts.begin(), contexts.end());
  const std::vector<int32_t> ids = text_tokens(r.model, r.data, longest);
  nn::LoadedModel loaded = load_for(r.model, longest + 2 * kSteps);
  nn::hold_weights_in(r.weights, loaded);
  distill::OtherAttention attention = r.attention;
  distill::use_attention(loaded, attention);
  distill::calibrate_on(loaded, Tensor::from(ids, {1, longest}), log_messages());
  nn::ModelConfig full_config = loaded.config;
  full_config.attention = "flash";
  const std::unique_ptr<nn::Model> full = nn::make_shared_student(full_config, *loaded.model, 0);
  const int64_t steps = sized(kSteps, 2);
  NoGrad off;
  // The first use of a machine's threads, libraries and pages belongs to none of the rows.
  const std::vector<int32_t> start(ids.begin(), ids.begin() + std::min<int64_t>(longest, 64));
  Reader("warm-up", *full, start, 1).token();
  auto measure = [&](int64_t context) {
    const std::vector<int32_t> text(ids.begin(), ids.begin() + context);
    struct Planned {
      std::string name;
      nn::Model& model;
      nn::Cache cache;
    };
    std::vector<Planned> plan;
    nn::GenerationMemory together;
    auto add = [&](const std::string& name, nn::Model& model, nn::Cache cache) {
      nn::GenerationRequest request;
      request.tokens = 2 * steps;
      request.cache = nn::cache_type(cache);
      request.coded = cache == nn::Cache::q8;
      const nn::GenerationMemory one = nn::memory_of(model, request, 1, context);
      together = {one.tokens, together.state + one.state, std::max(together.part, one.part)};
      plan.push_back({name, model, cache});
    };
    for (const nn::Cache cache : {nn::Cache::f32, nn::Cache::bf16, nn::Cache::q8}) {
      add("flash", *full, cache);
      const bool keeps = cache != nn::Cache::q8 || loaded.model->attention_traits().codes;
      if (loaded.config.attention != "flash" && keeps)
        add(loaded.config.attention, *loaded.model, cache);
    }
    nn::check_fits(together, "bench generate");
    std::vector<std::unique_ptr<Reader>> readers;
    for (const Planned& p : plan)
      readers.push_back(std::make_unique<Reader>(p.name, p.model, text, 2 * steps, p.cache));
    trim();
    // Alternately, so that a change of the machine's speed affects all.
    for (int64_t i = 0; i < steps; ++i) {
      for (auto& reader : readers) reader->token();
    }
    for (int64_t i = 0; i < steps; ++i) {
      for (auto& reader : readers) reader->attention();
    }
    for (const auto& reader : readers) reader->report(*readers[0], context, rows);
  };
  for (int64_t context : contexts)
    rows.attempt("reading and continuing", join("context ", context), [&] { measure(context); });
}

}  // namespace brine::bench
