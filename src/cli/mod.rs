//! The command line: one file per subcommand. Only this folder prints.
#![expect(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "the command line is what prints"
)]

mod answers;
mod args;
mod attach;
mod baseline_file;
mod changed_inputs;
mod choose;
mod compare;
mod completions;
mod confirm;
mod dashboard;
mod database;
mod delete;
mod detach;
mod doctor;
mod download;
mod dry_run;
mod epochs;
mod error;
mod explain;
mod explain_failures;
mod explain_text;
mod export;
mod forecast;
mod generate;
mod gpu_check;
mod held_out_error;
mod import;
mod infer_bench;
mod init;
mod interrupt;
mod learning_rate;
mod logging;
mod machine;
mod machine_ceilings;
mod merge;
mod model;
mod output;
mod pareto;
mod plan;
mod plan_text;
mod preflight;
mod profile;
mod profile_machine;
mod profile_record;
mod profile_source;
mod profile_stored;
mod progress;
mod query;
mod rank;
mod report;
mod rows;
mod schema;
mod search;
mod show;
mod standing;
mod status;
mod stop;
mod studies;
mod train;
mod train_watch;
mod trial_text;
mod vacuum;
mod warm_start;
mod worker;
mod workers;

pub use args::main;
pub use error::CliError;
