// Sampling: which tokens may be drawn, how often, and errors; where a stream of text may be cut.
#include "nn/generate/generation.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <map>
#include <vector>

#include "tensor/base/random.h"
#include "tests/refusals.h"

namespace brine::tests {
namespace {

using test::contains;
using test::message;

// How often each id comes in n draws.
std::map<int32_t, int> draws(const std::vector<float>& logits, const nn::Sampling& how, int n) {
  const RandomSlice random{.seed = 11, .stream = 3};
  std::map<int32_t, int> count;
  for (int i = 0; i < n; ++i) ++count[nn::sample(logits, how, random.uniform(uint64_t(i)))];
  return count;
}

// Chi-square of counts against shares (of the ids in order), to be compared with its degrees of
// freedom.
double chi_square(const std::map<int32_t, int>& count, const std::vector<double>& share, int n) {
  double sum = 0;
  for (size_t i = 0; i < share.size(); ++i) {
    auto it = count.find(int32_t(i));
    const double got = it == count.end() ? 0 : it->second, wanted = share[i] * n;
    if (share[i] == 0) {
      CHECK(got == 0);
      continue;
    }
    sum += (got - wanted) * (got - wanted) / wanted;
  }
  return sum;
}

std::vector<double> softmax(const std::vector<float>& logits, double temperature,
                            const std::vector<bool>& kept) {
  std::vector<double> out;
  double all = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    out.push_back(kept[i] ? std::exp(double(logits[i]) / temperature) : 0);
    all += out.back();
  }
  for (double& x : out) x /= all;
  return out;
}

}  // namespace

TEST_CASE("sample: draws follow the softmax at a temperature, whole or among the likeliest") {
  const std::vector<float> logits = {0.3f, -1.2f, 2.0f, 0.9f, 0.9f, -4.0f, 1.4f};
  constexpr int n = 40000;
  const std::vector<bool> all(7, true);
  // 99.9 % of chi-squares with 6 degrees of freedom are below 22.5, with 2 below 13.9.
  CHECK(chi_square(draws(logits, {.temperature = 1, .top_p = 1}, n), softmax(logits, 1, all), n) <
        22.5);
  CHECK(chi_square(draws(logits, {.temperature = 2.5, .top_p = 1}, n), softmax(logits, 2.5, all),
                   n) < 22.5);
  // The three likeliest are 2, 6 and, of two equals, the earlier 3.
  const std::vector<bool> three = {false, false, true, true, false, false, true};
  CHECK(chi_square(draws(logits, {.temperature = 1, .top_k = 3, .top_p = 1}, n),
                   softmax(logits, 1, three), n) < 13.9);
  // 2 has .42 of the mass, 2 and 6 .66, with 3 .80.
  CHECK(chi_square(draws(logits, {.temperature = 1, .top_p = 0.7}, n), softmax(logits, 1, three),
                   n) < 13.9);
  // Of the first three 2 has .53 and 6 .29: .6 of them is in two.
  const auto both = draws(logits, {.temperature = 1, .top_k = 3, .top_p = 0.6}, n);
  CHECK(chi_square(both, softmax(logits, 1, {false, false, true, false, false, false, true}), n) <
        10.9);
}

TEST_CASE("sample: temperature 0 takes the likeliest, of equals the first; so do narrow choices") {
  const std::vector<float> logits = {1, 3, 2, 3};
  for (double u : {1e-9, 0.3, 1 - 1e-9}) {
    CHECK(nn::sample(logits, {.temperature = 0}, u) == 1);
    CHECK(nn::sample(logits, {.temperature = 4, .top_k = 1}, u) == 1);
    CHECK(nn::sample(logits, {.temperature = 4, .top_p = 1e-9}, u) == 1);
    CHECK(nn::sample(std::vector<float>{5}, {}, u) == 0);
  }
  const float never = -std::numeric_limits<float>::infinity();
  CHECK(draws({never, 0, never}, {.temperature = 9, .top_p = 1}, 100).size() == 1);
}

TEST_CASE("sample: logits that are NaN are refused") {
  const float infinite = std::numeric_limits<float>::infinity(), nan = std::nanf("");
  CHECK(message([&] {
          nn::sample(std::vector<float>{1, nan}, {}, 0.5);
        }) == "sample: the logit of token 1 is NaN");
  CHECK_REFUSES(nn::sample(std::vector<float>{nan, 1}, {.temperature = 0}, 0.5), "token 0 is NaN");
  CHECK(contains(message([&] { nn::sample(std::vector<float>{1, infinite}, {}, 0.5); }), "inf"));
  CHECK(contains(message([&] { nn::sample(std::vector<float>{-infinite}, {}, 0.5); }), "inf"));
}

TEST_CASE("text stream: only whole characters are returned, whatever the pieces") {
  const std::string text = "a\xc3\xa9 \xe2\x82\xac\xf0\x9f\x98\x80z";
  for (size_t piece : {1, 2, 3, 5}) {
    nn::TextStream stream({});
    std::string out;
    for (size_t at = 0; at < text.size(); at += piece) {
      CHECK_FALSE(stream.push(text.substr(at, piece)));
      const std::string shown = stream.take(false);
      CHECK(nn::whole_characters(shown) == shown.size());
      CHECK((shown.empty() || (shown[0] & 0xc0) != 0x80));
      out += shown;
    }
    CHECK(out == text);
    CHECK(stream.take(true).empty());
  }
  nn::TextStream cut({});
  cut.push("ab\xe2\x82");
  CHECK(cut.take(false) == "ab");
  CHECK(cut.take(true) == "\xe2\x82");                   // the end of the text, unchanged
  CHECK(nn::whole_characters("\x80\x80\x80\x80") == 4);  // no UTF-8 at all
  CHECK(nn::whole_characters("x\xff") == 2);
}

TEST_CASE("text stream: a stop text ends it, also across tokens, and is never shown in part") {
  for (size_t piece : {1, 2, 4, 100}) {
    nn::TextStream stream({"END", "\n\n"});
    const std::string text = "one ENtwo\nENEND three";
    std::string out;
    bool stopped = false;
    for (size_t at = 0; at < text.size() && !stopped; at += piece) {
      stopped = stream.push(text.substr(at, piece));
      out += stream.take(stopped);
      CHECK(std::string("one ENtwo\nEN").rfind(out, 0) == 0);
    }
    CHECK(stopped);
    CHECK(out == "one ENtwo\nEN");
    CHECK(stream.text() == out);
  }
  nn::TextStream held({"END"});
  held.push("an EN");
  CHECK(held.take(false) == "an ");
  CHECK(held.take(true) == "EN");
}

}  // namespace brine::tests
