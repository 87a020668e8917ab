// Initialisation of the HDF5 library, its types, its errors.
#include "data/hdf5/hdf5_internal.h"

#include <algorithm>
#include <bit>

namespace brine::data::hdf5 {
namespace {

std::recursive_mutex& library_mutex() {
  static std::recursive_mutex mutex;
  return mutex;
}

constexpr bool kLittle = std::endian::native == std::endian::little;

// A float type of 16 bits; the fields are moved before the size is reduced.
hid_t float16_type(size_t exponent_bits, size_t bias, bool swapped) {
  bool little = kLittle != swapped;
  hid_t t = H5Tcopy(little ? H5T_IEEE_F32LE : H5T_IEEE_F32BE);
  size_t mantissa_bits = 15 - exponent_bits;
  bool ok = t >= 0 && H5Tset_fields(t, 15, mantissa_bits, exponent_bits, 0, mantissa_bits) >= 0 &&
            H5Tset_size(t, 2) >= 0 && H5Tset_ebias(t, bias) >= 0;
  check(ok, "HDF5: cannot make a 16-bit float type");
  return t;
}

struct Types {
  std::vector<StoredType> ours;

  Types() {
    for (bool swapped : {false, true}) {
      bool little = kLittle != swapped;
      auto add = [&](Dtype dtype, hid_t le, hid_t be) {
        ours.push_back({dtype, swapped, little ? le : be});
      };
      add(Dtype::f32, H5T_IEEE_F32LE, H5T_IEEE_F32BE);
      add(Dtype::f64, H5T_IEEE_F64LE, H5T_IEEE_F64BE);
      add(Dtype::i32, H5T_STD_I32LE, H5T_STD_I32BE);
      add(Dtype::i64, H5T_STD_I64LE, H5T_STD_I64BE);
      add(Dtype::u8, H5T_STD_U8LE, H5T_STD_U8BE);
      ours.push_back({Dtype::f16, swapped, float16_type(5, 15, swapped)});
      ours.push_back({Dtype::bf16, swapped, float16_type(8, 127, swapped)});
    }
  }
};

const Types& types() {
  static const Types* all = new Types;  // never freed: the library is never closed
  return *all;
}

// Keeps the first description: the innermost, which has the reason.
herr_t keep_first(unsigned, const H5E_error2_t* error, void* out) {
  auto& text = *static_cast<std::string*>(out);
  if (text.empty() && error->desc) text = error->desc;
  return 0;
}

}  // namespace

Lock::Lock() : guard_(library_mutex()) {
  static const bool started = [] {
    H5dont_atexit();
    check(H5open() >= 0, "HDF5: the library does not start");
    check(H5PLset_loading_state(0) >= 0, "HDF5: plugins cannot be switched off");
    return true;
  }();
  (void)started;
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);  // each thread has a separate error stack
}

void fail(const std::string& where, const std::string& doing) {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, &reason);
  H5Eclear2(H5E_DEFAULT);
  std::replace(reason.begin(), reason.end(), '\n', ' ');
  throw Error(where + ": " + doing + (reason.empty() ? "" : ": " + reason), ErrorKind::format);
}

std::optional<StoredType> find_type(hid_t type) {
  for (const StoredType& t : types().ours) {
    if (H5Tequal(type, t.id) > 0) return t;
  }
  return {};
}

hid_t file_type(Dtype dtype) {
  for (const StoredType& t : types().ours) {
    if (t.dtype == dtype && !t.swapped) return t.id;
  }
  throw Error(join("HDF5: no type for ", dtype));
}

void swap_bytes(void* items, size_t count, size_t size) {
  auto* at = static_cast<unsigned char*>(items);
  for (size_t i = 0; i < count; ++i, at += size) std::reverse(at, at + size);
}

std::vector<std::string> split_path(const std::string& where, const std::string& object) {
  std::vector<std::string> parts;
  size_t begin = object.starts_with('/') ? 1 : 0;
  while (begin < object.size()) {
    size_t end = std::min(object.find('/', begin), object.size());
    parts.push_back(object.substr(begin, end - begin));
    const std::string& part = parts.back();
    check_format(!part.empty() && part != "." && part != ".." && part.find('\0') == part.npos,
                 where, ": is not a name of an object");
    begin = end + 1;
  }
  return parts;
}

std::vector<hsize_t> to_hsize(const Shape& shape) {
  return std::vector<hsize_t>(shape.begin(), shape.end());
}

Shape shape_of_rows(const std::string& where, Shape shape, int64_t first, int64_t count) {
  if (shape.rank() == 0 && first == 0 && count == 1) return shape;
  check_format(shape.rank() > 0 && first >= 0 && count >= 0 && first <= shape[0] - count, where,
               ": rows ", first, " to ", first + count, " are outside ", shape);
  shape[0] = count;
  return shape;
}

}  // namespace brine::data::hdf5
