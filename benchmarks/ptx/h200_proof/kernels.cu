// Small kernels, each around one class of sm_90a instructions that is more than a scalar operation. Inputs and outputs are flat
// arrays; what each kernel computes is compared between the device and the interpreter.
#include <cstdint>

#define ENTRY extern "C" __global__ void
typedef uint32_t u32;
typedef uint64_t u64;
typedef uint16_t u16;

extern __shared__ __align__(1024) uint8_t pool[];

__device__ __forceinline__ u32 shared_address(const void* p) { return (u32)__cvta_generic_to_shared(p); }
__device__ __forceinline__ void barrier_init(u32 bar, u32 count) { asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(bar), "r"(count)); }
__device__ __forceinline__ void barrier_expect(u32 bar, u32 bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(bar), "r"(bytes) : "memory");
}
__device__ __forceinline__ void barrier_wait(u32 bar, u32 parity) {
  asm volatile(
      "{\n .reg .pred p;\nAGAIN:\n mbarrier.try_wait.parity.shared::cta.b64 p, [%0], %1;\n @p bra DONE;\n bra AGAIN;\nDONE:\n}" ::"r"(bar), "r"(parity)
      : "memory");
}

// -- lanes ---------------------------------------------------------------------------------------------------------
ENTRY shuffles(const u32* in, u32* out) {  // one block of 32; 16 results per lane
  u32 t = threadIdx.x, x = in[t], r, p;
#define SHFL(slot, mode, b, c)                                                                                              \
  asm volatile("{.reg .pred q; shfl.sync." mode ".b32 %0|q, %2, %3, %4, 0xffffffff; selp.u32 %1, 1, 0, q;}"                 \
               : "=r"(r), "=r"(p) : "r"(x), "r"(b), "r"(c));                                                                \
  out[(2 * slot) * 32 + t] = r; out[(2 * slot + 1) * 32 + t] = p;
  SHFL(0, "idx", 5u, 31u) SHFL(1, "idx", t * 7u & 31u, 31u) SHFL(2, "up", 3u, 0u) SHFL(3, "down", 4u, 31u)
  SHFL(4, "bfly", 9u, 31u) SHFL(5, "idx", t + 3u, 0x181fu) SHFL(6, "up", 2u, 0x1800u) SHFL(7, "down", 3u, 0x1c1fu)
  SHFL(8, "bfly", 5u, 0x1c03u) SHFL(9, "down", t & 15u, 0x101fu)
}
ENTRY votes(const u32* in, u32* out) {
  u32 t = threadIdx.x, x = in[t];
  out[t] = __ballot_sync(~0u, x & 1);
  out[32 + t] = __any_sync(~0u, (x & 255) == 3);
  out[64 + t] = __all_sync(~0u, x != 1);
  out[96 + t] = __match_any_sync(~0u, x & 3);
  int same;
  out[128 + t] = __match_all_sync(~0u, x >> 31 >> 1, &same);
  out[160 + t] = same;
  out[192 + t] = __reduce_add_sync(~0u, x);
  out[224 + t] = __reduce_min_sync(~0u, (int)x);
  out[256 + t] = __reduce_max_sync(~0u, x);
  out[288 + t] = __reduce_xor_sync(~0u, x) ^ __reduce_or_sync(~0u, x & 0xff) ^ __reduce_and_sync(~0u, x | 0xff00);
  u32 leader, pred;
  asm volatile("{.reg .pred q; elect.sync %0|q, 0xffffffff; selp.u32 %1, 1, 0, q;}" : "=r"(leader), "=r"(pred));
  out[320 + t] = leader * 2 + pred;
  if (x & 1) {
    out[352 + t] = __activemask();
    u32 m = __ballot_sync(__activemask(), x & 2);
    out[384 + t] = m + __shfl_sync(__activemask(), x, __ffs(__activemask()) - 1);
  }
  out[416 + t] = __popc(__ballot_sync(~0u, t < (x & 31)));
}
ENTRY divergence(const u32* in, u32* out) {
  u32 t = blockIdx.x * blockDim.x + threadIdx.x, x = in[t], n = 0, s = 0;
  for (u32 k = 0; k < (x & 63); ++k) {
    if ((x >> (k & 15)) & 1) { s += k * x; if (s & 64) continue; s ^= 0x55; } else { s = s * 3 + 1; if ((s & 1023) == 7) break; }
    ++n;
  }
  switch (x % 5) { case 0: s += n; break; case 1: s ^= n << 3; break; case 2: s = ~s; break; case 3: s -= 77; break; default: s *= n | 1; }
  out[t] = s;
}

