// The text of an error, in one function for all combinations of parts.
#include "tensor/base/error.h"

#include <sstream>

namespace brine {

std::string join_parts(std::initializer_list<MessagePart> parts) {
  std::ostringstream out;
  for (const MessagePart& part : parts) part.print(out, part.value);
  return out.str();
}

void throw_error(ErrorKind kind, std::initializer_list<MessagePart> parts) {
  throw Error(join_parts(parts), kind);
}

}  // namespace brine
