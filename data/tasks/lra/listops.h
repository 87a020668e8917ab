// ListOps (Nangia and Bowman, "ListOps: A Diagnostic Dataset for Latent Tree Learning", NAACL 2018)
// with the lengths of Long Range Arena (Tay et al., ICLR 2021): nested lists of digits in prefix
// notation, "[MAX 2 9 [MIN 4 7 ] 0 ]", whose value is a digit, the class of the text.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "data/config/schema.h"
#include "data/io/file_io.h"
#include "tensor/base/random.h"

namespace brine::data {

// Random integers of generated tasks: a function of (seed, stream) on every machine.

class LraDraws {
 public:
  LraDraws(uint64_t seed, uint64_t stream) : seed_(seed), stream_(stream | kStreams) {}

  // Uniform in [0, n), 0 < n <= 2^16; the bias is below n / 2^32.
  int64_t below(int64_t n) { return int64_t(uint64_t(word()) * uint64_t(n) >> 32); }
  // Uniform in [low, high].
  int64_t between(int64_t low, int64_t high) { return low + below(high - low + 1); }
  bool chance(double probability) { return uniform_of(word()) < probability; }

 private:
  // Separates these streams from those that layers and permutations use with the same seed.
  static constexpr uint64_t kStreams = uint64_t(0x4c5241) << 32;

  uint32_t word() {
    if (at_ % 4 == 0) block_ = philox(seed_, stream_, at_ / 4);
    return block_.v[at_++ % 4];
  }

  uint64_t seed_, stream_, at_ = 0;
  Philox block_ = {};
};

// The tokens of an expression, by number: the digits 0 to 9, then "[MIN", "[MAX", "[MED", "[SM" and
// "]". They are separated by single spaces.
const std::vector<std::string>& listops_tokens();

// The value of an expression in [0, 9]. MIN, MAX: of the arguments. MED: their median; of an even
// number of arguments the mean of the middle two, rounded down. SM: their sum modulo 10. Round
// brackets, which the files of Long Range Arena have, are skipped. Throws an Error that says what
// is wrong with the text: an unknown token, a list without arguments, an unbalanced bracket.
int64_t listops_value(std::string_view expression);

// Which expressions are drawn. The root is a list. A list has a uniformly drawn operator and 2 to
// `max_args` arguments (uniform), each of which is a list with `list_probability` and otherwise a
// uniformly drawn digit. The root has depth 1, its arguments 2; at `max_depth` all arguments are
// digits, so lists nest max_depth - 1 deep. An expression of another length than `min_length` to
// `max_length` tokens (both included) is drawn again; lengths count operators, digits and closing
// brackets, but no special tokens of a model.
struct ListOpsRules {
  int64_t max_depth = 10, max_args = 10;
  int64_t min_length = 500, max_length = 2000;
  double list_probability = 0.25;

  void describe(Schema& s);
  // Throws an Error that names the settings which no expression can have.
  void validate() const;
};

struct ListOpsExample {
  std::string expression;
  int64_t value = 0;
  int64_t length = 0;  // tokens
};

// Draws expressions, all different (compared by a hash of 64 bits).
class ListOpsGenerator {
 public:
  // Throws as ListOpsRules::validate().
  explicit ListOpsGenerator(const ListOpsRules& rules);

  // An expression that differs from all earlier ones of this generator. Throws an Error when
  // 200,000 draws in a row gave no new one of the wanted length.
  ListOpsExample next(LraDraws& draws);

 private:
  bool add_list(LraDraws& draws, int64_t depth);

  ListOpsRules rules_;
  std::vector<uint8_t> tokens_;  // of the expression that is being drawn
  std::unordered_set<uint64_t> seen_;
};

// A directory of a generated task of Long Range Arena, which `brine lra` writes; docs/evaluation.md
// describes the files.
struct LraData {
  std::string task = {};  // listops
  std::string out = {};
  int64_t train = 96000, valid = 2000, test = 2000;  // examples of the splits
  ListOpsRules listops = {};

  void describe(Schema& s);
};

// Writes the directory `what.out` under a temporary name and renames it at the end. Every split has
// separate random numbers, drawn from `seed`; test comes before valid and train, so that their
// sizes do not change it. Returns what manifest.json contains. Throws an Error for settings that
// nothing fits, and for a directory that has files already.
nlohmann::ordered_json write_lra_data(const LraData& what, uint64_t seed);

}  // namespace brine::data
