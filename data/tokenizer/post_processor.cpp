// Templates of special tokens, and truncation.
#include "data/tokenizer/post_processor.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "data/tokenizer/tokenizer_json.h"
#include "tensor/base/error.h"

namespace brine::data {
namespace {

int32_t id_in(const SortedJson& value, const std::string& where) {
  check_format(
      value.is_number_integer() && value.get<int64_t>() >= 0 && value.get<int64_t>() < INT32_MAX,
      where, ": post_processor: ", json_text(value), " must be an id");
  return value.get<int32_t>();
}

// ["[SEP]", 102]
int32_t token_id(const SortedJson& description, const char* key, const std::string& where) {
  const SortedJson& value = member(description, key);
  check_format(value.is_array() && value.size() == 2 && value[0].is_string(), where,
               ": post_processor: '", key, "' must be [token, id]");
  return id_in(value[1], where);
}

std::vector<int32_t> template_ids(const SortedJson& tokens, const std::string& name,
                                  const std::string& where) {
  const SortedJson& token = member(tokens, name.c_str());
  const SortedJson& list = token.is_object() ? member(token, "ids") : token;
  check_format(list.is_array(), where, ": post_processor: special token '", name,
               "' has no list 'ids'");
  std::vector<int32_t> ids;
  for (const SortedJson& id : list) ids.push_back(id_in(id, where));
  return ids;
}

}  // namespace

PostProcessor::PostProcessor() : single_{{0, 0, {}}}, pair_{{0, 0, {}}, {1, 1, {}}} {}

PostProcessor::PostProcessor(const SortedJson& description, const std::string& where)
    : PostProcessor() {
  if (!description.is_null()) read(description, where, false);
}

void PostProcessor::read(const SortedJson& description, const std::string& where, bool inside) {
  check_format(description.is_object() && member(description, "type").is_string(), where,
               ": a post_processor must be an object with a 'type'");
  const auto type = description["type"].get<std::string>();
  if (type == "Sequence") {
    const SortedJson& list = member(description, "processors");
    check_format(list.is_array() && !inside, where,
                 ": post_processor of type \"Sequence\" must have a list 'processors' of others");
    for (const SortedJson& part : list) read(part, where, true);
    return;
  }
  if (type == "ByteLevel" || type == "RobertaProcessing") {
    trims_offsets_ = flag(description, "trim_offsets", true, where);
    prefix_space_ = flag(description, "add_prefix_space", true, where);
    if (type == "ByteLevel") return;
  }
  check_format(!places_, where, ": two post_processors that add tokens are not supported");
  places_ = true;
  if (type == "BertProcessing" || type == "RobertaProcessing") {
    const int32_t cls = token_id(description, "cls", where);
    const int32_t sep = token_id(description, "sep", where);
    single_ = {{-1, 0, {cls}}, {0, 0, {}}, {-1, 0, {sep}}};
    pair_ = single_;
    if (type == "BertProcessing")
      pair_.insert(pair_.end(), {{1, 1, {}}, {-1, 1, {sep}}});
    else
      pair_.insert(pair_.end(), {{-1, 0, {sep}}, {1, 0, {}}, {-1, 0, {sep}}});
    return;
  }
  check_format(
      type == "TemplateProcessing", where, ": post_processor of type \"", type,
      "\" is not supported; supported are ByteLevel, BertProcessing, RobertaProcessing and "
      "TemplateProcessing");
  const SortedJson& tokens = member(description, "special_tokens");
  auto parts = [&](const char* key, int texts) {
    const SortedJson& list = member(description, key);
    check_format(list.is_array(), where, ": post_processor: '", key, "' must be a list");
    Parts out;
    int seen[2] = {};
    for (const SortedJson& item : list) {
      const bool text = item.is_object() && item.contains("Sequence");
      check_format(text || (item.is_object() && item.contains("SpecialToken")), where,
                   ": post_processor: '", key, "' must contain only Sequence and SpecialToken");
      const SortedJson& body = item[text ? "Sequence" : "SpecialToken"];
      check_format(body.is_object() && member(body, "id").is_string(), where, ": post_processor: '",
                   key, "' contains a part without 'id'");
      const auto name = body["id"].get<std::string>();
      const SortedJson& type_id = member(body, "type_id");
      const int32_t kind = type_id.is_null() ? 0 : id_in(type_id, where);
      check_format(kind < 2, where, ": post_processor: type_id ", kind, " is not supported");
      check_format(!text || name == "A" || name == "B", where, ": post_processor: sequence '", name,
                   "', wanted 'A' or 'B'");
      if (text) ++seen[name == "B"];
      out.push_back(text ? Part{int8_t(name == "B"), kind, {}}
                         : Part{-1, kind, template_ids(tokens, name, where)});
    }
    check_format(seen[0] == 1 && seen[1] == texts - 1, where, ": post_processor: '", key,
                 "' must contain each of its texts once");
    return out;
  };
  single_ = parts("single", 1);
  pair_ = parts("pair", 2);
}

size_t PostProcessor::added(bool pair) const {
  size_t count = 0;
  for (const Part& part : pair ? pair_ : single_) count += part.ids.size();
  return count;
}

int32_t PostProcessor::largest_id() const {
  int32_t largest = -1;
  for (const Parts* parts : {&single_, &pair_})
    for (const Part& part : *parts)
      for (int32_t id : part.ids) largest = std::max(largest, id);
  return largest;
}

Encoding PostProcessor::apply(const TokenRun& first, const TokenRun* second) const {
  Encoding out;
  const size_t count =
      first.ids.size() + (second ? second->ids.size() : 0) + added(second != nullptr);
  out.ids.reserve(count);
  out.offsets.reserve(count);
  for (const Part& part : second ? pair_ : single_) {
    const bool text = part.sequence >= 0;
    const std::vector<int32_t>& ids = !text                ? part.ids
                                      : part.sequence == 0 ? first.ids
                                                           : second->ids;
    out.ids.insert(out.ids.end(), ids.begin(), ids.end());
    out.type_ids.resize(out.ids.size(), part.type);
    out.special_mask.resize(out.ids.size(), text ? 0 : 1);
    out.sequence.resize(out.ids.size(), part.sequence);
    if (text) {
      const auto& offsets = part.sequence == 0 ? first.offsets : second->offsets;
      out.offsets.insert(out.offsets.end(), offsets.begin(), offsets.end());
    } else {
      out.offsets.resize(out.ids.size());
    }
  }
  return out;
}

void truncate_longest_first(TokenRun& first, TokenRun* second, size_t room) {
  auto cut = [](TokenRun& run, size_t size) {
    if (run.ids.size() <= size) return;
    run.ids.resize(size);
    run.offsets.resize(size);
  };
  if (!second) return cut(first, room);
  if (first.ids.size() + second->ids.size() <= room) return;
  const bool swapped = first.ids.size() > second->ids.size();
  TokenRun& shorter = swapped ? *second : first;
  TokenRun& longer = swapped ? first : *second;
  size_t a = shorter.ids.size();
  size_t b = a > room ? a : std::max(a, room - a);
  if (a + b > room) {
    a = room / 2;
    b = a + room % 2;
  }
  cut(shorter, a);
  cut(longer, b);
}

}  // namespace brine::data
