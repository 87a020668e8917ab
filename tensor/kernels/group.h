// A group of lanes that processes one list together: the interface of selection to the hardware.
//
// An algorithm on a group is a sequence of collective calls; its variables have the same value
// on every lane. On a GPU the group is a warp or block (each call ends with a synchronisation); a
// CPU core is a group of 1; tests run LaneGroup<32>, which visits the list in a GPU's order.
#pragma once

#include <bit>
#include <cstdint>

namespace brine {

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

}  // namespace brine
