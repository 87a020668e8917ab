// brine generate: continues prompts.
#include <array>
#include <filesystem>
#include <iostream>
#include <optional>

#include "apps/cli/terminal.h"
#include "apps/cli/unused_flags.h"
#include "apps/generate/output.h"
#include "distill/runs/training_run.h"
#include "nn/generate/generation.h"
#include "nn/io/model_io.h"

namespace brine {
namespace {

struct Generate {
  std::string model, prompt_file, save_state, load_state;
  std::vector<std::string> prompt, stop, stop_token;
  int64_t tokens = 64, k = 0, query_skip = 1;
  bool ignore_eos = false, json = false;
  nn::Sampling how;

  void describe(data::Schema& s) {
    s.field("model", model, "Model directory or run", {.required = true});
    s.field("prompt", prompt, "Texts to continue, together");
    s.field("prompt_file", prompt_file, "File with one prompt per line");
    s.field("tokens", tokens, "Tokens to add", {.min = 1});
    s.field("temperature", how.temperature, "0 takes the likeliest token", {.min = 0});
    s.field("top_k", how.top_k, "Sample among the k likeliest tokens; 0 = all", {.min = 0});
    s.field("top_p", how.top_p, "Sample among the likeliest tokens of this mass",
            {.max = 1, .above = 0});
    s.field("stop", stop, "Texts that end a continuation; they are not part of it");
    s.field("stop_token", stop_token,
            "Tokens that end one, in addition to the tokenizer's end of text");
    s.field("ignore_eos", ignore_eos, "Continue after the end of the text");
    s.field("k", k, "Kept keys of a sparse attention; 0 = as trained", {.min = 0});
    s.field("query_skip", query_skip, "The estimator runs on every f-th token", {.min = 1});
    s.field("save_state", save_state, "File from which to continue later");
    s.field("load_state", load_state, "Such a file; prompts are added to its sequences");
    s.field("json", json, "Print one JSON object");
  }

  int run(const RunContext& context);

 private:
  nn::GenerationRequest request(const RunContext& context, const data::Tokenizer& tokenizer) const;
};

nn::GenerationRequest Generate::request(const RunContext& context,
                                        const data::Tokenizer& tokenizer) const {
  nn::GenerationRequest r{.tokens = tokens,
                          .how = how,
                          .seed = context.seed,
                          .stop_tokens = {},
                          .stops = stop,
                          .dials = {.k = k, .query_skip = query_skip},
                          .vocabulary = tokenizer.vocab_size(),
                          .keep_states = !save_state.empty()};
  const std::optional<int32_t> eos = tokenizer.special().eos;
  if (eos && !ignore_eos) r.stop_tokens.push_back(*eos);
  for (const std::string& token : stop_token) {
    const std::optional<int32_t> id = tokenizer.id_of(token);
    check(id.has_value(), "generate: there is no token '", token, "'");
    r.stop_tokens.push_back(*id);
  }
  return r;
}

int Generate::run(const RunContext& context) {
  std::vector<std::string> given = prompt;
  if (!prompt_file.empty()) {
    check(prompt.empty(), "generate: --prompt and --prompt-file cannot be given together");
    given = prompts_in(prompt_file);
  }
  const std::filesystem::path place = std::filesystem::path(save_state).parent_path();
  check(place.empty() || std::filesystem::is_directory(place), "generate: ", save_state,
        ": there is no directory ", place.string());
  if (how.temperature == 0) refuse_unused(context, {"top_k", "top_p"}, "at temperature 0");
  check(!given.empty() || !load_state.empty(), "generate: --prompt or --prompt-file is needed");
  nn::LoadedModel m = distill::load_model(model, log_messages());
  check(m.config.shape().causal, "generate: ", m.directory,
        " is an encoder; it does not continue text");
  refuse_unused_options(context, *m.model);
  std::unique_ptr<data::Tokenizer> tokenizer = distill::tokenizer_of(m, log_messages());
  std::vector<std::vector<int32_t>> prompts;
  for (const std::string& text : given) prompts.push_back(tokenizer->encode(text));

  nn::Generation generation(*m.model, request(context, *tokenizer),
                            [&](int32_t id) { return tokenizer->decode(std::array{id}); });
  if (load_state.empty()) {
    generation.start(prompts);
  } else {
    generation.load(load_state, m.hash(), prompts);
  }
  std::vector<std::string> texts;  // the texts that are continued
  for (const nn::Sequence& s : generation.sequences()) texts.push_back(tokenizer->decode(s.ids));

  const bool streams = !json && texts.size() == 1;
  if (streams) std::cout << texts[0] << std::flush;
  generation.run([&](size_t, nn::Sequence& s) {
    if (streams) std::cout << s.text.take(!s.finish.empty()) << std::flush;
  });
  if (json) {
    print_json(generation, m, model, query_skip, texts);
  } else if (streams) {
    std::cout << std::endl;
  } else {
    print_texts(generation, texts);
  }
  log_ends(generation, tokens, m.config.shape().max_positions, tokenizer->special().eos);
  if (!save_state.empty()) generation.save(save_state, m.hash());
  return 0;
}

const RegisterSubcommand<Generate> registration("generate", "Continue prompts");

}  // namespace
}  // namespace brine
