// What `brine generate` prints.
#include "apps/generate/output.h"

#include <algorithm>
#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/terminal/terminal.h"
#include "data/io/human.h"
#include "data/io/json.h"
#include "data/tokenizer/prompt_tokens.h"
#include "distill/evaluation/tasks/task_report.h"
#include "distill/inputs/models.h"
#include "distill/log/device_memory.h"
#include "tensor/device/allocator.h"

namespace brine {

namespace {

// Calibrates an attention that was given to the model on the first prompt, or as the model of
// load_state was.
void calibrate_on_prompt(const nn::LoadedModel& m, const data::Tokenizer& tokenizer,
                         const nn::TextGeneration& what, const std::vector<std::string>& prompts) {
  if (!m.uncalibrated) return;
  if (!what.load_state.empty()) return nn::take_calibration(m, what.load_state);
  const std::vector<int32_t> ids = data::prompt_tokens(tokenizer, prompts.front(), {});
  distill::calibrate_on(m, Tensor::from(ids, {1, int64_t(ids.size())}), log_messages());
}

// Whether a generation may start. Throws when the machine has less memory.
bool has_memory(const nn::GenerationMemory& memory, bool dry_run) {
  const double used = double(allocator_stats().live), free = nn::free_memory();
  if (dry_run) {
    auto row = [](const char* name, const std::string& value) {
      std::cout << "  " << name << std::string(22 - std::string(name).size(), ' ') << value << "\n";
    };
    row("tokens", std::to_string(memory.tokens));
    row("the model", human_bytes(used));
    row("the state", human_bytes(double(memory.state)));
    row("a part of a prompt", human_bytes(double(memory.part)));
    // With freed blocks that wait for their next use; they are given back where memory is short.
    const double peak = used + double(max_reserved(memory.sum()));
    row("memory at peak", human_bytes(std::min(peak, used + free)) + " of " +
                              human_bytes(used + free) + " that this process can have");
    std::cout << std::flush;
    return false;
  }
  nn::check_fits(memory, "generate");
  return true;
}

}  // namespace

nn::Generation begin(nn::LoadedModel& model, const data::Tokenizer& tokenizer,
                     const nn::TextGeneration& what, const std::vector<std::string>& prompts,
                     uint64_t seed, bool dry_run) {
  if (!dry_run) calibrate_on_prompt(model, tokenizer, what, prompts);
  return nn::begin_generation(
      model, tokenizer, what, prompts, seed, [](const std::string& text) { log_warning(text); },
      [=](const nn::GenerationMemory& memory) { return has_memory(memory, dry_run); });
}

void log_unapplied(const nn::LoadedModel& m, const nn::TextGeneration& what,
                   const nn::Generation& generation) {
  int64_t longest = 0;
  for (const nn::Sequence& s : generation.sequences()) longest = std::max(longest, s.prompt_tokens);
  const std::string line = nn::unapplied_settings(m, what, longest);
  if (!line.empty()) log_info("generate: ", line);
}

void run_and_print(nn::Generation& generation, const std::vector<std::string>& texts) {
  const bool streams = texts.size() == 1;
  if (streams) std::cout << texts[0] << std::flush;
  generation.run([&](size_t, nn::Sequence& s) {
    if (streams) std::cout << s.text.take(s.finish.has_value()) << std::flush;
  });
  if (streams) {
    std::cout << std::endl;
    return;
  }
  for (size_t i = 0; i < texts.size(); ++i) {
    std::cout << "[" << i + 1 << "] " << texts[i] << generation.sequences()[i].text.text()
              << std::endl;
  }
}

void log_ends(const nn::Generation& done, int64_t wanted, int64_t positions,
              const std::vector<int32_t>& ends) {
  for (const nn::Sequence& s : done.sequences()) {
    const int64_t made = int64_t(s.ids.size()) - s.prompt_tokens;
    if (s.finish == nn::Finish::tokens) continue;
    log_info(
        "generate: stopped after ", made, " of ", wanted, " tokens, ",
        s.finish == nn::Finish::positions
            ? join("the model has ", positions, " positions and the prompt took ", s.prompt_tokens)
        : s.finish == nn::Finish::stop_text                               ? "at a stop text"
        : std::find(ends.begin(), ends.end(), s.ids.back()) != ends.end() ? "at the end of the text"
                                                                          : "at a stop token");
  }
  const double steps = double(std::max<int64_t>(done.steps(), 1));
  log_detail("generate: prompts ", human_seconds(done.prompt_seconds()), ", then ",
             done.run_seconds() / steps * 1e3, " ms a token of each, state ",
             human_bytes(double(done.state_bytes())));
}

void print_json(const nn::Generation& done, const nn::LoadedModel& model,
                const GenerationCall& call) {
  data::Json out = {{"model", call.model},
                    {"attention", model.config.attention},
                    {"query_skip", call.what.query_skip},
                    {"prompt_seconds", done.prompt_seconds()},
                    {"seconds", done.run_seconds()},
                    {"steps", done.steps()},
                    {"sequences", data::Json::array()}};
  for (size_t i = 0; i < done.sequences().size(); ++i) {
    const nn::Sequence& s = done.sequences()[i];
    out["sequences"].push_back(
        {{"prompt", call.texts[i]},
         {"text", s.text.text()},
         {"prompt_tokens", s.prompt_tokens},
         {"tokens", std::vector<int32_t>(s.ids.begin() + s.prompt_tokens, s.ids.end())},
         {"finish", data::name_of(s.finish.value(), nn::kFinishes)}});
  }
  distill::add_json(out, distill::device_peak());
  if (!call.warnings.empty()) out["warnings"] = call.warnings;
  // A text may end inside a character, which JSON cannot represent.
  std::cout << printable_json(out) << std::endl;
}

}  // namespace brine
