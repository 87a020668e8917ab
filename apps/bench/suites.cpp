// The suites of `brine bench` by name.
#include "apps/bench/suites.h"

#include <algorithm>

#include "tensor/device/device.h"
#include "tensor/error.h"

namespace brine::bench {
namespace {

const Suite kSuites[] = {{"pointwise", bench_pointwise},
                         {"gemm", bench_gemm},
                         {"conv", bench_conv},
                         {"attention", bench_attention, true},
                         {"breakdown", bench_breakdown, true},
                         {"sparse", bench_sparse, true},
                         {"train", bench_train, true},
                         {"decode", bench_decode, true},
                         {"streamed", bench_streamed, true},
                         {"encoder", bench_encoder, true},
                         {"decoder", bench_decoder, true},
                         {"coo", bench_coo},
                         {"paper-latency", bench_paper_latency, true}};

}  // namespace

std::span<const Suite> suites() { return kSuites; }

void check_suites(const std::vector<std::string>& what) {
  if (!default_device().is_cuda()) return;
  for (const std::string& name : what) {
    const auto* suite = std::find_if(std::begin(kSuites), std::end(kSuites),
                                     [&](const Suite& s) { return s.name == name; });
    // trained runs on any device, and a tokenizer uses the CPU wherever models compute.
    check(suite == std::end(kSuites) || suite->anywhere, "bench: ", name,
          " measures the CPU; add --device cpu");
  }
}

std::vector<std::string> suite_names() {
  std::vector<std::string> names;
  for (const Suite& suite : kSuites) names.push_back(suite.name);
  names.insert(names.end(), {"trained", "tokenizer"});  // those that need files
  return names;
}

}  // namespace brine::bench
