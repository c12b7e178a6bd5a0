// The device headers behind a C interface, for comparison with moegen.numerics.
#include <cstddef>
#include <cstring>

#ifdef MOEGEN_CUDA
#include "cuda_on_host.h"

#include "activations.cuh"
#include "contracts.cuh"
#else
#include "activations.h"
#include "contracts.h"
#endif

using namespace moegen;
using std::size_t;

// One block of 16 values through a target's own function.
template <class Contract>
std::uint8_t quantize_sixteen(const Contract& contract, const float* x, std::uint8_t* codes) {
#ifdef MOEGEN_CUDA
  float values[16];
  std::memcpy(values, x, sizeof values);
  uint2 packed;
  const std::uint8_t scale = quantize_block(contract, values, packed);
  std::memcpy(codes, &packed, sizeof packed);
  return scale;
#else
  return quantize_block(contract, x, codes);
#endif
}

#define UNARY(name, expression)                                                              \
  extern "C" void name(const float* __restrict x, float* __restrict y, size_t n) {           \
    for (size_t i = 0; i < n; ++i) {                                                         \
      const float v = x[i];                                                                  \
      y[i] = expression;                                                                     \
    }                                                                                        \
  }
#define TO_BYTES(name, type, function)                                                       \
  extern "C" void name(const float* __restrict x, type* __restrict y, size_t n) {            \
    for (size_t i = 0; i < n; ++i) y[i] = static_cast<type>(function(x[i]));                 \
  }
#define FROM_BYTES(name, type, function)                                                     \
  extern "C" void name(const type* __restrict x, float* __restrict y, size_t n) {            \
    for (size_t i = 0; i < n; ++i) y[i] = function(x[i]);                                    \
  }
#define CONTRACT(name, type)                                                                 \
  extern "C" void quantize_##name(const float* x, const float* pair, unsigned char* codes,   \
                                  unsigned char* scales, size_t blocks) {                    \
    const type contract(ScalePair{pair[0], pair[1]});                                        \
    for (size_t b = 0; b < blocks; ++b) scales[b] = quantize_sixteen(contract, x + 16 * b, codes + 8 * b); \
  }                                                                                          \
  extern "C" void pair_##name(const float* amax, float* pairs, size_t n) {                   \
    for (size_t i = 0; i < n; ++i) {                                                         \
      const ScalePair pair = type::pair(amax[i]);                                            \
      pairs[2 * i] = pair.encode;                                                            \
      pairs[2 * i + 1] = pair.decode;                                                        \
    }                                                                                        \
  }

extern "C" void fma3(const float* a, const float* b, const float* c, float* y, size_t n) {
  for (size_t i = 0; i < n; ++i) y[i] = moegen::fma(a[i], b[i], c[i]);
}

UNARY(exp1, moegen::exp(v))
UNARY(tanh1, moegen::tanh(v))
UNARY(sigmoid1, sigmoid(v))
UNARY(bf16_round, round_bf16(v))
UNARY(f16_round, round_f16(v))
UNARY(gate_swiglu, Swiglu{}.gate(v))
UNARY(gate_swiglu_clamp, SwigluClamp{10.0f}.gate(v))
UNARY(up_swiglu_clamp, SwigluClamp{10.0f}.up(v))
UNARY(gate_swiglustep, Swiglustep{7.0f}.gate(v))
UNARY(up_swiglustep, Swiglustep{7.0f}.up(v))
UNARY(gate_swiglu_oai, (SwigluOai{1.702f, 7.0f, 1.0f}.gate(v)))
UNARY(up_swiglu_oai, (SwigluOai{1.702f, 7.0f, 1.0f}.up(v)))
UNARY(gate_situ, Situ{4.0f}.gate(v))
UNARY(up_situ, (SituBounded{4.0f, 25.0f}.up(v)))
UNARY(gate_geglu_tanh, GegluTanh{}.gate(v))
UNARY(value_relu2, Relu2{}.value(v))
UNARY(value_silu, Silu{}.value(v))
TO_BYTES(e2m1_encode, std::uint8_t, e2m1_from_f32)
TO_BYTES(e2m1_encode_half_step, std::uint8_t, e2m1_half_step)
TO_BYTES(e4m3_encode, std::uint8_t, e4m3_from_f32)
TO_BYTES(bf16_encode, std::uint16_t, bf16_from_f32)
TO_BYTES(f16_encode, std::uint16_t, f16_from_f32)
FROM_BYTES(e2m1_decode, std::uint8_t, f32_from_e2m1)
FROM_BYTES(e4m3_decode, std::uint8_t, f32_from_e4m3)
FROM_BYTES(bf16_decode, std::uint16_t, f32_from_bf16)
FROM_BYTES(f16_decode, std::uint16_t, f32_from_f16)
CONTRACT(te, Te)
CONTRACT(vllm_rn, VllmRn)
CONTRACT(cutlass_rn, CutlassRn)
CONTRACT(torchao, Torchao)
CONTRACT(modelopt, Modelopt)
CONTRACT(compressed_tensors, CompressedTensors)
CONTRACT(compressed_tensors_bf16, CompressedTensorsBf16)
CONTRACT(half_step, HalfStep)
