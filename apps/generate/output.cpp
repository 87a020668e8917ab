// The prompts of `brine generate`, and its output.
#include "apps/generate/output.h"

#include <iostream>
#include <nlohmann/json.hpp>

#include "apps/cli/terminal.h"
#include "data/io/file_io.h"
#include "data/io/human.h"
#include "data/io/json.h"
#include "distill/log/device_memory.h"

namespace brine {

std::vector<std::string> prompts_in(const std::string& path) {
  std::vector<std::string> lines;
  const std::string text = data::read_file(path);
  for (size_t at = 0; at < text.size();) {
    size_t end = std::min(text.find('\n', at), text.size());
    std::string line = text.substr(at, end - at);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    check(!line.empty(), path, ": line ", lines.size() + 1, " is empty, expected a prompt");
    lines.push_back(line);
    at = end + 1;
  }
  check(!lines.empty(), path, ": no prompts");
  return lines;
}

void log_ends(const nn::Generation& done, int64_t wanted, int64_t positions,
              std::optional<int32_t> eos) {
  for (const nn::Sequence& s : done.sequences()) {
    const int64_t made = int64_t(s.ids.size()) - s.given;
    if (s.finish == "tokens") continue;
    log_info("generate: stopped after ", made, " of ", wanted, " tokens, ",
             s.finish == "positions"
                 ? join("the model has ", positions, " positions and the prompt took ", s.given)
             : s.finish == "stop text" ? "at a stop text"
             : s.ids.back() == eos     ? "at the end of the text"
                                       : "at a stop token");
  }
  const double steps = double(std::max<int64_t>(done.steps(), 1));
  log_detail("generate: prompts ", human_seconds(done.prompt_seconds()), ", then ",
             done.run_seconds() / steps * 1e3, " ms a token of each, state ",
             human_bytes(double(done.state_bytes())));
}

void print_json(const nn::Generation& done, const nn::LoadedModel& model, const std::string& name,
                int64_t query_skip, const std::vector<std::string>& texts) {
  data::Json out = {{"model", name},
                    {"attention", model.config.attention},
                    {"query_skip", query_skip},
                    {"prompt_seconds", done.prompt_seconds()},
                    {"seconds", done.run_seconds()},
                    {"steps", done.steps()},
                    {"sequences", data::Json::array()}};
  for (size_t i = 0; i < done.sequences().size(); ++i) {
    const nn::Sequence& s = done.sequences()[i];
    out["sequences"].push_back(
        {{"prompt", texts[i]},
         {"text", s.text.text()},
         {"prompt_tokens", s.given},
         {"tokens", std::vector<int32_t>(s.ids.begin() + s.given, s.ids.end())},
         {"finish", s.finish}});
  }
  distill::add_peak_memory(out);
  // A text may end inside a character, which JSON cannot represent.
  std::cout << printable_json(out) << std::endl;
}

void print_texts(const nn::Generation& done, const std::vector<std::string>& texts) {
  for (size_t i = 0; i < texts.size(); ++i) {
    std::cout << "[" << i + 1 << "] " << texts[i] << done.sequences()[i].text.text() << std::endl;
  }
}

}  // namespace brine
