// Decoding of HDF5's filters: shuffle, deflate, fletcher32.
#include "data/hdf5/hdf5_storage.h"

#include <zlib.h>

#include <cstring>

namespace brine::data::hdf5 {
#if !BRINE_TRUST_HDF5
namespace {

constexpr size_t kChecksumBytes = 4;

// Fletcher's checksum of 16-bit words, high byte first, both sums modulo 65535. The file's author
// folds carries, which leaves 65535 where a remainder would be 0, unless all words are zero.
uint32_t fletcher32(const char* bytes, size_t size) {
  auto* at = reinterpret_cast<const unsigned char*>(bytes);
  uint64_t sum = 0, sum_of_sums = 0;
  bool any = false;
  auto add = [&](uint32_t word) {
    any = any || word != 0;
    sum = (sum + word) % 65535;
    sum_of_sums = (sum_of_sums + sum) % 65535;
  };
  for (size_t i = 0; i + 1 < size; i += 2) add(uint32_t(at[i]) << 8 | at[i + 1]);
  if (size % 2) add(uint32_t(at[size - 1]) << 8);
  auto folded = [&](uint64_t s) { return uint32_t(any && s == 0 ? 65535 : s); };
  return folded(sum_of_sums) << 16 | folded(sum);
}

void undo_fletcher32(const std::string& where, std::vector<char>& values) {
  check_format(values.size() >= kChecksumBytes, where, ": a chunk is shorter than its checksum");
  size_t size = values.size() - kChecksumBytes;
  uint32_t stored = 0;
  for (size_t i = 0; i < kChecksumBytes; ++i)
    stored |= uint32_t(static_cast<unsigned char>(values[size + i])) << (8 * i);
  check_format(fletcher32(values.data(), size) == stored, where,
               ": a chunk does not match its checksum");
  values.resize(size);
}

// Byte b of item i is at b * items + i; a remainder smaller than an item is not moved.
void undo_shuffle(std::vector<char>& values, size_t item) {
  size_t items = values.size() / item;
  if (item < 2 || items < 2) return;
  std::vector<char> together(values.size());
  for (size_t b = 0; b < item; ++b) {
    const char* from = values.data() + b * items;
    for (size_t i = 0; i < items; ++i) together[i * item + b] = from[i];
  }
  std::memcpy(together.data() + items * item, values.data() + items * item,
              values.size() - items * item);
  values = std::move(together);
}

std::vector<char> inflate(const std::string& where, const std::vector<char>& packed,
                          uint64_t bytes) {
  std::vector<char> values(bytes);
  uLongf size = bytes;
  int result = uncompress(reinterpret_cast<Bytef*>(values.data()), &size,
                          reinterpret_cast<const Bytef*>(packed.data()), packed.size());
  check_format(result == Z_OK && size == bytes, where, ": a chunk does not unpack to its ", bytes,
               " bytes");
  return values;
}

}  // namespace
#endif

std::vector<Filter> read_filters(const std::string& where, hid_t properties) {
  int count = H5Pget_nfilters(properties);
  must(count >= 0, where, "cannot read the dataset's filters");
  std::vector<Filter> filters;
  int deflates = 0;
  for (int i = 0; i < count; ++i) {
    unsigned flags = 0, config = 0, values[1] = {1};
    size_t have = 1;
    Filter f;
    f.kind = H5Pget_filter2(properties, unsigned(i), &flags, &have, values, 0, nullptr, &config);
    check_format(f.kind == H5Z_FILTER_SHUFFLE || f.kind == H5Z_FILTER_DEFLATE ||
                     f.kind == H5Z_FILTER_FLETCHER32,
                 where, ": uses filter ", f.kind,
                 "; only shuffle, deflate and fletcher32 are read");
    if (f.kind == H5Z_FILTER_SHUFFLE) {
      check_format(have >= 1 && values[0] >= 1, where, ": its shuffle filter does not name a size");
      f.item = values[0];
    }
    deflates += f.kind == H5Z_FILTER_DEFLATE;
    filters.push_back(f);
  }
  check_format(deflates <= 1, where, ": is deflated ", deflates, " times, which is refused");
  return filters;
}

#if !BRINE_TRUST_HDF5
std::vector<char> undo_filters(const std::string& where, const std::vector<Filter>& filters,
                               unsigned skipped, std::vector<char> stored, uint64_t bytes) {
  auto applied = [&](size_t i) { return i >= 32 || (skipped >> i & 1) == 0; };
  std::vector<uint64_t> before(filters.size());  // number of input bytes of filter i
  uint64_t size = bytes;
  for (size_t i = 0; i < filters.size(); ++i) {
    before[i] = size;
    if (applied(i) && filters[i].kind == H5Z_FILTER_FLETCHER32) size += kChecksumBytes;
  }
  for (size_t i = filters.size(); i-- > 0;) {
    if (!applied(i)) continue;
    if (filters[i].kind == H5Z_FILTER_FLETCHER32) {
      undo_fletcher32(where, stored);
    } else if (filters[i].kind == H5Z_FILTER_SHUFFLE) {
      undo_shuffle(stored, filters[i].item);
    } else {
      stored = inflate(where, stored, before[i]);
    }
  }
  check_format(stored.size() == bytes, where, ": a chunk has ", stored.size(), " bytes, wanted ",
               bytes);
  return stored;
}

#endif

}  // namespace brine::data::hdf5
