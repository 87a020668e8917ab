// nlohmann's parser and printer, compiled once.
#include "data/io/json.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "data/io/json_keys.h"
#include "tensor/base/error.h"

namespace brine {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr size_t kMostShown = 200;  // bytes of a key

// Checks a parser's events for duplicate keys of an object.
template <class Json>
struct Watch {
  JsonKeys keys = {};
  std::optional<std::string> twice = {};

  void see(typename Json::parse_event_t event, const Json& parsed) {
    using Event = typename Json::parse_event_t;
    if (event == Event::object_start) keys.begin_object();
    if (event == Event::object_end) keys.end_object();
    if (event != Event::key || twice) return;
    const std::string& key = parsed.template get_ref<const std::string&>();
    if (!keys.add(key)) twice = key;
  }
};

template <class Json>
Json parse(std::string_view text, bool throws, std::optional<std::string>& twice) {
  Watch<Json> watch;
  Json value = Json::parse(
      text,
      [&](int, typename Json::parse_event_t event, Json& parsed) {
        watch.see(event, parsed);
        return true;
      },
      throws);
  twice = std::move(watch.twice);
  return value;
}

template <class Json>
Json parse_once(std::string_view text, bool throws, const std::string& where) {
  std::optional<std::string> twice;
  Json value = parse<Json>(text, throws, twice);
  if (!twice || value.is_discarded()) return value;
  const bool cut = twice->size() > kMostShown;
  if (cut) twice->resize(kMostShown);
  const std::string key =
      json(*twice).dump(-1, ' ', true, json::error_handler_t::replace) + (cut ? "..." : "");
  throw Error(join(where, ": key ", key, " is a duplicate"), ErrorKind::format);
}

}  // namespace

json parse_json(std::string_view text, const std::string& where) {
  return parse_once<json>(text, true, where);
}
ordered_json parse_ordered_json(std::string_view text, const std::string& where) {
  return parse_once<ordered_json>(text, true, where);
}
ordered_json parse_json_or_discard(std::string_view text, const std::string& where) {
  return parse_once<ordered_json>(text, false, where);
}
ordered_json parse_json_or_discard(std::string_view text) {
  std::optional<std::string> twice;
  ordered_json value = parse<ordered_json>(text, false, twice);
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
