// How the tests compare refusals: parts in order, as whole words.
#include "tests/refusals.h"

namespace brine::tests {

using test::says;

TEST_CASE("refusals: a message says its parts in order and as whole words") {
  const std::string text = "select: k 16 of 'a.b' is above 160, wanted [1, 15]";
  CHECK(says(text, {"select", "k", "16", "160", "[1, 15]"}));
  CHECK(says(text, {"'a.b'"}));
  CHECK(says(text, {"a.b"}));
  CHECK(says(text, {"16 of"}));
  CHECK_FALSE(says(text, {}));                    // asks for nothing
  CHECK_FALSE(says(text, {"160", "16"}));         // another order
  CHECK_FALSE(says(text, {"16", "16"}));          // once only, and not in 160
  CHECK_FALSE(says(text, {"sel"}));               // half a word
  CHECK_FALSE(says(text, {"elect"}));             // the other half
  CHECK_FALSE(says(text, {"wanted", "select"}));  // another order
  CHECK_FALSE(says(text, {""}));                  // says nothing
  CHECK_FALSE(says("", {"select"}));
}

TEST_CASE("refusals: a function that throws nothing does not refuse") {
  CHECK_FALSE(says(test::message([] {}), {"select"}));
  CHECK(says(test::message([] { throw Error("select: 3"); }), {"select", "3"}));
}

}  // namespace brine::tests
