// The activations: bit for bit moegen.numerics.activations, which holds the table of formulas.
//
// A kernel makes one constant of the struct it needs (constants as fp32 hex literals) and calls gate and up, or value.
#pragma once

#include "elementary.cuh"
#include "rounding.cuh"

namespace moegen {

__device__ __forceinline__ float cap(float x, float limit) { return x > limit ? limit : x; }

__device__ __forceinline__ float clamp(float x, float limit) {
  const float capped = cap(x, limit);
  return capped < -limit ? -limit : capped;
}

__device__ __forceinline__ float soft_bound(float x, float beta) { return tanh(x / beta) * beta; }

__device__ __forceinline__ float gelu_tanh(float x) {
  const float cubic = (x * x) * x;
  const float inner = (x + cubic * 0x1.6e4e26p-5f) * 0x1.988454p-1f;
  return (x * 0.5f) * (tanh(inner) + 1.0f);
}

struct Swiglu {
  __device__ float gate(float g) const { return silu(g); }
  __device__ float up(float u) const { return u; }
};

struct SwigluClamp {
  float limit;
  __device__ float gate(float g) const { return silu(cap(g, limit)); }
  __device__ float up(float u) const { return clamp(u, limit); }
};

struct Swiglustep {
  float limit;
  __device__ float gate(float g) const { return cap(silu(g), limit); }
  __device__ float up(float u) const { return clamp(u, limit); }
};

struct SwigluOai {
  float alpha;
  float limit;
  float beta;
  __device__ float gate(float g) const { return scaled_silu(cap(g, limit), alpha); }
  __device__ float up(float u) const { return clamp(u, limit) + beta; }
};

// SiTU whose up half is left as it is.
struct Situ {
  float beta;
  __device__ float gate(float g) const { return soft_bound(g, beta) / (exp(-g) + 1.0f); }
  __device__ float up(float u) const { return u; }
};

// SiTU whose up half is bounded too.
struct SituBounded {
  float beta;
  float linear_beta;
  __device__ float gate(float g) const { return soft_bound(g, beta) / (exp(-g) + 1.0f); }
  __device__ float up(float u) const { return soft_bound(u, linear_beta); }
};

struct GegluTanh {
  __device__ float gate(float g) const { return gelu_tanh(g); }
  __device__ float up(float u) const { return u; }
};

struct Relu2 {
  __device__ float value(float x) const {
    const float positive = x < 0.0f ? 0.0f : x;
    return positive * positive;
  }
};

struct Silu {
  __device__ float value(float x) const { return silu(x); }
};

}  // namespace moegen
