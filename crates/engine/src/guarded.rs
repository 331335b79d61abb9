//! Guard around readers that panic on damaged files, so that they do not end the program.

use std::panic::{AssertUnwindSafe, catch_unwind};

use peft_tune_core::panic::panic_message;

/// Runs a step of a reader of files from elsewhere.
///
/// Design note: `parquet` and `tokenizers` panic on some files that they should refuse (column types that they do not know, an
/// empty pattern, a damaged character map). A user's file must never end the program, so a panic there is an error as well.
pub(crate) fn guarded<T, E: ToString>(step: impl FnOnce() -> Result<T, E>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(step)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(panic) => Err(panic_message(&*panic).unwrap_or("the file is damaged").to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_is_an_error() {
        let step = || -> Result<(), String> { panic!("index out of bounds") };
        assert_eq!(guarded(step).unwrap_err(), "index out of bounds");
    }
}
