// The records of a PyTorch file put together: storages, and the tensors in them.
#include "data/torch/torch_file.h"

#include <algorithm>
#include <cstring>

#include "data/io/printable.h"
#include "data/safetensors/safetensors_header.h"
#include "data/torch/state_dict.h"
#include "data/torch/zip_records.h"
#include "tensor/base/parallel.h"

namespace brine::data {
namespace {

constexpr uint64_t kMostPickle = uint64_t{64} << 20;
constexpr int64_t kElementsAtOnce = 1 << 16;

using Records = std::map<std::string, std::string_view, std::less<>>;

bool begins_with(const MappedFile& file, std::string_view start) {
  return file.size() >= start.size() && std::memcmp(file.data(), start.data(), start.size()) == 0;
}

// The pickle of PyTorch's number for its older format, in protocol 2.
constexpr std::string_view kOldFormat = "\x80\x02\x8a\x0al\xfc\x9c\x46\xf9 j\xa8P\x19.";

void check_kind(const std::string& file, const MappedFile& mapped) {
  check_format(!begins_with(mapped, kOldFormat), file,
               ": is in the format of PyTorch before 1.6; load and save it again with torch.save");
  check_format(begins_with(mapped, "PK\x03\x04"), file, ": is not a zip archive of torch.save");
}

// The folder of all records, with its '/'.
std::string root_of(const std::string& file, const Records& records) {
  constexpr std::string_view kPickle = "/data.pkl";
  std::string root;
  for (const auto& [name, bytes] : records) {
    if (!name.ends_with(kPickle) || name.find('/') != name.size() - kPickle.size()) continue;
    check_format(root.empty(), file, ": has the pickles ", shown(root), "data.pkl and ",
                 shown(name));
    root = name.substr(0, name.size() - kPickle.size() + 1);
  }
  check_format(!root.empty(), file, ": has no data.pkl");
  check_format(!records.contains(root + "constants.pkl"), file,
               ": is a TorchScript program, which Brine does not run");
  auto order = records.find(root + "byteorder");
  check_format(order == records.end() || order->second == "little", file,
               ": its byteorder is not little");
  return root;
}

uint64_t item_bytes(const std::string& dtype) { return find_safetensors_type(dtype)->bits / 8; }

// The bytes of a storage's record.
std::string_view storage_bytes(const std::string& file, const Records& records,
                               const std::string& root, const PickledStorage& storage) {
  auto record = records.find(root + "data/" + storage.key);
  check_format(record != records.end(), file, ": has no record 'data/", shown(storage.key), "'");
  uint64_t bytes = 0;
  const bool fits = !__builtin_mul_overflow(storage.elements, item_bytes(storage.dtype), &bytes);
  check_format(fits && bytes == record->second.size(), file, ": the record 'data/",
               shown(storage.key), "' has ", record->second.size(), " bytes, ", storage.elements,
               " elements of ", storage.dtype, " need ", fits ? bytes : UINT64_MAX);
  return record->second;
}

bool is_packed(const PickledTensor& t) {
  uint64_t stride = 1;
  for (size_t axis = t.shape.size(); axis-- > 0;) {
    if (t.shape[axis] != 1 && t.strides[axis] != stride) return false;
    stride *= t.shape[axis];
  }
  return true;
}

// Elements from the first to the last one, both included, in a storage of `elements`.
uint64_t span_of(const std::string& where, const PickledTensor& t, uint64_t elements) {
  const uint64_t count = count_elements(where, t.shape);
  check_format(t.offset <= elements, where, ": begins at element ", t.offset, " of ", elements);
  if (count == 0) return 0;
  check_format(count <= elements, where, ": has ", count, " elements in a storage of ", elements,
               " (expanded), which is not supported");
  uint64_t last = 0;
  for (size_t axis = 0; axis < t.shape.size(); ++axis) {
    check_format(t.shape[axis] == 1 || t.strides[axis] > 0, where,
                 ": repeats its elements (expanded), which is not supported");
    uint64_t step = 0;
    const bool fits = !__builtin_mul_overflow(t.shape[axis] - 1, t.strides[axis], &step) &&
                      !__builtin_add_overflow(last, step, &last);
    check_format(fits && last < elements - t.offset, where, ": ends beyond the ", elements,
                 " elements of its storage");
  }
  return last + 1;
}

}  // namespace

TorchFile::TorchFile(const Path& path) : WeightFile(path) {
  const std::string name = path.string();
  check_kind(name, file());
  const Records records = zip_records(path, file());
  const std::string root = root_of(name, records);
  const std::string_view pickle = records.find(root + "data.pkl")->second;
  check_format(pickle.size() <= kMostPickle, name, ": a pickle of ", pickle.size(),
               " bytes, at most ", kMostPickle, " are supported");
  StateDict dict = read_state_dict(name, pickle);
  std::vector<std::string_view> storages;
  storages.reserve(dict.storages.size());
  for (const PickledStorage& storage : dict.storages)
    storages.push_back(storage_bytes(name, records, root, storage));
  for (PickledTensor& t : dict.tensors) {
    const PickledStorage& storage = dict.storages[t.storage];
    const std::string where = join(name, ": tensor '", shown(t.name), "'");
    const uint64_t item = item_bytes(storage.dtype), span = span_of(where, t, storage.elements);
    const auto* bytes = reinterpret_cast<const unsigned char*>(storages[t.storage].data());
    if (span > 0 && !is_packed(t)) strides_[t.name] = t.strides;
    add({std::move(t.name), storage.dtype, std::move(t.shape), bytes + t.offset * item,
         span * item});
  }
  sort_entries();
}

Dtype TorchFile::dtype_of(const WeightInfo& e) const {
  const SafetensorsType* type = find_safetensors_type(e.dtype);
  check_format(type->dtype.has_value(), path().string(), ": tensor '", shown(e.name),
               "' has dtype ", e.dtype, ", which Brine cannot use");
  return *type->dtype;
}

void TorchFile::gather(const WeightInfo& e, const Tensor& to) const {
  const std::vector<uint64_t>& strides = strides_.at(e.name);
  const Dtype from = dtype_of(e);
  const size_t item = item_size(from), width = item_size(to.dtype());
  const int64_t n = int64_t(e.shape.back()), rows = to.numel() / n;
  parallel_for(rows, std::max<int64_t>(1, kElementsAtOnce / n), [&](int64_t begin, int64_t end) {
    std::vector<unsigned char> packed(size_t(n) * item);
    for (int64_t row = begin; row < end; ++row) {
      uint64_t first = 0, left = uint64_t(row);
      for (size_t axis = e.shape.size() - 1; axis-- > 0; left /= e.shape[axis])
        first += left % e.shape[axis] * strides[axis];
      const unsigned char* x = e.bytes + first * item;
      for (uint64_t i = 0; i < uint64_t(n); ++i)
        std::memcpy(&packed[i * item], x + i * strides.back() * item, item);
      convert_values(to.raw() + size_t(row * n) * width, to.dtype(), packed.data(), from, n);
    }
  });
}

}  // namespace brine::data
