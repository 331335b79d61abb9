//! A profile as text: where time and memory went, what would help, and two profiles side by side.

mod comparison;
mod findings;
mod gpu;
mod machine;
mod tables;
mod trace;
mod tuning;

pub use comparison::comparison_text;
pub use findings::findings_text;
pub use tables::{ProfileText, profile_text};
pub use tuning::{cost_text, tried_text, tuning_text};

use super::{Align, TextTable};
use peft_tune_engine::profile::Setting;

/// Rows of a table of ops or kernels, unless all are asked for.
const MOST_OPS: usize = 20;

/// An empty table with these columns.
fn table(columns: &[(&str, Align)]) -> TextTable {
    TextTable::new(columns.iter().map(|(name, align)| ((*name).to_owned(), *align)))
}

/// Seconds in milliseconds, or microseconds where they are few.
pub(super) fn time(seconds: f64) -> String {
    if seconds >= 1.0 {
        format!("{seconds:.2} s")
    } else if seconds >= 1e-3 || seconds == 0.0 {
        format!("{:.2} ms", 1e3 * seconds)
    } else {
        format!("{:.1} us", 1e6 * seconds)
    }
}

/// A share in percent.
fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

/// Rows of a step: micro-batches, and rows of each.
fn batch(setting: &Setting) -> String {
    let rows = if setting.micro_batch == 1 { "row" } else { "rows" };
    format!(
        "batch {} x {} {rows}",
        setting.gradient_accumulation, setting.micro_batch
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_engine::profile::fixtures::sound_profile;

    #[test]
    fn a_batch_counts_its_rows() {
        let mut setting = sound_profile().setting;
        (setting.gradient_accumulation, setting.micro_batch) = (1, 2);
        assert_eq!(batch(&setting), "batch 1 x 2 rows");
        (setting.gradient_accumulation, setting.micro_batch) = (4, 1);
        assert_eq!(batch(&setting), "batch 4 x 1 row");
    }

    #[test]
    fn times_take_the_unit_that_shows_them() {
        assert_eq!(
            [12.5, 0.25, 0.0, 2e-5].map(time),
            ["12.50 s", "250.00 ms", "0.00 ms", "20.0 us"]
        );
    }
}
