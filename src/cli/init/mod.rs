//! `peft-tune init`: a study file for one model, one data set and one memory limit.

mod answers;
mod args;
mod around;
mod ask;
mod base_model;
mod chat;
mod chosen;
mod columns;
mod command;
pub(super) mod find;
mod fit;
mod from;
mod longer;
mod needs;
mod plan;
mod rate_range;
mod row_tokens;
mod study_file;
mod text;
mod token_lengths;
mod trial_size;

pub(super) use args::Args;
pub(super) use command::run;
