//! The `peft-tune` binary; everything it does is in the library.

use peft_tune_engine::profile::CountingAllocator;

/// Counts every allocation, so that a trial's peak memory on the CPU is exact.
#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator::new();

fn main() -> std::process::ExitCode {
    peft_tune::cli::main()
}
