//! `peft-tune watch`: a training of any tool as it runs, beside what was expected of it.
//!
//! | from the top | |
//! |---|---|
//! | `command` | runs, looks, reports |
//! | `report_text`, `against`, `report` | the report, alone and beside an earlier one |
//! | `trace` | a trace of PyTorch's profiler that the run writes |
//! | `status_text`, `status_line` | the line while it runs |
//! | `causes`, `evidence` | rules on what was measured |
//! | `launched`, `relay`, `forwarding` | the command, its output, and signals |
//! | `settings`, `command_words`, `packages` | what is known before it runs |
//! | `sampler`, `sample`, `limits`, `processor_use` | looks at the run and the machine |
//! | `process_tree`, `process_stat`, `thread_turns`, `shared_pages`, `paced` | looks at the run's processes |
//! | `progress`, `log_file`, `event_files`, `output_lines`, `token_count`, `named_bar`, `tqdm_bar`, `log_fields`, `printed` | what it prints and logs |

mod against;
mod args;
mod causes;
mod command;
mod command_words;
mod event_files;
mod evidence;
mod forwarding;
mod launched;
mod limits;
mod log_fields;
mod log_file;
mod named_bar;
mod output_lines;
mod paced;
mod packages;
mod printed;
mod process_stat;
mod process_tree;
mod processor_use;
mod progress;
mod relay;
mod report;
mod report_text;
mod sample;
mod sampler;
mod settings;
mod shared_pages;
mod status_line;
mod status_text;
mod thread_turns;
mod token_count;
mod tqdm_bar;
mod trace;

pub(super) use args::Args;
pub(super) use command::run;
