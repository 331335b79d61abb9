//! What `infer-bench` is asked for.

use std::path::PathBuf;

use crate::cli::options::compute::{BaseArgs, ComputeArgs};
use crate::cli::options::count::counts;
use crate::cli::options::database::DatabaseArgs;
use crate::space::Seconds;

/// Measure how fast a model answers: base, adapter beside the base weights, and adapter merged into them.
///
/// Each point reads prompts and then generates token by token, several sequences side by side: time until the first
/// token, time of each further one (median, 95th and 99th percentile), tokens per second, memory. Stored, and drawn as a
/// curve of time against throughput over batch sizes. `--adapters` and `--together` measure several adapters on one base
/// model, and `--prompts` whole requests, from text to text. `--url` measures such requests of a server instead.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    #[command(flatten)]
    pub(super) base: BaseArgs,
    /// Ranks of fresh adapters on all linear layers, instead of `--adapter`.
    #[arg(long, value_name = "RANKS", value_delimiter = ',', conflicts_with = "adapter", default_value = "16", value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) ranks: Vec<u32>,
    /// PEFT adapters that one base model answers with: each sequence of a batch has one of them, in turn.
    #[arg(long, value_name = "DIR,DIR", value_delimiter = ',', requires = "model", conflicts_with_all = ["adapter", "ranks", "together"])]
    pub(super) adapters: Vec<PathBuf>,
    /// Numbers of fresh adapters of each rank that one base model answers with, in the place of `--adapters`.
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', conflicts_with = "adapter", value_parser = clap::value_parser!(u32).range(2..=1024))]
    pub(super) together: Vec<u32>,
    /// OpenAI-compatible server to measure instead, such as `http://127.0.0.1:8000`, through its streamed completions.
    /// `--model` and `--adapter` are its names for the base model and for the adapter; nothing is stored.
    #[arg(long, value_name = "URL", requires = "prompts", conflicts_with_all = ["precision", "ranks", "adapters", "together", "prompt_lengths", "threads", "device"])]
    pub(super) url: Option<String>,
    /// Longest time that the server has for an answer.
    #[arg(long, value_name = "TIME", default_value = "60s", requires = "url")]
    pub(super) timeout: Seconds,
    /// Measure requests too: a text file with a prompt in each line, or a study or recipe file (`.yaml`) whose held-out rows
    /// are asked. Tokenizing and decoding count, and an answer ends where the model ends it.
    #[arg(long, value_name = "FILE")]
    pub(super) prompts: Option<PathBuf>,
    /// Sequences, or requests to a server, that are answered at once.
    #[arg(long, value_name = "SIZES", value_delimiter = ',', default_value = "1,2,4,8", value_parser = counts::<u32>(1..=u64::MAX))]
    pub(super) batch_sizes: Vec<u32>,
    /// Lengths of the prompts, in tokens.
    #[arg(long, value_name = "TOKENS", value_delimiter = ',', default_value = "128", value_parser = counts::<u32>(1..=u64::MAX))]
    pub(super) prompt_lengths: Vec<u32>,
    /// Tokens to generate for each prompt; of requests, the most.
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = counts::<u32>(2..=u64::MAX))]
    pub(super) new_tokens: u32,
    /// Time to spend on each point; three repetitions are made in any case, and each prompt is sent once to a server.
    #[arg(long, value_name = "TIME", default_value = "1s")]
    pub(super) budget: Seconds,
    /// Write the curve as an SVG file.
    #[arg(long, value_name = "FILE")]
    pub(super) svg: Option<PathBuf>,
    /// Print the points as JSON.
    #[arg(long)]
    pub(super) json: bool,
    /// Store nothing in the database.
    #[arg(long)]
    pub(super) no_store: bool,
    #[command(flatten)]
    pub(in crate::cli) compute: ComputeArgs,
    #[command(flatten)]
    pub(in crate::cli) database: DatabaseArgs,
}
