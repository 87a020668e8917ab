// Reading tensors from a mapped file: in place, or copied and converted by several threads.
#include "data/weights/weight_file.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <type_traits>

#include "data/io/utf8.h"
#include "tensor/base/parallel.h"

namespace brine::data {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they are");

constexpr int64_t kWeightPiece = 1 << 18;        // elements that a thread reads at once
constexpr int64_t kWeightBlock = 1 << 23;        // elements between two hints to the system
constexpr uint64_t kAhead = uint64_t{64} << 20;  // bytes that are prefetched from the disk

}  // namespace

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

void convert_values(unsigned char* y, Dtype to, const unsigned char* x, Dtype from, int64_t n) {
  if (from == to) {
    if (n > 0) std::memcpy(y, x, size_t(n) * item_size(to));
    return;
  }
  dispatch_any(from, [&]<class X>() {
    dispatch_any(to, [&]<class Y>() {
      if constexpr (std::is_integral_v<X> || std::is_integral_v<Y>) {
        return;  // was refused earlier
      } else {
        using Middle = std::conditional_t<std::is_same_v<X, double>, double, float>;
        Y* out = reinterpret_cast<Y*>(y);
        for (int64_t i = 0; i < n; ++i)
          out[i] = Y(Middle(number_from<X>(x + size_t(i) * sizeof(X))));
      }
    });
  });
}

WeightFile::WeightFile(const Path& path) : path_(path), file_(std::make_shared<MappedFile>(path)) {}

void WeightFile::sort_entries() { std::ranges::sort(entries_, {}, &WeightInfo::name); }

const WeightInfo* WeightFile::find(std::string_view name) const {
  const auto at = std::ranges::lower_bound(entries_, name, {}, &WeightInfo::name);
  return at != entries_.end() && at->name == name ? &*at : nullptr;
}

const WeightInfo& WeightFile::entry(std::string_view name) const {
  const WeightInfo* found = find(name);
  check_format(found != nullptr, path_.string(), ": has no tensor '", shown(name), "'");
  return *found;
}

Shape WeightFile::shape_of(const WeightInfo& e) const {
  check_format(e.shape.size() <= size_t(Shape::kMaxRank), path_.string(), ": tensor '",
               shown(e.name), "' has ", e.shape.size(), " axes, at most ", Shape::kMaxRank,
               " are supported");
  Shape shape;
  for (uint64_t size : e.shape) shape.push_back(int64_t(size));
  return shape;
}

Tensor WeightFile::tensor(std::string_view name) const {
  const WeightInfo& e = entry(name);
  Tensor tensor = Tensor::empty(shape_of(e), dtype_of(e));
  if (!in_order(e)) {
    gather(e, tensor);
  } else if (e.size > 0) {
    std::memcpy(tensor.raw(), e.bytes, e.size);
  }
  return tensor;
}

Tensor WeightFile::mapped(const WeightInfo& e) const {
  const Dtype dtype = dtype_of(e);
  const Shape shape = shape_of(e);
  const bool aligned = reinterpret_cast<uintptr_t>(e.bytes) % item_size(dtype) == 0;
  unsigned char* base = aligned && in_order(e) ? file_->writable() : nullptr;
  if (!base) return tensor(e.name);
  mapped_.insert(e.bytes);
  return Tensor::from_memory(base + (e.bytes - file_->data()), shape, dtype, file_);
}

void WeightFile::read(const WeightInfo& e, const Tensor& to) const {
  Dtype from = dtype_of(e);
  check(shape_of(e) == to.shape(), path_.string(), ": tensor '", shown(e.name), "' is ",
        shape_of(e), ", wanted ", to.shape());
  check(to.is_contiguous() && (from == to.dtype() || (is_float(from) && is_float(to.dtype()))),
        path_.string(), ": tensor '", shown(e.name), "' is ", from, ", wanted ", to.dtype());
  if (in_order(e)) {
    copy_in_order(e, from, to);
  } else {
    file_->expect(uint64_t(e.bytes - file_->data()), e.size + kAhead);
    gather(e, to);
    forget(e);
  }
}

void WeightFile::copy_in_order(const WeightInfo& e, Dtype from, const Tensor& to) const {
  const size_t narrow = item_size(from), wide = item_size(to.dtype());
  const uint64_t at = uint64_t(e.bytes - file_->data());
  for (int64_t first = 0; first < to.numel(); first += kWeightBlock) {
    const int64_t count = std::min(kWeightBlock, to.numel() - first);
    const uint64_t here = at + uint64_t(first) * narrow, bytes = uint64_t(count) * narrow;
    // The following bytes, of this tensor or the next, are prefetched while these are converted.
    file_->expect(here, bytes + kAhead);
    parallel_for(count, kWeightPiece, [&](int64_t begin, int64_t end) {
      convert_values(to.raw() + size_t(first + begin) * wide, to.dtype(),
                     file_->data() + here + size_t(begin) * narrow, from, end - begin);
    });
    if (!mapped_.contains(e.bytes)) file_->forget(here, bytes);
  }
}

void WeightFile::forget(const WeightInfo& e) const {
  if (!mapped_.contains(e.bytes)) file_->forget(uint64_t(e.bytes - file_->data()), e.size);
}

void WeightFile::gather(const WeightInfo& e, const Tensor&) const {
  throw Error(join(path_.string(), ": tensor '", shown(e.name), "' is not stored row by row"));
}

}  // namespace brine::data
