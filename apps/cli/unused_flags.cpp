// Errors for flags that would have no effect; each names the flag and the reason.
#include "apps/cli/unused_flags.h"

#include <algorithm>

#include "apps/terminal/terminal.h"
#include "tensor/base/error.h"

namespace brine {
namespace {

using Field = data::Schema::Field;

[[noreturn]] void refuse(const RunContext& context, std::string key, const std::string& because) {
  std::replace(key.begin(), key.end(), '_', '-');
  throw Error(join(context.command, ": --", key, " has no effect ", because));
}

}  // namespace

void refuse_unused(const RunContext& context, std::initializer_list<const char*> keys,
                   const std::string& because) {
  for (const char* key : keys) {
    const Field* field = context.keys.find(key);
    if (field && field->given) refuse(context, key, because);
  }
}

void refuse_mixed(const RunContext& context, const distill::Evaluation& what) {
  const bool suite = !what.suite.suite.empty(), task = !what.task.empty();
  if (!task) refuse_unused(context, {"split", "fields", "labels"}, "without --task");
  if (suite) refuse_unused(context, {"task", "max_windows", "sequence_length"}, "with --suite");
  if (!suite) refuse_unused(context, distill::SuiteGrid::keys(), "without --suite");
  if (task) refuse_unused(context, {"cache", "prefill"}, "with --task");
  if (!what.text.cache) refuse_unused(context, {"prefill"}, "without --cache");
  if (suite || task) {
    refuse_unused(context, {"protocol", "stride", "loss_from"},
                  task ? "with --task" : "with --suite");
  }
}

void refuse_mixed(const RunContext& context, const distill::DumpRequest& what) {
  if (what.task.empty()) {
    refuse_unused(context, {"split", "fields", "labels", "samples"}, "without --task");
  } else {
    refuse_unused(context, {"windows"}, "on a task; --samples is the number of its texts");
    refuse_unused(context, {"logits", "top_logits"}, "on a task");
  }
  if (what.logits != data::DumpLogits::top) {
    refuse_unused(context, {"top_logits"}, join("with --logits ", data::name_of(what.logits)));
  }
  if (what.content != data::DumpContent::pooled) {
    refuse_unused(context, {"columns"}, join("with --content ", data::name_of(what.content)));
  }
}

namespace {

// The values of the key k of a command: one or a list.
std::vector<int64_t> given_k(const RunContext& context) {
  const Field* field = context.keys.find("k");
  if (!field || !field->given) return {};
  if (const auto* one = std::get_if<int64_t*>(&field->target)) return {**one};
  if (const auto* list = std::get_if<std::vector<int64_t>*>(&field->target)) return **list;
  return {};
}

}  // namespace

void refuse_unused_options(const RunContext& context, const nn::Model& model, bool others) {
  const nn::AttentionTraits traits = model.attention_traits();
  const std::string on = "on attention '" + model.attention_name() + "', which ";
  if (!traits.sparse && !others) refuse_unused(context, {"k", "path"}, on + "takes no k");
  if (!traits.query_skip) refuse_unused(context, {"query_skip"}, on + "estimates no mask");
  const int64_t step = traits.k_step;
  for (const int64_t k : given_k(context)) {
    if (k % step == 0 || k > model.shape().max_positions) continue;  // more is an error later
    log_messages().info("k = ", k, " is rounded up to ", (k + step - 1) / step * step,
                        ": this attention keeps whole blocks of ", step, " keys");
  }
}

}  // namespace brine
