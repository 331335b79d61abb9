//! `peft-tune rows`: rows as they are trained.

use std::io::IsTerminal;
use std::path::{Path, PathBuf};

use super::prepare::rows_seen;
use super::study_file::recipe_with_data_of;
use super::study_rows::files_of;
use crate::cli::CliError;
use crate::cli::options::count::counts;
use crate::cli::page_output::write_page;
use crate::cli::terminal::download_progress::DownloadProgress;
use crate::cli::terminal::output::{tell, write_result};
use crate::cli::terminal::reading_progress::Reading;
use crate::report::{RowsStyle, row_text, rows_page, rows_text};
use peft_tune_engine::data::{LookAt, RowsSeen, RowsWanted, on_disk};
use peft_tune_engine::hub::ModelFiles;

/// Most rows at once.
const MOST: u64 = 100;

/// Show rows of the data as they are trained: every token, whose message it is of, and whether it is learnt.
///
/// What is learnt stands in brackets, and in green on a terminal. Special tokens are written out, and so is what is cut or left
/// out, and why. Behind the rows stand their number, the share of tokens that are learnt, whether answers end in a stop token, the
/// chat template, and the columns that are used and not used.
#[derive(Debug, clap::Args)]
pub(in crate::cli) struct Args {
    /// Study or recipe file (YAML).
    file: PathBuf,
    /// Show so many rows.
    #[arg(long, value_name = "N", default_value_t = 3, conflicts_with = "row", value_parser = counts::<u64>(1..=MOST))]
    count: u64,
    /// Show the row of this number, from 1, counted through the files.
    #[arg(long, value_name = "N", group = "which", value_parser = clap::value_parser!(u64).range(1..))]
    row: Option<u64>,
    /// Show the rows with the most tokens.
    #[arg(long, group = "which")]
    longest: bool,
    /// Show rows drawn by a seed.
    #[arg(long, value_name = "SEED", group = "which", num_args = 0..=1, default_missing_value = "0")]
    random: Option<u64>,
    /// Show rows that are longer than the sequence length.
    #[arg(long, group = "which")]
    cut: bool,
    /// Show rows that teach nothing, or are left out, with the reason.
    #[arg(long, group = "which")]
    without_targets: bool,
    /// Show the micro-batches of a step of the training, which counts from 0, with the documents that are packed into them.
    #[arg(long, value_name = "N", group = "which", conflicts_with = "held_out")]
    step: Option<u64>,
    /// Show held-out rows only.
    #[arg(long)]
    held_out: bool,
    /// Look at rows of this length in tokens instead of the file's.
    #[arg(long, value_name = "TOKENS", value_parser = counts::<u64>(2..=u64::MAX))]
    sequence_length: Option<u64>,
    /// Print one line a token, with its id.
    #[arg(long)]
    tokens: bool,
    /// Print all of long texts.
    #[arg(long)]
    whole: bool,
    /// Print rows, summary and warnings as one JSON object.
    #[arg(long, conflicts_with_all = ["tokens", "whole"])]
    json: bool,
    /// Write a web page of it.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tokens", "whole", "json"])]
    html: Option<PathBuf>,
}

impl Args {
    fn wanted(&self) -> RowsWanted {
        if let Some(step) = self.step {
            return RowsWanted::Step(step);
        }
        match (self.row, self.random) {
            (Some(number), _) => RowsWanted::Number(number),
            (None, Some(seed)) => RowsWanted::Random(seed),
            (None, None) if self.longest => RowsWanted::Longest,
            (None, None) if self.cut => RowsWanted::Cut,
            (None, None) if self.without_targets => RowsWanted::WithoutTargets,
            (None, None) => RowsWanted::First,
        }
    }
}

