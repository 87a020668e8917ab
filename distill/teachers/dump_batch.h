// The tensors of a batch that a dump of a teacher stores.
#pragma once

#include "data/dump/dump.h"
#include "distill/teachers/teacher.h"
#include "tensor/functions/transfer.h"

namespace brine::distill {

// Runs the teacher over the batch and takes the tensors that the spec stores. Does not wait for the
// device: the tensors are on the CPU when `arriving` is finished. `narrow`: in the types that are
// stored, except maps, otherwise in f32.
data::DumpBatch dump_batch(OnlineTeacher& teacher, const Batch& batch, const data::DumpSpec& spec,
                           Downloads& arriving, bool narrow = false);

}  // namespace brine::distill