// -- memory --------------------------------------------------------------------------------------------------------
ENTRY widths(const uint8_t* in, uint8_t* out) {  // loads and stores of every width and vector, sign and zero extension
  u32 t = threadIdx.x;
  __shared__ __align__(16) uint8_t s[4096];
  for (u32 k = t; k < 4096; k += 32) s[k] = in[k];
  __syncthreads();
  uint8_t* o = out + t * 256;
  int a; u32 b; long long c;
  u32 base = shared_address(s) + t * 64;
  asm volatile("{.reg .s16 h; ld.shared.s8 h, [%1+3]; cvt.s32.s16 %0, h;}" : "=r"(a) : "r"(base)); *(int*)(o) = a;
  asm volatile("ld.shared.u8 %0, [%1+5];" : "=r"(b) : "r"(base)); *(u32*)(o + 4) = b;
  asm volatile("ld.shared.s16 %0, [%1+6];" : "=r"(a) : "r"(base)); *(int*)(o + 8) = a;
  asm volatile("ld.shared.s32 %0, [%1+8];" : "=l"(c) : "r"(base)); *(long long*)(o + 16) = c;
  uint4 v = *(uint4*)(s + t * 64 + 16); *(uint4*)(o + 32) = v;
  uint2 w = *(const uint2*)(in + t * 8); *(uint2*)(o + 48) = w;
  ulonglong2 q = *(const ulonglong2*)(in + t * 16 + 512); *(ulonglong2*)(o + 64) = q;
  *(u16*)(o + 80) = *(u16*)(s + t * 2 + 100); o[83] = s[t + 200];
  uint8_t local[64];
#pragma unroll 1
  for (u32 k = 0; k < 64; ++k) local[(k * 5 + t) & 63] = in[k + t];
#pragma unroll 1
  for (u32 k = 0; k < 64; ++k) o[128 + k] = local[(k * 3) & 63];
  o[200] = __isShared(s) + 2 * __isGlobal(in) + 4 * __isLocal(local);
}
ENTRY atomics(const u32* in, u32* out, u64* out64, float* outf) {
  u32 t = threadIdx.x, x = in[blockIdx.x * blockDim.x + t];
  __shared__ u32 s[8];
  if (t < 8) s[t] = t == 3 ? ~0u : t == 7 ? 5 : 0;
  __syncthreads();
  atomicAdd(&out[0], x); atomicMin((int*)&out[1], (int)x); atomicMax(&out[2], x); atomicAnd(&out[3], x | 0xff); atomicOr(&out[4], x & 0xff00);
  atomicXor(&out[5], x); atomicInc(&out[6], 100); atomicDec(&out[7], 77);
  atomicAdd((unsigned long long*)&out64[0], (unsigned long long)x * 77777); atomicMax((unsigned long long*)&out64[1], (unsigned long long)x << 20);
  atomicAdd(&outf[0], (float)(x & 1023));
  atomicAdd(&s[0], x); atomicMax(&s[1], x); atomicXor(&s[2], x); atomicMin(&s[3], x); atomicInc(&s[4], 9);
  u32 old; do { old = atomicAdd(&s[5], 0); } while (atomicCAS(&s[5], old, old + (x & 7)) != old);
  atomicExch(&out[8], 42);
  __syncthreads();
  if (t < 8 && t != 6) atomicAdd(&out[16 + t], s[t]);
  asm volatile("red.global.add.noftz.bf16x2 [%0], %1;" ::"l"(outf + 1), "r"(0x3f803f80u));
  asm volatile("red.global.add.noftz.f16x2 [%0], %1;" ::"l"(outf + 2), "r"(0x3c003c00u));
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(outf + 4), "f"((float)(x & 15)), "f"(1.0f));
}
ENTRY named_barriers(const u32* in, u32* out) {  // 128 threads: a two-stage pipeline over named barriers
  __shared__ u32 a[64], b[64];
  u32 t = threadIdx.x;
  for (u32 k = 0; k < 4; ++k) {
    if (t < 64) {
      asm volatile("bar.sync 1, 128;" ::: "memory");
      a[t] = in[k * 64 + t]; b[63 - t] = in[k * 64 + t] * 3;
      asm volatile("bar.arrive 2, 128;" ::: "memory");
    } else {
      asm volatile("bar.arrive 1, 128;" ::: "memory");
      asm volatile("bar.sync 2, 128;" ::: "memory");
      out[k * 64 + t - 64] = a[(t * 7) & 63] ^ b[t & 63];
    }
  }
  u32 n; asm volatile("{.reg .pred p; setp.ne.u32 p, %1, 0; barrier.red.popc.u32 %0, 3, 128, p;}" : "=r"(n) : "r"(in[t] & 1));
  u32 e; asm volatile("{.reg .pred p, q; setp.ne.u32 p, %1, 0; barrier.red.and.pred q, 4, 128, p; selp.u32 %0, 1, 0, q;}" : "=r"(e) : "r"(in[t] | 1));
  out[256 + t] = n * 2 + e + __syncthreads_or(in[t] == 12345);
}

