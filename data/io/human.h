// Human-readable numbers: bytes, counts and durations; the width of a terminal.
#pragma once

#include <string>

namespace brine {

std::string human_bytes(double bytes);      // "512 B", "1.5 KiB", "3.2 GiB"
std::string human_seconds(double seconds);  // "0.25 s", "12.3 s", "2m05s", "3h04m", "2d03h"
std::string human_count(double count);      // "950", "12.3 k", "1.2 M", "3.4 G"

// Columns of the terminal of a file descriptor, 80 when unknown; 0 when it is not a terminal.
int terminal_columns(int descriptor);

}  // namespace brine
