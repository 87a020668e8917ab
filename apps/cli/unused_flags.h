// Flags that a command accepts but would not use are errors, since a user would expect an effect.
#pragma once

#include <initializer_list>
#include <string>

#include "apps/cli/program.h"
#include "distill/evaluation/evaluation.h"
#include "distill/runs/dump_run.h"
#include "nn/models/model.h"

namespace brine {

// Throws "COMMAND: --KEY has no effect BECAUSE" for the first of the keys that was given.
void refuse_unused(const RunContext& context, std::initializer_list<const char*> keys,
                   const std::string& because);

// The keys of other kinds of evaluation than that of the request.
void refuse_mixed(const RunContext& context, const distill::Evaluation& what);
// The same of a dump.
void refuse_mixed(const RunContext& context, const distill::DumpRequest& what);
// The keys k, path and query_skip, if given: an error when the model's attention does not use one.
// With `others`, methods that use k are evaluated next to it. A line says to what a k
// that is not in whole blocks is rounded.
void refuse_unused_options(const RunContext& context, const nn::Model& model, bool others = false);

}  // namespace brine
