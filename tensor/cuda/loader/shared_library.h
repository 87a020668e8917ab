// A library that is loaded when it is needed: a program linked with it would not start on a machine
// without it.
#pragma once

#include <dlfcn.h>

#include <string>

#include "tensor/base/error.h"

namespace brine::cuda {

class SharedLibrary {
 public:
  explicit SharedLibrary(const std::string& name)
      : name_(name), handle_(dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL)) {
    if (!handle_) why_ = dlerror();
  }
  bool found() const { return handle_ != nullptr; }
  // The loader's message when it was not found.
  const std::string& why() const { return why_; }
  // The function of that name; throws if the library is too old to have it.
  template <class F>
  F* function(const char* name) const {
    void* const address = dlsym(handle_, name);
    check(address != nullptr, "cuda: ", name_, " has no ", name);
    return reinterpret_cast<F*>(address);
  }

 private:
  std::string name_, why_;
  void* handle_;
};

}  // namespace brine::cuda
