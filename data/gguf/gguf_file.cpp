// The header of a GGUF file. Layout: magic, version, counts, metadata, descriptions of tensors,
// padding, data.
#include "data/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <fstream>
#include <set>

#include "data/io/printable.h"
#include "data/weights/weight_file.h"

namespace brine::data {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF", little endian
constexpr uint64_t kMostKeys = 1 << 16, kMostTensors = 1 << 16;
constexpr uint64_t kLongestKey = 65535, kLongestName = 64;  // as in the specification
constexpr uint32_t kMostAxes = 4;
constexpr uint64_t kDefaultAlignment = 32, kMostAlignment = 1 << 20;

// Reads from the mapped bytes one after another; running out of them is an error.
class Cursor {
 public:
  Cursor(const std::string& file, std::string_view bytes) : file_(file), bytes_(bytes) {}

  uint64_t at() const { return at_; }
  uint64_t left() const { return bytes_.size() - at_; }

  std::string_view take(uint64_t size) {
    check_format(size <= left(), file_, ": ", size, " bytes at byte ", at_, " of a file of ",
                 bytes_.size(), " (truncated?)");
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  template <class T>
  T number() {
    T out;
    std::memcpy(&out, take(sizeof(T)).data(), sizeof(T));
    return out;
  }
  std::string_view string() { return take(number<uint64_t>()); }
  // A count of things of at least `bytes` bytes each.
  uint64_t count(uint64_t bytes, const char* what) {
    const uint64_t n = number<uint64_t>();
    check_format(n <= left() / bytes, file_, ": ", n, " ", what, " do not fit into the ", left(),
                 " bytes after byte ", at_, " (truncated?)");
    return n;
  }

 private:
  const std::string& file_;
  std::string_view bytes_;
  uint64_t at_ = 0;
};

GgufValueType value_type(Cursor& in, const std::string& where) {
  const auto type = in.number<uint32_t>();
  check_format(type <= uint32_t(GgufValueType::f64), where, ": unknown type ", type);
  return GgufValueType(type);
}

GgufValue read_value(Cursor& in, const std::string& where, std::string_view all) {
  GgufValue value{.type = value_type(in, where), .bytes = {}};
  if (value.type == GgufValueType::array) {
    value.is_array = true;
    value.type = value_type(in, where);
    check_format(value.type != GgufValueType::array, where, ": an array of arrays");
    const uint64_t size = gguf_value_size(value.type);
    value.count = in.count(size ? size : 8, "values of an array");
  }
  const uint64_t begin = in.at(), size = gguf_value_size(value.type);
  if (size) {
    in.take(value.count * size);
  } else {
    for (uint64_t i = 0; i < value.count; ++i) in.string();
  }
  value.bytes = all.substr(begin, in.at() - begin);
  return value;
}

void read_metadata(Cursor& in, uint64_t count, std::string_view all, GgufMetadata& metadata) {
  const std::string& file = metadata.file();
  for (uint64_t i = 0; i < count; ++i) {
    const std::string_view key = in.string();
    check_format(!key.empty() && key.size() <= kLongestKey, file, ": a key of ", key.size(),
                 " bytes, wanted 1 to ", kLongestKey);
    metadata.add(key,
                 read_value(in, join(file, ": the key '", shown(key.substr(0, 80)), "'"), all));
  }
}

// Sizes in the order of Brine: the file begins with that of a row.
std::vector<uint64_t> read_shape(Cursor& in, const std::string& where) {
  const auto axes = in.number<uint32_t>();
  check_format(axes >= 1 && axes <= kMostAxes, where, ": has ", axes, " axes, wanted 1 to ",
               kMostAxes);
  std::vector<uint64_t> shape(axes);
  for (uint32_t axis = axes; axis-- > 0;) {
    shape[axis] = in.number<uint64_t>();
    check_format(shape[axis] > 0, where, ": has an axis of size 0");
  }
  return shape;
}

uint64_t bytes_of(const std::string& where, const GgufTensor& t) {
  const uint64_t elements = count_elements(where, t.shape), row = t.shape.back();
  check_format(row % t.type->values == 0, where, ": rows of ", row, " values are not whole blocks",
               " of ", t.type->values, " (", t.type->name, ")");
  uint64_t bytes = 0;
  const bool fits = !__builtin_mul_overflow(elements / t.type->values, t.type->bytes, &bytes);
  check_format(fits && bytes <= uint64_t(INT64_MAX), where, ": the number of bytes overflows");
  return bytes;
}

// `begin` counts from the start of the data until these are known.
GgufTensor read_tensor(Cursor& in, const std::string& file) {
  GgufTensor t{};
  const std::string_view name = in.string();
  check_format(!name.empty() && name.size() <= kLongestName, file, ": a tensor's name has ",
               name.size(), " bytes, wanted 1 to ", kLongestName);
  t.name = name;
  const std::string where = join(file, ": tensor '", shown(name), "'");
  t.shape = read_shape(in, where);
  const auto type = in.number<uint32_t>();
  t.type = find_gguf_type(type);
  check_format(t.type != nullptr, where, ": has the type ", gguf_type_name(type),
               ", which Brine cannot read; it reads ", known_gguf_types());
  t.begin = in.number<uint64_t>();
  t.size = bytes_of(where, t);
  return t;
}

uint64_t aligned(uint64_t x, uint64_t alignment) {
  return (x + alignment - 1) / alignment * alignment;
}

// Every tensor begins at the first aligned byte after the one before, and the last ends in the
// file.
void check_places(const std::string& file, const std::vector<GgufTensor>& tensors,
                  uint64_t alignment, uint64_t data_bytes) {
  std::vector<const GgufTensor*> order;
  order.reserve(tensors.size());
  for (const GgufTensor& t : tensors) order.push_back(&t);
  std::sort(order.begin(), order.end(),
            [](const GgufTensor* a, const GgufTensor* b) { return a->begin < b->begin; });
  uint64_t end = 0;
  for (const GgufTensor* t : order) {
    const std::string where = join(file, ": tensor '", shown(t->name), "'");
    check_format(t->begin % alignment == 0, where, ": begins at ", t->begin,
                 ", not a multiple of the alignment ", alignment);
    check_format(t->begin == aligned(end, alignment), where, ": begins at ", t->begin,
                 t->begin < end ? ", which overlaps" : ", which leaves a hole after",
                 " the data before, ending at ", end);
    check_format(t->begin <= data_bytes && t->size <= data_bytes - t->begin, where, ": ", t->size,
                 " bytes at ", t->begin, " are outside the ", data_bytes,
                 " bytes of data (truncated?)");
    end = t->begin + t->size;
  }
  check_format(data_bytes - end < alignment, file, ": ", data_bytes - end,
               " bytes after the last tensor");
}

uint64_t alignment_of(const GgufMetadata& metadata) {
  const auto given = metadata.integer("general.alignment");
  if (!given) return kDefaultAlignment;
  const bool good =
      *given > 0 && uint64_t(*given) <= kMostAlignment && std::has_single_bit(uint64_t(*given));
  check_format(good, metadata.file(), ": general.alignment is ", *given,
               ", wanted a power of two up to ", kMostAlignment);
  return uint64_t(*given);
}

uint32_t read_version(Cursor& in, const std::string& file) {
  check_format(in.number<uint32_t>() == kMagic, file, ": does not begin like a GGUF file");
  const auto version = in.number<uint32_t>();
  check_format(version == 0 || version % 65536 != 0, file,
               ": is a big-endian GGUF file, which Brine does not read");
  check_format(version == 2 || version == 3, file, ": GGUF version ", version,
               " is not supported, only 2 and 3");
  return version;
}

void check_count(const std::string& file, uint64_t count, uint64_t limit, const char* what) {
  check_format(count <= limit, file, ": has ", count, " ", what, ", at most ", limit,
               " are supported");
}

}  // namespace

bool is_gguf(const Path& path) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) return false;
  std::ifstream in(path, std::ios::binary);
  char head[4] = {};
  return in.read(head, 4) && std::memcmp(head, &kMagic, 4) == 0;
}

