// One layer of a teacher: tensors by name, as in data/dump/teacher_tensors.h. A tensor that the
// teacher does not have is computed from those that it has, if a function for it is registered.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "data/dump/teacher_tensors.h"
#include "nn/attention/observer.h"

namespace brine::distill {

// What losses may request of one layer, all detached: "attention" [B, H, T, T] or "query" and "key"
// [B, H, T, d], keys and "value" of a group for each of its heads; "tau", "t_log_t" and "t_square"
// of a pooled dump; "attention_output" [B, T, H d] and "output" [B, T, C]; registered tensors.
using TeacherLayer = data::TensorSet;

// The map, or the q and k from which it is computed.
TeacherAttention attention_of(const TeacherLayer& layer);

// A part (see data::part) that only a running model has: the entries of its Tap.
inline constexpr const char* kRunningModel = "running model";

// The inputs from which a tensor is computed.
struct TeacherView {
  TeacherLayer& layer;  // the result is put here
  Visibility visible;
  int64_t columns = 0;           // K of pooled attention
  const nn::Tap* tap = nullptr;  // of a running model, else null
};
using TeacherFunction = std::function<void(const TeacherView& view)>;

// The tensor of the layer, computed if it is absent. Throws when it cannot be computed.
const Tensor& teacher_tensor(const TeacherView& view, const std::string& name);
// The teacher's attention as K = view.columns columns: the layer's columns, of which there must be
// K, or computed from its attention.
TeacherSummary teacher_summary(const TeacherView& view);

// The parts that provide `part`, where `has` tells which are available: itself, or those that its
// tensors are computed from. Empty: it is not available.
std::vector<std::string> sources_of(const std::string& part,
                                    const std::function<bool(const std::string&)>& has);
// The parts that it can be computed from, for messages: "attention"; "" when there are none.
std::string computed_from(const std::string& part);

// Adds a tensor for losses and dumps (data::register_teacher_tensor()); usually a static object.
// `compute` puts it into view.layer on the device of the others; it may request tensors of the
// parts `from` by teacher_tensor(), and use view.tap if kRunningModel is one of them.
struct RegisterTeacherTensor {
  RegisterTeacherTensor(data::TeacherTensor tensor, std::vector<std::string> from,
                        TeacherFunction compute);
};

}  // namespace brine::distill
