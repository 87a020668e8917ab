// Checks of the sizes in datatypes, dataspaces, fill values and filters of "HDF5 File Format
// Specification Version 3.0".
#include "data/hdf5/hdf5_messages.h"

namespace brine::data::hdf5 {
namespace {

// The number of bytes in which libhdf5 writes a number up to `largest`.
int width_of(uint64_t largest) {
  int bytes = 1;
  while (largest >>= 8) ++bytes;
  return bytes;
}

enum TypeClass {
  kFixed,
  kFloating,
  kTime,
  kString,
  kBits,
  kOpaque,
  kCompound,
  kReference,
  kEnum,
  kVariable,
  kArray
};

}  // namespace

uint64_t check_datatype(Cursor& m, int depth) {
  constexpr const char* kWhat = "a datatype does not fit its message";
  if (depth > kDeepestHdf5) refuse_header(m.where(), "datatypes are nested too deeply");
  const uint64_t kind = m.number(1, kWhat), flags = m.number(3, kWhat), size = m.number(4, kWhat);
  const uint64_t version = kind >> 4, members = flags & 0xffff;
  const size_t unit = version < 3 ? 8 : 1;
  switch (kind & 15) {
    case kFixed:
    case kBits:
      m.skip(4, kWhat);
      break;
    case kFloating:
      m.skip(12, kWhat);
      break;
    case kTime:
      m.skip(2, kWhat);
      break;
    case kOpaque:
      m.skip(flags & 0xff, kWhat);
      break;
    case kCompound:
      for (uint64_t i = 0; i < members; ++i) {
        m.text(unit, kWhat);
        m.skip(version < 3 ? 4 : uint64_t(width_of(size)), kWhat);
        if (version == 1) m.skip(28, kWhat);
        check_datatype(m, depth + 1);
      }
      break;
    case kEnum: {
      const uint64_t base = check_datatype(m, depth + 1);
      for (uint64_t i = 0; i < members; ++i) m.text(unit, kWhat);
      m.skip(product(m.where(), members, base), kWhat);
      break;
    }
    case kVariable:
      check_datatype(m, depth + 1);
      break;
    case kArray: {
      const uint64_t axes = m.number(1, kWhat);
      m.skip(version < 3 ? 3 + 8 * axes : 4 * axes, kWhat);
      check_datatype(m, depth + 1);
      break;
    }
    default:  // strings and references have nothing more; libhdf5 refuses other classes
      break;
  }
  return size;
}

uint64_t check_dataspace(Cursor& m, int length_bytes) {
  constexpr const char* kWhat = "a dataspace does not fit its message";
  const uint64_t version = m.number(1, kWhat), axes = m.number(1, kWhat),
                 flags = m.number(1, kWhat);
  const uint64_t kind = m.number(1, kWhat);
  if (version == 1) m.skip(4, kWhat);
  uint64_t elements = version >= 2 && kind == 2 ? 0 : 1;
  for (uint64_t i = 0; i < axes; ++i)
    elements = product(m.where(), elements, m.number(length_bytes, kWhat));
  if (flags & 1) m.skip(axes * uint64_t(length_bytes), kWhat);
  if (version == 1 && flags & 2) m.skip(axes * uint64_t(length_bytes), kWhat);
  return elements;
}

void check_fill_value(Cursor& m, bool old) {
  constexpr const char* kWhat = "a fill value does not fit its message";
  bool may_be_negative = false;  // which means that there is none
  if (!old) {
    const uint64_t version = m.number(1, kWhat), flags = m.number(1, kWhat);
    if (version >= 3 && (flags & 0x20) == 0) return;
    if (version < 3) {
      m.skip(1, kWhat);
      if (m.number(1, kWhat) == 0 && version == 2) return;
      may_be_negative = true;
    }
  }
  const uint64_t size = m.number(4, kWhat);
  if (!may_be_negative || size <= INT32_MAX) m.skip(size, kWhat);
}

void check_filters(Cursor& m) {
  constexpr const char* kWhat = "a filter does not fit its message";
  const uint64_t version = m.number(1, kWhat), count = m.number(1, kWhat);
  if (version == 1) m.skip(6, kWhat);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t id = m.number(2, kWhat);
    const uint64_t name = version == 1 || id >= 256 ? m.number(2, kWhat) : 0;
    m.skip(2, kWhat);
    const uint64_t values = m.number(2, kWhat);
    if (name > 0) {
      const auto text = m.take(padded(name, version == 1), kWhat);
      if (std::find(text.begin(), text.end(), '\0') == text.end()) refuse_header(m.where(), kWhat);
    }
    m.skip(4 * values + (version == 1 && values % 2 ? 4 : 0), kWhat);
  }
}

}  // namespace brine::data::hdf5