// -- warp matrices -------------------------------------------------------------------------------------------------
ENTRY matrices(const u32* in, u32* out) {  // 32 threads
  __shared__ __align__(128) u32 s[1024];
  u32 t = threadIdx.x, r[4], base = shared_address(s);
  for (u32 k = t; k < 512; k += 32) s[k] = in[k];
  __syncwarp();
  u32 row = base + (t * 5 & 31) * 16;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];" : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(row));
  for (int k = 0; k < 4; ++k) out[k * 32 + t] = r[k];
  asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0,%1}, [%2];" : "=r"(r[0]), "=r"(r[1]) : "r"(row));
  out[128 + t] = r[0]; out[160 + t] = r[1];
  asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];" : "=r"(r[0]) : "r"(row)); out[192 + t] = r[0];
  u32 target = base + 2048 + t * 16, a = in[t], b = in[t + 32], c = in[t + 64], d = in[t + 96];
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1,%2,%3,%4};" ::"r"(target), "r"(a), "r"(b), "r"(c), "r"(d) : "memory");
  __syncwarp();
  for (u32 k = 0; k < 4; ++k) out[224 + k * 32 + t] = s[512 + k * 32 + t];
  __syncwarp();
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1,%2};" ::"r"(target), "r"(a), "r"(b) : "memory");
  __syncwarp();
  for (u32 k = 0; k < 2; ++k) out[352 + k * 32 + t] = s[512 + k * 32 + t];
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(r[0]) : "r"(a)); out[416 + t] = r[0];
}
#define MMA4(name, op, na, nb)                                                                                                  \
  ENTRY name(const u32* a, const u32* b, const u32* c, u32* d) {                                                              \
    u32 t = threadIdx.x, x[4] = {}, y[2] = {}, z[4], w[4];                                                                    \
    for (int k = 0; k < na; ++k) x[k] = a[k * 32 + t];                                                                        \
    for (int k = 0; k < nb; ++k) y[k] = b[k * 32 + t];                                                                        \
    for (int k = 0; k < 4; ++k) z[k] = c[k * 32 + t];
#define MMA_END for (int k = 0; k < 4; ++k) d[k * 32 + t] = w[k]; }
#define F32OUT "=f"(*(float*)&w[0]), "=f"(*(float*)&w[1]), "=f"(*(float*)&w[2]), "=f"(*(float*)&w[3])
#define F32IN "f"(*(float*)&z[0]), "f"(*(float*)&z[1]), "f"(*(float*)&z[2]), "f"(*(float*)&z[3])
#define MMA_42(name, op) MMA4(name, op, 4, 2) asm volatile("mma.sync.aligned." op " {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};" \
    : F32OUT : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), F32IN); MMA_END
