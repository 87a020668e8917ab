// The only interface to nlohmann's parser and printer: their templates take seconds in every file
// that calls them.
//
// An object with a duplicate key is an error, since it is undefined which value counts. It is
// reported as Error "WHERE: key "x" is a duplicate"; `where` is the file's name.
#pragma once

#include <climits>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>

namespace brine::data {
using Json = nlohmann::ordered_json;  // keeps the order of keys; slow for many of them
}

namespace brine {

// Throws nlohmann::json::parse_error with the position. More than `max_levels` objects and lists in
// one another are an error like a duplicate key: each may take 60 bytes of memory.
nlohmann::json parse_json(std::string_view text, const std::string& where = "JSON",
                          int max_levels = INT_MAX);
// Of objects whose keys stay in order: too many keys are an error, since each is compared with
// those before it. What follows a key that `drop`, if given, is true for is left out.
nlohmann::ordered_json parse_ordered_json(
    std::string_view text, const std::string& where = "JSON",
    const std::function<bool(int depth, const std::string& key)>& drop = {});
// is_discarded() if the text is not JSON.
nlohmann::ordered_json parse_json_or_discard(std::string_view text, const std::string& where);
// is_discarded() also for a duplicate key.
nlohmann::ordered_json parse_json_or_discard(std::string_view text);

// On one line, or indented by that many spaces. Invalid UTF-8 throws, or is replaced by U+FFFD in
// printable_json().
std::string json_text(const nlohmann::json& value, int indent = -1);
std::string json_text(const nlohmann::ordered_json& value, int indent = -1);
std::string printable_json(const nlohmann::ordered_json& value);

// null for no value.
nlohmann::ordered_json or_null(const std::optional<int64_t>& value);
nlohmann::ordered_json or_null(const std::optional<double>& value);

// The text, the whole number and the list of a key; FormatError, which names the file `where`, if
// it is missing or of another type.
std::string text_at(const std::string& where, const nlohmann::ordered_json& object,
                    const char* key);
int64_t integer_at(const std::string& where, const nlohmann::ordered_json& object, const char* key);
const nlohmann::ordered_json& list_at(const std::string& where,
                                      const nlohmann::ordered_json& object, const char* key);

}  // namespace brine
