//! `peft-tune search`, from its file to its closing words, and the commands on a search that runs.

mod announcement;
mod args;
pub(super) mod attach;
mod baseline_file;
mod changed_inputs;
mod command;
mod detach;
mod dry_run;
mod engine_choice;
mod engine_ground;
mod kernels;
mod opened_study;
pub(super) mod other_family;
mod preflight;
mod preparation;
mod progress;
mod progress_line;
pub(super) mod quickstart;
pub(super) mod resume_command;
mod search_price;
mod search_result;
mod spent_text;
pub(super) mod stack_refusal;
pub(super) mod status;
pub(super) mod stop;
mod study_record;
pub(super) mod study_status;
mod target_stack;
mod trials;
pub(super) mod trl;
mod warm_start;
mod worker_args;

pub(super) use args::Args;
pub(super) use command::run;
