// TOML files of configuration keys.
#pragma once

#include <string>

#include "data/config/schema.h"

namespace brine {

// Sets the keys of a TOML file. Tables are sections: `k` below `[attention]` is attention.k. Throws
// Error("FILE:LINE: ...") for invalid TOML, a duplicate key, an unknown key, an invalid value.
void apply_config_file(data::Schema& schema, const std::string& path);

}  // namespace brine
