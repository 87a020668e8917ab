// Merging words of BPE, and caching them.
#include "data/tokenizer/bpe/bpe_merge.h"

#include <bit>
#include <cstring>
#include <queue>
#include <tuple>

namespace brine::data {
namespace {

constexpr size_t kScanned = 48;          // words up to this many tokens are merged by scanning
constexpr size_t kCacheSlots = 1 << 17;  // at most half full
constexpr size_t kCacheBytes = 4 << 20;  // of words
constexpr size_t kLongestCached = 256;   // bytes

// Few tokens: look at all neighbours, merge the best, close the gap.
void merge_by_scanning(const MergeTable& table, std::vector<int32_t>& word) {
  Merge merges[kScanned];  // of tokens i and i + 1
  size_t n = word.size();
  for (size_t i = 0; i + 1 < n; ++i) merges[i] = table.find(word[i], word[i + 1]);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i)
      if (merges[i].rank < merges[best].rank) best = i;
    if (merges[best].rank == kNoMerge) break;
    word[best] = merges[best].id;
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      word[i] = word[i + 1];
      merges[i - 1] = merges[i];
    }
    if (best > 0) merges[best - 1] = table.find(word[best - 1], word[best]);
    if (best + 1 < n) merges[best] = table.find(word[best], word[best + 1]);
  }
  word.resize(n);
}

// Many tokens: a linked list, and a heap of (rank, position) whose entries are checked when they
// are taken, since a neighbour may have been merged by then.
void merge_by_heap(const MergeTable& table, std::vector<int32_t>& word) {
  using Entry = std::tuple<uint32_t, int64_t, int32_t>;  // rank, position of the left token, new id
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue;
  const auto n = int64_t(word.size());
  std::vector<int64_t> before(n), after(n);
  auto push = [&](int64_t left, int64_t right) {
    if (left < 0 || right >= n) return;
    Merge merge = table.find(word[left], word[right]);
    if (merge.rank != kNoMerge) queue.emplace(merge.rank, left, merge.id);
  };
  for (int64_t i = 0; i < n; ++i) {
    before[i] = i - 1;
    after[i] = i + 1;
    push(i, i + 1);
  }
  while (!queue.empty()) {
    auto [rank, left, id] = queue.top();
    queue.pop();
    const int64_t right = after[left];
    if (word[left] < 0 || right >= n) continue;
    Merge merge = table.find(word[left], word[right]);
    if (merge.rank != rank || merge.id != id) continue;
    word[left] = id;
    word[right] = -1;
    after[left] = after[right];
    if (after[left] < n) before[after[left]] = left;
    push(before[left], left);
    push(left, after[left]);
  }
  std::erase(word, -1);
}

}  // namespace

void MergeTable::reset(size_t pairs) {
  slots_.assign(std::bit_ceil(2 * pairs + 2), {});
  mask_ = slots_.size() - 1;
}

void MergeTable::set(int32_t left, int32_t right, Merge merge) {
  const uint64_t key = pair_key({left, right});
  size_t slot = slot_of(key);
  while (slots_[slot].key != kEmpty && slots_[slot].key != key) slot = (slot + 1) & mask_;
  slots_[slot] = {key, merge};
}

void merge_word(const MergeTable& table, std::vector<int32_t>& word, std::vector<int32_t>& out) {
  if (word.size() <= kScanned)
    merge_by_scanning(table, word);
  else
    merge_by_heap(table, word);
  out.insert(out.end(), word.begin(), word.end());
}

uint64_t WordCache::hash(std::string_view word) {
  uint64_t state = word.size() * 0x9e3779b97f4a7c15u;
  auto mix = [&](uint64_t bits) {
    auto product = static_cast<unsigned __int128>(state ^ bits) * 0xd6e8feb86659fd93u;
    state = uint64_t(product) ^ uint64_t(product >> 64);
  };
  const char* p = word.data();
  size_t left = word.size();
  uint64_t bits = 0;
  for (; left > 8; left -= 8, p += 8) {
    std::memcpy(&bits, p, 8);
    mix(bits);
  }
  bits = 0;
  for (size_t i = 0; i < left; ++i) bits |= uint64_t(uint8_t(p[i])) << 8 * i;
  mix(bits);
  mix(0x2545f4914f6cdd1du);
  return state;
}

std::span<const int32_t> WordCache::find(std::string_view word, uint64_t hash) const {
  if (entries_.empty()) return {};
  for (size_t slot = hash % kCacheSlots; entries_[slot].size > 0; slot = (slot + 1) % kCacheSlots) {
    const Entry& entry = entries_[slot];
    if (entry.hash == hash && entry.size == word.size() &&
        std::memcmp(&text_[entry.text], word.data(), word.size()) == 0)
      return {&ids_[entry.first], entry.count};
  }
  return {};
}

void WordCache::insert(std::string_view word, uint64_t hash, std::span<const int32_t> ids) {
  if (word.empty() || word.size() > kLongestCached || ids.empty()) return;
  if (entries_.empty() || used_ == kCacheSlots / 2 || text_.size() + word.size() > kCacheBytes)
    clear();
  size_t slot = hash % kCacheSlots;
  while (entries_[slot].size > 0) slot = (slot + 1) % kCacheSlots;
  entries_[slot] = {hash, uint32_t(text_.size()), uint32_t(word.size()), uint32_t(ids_.size()),
                    uint32_t(ids.size())};
  text_.insert(text_.end(), word.begin(), word.end());
  ids_.insert(ids_.end(), ids.begin(), ids.end());
  ++used_;
}

void WordCache::clear() {
  entries_.assign(kCacheSlots, {});
  text_.clear();
  ids_.clear();
  used_ = 0;
}

}  // namespace brine::data
