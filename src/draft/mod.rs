//! Drafts of study files: which values are worth searching for a model, its data and a machine, and the text that says
//! so.

mod answers;
mod around_setting;
mod choice_table;
mod data_file;
mod fitting_values;
mod long_rows;
mod machine;
mod memory_needs;
mod plan;
mod rate_range;
mod row_tokens;
mod study_text;
mod token_lengths;
mod trial_size;

pub(crate) use answers::{Answers, Renames, column};
pub(crate) use around_setting::{Around, left_out, study_around};
pub(crate) use choice_table::Chosen;
pub(crate) use data_file::{about_rows, first_file, row_lengths, rows_of};
pub(crate) use machine::Machine;
pub(crate) use memory_needs::Needs;
pub(crate) use plan::Plan;
pub(crate) use row_tokens::RowTokens;
pub(crate) use study_text::study_file;
pub(crate) use token_lengths::TokenLengths;
