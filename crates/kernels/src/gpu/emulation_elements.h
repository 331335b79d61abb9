// The parts of prelude.cuh that only a GPU has, for the tests.

inline float widen(f16 value) {
    u32 magnitude = value.bits & 0x7fff, sign = (u32)(value.bits & 0x8000) << 16;
    float wide = __uint_as_float(magnitude << 13) * __uint_as_float((254 - 15) << 23);
    u32 special = wide >= 65536.0f ? 255u << 23 : 0;
    return __uint_as_float(__float_as_uint(wide) | special | sign);
}

template <> inline bf16 narrow<bf16>(float value) {
    u32 bits = __float_as_uint(value);
    if (value != value) return {(u16)(bits >> 16 | 0x40)};
    return {(u16)((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
}

template <> inline f16 narrow<f16>(float value) {
    u32 bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    u32 half;
    if (magnitude > 255u << 23) half = 0x7e00;
    else if (magnitude >= (127u + 16) << 23) half = 0x7c00;
    else if (magnitude < 113u << 23) {
        u32 magic = ((127 - 15) + (23 - 10) + 1) << 23;
        half = __float_as_uint(__uint_as_float(magnitude) + __uint_as_float(magic)) - magic;
    } else half = (magnitude + ((u32)(15 - 127) << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    return {(u16)(half | sign)};
}

template <class T> void emulate_multiply(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2]) {
    emulation::Warp& warp = emulation::warp();
    emulation::Shown& shown = warp.next();
    u32 lane = emulation::lane(), g = lane / 4, t = lane % 4;
    std::memcpy(shown.a[lane], a, sizeof(a));
    std::memcpy(shown.b[lane], b, sizeof(b));
    emulation::meet(warp.meeting);
    auto half = [](u32 both, u32 k) { return widen(T{(u16)(k % 2 ? both >> 16 : both)}); };
    for (u32 index = 0; index < 4; index++) {
        u32 row = g + index / 2 * 8, column = 2 * t + index % 2;
        for (u32 k = 0; k < 16; k++) {
            u32 from_a = row % 8 * 4 + k % 8 / 2, from_b = column * 4 + k % 8 / 2;
            d[index] += half(shown.a[from_a][row / 8 + k / 8 * 2], k) * half(shown.b[from_b][k / 8], k);
        }
    }
}

inline void multiply_tile(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], bf16) { emulate_multiply<bf16>(d, a, b); }
inline void multiply_tile(float (&d)[4], const u32 (&a)[4], const u32 (&b)[2], f16) { emulate_multiply<f16>(d, a, b); }

inline void emulate_load(u32 (&tiles)[4], const void* row, bool transposed) {
    emulation::Warp& warp = emulation::warp();
    emulation::Shown& shown = warp.next();
    u32 lane = emulation::lane(), g = lane / 4, t = lane % 4;
    if (reinterpret_cast<uintptr_t>(row) % 16) emulation::fail("a row of a tile is not aligned");
    shown.rows[lane] = row;
    emulation::meet(warp.meeting);
    for (u32 tile = 0; tile < 4; tile++) {
        auto at = [&](u32 r, u32 c) { return (u32) static_cast<const u16*>(shown.rows[tile * 8 + r])[c]; };
        tiles[tile] = transposed ? at(2 * t, g) | at(2 * t + 1, g) << 16 : at(g, 2 * t) | at(g, 2 * t + 1) << 16;
    }
    // The instruction reads for all lanes at once: none goes on and writes before the others have read.
    emulation::meet(warp.meeting);
}

inline void load_tiles(u32 (&tiles)[4], const void* row) { emulate_load(tiles, row, false); }
inline void load_tiles_transposed(u32 (&tiles)[4], const void* row) { emulate_load(tiles, row, true); }

inline void copy_in_background(void* to, const void* from, bool valid) {
    if (reinterpret_cast<uintptr_t>(to) % 16 || reinterpret_cast<uintptr_t>(from) % 16)
        emulation::fail("a background copy is not aligned");
    std::memset(to, 0xff, 16);
    emulation::current->open.push_back({to, from, valid});
}

inline void end_copies() {
    emulation::current->groups.push_back(std::move(emulation::current->open));
    emulation::current->open.clear();
}

template <int N> void wait_for_copies() {
    auto& groups = emulation::current->groups;
    while (groups.size() > N) {
        for (auto& copy : groups.front()) {
            if (copy.valid) std::memcpy(copy.to, copy.from, 16);
            else std::memset(copy.to, 0, 16);
            emulation::hide(copy.to);
        }
        groups.erase(groups.begin());
    }
}
