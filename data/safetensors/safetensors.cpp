// safetensors files. Layout: header size (u64, little endian), JSON header, then the tensors
// without gaps.
#include "data/safetensors/safetensors.h"

#include <algorithm>
#include <set>

#include "data/io/utf8.h"
#include "data/safetensors/safetensors_header.h"

namespace brine::data {
namespace {

// The number of bytes of a dtype and shape.
uint64_t wanted_bytes(const std::string& where, const SafetensorsRecord& record) {
  const SafetensorsType* type = find_safetensors_type(record.dtype);
  check_format(type != nullptr, where, ": unknown dtype '", shown(record.dtype), "'");
  uint64_t bits = 0;
  bool overflow = __builtin_mul_overflow(count_elements(where, record.shape), type->bits, &bits);
  check_format(!overflow, where, ": the number of bytes overflows");
  check_format(bits % 8 == 0, where, ": ", record.dtype, " does not fill whole bytes");
  return bits / 8;
}

// Checks that the records, in order of their data, fill [0, data_bytes) without hole or overlap.
void check_layout(const std::string& file, std::vector<SafetensorsRecord>& records,
                  uint64_t data_bytes) {
  auto by_offset = [](const SafetensorsRecord& a, const SafetensorsRecord& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  };
  std::sort(records.begin(), records.end(), by_offset);
  uint64_t previous_end = 0;
  for (const SafetensorsRecord& record : records) {
    std::string where = file + ": tensor '" + shown(record.name) + "'";
    check_format(record.begin <= record.end && record.end <= data_bytes, where, ": data_offsets [",
                 record.begin, ", ", record.end, "] are outside the ", data_bytes,
                 " bytes of data");
    check_format(record.begin == previous_end, where, ": begins at ", record.begin,
                 record.begin < previous_end ? ", which overlaps" : ", which leaves a hole after",
                 " the data before, ending at ", previous_end);
    uint64_t wanted = wanted_bytes(where, record);
    check_format(record.end - record.begin == wanted, where, ": has ", record.end - record.begin,
                 " bytes, its dtype and shape need ", wanted);
    previous_end = record.end;
  }
  check_format(previous_end == data_bytes, file, ": ", data_bytes - previous_end,
               " bytes after the last tensor");
}

}  // namespace

Safetensors::Safetensors(const Path& path) : WeightFile(path) {
  const std::string name = path.string();
  const MappedFile& mapped = file();
  check_format(mapped.size() >= 8, name, ": ", mapped.size(),
               " bytes are too few for a safetensors file (truncated?)");
  const auto header_bytes = number_from<uint64_t>(mapped.data());
  check_format(header_bytes <= kMaxSafetensorsHeader, name, ": header of ", header_bytes,
               " bytes, at most ", kMaxSafetensorsHeader, " are allowed (not a safetensors file?)");
  check_format(header_bytes + 8 <= mapped.size(), name, ": header of ", header_bytes,
               " bytes in a file of ", mapped.size(), " (truncated?)");
  const char* text = reinterpret_cast<const char*>(mapped.data()) + 8;
  SafetensorsHeader header = parse_safetensors_header(name, {text, size_t(header_bytes)});
  check_layout(name, header.records, mapped.size() - 8 - header_bytes);

  metadata_ = std::move(header.metadata);
  const unsigned char* data = mapped.data() + 8 + header_bytes;
  for (SafetensorsRecord& r : header.records) {
    add({std::move(r.name), std::move(r.dtype), std::move(r.shape), data + r.begin,
         r.end - r.begin});
  }
  sort_entries();
}

Dtype Safetensors::dtype_of(const SafetensorsEntry& e) const {
  return safetensors_dtype(path().string(), e.name, e.dtype);
}

void write_safetensors(const ByteSink& sink, const std::vector<NamedTensor>& tensors,
                       const StringMap& metadata) {
  std::vector<const NamedTensor*> order;
  std::set<std::string_view> names = {"__metadata__"};
  for (const NamedTensor& item : tensors) {
    check(item.tensor.defined(), "safetensors: tensor '", shown(item.name), "' is undefined");
    check(names.insert(item.name).second, "safetensors: the name '", shown(item.name),
          "' is reserved or given twice");
    order.push_back(&item);
  }
  auto rank = [](const NamedTensor* item) { return &safetensors_type(item->tensor.dtype()); };
  std::sort(order.begin(), order.end(), [&](const NamedTensor* a, const NamedTensor* b) {
    return rank(a) != rank(b) ? rank(a) > rank(b) : a->name < b->name;
  });

  SafetensorsHeader header{metadata, {}};
  uint64_t end = 0;
  for (const NamedTensor* item : order) {
    const Tensor& t = item->tensor;
    uint64_t begin = end;
    end += uint64_t(t.numel()) * item_size(t.dtype());
    header.records.push_back(
        {item->name, rank(item)->name, {t.shape().begin(), t.shape().end()}, begin, end});
  }
  std::string text = format_safetensors_header("safetensors", header);
  uint64_t header_bytes = text.size();
  sink({reinterpret_cast<const char*>(&header_bytes), 8});
  sink(text);
  for (const NamedTensor* item : order) {
    Tensor packed = item->tensor.detach().contiguous();
    size_t bytes = size_t(packed.numel()) * item_size(packed.dtype());
    if (bytes > 0) sink({reinterpret_cast<const char*>(packed.raw()), bytes});
  }
}

void save_safetensors(const Path& path, const std::vector<NamedTensor>& tensors,
                      const StringMap& metadata) {
  AtomicFile file(path);
  write_safetensors([&](std::string_view bytes) { file.write(bytes); }, tensors, metadata);
  file.commit();
}

}  // namespace brine::data