GgufHeader::GgufHeader(const Path& path, const MappedFile& mapped) : metadata(path.string()) {
  const std::string& file = metadata.file();
  const std::string_view all(reinterpret_cast<const char*>(mapped.data()), mapped.size());
  Cursor in(file, all);
  version = read_version(in, file);
  const uint64_t count = in.count(8 + 4 + 8 + 4 + 8, "tensors");
  const uint64_t keys = in.count(8 + 4 + 1, "keys");
  check_count(file, count, kMostTensors, "tensors");
  check_count(file, keys, kMostKeys, "keys");
  read_metadata(in, keys, all, metadata);
  const uint64_t alignment = alignment_of(metadata);
  std::set<std::string_view> names;
  tensors.reserve(count);
  for (uint64_t i = 0; i < count; ++i) {
    tensors.push_back(read_tensor(in, file));
    check_format(names.insert(tensors.back().name).second, file, ": tensor '",
                 shown(tensors.back().name), "' occurs twice");
  }
  const uint64_t data = aligned(in.at(), alignment);
  check_format(count == 0 || data <= mapped.size(), file, ": ends before its tensors (truncated?)");
  check_places(file, tensors, alignment, data <= mapped.size() ? mapped.size() - data : 0);
  for (GgufTensor& t : tensors) t.begin += data;
}

}  // namespace brine::data
