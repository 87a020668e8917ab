// The tensors of a teacher, one row each: name, shape, type and when a dump stores it. The writer,
// the reader and the teachers of distill/ use this table.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/mask/teacher.h"

namespace brine::data {

struct DumpSpec;

// An axis of a tensor after that of the samples.
enum class Axis : uint8_t {
  heads,      // H
  key_heads,  // G, heads of keys and values
  tokens,     // T
  keys,       // T again, the second axis of an attention map
  head_size,  // d
  context,    // H d
  hidden,     // C
  columns,    // K of pooled attention
  logits,     // logits kept for each token: top_n or V
  classes,    // logits of a classification head
};

// Tensors by name. A name that the table does not have is an error.
class TensorSet {
 public:
  Tensor& operator[](std::string_view name);  // undefined until it is set
  const Tensor& operator[](std::string_view name) const;
  bool has(std::string_view name) const { return (*this)[name].defined(); }
  auto begin() { return values_.begin(); }
  auto end() { return values_.end(); }
  auto begin() const { return values_.begin(); }
  auto end() const { return values_.end(); }

 private:
  std::map<std::string, Tensor, std::less<>> values_;
};

// Tensors that are stored and requested together.
namespace part {
inline constexpr const char* attention = "attention";  // complete rows, as maps or by query and key
inline constexpr const char* pooled = "pooled attention";
inline constexpr const char* values = "values";
inline constexpr const char* attention_outputs = "attention outputs";
inline constexpr const char* layer_outputs = "layer outputs";
inline constexpr const char* logits = "logits";
inline constexpr const char* classes = "logits of classes";
inline constexpr const char* tokens = "tokens";
}  // namespace part

struct TeacherTensor {
  enum class Type : uint8_t { as_dump, f32, token_id };  // as_dump: the type of the spec

  std::string name;
  std::string part;
  std::string dataset = {};  // for a layer's tensor below "layers/LL/"; empty: its name
  std::vector<Axis> shape;   // after the samples: [tokens, ...], [heads, tokens, ...] or [classes]
  Type type = Type::as_dump;
  bool of_layer = true;  // one for each layer
  bool narrow = false;   // used only by matrix products, which can read it in 16 bits
  std::function<bool(const DumpSpec&)> stored_in;

  bool has_tokens() const { return shape[0] != Axis::classes; }
  bool by_head() const { return shape[0] == Axis::heads || shape[0] == Axis::key_heads; }
  bool is_map() const { return shape.back() == Axis::keys; }
  bool is_float() const { return type != Type::token_id; }
  Dtype dtype(const DumpSpec& spec) const;  // in the files
  // [n, ...] of n samples padded to `tokens`.
  Shape padded(const DumpSpec& spec, int64_t n, int64_t tokens) const;
  // x [n, ...] of this tensor without the tokens from T on.
  Tensor first_tokens(Tensor x, int64_t T) const;
  std::string path(int64_t layer) const;  // its dataset's name in a shard
};

// All rows in the order of the files.
const std::vector<const TeacherTensor*>& teacher_tensors();
// Null if there is none.
const TeacherTensor* find_teacher_tensor(std::string_view name);

}  // namespace brine::data
