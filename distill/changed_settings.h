// What differs between the settings of a run and those of its checkpoint.
#pragma once

#include <string>
#include <vector>

#include "data/config/schema.h"

namespace brine::distill {

// One line for each setting in which a resumed run differs from its checkpoint; both are
// configurations as a checkpoint records them. Not compared: settings that change nothing of what
// is trained (how long, how often it is saved, evaluated and shown), and the paths of inputs whose
// content is the same.
std::vector<std::string> changed_settings(data::Json before, data::Json now);

}  // namespace brine::distill
