//! Everything that goes wrong around trials, by really causing it: the real binary, real processes, real signals.
//!
//! Trials are made up (`PEFT_TUNE_MOCK`, seconds each) unless the fault lies in a real one: what is tested is what is
//! around them. After each fault the same holds: no finished trial is lost, none is run again, the database is sound, and
//! the message and the exit code say what happened.

pub(crate) mod bench;
/// The database: full, locked, read-only, run by two.
mod database;
/// Files that change and clocks that jump.
mod files_and_clocks;
/// Mutated inputs of every reader.
mod fuzz;
/// Models, data and databases of others.
mod inputs;
/// Searches and workers that are killed at any moment, and large studies.
mod kills;
/// Data that take a while to read, and a disk that is too small for them.
mod large_data;
/// Ctrl-C, schedulers, closed terminals; searches in the background.
mod people;
/// Folders that cannot be written, and no network.
mod places;
/// The protocol as a worker speaks it.
mod protocol;
/// Faults that are not a setting's.
pub(crate) mod study;
/// Output as a person sees it: terminals, pipes, Ctrl-C.
pub(crate) mod terminals;
/// Workers that hang, crash, and run out of memory.
mod workers;
