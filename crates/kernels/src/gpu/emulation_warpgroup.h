// Products of a warpgroup (warpgroup.cuh) for the tests. They happen twice: when they are started, and when they are waited for. Operands
// that differ by then were written too early; sums that are read before hold no numbers.

namespace emulation {

// Bytes of the block's shared memory, as the instructions count them.
inline u32 shared_offset(const void* place) {
    uintptr_t start = reinterpret_cast<uintptr_t>(dynamic_shared.data()) / 1024 * 1024;
    return reinterpret_cast<uintptr_t>(place) - start;
}

// The element at `offset`, where the 16 byte pieces of a row of 128 bytes are exchanged.
inline u16 swizzled(u64 offset) {
    offset ^= (offset >> 7 & 7) << 4;
    uintptr_t start = reinterpret_cast<uintptr_t>(dynamic_shared.data()) / 1024 * 1024;
    u16 element;
    if (start + offset < reinterpret_cast<uintptr_t>(dynamic_shared.data()) ||
        start + offset + 2 > reinterpret_cast<uintptr_t>(dynamic_shared.data() + dynamic_shared.size()))
        fail("an operand of a product lies outside of the shared memory");
    if (hidden[piece(reinterpret_cast<const void*>(start + offset))]) fail("a product of what has been copied and not been shown to products");
    std::memcpy(&element, reinterpret_cast<const void*>(start + offset), 2);
    return element;
}

// A matrix descriptor, whose fields count 16 bytes.
struct Descriptor {
    u64 start, leading, stride;

    explicit Descriptor(u64 bits) : start((bits & 0x3fff) * 16), leading((bits >> 16 & 0x3fff) * 16), stride((bits >> 32 & 0x3fff) * 16) {
        if (bits != (start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | u64{1} << 62)) fail("a descriptor with other bits than these");
    }

    // Element k of a row, the sum going over columns.
    u16 by_columns(u32 row, u32 k) const { return swizzled(start + row / 8 * stride + row % 8 * 128 + k * 2); }

    // Element k of a column, the sum going over rows.
    u16 by_rows(u32 column, u32 k) const { return swizzled(start + column / 64 * leading + column % 64 * 2 + k / 8 * stride + k % 8 * 128); }
};

template <class T, int TILES> void start_product(float (&d)[TILES][4], bool adds, std::function<Operands()> read) {
    Products& own = current->products;
    if (!own.begun) fail("a product behind other uses of its registers");
    size_t count = TILES * 4;
    Product product{&d[0][0], read, read()};
    auto [place, is_new] = own.sums.try_emplace(product.sums);
    Products::Sums& sums = place->second;
    if (is_new) sums.values.assign(product.sums, product.sums + count);
    sums.products++;
    for (size_t index = 0; index < count; index++) {
        const float* left = product.started.left.data() + index % 4 / 2 * 16;
        const float* right = product.started.right.data() + (index / 4 * 2 + index % 2) * 16;
        float sum = adds ? sums.values[index] : 0;
        for (u32 k = 0; k < 16; k++) sum += left[k] * right[k];
        sums.values[index] = sum;
        product.sums[index] = NAN;
    }
    own.open.push_back(std::move(product));
}

inline void end_product(const Product& product) {
    Products& own = current->products;
    Operands ended = product.read();
    auto differ = [](const std::vector<float>& a, const std::vector<float>& b) {
        return std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) != 0;
    };
    if (differ(ended.left, product.started.left) || differ(ended.right, product.started.right))
        fail("an operand of a product changed before the product had been waited for");
    Products::Sums& sums = own.sums[product.sums];
    if (--sums.products > 0) return;
    std::copy(sums.values.begin(), sums.values.end(), product.sums);
    own.sums.erase(product.sums);
}

template <class T> Operands read_right(Operands operands, u64 descriptor, u32 columns, bool by_rows) {
    Descriptor right(descriptor);
    for (u32 tile = 0; tile < columns / 8; tile++)
        for (u32 i = 0; i < 2; i++)
            for (u32 k = 0; k < 16; k++) {
                u32 column = tile * 8 + lane() % 4 * 2 + i;
                operands.right.push_back(widen(T{by_rows ? right.by_rows(column, k) : right.by_columns(column, k)}));
            }
    return operands;
}

} // namespace emulation

inline u32 shared_address(const void* place) { return emulation::shared_offset(place); }
inline void show_to_products() { emulation::show(); }
inline void begin_products() { emulation::current->products.begun = true; }

inline void end_products() {
    emulation::Products& own = emulation::current->products;
    own.groups.push_back(std::move(own.open));
    own.open.clear();
}

template <int N> void wait_for_products() {
    emulation::Products& own = emulation::current->products;
    while (own.groups.size() > N) {
        for (const auto& product : own.groups.front()) emulation::end_product(product);
        own.groups.erase(own.groups.begin());
    }
    own.begun = false;
}

template <int TILES> void arrived(float (&)[TILES][4]) {}
inline void make_before_waiting(float, float) { __syncwarp(); }
template <int TILES> void make_before_waiting(const float (&)[TILES][4]) { __syncwarp(); }

template <class T, int TILES> void multiply_transposed(float (&d)[TILES][4], u64 a, u64 b, bool adds, T) {
    u32 row = emulation::current->number / 32 % 4 * 16 + emulation::lane() / 4;
    emulation::start_product<T>(d, adds, [=] {
        emulation::Operands operands;
        emulation::Descriptor left(a);
        for (u32 half = 0; half < 2; half++)
            for (u32 k = 0; k < 16; k++) operands.left.push_back(widen(T{left.by_columns(row + 8 * half, k)}));
        return emulation::read_right<T>(operands, b, TILES * 8, false);
    });
}

// The rows of a left operand that lies in the registers of the warp.
template <class T> emulation::Operands read_left(const u32 (&a)[4]) {
    emulation::Warp& warp = emulation::warp();
    emulation::Shown& shown = warp.next();
    std::memcpy(shown.a[emulation::lane()], a, sizeof(a));
    emulation::meet(warp.meeting);
    emulation::Operands left;
    for (u32 half = 0; half < 2; half++)
        for (u32 k = 0; k < 16; k++) {
            u32 both = shown.a[emulation::lane() / 4 * 4 + k % 8 / 2][half + k / 8 * 2];
            left.left.push_back(widen(T{(u16)(k % 2 ? both >> 16 : both)}));
        }
    return left;
}

template <class T, int TILES> void multiply_transposed(float (&d)[TILES][4], const u32 (&a)[4], u64 b, bool adds, T) {
    emulation::Operands left = read_left<T>(a);
    emulation::start_product<T>(d, adds, [=] { return emulation::read_right<T>(left, b, TILES * 8, false); });
}

template <class T, int TILES> void multiply_straight(float (&d)[TILES][4], const u32 (&a)[4], u64 b, T) {
    emulation::Operands left = read_left<T>(a);
    emulation::start_product<T>(d, true, [=] { return emulation::read_right<T>(left, b, TILES * 8, true); });
}
