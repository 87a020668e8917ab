// What a command reports of the memory that it took where it computed.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>

namespace brine {

// The most that was held since the start (or reset_peak()): "peak 1.2 GiB", of a device "peak 1.2
// GiB on cuda:0".
std::string peak_memory();
// On a device adds "device" and "peak_bytes" to what a command prints as JSON.
void add_peak_memory(nlohmann::ordered_json& out);

}  // namespace brine
