// One sentence for all of them, which names the flag and what leaves it without use.
#include "apps/cli/idle.h"

#include <algorithm>
#include <string_view>

#include "tensor/error.h"

namespace brine {
namespace {

using Field = data::Schema::Field;

bool counts(const Field* field, Given which) {
  if (!field || !field->given) return false;
  return which == Given::at_all || field->toml() != field->initial;
}

[[noreturn]] void refuse(const RunContext& context, std::string key, const std::string& because) {
  std::replace(key.begin(), key.end(), '_', '-');
  throw Error(join(context.command, ": --", key, " has no effect ", because));
}

}  // namespace

void refuse_idle(const RunContext& context, std::initializer_list<const char*> keys,
                 const std::string& because, Given which) {
  for (const char* key : keys)
    if (counts(context.keys.find(key), which)) refuse(context, key, because);
}

void refuse_idle_but(const RunContext& context, std::initializer_list<const char*> used,
                     const std::string& because) {
  Everywhere all;
  const data::Schema of_all = data::schema_of(all);
  for (const Field& field : context.keys.fields()) {
    const bool everywhere = of_all.find(field.key) != nullptr;
    const bool named = std::any_of(used.begin(), used.end(),
                                   [&](std::string_view key) { return field.key == key; });
    if (!everywhere && !named && counts(&field, Given::at_all)) refuse(context, field.key, because);
  }
}

void refuse_idle_dials(const RunContext& context, const nn::Model& model) {
  const nn::AttentionTraits traits = model.attention_traits();
  const std::string on = "on attention '" + model.attention_name() + "', which ";
  if (!traits.sparse) refuse_idle(context, {"k", "path"}, on + "keeps every key");
  if (!traits.query_skip) refuse_idle(context, {"query_skip"}, on + "estimates no mask");
}

}  // namespace brine