#define MMA_21(name, op) MMA4(name, op, 2, 1) asm volatile("mma.sync.aligned." op " {%0,%1,%2,%3}, {%4,%5}, {%6}, {%7,%8,%9,%10};" \
    : F32OUT : "r"(x[0]), "r"(x[1]), "r"(y[0]), F32IN); MMA_END
MMA_42(mma_f16, "m16n8k16.row.col.f32.f16.f16.f32")
MMA_42(mma_bf16, "m16n8k16.row.col.f32.bf16.bf16.f32")
MMA_42(mma_tf32, "m16n8k8.row.col.f32.tf32.tf32.f32")
MMA_42(mma_e4m3, "m16n8k32.row.col.f32.e4m3.e5m2.f32")
MMA_21(mma_f16_k8, "m16n8k8.row.col.f32.f16.f16.f32")
MMA_21(mma_tf32_k4, "m16n8k4.row.col.f32.tf32.tf32.f32")
MMA4(mma_s8, "", 4, 2) asm volatile("mma.sync.aligned.m16n8k32.row.col.satfinite.s32.s8.u8.s32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%10,%11,%12,%13};"
    : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(z[0]), "r"(z[1]), "r"(z[2]), "r"(z[3])); MMA_END
MMA4(mma_f16_f16, "", 4, 2) asm volatile("mma.sync.aligned.m16n8k16.row.col.f16.f16.f16.f16 {%0,%1}, {%2,%3,%4,%5}, {%6,%7}, {%8,%9};"
    : "=r"(w[0]), "=r"(w[1]) : "r"(x[0]), "r"(x[1]), "r"(x[2]), "r"(x[3]), "r"(y[0]), "r"(y[1]), "r"(z[0]), "r"(z[1])); w[2] = w[3] = 0; MMA_END

