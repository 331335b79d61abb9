//! Integration tests, all in one binary: each further binary would link the whole engine again.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a panic is how a test reports")]

/// Files for other tools against golden ones.
mod export;
/// The walls between the floors: who may use whom, and which folder a heavy dependency enters through.
mod floors;
/// Study and recipe files: what they mean, and what each mistake says.
mod space;
/// The space files that come with the program, and the schemas that editors complete them with.
mod spaces_shipped;
