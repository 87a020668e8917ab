// brine flops --ranks: its formula against sums that were made, its times by hand, and the program.
#include "apps/flops/scaling.h"

#include <mutex>
#include <nlohmann/json.hpp>

#include "tensor/comm/slot_tree.h"
#include "tests/apps/world.h"
#include "tests/skip.h"
#include "tests/tensor/comm/thread_ranks.h"

namespace brine::tests {
namespace {

// Without the small messages: tokens, loss terms, whether to stop.
StepTraffic of_gradients(int64_t n, int ranks, bool zero) {
  const StepTraffic all = step_traffic(n, ranks, zero);
  return {.bytes = all.bytes - 120 * (ranks - 1), .messages = all.messages - 5 * (ranks - 1)};
}

TEST_CASE("scaling: bytes and messages are those that ranks send") {
  // The last one travels in several pieces.
  for (const int64_t n : {int64_t(1), int64_t(100), int64_t(4096), (int64_t(1) << 21) + 40}) {
    for (const int ranks : {2, 3, 4}) {
      for (const bool zero : {false, true}) {
        int64_t bytes = 0, messages = 0;
        std::mutex mutex;
        test::on_ranks(ranks, [&](Communicator& c) {
          const Tensor mine = Tensor::zeros({n});
          sum_subtrees(c, "gradients", ranks, {mine});
          if (zero) c.all_gather("values", mine);
          std::lock_guard lock(mutex);
          bytes = std::max(bytes, c.traffic().bytes);
          messages = std::max(messages, c.traffic().messages);
        });
        INFO("n ", n, " ranks ", ranks, " zero ", zero);
        CHECK(of_gradients(n, ranks, zero).bytes == bytes);
        CHECK(of_gradients(n, ranks, zero).messages == messages);
      }
    }
  }
  CHECK(step_traffic(1000, 1, true).bytes == 0);
  CHECK(step_traffic(1000, 1, true).messages == 0);
}

TEST_CASE("scaling: times of a link, of the slowest rank, and what 80 % needs") {
  // 1e9 elements: in two equal parts of 477 pieces each, 4e9 bytes to the owner, 4e9 of sums.
  ScalingInput input{.parameters = 1'000'000'000, .step_seconds = {2}, .link = {8, 0}};
  ScalingRow row = scaling_of(input, 2);
  CHECK(row.sent.messages == 2 * 477 + 5);
  CHECK(row.communication == doctest::Approx(4 + 120e-9));
  CHECK(row.slowest == 2);
  CHECK(row.efficiency == doctest::Approx(2 / 6.0));
  CHECK(row.needed == doctest::Approx(16));  // 16 / (16 + 4)
  input.link = {8, 1000};
  CHECK(scaling_of(input, 2).communication == doctest::Approx(4 + 959e-3));
  // The maximum of two draws from {1, 3} is 1 once in four times.
  input = {.parameters = 16, .step_seconds = {3, 1}, .link = {1e9, 0}};
  row = scaling_of(input, 2);
  CHECK(row.slowest == doctest::Approx(2.5));
  CHECK(row.efficiency == doctest::Approx(0.8));
  CHECK(scaling_of(input, 1).slowest == doctest::Approx(2));
  CHECK(scaling_of(input, 1).efficiency == doctest::Approx(1));
  CHECK(std::isinf(scaling_of(input, 3).needed));  // 2.75 / 2 alone is above 1 / 0.8
  CHECK(first_below(input, 0.75, 8) == 3);         // 2 / 2.75
  CHECK(first_below(input, 0.5, 8) == 0);
}

TEST_CASE("scaling: the table of the program") {
  const auto out = nlohmann::json::parse(
      world().must("flops --model teacher --ranks 2 4 --step-seconds 0.5 0.7 --json").out);
  const int64_t n = out.at("parameters");
  CHECK(out.at("ranks").size() == 2);
  CHECK(out["ranks"][1].at("ranks") == 4);
  CHECK(out["ranks"][1].at("bytes") == step_traffic(n, 4, false).bytes);
  CHECK(out["ranks"][1].at("slowest_seconds").get<double>() ==
        doctest::Approx(0.5 / 16 + 0.7 * 15 / 16));
  // By a rate: three forward passes of 8 windows.
  const auto costs =
      nlohmann::json::parse(world().must("flops --model teacher --tokens 32 --json").out);
  const double forward = costs.at("costs").at("all").at("multiply_adds");
  const auto by_rate = nlohmann::json::parse(
      world().must("flops --model teacher --tokens 32 --ranks 2 --rate 1e9 --json").out);
  CHECK(by_rate.at("step_seconds").at(0).get<double>() == doctest::Approx(24 * forward / 1e9));
  CHECK(contains(world().must("flops --model teacher --ranks 8 --step-seconds 1e-9").out,
                 "Efficiency is below 80 % from 2 ranks on."));
  CHECK(contains(world().must("flops --model teacher --ranks 8 --step-seconds 1e9").out,
                 "Efficiency is 80 % or more up to 1024 ranks."));
  Finished f = world().run("flops --model teacher --ranks 8");
  CHECK(f.status == 1);
  CHECK(f.error ==
        "brine flops: --ranks needs the time of one rank's work: --step-seconds, or --rate\n");
  f = world().run("flops --model teacher --ranks 8 --rate 1 --step-seconds 1");
  CHECK(f.status == 1);
}

// What a run reports: rank 0 owns as much as any.
TEST_CASE("scaling: a run sends what the table says (needs MPICH)") {
  if (std::system("command -v mpirun.mpich >/dev/null") != 0) return test::skip("no mpirun.mpich");
  for (const char* zero : {"", " --zero"}) {
    const Finished run = world().run(
        World::train() + " --steps 200 --accumulate 2 --out scaled" + (*zero ? "-zero" : "") + zero,
        "OMP_NUM_THREADS=1 mpirun.mpich -n 2");
    REQUIRE_MESSAGE(run.status == 0, run.error);
    const size_t at = run.error.find("2 ranks; rank 0 sent ");
    REQUIRE(at != std::string::npos);
    const std::string line = run.error.substr(at, run.error.find('\n', at) - at);
    const int64_t bytes = std::stoll(line.substr(line.find('(') + 1));
    const int64_t messages = std::stoll(line.substr(line.find("and ") + 4));
    const auto table = nlohmann::json::parse(
        world()
            .must(std::string("flops --model teacher --ranks 2 --step-seconds 1 --json") + zero)
            .out);
    const nlohmann::json& row = table.at("ranks").at(0);
    CHECK(row.at("messages") == messages);
    CHECK(row.at("bytes").get<double>() == doctest::Approx(double(bytes) / 200).epsilon(0.002));
  }
}

}  // namespace
}  // namespace brine::tests
