// GGUF files put together byte by byte, so that each part can be wrong.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

namespace brine::test {

template <class T>
std::string bytes_of(T value) {
  std::string out(sizeof(T), '\0');
  std::memcpy(out.data(), &value, sizeof(T));
  return out;
}

inline std::string gguf_string(const std::string& text) {
  return bytes_of(uint64_t(text.size())) + text;
}

// A key with a value of a type's number.
inline std::string gguf_key(const std::string& key, uint32_t type, const std::string& value) {
  return gguf_string(key) + bytes_of(type) + value;
}
inline std::string gguf_key(const std::string& key, uint32_t value) {
  return gguf_key(key, 4, bytes_of(value));
}
inline std::string gguf_key(const std::string& key, float value) {
  return gguf_key(key, 6, bytes_of(value));
}
inline std::string gguf_key(const std::string& key, bool value) {
  return gguf_key(key, 7, std::string(1, char(value)));
}
inline std::string gguf_key(const std::string& key, int value) {
  return gguf_key(key, uint32_t(value));
}
inline std::string gguf_key(const std::string& key, const char* value) {
  return gguf_key(key, 8, gguf_string(value));
}
inline std::string gguf_key(const std::string& key, const std::string& value) {
  return gguf_key(key, 8, gguf_string(value));
}

struct GgufTensorBytes {
  std::string name = "token_embd.weight";
  std::vector<uint64_t> sizes = {4, 2};  // as in the file: that of a row first
  uint32_t type = 0;
  uint64_t offset = 0;

  std::string text() const {
    std::string out = gguf_string(name) + bytes_of(uint32_t(sizes.size()));
    for (uint64_t size : sizes) out += bytes_of(size);
    return out + bytes_of(type) + bytes_of(offset);
  }
};

// By default a file with an embedding of [2, 4] f32 zeros.
struct GgufBytes {
  uint32_t magic = 0x46554747, version = 3;
  std::vector<std::string> keys = {gguf_key("general.architecture", "llama"),
                                   gguf_key("llama.block_count", 1),
                                   gguf_key("llama.context_length", 8),
                                   gguf_key("llama.embedding_length", 4),
                                   gguf_key("llama.feed_forward_length", 8),
                                   gguf_key("llama.attention.layer_norm_rms_epsilon", 1e-5f),
                                   gguf_key("llama.attention.head_count", 2)};
  std::vector<GgufTensorBytes> tensors = {{}};
  uint64_t data = 32;
  int64_t more_tensors = 0, more_keys = 0;  // than there are, in the counts
  uint64_t alignment = 32;

  std::string header() const {
    std::string out = bytes_of(magic) + bytes_of(version) +
                      bytes_of(uint64_t(int64_t(tensors.size()) + more_tensors)) +
                      bytes_of(uint64_t(int64_t(keys.size()) + more_keys));
    for (const std::string& key : keys) out += key;
    for (const GgufTensorBytes& tensor : tensors) out += tensor.text();
    return out;
  }
  std::string text() const {
    std::string out = header();
    out.resize((out.size() + alignment - 1) / alignment * alignment + data);
    return out;
  }
};

}  // namespace brine::test
