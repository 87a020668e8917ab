// The tensors of a batch that a dump of a teacher stores, and their comparison with the teacher.
#pragma once

#include <memory>

#include "data/dump/dump.h"
#include "data/dump/dump_reader.h"
#include "distill/teachers/teacher.h"
#include "nn/models/model.h"
#include "tensor/functions/transfer.h"

namespace brine::distill {

// Runs the teacher over the batch and takes the tensors that the spec stores. Does not wait for the
// device: the tensors are on the CPU when `arriving` is finished. `narrow`: in the types that are
// stored, except maps, otherwise in f32.
data::DumpBatch dump_batch(OnlineTeacher& teacher, const Batch& batch, const data::DumpSpec& spec,
                           Downloads& arriving, bool narrow = false);

// Runs the teacher over a sample of the dump, or its first tokens where the model is causal, and
// compares what the dump stores of it. ids: the sample's tokens, i32 [1, T], and segments or an
// undefined tensor. Throws an Error in one line that names the first tensor that differs and the
// likely reason: a query that is scaled already, q and k before their rotation, the last output
// after the final norm, other tokens or weights.
void compare_with_teacher(const data::DumpReader& dump, int64_t sample,
                          std::shared_ptr<nn::Model> teacher, const Tensor& ids,
                          const Tensor& type_ids = {});

}  // namespace brine::distill
