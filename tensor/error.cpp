// Names of the kinds of errors.
#include "tensor/error.h"

namespace brine {

const char* name_of(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument:
      return "invalid argument";
    case ErrorKind::format:
      return "format";
    case ErrorKind::io:
      return "io";
    case ErrorKind::not_found:
      return "not found";
    case ErrorKind::out_of_memory:
      return "out of memory";
  }
  return "";
}

}  // namespace brine
