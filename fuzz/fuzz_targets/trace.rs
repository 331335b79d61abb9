#![no_main]

#[path = "../../examples/fuzz/readers.rs"]
mod readers;

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| readers::read_with("trace", bytes));
