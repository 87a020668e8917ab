// Templates of special tokens.
#include "data/tokenizer/post_processor.h"

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

TokensAround read_template(const SortedJson& description, const std::string& where) {
  TokensAround around;
  const SortedJson& list = member(description, "single");
  check_format(list.is_array(), where, ": post_processor: 'single' must be a list");
  int texts = 0;
  for (const SortedJson& item : list) {
    const bool text = item.is_object() && item.contains("Sequence");
    check_format(text || (item.is_object() && item.contains("SpecialToken")), where,
                 ": post_processor: 'single' must contain only Sequence and SpecialToken");
    const SortedJson& body = item[text ? "Sequence" : "SpecialToken"];
    check_format(body.is_object() && member(body, "id").is_string(), where,
                 ": post_processor: 'single' contains a part without 'id'");
    const auto name = body["id"].get<std::string>();
    check_format(!text || name == "A", where, ": post_processor: sequence '", name,
                 "', wanted 'A'");
    texts += text;
    if (text) continue;
    const std::vector<int32_t> ids =
        template_ids(member(description, "special_tokens"), name, where);
    std::vector<int32_t>& side = texts == 0 ? around.front : around.back;
    side.insert(side.end(), ids.begin(), ids.end());
  }
  check_format(texts == 1, where, ": post_processor: 'single' must contain its text once");
  return around;
}

void read_part(const SortedJson& description, const std::string& where, bool inside,
               std::optional<TokensAround>& around) {
  check_format(description.is_object() && member(description, "type").is_string(), where,
               ": a post_processor must be an object with a 'type'");
  const auto type = description["type"].get<std::string>();
  if (type == "Sequence") {
    const SortedJson& list = member(description, "processors");
    check_format(list.is_array() && !inside, where,
                 ": post_processor of type \"Sequence\" must have a list 'processors' of others");
    for (const SortedJson& part : list) read_part(part, where, true, around);
    return;
  }
  if (type == "ByteLevel") return;
  check_format(!around, where, ": two post_processors that add tokens are not supported");
  if (type == "BertProcessing") {
    around = {.front = {token_id(description, "cls", where)},
              .back = {token_id(description, "sep", where)}};
    return;
  }
  check_format(type == "TemplateProcessing", where, ": post_processor of type \"", type,
               "\" is not supported; supported are ByteLevel, BertProcessing and "
               "TemplateProcessing");
  around = read_template(description, where);
}

}  // namespace

TokensAround read_post_processor(const SortedJson& description, const std::string& where) {
  std::optional<TokensAround> around;
  if (!description.is_null()) read_part(description, where, false, around);
  return around.value_or(TokensAround{});
}

void add_bert_template(TokenizerModel& model, Json& frame, const std::string& where) {
  const SpecialIds& roles = model.special;
  auto name = [&](std::optional<int32_t> id, const char* role) {
    check_format(id.has_value(), where, ": the vocabulary has no ", role);
    return token_text(model, *id);
  };
  const std::string cls = name(roles.cls, "cls_token"), sep = name(roles.sep, "sep_token");
  auto part = [](const char* kind, const std::string& id, int type) {
    return Json{{kind, {{"id", id}, {"type_id", type}}}};
  };
  auto token = [](const std::string& id, int32_t number) {
    return Json{{"id", id}, {"ids", Json::array({number})}, {"tokens", Json::array({id})}};
  };
  const Json front = part("SpecialToken", cls, 0), a = part("Sequence", "A", 0),
             between = part("SpecialToken", sep, 0), b = part("Sequence", "B", 1),
             last = part("SpecialToken", sep, 1);
  frame["post_processor"] = {{"type", "TemplateProcessing"},
                             {"single", Json::array({front, a, between})},
                             {"pair", Json::array({front, a, between, b, last})},
                             {"special_tokens", Json::object()}};
  frame["post_processor"]["special_tokens"][cls] = token(cls, *roles.cls);
  frame["post_processor"]["special_tokens"][sep] = token(sep, *roles.sep);
  model.around = {.front = {*roles.cls}, .back = {*roles.sep}};
}

}  // namespace brine::data
