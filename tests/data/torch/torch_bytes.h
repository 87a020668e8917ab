// PyTorch files put together byte by byte, so that each part can be wrong.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "tests/data/gguf/gguf_bytes.h"

namespace brine::test {

struct ZipRecord {
  std::string name, content;
  uint16_t method = 0, flags = 0;
  int64_t moved = 0;   // what the directory adds to the offset of the record
  int64_t longer = 0;  // what the directory adds to its size
  std::string name_in_front = name;
};

// A zip archive of stored records, with 32-bit sizes.
struct ZipBytes {
  std::vector<ZipRecord> records;
  int64_t more_records = 0, directory_moved = 0;
  std::string comment = "";

  std::string text() const {
    std::string out, directory;
    for (const ZipRecord& r : records) {
      const uint32_t offset = uint32_t(int64_t(out.size()) + r.moved);
      const uint32_t size = uint32_t(int64_t(r.content.size()) + r.longer);
      const std::string sizes = bytes_of(size) + bytes_of(size);
      const std::string common = bytes_of(r.flags) + bytes_of(r.method) + std::string(8, '\0');
      out += "PK\x03\x04" + std::string(2, '\0') + common + sizes +
             bytes_of(uint16_t(r.name_in_front.size())) + std::string(2, '\0') + r.name_in_front +
             r.content;
      directory += "PK\x01\x02" + std::string(4, '\0') + common + sizes +
                   bytes_of(uint16_t(r.name.size())) + std::string(12, '\0') + bytes_of(offset) +
                   r.name;
    }
    const uint16_t count = uint16_t(int64_t(records.size()) + more_records);
    const uint32_t begin = uint32_t(int64_t(out.size()) + directory_moved);
    return out + directory + "PK\x05\x06" + std::string(4, '\0') + bytes_of(count) +
           bytes_of(count) + bytes_of(uint32_t(directory.size())) + bytes_of(begin) +
           bytes_of(uint16_t(comment.size())) + comment;
  }
};

inline std::string pickled(const std::string& text) {
  return "X" + bytes_of(uint32_t(text.size())) + text;
}
inline std::string pickled(int number) { return "J" + bytes_of(int32_t(number)); }

// Instructions that put a tensor of f32 in the storage `key` onto the stack.
struct TensorBytes {
  std::string key = "0";
  int elements = 6, offset = 0;
  std::vector<int> sizes = {2, 3}, strides = {3, 1};
  std::string type = "ctorch\nFloatStorage\n";
  std::string more = "";  // arguments after the usual ones

  std::string text() const {
    std::string out = "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") + type +
                      pickled(key) + pickled("cpu") + pickled(elements) + "tQ" + pickled(offset);
    for (const std::vector<int>& list : {sizes, strides}) {
      out += "(";
      for (int size : list) out += pickled(size);
      out += "t";
    }
    return out + "\x89}" + more + "tR";
  }
};

inline std::string pickle_of(const std::vector<std::pair<std::string, std::string>>& values) {
  std::string out = "\x80\x02}(";
  for (const auto& [name, value] : values) out += pickled(name) + value;
  return out + "u.";
}

// By default a file with a tensor "x" of [2, 3] f32 zeros.
struct TorchBytes {
  std::string pickle = pickle_of({{"x", TensorBytes().text()}});
  std::string storage = std::string(24, '\0');

  ZipBytes zip() const {
    return {.records = {{"m/data.pkl", pickle}, {"m/data/0", storage}, {"m/version", "3\n"}}};
  }
  std::string text() const { return zip().text(); }
};

}  // namespace brine::test
