// The attention methods that a suite compares on the weights of one base model.
#include "distill/evaluation/suites/contender.h"

#include "data/config/schema.h"
#include "nn/io/shared_student.h"

namespace brine::distill {
namespace {

std::vector<std::string> parts_of(const std::string& text) {
  std::vector<std::string> out(1);
  for (char c : text) {
    if (c == ':') {
      out.emplace_back();
    } else {
      out.back() += c;
    }
  }
  return out;
}

void apply(const Contender& contender, nn::AttentionMethod& method) {
  data::Schema schema;
  method.describe(schema);
  for (const auto& [key, value] : contender.settings) {
    schema.set_text(key, {value}, contender.name + ": " + key);
  }
}

}  // namespace

Contender parse_contender(const std::string& text) {
  const std::vector<std::string> parts = parts_of(text);
  Contender out{.name = text, .method = parts[0]};
  if (const auto preset = nn::attention_presets().find(parts[0]);
      preset != nn::attention_presets().end()) {
    out.method = preset->second;
    out.settings.emplace_back("preset", preset->first);
  }
  for (size_t i = 1; i < parts.size(); ++i) {
    const size_t equals = parts[i].find('=');
    check(equals != std::string::npos, "suite: '", text,
          "' is not of the form METHOD:KEY=VALUE at '", parts[i], "'");
    out.settings.emplace_back(parts[i].substr(0, equals), parts[i].substr(equals + 1));
  }
  apply(out, *nn::attention_method(out.method));
  return out;
}

std::vector<std::string> default_contenders(int64_t step) {
  std::vector<std::string> out = {"dense"};
  if (nn::attention_methods().count("top")) out.push_back("top");
  out.push_back(join("recent:block=", step > 1 ? step : 4, ":sinks=1"));
  return out;
}

void use_contender(nn::LoadedModel& m, const Contender& contender) {
  // The same attention without T x T maps.
  const bool full = nn::is_full_attention(contender.method);
  m.config.attention = full ? "flash" : contender.method;
  m.config.methods[m.config.attention] = nn::attention_method(m.config.attention);
  if (!full) apply(contender, m.config.method());
  nn::replace_attention(m);
}

}  // namespace brine::distill
