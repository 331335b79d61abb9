// Which group of the flat buffers a block of threads updates.
//
// `table` holds five numbers for each group: its first block of threads, its first element in the flat buffers, its number
// of elements, its first element (F32 states) or block (8-bit states) among the states, and its first element in the room that an
// update works in, if it needs one. `factors` holds eight numbers for each group; the rules name them. Where `norm` is given and
// begins with a number that is not finite, nothing is updated.

struct Place {
    u32 group;
    u64 offset; // of the block's first element in its group
    const u64* row;
};

__device__ inline Place place_of(const u64* table, u32 groups, u32 elements) {
    u32 low = 0, high = groups;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (table[5 * middle] <= blockIdx.x) low = middle;
        else high = middle;
    }
    const u64* row = table + 5 * low;
    return {low, (blockIdx.x - row[0]) * elements, row};
}

__device__ inline bool is_overflow(const double* norm) { return norm && !(norm[0] - norm[0] == 0); }
