// relu_squared(x, bias) = max(x + bias, 0)² in one pass over memory, and its gradient in another.
// For the CPU; kernels.py compiles it when it is first used.
//
// Sources: arxiv.org/abs/2109.08668 (the activation),
// docs.pytorch.org/tutorials/advanced/cpp_custom_ops.html.

#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>

namespace {

constexpr int64_t kGrain = 16384;  // numbers that are worth a thread

void check(const at::Tensor& x, const at::Tensor& bias) {
  TORCH_CHECK(bias.dim() == 1 && x.dim() >= 1 && x.size(-1) == bias.size(0),
              "relu_squared takes (..., C) and (C,), not ", x.sizes(), " and ", bias.sizes());
}

// Calls row(index of a row's first number) for all rows of x (..., C), on several threads.
template <typename Row>
void for_rows(const at::Tensor& x, Row row) {
  const int64_t features = x.size(-1);
  if (x.numel() == 0) return;
  const int64_t grain = std::max<int64_t>(1, kGrain / features);
  at::parallel_for(0, x.numel() / features, grain, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(r * features);
  });
}

at::Tensor forward(const at::Tensor& input, const at::Tensor& bias) {
  check(input, bias);
  const auto x = input.contiguous();
  auto y = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "relu_squared", [&] {
    using number = at::opmath_type<scalar_t>;  // float for half precision
    const auto added = bias.to(c10::CppTypeToScalarType<number>::value).contiguous();
    const auto* from = x.const_data_ptr<scalar_t>();
    const auto* b = added.const_data_ptr<number>();
    auto* to = y.mutable_data_ptr<scalar_t>();
    const int64_t features = x.size(-1);
    for_rows(x, [&](int64_t at) {
      for (int64_t c = 0; c < features; ++c) {
        const number z = static_cast<number>(from[at + c]) + b[c];
        const number kept = z > 0 ? z : 0;
        to[at + c] = static_cast<scalar_t>(kept * kept);
      }
    });
  });
  return y;
}

at::Tensor backward(const at::Tensor& gradient, const at::Tensor& input, const at::Tensor& bias) {
  check(input, bias);
  const auto x = input.contiguous();
  const auto dy = gradient.contiguous();
  auto dx = at::empty_like(x);
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, x.scalar_type(), "relu_squared", [&] {
    using number = at::opmath_type<scalar_t>;
    const auto added = bias.to(c10::CppTypeToScalarType<number>::value).contiguous();
    const auto* from = x.const_data_ptr<scalar_t>();
    const auto* b = added.const_data_ptr<number>();
    const auto* d = dy.const_data_ptr<scalar_t>();
    auto* to = dx.mutable_data_ptr<scalar_t>();
    const int64_t features = x.size(-1);
    for_rows(x, [&](int64_t at) {
      for (int64_t c = 0; c < features; ++c) {
        const number z = static_cast<number>(from[at + c]) + b[c];
        const number slope = z > 0 ? 2 * z : 0;
        to[at + c] = static_cast<scalar_t>(slope * static_cast<number>(d[at + c]));
      }
    });
  });
  return dx;
}

}  // namespace

TORCH_LIBRARY(kernels, m) {
  m.def("relu_squared(Tensor x, Tensor bias) -> Tensor");
  m.def("relu_squared_backward(Tensor gradient, Tensor x, Tensor bias) -> Tensor");
}

TORCH_LIBRARY_IMPL(kernels, CPU, m) {
  m.impl("relu_squared", forward);
  m.impl("relu_squared_backward", backward);
}
