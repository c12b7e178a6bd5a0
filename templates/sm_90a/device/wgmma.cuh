// wgmma m64nNk16, bf16 or fp16 operands to fp32: A from registers, B (K-major, 128-byte swizzle) from shared memory.
//
// An operand list must be spelt out: MOEGEN_NAMES_n is the text of the first n accumulators, MOEGEN_BINDINGS_n their
// constraints; MOEGEN_WGMMA puts a width together, `a0`... naming the operands after the accumulators.
#pragma once

#include <cstdint>

namespace moegen {

template <int N>
struct Wgmma;

#define MOEGEN_NAMES_4 "%0, %1, %2, %3"
#define MOEGEN_BINDINGS_4 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define MOEGEN_NAMES_8 MOEGEN_NAMES_4 ", %4, %5, %6, %7"
#define MOEGEN_BINDINGS_8 MOEGEN_BINDINGS_4, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define MOEGEN_NAMES_12 MOEGEN_NAMES_8 ", %8, %9, %10, %11"
#define MOEGEN_BINDINGS_12 MOEGEN_BINDINGS_8, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define MOEGEN_NAMES_16 MOEGEN_NAMES_12 ", %12, %13, %14, %15"
#define MOEGEN_BINDINGS_16 MOEGEN_BINDINGS_12, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define MOEGEN_NAMES_20 MOEGEN_NAMES_16 ", %16, %17, %18, %19"
#define MOEGEN_BINDINGS_20 MOEGEN_BINDINGS_16, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define MOEGEN_NAMES_24 MOEGEN_NAMES_20 ", %20, %21, %22, %23"
#define MOEGEN_BINDINGS_24 MOEGEN_BINDINGS_20, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define MOEGEN_NAMES_28 MOEGEN_NAMES_24 ", %24, %25, %26, %27"
#define MOEGEN_BINDINGS_28 MOEGEN_BINDINGS_24, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define MOEGEN_NAMES_32 MOEGEN_NAMES_28 ", %28, %29, %30, %31"
#define MOEGEN_BINDINGS_32 MOEGEN_BINDINGS_28, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
#define MOEGEN_NAMES_36 MOEGEN_NAMES_32 ", %32, %33, %34, %35"
#define MOEGEN_BINDINGS_36 MOEGEN_BINDINGS_32, "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35])
#define MOEGEN_NAMES_40 MOEGEN_NAMES_36 ", %36, %37, %38, %39"
#define MOEGEN_BINDINGS_40 MOEGEN_BINDINGS_36, "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39])
#define MOEGEN_NAMES_44 MOEGEN_NAMES_40 ", %40, %41, %42, %43"
#define MOEGEN_BINDINGS_44 MOEGEN_BINDINGS_40, "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43])
#define MOEGEN_NAMES_48 MOEGEN_NAMES_44 ", %44, %45, %46, %47"
#define MOEGEN_BINDINGS_48 MOEGEN_BINDINGS_44, "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47])
#define MOEGEN_NAMES_52 MOEGEN_NAMES_48 ", %48, %49, %50, %51"
#define MOEGEN_BINDINGS_52 MOEGEN_BINDINGS_48, "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51])
#define MOEGEN_NAMES_56 MOEGEN_NAMES_52 ", %52, %53, %54, %55"
#define MOEGEN_BINDINGS_56 MOEGEN_BINDINGS_52, "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55])
#define MOEGEN_NAMES_60 MOEGEN_NAMES_56 ", %56, %57, %58, %59"
#define MOEGEN_BINDINGS_60 MOEGEN_BINDINGS_56, "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59])
#define MOEGEN_NAMES_64 MOEGEN_NAMES_60 ", %60, %61, %62, %63"
#define MOEGEN_BINDINGS_64 MOEGEN_BINDINGS_60, "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
#define MOEGEN_NAMES_68 MOEGEN_NAMES_64 ", %64, %65, %66, %67"
#define MOEGEN_BINDINGS_68 MOEGEN_BINDINGS_64, "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67])
#define MOEGEN_NAMES_72 MOEGEN_NAMES_68 ", %68, %69, %70, %71"
#define MOEGEN_BINDINGS_72 MOEGEN_BINDINGS_68, "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71])
#define MOEGEN_NAMES_76 MOEGEN_NAMES_72 ", %72, %73, %74, %75"
#define MOEGEN_BINDINGS_76 MOEGEN_BINDINGS_72, "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75])
#define MOEGEN_NAMES_80 MOEGEN_NAMES_76 ", %76, %77, %78, %79"
#define MOEGEN_BINDINGS_80 MOEGEN_BINDINGS_76, "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79])
#define MOEGEN_NAMES_84 MOEGEN_NAMES_80 ", %80, %81, %82, %83"
#define MOEGEN_BINDINGS_84 MOEGEN_BINDINGS_80, "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83])
#define MOEGEN_NAMES_88 MOEGEN_NAMES_84 ", %84, %85, %86, %87"
#define MOEGEN_BINDINGS_88 MOEGEN_BINDINGS_84, "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87])
#define MOEGEN_NAMES_92 MOEGEN_NAMES_88 ", %88, %89, %90, %91"
#define MOEGEN_BINDINGS_92 MOEGEN_BINDINGS_88, "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91])
#define MOEGEN_NAMES_96 MOEGEN_NAMES_92 ", %92, %93, %94, %95"
#define MOEGEN_BINDINGS_96 MOEGEN_BINDINGS_92, "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95])
#define MOEGEN_NAMES_100 MOEGEN_NAMES_96 ", %96, %97, %98, %99"
#define MOEGEN_BINDINGS_100 MOEGEN_BINDINGS_96, "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99])
#define MOEGEN_NAMES_104 MOEGEN_NAMES_100 ", %100, %101, %102, %103"
#define MOEGEN_BINDINGS_104 MOEGEN_BINDINGS_100, "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103])
#define MOEGEN_NAMES_108 MOEGEN_NAMES_104 ", %104, %105, %106, %107"
#define MOEGEN_BINDINGS_108 MOEGEN_BINDINGS_104, "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107])
#define MOEGEN_NAMES_112 MOEGEN_NAMES_108 ", %108, %109, %110, %111"
#define MOEGEN_BINDINGS_112 MOEGEN_BINDINGS_108, "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111])
#define MOEGEN_NAMES_116 MOEGEN_NAMES_112 ", %112, %113, %114, %115"
#define MOEGEN_BINDINGS_116 MOEGEN_BINDINGS_112, "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115])
#define MOEGEN_NAMES_120 MOEGEN_NAMES_116 ", %116, %117, %118, %119"
#define MOEGEN_BINDINGS_120 MOEGEN_BINDINGS_116, "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119])
#define MOEGEN_NAMES_124 MOEGEN_NAMES_120 ", %120, %121, %122, %123"
#define MOEGEN_BINDINGS_124 MOEGEN_BINDINGS_120, "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123])
#define MOEGEN_NAMES_128 MOEGEN_NAMES_124 ", %124, %125, %126, %127"
#define MOEGEN_BINDINGS_128 MOEGEN_BINDINGS_124, "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])

#define MOEGEN_MULTIPLY(TYPE, N, HALF, a0, a1, a2, a3, b)                                                           \
  asm volatile("{ .reg .pred p; setp.eq.u32 p, 0, 0; wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." TYPE "." TYPE \
               " {" MOEGEN_NAMES_##HALF "}, {%" #a0 ", %" #a1 ", %" #a2 ", %" #a3 "}, %" #b ", p, 1, 1, 0; }"       \
               : MOEGEN_BINDINGS_##HALF                                                                             \
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(tokens))

#define MOEGEN_WGMMA(N, HALF, a0, a1, a2, a3, b)                                                            \
  template <>                                                                                               \
  struct Wgmma<N> {                                                                                         \
    template <class Operand>                                                                                \
    static __device__ __forceinline__ void multiply(float (&d)[HALF], const uint32_t* a, uint64_t tokens) { \
      if constexpr (Operand::kFp16) {                                                                       \
        MOEGEN_MULTIPLY("f16", N, HALF, a0, a1, a2, a3, b);                                                 \
      } else {                                                                                              \
        MOEGEN_MULTIPLY("bf16", N, HALF, a0, a1, a2, a3, b);                                                \
      }                                                                                                     \
    }                                                                                                       \
  };

MOEGEN_WGMMA(8, 4, 4, 5, 6, 7, 8)
MOEGEN_WGMMA(16, 8, 8, 9, 10, 11, 12)
MOEGEN_WGMMA(24, 12, 12, 13, 14, 15, 16)
MOEGEN_WGMMA(32, 16, 16, 17, 18, 19, 20)
MOEGEN_WGMMA(40, 20, 20, 21, 22, 23, 24)
MOEGEN_WGMMA(48, 24, 24, 25, 26, 27, 28)
MOEGEN_WGMMA(56, 28, 28, 29, 30, 31, 32)
MOEGEN_WGMMA(64, 32, 32, 33, 34, 35, 36)
MOEGEN_WGMMA(72, 36, 36, 37, 38, 39, 40)
MOEGEN_WGMMA(80, 40, 40, 41, 42, 43, 44)
MOEGEN_WGMMA(88, 44, 44, 45, 46, 47, 48)
MOEGEN_WGMMA(96, 48, 48, 49, 50, 51, 52)
MOEGEN_WGMMA(104, 52, 52, 53, 54, 55, 56)
MOEGEN_WGMMA(112, 56, 56, 57, 58, 59, 60)
MOEGEN_WGMMA(120, 60, 60, 61, 62, 63, 64)
MOEGEN_WGMMA(128, 64, 64, 65, 66, 67, 68)
MOEGEN_WGMMA(136, 68, 68, 69, 70, 71, 72)
MOEGEN_WGMMA(144, 72, 72, 73, 74, 75, 76)
MOEGEN_WGMMA(152, 76, 76, 77, 78, 79, 80)
MOEGEN_WGMMA(160, 80, 80, 81, 82, 83, 84)
MOEGEN_WGMMA(168, 84, 84, 85, 86, 87, 88)
MOEGEN_WGMMA(176, 88, 88, 89, 90, 91, 92)
MOEGEN_WGMMA(184, 92, 92, 93, 94, 95, 96)
MOEGEN_WGMMA(192, 96, 96, 97, 98, 99, 100)
MOEGEN_WGMMA(200, 100, 100, 101, 102, 103, 104)
MOEGEN_WGMMA(208, 104, 104, 105, 106, 107, 108)
MOEGEN_WGMMA(216, 108, 108, 109, 110, 111, 112)
MOEGEN_WGMMA(224, 112, 112, 113, 114, 115, 116)
MOEGEN_WGMMA(232, 116, 116, 117, 118, 119, 120)
MOEGEN_WGMMA(240, 120, 120, 121, 122, 123, 124)
MOEGEN_WGMMA(248, 124, 124, 125, 126, 127, 128)
MOEGEN_WGMMA(256, 128, 128, 129, 130, 131, 132)

#undef MOEGEN_WGMMA
#undef MOEGEN_MULTIPLY

}  // namespace moegen
