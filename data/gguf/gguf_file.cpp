// The header of a GGUF file, its types and the values of quantised blocks. Layout: magic, version,
// counts, metadata, descriptions of tensors, padding, data.
#include "data/gguf/gguf_file.h"

#include <algorithm>
#include <bit>
#include <map>
#include <set>

#include "data/io/utf8.h"
#include "data/weights/weight_file.h"

namespace brine::data {

namespace {

// Values of ggml's quantised blocks (docs/gguf.md and the descriptions of its quantisations).
// x has any alignment; `blocks` blocks of 32 values, or of 256 for the types named _k, are written
// to y. d and m are f16. Every product is exact in f32 but the last one of q6_k, so that all
// compilers and instruction sets give the same bits.

float half_at(const unsigned char* x) { return float(number_from<f16>(x)); }

int low(unsigned char byte) { return byte & 15; }
int high(unsigned char byte) { return byte >> 4; }

// Scale and minimum of group j of 8, each of 6 bits, from 12 bytes: the first four scales and
// minima are the low 6 bits of bytes 0-3 and 4-7; the others have their low halves in bytes 8-11
// and their upper two bits above those of the first ones.
struct ScaleMinimum {
  int scale, minimum;
};
ScaleMinimum six_bits(const unsigned char* s, int j) {
  if (j < 4) return {s[j] & 63, s[j + 4] & 63};
  return {low(s[j + 4]) | (s[j - 4] >> 6) << 4, high(s[j + 4]) | (s[j] >> 6) << 4};
}

// What q4_k and q5_k share: `fifth` has the fifth bit of value i of group j at bit j of byte i,
// null if there is none.
void dequantise_groups(const unsigned char* x, const unsigned char* fifth, const unsigned char* q,
                       float* y) {
  const float d = half_at(x), m = half_at(x + 2);
  for (int j = 0; j < 8; ++j) {
    const ScaleMinimum group = six_bits(x + 4, j);
    const float scale = d * float(group.scale), minimum = m * float(group.minimum);
    const unsigned char* four = q + j / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      int value = j % 2 ? high(four[i]) : low(four[i]);
      if (fifth) value |= (fifth[i] >> j & 1) << 4;
      y[32 * j + i] = scale * float(value) - minimum;
    }
  }
}

// 32 values share a scale d; 4 bits a value, the first 16 values in the low halves of 16 bytes, and
// with `five` a fifth bit of each value in 4 bytes before these: d (q - 8), with five bits
// d (q - 16), or with a minimum m after d, d q + m.
template <bool five, bool minimum>
void dequantise_32(const unsigned char* x, int64_t blocks, float* y) {
  constexpr int kFifth = minimum ? 4 : 2, kFour = kFifth + (five ? 4 : 0);
  for (; blocks > 0; --blocks, x += kFour + 16, y += 32) {
    const float d = half_at(x), m = minimum ? half_at(x + 2) : 0;
    const uint32_t fifth = five ? number_from<uint32_t>(x + kFifth) : 0;
    auto value = [&](int four, int i) {
      const int q = four | int(fifth >> i & 1) << 4;
      return minimum ? d * float(q) + m : d * float(q - (five ? 16 : 8));
    };
    for (int i = 0; i < 16; ++i) {
      y[i] = value(low(x[kFour + i]), i);
      y[16 + i] = value(high(x[kFour + i]), 16 + i);
    }
  }
}

// d q, q signed.
void dequantise_q8_0(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 34, y += 32) {
    const float d = half_at(x);
    for (int i = 0; i < 32; ++i) y[i] = d * float(std::bit_cast<int8_t>(x[2 + i]));
  }
}

// 8 groups of 32 values, each with a scale s and a minimum t of 6 bits: d s q - m t.
void dequantise_q4_k(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 144, y += 256) dequantise_groups(x, nullptr, x + 16, y);
}

void dequantise_q5_k(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 176, y += 256) dequantise_groups(x, x + 16, x + 48, y);
}

// Values in two halves of 128: four runs of 32, whose low 4 bits are the low halves of 64 bytes and
// then their high halves, and whose upper 2 bits are in 32 bytes, two bits a run.
// 16 groups of 16 values, each with a signed scale s of 8 bits: d s (q - 32).
void dequantise_q6_k(const unsigned char* x, int64_t blocks, float* y) {
  for (; blocks > 0; --blocks, x += 210) {
    const float d = half_at(x + 208);
    for (int half = 0; half < 2; ++half) {
      const unsigned char *four = x + 64 * half, *two = x + 128 + 32 * half;
      for (int i = 0; i < 128; ++i) {
        const unsigned char byte = four[i % 64];
        const int bits = (i < 64 ? low(byte) : high(byte)) | (two[i % 32] >> (i / 32 * 2) & 3) << 4;
        const auto scale = std::bit_cast<int8_t>(x[192 + 8 * half + i / 16]);
        *y++ = d * float(scale) * float(bits - 32);
      }
    }
  }
}

