// Conversion to stored values, in loops that the compiler vectorises.
#include "data/dump/dump_convert.h"

#include <cstring>

namespace brine::data {
namespace {

// Exponent bits all set: infinity or NaN.
bool finite(float x) { return (std::bit_cast<uint32_t>(x) & 0x7f800000u) != 0x7f800000u; }
bool finite(f16 x) { return (x.bits & 0x7c00u) != 0x7c00u; }
bool finite(bf16 x) { return (x.bits & 0x7f80u) != 0x7f80u; }

template <class T>
void store(const float* x, int64_t count, T* out, const std::string& where) {
  bool all = true;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = T(x[i]);
    all &= finite(out[i]);
  }
  if (all) return;
  for (int64_t i = 0; i < count; ++i) {
    check_format(finite(x[i]), where, ": value ", i, " is ", x[i]);
    check_format(finite(out[i]), where, ": value ", i, ", ", x[i], ", does not fit ",
                 DtypeOf<T>::value, "; use bf16 or f32");
  }
}

template <class T>
void copy(const void* x, int64_t count, void* out, const std::string& where) {
  std::memcpy(out, x, size_t(count) * sizeof(T));
  const T* values = static_cast<const T*>(out);
  for (int64_t i = 0; i < count; ++i)
    check_format(finite(values[i]), where, ": value ", i, " is ", float(values[i]), " in ",
                 DtypeOf<T>::value, "; bf16 or f32 fit if it is finite in the teacher");
}

}  // namespace

void copy_values(const void* x, int64_t count, Dtype dtype, void* out, const std::string& where) {
  switch (dtype) {
    case Dtype::f16:
      return copy<f16>(x, count, out, where);
    case Dtype::bf16:
      return copy<bf16>(x, count, out, where);
    default:
      return store_values(static_cast<const float*>(x), count, dtype, out, where);
  }
}

void store_values(const float* x, int64_t count, Dtype dtype, void* out, const std::string& where) {
  switch (dtype) {
    case Dtype::f16:
      return store(x, count, static_cast<f16*>(out), where);
    case Dtype::bf16:
      return store(x, count, static_cast<bf16*>(out), where);
    case Dtype::f32:
      return store(x, count, static_cast<float*>(out), where);
    default:
      throw Error(join(where, ": ", dtype, " is not stored"));
  }
}

}  // namespace brine::data
