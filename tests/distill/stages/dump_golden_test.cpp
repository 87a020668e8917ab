// Dumps that PyTorch made of small models (tests/golden/models/make_dumps.py) are those of Brine.
#include <doctest/doctest.h>

#include "distill/teachers/dump_batch.h"
#include "nn/io/model_io.h"
#include "tests/distill/setup.h"
#include "tests/paths.h"

namespace brine::test {

TEST_CASE("dumps of PyTorch are those of the same model here, tensor by tensor") {
  NoGrad off;
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "gpt2", "opt", "bert_masked_lm"}) {
    CAPTURE(name);
    const std::string golden = std::string(source_dir()) + "/tests/golden/";
    const nn::LoadedModel loaded = nn::load_model(golden + "models/" + name);
    const data::DumpReader reader(golden + "dumps/" + name);
    reader.verify();
    const data::DumpSpec& spec = reader.spec();
    CHECK(spec.teacher_hash == loaded.hash());
    CHECK(spec.samples == 2);
    CHECK(spec.value);
    CHECK(spec.key_heads == loaded.config.shape().attention().groups());
    for (int64_t sample = 0; sample < spec.samples; ++sample) {
      const data::DumpBatch stored = reader.read(std::vector<int64_t>{sample});
      const int64_t T = stored.lengths.data<int64_t>()[0];
      CHECK(T == (sample == 0 ? 9 : 6));
      const Tensor ids = stored.tensors["tokens"].slice(1, 0, T).contiguous();
      CHECK_NOTHROW(compare_with_teacher(reader, sample, loaded.model, ids));
      OnlineTeacher teacher(loaded.model, spec.top_n);
      Downloads arriving;
      const Batch batch{.ids = ids, .lengths = {}, .windows = {}, .tokens = T};
      const data::DumpBatch made = dump_batch(teacher, batch, spec, arriving);
      auto compare = [&](const std::string& what, const Tensor& x, const Tensor& y, int axis) {
        CHECK(close_to_scale(x.slice(axis, 0, T).contiguous(), y, 2e-6, what));
      };
      for (int64_t l = 0; l < spec.layers; ++l) {
        for (const char* tensor : {"query", "key", "value", "attention_output", "output"}) {
          const bool by_head = data::find_teacher_tensor(tensor)->by_head();
          compare(join("layer ", l, " ", tensor), stored.layers[size_t(l)][tensor],
                  made.layers[size_t(l)][tensor], by_head ? 2 : 1);
        }
      }
      compare("logits", stored.tensors["logits"], made.tensors["logits"], 1);
      compare("lse", stored.tensors["lse"], made.tensors["lse"], 1);
      CHECK(stored.tensors["logit_ids"].slice(1, 0, T).contiguous().to_vector() ==
            made.tensors["logit_ids"].to_vector());
    }
  }
}

}  // namespace brine::test
