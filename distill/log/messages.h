// Human-readable messages of a library call, passed to functions that the caller provides.
#pragma once

#include <functional>
#include <string>
#include <utility>

#include "tensor/base/error.h"

namespace brine::distill {

class Messages {
 public:
  enum class Level { detail, info, warning };
  using Sink = std::function<void(Level, const std::string&)>;

  Messages() = default;  // drops every line
  explicit Messages(Sink sink) : sink_(std::move(sink)) {}

  template <class... Parts>
  void detail(const Parts&... parts) const {
    write(Level::detail, parts...);
  }
  template <class... Parts>
  void info(const Parts&... parts) const {
    write(Level::info, parts...);
  }
  template <class... Parts>
  void warning(const Parts&... parts) const {
    write(Level::warning, parts...);
  }

 private:
  template <class... Parts>
  void write(Level level, const Parts&... parts) const {
    if (sink_) sink_(level, join(parts...));
  }

  Sink sink_;
};

}  // namespace brine::distill
