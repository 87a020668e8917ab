// What an evaluation counts besides its result, batch by batch, in parts that are sent between
// ranks.
#pragma once

#include <string>

namespace brine::distill {

class BatchMeasure {
 public:
  virtual ~BatchMeasure() = default;
  // What was counted since the last call; resets the counts.
  virtual std::string take() = 0;
  // Adds what take() gave, on this rank or another one.
  virtual void add(const std::string& part) = 0;
};

}  // namespace brine::distill