/// Shows the rows that were asked for.
pub(in crate::cli) fn run(args: Args) -> Result<(), CliError> {
    let mut recipe = recipe_with_data_of(&args.file)?;
    if let Some(length) = args.sequence_length {
        recipe.batch.sequence_length = length as usize;
    }
    let asked = LookAt {
        wanted: args.wanted(),
        most: args.count as usize,
        held_out: args.held_out,
    };
    let files = match files_of(&recipe.model) {
        Some(files) => files,
        None => {
            ModelFiles::resolve_weights(&recipe.model, &mut DownloadProgress::default()).map_err(CliError::bad_input)?
        }
    };
    let seen = rows_seen(&recipe, &files, asked, Reading::shown())?;
    let warnings = seen.warnings.iter().map(ToString::to_string);
    let warnings: Vec<String> = warnings.chain(unshown_text(&seen)).collect();
    if args.json {
        return write_result(&(json(&seen, &warnings)? + "\n"));
    }
    for warning in &warnings {
        tell(format_args!("warning: {warning}"));
    }
    if seen.rows.is_empty() {
        tell(none_text(&args, &seen));
    }
    match &args.html {
        None => {
            let style = RowsStyle {
                is_coloured: std::io::stdout().is_terminal()
                    && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()),
                by_token: args.tokens,
                is_whole: args.whole,
            };
            write_result(&rows_text(&seen, style))
        }
        Some(path) => {
            let name = args.file.display().to_string();
            let page = rows_page(&name, &seen, &warnings).map_err(CliError::failed)?;
            write_page(path, page.as_bytes(), "--html")?;
            write_result(&format!("wrote {}\n", path.display()))
        }
    }
}

/// The first row of a study as it is trained.
pub(in crate::cli) struct FirstRow {
    /// Text of the row, in lines for people.
    pub text: String,
    /// Whether the row goes through the chat template.
    pub is_chat: bool,
}

/// The first row of a study; `None` where the model or its data are not on this machine, or say nothing.
pub(in crate::cli) fn first_row(file: &Path) -> Option<FirstRow> {
    let recipe = recipe_with_data_of(file).ok()?;
    let files = files_of(&recipe.model)?;
    let asked = LookAt {
        wanted: RowsWanted::First,
        most: 1,
        held_out: false,
    };
    on_disk(&recipe.data).ok()?;
    let mut seen = rows_seen(&recipe, &files, asked, Reading::unseen()).ok()?;
    let row = seen.rows.pop()?;
    Some(FirstRow {
        text: row_text(&row, RowsStyle::default()),
        is_chat: seen.summary.chat_template.is_some(),
    })
}

fn json(seen: &RowsSeen, warnings: &[String]) -> Result<String, CliError> {
    let value = serde_json::json!({"rows": seen.rows, "summary": seen.summary, "warnings": warnings});
    serde_json::to_string_pretty(&value).map_err(CliError::failed)
}

/// What is said of micro-batches of a step that are not shown.
fn unshown_text(seen: &RowsSeen) -> Option<String> {
    let (shown, all) = (seen.rows.len(), seen.micro_batches?);
    (shown < all).then(|| {
        let most = MOST.min(all as u64);
        format!("the first {shown} of the step's {all} micro-batches are shown (`--count` takes up to {most})")
    })
}

/// Why there is no row to show.
fn none_text(args: &Args, seen: &RowsSeen) -> String {
    let held_out = seen.summary.held_out.rows;
    let all = seen.summary.training.rows + held_out;
    let rows = match args.held_out {
        true => format!("{held_out} held-out rows"),
        false => format!("{all} rows"),
    };
    match args.wanted() {
        RowsWanted::Number(number) if number <= all => {
            format!("row {number} is one to train on: leave out `--held-out` to see it")
        }
        RowsWanted::Number(number) => format!("there is no row {number}: there are {all}"),
        RowsWanted::Cut => format!("none of {rows} is longer than its sequence length"),
        RowsWanted::WithoutTargets => format!("each of {rows} teaches something"),
        _ => format!("none of {rows} is shown"),
    }
}
