// A matrix anywhere in memory.
#pragma once

#include <cstdint>

namespace brine {

// Element (i, j) is data[i row + j column].
template <class T>
struct Strided {
  T* data = nullptr;
  int64_t row = 0, column = 0;
  T* at(int64_t i, int64_t j) const { return data + i * row + j * column; }
};

}  // namespace brine
