// x / (1 + exp(-alpha x)) over given arguments: elementary.cuh's form, activations_lean.cuh's of the same bits, and the
// approximation that doubt.cuh lets stand for them. `doubts`: of its argument (1), of its rounding to bf16 (2).
#include <cstdint>

#ifdef __CUDACC__
#include "sm_90a/device/activations_lean.cuh"

extern "C" __global__ void __launch_bounds__(256)
    lean_kernel(const uint32_t* arguments, uint32_t* plain, uint32_t* lean, uint32_t* near, int32_t* doubts, float alpha,
                int64_t count) {
  const int64_t i = int64_t(blockIdx.x) * 256 + threadIdx.x;
  if (i >= count) return;
  const float x = __uint_as_float(arguments[i]);
  plain[i] = __float_as_uint(moegen::scaled_silu(x, alpha));
  lean[i] = __float_as_uint(moegen::over_one_plus_exp(x, -(x * alpha)));
  moegen::Doubt doubt;
  const float value = moegen::near_over_one_plus_exp(x, -(x * alpha), doubt);
  doubt.rounding(value);
  near[i] = __float_as_uint(value);
  doubts[i] = doubt.of_argument() + 2 * doubt.of_rounding();
}
#else
#include "sm_90a/device/host.h"

namespace {

using moegen::data;

moegen::Kernel lean_kernel("lean_kernel", 0);

void lean(const moegen::TensorView& arguments, const moegen::TensorView& plain, const moegen::TensorView& lean,
          const moegen::TensorView& near, const moegen::TensorView& doubts, double alpha) {
  const moegen::Index count = moegen::extent(arguments, "arguments", 0);
  const DLDevice device = arguments.device();
  moegen::expect(arguments, "arguments", moegen::kInt32, {count}, device);
  moegen::expect(plain, "plain", moegen::kInt32, {count}, device);
  moegen::expect(lean, "lean", moegen::kInt32, {count}, device);
  moegen::expect(near, "near", moegen::kInt32, {count}, device);
  moegen::expect(doubts, "doubts", moegen::kInt32, {count}, device);
  lean_kernel.launch({.grid_x = moegen::blocks(count, 256), .threads = 256}, device, data<const std::uint32_t>(arguments),
                     data<std::uint32_t>(plain), data<std::uint32_t>(lean), data<std::uint32_t>(near), data<std::int32_t>(doubts),
                     static_cast<float>(alpha), count);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(lean, lean)
MOEGEN_EXPORT_PREPARE()
#endif
