// Which of oneDNN's ways computes a piece of a product: a pure function of the CPU's class and the
// product's class, so that the bits of a product are the same in every run on one machine.
//
// The table (onednn_paths.inc) is written by `brine bench products --write FILE`; a class of
// products that it does not have takes default_path().
#pragma once

#include <compare>
#include <cstdint>
#include <span>

#include "tensor/cpu/core/cpu_identity.h"

namespace brine::onednn {

enum class Path : uint8_t {
  sgemm,   // dnnl_sgemm; f32 only
  matmul,  // the matmul primitive, operands as they are
  packed,  // the matmul primitive; each call first copies b into the order that it prefers
};
enum class Input : uint8_t { f32, bf16 };

// Vendor, microarchitecture and instruction set.
enum class Cpu : uint8_t { generic, amd_zen4, amd_zen5, intel_avx512, intel_amx };

const char* name_of(Path path);
const char* name_of(Cpu cpu);

Cpu class_of(const CpuIdentity& identity);
Cpu this_cpu();

// Products that take the same path: 2^(m-1) < M <= 2^m, and so on.
struct ProductClass {
  Input input = Input::f32;
  bool ta = false, tb = false;
  int m = 0, n = 0, k = 0;

  auto operator<=>(const ProductClass&) const = default;
};
ProductClass product_class(Input input, bool ta, bool tb, int64_t M, int64_t N, int64_t K);

struct PathEntry {
  Cpu cpu = Cpu::generic;
  ProductClass product;
  Path path = Path::sgemm;
};
std::span<const PathEntry> path_table();  // of all CPUs, ascending by CPU and class

Path default_path(Input input);  // sgemm for f32, matmul for bf16
Path path_of(std::span<const PathEntry> ascending, Cpu cpu, const ProductClass& product);
// The path of a product on this CPU.
Path path_of(const ProductClass& product);

// Tests and the bench only, while no product runs: another table. Returns the earlier one.
std::span<const PathEntry> use_paths(std::span<const PathEntry> ascending);

}  // namespace brine::onednn
