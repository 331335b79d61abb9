//! Makes `search_spaces/quickstart/`: the texts, the tokenizer and the base model.
//!
//! ```text
//! cargo run --release --example make_quickstart
//! ```
//!
//! Texts and tokenizer come out byte for byte the same every time. The weights do so up to the rounding of the
//! machine's matrix products.

mod base;
mod texts;
mod tokenizer;

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use clap::Parser;
use serde_json::json;
use texts::{TaskRows, to_jsonl};

/// Makes the quickstart's base model and data.
#[derive(Debug, Parser)]
struct Args {
    /// Folder to write to.
    #[arg(long, default_value = "search_spaces/quickstart")]
    output: PathBuf,
    /// Tokens that the base model is trained on.
    #[arg(long, default_value_t = 12_000_000)]
    tokens: usize,
    /// Writes the texts and the tokenizer and trains no model.
    #[arg(long)]
    texts_only: bool,
}

#[expect(
    clippy::print_stderr,
    reason = "an example has no command line module to print for it"
)]
fn main() -> Result<()> {
    let args = Args::parse();
    let directory = args.output.join("base");
    std::fs::create_dir_all(&directory).with_context(|| format!("cannot make {}", directory.display()))?;
    write_rows(&args.output)?;
    let tokenizer = tokenizer::train()?;
    tokenizer::write(&tokenizer, &directory)?;
    write_configs(&directory)?;
    if args.texts_only {
        return Ok(());
    }
    let clock = std::time::Instant::now();
    let trained = base::train(&tokenizer, args.tokens, &directory, |evaluation| {
        let (seconds, tokens) = (clock.elapsed().as_secs(), evaluation.tokens);
        eprintln!("{seconds:5} s {tokens:9} tokens: held-out loss {:.4}", evaluation.loss);
    })?;
    eprintln!("held-out loss {:.4}, accuracy {:.3}", trained.loss, trained.accuracy);
    Ok(())
}

fn write_rows(directory: &Path) -> Result<()> {
    let rows = TaskRows::standard();
    std::fs::write(directory.join("train.jsonl"), to_jsonl(&rows.train))?;
    std::fs::write(directory.join("held_out.jsonl"), to_jsonl(&rows.held_out))?;
    Ok(())
}

fn write_configs(directory: &Path) -> Result<()> {
    let generation = json!({ "eos_token_id": [2, 0], "pad_token_id": 0, "do_sample": false });
    for (name, value) in [("config.json", base::config()), ("generation_config.json", generation)] {
        std::fs::write(directory.join(name), serde_json::to_string_pretty(&value)? + "\n")?;
    }
    Ok(())
}
