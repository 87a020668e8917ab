// The core of BPE encoding: the table of merges, the merging of one word, and a cache of merged
// words.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

namespace brine::data {

inline constexpr uint32_t kNoMerge = UINT32_MAX;

// The result of merging two neighbouring tokens; the merge with the lowest rank is applied first.
struct Merge {
  uint32_t rank = kNoMerge;
  int32_t id = -1;
};

// Two tokens as one number.
inline uint64_t pair_key(std::pair<int32_t, int32_t> pair) {
  return uint64_t(uint32_t(pair.first)) << 32 | uint32_t(pair.second);
}

// (left, right) -> Merge, by open addressing.
class MergeTable {
 public:
  // Reserves space for `pairs` merges; removes existing ones.
  void reset(size_t pairs);
  // An existing pair gets the new merge.
  void set(int32_t left, int32_t right, Merge merge);
  Merge find(int32_t left, int32_t right) const {
    const uint64_t key = pair_key({left, right});
    for (size_t slot = slot_of(key);; slot = (slot + 1) & mask_) {
      if (slots_[slot].key == key) return slots_[slot].merge;
      if (slots_[slot].key == kEmpty) return {};
    }
  }

 private:
  static constexpr uint64_t kEmpty = UINT64_MAX;
  struct Slot {
    uint64_t key = kEmpty;
    Merge merge;
  };
  size_t slot_of(uint64_t key) const { return (key * 0x9e3779b97f4a7c15u >> 20) & mask_; }

  std::vector<Slot> slots_ = std::vector<Slot>(2);  // at most half full
  size_t mask_ = 1;
};

// Merges the tokens of one word, best rank first and leftmost on a tie, and appends the result to
// `out`. `word` is modified. n log n for long words.
void merge_word(const MergeTable& table, std::vector<int32_t>& word, std::vector<int32_t>& out);

// The ids of words seen before. It is cleared when it is full.
class WordCache {
 public:
  static uint64_t hash(std::string_view word);
  // The ids of `word`; an empty span if it is not known.
  std::span<const int32_t> find(std::string_view word, uint64_t hash) const;
  void insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids);

 private:
  struct Entry {
    uint64_t hash = 0;
    uint32_t text = 0, size = 0;  // size 0: free
    uint32_t first = 0, count = 0;
  };
  void clear();

  std::vector<Entry> entries_;
  std::vector<char> text_;
  std::vector<int32_t> ids_;
  size_t used_ = 0;
};

}  // namespace brine::data
