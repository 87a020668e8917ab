// Earlier names of keys and sections.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/config/schema.h"
#include "tensor/error.h"

namespace brine::data {
namespace {

// Removes the value at a dotted path from an object and returns it; null when there is none.
Json take(Json& object, const std::string& path) {
  const size_t dot = path.find('.');
  auto it = object.find(path.substr(0, dot));
  if (it == object.end()) return nullptr;
  if (dot != std::string::npos) {
    return it->is_object() ? take(*it, path.substr(dot + 1)) : Json(nullptr);
  }
  Json value = *it;
  object.erase(it);
  return value;
}

const Json* look(const Json& object, const std::string& path) {
  const size_t dot = path.find('.');
  auto it = object.find(path.substr(0, dot));
  if (it == object.end()) return nullptr;
  if (dot == std::string::npos) return &*it;
  return it->is_object() ? look(*it, path.substr(dot + 1)) : nullptr;
}

// Stores a value at a dotted path; the members of an object are added to existing ones.
void put(Json& object, const std::string& path, const Json& value) {
  const size_t dot = path.find('.');
  Json& at = object[path.substr(0, dot)];
  if (dot != std::string::npos) {
    put(at, path.substr(dot + 1), value);
  } else if (value.is_object() && at.is_object()) {
    at.update(value);
  } else {
    at = value;
  }
}

}  // namespace

Schema& Schema::renamed(const std::string& before, const std::string& now) {
  Renaming r{.before = prefix_ + before, .now = prefix_ + now};
  r.section = has_section(r.now);
  const bool known = std::any_of(fields_.begin(), fields_.end(),
                                 [&](const Field& field) { return field.key == r.now; });
  check(r.section || known, "schema: ", r.now, ", earlier ", r.before, ", is not described");
  check(!find(r.before) && !has_section(r.before), "schema: ", r.before, ", now ", r.now,
        ", is still described");
  renamings_.push_back(r);
  return *this;
}

const Schema::Renaming* Schema::rename(std::string& key) const {
  for (const Renaming& r : renamings_) {
    const std::string start = r.section ? r.before + "." : r.before;
    if (r.section ? key.compare(0, start.size(), start) != 0 : key != start) continue;
    key = r.now + key.substr(r.before.size());
    return &r;
  }
  return nullptr;
}

std::string Schema::current_name(std::string_view given) {
  std::string key(given);
  const Renaming* renaming = rename(key);
  for (Renaming& r : renamings_) {
    if (&r == renaming) r.used = true;
  }
  return key;
}

std::vector<std::string> Schema::earlier_names_used() const {
  std::vector<std::string> out;
  for (const Renaming& r : renamings_) {
    if (!r.used) continue;
    const char* what = r.section ? "the section" : "the key";
    out.push_back(join(what, " \"", r.before, "\" is now called \"", r.now, "\""));
  }
  return out;
}

Json Schema::with_current_names(const Json& earlier) const {
  Json out = earlier;
  for (const Field& field : fields_) {
    if (field.options.alias.empty()) continue;
    const Json* value = look(out, field.options.alias);
    if (value && !value->is_object()) put(out, field.key, take(out, field.options.alias));
  }
  for (const Renaming& r : renamings_) {
    if (look(out, r.before)) put(out, r.now, take(out, r.before));
  }
  for (const Field& field : fields_) {
    if (field.selects && !look(out, field.key)) put(out, field.key, Json::parse(field.initial));
  }
  return out;
}

}  // namespace brine::data
