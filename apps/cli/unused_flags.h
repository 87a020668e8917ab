// Flags that a command takes and would not use are errors: whoever gave one believes that it
// counts.
#pragma once

#include <initializer_list>
#include <string>

#include "apps/cli/program.h"
#include "distill/losses/loss_scale.h"
#include "nn/models/model.h"

namespace brine {

// Which flags count as given. A run keeps its configuration with every key in it, and to start
// again from that file must be the same run: of such commands only keys with another value than the
// default are refused.
enum class Given { any, non_default };

// Throws "COMMAND: --KEY has no effect BECAUSE" for the first of the keys that was given.
void refuse_unused(const RunContext& context, std::initializer_list<const char*> keys,
                   const std::string& because, Given which = Given::any);
// The same of every key of the command but these and those of all commands.
void refuse_all_but(const RunContext& context, std::initializer_list<const char*> used,
                    const std::string& because);

// The keys k, path and query_skip, where they were given: an error when the model's attention has
// no use for one.
void refuse_unused_options(const RunContext& context, const nn::Model& model);
// The keys of the loss scale, when the run does not scale its loss.
void refuse_unused_loss_scale(const RunContext& context, const distill::LossScaleConfig& config);

}  // namespace brine
