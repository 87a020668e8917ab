// The functions of onednn.h by oneDNN 2.6 or 3.x: cached primitives in a bounded LRU.
#include "tensor/cpu/core/onednn.h"

#include <dnnl.h>
#include <omp.h>

#include <array>
#include <dnnl.hpp>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "tensor/base/error.h"
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
class OneThread {
 public:
  OneThread() : before_(omp_get_max_threads()) {
    if (before_ != 1) omp_set_num_threads(1);
  }
  ~OneThread() {
    if (before_ != 1) omp_set_num_threads(before_);
  }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

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

// The most recently used primitives of one kind. Key is an array of integers.
template <class Key, class Value>
class Cache {
 public:
  explicit Cache(size_t capacity) : capacity_(capacity) {}

  template <class Make>
  Value get(const Key& key, Make&& make) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      auto found = map_.find(key);
      if (found != map_.end()) {
        order_.splice(order_.begin(), order_, found->second.second);
        return found->second.first;
      }
    }
    Value value = make();
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = map_.find(key);
    if (found != map_.end()) return found->second.first;
    if (map_.size() == capacity_) {
      map_.erase(order_.back());
      order_.pop_back();
    }
    order_.push_front(key);
    map_.emplace(key, std::make_pair(value, order_.begin()));
    return value;
  }

 private:
  size_t capacity_;
  std::mutex mutex_;
  std::list<Key> order_;
  std::map<Key, std::pair<Value, typename std::list<Key>::iterator>> map_;
};

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
  using Key = std::array<int64_t, 10>;
  static Cache<Key, std::shared_ptr<const Product>> cache(kPrimitives);
  Key key = {g.M,
             g.N,
             g.K,
             g.ta,
             g.tb,
             g.lda,
             g.ldb,
             g.ldc,
             std::bit_cast<int32_t>(g.alpha),
             std::bit_cast<int32_t>(g.beta)};
  return cache.get(key, [&] { return std::make_shared<const Product>(make_product(g)); });
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

