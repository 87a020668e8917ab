// Subcommands whose work the ranks of a launcher divide.
#include "apps/cli/divided.h"

#include <iostream>
#include <nlohmann/json.hpp>
#include <streambuf>

#include "apps/cli/ranks.h"
#include "apps/terminal/commit.h"
#include "data/io/json.h"
#include "distill/ranks/exchange.h"
#include "tensor/comm/shared_work.h"

namespace brine {
namespace {

class NoOutput : public std::streambuf {
  int overflow(int c) override { return traits_type::not_eof(c); }
  std::streamsize xsputn(const char*, std::streamsize n) override { return n; }
};

// Standard output of every rank but the first.
class QuietOthers {
 public:
  explicit QuietOthers(bool is_first) : before_(is_first ? nullptr : std::cout.rdbuf(&nothing_)) {}
  ~QuietOthers() {
    if (before_) std::cout.rdbuf(before_);
  }
  QuietOthers(const QuietOthers&) = delete;
  QuietOthers& operator=(const QuietOthers&) = delete;

 private:
  NoOutput nothing_;
  std::streambuf* before_;
};

}  // namespace

int run_divided(const RunContext& context, const std::function<int(Communicator&)>& body) {
  Communicator& ranks = process_ranks();
  distill::compare_texts(ranks, "program", "brine " BRINE_VERSION " of commit " + commit_name());
  distill::compare_settings(ranks, "configuration", json_text(context.keys.to_json()));
  const QuietOthers quiet(ranks.is_first());
  int status = 0;
  do_work(ranks, context.command, [&] { status = body(ranks); });
  return status;
}

}  // namespace brine
