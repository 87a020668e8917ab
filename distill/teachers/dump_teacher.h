// A teacher from an HDF5 dump. A separate thread reads batches ahead; on a device the next one is
// uploaded, concurrently with the kernels, while the student learns from the current one.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "data/dump/dump_reader.h"
#include "data/tasks/task_tokens.h"
#include "distill/teachers/teacher.h"
#include "tensor/device/transfer.h"

namespace brine::distill {

class DumpTeacher : public Teacher {
 public:
  // Throws when the dump was made with another teacher, tokenizer or corpus, or with windows of
  // another length; the error names both.
  struct Expected {
    data::DumpSource source;
    int64_t window = 0;   // tokens of each; 0: texts of a task, of any length
    bool causal = true;   // of the student
    int64_t columns = 0;  // of the student's estimate; 0: not known
    // Samples are windows of their own stored tokens, in their order, not of a corpus.
    bool own_tokens = false;
  };
  DumpTeacher(const std::string& dir, const Expected& expected);

  // The samples as windows of `corpus`, or (null) of their own tokens; the padding of shorter ones
  // is left out. Throws when a stored token is not that of the corpus.
  std::unique_ptr<WindowSource> samples(std::shared_ptr<const data::TokenSource> corpus,
                                        uint64_t seed) const;
  // Throws unless every text of a task has a sample with its length and, if stored, its tokens.
  void compare(const data::TaskTokens& texts) const;
  // The dump has too little of the attention for the loss prob.
  bool is_pooled() const { return reader_.has(data::part::pooled); }

  void require(const TeacherNeeds& needs) override;
  void plan(const BatchOrder& order, int64_t first) override;
  void begin(const Batch& batch) override;
  TeacherLayer layer(int64_t i) override;
  TopLogits logits() override;
  Tensor class_logits() override;

 private:
  // A batch on the student's device. The copies keep their sources alive: the memory is that of two
  // batches on the device and, on the CPU, of these two, one that waits and one that is being read.
  struct Arrived {
    data::DumpBatch batch;
    Uploads uploads;
  };
  Arrived send(data::DumpBatch read) const;
  void look_ahead();
  std::vector<int64_t> samples_of(const std::vector<int64_t>& windows) const;
  // Calls see(sample, its tokens or null, its length) for every sample.
  using See = std::function<void(int64_t sample, const int32_t* tokens, int64_t length)>;
  void each_sample(const See& see) const;
  void compare_tokens(int64_t sample, const int32_t* stored, std::span<const int32_t> tokens,
                      const std::string& source) const;

  data::DumpReader reader_;
  data::DumpWants wants_;
  int64_t columns_;
  std::unordered_map<int64_t, int64_t> sample_of_;  // by window
  Arrived now_;
  std::optional<Arrived> coming_;
  std::unique_ptr<data::DumpPrefetch> prefetch_;  // its thread uses the members above
};

}  // namespace brine::distill
