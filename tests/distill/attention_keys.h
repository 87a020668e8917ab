// A setting of a student's attention by key, as a configuration file gives it.
#pragma once

#include "distill/runs/distillation.h"

namespace brine::test {

inline void set_attention(distill::Distillation& run, const std::string& key,
                          const std::string& value) {
  data::Schema keys;
  run.student.describe_attention(keys);
  keys.collect("attention", run.attention_keys);
  keys.set_text("attention." + key, {value});
}

}  // namespace brine::test
