// Products of a warpgroup on Hopper (PTX: wgmma): four warps, of which the first has a number that 4 divides, multiply 64 rows. They run in
// the background: what they read in shared memory and what they sum up in registers is theirs until it has been waited for.
//
// Their operands lie in shared memory in panels of 64 columns of 16 bits, one behind the other, which begin at multiples of
// 1,024 bytes. A panel's row has 128 bytes, in eight pieces of 16: piece c of row r is where c xor r % 8 would be, so that
// eight rows' pieces of one column fall into different banks (128 byte swizzle).

// Where the elements of a tile of ROWS rows lie.
template <int ROWS, int D> struct Panels {
    static constexpr u32 SIZE = ROWS * D;

    static __device__ inline u32 of(u32 row, u32 column) {
        return column / 64 * ROWS * 64 + row * 64 + (column / 8 % 8 ^ row % 8) * 8 + column % 8;
    }

    // Copies in one go.
    static constexpr int UNROLLED = ROWS;
    // Whether of(row + down, column + across) is of(row, column) + of(down, across) for multiples of these.
    template <int DOWN, int ACROSS> static constexpr bool IS_LINEAR = DOWN % 8 == 0 && (ACROSS % 64 == 0 || ACROSS == D);
};

// The first address from `memory` on where a panel may begin.
__device__ inline u8* first_panel(u8* memory) { return memory + (1024 - shared_address(memory) % 1024) % 1024; }

// An operand for the instructions (PTX: matrix descriptor): `bytes` behind the tile, and the bytes from 64 columns to the next where
// those are not what is summed over. From eight rows to the next there are 1,024 bytes. The fields count 16 bytes, and what is
// behind the tile is added to a field, so that operands of one tile are one addition from each other.
__device__ inline u64 operand(const void* tile, u32 bytes, u32 panel_bytes) {
    u32 low = (shared_address(tile) >> 4) + (bytes >> 4 | panel_bytes >> 4 << 16);
    return (u64)low | (u64)(1024 >> 4) << 32 | (u64)1 << 62;
}

// Columns 16 step .. 16 step + 15 of the rows from `row` (a multiple of 8) on: those columns are summed over.
template <class T, int ROWS> __device__ inline u64 columns_of(const T* tile, u32 row, u32 step) {
    return operand(tile + row * 64, step / 4 * ROWS * 128 + step % 4 * 32, 16);
}

// All columns of the rows 16 step .. 16 step + 15: those rows are summed over.
template <class T, int ROWS> __device__ inline u64 rows_of(const T* tile, u32 step) {
    return operand(tile, step * 2048, ROWS * 128);
}

#ifndef EMULATED
// What has been written to shared memory (and waited for) is seen by the products that come behind the next barrier.
__device__ inline void show_to_products() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Before the first product behind anything else that wrote registers of a product.
__device__ inline void begin_products() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }

__device__ inline void end_products() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }

// Waits until at most N groups of products are still under way.
template <int N> __device__ inline void wait_for_products() { asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(N) : "memory"); }

// Sums that have been waited for: before it the compiler may not read them.
template <int TILES> __device__ inline void arrived(float (&sums)[TILES][4]) {
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        for (int i = 0; i < 4; i++) asm volatile("" : "+f"(sums[tile][i])::"memory");
}

// Makes both values before the next wait for products. The assembler moves a wait up as far as it finds nothing that it has to stay
// behind, arithmetic is no such thing, and what was written to run beside products would run behind them. A warp's barrier is one:
// its mask reads the values, and has all lanes whatever they are (as a number, 0xffffffff never comes out of arithmetic: the NaN of
// the hardware is 0x7fffffff).
__device__ inline void make_before_waiting(float first, float second) {
    u32 both = __float_as_uint(first) & __float_as_uint(second);
    asm volatile("bar.warp.sync %0;" ::"r"(both == 0xffffffff ? 0 : 0xffffffff) : "memory");
}

// As make_before_waiting, of weights.
template <int TILES> __device__ inline void make_before_waiting(const float (&weights)[TILES][4]) {
    u32 all = 0xffffffff;
    #pragma unroll
    for (int tile = 0; tile < TILES; tile++)
        for (int i = 0; i < 4; i++) all &= __float_as_uint(weights[tile][i]);
    asm volatile("bar.warp.sync %0;" ::"r"(all == 0xffffffff ? 0 : 0xffffffff) : "memory");
}

#define SUM4(tile) "+f"(d[tile][0]), "+f"(d[tile][1]), "+f"(d[tile][2]), "+f"(d[tile][3])
#define SUM16(tile) SUM4(tile), SUM4(tile + 1), SUM4(tile + 2), SUM4(tile + 3)
#define SUMS_64 SUM16(0), SUM16(4)
#define SUMS_128 SUMS_64, SUM16(8), SUM16(12)
#define NAMES_64                                                                                                       \
    "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31"
#define NAMES_128                                                                                                      \
    NAMES_64 ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,%54,%55,%56,%57," \
             "%58,%59,%60,%61,%62,%63"

// d (64, N) = a b^T, plus d where `adds`: of a and b the columns are summed over; a may lie in registers, as for multiply_tile.
// d (64, N) += a b: of b the rows are summed over; a lies in registers, as for multiply_tile.
#define PRODUCTS(T, E, N, A, B, P, A0, A1, A2, A3, C, P5)                                                               \
    __device__ inline void multiply_transposed(float (&d)[N / 8][4], u64 a, u64 b, bool adds, T) {                     \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " P ", 0;\n"                                                       \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." E "." E " {" NAMES_##N "}, " A ", " B ", p, 1, 1, 0, 0;}" \
                     : SUMS_##N                                                                                        \
                     : "l"(a), "l"(b), "r"((int)adds));                                                                \
    }                                                                                                                  \
    __device__ inline void multiply_transposed(float (&d)[N / 8][4], const u32 (&a)[4], u64 b, bool adds, T) {         \
        asm volatile("{.reg .pred p; setp.ne.b32 p, " P5 ", 0;\n"                                                      \
                     "wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." E "." E " {" NAMES_##N "}, {" A0 ", " A1 ", " A2 ", " A3 \
                     "}, " C ", p, 1, 1, 0;}"                                                                          \
                     : SUMS_##N                                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"((int)adds));                            \
    }                                                                                                                  \
    __device__ inline void multiply_straight(float (&d)[N / 8][4], const u32 (&a)[4], u64 b, T) {                      \
        asm volatile("wgmma.mma_async.sync.aligned.m64n" #N "k16.f32." E "." E " {" NAMES_##N "}, {" A0 ", " A1 ", " A2 ", " A3 \
                     "}, " C ", 1, 1, 1, 1;"                                                                           \
                     : SUMS_##N                                                                                        \
                     : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                            \
    }

PRODUCTS(bf16, "bf16", 64, "%32", "%33", "%34", "%32", "%33", "%34", "%35", "%36", "%37")
PRODUCTS(bf16, "bf16", 128, "%64", "%65", "%66", "%64", "%65", "%66", "%67", "%68", "%69")
PRODUCTS(f16, "f16", 64, "%32", "%33", "%34", "%32", "%33", "%34", "%35", "%36", "%37")
PRODUCTS(f16, "f16", 128, "%64", "%65", "%66", "%64", "%65", "%66", "%67", "%68", "%69")
#endif
