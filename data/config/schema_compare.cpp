// The nearest known key to an unknown one, and the differences of two configs.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/config/schema_text.h"
#include "tensor/base/error.h"

namespace brine::data {

namespace {

void flatten(const Json& value, const std::string& key, std::vector<std::string>& keys,
             std::vector<const Json*>& values) {
  if (!value.is_object()) {
    keys.push_back(key);
    values.push_back(&value);
    return;
  }
  for (auto& [name, item] : value.items()) {
    flatten(item, key.empty() ? name : join(key, ".", name), keys, values);
  }
}

// Insertions, deletions, substitutions and swaps of neighbours that turn a into b.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> before(b.size() + 1), row(b.size() + 1), next(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    next[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      next[j] = std::min({row[j] + 1, next[j - 1] + 1, row[j - 1] + (a[i - 1] != b[j - 1])});
      bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) next[j] = std::min(next[j], before[j - 2] + 1);
    }
    std::swap(before, row);
    std::swap(row, next);
  }
  return row[b.size()];
}

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& known) {
  std::string best;
  size_t least = SIZE_MAX;
  std::string_view shortened = word.substr(0, 200);
  std::string_view tail = shortened.substr(shortened.rfind('.') + 1);
  for (const std::string& key : known) {
    // A key without its section has distance one from the key with it.
    size_t distance = std::min(edit_distance(shortened, key),
                               1 + edit_distance(tail, key.substr(key.rfind('.') + 1)));
    if (distance >= least) continue;
    least = distance;
    best = key;
  }
  return best;
}

std::vector<std::string> differences(const Json& before, const Json& after) {
  std::vector<std::string> old_keys, new_keys, lines;
  std::vector<const Json*> old_values, new_values;
  flatten(before, "", old_keys, old_values);
  flatten(after, "", new_keys, new_values);
  for (size_t i = 0; i < old_keys.size(); ++i) {
    size_t j = std::find(new_keys.begin(), new_keys.end(), old_keys[i]) - new_keys.begin();
    bool gone = j == new_keys.size();
    if (!gone && *new_values[j] == *old_values[i]) continue;
    lines.push_back(join(old_keys[i], ": ", show(*old_values[i]), " -> ",
                         gone ? "none" : show(*new_values[j])));
  }
  for (size_t j = 0; j < new_keys.size(); ++j) {
    if (std::find(old_keys.begin(), old_keys.end(), new_keys[j]) != old_keys.end()) continue;
    lines.push_back(join(new_keys[j], ": none -> ", show(*new_values[j])));
  }
  return lines;
}

}  // namespace brine::data
