// nlohmann's parser and printer, compiled once.
#include "tensor/json.h"

#include <nlohmann/json.hpp>

namespace brine {

using nlohmann::json;
using nlohmann::ordered_json;

json parse_json(std::string_view text) { return json::parse(text); }
ordered_json parse_ordered_json(std::string_view text) { return ordered_json::parse(text); }
ordered_json parse_json_or_discard(std::string_view text) {
  return ordered_json::parse(text, nullptr, false);
}

std::string json_text(const json& value, int indent) { return value.dump(indent); }
std::string json_text(const ordered_json& value, int indent) { return value.dump(indent); }
std::string printable_json(const ordered_json& value) {
  return value.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
}

}  // namespace brine
