// A library that is loaded when it is needed: a program linked with it would not start on a machine
// without it.
#pragma once

#include <dlfcn.h>

#include <string>
#include <utility>

#include "tensor/base/error.h"

namespace brine {

class SharedLibrary {
 public:
  // `user` begins the messages. Libraries with plug-ins of their own need RTLD_GLOBAL.
  SharedLibrary(std::string user, const std::string& name, int visibility = RTLD_LOCAL)
      : user_(std::move(user)),
        name_(name),
        handle_(dlopen(name.c_str(), RTLD_NOW | visibility)),
        why_(handle_ ? "" : dlerror()) {}
  bool found() const { return handle_ != nullptr; }
  // The loader's message when it was not found.
  const std::string& why() const { return why_; }
  // Throws if the library is too old to have it.
  void* address(const char* symbol) const {
    void* const found = dlsym(handle_, symbol);
    check(found != nullptr, user_, ": ", name_, " has no ", symbol);
    return found;
  }
  template <class F>
  F* function(const char* name) const {
    return reinterpret_cast<F*>(address(name));
  }

 private:
  std::string user_, name_;
  void* handle_;
  std::string why_;
};

}  // namespace brine
