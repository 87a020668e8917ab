// nlohmann's parser and printer, compiled once.
#include "data/io/json.h"

#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_set>
#include <vector>

#include "tensor/base/error.h"

namespace brine {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

constexpr size_t kMaxShown = 200;                        // bytes of a key
constexpr uint64_t kMaxComparisons = uint64_t(1) << 27;  // of keys that stay in order

using Drop = std::function<bool(int depth, const std::string& key)>;

// Makes a value of what the parser finds. nlohmann's own parser with a callback takes quadratic
// time for a list of objects.
template <class Json>
class Builder {
 public:
  Builder(std::string where, int max_levels, const Drop& drop, bool throws)
      : where_(std::move(where)), max_levels_(max_levels), drop_(drop), throws_(throws) {}

  Json value = Json(Json::value_t::discarded);
  std::optional<std::string> twice;  // the first duplicate key of an object

  bool null() { return put(nullptr); }
  bool boolean(bool x) { return put(x); }
  bool number_integer(int64_t x) { return put(x); }
  bool number_unsigned(uint64_t x) { return put(x); }
  bool number_float(double x, const std::string&) { return put(x); }
  bool string(std::string& x) { return put(std::move(x)); }
  bool binary(typename Json::binary_t& x) { return put(std::move(x)); }
  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_object() { return close(); }
  bool end_array() { return close(); }

  bool key(std::string& key) {
    Level& object = levels_.back();
    if (!object.keys.insert(key).second && !twice) twice = key;
    if (object.left_out) return true;
    object.drops = drop_ && drop_(int(levels_.size()), key);
    if (object.drops) return true;
    if (std::is_same_v<Json, ordered_json>) comparisons_ += object.keys.size();
    check_format(comparisons_ <= kMaxComparisons, where_, ": an object has too many keys");
    object.item = &(*object.value)[key];
    return true;
  }

  template <class Exception>
  bool parse_error(size_t, const std::string&, const Exception& error) {
    if (throws_) throw error;
    value = Json(Json::value_t::discarded);
    return false;
  }

 private:
  struct Level {
    Json* value = nullptr;
    Json* item = nullptr;   // of an object: what its last key is for
    bool left_out = false;  // with all that it holds
    bool drops = false;     // an object whose last key is left out
    std::unordered_set<std::string> keys = {};
  };

  template <class T>
  bool put(T&& x) {
    if (!left_out()) (void)insert(std::forward<T>(x));
    return true;
  }
  bool open(Json&& empty) {
    check_format(int(levels_.size()) < max_levels_, where_, ": more than ", max_levels_,
                 " levels deep");
    const bool out = left_out();
    levels_.push_back({.value = out ? nullptr : insert(std::move(empty)), .left_out = out});
    return true;
  }
  bool close() {
    levels_.pop_back();
    return true;
  }
  bool left_out() const {
    return !levels_.empty() && (levels_.back().left_out || levels_.back().drops);
  }
  template <class T>
  Json* insert(T&& x) {
    Json* to = levels_.empty() ? &value : levels_.back().item;
    if (to) return &(*to = std::forward<T>(x));
    levels_.back().value->push_back(std::forward<T>(x));
    return &levels_.back().value->back();
  }

  const std::string where_;
  const int max_levels_;
  const Drop& drop_;
  const bool throws_;
  std::vector<Level> levels_;
  uint64_t comparisons_ = 0;
};

template <class Json>
Json parse_once(std::string_view text, bool throws, const std::string& where,
                int max_levels = INT_MAX, const Drop& drop = {}) {
  Builder<Json> builder(where, max_levels, drop, throws);
  Json::sax_parse(text, &builder);
  std::optional<std::string>& twice = builder.twice;
  if (!twice || builder.value.is_discarded()) return std::move(builder.value);
  const bool cut = twice->size() > kMaxShown;
  if (cut) twice->resize(kMaxShown);
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
  try {
    return parse_json_or_discard(text, "JSON");
  } catch (const Error&) {
    return ordered_json::value_t::discarded;
  }
}

std::string json_text(const json& value, int indent) { return value.dump(indent); }
std::string json_text(const ordered_json& value, int indent) { return value.dump(indent); }
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

const ordered_json& list_at(const std::string& where, const ordered_json& object, const char* key) {
  const ordered_json& value = value_at(where, object, key);
  check_format(value.is_array(), where, ": key \"", key, "\" is not a list");
  return value;
}

}  // namespace brine
