// The directory of a zip archive, with its 64-bit form.
#include "data/torch/zip_records.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <vector>

#include "data/io/printable.h"

namespace brine::data {
namespace {

constexpr uint32_t kRecord = 0x04034b50, kEntry = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kLocator64 = 0x07064b50;
constexpr uint64_t kRecordBytes = 30, kEntryBytes = 46, kEndBytes = 22, kEnd64Bytes = 56;
constexpr uint64_t kLocator64Bytes = 20, kLongestComment = 65535;
constexpr uint64_t kMostRecords = 1 << 20;
constexpr uint32_t kIn64 = 0xffffffff;  // a field whose value is in the 64-bit part of an entry

// The whole file, read at any place.
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
  T out;
  std::memcpy(&out, bytes.data() + at, sizeof(T));
  return out;
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

// Sizes and place of an entry, from its 64-bit part where they do not fit. `fields`: size, stored
// size, place, in the order of that part.
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

// The place of an entry's data, after the header in front of it.
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

}  // namespace

std::map<std::string, std::string_view, std::less<>> zip_records(const Path& path,
                                                                 const MappedFile& file) {
  const std::string name = path.string();
  const Bytes in{name, {reinterpret_cast<const char*>(file.data()), size_t(file.size())}};
  const Directory directory = find_directory(in);
  std::string_view left = in.at(directory.begin, directory.size, "the directory of the archive");
  check_format(directory.begin + directory.size <= directory.end, name,
               ": the directory of the archive overlaps its end");
  check_format(
      directory.entries <= kMostRecords && directory.entries <= directory.size / kEntryBytes, name,
      ": ", directory.entries, " records do not fit into a directory of ", directory.size,
      " bytes");
  std::vector<Entry> entries;
  entries.reserve(directory.entries);
  for (uint64_t i = 0; i < directory.entries; ++i) entries.push_back(read_entry(in, left));
  check_format(left.empty(), name, ": ", left.size(), " bytes after the directory's entries");
  std::sort(entries.begin(), entries.end(),
            [](const Entry& a, const Entry& b) { return a.record < b.record; });
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

}  // namespace brine::data
