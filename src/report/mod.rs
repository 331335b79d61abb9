//! Studies and profiles as text, JSON, web page and pictures.

pub mod answers;
pub mod charts;
pub mod explanation;
pub mod html;

mod baseline;
mod basis;
mod counts;
mod found_length;
mod front_table;
mod held_out_error;
mod lengths;
mod money;
mod number;
mod outlook;
mod profile;
mod rows;
mod scaling;
mod study_costs;
mod summary;
mod table;
mod target;
mod trial_detail;

pub use baseline::{Gain, against_baseline, gains};
pub use basis::{basis, confirmation_text, disturbance_text, loss_rows_text};
pub use counts::Counts;
pub use found_length::{unsaid_length, with_found_length, with_length};
pub use front_table::FrontRow;
pub use held_out_error::held_out_warning;
pub use lengths::{AtLength, LengthBin, Lengths, MicroBatchPadding, Padder, RowsAtLength, SampleOf, SetShare, percent};
pub use money::{dollars, price_text};
pub use number::{
    about_duration, bytes, change, duration, grouped, metric_heading, metric_value, metric_words, minute, param_value,
    params_text, significant, thread_count,
};
pub use outlook::{Outlook, TimeLeft};
pub use profile::{ProfileText, comparison_text, cost_text, findings_text, profile_text, tried_text, tuning_text};
pub use rows::{RowsStyle, row_text, rows_page, rows_text, summary_line};
pub use scaling::{MeasuredScaling, ScalingInput, measured_scaling};
pub use study_costs::{CostsInput, StudyCosts, TrainingCost};
pub use summary::{Recommendation, Summary, SummaryInput};
pub use table::{Align, TextTable, printable};
pub use target::{target_note, target_text};
pub use trial_detail::{trial_detail_json, trial_detail_text};