namespace {

using Format = dnnl::memory::format_tag;
using Forward = dnnl::convolution_forward;
using DataGradient = dnnl::convolution_backward_data;

// Memory descriptions and geometry of one convolution.
struct Geometry {
  Desc x, w, b, y;
  Dims strides, dilates, left, right;
};

// pad: rows of zeros before and after, on the token axis. w undefined: in oneDNN's preferred order.
// The data gradient reads y and writes x, so there y may be bf16.
Geometry geometry(const ImageConvolution& c, int64_t pad, Format image, const Desc* weights,
                  Pass pass = Pass::forward) {
  const Type narrow = c.half ? Type::bf16 : Type::f32;
  const bool reads_x = pass == Pass::forward;
  int64_t reach = (c.kernel_t - 1) * c.dilation, columns = c.dilation * (c.kernel_w - 1) / 2;
  int64_t rows = (c.rows - 1) * c.stride + 1 + reach - 2 * pad;
  Geometry g;
  g.x = Desc(Dims{1, c.in, rows, c.columns}, reads_x ? narrow : Type::f32, image);
  g.w = weights ? *weights : Desc(Dims{c.out, c.in, c.kernel_t, c.kernel_w}, narrow, Format::any);
  if (c.bias) g.b = Desc(Dims{c.out}, Type::f32, Format::x);
  g.y = Desc(Dims{1, c.out, c.rows, c.columns}, reads_x ? Type::f32 : narrow, image);
  g.strides = {c.stride, 1};
  g.dilates = {c.dilation - 1, c.dilation - 1};
  g.left = g.right = {pad, columns};
  return g;
}

constexpr auto kTraining = dnnl::prop_kind::forward_training;
constexpr auto kDirect = dnnl::algorithm::convolution_direct;

// The constructors of 2.x and 3.x have different argument orders.
Forward::primitive_desc forward_of(const Geometry& g, const dnnl::primitive_attr& attr) {
#if DNNL_VERSION_MAJOR < 3
  return {
      Forward::desc(kTraining, kDirect, g.x, g.w, g.b, g.y, g.strides, g.dilates, g.left, g.right),
      attr, engine()};
#else
  return {engine(), kTraining, kDirect,   g.x,    g.w,     g.b,
          g.y,      g.strides, g.dilates, g.left, g.right, attr};
#endif
}

// `ahead`: the forward pass, which differs when inputs and results have different types.
DataGradient::primitive_desc data_gradient_of(const Geometry& g, const Geometry& ahead,
                                              const dnnl::primitive_attr& attr) {
  Forward::primitive_desc hint = forward_of(ahead, {});
#if DNNL_VERSION_MAJOR < 3
  return {DataGradient::desc(kDirect, g.x, g.w, g.y, g.strides, g.dilates, g.left, g.right), attr,
          engine(), hint};
#else
  return {engine(), kDirect, g.x, g.w, g.y, g.strides, g.dilates, g.left, g.right, hint, attr};
#endif
}

dnnl::primitive_attr relu_attr(bool relu) {
  dnnl::primitive_attr attr = user_scratchpad();
  if (!relu) return attr;
  dnnl::post_ops after;
  after.append_eltwise(
#if DNNL_VERSION_MAJOR < 3
      1.0f,
#endif
      dnnl::algorithm::eltwise_relu, 0.0f, 0.0f);
  attr.set_post_ops(after);
  return attr;
}

struct Prepared {
  dnnl::primitive primitive;
  Desc x, w, b, y, pad;
};

// Channels last, described as oneDNN's blocked order if 16 channels make the two identical: its
// kernels for the latter are up to 1.5 times as fast on AVX-512.
Format layout_of([[maybe_unused]] const ImageConvolution& c) {
#if defined(__x86_64__)
  static const bool avx512 = __builtin_cpu_supports("avx512f") != 0;
  if (avx512 && c.in == 16 && c.out == 16 && !c.half) return Format::nChw16c;
#endif
  return Format::nhwc;
}

// Rows of the convolution that determines the order of the weights for all of its kind.
constexpr int64_t kModelRows = 64;

std::shared_ptr<const Prepared> prepared(const ImageConvolution& c, Pass pass);

Prepared make_prepared(ImageConvolution c, Pass pass) {
  Desc weights;
  if (c.rows != kModelRows) {
    ImageConvolution model = c;
    model.rows = kModelRows;
    weights = prepared(model, pass)->w;
  }
  const Desc* given = c.rows == kModelRows ? nullptr : &weights;
  if (pass == Pass::forward) {
    Geometry g = geometry(c, 0, layout_of(c), given);
    Forward::primitive_desc pd = forward_of(g, relu_attr(c.relu));
    return {Forward(pd), g.x, pd.weights_desc(), g.b, g.y, pd.scratchpad_desc()};
  }
  int64_t reach = (c.kernel_t - 1) * c.dilation;
  c.rows += reach;
  Geometry g = geometry(c, reach, Format::nhwc, given, Pass::data_gradient);
  Geometry ahead = geometry(c, reach, Format::nhwc, given);
  DataGradient::primitive_desc pd = data_gradient_of(g, ahead, user_scratchpad());
  return {DataGradient(pd), g.x, pd.weights_desc(), g.b, g.y, pd.scratchpad_desc()};
}

std::shared_ptr<const Prepared> prepared(const ImageConvolution& c, Pass pass) {
  using Key = std::array<int64_t, 12>;
  static Cache<Key, std::shared_ptr<const Prepared>> cache(kPrimitives);
  Key key = {int64_t(pass), c.rows,     c.columns, c.in,   c.out,  c.kernel_t,
             c.kernel_w,    c.dilation, c.stride,  c.bias, c.relu, c.half};
  return cache.get(key, [&] {
    try {
      return std::make_shared<const Prepared>(make_prepared(c, pass));
    } catch (const dnnl::error& e) {
      throw Error(join("onednn: convolution ", c.in, " -> ", c.out, " channels, kernel ",
                       c.kernel_t, " x ", c.kernel_w, ": ", e.message));
    }
  });
}

}  // namespace

