//! Summaries of a study as text and JSON.

mod basis;
mod number;
mod summary;
mod table;

pub use basis::{basis, confirmation_text};
pub use number::{bytes, duration, metric_heading, metric_value, param_value, significant};
pub use summary::{Counts, FrontRow, Recommendation, Summary, SummaryInput, front_table};
pub use table::{Align, TextTable, printable};
