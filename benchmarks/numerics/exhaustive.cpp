// Every fp32 argument through the CPU device library: largest errors of exp, tanh, silu and sigmoid against fp64, and
// the casts against a search for the nearest value. Run from the repository's root:
//
//   g++ -std=c++20 -O3 -march=x86-64-v3 -ffp-contract=off -fno-trapping-math -Itemplates/cpu/device
//       benchmarks/numerics/exhaustive.cpp -o /tmp/exhaustive && /tmp/exhaustive
#include <cmath>
#include <cstdio>
#include <initializer_list>

#include "activations.h"
#include "contracts.h"

namespace {

float from_bits(std::uint64_t bits) { return std::bit_cast<float>(static_cast<std::uint32_t>(bits)); }

// Largest error over all floats in [low, high] of magnitude at least 2^-27, in units in the last place.
template <class Function, class Exact>
void report_error(const char* name, float low, float high, Function function, Exact exact) {
  double worst = 0;
  float where = 0;
  const float largest = std::fmax(-low, high);
  for (std::uint64_t bits = std::bit_cast<std::uint32_t>(0x1p-27f); from_bits(bits) <= largest; ++bits) {
    for (const float x : {from_bits(bits), -from_bits(bits)}) {
      const double truth = exact(static_cast<double>(x));
      const float rounded = std::fabs(static_cast<float>(truth));
      if (x < low || x > high || !std::isfinite(rounded)) continue;
      const double step = static_cast<double>(std::nextafterf(rounded, INFINITY)) - rounded;
      const double error = std::fabs(function(x) - truth) / step;
      if (error > worst) {
        worst = error;
        where = x;
      }
    }
  }
  std::printf("%-8s [%g, %g]: %.4f ulp at %a\n", name, low, high, worst, where);
}

// Counts values whose code is not the nearest, ties to the even code. Values at or above `top` must have code `last`.
template <class Encode, class Decode>
void report_cast(const char* name, double top, unsigned last, Encode encode, Decode decode) {
  std::uint64_t wrong = 0;
  for (std::uint64_t bits = 0; bits <= 0x7F800000u; ++bits) {
    const float x = from_bits(bits);
    const unsigned code = encode(x);
    if (code > last || (x >= top && code != last)) {
      ++wrong;
      continue;
    }
    const double error = std::fabs(x - decode(code));
    for (int step = -1; step <= 1 && x < top; step += 2) {
      if ((code == 0 && step < 0) || (code == last && step > 0)) continue;
      const double other = std::fabs(x - decode(code + step));
      wrong += other < error || (other == error && code % 2 == 1);
    }
  }
  std::printf("%-8s %llu of 2^31 values wrong\n", name, static_cast<unsigned long long>(wrong));
}

}  // namespace

int main() {
  report_error("exp", -104.0f, 88.8f, moegen::exp, [](double x) { return std::exp(x); });
  report_error("tanh", -10.0f, 10.0f, moegen::tanh, [](double x) { return std::tanh(x); });
  report_error("silu", -87.0f, 100.0f, moegen::silu, [](double x) { return x / (1 + std::exp(-x)); });
  report_error("sigmoid", -87.0f, 100.0f, moegen::sigmoid, [](double x) { return 1 / (1 + std::exp(-x)); });
  report_cast("e2m1", 6.0, 7, moegen::e2m1_from_f32, moegen::f32_from_e2m1);
  report_cast("e4m3", 448.0, 0x7E, moegen::e4m3_from_f32,
              [](unsigned code) { return moegen::f32_from_e4m3(static_cast<std::uint8_t>(code)); });
}
