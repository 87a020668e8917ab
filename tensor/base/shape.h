// Shape: up to six sizes (or strides), stored inline.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <ostream>
#include <vector>

#include "tensor/base/error.h"

namespace brine {

class Shape {
 public:
  static constexpr int kMaxRank = 6;

  Shape() = default;
  Shape(std::initializer_list<int64_t> sizes) {
    for (int64_t s : sizes) push_back(s);
  }
  explicit Shape(const std::vector<int64_t>& sizes) {
    for (int64_t s : sizes) push_back(s);
  }

  void push_back(int64_t size) {
    check(rank_ < kMaxRank, "Shape: at most ", kMaxRank, " axes");
    sizes_[rank_++] = size;
  }

  int rank() const { return rank_; }
  int64_t& operator[](int i) { return sizes_[i]; }
  int64_t operator[](int i) const { return sizes_[i]; }
  const int64_t* begin() const { return sizes_; }
  const int64_t* end() const { return sizes_ + rank_; }
  int64_t numel() const {
    int64_t n = 1;
    for (int64_t s : *this) n *= s;
    return n;
  }
  // An axis counted from the end when negative; an axis outside throws.
  int axis(int i) const {
    int a = i < 0 ? i + rank_ : i;
    check(a >= 0 && a < rank_, "Shape: axis ", i, " is outside ", *this);
    return a;
  }

  friend bool operator==(const Shape& a, const Shape& b) {
    if (a.rank_ != b.rank_) return false;
    for (int i = 0; i < a.rank_; ++i) {
      if (a.sizes_[i] != b.sizes_[i]) return false;
    }
    return true;
  }
  friend std::ostream& operator<<(std::ostream& os, const Shape& s) {
    os << "[";
    for (int i = 0; i < s.rank_; ++i) os << (i ? ", " : "") << s[i];
    return os << "]";
  }

 private:
  int64_t sizes_[kMaxRank] = {};
  int rank_ = 0;
};

}  // namespace brine
