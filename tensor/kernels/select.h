// The largest n of a list without sorting: search for their border among integers that are ordered
// like floats.
// Written once for any group of lanes and device.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include "tensor/base/random.h"

namespace brine {

// A group of lanes that processes one list together: the interface of selection to the hardware.
//
// An algorithm on a group is a sequence of collective calls; its variables have the same value
// on every lane. On a GPU the group is a warp or block (each call ends with a synchronisation); a
// CPU core is a group of 1; tests run LaneGroup<32>, which visits the list in a GPU's order.
template <int N>
struct LaneGroup {
  static constexpr int size = N;

  // Waits until all lanes see each other's writes: here one thread executes every lane.
  void sync() const {}

  // f(i) for every i in [0, n); f must not depend on the order.
  template <class F>
  void each(int64_t n, F&& f) const {
    for (int lane = 0; lane < N; ++lane) {
      for (int64_t i = lane; i < n; i += N) f(i);
    }
    sync();
  }

  // op over f(i), from `start`, returned on every lane. op must be associative and commutative.
  template <class V, class F, class Op>
  V reduce(int64_t n, V start, F&& f, Op&& op) const {
    V part[N];
    for (int lane = 0; lane < N; ++lane) {
      V sum = start;
      for (int64_t i = lane; i < n; i += N) sum = op(sum, f(i));
      part[lane] = sum;
    }
    for (int half = N / 2; half > 0; half /= 2) {
      for (int lane = 0; lane < half; ++lane) part[lane] = op(part[lane], part[lane + half]);
    }
    return part[0];
  }

  // f(i, flagged, rank) for every i; rank = the number of flagged indices before i.
  template <class Flag, class F>
  void scan(int64_t n, Flag&& flag, F&& f) const {
    static_assert(std::has_single_bit(unsigned(N)) && N <= 64);
    int64_t before = 0;
    for (int64_t start = 0; start < n; start += N) {
      uint64_t ballot = 0;
      for (int lane = 0; lane < N && start + lane < n; ++lane) {
        ballot |= uint64_t(bool(flag(start + lane))) << lane;
      }
      for (int lane = 0; lane < N && start + lane < n; ++lane) {
        uint64_t below = ballot & ((uint64_t(1) << lane) - 1);
        f(start + lane, bool(ballot >> lane & 1), before + std::popcount(below));
      }
      before += std::popcount(ballot);
    }
    sync();
  }
};

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
