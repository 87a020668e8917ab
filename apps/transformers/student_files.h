// A student as a directory that transformers loads: the Python sources next to its weights, and the
// keys of config.json by which they are found.
#pragma once

#include <cstdint>

#include "nn/io/model_io.h"

namespace brine {

enum class ExportFormat : uint8_t { brine, transformers };
inline constexpr data::Named<ExportFormat> kExportFormats[] = {
    {ExportFormat::brine, "brine"}, {ExportFormat::transformers, "transformers"}};
inline constexpr const char* kExportFormatHelp =
    "transformers: with the Python sources by which transformers loads a SEA student";

// Adds python_sources() to `options`, and to config.json "auto_map" and "sparse_attention_config"
// (as NVIDIA's Model Optimizer writes it). Throws for a model that is not a SEA student, and for
// one with low-rank additions.
void add_transformers_files(const nn::ModelConfig& config, nn::ExportOptions& options);

}  // namespace brine
