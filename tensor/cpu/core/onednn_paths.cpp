// The CPU's class, and the table of paths.
#include "tensor/cpu/core/onednn_paths.h"

#include <algorithm>
#include <bit>
#include <initializer_list>
#include <tuple>
#include <utility>

namespace brine::onednn {
namespace {

constexpr std::initializer_list<PathEntry> kTable = {
#include "tensor/cpu/core/onednn_paths.inc"
};

constexpr auto key_of(const PathEntry& e) { return std::tie(e.cpu, e.product); }
constexpr bool ascends(const PathEntry& a, const PathEntry& b) { return key_of(a) < key_of(b); }
static_assert(std::adjacent_find(kTable.begin(), kTable.end(),
                                 [](const PathEntry& a, const PathEntry& b) {
                                   return !ascends(a, b);
                                 }) == kTable.end());

std::span<const PathEntry> used(kTable.begin(), kTable.size());

int exponent(int64_t n) { return n <= 1 ? 0 : std::bit_width(uint64_t(n - 1)); }

}  // namespace

const char* name_of(Path path) {
  switch (path) {
    case Path::sgemm:
      return "sgemm";
    case Path::matmul:
      return "matmul";
    case Path::packed:
      return "packed";
  }
  return "";
}

const char* name_of(Cpu cpu) {
  switch (cpu) {
    case Cpu::generic:
      return "generic";
    case Cpu::amd_zen4:
      return "amd_zen4";
    case Cpu::amd_zen5:
      return "amd_zen5";
    case Cpu::intel_avx512:
      return "intel_avx512";
    case Cpu::intel_amx:
      return "intel_amx";
  }
  return "";
}

Cpu class_of(const CpuIdentity& id) {
  if (!id.avx512) return Cpu::generic;
  if (id.intel) return id.amx_bf16 ? Cpu::intel_amx : Cpu::intel_avx512;
  // Zen 3 shares family 25 and has no AVX-512.
  if (id.amd && id.family == 25) return Cpu::amd_zen4;
  if (id.amd && id.family == 26) return Cpu::amd_zen5;
  return Cpu::generic;
}

Cpu this_cpu() {
  static const Cpu cpu = class_of(this_cpu_identity());
  return cpu;
}

ProductClass product_class(Input input, bool ta, bool tb, int64_t M, int64_t N, int64_t K) {
  return {input, ta, tb, exponent(M), exponent(N), exponent(K)};
}

std::span<const PathEntry> path_table() { return {kTable.begin(), kTable.size()}; }

Path default_path(Input input) { return input == Input::f32 ? Path::sgemm : Path::matmul; }

Path path_of(std::span<const PathEntry> ascending, Cpu cpu, const ProductClass& product) {
  const PathEntry wanted{cpu, product};
  auto found = std::lower_bound(ascending.begin(), ascending.end(), wanted, ascends);
  if (found == ascending.end() || key_of(*found) != key_of(wanted))
    return default_path(product.input);
  return found->path;
}

Path path_of(const ProductClass& product) { return path_of(used, this_cpu(), product); }

std::span<const PathEntry> use_paths(std::span<const PathEntry> ascending) {
  return std::exchange(used, ascending);
}

}  // namespace brine::onednn
