// The one door to nlohmann's parser and printer: their templates take seconds in every file that
// calls them.
//
// An object with one key twice is no JSON of ours: which value counts would be chance. Where a text
// has one, Error "WHERE: key "x" is there twice" is thrown; `where` is the file's name.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>

namespace brine {

// Throws nlohmann::json::parse_error, with the place.
nlohmann::json parse_json(std::string_view text, const std::string& where = "JSON");
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where = "JSON");
// is_discarded() where the text is not JSON.
nlohmann::ordered_json parse_json_or_discard(std::string_view text, const std::string& where);
// is_discarded() also where a key is there twice.
nlohmann::ordered_json parse_json_or_discard(std::string_view text);

// On one line, or indented by so many spaces. Bytes that are no UTF-8 throw, or are replaced by
// U+FFFD in printable_json().
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
std::string printable_json(const nlohmann::ordered_json& value);

}  // namespace brine
