// The functions of onednn.h by oneDNN 2.6 or 3.x: cached primitives in a bounded LRU.
#include "tensor/cpu/core/onednn.h"

#include <dnnl.h>
#include <omp.h>

#include <dnnl.hpp>
#include <memory>
#include <mutex>
#include <vector>

#include "tensor/base/error.h"
#include "tensor/base/recently_used.h"
#include "tensor/cpu/core/cpu_identity.h"

namespace brine::onednn {
namespace {

using Dims = dnnl::memory::dims;
using Desc = dnnl::memory::desc;
using Type = dnnl::memory::data_type;

const dnnl::engine& engine() {
  static const dnnl::engine cpu(dnnl::engine::kind::cpu, 0);
  return cpu;
}

dnnl::stream& stream() {
  thread_local dnnl::stream s(engine());
  return s;
}

// While an object lives, oneDNN starts no threads from this thread.
class OneThread : NonCopyable {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }

 private:
  int before_;
};

// Memory of this thread for primitives; threads share primitives, but not their scratch memory.
void* scratch(size_t bytes) {
  struct Line {
    alignas(64) unsigned char bytes[64];
  };
  thread_local std::vector<Line> lines;
  if (lines.size() * sizeof(Line) < bytes) lines.resize((bytes + sizeof(Line) - 1) / sizeof(Line));
  return lines.data();
}

dnnl::primitive_attr user_scratchpad() {
  dnnl::primitive_attr attr;
  attr.set_scratchpad_mode(dnnl::scratchpad_mode::user);
  return attr;
}

constexpr size_t kPrimitives = 256;

// The matmul primitive for bf16.
struct Product {
  dnnl::matmul primitive;
  Desc a, b, c, pad;
};

Product make_product(const Gemm& g) {
  auto plain = [](int64_t rows, int64_t columns, int64_t ld, bool transposed, Type t) {
    return Desc(Dims{rows, columns}, t, transposed ? Dims{1, ld} : Dims{ld, 1});
  };
  Product p;
  p.a = plain(g.M, g.K, g.lda, g.ta, Type::bf16);
  p.b = plain(g.K, g.N, g.ldb, g.tb, Type::bf16);
  p.c = plain(g.M, g.N, g.ldc, false, Type::f32);
  dnnl::primitive_attr attr = user_scratchpad();
  dnnl::post_ops after;
  if (g.alpha != 1)
    after.append_eltwise(
#if DNNL_VERSION_MAJOR < 3
        1.0f,
#endif
        dnnl::algorithm::eltwise_linear, g.alpha, 0.0f);
  if (g.beta != 0) after.append_sum(g.beta);
  attr.set_post_ops(after);
#if DNNL_VERSION_MAJOR < 3
  dnnl::matmul::primitive_desc pd(dnnl::matmul::desc(p.a, p.b, p.c), attr, engine());
#else
  dnnl::matmul::primitive_desc pd(engine(), p.a, p.b, p.c, attr);
#endif
  p.primitive = dnnl::matmul(pd);
  p.pad = pd.scratchpad_desc();
  return p;
}

std::shared_ptr<const Product> product_of(const Gemm& g) {
  static std::mutex mutex;
  static RecentlyUsed<Gemm, std::shared_ptr<const Product>> products(kPrimitives);
  std::lock_guard lock(mutex);
  return products.get(g, [&] { return std::make_shared<const Product>(make_product(g)); });
}

dnnl::memory memory_at(const Desc& d, const void* data) {
  return dnnl::memory(d, engine(), const_cast<void*>(data));
}

}  // namespace

void gemm(const Gemm& g, const float* a, const float* b, float* c) {
  OneThread one;
  dnnl_status_t status = dnnl_sgemm(g.ta ? 'T' : 'N', g.tb ? 'T' : 'N', g.M, g.N, g.K, g.alpha, a,
                                    g.lda, b, g.ldb, g.beta, c, g.ldc);
  check(status == dnnl_success, "onednn: sgemm ", g.M, " x ", g.N, " x ", g.K, " failed (", status,
        ")");
}

void gemm(const Gemm& g, const bf16* a, const bf16* b, float* c) {
  OneThread one;
  std::shared_ptr<const Product> p = product_of(g);
  p->primitive.execute(stream(),
                       {{DNNL_ARG_SRC, memory_at(p->a, a)},
                        {DNNL_ARG_WEIGHTS, memory_at(p->b, b)},
                        {DNNL_ARG_DST, memory_at(p->c, c)},
                        {DNNL_ARG_SCRATCHPAD, memory_at(p->pad, scratch(p->pad.get_size()))}});
  stream().wait();
}

std::string version() {
  const dnnl_version_t* v = dnnl_version();
  return join(v->major, ".", v->minor, ".", v->patch);
}

bool has_bf16_gemm() { return this_cpu_identity().avx512_bf16; }

}  // namespace brine::onednn