constexpr Dtype kValues = Dtype::f32;

const GgufType kTypes[] = {
    {0, "F32", 1, 4, Dtype::f32, nullptr},
    {1, "F16", 1, 2, Dtype::f16, nullptr},
    {30, "BF16", 1, 2, Dtype::bf16, nullptr},
    {2, "Q4_0", 32, 18, kValues, dequantise_32<false, false>},
    {3, "Q4_1", 32, 20, kValues, dequantise_32<false, true>},
    {6, "Q5_0", 32, 22, kValues, dequantise_32<true, false>},
    {7, "Q5_1", 32, 24, kValues, dequantise_32<true, true>},
    {8, "Q8_0", 32, 34, kValues, dequantise_q8_0},
    {12, "Q4_K", 256, 144, kValues, dequantise_q4_k},
    {13, "Q5_K", 256, 176, kValues, dequantise_q5_k},
    {14, "Q6_K", 256, 210, kValues, dequantise_q6_k},
};

// Types that are not read, for messages.
const std::map<uint32_t, const char*>& other_types() {
  static const std::map<uint32_t, const char*> all = {
      {9, "Q8_1"},    {10, "Q2_K"},    {11, "Q3_K"},  {15, "Q8_K"},   {16, "IQ2_XXS"},
      {17, "IQ2_XS"}, {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"},
      {22, "IQ2_S"},  {23, "IQ4_XS"},  {24, "I8"},    {25, "I16"},    {26, "I32"},
      {27, "I64"},    {28, "F64"},     {29, "IQ1_M"}, {34, "TQ1_0"},  {35, "TQ2_0"},
      {39, "MXFP4"},
  };
  return all;
}

}  // namespace

const GgufType* find_gguf_type(uint32_t number) {
  for (const GgufType& type : kTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

void read_gguf_row(const GgufType& type, const unsigned char* x, int64_t n, float* y) {
  if (type.dequantise) {
    type.dequantise(x, n / type.values, y);
  } else {
    convert_values(reinterpret_cast<unsigned char*>(y), Dtype::f32, x, type.dtype, n);
  }
}

namespace {

// The name of a type, also if Brine does not read it; "type 77" if it is unknown.
std::string name_of_type(uint32_t number) {
  if (const GgufType* type = find_gguf_type(number)) return type->name;
  auto other = other_types().find(number);
  return other != other_types().end() ? other->second : "type " + std::to_string(number);
}

constexpr uint32_t kMagic = 0x46554747;  // "GGUF", little endian
constexpr uint64_t kMaxKeys = 1 << 16, kMaxTensors = 1 << 16;
constexpr uint64_t kLongestKey = 65535, kLongestName = 64;  // as in the specification
constexpr uint32_t kMaxAxes = 4;
constexpr uint64_t kDefaultAlignment = 32, kMaxAlignment = 1 << 20;

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
    return number_from<T>(take(sizeof(T)).data());
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
  check_format(axes >= 1 && axes <= kMaxAxes, where, ": has ", axes, " axes, wanted 1 to ",
               kMaxAxes);
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
  check_format(t.type != nullptr, where, ": has the type ", name_of_type(type),
               ", which Brine cannot read; it reads ", names_of(kTypes));
  t.begin = in.number<uint64_t>();
  t.size = bytes_of(where, t);
  return t;
}

uint64_t aligned(uint64_t x, uint64_t alignment) {
  return (x + alignment - 1) / alignment * alignment;
}

// Every tensor begins at the first aligned byte after the one before, and the last ends in the
// file.
void check_offsets(const std::string& file, const std::vector<GgufTensor>& tensors,
                   uint64_t alignment, uint64_t data_bytes) {
  std::vector<const GgufTensor*> order;
  order.reserve(tensors.size());
  for (const GgufTensor& t : tensors) order.push_back(&t);
  std::ranges::sort(order, {}, &GgufTensor::begin);
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
      *given > 0 && uint64_t(*given) <= kMaxAlignment && std::has_single_bit(uint64_t(*given));
  check_format(good, metadata.file(), ": general.alignment is ", *given,
               ", wanted a power of two up to ", kMaxAlignment);
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
  return read_start(path, 4) == "GGUF";
}

GgufHeader::GgufHeader(const Path& path, const MappedFile& mapped) : metadata(path.string()) {
  const std::string& file = metadata.file();
  const std::string_view all(reinterpret_cast<const char*>(mapped.data()), mapped.size());
  Cursor in(file, all);
  version = read_version(in, file);
  const uint64_t count = in.count(8 + 4 + 8 + 4 + 8, "tensors");
  const uint64_t keys = in.count(8 + 4 + 1, "keys");
  check_count(file, count, kMaxTensors, "tensors");
  check_count(file, keys, kMaxKeys, "keys");
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
  check_offsets(file, tensors, alignment, data <= mapped.size() ? mapped.size() - data : 0);
  for (GgufTensor& t : tensors) t.begin += data;
}

}  // namespace brine::data
