// A setting of a student's attention by key, as a configuration file gives it.
#pragma once

#include "data/config/schema.h"

namespace brine::test {

// `run` has `student` and `attention_keys`: a Recipe or a Conversion.
template <class Run>
void set_attention(Run& run, const std::string& key, const std::string& value) {
  data::Schema keys;
  run.student.describe_attention(keys);
  keys.collect("attention", run.attention_keys);
  keys.set_text("attention." + key, {value});
}

}  // namespace brine::test
