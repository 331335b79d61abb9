// What groups of warps that divide their work need (stages.cuh), for the tests: barriers in shared memory, and registers that groups give
// each other.

namespace emulation {

// In a barrier's 64 bits: that it has begun, the parity of the round that is not complete, arrivals of a round, and those still to come.
constexpr u64 BEGUN = u64{0xba55} << 48, PARITY = u64{1} << 32, ARRIVAL = 1 << 16;

inline u64& barrier_at(u64* barrier) {
    if (*barrier >> 48 != BEGUN >> 48) fail("a barrier that has not begun");
    return *barrier;
}

// Registers of a multiprocessor, all of which a block of such kernels takes.
constexpr unsigned REGISTERS = 64 << 10;

inline void set_registers(int wanted, bool takes) {
    __syncwarp();
    if (current->number / 128 * 128 + 128 > block.x || wanted % 8 || wanted < 24 || wanted > 256) fail("registers of no group, or no such number");
    if (current->registers == 0) current->registers = REGISTERS / block.x / 8 * 8;
    int more = wanted - static_cast<int>(current->registers);
    if (takes ? more < 0 : more > 0) fail("registers are given where they are to be taken, or the other way round");
    wait_until([more] { return registers_left >= more; });
    registers_left -= more;
    current->registers = wanted;
}

} // namespace emulation

inline void begin_barrier(u64* barrier, u32 count) {
    *barrier = emulation::BEGUN | count * emulation::ARRIVAL | count;
}

inline void arrive(u64* barrier) {
    u64& bits = emulation::barrier_at(barrier);
    if (--bits % emulation::ARRIVAL == 0) bits = (bits ^ emulation::PARITY) | bits % emulation::PARITY / emulation::ARRIVAL;
}

inline bool is_complete(u64* barrier, u32 parity) {
    emulation::barrier_at(barrier);
    emulation::wait_until([=] { return ((*barrier & emulation::PARITY) != 0) != (parity != 0); });
    return true;
}

template <int N> void leave_registers() { emulation::set_registers(N, false); }
template <int N> void take_registers() { emulation::set_registers(N, true); }
