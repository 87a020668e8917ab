// Measurement of whole training steps.
#pragma once

#include "apps/bench/bench.h"
#include "distill/losses/losses.h"
#include "nn/models/model_config.h"
#include "nn/optim/optimizer.h"
#include "nn/optim/parameter_store.h"

namespace brine::bench {

// Medians of a step; its share inside products (on a device: how often it waits for the device) and
// its system calls after the third.
BenchRow step_row(const std::string& name, const std::string& shape, int64_t tokens,
                  const std::function<void()>& step);

// The quickstart's models: a teacher of 4 layers x 256 with 8 heads and a student with its weights,
// SEA `lean` with k = 16 and 64 columns. Random weights, no dropout.
struct Student {
  explicit Student(int64_t positions);

  nn::ModelConfig config;
  std::shared_ptr<nn::Model> teacher, model;
  std::unique_ptr<nn::ParameterStore> store, teacher_store;
};

// A step as in the trainer, which waits for a device once.
void training_step(distill::Objective& objective, const distill::Batch& batch,
                   const distill::Objective::Call& call, nn::ParameterStore& store,
                   nn::Adamw& adamw);

// B windows of T random tokens.
distill::Batch random_batch(int64_t B, int64_t T, int64_t vocab);

// A classifier of MiniLM's size, and a decoder of OPT-125M's.
void encoder_rows(RowSink& rows);
void decoder_rows(RowSink& rows);

}  // namespace brine::bench
