// The detection of duplicate keys of an object while JSON is parsed.
#pragma once

#include <string>
#include <unordered_set>
#include <vector>

namespace brine {

// The keys of the objects around a position in the text; updated by a parser's events.
class JsonKeys {
 public:
  void begin_object() { open_.emplace_back(); }
  void end_object() { open_.pop_back(); }
  // False when the innermost object has the key already.
  bool add(const std::string& key) { return open_.back().insert(key).second; }
  // Of the innermost object.
  size_t count() const { return open_.back().size(); }

 private:
  std::vector<std::unordered_set<std::string>> open_;
};

}  // namespace brine
