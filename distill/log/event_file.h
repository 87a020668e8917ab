// Writes the event files that TensorBoard reads: scalars by step.
#pragma once

#include <string>

#include "data/io/file_io.h"
#include "distill/log/values.h"

namespace brine::distill {

class EventFile {
 public:
  // A new file in `dir`, whose name sorts after every existing one. TensorBoard drops the values of
  // those files for `first_step` and later steps, so that a resumed run draws one line.
  EventFile(const data::Path& dir, int64_t first_step);

  // Writes one record; it is in the file when this returns. Values are stored as f32.
  void scalars(int64_t step, const Values& values);

 private:
  void record(const std::string& event);

  data::NewFile file_;
};

}  // namespace brine::distill
