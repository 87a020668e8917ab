// The functions of an Activation.
#pragma once

#include "tensor/base/math.h"
#include "tensor/types.h"

namespace brine {
namespace math::map {

// Of one number, and the gradient of it by the number, of relu by the result.
template <class T>
struct Relu {
  BRINE_HD T operator()(T x) const { return relu(x); }
  BRINE_HD T operator()(T dy, T y) const { return relu_grad(dy, y); }
};
template <class T>
struct Silu {
  BRINE_HD T operator()(T x) const { return silu(x); }
  BRINE_HD T operator()(T dy, T x) const { return dy * silu_grad(x); }
};
template <class T>
struct Gelu {
  BRINE_HD T operator()(T x) const { return gelu(x); }
  BRINE_HD T operator()(T dy, T x) const { return dy * gelu_grad(x); }
};
template <class T>
struct GeluTanh {
  BRINE_HD T operator()(T x) const { return gelu_tanh(x); }
  BRINE_HD T operator()(T dy, T x) const { return dy * gelu_tanh_grad(x); }
};

}  // namespace math::map

// Calls f(the function and its gradient) for numbers of type T.
template <class T, class F>
void with_activation(Activation a, F&& f) {
  using namespace math::map;
  switch (a) {
    case Activation::relu:
      return f(Relu<T>{});
    case Activation::gelu:
      return f(Gelu<T>{});
    case Activation::gelu_tanh:
      return f(GeluTanh<T>{});
    case Activation::silu:
      return f(Silu<T>{});
  }
}

}  // namespace brine
