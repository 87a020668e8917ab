// Writes the event files that TensorBoard reads: scalars by step.
#pragma once

#include <string>

#include "data/io/file_io.h"
#include "distill/log/values.h"

namespace brine::distill {

class EventFile {
 public:
  // A new file in `dir`, later in name than every one that is there. TensorBoard forgets what those
  // say about `first_step` and beyond, so that a resumed run draws one line.
  EventFile(const data::Path& dir, int64_t first_step);

  // One record, in the file when this returns. Values are stored as f32.
  void scalars(int64_t step, const Values& values);

 private:
  void record(const std::string& event);

  data::NewFile file_;
};

}  // namespace brine::distill
