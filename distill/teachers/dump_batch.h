// The tensors of a batch that a dump of a teacher stores.
#pragma once

#include "data/dump/dump.h"
#include "distill/teachers/teacher.h"
#include "tensor/functions/transfer.h"

namespace brine::distill {

// Runs the teacher over the batch and takes the tensors that the spec stores. Does not wait for the
// device: the tensors are on the CPU when `arriving` is finished.
data::DumpBatch dump_batch(OnlineTeacher& teacher, const Batch& batch, const data::DumpSpec& spec,
                           Downloads& arriving);

}  // namespace brine::distill
