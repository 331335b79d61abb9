// A block on Hopper whose warps divide their work: a group of four copies tiles to shared memory, others multiply them.
//
// A tile has a place (stage) in shared memory, and two barriers (PTX: mbarrier): who copies says on one that the tile is there, who
// multiplies says on the other that the place is free. No barrier holds the whole block.
//
// Registers are divided anew as well (PTX: setmaxnreg): who copies needs few, and leaves the others to those who multiply.

#ifndef EMULATED
// A barrier that `count` arrivals complete, again and again.
__device__ inline void begin_barrier(u64* barrier, u32 count) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(shared_address(barrier)), "r"(count) : "memory");
}

__device__ inline void arrive(u64* barrier) {
    asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(shared_address(barrier)) : "memory");
}

// Whether the barrier's last round with this parity is complete: of a new barrier, the one with parity 1 is. Waits a while for it.
__device__ inline bool is_complete(u64* barrier, u32 parity) {
    u32 complete;
    asm volatile("{.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.u32 %0, 1, 0, p;}"
                 : "=r"(complete)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
    return complete != 0;
}

// Gives a group's registers above N a thread back to the block, or takes up to N from what others gave, and waits for them. All of the
// group do.
template <int N> __device__ inline void leave_registers() { asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(N)); }

template <int N> __device__ inline void take_registers() { asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(N)); }
#endif

__device__ inline void await(u64* barrier, u32 parity) {
    while (!is_complete(barrier, parity)) {}
}

// One arrival for the warp, behind what all its lanes did.
__device__ inline void warp_arrives(u64* barrier) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) arrive(barrier);
}

// Places of S tiles (a power of two) that come one after the other, and their barriers: first those that say that a tile is there.
template <int S> struct Stages {
    static constexpr u32 BYTES = 16 * S;
    u64* barriers;

    // By one thread, before a barrier of the block. So many warps copy, and so many read.
    __device__ inline void begin(u32 copying, u32 reading) const {
        for (int stage = 0; stage < S; stage++) begin_barrier(barriers + stage, copying), begin_barrier(barriers + S + stage, reading);
    }

    // For those who copy: tile number `tile` may come, and is there.
    __device__ inline void await_free(u32 tile) const { await(barriers + S + tile % S, tile / S % 2 ^ 1); }
    __device__ inline void is_there(u32 tile) const { warp_arrives(barriers + tile % S); }

    // For those who read: waits for it, and needs it no more.
    __device__ inline void await_tile(u32 tile) const { await(barriers + tile % S, tile / S % 2); }
    __device__ inline void release(u32 tile) const { warp_arrives(barriers + S + tile % S); }
};

// What a thread of those who copy has started: a tile is there once the next one's copies are under way. S > 2 tiles.
template <int S> struct Copies {
    Stages<S> stages;
    u32 tile;

    // `start` starts copies to the next stage.
    template <class F> __device__ inline void next(F start) {
        stages.await_free(tile);
        start(tile % S);
        end_copies();
        if (tile > 0) {
            wait_for_copies<1>();
            show_to_products();
            stages.is_there(tile - 1);
        }
        tile++;
    }

    __device__ inline void end() {
        wait_for_copies<0>();
        show_to_products();
        stages.is_there(tile - 1);
    }
};
