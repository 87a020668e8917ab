// The fields of a DumpSpec by name, for manifest and shards alike. Internal to data/dump/.
#pragma once

#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "data/dump/dump.h"

namespace brine::data {

struct DumpField {
  std::string name;
  std::variant<int64_t, std::string> value;

  bool is_text() const { return value.index() == 1; }
  std::string as_text() const {
    return is_text() ? std::get<1>(value) : std::to_string(std::get<0>(value));
  }
};

// All except samples, windows and lengths, in the order of the schema.
std::vector<DumpField> spec_fields(const DumpSpec& spec);

// A field that is omitted when it is empty.
inline bool may_lack(const DumpField& field) { return field.name == "model_layers"; }
// The fields that a manifest and its shards have.
std::vector<DumpField> stored_fields(const DumpSpec& spec);

// Sets `field.value`, whose type stays as it is.
using FieldSource = std::function<void(DumpField& field)>;
// A spec with the fields of `source`; invalid values throw Error(where, ": ...").
DumpSpec spec_from(const std::string& where, const FieldSource& source);

}  // namespace brine::data
