// Operands of matrix instructions from tiles of 16-bit elements in shared memory, whose rows are STRIDE elements apart (no multiple of 64,
// or eight rows lie in the same banks).

// 16 rows from `row` on, 16 columns from `column` on, as left operand.
template <int STRIDE, class T> __device__ inline void left_operand(u32 (&a)[4], const T* tile, u32 row, u32 column) {
    u32 lane = threadIdx.x % 32;
    load_tiles(a, tile + (row + lane % 16) * STRIDE + column + lane / 16 * 8);
}

// Left operand of a product of the transpose of a tile: its 16 columns from `column` on are rows of the result, its 16 rows from `row` on are
// summed over.
template <int STRIDE, class T> __device__ inline void left_transposed(u32 (&a)[4], const T* tile, u32 row, u32 column) {
    u32 lane = threadIdx.x % 32;
    load_tiles_transposed(a, tile + (row + lane / 16 * 8 + lane % 8) * STRIDE + column + lane / 8 % 2 * 8);
}

// Right operand of a product with the transpose of a tile: its 16 rows from `row` on are columns of the result (b[0], b[1] for the first
// eight, b[2], b[3] for the others), its 16 columns from `column` on are summed over.
template <int STRIDE, class T> __device__ inline void right_transposed(u32 (&b)[4], const T* tile, u32 row, u32 column) {
    u32 lane = threadIdx.x % 32;
    load_tiles(b, tile + (row + lane / 16 * 8 + lane % 8) * STRIDE + column + lane / 8 % 2 * 8);
}

// Right operand of a product with a tile: its 16 rows from `row` on are summed over, its 16 columns from `column` on are those of the
// result.
template <int STRIDE, class T> __device__ inline void right_straight(u32 (&b)[4], const T* tile, u32 row, u32 column) {
    u32 lane = threadIdx.x % 32;
    load_tiles_transposed(b, tile + (row + lane % 16) * STRIDE + column + lane / 16 * 8);
}

template <class T> __device__ inline void multiply_pair(float (&first)[4], float (&second)[4], const u32 (&a)[4], const u32 (&b)[4]) {
    const u32 low[2] = {b[0], b[1]}, high[2] = {b[2], b[3]};
    multiply_tile(first, a, low, T{});
    multiply_tile(second, a, high, T{});
}
