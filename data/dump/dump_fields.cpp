// The fields of a dump: one list for writing, reading and comparing.
#include "data/dump/dump_fields.h"

#include "data/config/schema_text.h"
#include "data/io/utf8.h"

namespace brine::data {
namespace {

// Calls f(name, reference) for every field; integers, truth values, texts and choices.
template <class Spec, class F>
void each_field(Spec& s, F&& f) {
  f("content", s.content, kDumpContents);
  f("dtype", s.dtype, kDumpTypes);
  f("causal", s.causal);
  f("packed", s.packed);
  f("layers", s.layers);
  f("heads", s.heads);
  f("key_heads", s.key_heads);
  f("head_size", s.head_size);
  f("hidden", s.hidden);
  f("tokens", s.tokens);
  f("vocab", s.vocab);
  f("has_value", s.value);
  f("has_context", s.context);
  f("has_output", s.output);
  f("logits", s.logits, kDumpLogits);
  f("top_n", s.top_n);
  f("has_tokens", s.stores_tokens);
  f("ragged", s.ragged);
  f("classes", s.classes);
  f("columns", s.columns);
  f("model_layers", s.model_layers);
  f("teacher_hash", s.teacher_hash);
  f("tokenizer_hash", s.tokenizer_hash);
  f("corpus_hash", s.corpus_hash);
}

struct Get {
  std::vector<DumpField>& fields;
  void operator()(const char* name, const int64_t& v) { fields.push_back({name, v}); }
  void operator()(const char* name, const bool& v) { fields.push_back({name, int64_t(v)}); }
  void operator()(const char* name, const std::string& v) { fields.push_back({name, v}); }
  void operator()(const char* name, const std::vector<int64_t>& v) {
    std::string text;
    for (int64_t word : v) text += (text.empty() ? "" : ",") + join(word);
    fields.push_back({name, text});
  }
  template <class Choice, size_t N>
  void operator()(const char* name, const Choice& v, const Named<Choice> (&names)[N]) {
    fields.push_back({name, std::string(name_of(v, names))});
  }
};

struct Set {
  const std::string& where;
  const FieldSource& source;

  template <class T>
  T fetch(const char* name) {
    DumpField field{name, T()};
    source(field);
    return std::get<T>(field.value);
  }
  void operator()(const char* name, int64_t& v) { v = fetch<int64_t>(name); }
  void operator()(const char* name, bool& v) {
    int64_t number = fetch<int64_t>(name);
    check_format(number == 0 || number == 1, where, ": ", name, " is ", number, ", must be 0 or 1");
    v = number == 1;
  }
  void operator()(const char* name, std::string& v) { v = fetch<std::string>(name); }
  void operator()(const char* name, std::vector<int64_t>& v) {
    const std::string text = fetch<std::string>(name);
    v.clear();
    if (text.empty()) return;
    for (const std::string& word : split(text, ',')) {
      int64_t number = 0;
      check_format(parse_number(word, number), where, ": ", name, " has \"", word,
                   "\", which is not an integer");
      v.push_back(number);
    }
  }
  template <class Choice, size_t N>
  void operator()(const char* name, Choice& v, const Named<Choice> (&names)[N]) {
    const std::string text = fetch<std::string>(name);
    const std::optional<Choice> known = value_of(text, names);
    std::vector<std::string> all;
    for (const auto& choice : names) all.push_back(choice.name);
    check_format(known.has_value(), where, ": ", name, " is \"", text,
                 "\", which is not known; it must be one of ", list_of(all));
    v = *known;
  }
};

}  // namespace

std::vector<DumpField> spec_fields(const DumpSpec& spec) {
  std::vector<DumpField> fields;
  each_field(spec, Get{fields});
  return fields;
}

std::vector<DumpField> stored_fields(const DumpSpec& spec) {
  std::vector<DumpField> fields = spec_fields(spec);
  std::erase_if(fields,
                [&](const DumpField& field) { return may_lack(field) && field.as_text().empty(); });
  return fields;
}

DumpSpec spec_from(const std::string& where, const FieldSource& source) {
  DumpSpec spec;
  each_field(spec, Set{where, source});
  return spec;
}

}  // namespace brine::data
