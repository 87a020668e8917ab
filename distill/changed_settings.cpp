// What differs between the settings of a run and those of its checkpoint.
#include "distill/changed_settings.h"

#include <algorithm>
#include <nlohmann/json.hpp>

namespace brine::distill {
namespace {

using data::Json;

// A recipe is recorded as its values, too, and the stage beside the configuration. The others say
// how long a run continues, and how often it is saved, evaluated and shown.
constexpr const char* kFree[] = {"recipe",       "stage",      "stages",
                                 "max_seconds",  "save_every", "keep",
                                 "keep_moments", "eval_every", "log_steps"};
// Keys that the checkpoints of older runs do not have.
constexpr const char* kLater[] = {
    "/model",        "/task",      "/train_split", "/valid_split",
    "/warmup_ratio", "/losses/kl", "/losses/mse",  "/optimizer/feature_learning_rate"};
// Keys with one input, recorded under their name, and with a list of files, recorded under the name
// and the path of each.
constexpr const char* kInputs[] = {"teacher", "model", "tokenizer", "dump"};
constexpr const char* kFileLists[] = {"train", "valid", "data"};
constexpr const char* kSplits[] = {"train_split", "valid_split"};

std::string text_at(const Json& settings, const char* key) {
  const bool has = settings.contains(key) && settings.at(key).is_string();
  return has ? settings.at(key).get<std::string>() : std::string();
}

// The hash of an input; null when it is not recorded.
Json recorded_hash(const Json& settings, const std::string& input) {
  const Json& inputs = settings.at("inputs");
  return inputs.contains(input) ? inputs.at(input) : Json();
}

// The inputs that a key names, as in "inputs": "train.a.txt" and "train.b.txt".
std::vector<std::string> inputs_named(const Json& settings, const std::string& key) {
  std::vector<std::string> out;
  if (!settings.contains(key) || !settings.at(key).is_array()) return out;
  for (const Json& path : settings.at(key)) {
    if (path.is_string()) out.push_back(key + "." + path.get<std::string>());
  }
  return out;
}

std::vector<Json> hashes_of(const Json& settings, const std::vector<std::string>& inputs) {
  std::vector<Json> out;
  for (const std::string& input : inputs) out.push_back(recorded_hash(settings, input));
  return out;
}

void take(Json& before, const Json& now, const std::string& key) {
  if (before.contains(key) && now.contains(key)) before[key] = now.at(key);
}

// Gives `before` the paths that `now` has for inputs with the same content.
void take_paths(Json& before, const Json& now) {
  for (const char* key : kInputs) {
    const Json hash = recorded_hash(now, key);
    if (hash.is_null() || hash != recorded_hash(before, key)) continue;
    const bool inside = now.contains(key) && now.at(key).is_object();  // model.from
    if (!inside) {
      take(before, now, key);
    } else if (before.contains(key) && before.at(key).is_object()) {
      take(before[key], now.at(key), "from");
    }
  }
  for (const char* key : kFileLists) {
    const std::vector<std::string> then = inputs_named(before, key),
                                   inputs = inputs_named(now, key);
    const std::vector<Json> hashes = hashes_of(now, inputs);
    const bool known =
        std::none_of(hashes.begin(), hashes.end(), [](const Json& hash) { return hash.is_null(); });
    if (!known || hashes != hashes_of(before, then)) continue;
    for (const std::string& input : then) before["inputs"].erase(input);
    for (size_t i = 0; i < inputs.size(); ++i) before["inputs"][inputs[i]] = hashes[i];
    take(before, now, key);
  }
  if (text_at(now, "task").empty()) return;
  for (const char* key : kSplits) {  // a split may be a file
    const std::string was = text_at(before, key), is = text_at(now, key);
    const Json hash = recorded_hash(now, is);
    if (hash.is_null() || hash != recorded_hash(before, was)) continue;
    before["inputs"].erase(was);
    before["inputs"][is] = hash;
    take(before, now, key);
  }
  // The directory of a task has no hash; its splits have.
  if (before.at("inputs") == now.at("inputs")) take(before, now, "data");
}

}  // namespace

std::vector<std::string> changed_settings(Json before, Json now) {
  for (const char* key : kFree) {
    before.erase(key);
    now.erase(key);
  }
  // All that there is now.
  if (before.value("copies", 0) == 1) before.erase("copies");
  if (before.value("top_logits", 1) == 0) before.erase("top_logits");
  for (const char* key : kLater) {
    const Json::json_pointer at(key);
    if (!before.contains(at) && now.contains(at)) now.at(at.parent_pointer()).erase(at.back());
  }
  for (const char* section : {"/losses", "/joint/losses"}) {  // a loss that is new since then
    const Json::json_pointer at(section);
    if (!before.contains(at) || !now.contains(at)) continue;
    const Json weights = now.at(at);
    for (const auto& [name, weight] : weights.items())
      if (weight == 0 && !before.at(at).contains(name)) now.at(at).erase(name);
  }
  const bool recorded = before.contains("inputs") && before.at("inputs").is_object() &&
                        now.contains("inputs") && now.at("inputs").is_object();
  if (recorded) take_paths(before, now);
  return data::differences(before, now);
}

}  // namespace brine::distill
