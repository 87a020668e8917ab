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
#include "tensor/functions/transfer.h"

namespace brine::distill {

class DumpTeacher : public Teacher {
 public:
  // Throws when the dump was made with another teacher, tokenizer or corpus, with windows of
  // another length, or of a model of other sizes; the error names both.
  struct Expected {
    data::DumpSource source;
    int64_t window = 0;         // tokens of each; 0: texts of a task, of any length
    nn::ModelShape shape = {};  // of the student
    int64_t columns = 0;        // of the student's estimate; 0: not known
    // Samples are windows of their stored tokens, in their order, not of a corpus.
    bool uses_stored_tokens = false;
  };
  DumpTeacher(const std::string& dir, const Expected& expected);

  // The samples as windows of `corpus`, or (null) of their stored tokens; the padding of shorter
  // ones is left out. Throws when a stored token is not that of the corpus.
  std::unique_ptr<WindowSource> samples(std::shared_ptr<const data::TokenSource> corpus,
                                        uint64_t seed) const;
  // The texts of a task's split that have a sample, in the split's order; from now on they have
  // these numbers. Throws for a sample that is not a text of the split, or has another length or,
  // if stored, other tokens.
  std::shared_ptr<const data::TaskTokens> texts(std::shared_ptr<const data::TaskTokens> split);
  // The samples as texts of their stored tokens, without labels; what follows the first token
  // `separator` is the second text of a pair; -1: there are no pairs.
  std::shared_ptr<data::TaskTokens> stored_texts(int32_t separator) const;
  const data::DumpSpec& spec() const { return reader_.spec(); }
  std::string dir() const { return reader_.dir().string(); }
  // Throws Error in one line unless the sample of a batch of one is what the teacher gives for it,
  // or (null) its values are possible.
  void check_sample(std::shared_ptr<nn::Model> teacher, const Batch& batch) const;
  // The dump has too little of the attention for the loss prob.
  bool is_pooled() const { return reader_.has(data::part::pooled); }

  void require(const TeacherNeeds& needs) override;
  void plan(const BatchOrder& order, int64_t first) override;
  void begin(const Batch& batch) override;
  TeacherLayer layer(int64_t i) override;
  // The same with one head of keys and values for each group: [B, G, T, d].
  TeacherLayer grouped_layer(int64_t i);
  TopLogits logits(int64_t first, int64_t rows) override;
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
  int64_t tokens_ = 0;                              // of the batch, with padding
  Arrived now_;
  std::optional<Arrived> coming_;
  std::unique_ptr<data::DumpPrefetch> prefetch_;  // its thread uses the members above
};

}  // namespace brine::distill
