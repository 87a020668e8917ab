// brine generate: continues a prompt.
#include <algorithm>
#include <cmath>
#include <iostream>
#include <numeric>

#include "apps/program.h"
#include "apps/terminal.h"
#include "apps/training.h"
#include "autograd/node.h"
#include "distill/model_io.h"

namespace brine {
namespace {

struct Sampling {
  double temperature = 0.8;
  int64_t top_k = 0;
  double top_p = 0.95;
};

// The next token from one row of logits; temperature 0 takes the largest.
int32_t sample(const float* logits, int64_t V, const Sampling& how, double uniform) {
  std::vector<int32_t> order(static_cast<size_t>(V));
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](int32_t a, int32_t b) { return logits[a] > logits[b]; });
  if (how.temperature == 0) return order[0];
  size_t keep = how.top_k > 0 ? std::min(size_t(how.top_k), order.size()) : order.size();
  std::vector<double> p;
  for (size_t i = 0; i < keep; ++i) {
    p.push_back(std::exp(double(logits[order[i]] - logits[order[0]]) / how.temperature));
  }
  double all = std::accumulate(p.begin(), p.end(), 0.0), mass = 0;
  size_t used = 0;
  while (used < p.size() && (used == 0 || mass < how.top_p * all)) mass += p[used++];
  double at = uniform * mass;
  for (size_t i = 0; i < used; ++i) {
    at -= p[i];
    if (at <= 0) return order[i];
  }
  return order[used - 1];
}

struct Generate {
  std::string model, prompt;
  int64_t tokens = 64, k = 0;
  Sampling how;

  void describe(nn::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    s.field("prompt", prompt, "Text to continue", {.required = true});
    s.field("tokens", tokens, "Tokens to add", {.min = 1});
    s.field("temperature", how.temperature, "0 takes the likeliest token", {.min = 0});
    s.field("top_k", how.top_k, "Sample among the k likeliest tokens; 0 = all", {.min = 0});
    s.field("top_p", how.top_p, "Sample among the likeliest tokens of this mass",
            {.max = 1, .above = 0});
    s.field("k", k, "Kept keys of a sparse attention; 0 = as trained", {.min = 0});
  }

  int run(const RunContext& context) {
    NoGrad off;
    distill::LoadedModel m = distill::load_model(model);
    warn_of(m);
    check(m.config.shape().causal, "generate: ", m.directory,
          " is an encoder; it does not continue text");
    refuse_idle_dials(context, *m.model);
    std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m.directory);
    std::vector<int32_t> ids = tokenizer->encode(prompt);
    check(!ids.empty(), "generate: the prompt is empty");
    size_t given = ids.size();
    int64_t positions = m.config.shape().max_positions;
    check(int64_t(given) < positions, "generate: the prompt has ", given, " tokens, the model ",
          positions, " positions");
    RandomStream random{.seed = context.seed, .stream = 3};
    int64_t last = std::min(int64_t(given) + tokens, positions);
    while (int64_t(ids.size()) < last) {
      Tensor hidden =
          m.model->hidden({.ids = Tensor::from(ids, {1, int64_t(ids.size())}), .dials = {.k = k}})
              .detach();
      Tensor logits = m.model->logits(hidden.slice(1, hidden.dim(1) - 1, 1).contiguous()).detach();
      int64_t V = std::min(logits.dim(-1), tokenizer->vocab_size());
      ids.push_back(sample(logits.data<float>(), V, how, random.take(1).uniform(0)));
      if (ids.back() == tokenizer->special().eos) break;
    }
    int64_t made = int64_t(ids.size() - given);
    if (made < tokens) {
      bool ended = ids.back() == tokenizer->special().eos;
      log_info("generate: stopped after ", made, " of ", tokens, " tokens, ",
               ended ? "at the end of the text"
                     : join("the model has ", positions, " positions and the prompt took ", given));
    }
    std::cout << tokenizer->decode(ids) << std::endl;
    return 0;
  }
};
const RegisterSubcommand<Generate> registration("generate", "Continue a prompt");

}  // namespace
}  // namespace brine