// -- asynchronous copies -------------------------------------------------------------------------------------------
ENTRY cp_async(const uint8_t* in, uint8_t* out) {  // 64 threads: groups, zero fill, completion on an mbarrier
  __shared__ __align__(128) uint8_t s[3][1024];
  __shared__ __align__(8) u64 bar;
  u32 t = threadIdx.x, b = shared_address(&bar);
  if (t == 0) { barrier_init(b, 64); }
  __syncthreads();
  for (int k = 0; k < 3; ++k) {
    u32 bytes = k == 1 ? (t & 16) : 16;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(s[k]) + t * 16), "l"(in + k * 1024 + t * 16), "r"(bytes));
    asm volatile("cp.async.commit_group;");
  }
  asm volatile("cp.async.wait_group 1;" ::: "memory");
  __syncthreads();
  *(uint4*)(out + t * 16) = *(uint4*)(s[0] + (63 - t) * 16);
  *(uint4*)(out + 1024 + t * 16) = *(uint4*)(s[1] + (63 - t) * 16);
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" ::"r"(b));
  barrier_wait(b, 0);
  *(uint4*)(out + 2048 + t * 16) = *(uint4*)(s[2] + (63 - t) * 16);
  __syncthreads();
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(shared_address(s[0]) + t * 4), "l"(in + 100 + t * 4));
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncthreads();
  *(u32*)(out + 3072 + t * 4) = *(u32*)(s[0] + ((t + 9) & 63) * 4);
}
ENTRY bulk(const uint8_t* in, uint8_t* out, u32* sums) {  // bulk load, store, reductions
  uint8_t* s = pool;
  __shared__ __align__(8) u64 bar;
  u32 t = threadIdx.x, b = shared_address(&bar), base = shared_address(s);
  if (t == 0) {
    barrier_init(b, 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
    barrier_expect(b, 4096);
    asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::"r"(base), "l"(in), "r"(4096), "r"(b) : "memory");
  }
  __syncthreads();
  barrier_wait(b, 0);
  for (u32 k = t; k < 1024; k += 64) ((u32*)s)[k] = ((u32*)s)[k] * 3 + 1;
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
  __syncthreads();
  if (t == 0) {
    asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(out), "r"(base), "r"(4096) : "memory");
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.u32 [%0], [%1], %2;" ::"l"(sums), "r"(base), "r"(1024) : "memory");
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.max.s32 [%0], [%1], %2;" ::"l"(sums + 256), "r"(base), "r"(1024) : "memory");
    asm volatile("cp.reduce.async.bulk.global.shared::cta.bulk_group.xor.b32 [%0], [%1], %2;" ::"l"(sums + 512), "r"(base), "r"(1024) : "memory");
    asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
struct __align__(64) TensorMap { u64 words[16]; };
#define TENSOR(name, dims, coordinates, ...)                                                                                    \
  ENTRY name(const __grid_constant__ TensorMap source, const __grid_constant__ TensorMap target, uint8_t* raw, u32 bytes,        \
             int x, int y, int z) {                                                                                             \
    uint8_t* s = pool;                                                                              \
    __shared__ __align__(8) u64 bar;                                                                                            \
    u32 t = threadIdx.x, b = shared_address(&bar), base = shared_address(s);                                                    \
    if (t == 0) {                                                                                                               \
      asm volatile("prefetch.tensormap [%0];" ::"l"(&source));                                                                  \
      barrier_init(b, 1);                                                                                                       \
      asm volatile("fence.mbarrier_init.release.cluster;");                                                                     \
      barrier_expect(b, bytes);                                                                                                 \
      asm volatile("cp.async.bulk.tensor." dims ".shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {" coordinates "}], [%2];" \
                   ::"r"(base), "l"(&source), "r"(b), __VA_ARGS__ : "memory");                                                  \
    }                                                                                                                           \
    __syncthreads();                                                                                                            \
    barrier_wait(b, 0);                                                                                                         \
    for (u32 k = t * 4; k < bytes; k += 128) *(u32*)(raw + k) = *(u32*)(s + k);                                                 \
    __syncthreads();                                                                                                            \
    x = max(x, 0), y = max(y, 0), z = max(z, 0); /* a store must not start before the tensor */                                 \
    if (t == 0) {                                                                                                               \
      asm volatile("cp.async.bulk.tensor." dims ".global.shared::cta.tile.bulk_group [%1, {" coordinates "}], [%0];"            \
                   ::"r"(base), "l"(&target), "r"(b), __VA_ARGS__ : "memory");                                                  \
      asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group.read 0;\n cp.async.bulk.wait_group 0;" ::: "memory"); \
    }                                                                                                                           \
  }
TENSOR(tensor_1d, "1d", "%3", "r"(x))
TENSOR(tensor_2d, "2d", "%3, %4", "r"(x), "r"(y))
TENSOR(tensor_3d, "3d", "%3, %4, %5", "r"(x), "r"(y), "r"(z))
ENTRY tensor_reduce(const __grid_constant__ TensorMap source, const __grid_constant__ TensorMap target, u32 bytes) {
  uint8_t* s = pool;
  __shared__ __align__(8) u64 bar;
  u32 t = threadIdx.x, b = shared_address(&bar), base = shared_address(s);
  if (t == 0) {
    barrier_init(b, 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
    barrier_expect(b, bytes);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3}], [%2];" ::"r"(base), "l"(&source), "r"(b), "r"(0) : "memory");
    barrier_wait(b, 0);
    asm volatile("cp.reduce.async.bulk.tensor.2d.global.shared::cta.add.tile.bulk_group [%1, {%2, %2}], [%0];" ::"r"(base), "l"(&target), "r"(0) : "memory");
    asm volatile("cp.async.bulk.commit_group;\n cp.async.bulk.wait_group 0;" ::: "memory");
  }
}
ENTRY tensor_replace(const __grid_constant__ TensorMap source, uint8_t* tensor, TensorMap* room, uint8_t* raw, u32 bytes) {
  // A map copied to shared memory, changed there, published to global memory, and used.
  uint8_t* s = pool;
  __shared__ __align__(128) TensorMap work;
  __shared__ __align__(8) u64 bar;
  u32 t = threadIdx.x, b = shared_address(&bar), base = shared_address(s), m = shared_address(&work);
  if (t < 16) work.words[t] = source.words[t];
  __syncwarp();
  if (t == 0) {
    asm volatile("tensormap.replace.tile.global_address.shared::cta.b1024.b64 [%0], %1;" ::"l"((u64)m), "l"(tensor));
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 0, %1;" ::"l"((u64)m), "r"(40));
    asm volatile("tensormap.replace.tile.global_dim.shared::cta.b1024.b32 [%0], 1, %1;" ::"l"((u64)m), "r"(9));
    asm volatile("tensormap.replace.tile.global_stride.shared::cta.b1024.b64 [%0], 0, %1;" ::"l"((u64)m), "l"((u64)192));
    barrier_init(b, 1);
    asm volatile("fence.mbarrier_init.release.cluster;");
  }
  __syncwarp();
  asm volatile("tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned [%0], [%1], 128;" ::"l"(room), "r"(m) : "memory");
  if (t == 0) {
    asm volatile("fence.proxy.tensormap::generic.acquire.gpu [%0], 128;" ::"l"(room) : "memory");
    barrier_expect(b, bytes);
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::"r"(base), "l"(room), "r"(b), "r"(16), "r"(5) : "memory");
  }
  __syncthreads();
  barrier_wait(b, 0);
  for (u32 k = t * 4; k < bytes; k += 128) *(u32*)(raw + k) = *(u32*)(s + k);
}

// -- clusters ------------------------------------------------------------------------------------------------------
ENTRY __cluster_dims__(4, 1, 1) cluster(const u32* in, u32* out) {  // distributed shared memory, remote arrivals
  __shared__ u32 s[64];
  __shared__ __align__(8) u64 bar;
  u32 t = threadIdx.x, rank, b = shared_address(&bar), remote, value;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (t == 0) { barrier_init(b, 4); asm volatile("fence.mbarrier_init.release.cluster;"); }
  s[t] = in[blockIdx.x * 64 + t];
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::: "memory");
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(shared_address(&s[63 - t])), "r"((rank + 1) & 3));
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(value) : "r"(remote));
  out[blockIdx.x * 64 + t] = value + rank;
  asm volatile("barrier.cluster.arrive;\n barrier.cluster.wait;" ::: "memory");
  asm volatile("st.shared::cluster.u32 [%0], %1;" ::"r"(remote), "r"(value * 5 + t) : "memory");
  asm volatile("fence.acq_rel.cluster;" ::: "memory");
  if (t < 4) {
    u32 peer;
    asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(b), "r"(t));
    __syncwarp(0xf);
    asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(peer) : "memory");
  }
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
  barrier_wait(b, 0);
  out[512 + blockIdx.x * 64 + t] = s[t];
  u32 who;
  asm volatile("getctarank.shared::cluster.u32 %0, %1;" : "=r"(who) : "r"(remote));
  out[1024 + blockIdx.x * 64 + t] = who;
}
ENTRY __cluster_dims__(2, 1, 1) multicast(const __grid_constant__ TensorMap source, uint8_t* raw, u32 bytes) {
  uint8_t* s = pool;
  __shared__ __align__(8) u64 bar;
  u32 t = threadIdx.x, b = shared_address(&bar), base = shared_address(s), rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  if (t == 0) { barrier_init(b, 1); asm volatile("fence.mbarrier_init.release.cluster;"); barrier_expect(b, 2 * bytes); }
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
  if (t == 0)
    asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;"
                 ::"r"(base + rank * bytes), "l"(&source), "r"(b), "r"(0), "r"((int)rank * 8), "h"((u16)3) : "memory");
  barrier_wait(b, 0);
  for (u32 k = t * 4; k < 2 * bytes; k += 128) *(u32*)(raw + rank * 2 * bytes + k) = *(u32*)(s + k);
  asm volatile("barrier.cluster.arrive.release;\n barrier.cluster.wait.acquire;" ::: "memory");
}

