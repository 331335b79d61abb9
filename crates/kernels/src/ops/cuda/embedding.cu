// Gradient of an embedding: each row of dy (tokens, width) is added to the row of `into` that its id names.

template <class T> __device__ void add_rows(const T* dy, const u32* ids, float* into, u32 width) {
    u64 from = (u64)blockIdx.x * width, to = (u64)ids[blockIdx.x] * width;
    // Several tokens may share a row.
    for (u32 column = threadIdx.x; column < width; column += blockDim.x)
        atomicAdd(into + to + column, widen(dy[from + column]));
}

#define ROWS(T, E, N)                                                                                                  \
    KERNEL embedding_backward_##E(const T* dy, const u32* ids, float* into, u32 width) {                               \
        add_rows<T>(dy, ids, into, width);                                                                             \
    }                                                                                                                  \
    EMULATE(embedding_backward_##E)

FOR_EACH_ELEMENT(ROWS)
