// Training runs of the tests of ranks: a short one, and a long one that is disturbed.
#pragma once

#include "tests/apps/ranks/launch.h"

namespace brine::tests {

inline const char* const kTrain =
    "train --config model.toml --tokenizer tok --train text.txt --valid text.txt --keep 0 "
    "--model.dropout 0.1 ";

inline constexpr int kLong = 240;
inline std::string long_run(const std::string& out, int rank_seconds = 20) {
  return kTrain + join("--steps ", kLong, " --save-every 20 --eval-every ", kLong,
                       " --accumulate 4 --rank-seconds ", rank_seconds, " --out ", out);
}

// Starts the long run on three ranks, waits for its first checkpoint, calls `disturb` and returns
// how the launcher ended.
inline Finished disturbed(const Launcher& launcher, const std::string& arguments,
                          const std::string& out, const std::function<void()>& disturb) {
  for (int r = 0; r < 3; ++r) std::filesystem::remove(ranked_world().path(join("pid.", r)));
  Finished done;
  std::thread launched([&] { done = ranked_world().run(arguments, launcher.of(3)); });
  const std::filesystem::path first = world().path(out + "/step-00000020/manifest.json");
  const bool began = wait_until(60, [&] { return std::filesystem::exists(first); });
  if (began) disturb();
  launched.join();
  CHECK_MESSAGE(began, done.error);
  const bool gone = wait_until(20, [] {
    return !is_alive(process_of(0)) && !is_alive(process_of(1)) && !is_alive(process_of(2));
  });
  CHECK(gone);
  return done;
}

inline void check_resumes(const Launcher& launcher, const std::string& out,
                          const std::string& expected) {
  for (const int ranks : {1, 3}) {
    const std::string copy = join(out, "-resumed-", ranks);
    std::filesystem::copy(world().path(out), world().path(copy),
                          std::filesystem::copy_options::recursive);
    must_run(long_run(copy) + " --resume", launcher.of(ranks));
    std::map<std::string, std::string> a = traces_of(copy), b = traces_of(expected);
    const std::string last = join("step-00000", kLong, "/");
    for (const char* file : {"model.safetensors", "optimizer.safetensors", "trainer.json"}) {
      INFO(copy, " ", file);
      const bool same = !b[last + file].empty() && a[last + file] == b[last + file];
      CHECK(same);
    }
  }
}

}  // namespace brine::tests
