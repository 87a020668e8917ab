// The entry of every test program: runs the cases and counts those that were skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>

#include <cstdlib>
#include <iostream>
#include <map>
#include <set>

#include "tests/paths.h"
#include "tests/skip.h"

std::string brine::test::source_dir() { return BRINE_SOURCE_DIR; }
// Where the programs are: of the build, or of a pack on another machine (scripts/gpu-check).
std::string brine::test::binary_dir() {
  const char* programs = std::getenv("BRINE_TEST_PROGRAMS");
  return programs ? programs : BRINE_BINARY_DIR;
}

namespace {

std::map<std::string, std::set<std::string>> skipped_cases;  // by reason
std::set<std::string> started_cases;

// Observes which cases start: the options contain the running one, and a filter runs only some.
struct CaseListener : doctest::IReporter {
  explicit CaseListener(const doctest::ContextOptions&) {}
  void report_query(const doctest::QueryData&) override {}
  void test_run_start() override {}
  void test_run_end(const doctest::TestRunStats&) override {}
  void test_case_start(const doctest::TestCaseData& data) override {
    started_cases.insert(data.m_name);
  }
  void test_case_reenter(const doctest::TestCaseData&) override {}
  void test_case_end(const doctest::CurrentTestCaseStats&) override {}
  void test_case_exception(const doctest::TestCaseException&) override {}
  void subcase_start(const doctest::SubcaseSignature&) override {}
  void subcase_end() override {}
  void log_assert(const doctest::AssertData&) override {}
  void log_message(const doctest::MessageData&) override {}
  void test_case_skipped(const doctest::TestCaseData&) override {}
};
REGISTER_LISTENER("cases", 1, CaseListener);

}  // namespace

void brine::test::skip(const std::string& reason) {
  skipped_cases[reason].insert(doctest::getContextOptions()->currentTest->m_name);
}

int main(int count, char** words) {
  doctest::Context context(count, words);
  const int code = context.run();
  std::set<std::string> skipped;
  for (const auto& [reason, cases] : skipped_cases) {
    std::cout << "skipped: " << cases.size() << " cases: " << reason << "\n";
    skipped.insert(cases.begin(), cases.end());
  }
  const bool nothing_ran = !skipped.empty() && skipped == started_cases;
  return code == 0 && nothing_ran ? 77 : code;
}
