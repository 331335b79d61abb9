//! `peft-tune search`, from its file to its closing words, and the commands on a search that runs.

mod announcement;
pub(super) mod attach;
mod baseline_file;
mod changed_inputs;
mod command;
mod detach;
mod dry_run;
mod held_out_error;
mod kernels;
mod preflight;
mod progress;
pub(super) mod progress_line;
pub(super) mod quickstart;
mod resume_command;
mod search_result;
mod spent_text;
pub(super) mod status;
pub(super) mod stop;
mod study_record;
pub(super) mod study_status;
mod target_stack;
mod warm_start;
pub(super) mod worker_args;

pub(super) use command::{Args, run};
