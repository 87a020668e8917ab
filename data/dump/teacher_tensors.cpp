// The table of a teacher's tensors, and functions of its rows.
#include "data/dump/teacher_tensors.h"

#include "data/dump/dump.h"

namespace brine::data {
namespace {

using Type = TeacherTensor::Type;

using Stored = std::function<bool(const DumpSpec&)>;
using Axes = std::vector<Axis>;

Stored content_is(DumpContent content) {
  return [content](const DumpSpec& s) { return s.content == content; };
}

TeacherTensor of_layers(const char* name, const char* part, Axes shape, Stored stored,
                        Type type = Type::as_dump) {
  return {.name = name,
          .part = part,
          .shape = std::move(shape),
          .type = type,
          .stored_in = std::move(stored)};
}

TeacherTensor narrow(TeacherTensor tensor) {
  tensor.narrow = true;
  return tensor;
}

TeacherTensor of_model(const char* name, const char* part, const char* dataset, Axes shape,
                       Type type, Stored stored) {
  TeacherTensor tensor = of_layers(name, part, std::move(shape), std::move(stored), type);
  tensor.dataset = dataset;
  tensor.of_layer = false;
  return tensor;
}

// The tensors of the format: docs/formats.md describes them in this order.
std::vector<TeacherTensor> format_tensors() {
  using enum Axis;
  const Stored maps = content_is(DumpContent::maps), qk = content_is(DumpContent::qk),
               pooled = content_is(DumpContent::pooled);
  const Stored with_logits = [](const DumpSpec& s) { return s.logits != DumpLogits::none; };
  return {
      of_layers("attention", part::attention, {heads, tokens, keys}, maps),
      narrow(of_layers("query", part::attention, {heads, tokens, head_size}, qk)),
      narrow(of_layers("key", part::attention, {key_heads, tokens, head_size}, qk)),
      narrow(of_layers("value", part::values, {key_heads, tokens, head_size},
                       [](const DumpSpec& s) { return s.value; })),
      of_layers("tau", part::pooled, {heads, tokens, columns}, pooled),
      of_layers("t_log_t", part::pooled, {heads, tokens}, pooled, Type::f32),
      of_layers("t_square", part::pooled, {heads, tokens}, pooled, Type::f32),
      {.name = "attention_output",  // heads concatenated, before the output projection; the
                                    // format's earlier name is "context"
       .part = part::attention_outputs,
       .dataset = "context",
       .shape = {tokens, Axis::context},
       .stored_in = [](const DumpSpec& s) { return s.context; }},
      of_layers("output", part::layer_outputs, {tokens, hidden},
                [](const DumpSpec& s) { return s.output; }),
      // The n largest in descending order, or all.
      of_model("logits", part::logits, "logits/values", {tokens, logits}, Type::as_dump,
               with_logits),
      of_model("logit_ids", part::logits, "logits/ids", {tokens, logits}, Type::token_id,
               [](const DumpSpec& s) { return s.logits == DumpLogits::top; }),
      // The log-sum-exp of the whole row of logits.
      of_model("lse", part::logits, "logits/lse", {tokens}, Type::f32, with_logits),
      of_model("classes", part::classes, "logits/classes", {classes}, Type::f32,
               [](const DumpSpec& s) { return s.classes > 0; }),
      of_model("tokens", part::tokens, "", {tokens}, Type::token_id,
               [](const DumpSpec& s) { return s.stores_tokens; }),
  };
}

int64_t size_of(Axis axis, const DumpSpec& s, int64_t tokens) {
  switch (axis) {
    case Axis::heads:
      return s.heads;
    case Axis::tokens:
    case Axis::keys:
      return tokens;
    case Axis::head_size:
      return s.head_size;
    case Axis::key_heads:
      return s.key_heads;
    case Axis::context:
      return s.heads * s.head_size;
    case Axis::hidden:
      return s.hidden;
    case Axis::columns:
      return s.columns;
    case Axis::logits:
      return s.logits == DumpLogits::top ? s.top_n : s.vocab;
    case Axis::classes:
      return s.classes;
  }
  return 0;
}

// Throws unless the table has the name; otherwise a set may have it.
void check_name(std::string_view name) {
  check(find_teacher_tensor(name), "teacher: unknown tensor '", name, "'");
}

}  // namespace

Tensor& TensorSet::operator[](std::string_view name) {
  auto it = values_.find(name);
  if (it != values_.end()) return it->second;
  check_name(name);
  return values_[std::string(name)];
}

const Tensor& TensorSet::operator[](std::string_view name) const {
  static const Tensor absent;
  auto it = values_.find(name);
  if (it != values_.end()) return it->second;
  check_name(name);
  return absent;
}

Dtype TeacherTensor::dtype(const DumpSpec& spec) const {
  return type == Type::as_dump ? spec.dtype : type == Type::f32 ? Dtype::f32 : Dtype::i32;
}

Shape TeacherTensor::padded(const DumpSpec& spec, int64_t n, int64_t tokens) const {
  std::vector<int64_t> sizes{n};
  for (Axis axis : shape) sizes.push_back(size_of(axis, spec, tokens));
  return Shape(sizes);
}

Tensor TeacherTensor::first_tokens(Tensor x, int64_t T) const {
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const bool of_tokens = shape[axis] == Axis::tokens || shape[axis] == Axis::keys;
    const int at = int(axis) + 1;  // after the samples
    if (of_tokens && x.dim(at) > T) x = x.slice(at, 0, T).contiguous();
  }
  return x;
}

std::string TeacherTensor::path(int64_t layer) const {
  const std::string& tail = dataset.empty() ? name : dataset;
  return of_layer ? layer_dataset(layer, tail.c_str()) : tail;
}

const std::vector<const TeacherTensor*>& teacher_tensors() {
  static const std::vector<TeacherTensor> rows = format_tensors();
  static const std::vector<const TeacherTensor*> all = [] {
    std::vector<const TeacherTensor*> out;
    for (const TeacherTensor& row : rows) out.push_back(&row);
    return out;
  }();
  return all;
}

const TeacherTensor* find_teacher_tensor(std::string_view name) {
  for (const TeacherTensor* row : teacher_tensors()) {
    if (row->name == name) return row;
  }
  return nullptr;
}

}  // namespace brine::data
