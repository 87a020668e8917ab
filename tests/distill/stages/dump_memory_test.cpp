// The memory of a dump: values of a shard, or of a sample that is larger, however long the dump.
#include <doctest/doctest.h>

#include <nlohmann/json.hpp>

#include "distill/runs/dump_run.h"
#include "nn/io/model_io.h"
#include "tensor/device/allocator.h"
#include "tests/distill/task_setup.h"
#include "tests/scratch.h"

namespace brine::test {

TEST_CASE("dump memory: not more than a shard's values, or a sample's, however many samples") {
  Scratch scratch;
  const std::string directory = (scratch / "teacher").string();
  save_teacher(small_llama(12, 512), directory);
  const nn::LoadedModel teacher = nn::load_model(directory);
  std::string words;
  for (int i = 0; words.size() < 16'000; ++i) words += "the king of " + std::to_string(i) + ". ";
  const std::string text = scratch.write("text", words);
  // q, k, contexts and outputs of a token in f16, of which logits are the smaller part.
  const double token = 12 * 2 * (32 + 16 + 32 + 24), mib = 1 << 20;
  auto peak = [&](int64_t tokens, int64_t windows) {
    DumpRequest request;
    request.out = (scratch / join(tokens, "-", windows)).string();
    request.data = {text};
    request.sequence_length = tokens;
    request.windows = windows;
    request.batch_size = 64;
    request.shard_mib = 1;
    request.top_logits = 8;
    reset_peak();
    const int64_t before = allocator_stats().live;
    CHECK(dump_teacher(teacher, *nn::tokenizer_of(directory), request, {}));
    return double(allocator_stats().peak_live - before);
  };
  const double own = mib;  // of the teacher, a layer in f32 among it
  CHECK(peak(128, 6) < mib + own);
  CHECK(peak(128, 60) < mib + own);  // 19 shards
  REQUIRE(512 * token > mib);
  CHECK(peak(512, 6) < 512 * token + own);
}

}  // namespace brine::test
