// Groups of rows beside each other: the tokens of each expert. `offsets` has the first row of each, and behind the last one the number of rows.

// Rows of a tile of the groups' products. A map of tiles names the group and the first row of each.
#define TILE_ROWS 128
// What a tile behind the last one has for a group.
#define NO_GROUP 0xffffffffu

__device__ inline u32 group_of(const u32* offsets, u32 groups, u32 row) {
    u32 low = 0, high = groups;
    while (high - low > 1) {
        u32 middle = (low + high) / 2;
        if (offsets[middle] <= row) low = middle;
        else high = middle;
    }
    return low;
}
