// The activations: bit for bit moegen.numerics.activations, which holds the table of formulas.
//
// A kernel makes one constant of the struct it needs (constants as fp32 hex literals) and calls gate and up, or value.
#pragma once

#include "elementary.h"
#include "rounding.h"

namespace moegen {

inline float cap(float x, float limit) { return x > limit ? limit : x; }

inline float clamp(float x, float limit) {
  const float capped = cap(x, limit);
  return capped < -limit ? -limit : capped;
}

inline float soft_bound(float x, float beta) { return tanh(x / beta) * beta; }

inline float gelu_tanh(float x) {
  const float cubic = (x * x) * x;
  const float inner = (x + cubic * 0x1.6e4e26p-5f) * 0x1.988454p-1f;
  return (x * 0.5f) * (tanh(inner) + 1.0f);
}

struct Swiglu {
  float gate(float g) const { return silu(g); }
  float up(float u) const { return u; }
};

struct SwigluClamp {
  float limit;
  float gate(float g) const { return silu(cap(g, limit)); }
  float up(float u) const { return clamp(u, limit); }
};

struct Swiglustep {
  float limit;
  float gate(float g) const { return cap(silu(g), limit); }
  float up(float u) const { return clamp(u, limit); }
};

struct SwigluOai {
  float alpha;
  float limit;
  float beta;
  float gate(float g) const { return scaled_silu(cap(g, limit), alpha); }
  float up(float u) const { return clamp(u, limit) + beta; }
};

// SiTU whose up half is left as it is.
struct Situ {
  float beta;
  float gate(float g) const { return soft_bound(g, beta) / (exp(-g) + 1.0f); }
  float up(float u) const { return u; }
};

// SiTU whose up half is bounded too.
struct SituBounded {
  float beta;
  float linear_beta;
  float gate(float g) const { return soft_bound(g, beta) / (exp(-g) + 1.0f); }
  float up(float u) const { return soft_bound(u, linear_beta); }
};

struct GegluTanh {
  float gate(float g) const { return gelu_tanh(g); }
  float up(float u) const { return u; }
};

struct Relu2 {
  float value(float x) const {
    const float positive = x < 0.0f ? 0.0f : x;
    return positive * positive;
  }
};

struct Silu {
  float value(float x) const { return silu(x); }
};

}  // namespace moegen
