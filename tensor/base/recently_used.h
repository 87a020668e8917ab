// A bounded cache of what is expensive to make.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace brine {

// The most recently used values, by key.
template <class Key, class Value>
class RecentlyUsed {
 public:
  explicit RecentlyUsed(size_t capacity) : capacity_(capacity) {}

  // The value of a key, made by make() if it is new.
  template <class Make>
  Value& get(const Key& key, Make&& make) {
    auto at = entries_.find(key);
    if (at == entries_.end()) {
      if (entries_.size() >= capacity_) drop_oldest();
      at = entries_.emplace(key, Entry{make(), 0}).first;
    }
    at->second.used = ++clock_;
    return at->second.value;
  }

 private:
  struct Entry {
    Value value;
    uint64_t used;
  };

  void drop_oldest() {
    auto oldest = entries_.begin();
    for (auto it = entries_.begin(); it != entries_.end(); ++it) {
      if (it->second.used < oldest->second.used) oldest = it;
    }
    entries_.erase(oldest);
  }

  size_t capacity_;
  std::map<Key, Entry> entries_;
  uint64_t clock_ = 0;
};

}  // namespace brine
