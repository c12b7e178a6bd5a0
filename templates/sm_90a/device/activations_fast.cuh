// The activations of activations.cuh with ex2.approx, rcp.approx and tanh.approx: another numerics class, never
// compared with the exact one.
#pragma once

#include "activations.cuh"

namespace moegen {

__device__ __forceinline__ float exp_fast(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x * 0x1.715476p+0f));
  return r;
}

__device__ __forceinline__ float reciprocal_fast(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ float tanh_fast(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}

__device__ __forceinline__ float silu_fast(float x) { return x * reciprocal_fast(1.0f + exp_fast(-x)); }

struct SwigluFast : Swiglu {
  __device__ float gate(float g) const { return silu_fast(g); }
};

struct SwigluClampFast : SwigluClamp {
  __device__ float gate(float g) const { return silu_fast(cap(g, limit)); }
};

struct SwiglustepFast : Swiglustep {
  __device__ float gate(float g) const { return cap(silu_fast(g), limit); }
};

struct SwigluOaiFast : SwigluOai {
  __device__ float gate(float g) const {
    const float c = cap(g, limit);
    return c * reciprocal_fast(1.0f + exp_fast(-(c * alpha)));
  }
};

struct SituFast : Situ {
  __device__ float gate(float g) const { return tanh_fast(g / beta) * beta * reciprocal_fast(exp_fast(-g) + 1.0f); }
};

struct SituBoundedFast : SituBounded {
  __device__ float gate(float g) const { return tanh_fast(g / beta) * beta * reciprocal_fast(exp_fast(-g) + 1.0f); }
  __device__ float up(float u) const { return tanh_fast(u / linear_beta) * linear_beta; }
};

struct GegluTanhFast : GegluTanh {
  __device__ float gate(float g) const {
    const float inner = (g + (g * g) * g * 0x1.6e4e26p-5f) * 0x1.988454p-1f;
    return (g * 0.5f) * (tanh_fast(inner) + 1.0f);
  }
};

struct Relu2Fast : Relu2 {};

struct SiluFast : Silu {
  __device__ float value(float x) const { return silu_fast(x); }
};

}  // namespace moegen
