// Measurement for the benches: one row per work, medians.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "tensor/base/error.h"
#include "tensor/tensor.h"

namespace brine::bench {

struct BenchRow {
  std::string name;
  std::string shape;
  double ms = 0;  // median
  double rate = 0;
  std::string unit;  // of rate
  double share = 0;  // of the rate of a product of matrices, measured alternately; 0 = none
  double ratio = 0;  // to the reference that the name or a note gives; 0 = none
  int64_t peak = 0;  // peak of live bytes; 0 = not measured
  std::vector<std::pair<std::string, double>> notes = {};  // further figures, by name
};

// A measurement that threw, named as its rows are; both names are empty for a whole suite.
struct BenchFailure {
  std::string name = {}, shape = {}, error;
};

// The device no longer answers: what follows would fail as well.
struct DeviceLost : Error {
  using Error::Error;
};

// Receives the rows of a suite, each as soon as it is measured.
class RowSink {
 public:
  virtual ~RowSink() = default;
  virtual void add(const BenchRow& row) = 0;
  // A part of a suite: what `measure` throws is a failure of that part, after which the suite goes
  // on. Throws DeviceLost if the device then reports an error, too.
  void attempt(const std::string& name, const std::string& shape,
               const std::function<void()>& measure);

 protected:
  virtual void fail(const BenchFailure& failure) = 0;
  // Throws what the default device reports.
  virtual void settle() const;
};

// Quick: tiny sizes and one run each, to check that everything runs; the figures are meaningless.
// Set once, before anything is measured.
void set_quick(bool quick);
bool is_quick();
// The size to measure at.
inline int64_t sized(int64_t full, int64_t quick) { return is_quick() ? quick : full; }
// Numbers of tokens at which costs are compared; a GPU continues to 131,072.
std::vector<int64_t> token_counts();

// Standard normal numbers, f32, on the default device.
Tensor noise(const Shape& shape, uint64_t seed);

// Waits for the default device, which runs asynchronously: a time ends when both CPU and device are
// done.
void finish();

// Milliseconds of a monotonic clock.
double now_ms();

double median(std::vector<double> x);  // of at least one number

// Median wall time of f in milliseconds, over at least five runs and `seconds` in total, after one
// run that is not counted; fewer runs once they have taken 15 s.
double median_time(const std::function<void()>& f, double seconds = 0.4);

// The same for two functions that alternate, so that a change of the machine's speed affects both.
std::pair<double, double> median_times(const std::function<void()>& f,
                                       const std::function<void()>& g, double seconds = 0.8);

struct BenchRequest;
using RunSuite = void(const BenchRequest& request, RowSink& rows);
// The block of each method by length, its attention and its cost a token.
RunSuite bench_attention;
// Time, rate and memory of the components of every method's block, forward and backward.
RunSuite bench_breakdown;
// A training step of an encoder layer of BERT's size, and a distillation step of a small decoder.
RunSuite bench_train;
// The block of a causal student, or of a model under `attention`, with its masks, next to softmax
// over all keys (flash): q, k and v of its last layer while it reads the text file `data` at the
// lengths `tokens` (none: 2048 to 131072). A student with fewer positions is extended. ratio: see
// the names.
RunSuite bench_trained;
// Reading the start of the text file `data` with a model, then token by token, at the contexts
// `tokens` (none: 1024, 4096, 8192): its attention or `attention`, and full attention (flash) with
// the same weights. The weights are held in the type `weights`. ratio: full attention's time over
// that of the row. peak: of the state.
RunSuite bench_generate;

}  // namespace brine::bench
