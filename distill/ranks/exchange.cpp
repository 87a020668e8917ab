// Counts and loss terms as bytes, and the comparison of what ranks were started with.
#include "distill/ranks/exchange.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "data/io/json.h"
#include "tensor/comm/bytes.h"
#include "tensor/comm/shared_work.h"

namespace brine::distill {
namespace {

// The rank that differs from the value most ranks have (of the lowest rank, if several have it
// equally often), and a rank with that value; -1: none.
std::pair<int, int> differing_rank(const std::vector<std::string>& all) {
  auto votes = [&](const std::string& s) { return std::count(all.begin(), all.end(), s); };
  const auto usual = std::max_element(
      all.begin(), all.end(), [&](const auto& a, const auto& b) { return votes(a) < votes(b); });
  const auto odd = std::find_if(all.begin(), all.end(), [&](const auto& s) { return s != *usual; });
  return {odd == all.end() ? -1 : int(odd - all.begin()), int(usual - all.begin())};
}

}  // namespace

std::vector<int64_t> gather_counts(Communicator& ranks, const std::string& what,
                                   const std::vector<int64_t>& counts) {
  if (ranks.size() == 1) return counts;
  ByteWriter writer;
  for (const int64_t count : counts) writer.number(count);
  std::vector<int64_t> out;
  for (const std::string& bytes : ranks.gather(what, writer.bytes())) {
    ByteReader reader(bytes);
    while (!reader.done()) out.push_back(reader.number<int64_t>());
  }
  return out;
}

std::vector<SlotTerms> gather_terms(Communicator& ranks, const std::string& what,
                                    const std::vector<SlotTerms>& slots) {
  if (ranks.size() == 1) return slots;
  ByteWriter writer;
  for (const SlotTerms& slot : slots) {
    writer.text(slot.cause);
    writer.number(uint64_t(slot.values.size()));
    for (const auto& [name, term] : slot.values) {
      writer.text(name);
      writer.number(term.value);
      writer.number(term.in_sum);
    }
  }
  std::vector<SlotTerms> out;
  for (const std::string& bytes : ranks.gather(what, writer.bytes())) {
    ByteReader reader(bytes);
    while (!reader.done()) {
      SlotTerms slot{.values = {}, .cause = reader.text()};
      for (uint64_t left = reader.number<uint64_t>(); left > 0; --left) {
        const std::string name = reader.text();
        const double value = reader.number<double>();
        slot.values[name] = {.value = value, .in_sum = reader.number<bool>()};
      }
      out.push_back(std::move(slot));
    }
  }
  return out;
}

void compare_texts(Communicator& ranks, const std::string& what, const std::string& text) {
  if (ranks.size() == 1) return;
  const std::vector<std::string> all = gather_work(ranks, what, [&] { return text; });
  const auto [odd, usual] = differing_rank(all);
  if (odd < 0) return;
  throw SharedError(join("rank ", odd, " has another ", what, " than rank ", usual, ": ",
                         all[size_t(odd)], ", not ", all[size_t(usual)]));
}

void compare_settings(Communicator& ranks, const std::string& what, const std::string& settings) {
  if (ranks.size() == 1) return;
  const std::vector<std::string> all = gather_work(ranks, what, [&] { return settings; });
  const auto [odd, usual] = differing_rank(all);
  if (odd < 0) return;
  std::string list;
  for (const std::string& line : data::differences(parse_ordered_json(all[size_t(usual)]),
                                                   parse_ordered_json(all[size_t(odd)])))
    list += "; " + line;
  throw SharedError(join("rank ", odd, " has another ", what, " than rank ", usual, list));
}

void compare_models(Communicator& ranks, const nn::LoadedModel& model) {
  if (ranks.size() > 1) compare_texts(ranks, "model", model.hash());
}

}  // namespace brine::distill
