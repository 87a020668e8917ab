// safetensors files. Layout: header size (u64, little endian), JSON header, then the tensors
// without gaps.
#include "data/safetensors/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <type_traits>

#include "data/io/printable.h"
#include "data/safetensors/safetensors_header.h"
#include "tensor/parallel.h"

namespace brine::data {
namespace {

static_assert(std::endian::native == std::endian::little, "safetensors is copied as it lies");

// Number of elements of a shape, or an error: the product without the zeros must fit in 63 bits, so
// that strides of any part of it do too.
uint64_t count_elements(const std::string& where, const std::vector<uint64_t>& shape) {
  uint64_t product = 1;
  bool empty = false;
  for (uint64_t size : shape) {
    empty |= size == 0;
    bool fits = size == 0 || (!__builtin_mul_overflow(product, size, &product) &&
                              product <= uint64_t(INT64_MAX));
    check_format(fits, where, ": the number of elements overflows");
  }
  return empty ? 0 : product;
}

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
  auto by_place = [](const SafetensorsRecord& a, const SafetensorsRecord& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  };
  std::sort(records.begin(), records.end(), by_place);
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

constexpr int64_t kPiece = 1 << 18;              // elements that a thread reads at once
constexpr int64_t kBlock = 1 << 23;              // elements between two hints to the system
constexpr uint64_t kAhead = uint64_t{64} << 20;  // bytes that are prefetched from the disk

// n float elements of any alignment into another float type.
void convert(unsigned char* y, Dtype to, const unsigned char* x, Dtype from, int64_t n) {
  dispatch_any(from, [&]<class X>() {
    dispatch_any(to, [&]<class Y>() {
      if constexpr (std::is_integral_v<X> || std::is_integral_v<Y>) {
        return;  // was refused earlier
      } else {
        using Middle = std::conditional_t<std::is_same_v<X, double>, double, float>;
        Y* out = reinterpret_cast<Y*>(y);
        for (int64_t i = 0; i < n; ++i) {
          X value;
          std::memcpy(&value, x + size_t(i) * sizeof(X), sizeof(X));
          out[i] = Y(Middle(value));
        }
      }
    });
  });
}

}  // namespace

Safetensors::Safetensors(const Path& path)
    : path_(path), file_(std::make_shared<MappedFile>(path)) {
  const std::string file = path.string();
  check_format(file_->size() >= 8, file, ": ", file_->size(),
               " bytes are too few for a safetensors file (truncated?)");
  uint64_t header_bytes = 0;
  std::memcpy(&header_bytes, file_->data(), 8);
  check_format(header_bytes <= kMaxSafetensorsHeader, file, ": header of ", header_bytes,
               " bytes, at most ", kMaxSafetensorsHeader, " are allowed (not a safetensors file?)");
  check_format(header_bytes + 8 <= file_->size(), file, ": header of ", header_bytes,
               " bytes in a file of ", file_->size(), " (truncated?)");
  const char* text = reinterpret_cast<const char*>(file_->data()) + 8;
  SafetensorsHeader header = parse_safetensors_header(file, {text, size_t(header_bytes)});
  check_layout(file, header.records, file_->size() - 8 - header_bytes);

  metadata_ = std::move(header.metadata);
  const unsigned char* data = file_->data() + 8 + header_bytes;
  for (SafetensorsRecord& r : header.records) {
    entries_.push_back({std::move(r.name), std::move(r.dtype), std::move(r.shape), data + r.begin,
                        r.end - r.begin});
  }
  std::sort(entries_.begin(), entries_.end(),
            [](const auto& a, const auto& b) { return a.name < b.name; });
}

const SafetensorsEntry* Safetensors::find(std::string_view name) const {
  auto at = std::lower_bound(entries_.begin(), entries_.end(), name,
                             [](const auto& e, std::string_view n) { return e.name < n; });
  return at != entries_.end() && at->name == name ? &*at : nullptr;
}

const SafetensorsEntry& Safetensors::entry(std::string_view name) const {
  const SafetensorsEntry* found = find(name);
  check_format(found != nullptr, path_.string(), ": has no tensor '", shown(name), "'");
  return *found;
}

Dtype Safetensors::dtype_of(const SafetensorsEntry& e) const {
  const SafetensorsType* type = find_safetensors_type(e.dtype);
  check_format(type->dtype.has_value(), path_.string(), ": tensor '", shown(e.name), "' has dtype ",
               e.dtype, ", which Brine cannot use");
  return *type->dtype;
}

Shape Safetensors::shape_of(const SafetensorsEntry& e) const {
  check_format(e.shape.size() <= size_t(Shape::kMaxRank), path_.string(), ": tensor '",
               shown(e.name), "' has ", e.shape.size(), " axes, at most ", Shape::kMaxRank,
               " are supported");
  Shape shape;
  for (uint64_t size : e.shape) shape.push_back(int64_t(size));
  return shape;
}

Tensor Safetensors::tensor(std::string_view name) const {
  const SafetensorsEntry& e = entry(name);
  Tensor tensor = Tensor::empty(shape_of(e), dtype_of(e));
  if (e.size > 0) std::memcpy(tensor.raw(), e.bytes, e.size);
  return tensor;
}

Tensor Safetensors::mapped(const SafetensorsEntry& e) const {
  const Dtype dtype = dtype_of(e);
  const Shape shape = shape_of(e);
  const bool aligned = reinterpret_cast<uintptr_t>(e.bytes) % item_size(dtype) == 0;
  unsigned char* base = aligned ? file_->writable() : nullptr;
  if (!base) return tensor(e.name);
  mapped_.insert(e.bytes);
  return Tensor::from_memory(base + (e.bytes - file_->data()), shape, dtype, file_);
}

void Safetensors::read(const SafetensorsEntry& e, const Tensor& to) const {
  Dtype from = dtype_of(e);
  check(shape_of(e) == to.shape(), path_.string(), ": tensor '", shown(e.name), "' is ",
        shape_of(e), ", wanted ", to.shape());
  check(to.is_contiguous() && (from == to.dtype() || (is_float(from) && is_float(to.dtype()))),
        path_.string(), ": tensor '", shown(e.name), "' is ", from, ", wanted ", to.dtype());
  const size_t narrow = item_size(from), wide = item_size(to.dtype());
  const uint64_t at = uint64_t(e.bytes - file_->data());
  for (int64_t first = 0; first < to.numel(); first += kBlock) {
    const int64_t count = std::min(kBlock, to.numel() - first);
    const uint64_t here = at + uint64_t(first) * narrow, bytes = uint64_t(count) * narrow;
    // The following bytes, of this tensor or the next, are prefetched while these are converted.
    file_->expect(here, bytes + kAhead);
    parallel_for(count, kPiece, [&](int64_t begin, int64_t end) {
      const unsigned char* x = file_->data() + here + size_t(begin) * narrow;
      unsigned char* y = to.raw() + size_t(first + begin) * wide;
      if (from == to.dtype()) {
        std::memcpy(y, x, size_t(end - begin) * wide);
      } else {
        convert(y, to.dtype(), x, from, end - begin);
      }
    });
    if (!mapped_.contains(e.bytes)) file_->forget(here, bytes);
  }
}

void Safetensors::forget(const SafetensorsEntry& e) const {
  if (!mapped_.contains(e.bytes)) file_->forget(uint64_t(e.bytes - file_->data()), e.size);
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
