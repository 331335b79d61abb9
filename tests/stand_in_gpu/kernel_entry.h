// What lets the stand-in's driver launch a kernel: its parameters' sizes. Comes behind emulation.h.

namespace stand_in {

// Sizes of the parameters; bit 32 says that one is a pointer.
template <class... A> size_t describe(void (*)(A...), size_t* sizes) {
    size_t count = 0;
    ((sizes[count++] = sizeof(A) | size_t{std::is_pointer<A>::value} << 32), ...);
    return count;
}

} // namespace stand_in

#undef EMULATE
#define EMULATE(name)                                                                                                  \
    extern "C" void emulate_##name(const unsigned* blocks, const unsigned* threads, size_t shared_bytes, void** values) { \
        emulation::run({blocks[0], blocks[1], blocks[2]}, {threads[0], threads[1], threads[2]}, shared_bytes,            \
                       [](void** values) { emulation::call(name, values); }, values);                                  \
    }                                                                                                                  \
    extern "C" size_t describe_##name(size_t* sizes) { return stand_in::describe(name, sizes); }
