// nlohmann's parser and printer, compiled once.
#include "data/io/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "tensor/base/error.h"

namespace brine {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr size_t kMostShown = 200;                        // bytes of a key
constexpr uint64_t kMostComparisons = uint64_t(1) << 27;  // of keys that stay in order

using Drop = std::function<bool(int depth, const std::string& key)>;

// Parses a text; `twice` becomes the first duplicate key of an object.
template <class Json>
Json parse(std::string_view text, bool throws, std::optional<std::string>& twice,
           const std::string& where, int max_levels, const Drop& drop = {}) {
  using Event = typename Json::parse_event_t;
  std::vector<std::unordered_set<std::string>> keys;  // of the objects around a place
  uint64_t comparisons = 0;
  int dropped = INT_MAX;  // the depth of a key that is left out, in what follows it
  auto see = [&](int depth, Event event, Json& parsed) {
    const bool opens = event == Event::object_start || event == Event::array_start;
    check_format(!opens || depth < max_levels, where, ": more than ", max_levels, " levels deep");
    if (event == Event::object_start) keys.emplace_back();
    if (event == Event::object_end) keys.pop_back();
    if (event != Event::key || twice) return true;
    const std::string& key = parsed.template get_ref<const std::string&>();
    if (!keys.back().insert(key).second) twice = key;
    if (depth <= dropped) dropped = drop && drop(depth, key) ? depth : INT_MAX;
    if (std::is_same_v<Json, ordered_json> && dropped == INT_MAX) comparisons += keys.back().size();
    check_format(comparisons <= kMostComparisons, where, ": an object has too many keys");
    return dropped != depth;
  };
  return Json::parse(text, see, throws);
}

template <class Json>
Json parse_once(std::string_view text, bool throws, const std::string& where,
                int max_levels = INT_MAX, const Drop& drop = {}) {
  std::optional<std::string> twice;
  Json value = parse<Json>(text, throws, twice, where, max_levels, drop);
  if (!twice || value.is_discarded()) return value;
  const bool cut = twice->size() > kMostShown;
  if (cut) twice->resize(kMostShown);
  const std::string key =
      json(*twice).dump(-1, ' ', true, json::error_handler_t::replace) + (cut ? "..." : "");
  throw Error(join(where, ": key ", key, " is a duplicate"), ErrorKind::format);
}

}  // namespace

json parse_json(std::string_view text, const std::string& where, int max_levels) {
  return parse_once<json>(text, true, where, max_levels);
}
ordered_json parse_ordered_json(std::string_view text, const std::string& where, const Drop& drop) {
  return parse_once<ordered_json>(text, true, where, INT_MAX, drop);
}
ordered_json parse_json_or_discard(std::string_view text, const std::string& where) {
  return parse_once<ordered_json>(text, false, where);
}
ordered_json parse_json_or_discard(std::string_view text) {
  std::optional<std::string> twice;
  ordered_json value = parse<ordered_json>(text, false, twice, "JSON", INT_MAX);
  return twice ? ordered_json(ordered_json::value_t::discarded) : value;
}

std::string json_text(const json& value, int indent) { return value.dump(indent); }
std::string json_text(const ordered_json& value, int indent) { return value.dump(indent); }
std::string place_not_finite(const ordered_json& value) {
  const ordered_json flat = value.flatten();
  for (const auto& [place, item] : flat.items()) {
    if (!item.is_number_float() || std::isfinite(item.get<double>())) continue;
    std::string name = place.empty() ? "the number" : place.substr(1);
    std::replace(name.begin(), name.end(), '/', '.');
    const double value = item.get<double>();
    return name + (std::isnan(value) ? " is nan" : value > 0 ? " is inf" : " is -inf");
  }
  return "";
}
std::string printable_json(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

ordered_json or_null(const std::optional<int64_t>& value) {
  return value ? ordered_json(*value) : ordered_json();
}
ordered_json or_null(const std::optional<double>& value) {
  return value ? ordered_json(*value) : ordered_json();
}

namespace {

const ordered_json& value_at(const std::string& where, const ordered_json& object,
                             const char* key) {
  const auto found = object.find(key);
  check_format(found != object.end(), where, ": key \"", key, "\" is missing");
  return *found;
}

}  // namespace

std::string text_at(const std::string& where, const ordered_json& object, const char* key) {
  const ordered_json& value = value_at(where, object, key);
  check_format(value.is_string(), where, ": key \"", key, "\" is not text");
  return value.get<std::string>();
}

int64_t integer_at(const std::string& where, const ordered_json& object, const char* key) {
  const ordered_json& value = value_at(where, object, key);
  check_format(value.is_number_integer(), where, ": key \"", key, "\" is not an integer");
  check_format(!value.is_number_unsigned() || value.get<uint64_t>() <= INT64_MAX, where, ": key \"",
               key, "\" is too large");
  return value.get<int64_t>();
}

}  // namespace brine