// -- wgmma ---------------------------------------------------------------------------------------------------------
// Operands are copied to shared memory as they come: the host lays them out for the descriptor.
template <int N> __device__ __forceinline__ void store_accumulators(u32* d, const float (&c)[N / 2]) {
  for (int k = 0; k < N / 2; ++k) d[k * 128 + threadIdx.x] = __float_as_uint(c[k]);
}
#define ACC16 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15}"
#define ACC16F(c) "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]), "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]), "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15])
#define WGMMA_SS(name, shape, tail, ...)                                                                                        \
  ENTRY name(const u32* a, const u32* b, u32* d, u64 descriptor_a, u64 descriptor_b, u32 words_a, u32 words_b, u32 steps, u32 step_a, u32 step_b) { \
    u32* s = (u32*)pool;                                                                                  \
    u32 t = threadIdx.x, base = shared_address(s);                                                                              \
    for (u32 k = t; k < words_a; k += 128) s[k] = a[k];                                                                         \
    u32 offset = (words_a * 4 + 1023) / 1024 * 1024;                                                                            \
    for (u32 k = t; k < words_b; k += 128) s[offset / 4 + k] = b[k];                                                            \
    asm volatile("fence.proxy.async;" ::: "memory");                                                                            \
    __syncthreads();                                                                                                            \
    float c[16];                                                                                                                \
    for (int k = 0; k < 16; ++k) c[k] = (float)k;                                                                               \
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");                                                                     \
    for (u32 k = 0; k < steps; ++k) {                                                                                           \
      u64 da = descriptor_a + ((base + k * step_a) >> 4), db = descriptor_b + ((base + offset + k * step_b) >> 4);              \
      asm volatile("{.reg .pred p; setp.ne.b32 p, %18, 0; wgmma.mma_async.sync.aligned." shape " " ACC16 ", %16, %17, p" tail ";}" \
                   : ACC16F(c) : "l"(da), "l"(db), "r"(1) : "memory");                                                          \
    }                                                                                                                           \
    asm volatile("wgmma.commit_group.sync.aligned;\n wgmma.wait_group.sync.aligned 0;" ::: "memory");                           \
    store_accumulators<32>(d, c);                                                                                               \
  }
WGMMA_SS(wgmma_bf16, "m64n32k16.f32.bf16.bf16", ", 1, 1, 0, 0")
WGMMA_SS(wgmma_f16_neg, "m64n32k16.f32.f16.f16", ", -1, 1, 0, 0")
WGMMA_SS(wgmma_bf16_tb, "m64n32k16.f32.bf16.bf16", ", 1, 1, 0, 1")
WGMMA_SS(wgmma_bf16_ta, "m64n32k16.f32.bf16.bf16", ", 1, 1, 1, 0")
WGMMA_SS(wgmma_e4m3, "m64n32k32.f32.e4m3.e4m3", ", 1, 1")
WGMMA_SS(wgmma_tf32, "m64n32k8.f32.tf32.tf32", ", 1, 1")
ENTRY wgmma_rs(const u32* a, const u32* b, u32* d, u64 descriptor_b, u32 words_b) {  // A in registers, two steps, setmaxnreg
  u32* s = (u32*)pool;
  u32 t = threadIdx.x, base = shared_address(s);
  for (u32 k = t; k < words_b; k += 128) s[k] = b[k];
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  float c[16];
  for (int k = 0; k < 16; ++k) c[k] = 0.f;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (u32 k = 0; k < 2; ++k) {
    u32 x0 = a[(k * 4 + 0) * 128 + t], x1 = a[(k * 4 + 1) * 128 + t], x2 = a[(k * 4 + 2) * 128 + t], x3 = a[(k * 4 + 3) * 128 + t];
    asm volatile("{.reg .pred p; setp.ne.b32 p, %21, 0; wgmma.mma_async.sync.aligned.m64n32k16.f32.bf16.bf16 " ACC16 ", {%16,%17,%18,%19}, %20, p, 1, 1, 0;}"
                 : ACC16F(c) : "r"(x0), "r"(x1), "r"(x2), "r"(x3), "l"(descriptor_b + ((base + k * 32) >> 4)), "r"(k) : "memory");
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  }
  asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  store_accumulators<32>(d, c);
}

// -- the rest ------------------------------------------------------------------------------------------------------
ENTRY mbarriers(const u32* in, u32* out) {  // 64 threads: arrive counts, states, test_wait, expect_tx, drop
  __shared__ __align__(8) u64 bars[2];
  __shared__ u32 s[64];
  u32 t = threadIdx.x, b = shared_address(bars), c = shared_address(bars + 1);
  if (t == 0) { barrier_init(b, 64); barrier_init(c, 3); }
  __syncthreads();
  u32 total = 0;
  for (u32 k = 0; k < 5; ++k) {
    s[t] = in[k * 64 + t];
    u64 state; u32 ok;
    asm volatile("mbarrier.arrive.shared::cta.b64 %0, [%1];" : "=l"(state) : "r"(b) : "memory");
    do { asm volatile("{.reg .pred p; mbarrier.test_wait.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p;}" : "=r"(ok) : "r"(b), "l"(state) : "memory"); } while (!ok);
    total = total * 31 + s[(t * 3 + k) & 63];
    __syncthreads();
  }
  if (t == 0) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], 2;" ::"r"(c) : "memory");
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 64;\n mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], 64;" ::"r"(c) : "memory");
    asm volatile("mbarrier.arrive_drop.shared::cta.b64 _, [%0];" ::"r"(c) : "memory");
  }
  __syncthreads();
  barrier_wait(c, 0);
  if (t < 2) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(c) : "memory");
  barrier_wait(c, 1);
  out[t] = total;
  __syncthreads();
  if (t == 0) asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(b) : "memory");
}
__device__ u32 table[16] = {3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3};
__constant__ u32 coefficients[4] = {2, 7, 1, 8};
ENTRY variables(const u32* in, u32* out, u64 big, u16 small, float f) {  // module variables, parameters, dependency control
  asm volatile("griddepcontrol.launch_dependents;\n griddepcontrol.wait;" ::: "memory");
  u32 t = threadIdx.x;
  out[t] = table[(in[t] + t) & 15] * coefficients[t & 3] + (u32)big + small + (u32)f;
  if (t == 7) { table[2] += 10; __threadfence(); }
}
ENTRY grids(u32* out) {  // special registers in three dimensions
  u32 t = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  u32 g = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z), lane, lt, ge;
  asm("mov.u32 %0, %%laneid;" : "=r"(lane)); asm("mov.u32 %0, %%lanemask_lt;" : "=r"(lt)); asm("mov.u32 %0, %%lanemask_ge;" : "=r"(ge));
  out[g * 48 + t] = threadIdx.x + 10 * threadIdx.y + 100 * threadIdx.z + 1000 * blockIdx.x + 10000 * blockIdx.y + 100000 * blockIdx.z + lane * 7 + lt * 3 + ge;
}
ENTRY wide_integers(const u64* in, u64* out) {  // carries, 128-bit products, divisions, shifts by variables
  u32 t = threadIdx.x; u64 a = in[2 * t], b = in[2 * t + 1] | 1;
  unsigned __int128 p = (unsigned __int128)a * b + a; out[8 * t] = (u64)p; out[8 * t + 1] = (u64)(p >> 64);
  __int128 q = (__int128)(long long)a * (long long)b - b; out[8 * t + 2] = (u64)q; out[8 * t + 3] = (u64)((unsigned __int128)q >> 64);
  out[8 * t + 4] = a / b; out[8 * t + 5] = (u64)((long long)a % (long long)b); out[8 * t + 6] = a << (b & 63); out[8 * t + 7] = (u64)((long long)a >> (b & 63));
}
