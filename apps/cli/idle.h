// Flags that a command takes and would not use are errors: whoever gave one believes that it
// counts.
#pragma once

#include <initializer_list>
#include <string>

#include "apps/cli/program.h"
#include "nn/models/model.h"

namespace brine {

// Which flags count as given. A run keeps its configuration with every key in it, and to start
// again from that file must be the same run: of such commands only keys with another value than the
// default are refused.
enum class Given { at_all, otherwise };

// Throws "COMMAND: --KEY has no effect BECAUSE" for the first of the keys that was given.
void refuse_idle(const RunContext& context, std::initializer_list<const char*> keys,
                 const std::string& because, Given which = Given::at_all);
// The same of every key of the command but these and those of all commands.
void refuse_idle_but(const RunContext& context, std::initializer_list<const char*> used,
                     const std::string& because);

// The dials k, path and query_skip, where they were given: an error when the model's attention has
// no use for one.
void refuse_idle_dials(const RunContext& context, const nn::Model& model);

}  // namespace brine
