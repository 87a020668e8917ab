// The largest n of a list without sorting: search for their border among integers that are ordered
// like floats.
// Written once for any group (group.h) and device.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "tensor/base/random.h"
#include "tensor/kernels/group.h"

namespace brine {

template <class T>
using OrderKey = std::conditional_t<sizeof(T) == 4, uint32_t, uint64_t>;

// An unsigned integer with the order of x; -0 and 0 have the same, and no number has 0.
template <class T>
BRINE_HD OrderKey<T> order_key(T x) {
  using Key = OrderKey<T>;
  constexpr Key sign = Key(1) << (8 * sizeof(T) - 1);
  Key bits = std::bit_cast<Key>(x + T(0));
  return bits & sign ? Key(~bits) : Key(bits | sign);
}

// The threshold of the `take` largest keys: those above `key`, and of those equal to it all except
// the first `skip` by index.
template <class Key>
struct Threshold {
  Key key = 0;
  int64_t skip = 0;
  int64_t above = 0;  // keys above the threshold
};

// 1 <= take <= n.
template <class Group, class Key>
BRINE_HD Threshold<Key> find_threshold(const Group& group, const Key* keys, int64_t n,
                                       int64_t take) {
  auto at = [keys](int64_t i) { return keys[i]; };
  Key low = group.reduce(n, Key(-1), at, [](Key a, Key b) { return b < a ? b : a; });
  Key high = group.reduce(n, Key(0), at, [](Key a, Key b) { return b > a ? b : a; });
  auto plus = [](uint32_t a, uint32_t b) { return a + b; };
  // `upper` >= take keys are >= low, `lower` < take are > high. The next border is where it would
  // be if keys were evenly spread, or the middle after a step that did not halve the range.
  int64_t upper = n, lower = 0;
  bool halve = false;
  while (low < high) {
    const Key range = high - low;
    const double share = double(take - lower) / double(upper - lower);
    const Key back = halve ? range / 2 : Key(double(range) * (share < 1 ? share : 0.5));
    const Key middle = back < range ? Key(high - back) : Key(low + 1);
    const int64_t count = group.reduce(
        n, uint32_t(0), [keys, middle](int64_t i) { return uint32_t(keys[i] >= middle); }, plus);
    if (count >= take) {
      low = middle;
      upper = count;
    } else {
      high = Key(middle - 1);
      lower = count;
    }
    if (count == take) break;  // exactly these: no tie to split
    halve = high - low > range / 2;
  }
  int64_t above = group.reduce(
      n, uint32_t(0), [keys, low](int64_t i) { return uint32_t(keys[i] > low); }, plus);
  int64_t equal = group.reduce(
      n, uint32_t(0), [keys, low](int64_t i) { return uint32_t(keys[i] == low); }, plus);
  return {low, equal - (take - above), above};
}

// mark(i, chosen) for every i in [0, n): the `take` largest keys are chosen, among equal keys the
// later ones. 0 <= take <= n.
template <class Group, class Key, class Mark>
BRINE_HD void select_largest(const Group& group, const Key* keys, int64_t n, int64_t take,
                             Mark&& mark) {
  if (take == 0) return group.each(n, [&](int64_t i) { mark(i, false); });
  Threshold<Key> border = find_threshold(group, keys, n, take);
  Key key = border.key;
  int64_t skip = border.skip;
  if (skip == 0) return group.each(n, [&, key](int64_t i) { mark(i, keys[i] >= key); });
  group.scan(
      n, [keys, key](int64_t i) { return keys[i] == key; },
      [&](int64_t i, bool tie, int64_t rank) { mark(i, keys[i] > key || (tie && rank >= skip)); });
}

}  // namespace brine