int64_t packed_weights_size(const ImageConvolution& c, Pass pass) {
  OneThread one;
  const size_t item = c.half ? 2 : 4;
  return int64_t((prepared(c, pass)->w.get_size() + item - 1) / item);
}

namespace {

// c.half gives the type of w and packed; also in the two functions below.
void pack(const ImageConvolution& c, Pass pass, const void* w, void* packed) {
  OneThread one;
  Desc to = prepared(c, pass)->w;
  Desc from(Dims{c.out, c.in, c.kernel_t, c.kernel_w}, c.half ? Type::bf16 : Type::f32,
            Format::oihw);
  dnnl::memory source = memory_at(from, w), target = memory_at(to, packed);
  dnnl::reorder(source, target).execute(stream(), source, target);
  stream().wait();
}

void run_forward(const ImageConvolution& c, const void* x, const void* packed, const float* bias,
                 float* y) {
  OneThread one;
  auto kept = prepared(c, Pass::forward);
  const Prepared& p = *kept;
  std::unordered_map<int, dnnl::memory> arguments = {
      {DNNL_ARG_SRC, memory_at(p.x, x)},
      {DNNL_ARG_WEIGHTS, memory_at(p.w, packed)},
      {DNNL_ARG_DST, memory_at(p.y, y)},
      {DNNL_ARG_SCRATCHPAD, memory_at(p.pad, scratch(p.pad.get_size()))}};
  if (c.bias) arguments.insert({DNNL_ARG_BIAS, memory_at(p.b, bias)});
  p.primitive.execute(stream(), arguments);
  stream().wait();
}

void run_data_gradient(const ImageConvolution& c, float* dx, const void* packed, const void* dy) {
  OneThread one;
  auto kept = prepared(c, Pass::data_gradient);
  const Prepared& p = *kept;
  p.primitive.execute(stream(),
                      {{DNNL_ARG_DIFF_SRC, memory_at(p.x, dx)},
                       {DNNL_ARG_WEIGHTS, memory_at(p.w, packed)},
                       {DNNL_ARG_DIFF_DST, memory_at(p.y, dy)},
                       {DNNL_ARG_SCRATCHPAD, memory_at(p.pad, scratch(p.pad.get_size()))}});
  stream().wait();
}

void check_type(const ImageConvolution& c, bool half) {
  check(c.half == half, "onednn: the convolution needs ", c.half ? "bf16" : "f32");
}

}  // namespace

void pack_weights(const ImageConvolution& c, Pass pass, const float* w, float* packed) {
  check_type(c, false);
  pack(c, pass, w, packed);
}

void pack_weights(const ImageConvolution& c, Pass pass, const bf16* w, bf16* packed) {
  check_type(c, true);
  pack(c, pass, w, packed);
}

void convolve(const ImageConvolution& c, const float* x, const float* packed, const float* bias,
              float* y) {
  check_type(c, false);
  run_forward(c, x, packed, bias, y);
}

void convolve(const ImageConvolution& c, const bf16* x, const bf16* packed, const float* bias,
              float* y) {
  check_type(c, true);
  run_forward(c, x, packed, bias, y);
}

void convolve_data_gradient(const ImageConvolution& c, float* dx, const float* packed,
                            const float* dy) {
  check_type(c, false);
  run_data_gradient(c, dx, packed, dy);
}

void convolve_data_gradient(const ImageConvolution& c, float* dx, const bf16* packed,
                            const bf16* dy) {
  check_type(c, true);
  run_data_gradient(c, dx, packed, dy);
}

}  // namespace brine::onednn
