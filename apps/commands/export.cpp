// brine export: a checkpoint or run as a Hugging Face style directory, whole or as an adapter.
#include "apps/cli/program.h"
#include "apps/terminal/terminal.h"
#include "apps/transformers/student_files.h"
#include "data/io/human.h"
#include "distill/runs/training_run.h"
#include "nn/io/model_io.h"

namespace brine {
namespace {

struct Export {
  std::string checkpoint, out, base_model;
  ExportFormat format = ExportFormat::brine;
  Dtype dtype = Dtype::f32;
  int64_t shard_size = 0;
  bool sea_only = false, merge = false;

  void describe(data::Schema& s) {
    s.field("checkpoint", checkpoint, "Run, checkpoint, model directory or GGUF file",
            {.required = true});
    s.field("out", out, "Directory to write", {.required = true});
    s.choice("dtype", dtype, {{Dtype::f32, "f32"}, {Dtype::f16, "f16"}, {Dtype::bf16, "bf16"}},
             "Type of the weights");
    s.field("shard_size", shard_size, "Largest file of weights in MiB; 0 = one file", {.min = 0});
    s.choice("format", format, kExportFormats, kExportFormatHelp);
    s.field("sea_only", sea_only,
            "Write only the attention method's tensors, an adapter of --base-model");
    s.field("base_model", base_model,
            "With --sea-only: the model with the other weights; its path is stored as given");
    s.field("merge", merge, "Merge low-rank additions into the weights that they belong to");
  }

  int run(const RunContext&) {
    check(sea_only == !base_model.empty(),
          "export: --sea-only and --base-model must be given together");
    nn::LoadedModel m = distill::load_model(checkpoint, log_messages(), {.map = true});
    if (merge) m = nn::merged_low_rank(m);
    const std::unique_ptr<data::Tokenizer> tokenizer =
        distill::tokenizer_to_export(m, log_messages());
    nn::ExportOptions options{
        .dtype = dtype, .shard_bytes = uint64_t(shard_size) << 20, .base_model = base_model};
    if (format == ExportFormat::transformers) add_transformers_files(m.config, options);
    nn::export_model(m.config, *m.model, tokenizer.get(), out, options);
    log_info(out, ": ", m.config.attention, sea_only ? " adapter of a" : "", " model of ",
             human_count(double(nn::parameter_count(*m.model))), " parameters in ", dtype,
             ", from ", m.directory);
    return 0;
  }
};
const RegisterSubcommand<Export> registration(
    "export", "Write a model as Hugging Face style directory",
    {"brine export --checkpoint RUN --out DIR --format transformers", "docs/transformers.md"});

}  // namespace
}  // namespace brine
