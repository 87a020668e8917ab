// An error is sent in place of a result: every rank reaches the same exchange.
#include "tensor/comm/shared_work.h"

#include <algorithm>
#include <new>

#include "tensor/comm/bytes.h"

namespace brine {
namespace {

constexpr char kDone = 'd', kFailed = 'f';

// The text of `work`'s error, or its result, with a mark at the end.
std::string outcome_of(const std::function<std::string()>& work) {
  try {
    return work() + kDone;
  } catch (const SharedError&) {
    throw;  // every rank has it
  } catch (const RanksMissing&) {
    throw;  // no exchange can follow
  } catch (const std::bad_alloc&) {
    return std::string("out of memory") + kFailed;
  } catch (const std::exception& e) {
    return std::string(e.what()) + kFailed;
  }
}

void throw_shared(const std::vector<std::string>& all) {
  const auto failed = [](const std::string& s) { return s.back() == kFailed; };
  const auto first = std::find_if(all.begin(), all.end(), failed);
  if (first == all.end()) return;
  const std::string text = first->substr(0, first->size() - 1);
  const bool same = std::all_of(all.begin(), all.end(), [&](const auto& s) { return s == *first; });
  throw SharedError(same ? text : join("rank ", first - all.begin(), ": ", text));
}

}  // namespace

std::vector<std::string> gather_work(Communicator& ranks, const std::string& what,
                                     const std::function<std::string()>& work) {
  if (ranks.size() == 1) return {work()};
  const std::string outcome = outcome_of(work);
  ranks.barrier(what, kWorkTimeoutFactor);
  std::vector<std::string> all = ranks.gather(what, outcome);
  for (const std::string& s : all) check(!s.empty(), what, ": a message is empty");
  throw_shared(all);
  for (std::string& s : all) s.pop_back();
  return all;
}

void do_work(Communicator& ranks, const std::string& what, const std::function<void()>& work) {
  gather_work(ranks, what, [&] {
    work();
    return std::string();
  });
}

void do_work_of_first(Communicator& ranks, const std::string& what,
                      const std::function<void()>& work) {
  do_work(ranks, what, [&] {
    if (ranks.is_first()) work();
  });
}

void divide_work(Communicator& ranks, const std::string& what, int64_t count,
                 const std::function<std::string(int64_t)>& work,
                 const std::function<void(int64_t, const std::string&)>& add) {
  if (ranks.size() == 1) {
    for (int64_t n = 0; n < count; ++n) add(n, work(n));
    return;
  }
  const std::vector<std::string> all = gather_work(ranks, what, [&] {
    ByteWriter writer;
    writer.number(count);
    for (int64_t n = ranks.rank(); n < count; n += ranks.size()) writer.text(work(n));
    return writer.bytes();
  });
  std::vector<ByteReader> readers;
  for (const std::string& bytes : all) {
    readers.emplace_back(bytes);
    const auto remote_count = readers.back().number<int64_t>();
    if (remote_count == count) continue;
    throw Error(join(what, ": rank ", readers.size() - 1, " has ", remote_count, " parts, rank ",
                     ranks.rank(), " ", count));
  }
  for (int64_t n = 0; n < count; ++n) add(n, readers[size_t(n % ranks.size())].text());
}

}  // namespace brine
