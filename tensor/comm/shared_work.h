// Work that ranks divide: each does its part, then all have the results of all, or all throw the
// same error, so that no rank waits for one that has failed and one line says why.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tensor/comm/communicator.h"

namespace brine {

// The limit of a wait for other ranks' work, in limits of a message: some ranks are slower.
inline constexpr double kWorkTimeoutFactor = 24;

// What `work` returned on every rank, by rank. Where it threw, all ranks throw a SharedError: its
// text, or if ranks differ "rank 2: ..." of the lowest one that failed. With one rank `work` is
// called and nothing else happens.
std::vector<std::string> gather_work(Communicator& ranks, const std::string& what,
                                     const std::function<std::string()>& work);
// The same without results. `work` of one rank only is done by the first.
void do_work(Communicator& ranks, const std::string& what, const std::function<void()>& work);
void do_work_of_first(Communicator& ranks, const std::string& what,
                      const std::function<void()>& work);

// `count` items of work: item n is done by rank n % ranks.size(), where `work` returns its result;
// then `add` gets the results of all items on every rank, in the order of the items. Errors as
// above; ranks with another count are one.
void divide_work(Communicator& ranks, const std::string& what, int64_t count,
                 const std::function<std::string(int64_t)>& work,
                 const std::function<void(int64_t, const std::string&)>& add);

}  // namespace brine
