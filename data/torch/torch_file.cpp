// The records of a PyTorch file, a zip archive, and the tensors in their storages.
#include "data/torch/torch_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "data/io/file_io.h"
#include "data/io/utf8.h"
#include "data/safetensors/safetensors_header.h"
#include "data/torch/state_dict.h"
#include "tensor/base/parallel.h"

namespace brine::data {

namespace {

constexpr uint32_t kRecord = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr uint64_t kRecordBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56;
constexpr uint64_t kLocator64Bytes = 20, kLongestComment = 65535;
constexpr uint64_t kMaxRecords = 1 << 20;
constexpr uint32_t kIn64 = 0xffffffff;  // a field whose value is in the 64-bit part of an entry

// The whole file, read at any offset.
struct Bytes {
  const std::string& file;
  std::string_view all;

  std::string_view at(uint64_t begin, uint64_t size, const char* what) const {
    check_format(begin <= all.size() && size <= all.size() - begin, file, ": ", what, " of ", size,
                 " bytes at byte ", begin, " of a file of ", all.size(), " (truncated?)");
    return all.substr(begin, size);
  }
};

template <class T>
T field(std::string_view bytes, uint64_t at) {
  return number_from<T>(bytes.data() + at);
}

struct Directory {
  uint64_t begin, size, entries, end;  // end: where the records of the archive's end begin
};

struct Entry {
  std::string name;
  uint64_t record, size;  // where its header begins; bytes of its data
};

// The end record, whose comment reaches the end of the file.
std::optional<uint64_t> find_end(std::string_view all) {
  if (all.size() < kEndBytes) return std::nullopt;
  const uint64_t last = all.size() - kEndBytes;
  for (uint64_t comment = 0; comment <= std::min(last, kLongestComment); ++comment) {
    const std::string_view end = all.substr(last - comment, kEndBytes);
    if (field<uint32_t>(end, 0) == kEnd && field<uint16_t>(end, 20) == comment)
      return last - comment;
  }
  return std::nullopt;
}

Directory directory_64(const Bytes& in, uint64_t locator) {
  const uint64_t at = field<uint64_t>(in.all, locator + 8);
  const std::string_view end = in.at(at, kEnd64Bytes, "an end of the archive");
  check_format(field<uint32_t>(end, 0) == kEnd64, in.file, ": no end of the archive at byte ", at);
  check_format(at + kEnd64Bytes <= locator, in.file, ": overlapping ends of the archive");
  check_format(field<uint32_t>(end, 16) == 0 && field<uint32_t>(end, 20) == 0, in.file,
               ": an archive on several disks");
  return {field<uint64_t>(end, 48), field<uint64_t>(end, 40), field<uint64_t>(end, 32), at};
}

Directory find_directory(const Bytes& in) {
  const std::optional<uint64_t> end = find_end(in.all);
  check_format(end.has_value(), in.file, ": has no end of a zip archive (truncated?)");
  const bool has_64 =
      *end >= kLocator64Bytes && field<uint32_t>(in.all, *end - kLocator64Bytes) == kLocator64;
  if (has_64) return directory_64(in, *end - kLocator64Bytes);
  const std::string_view bytes = in.all.substr(*end, kEndBytes);
  check_format(field<uint16_t>(bytes, 4) == 0 && field<uint16_t>(bytes, 6) == 0, in.file,
               ": an archive on several disks");
  return {field<uint32_t>(bytes, 16), field<uint32_t>(bytes, 12), field<uint16_t>(bytes, 10), *end};
}

// Sizes and offset of an entry, from its 64-bit part where they do not fit. `fields`: size, stored
// size, offset, in the order of that part.
void read_extra(const std::string& where, std::string_view extra, uint64_t (&fields)[3]) {
  while (extra.size() >= 4) {
    const auto id = field<uint16_t>(extra, 0), size = field<uint16_t>(extra, 2);
    check_format(size <= extra.size() - 4, where, ": a damaged extra field");
    std::string_view part = extra.substr(4, size);
    extra.remove_prefix(4 + uint64_t(size));
    if (id != 1) continue;
    for (uint64_t& value : fields) {
      if (value != kIn64) continue;
      check_format(part.size() >= 8, where, ": a damaged 64-bit size");
      value = field<uint64_t>(part, 0);
      part.remove_prefix(8);
    }
    return;
  }
}

// One entry of the directory; `left` is advanced past it.
Entry read_entry(const Bytes& in, std::string_view& left) {
  check_format(left.size() >= kEntryBytes && field<uint32_t>(left, 0) == kEntry, in.file,
               ": a damaged directory of the archive");
  const uint64_t name = field<uint16_t>(left, 28), extra = field<uint16_t>(left, 30);
  const uint64_t all = kEntryBytes + name + extra + field<uint16_t>(left, 32);
  check_format(all <= left.size(), in.file, ": a damaged directory of the archive");
  Entry out{.name = std::string(left.substr(kEntryBytes, name)), .record = 0, .size = 0};
  const std::string where = join(in.file, ": record '", shown(out.name), "'");
  check_format((field<uint16_t>(left, 8) & 1) == 0, where, ": is encrypted");
  check_format(field<uint16_t>(left, 10) == 0, where, ": is compressed (method ",
               field<uint16_t>(left, 10), "), torch.save stores records as they are");
  uint64_t fields[3] = {field<uint32_t>(left, 24), field<uint32_t>(left, 20),
                        field<uint32_t>(left, 42)};
  read_extra(where, left.substr(kEntryBytes + name, extra), fields);
  check_format(fields[0] == fields[1], where, ": has ", fields[0], " bytes, ", fields[1],
               " of them stored");
  out.size = fields[0];
  out.record = fields[2];
  left.remove_prefix(all);
  return out;
}

// The offset of an entry's data, after the header in front of it.
uint64_t data_of(const Bytes& in, const Entry& entry, uint64_t end) {
  const std::string where = join(in.file, ": record '", shown(entry.name), "'");
  const std::string_view header = in.at(entry.record, kRecordBytes, "the header of a record");
  check_format(field<uint32_t>(header, 0) == kRecord && field<uint16_t>(header, 8) == 0, where,
               ": has no header of a stored record at byte ", entry.record);
  const uint64_t name = field<uint16_t>(header, 26), extra = field<uint16_t>(header, 28);
  check_format(in.at(entry.record + kRecordBytes, name, "a name") == entry.name, where,
               ": has another name in front of its data");
  const uint64_t data = entry.record + kRecordBytes + name + extra;
  check_format(data <= end && entry.size <= end - data, where, ": ", entry.size, " bytes at byte ",
               data, " are outside the ", end, " bytes of records");
  return data;
}

// The records of a zip archive as torch.save writes it: stored, not compressed, and mapped.
// Source: the public specification of the format, APPNOTE.TXT of PKWARE, sections 4.3 to 4.5.

// The bytes of every record by name. Throws an Error that names the file and the reason: compressed
// or encrypted records, several disks, duplicate names, records that overlap or are outside the
// file, directories that disagree with the records. Checksums are not compared: torch.save can be
// told to leave them out.
std::map<std::string, std::string_view, std::less<>> zip_records(const Path& path,
                                                                 const MappedFile& file) {
  const std::string name = path.string();
  const Bytes in{name, {reinterpret_cast<const char*>(file.data()), size_t(file.size())}};
  const Directory directory = find_directory(in);
  std::string_view left = in.at(directory.begin, directory.size, "the directory of the archive");
  check_format(directory.begin + directory.size <= directory.end, name,
               ": the directory of the archive overlaps its end");
  check_format(
      directory.entries <= kMaxRecords && directory.entries <= directory.size / kEntryBytes, name,
      ": ", directory.entries, " records do not fit into a directory of ", directory.size,
      " bytes");
  std::vector<Entry> entries;
  entries.reserve(directory.entries);
  for (uint64_t i = 0; i < directory.entries; ++i) entries.push_back(read_entry(in, left));
  check_format(left.empty(), name, ": ", left.size(), " bytes after the directory's entries");
  std::ranges::sort(entries, {}, &Entry::record);
  std::map<std::string, std::string_view, std::less<>> out;
  uint64_t end = 0;
  for (const Entry& e : entries) {
    check_format(e.record >= end, name, ": record '", shown(e.name), "' overlaps the one before");
    const uint64_t data = data_of(in, e, directory.begin);
    check_format(out.emplace(e.name, in.all.substr(data, e.size)).second, name, ": record '",
                 shown(e.name), "' occurs twice");
    end = data + e.size;
  }
  return out;
}

constexpr uint64_t kMaxPickle = uint64_t{64} << 20;
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
  check_format(pickle.size() <= kMaxPickle, name, ": a pickle of ", pickle.size(),
               " bytes, at most ", kMaxPickle, " are supported");
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
  return safetensors_dtype(path().string(), e.name, e.dtype);
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
