//! Why data cannot be used.

use std::path::PathBuf;

use super::RowLocation;
use crate::hub::DataSetError;
use crate::tokenizer::TokenizerError;
use peft_tune_core::architecture::ArchitectureError;
use peft_tune_core::recipe::WeightFault;

/// Data that cannot be used. Every message names the file, the line or row, the column, and what to do.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    #[error("no training file; name one or more under `data.train`")]
    NoTrainingFile,
    #[error("`data.train`: {0}")]
    Weights(#[from] WeightFault),
    #[error("{set}: {source}")]
    OfSet {
        /// A set of a mixture.
        set: String,
        source: Box<DataError>,
    },
    #[error("`{key}`: {source}")]
    Hub { key: &'static str, source: DataSetError },
    #[error("cannot read {path}: {source}; correct the path under `data`")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path} holds no rows; put data in it or leave it out")]
    NoRows { path: PathBuf },
    #[error("{location}: not UTF-8 ({hint})")]
    NotUtf8 { location: RowLocation, hint: &'static str },
    #[error("{location}: not valid JSON ({reason}); correct it, one object per line for JSONL")]
    BadJson { location: RowLocation, reason: String },
    #[error("{path}: the JSON is neither a list of objects nor an object that holds one list of objects ({reason})")]
    NoList { path: PathBuf, reason: String },
    #[error("{location}: expected a JSON object, found {found}; each row is one object")]
    NotAnObject { location: RowLocation, found: &'static str },
    #[error("{location}: {reason}; write the file with the same number of fields in each row, quoted where needed")]
    BadCsv { location: RowLocation, reason: String },
    #[error("{location}: two columns are named `{column}`; rename or remove one")]
    ColumnTwice { location: RowLocation, column: String },
    #[error("{path}: not readable as Parquet ({reason}); write it again, without encryption")]
    BadParquet { path: PathBuf, reason: String },
    #[error(
        "{location}: no column `{column}`{}; the row has {}; rename with `data.columns: {{{key}: <name in the file>}}`",
        nearest(.column, .found), listed(.found)
    )]
    MissingColumn {
        location: RowLocation,
        /// Name looked for in the file.
        column: String,
        /// Name that the format knows it by.
        key: &'static str,
        found: Vec<String>,
    },
    #[error(
        "{location}: column `{column}` is {found}, expected {expected}; correct the row, or name another column under \
         `data.columns`"
    )]
    WrongType {
        location: RowLocation,
        column: String,
        expected: &'static str,
        found: &'static str,
    },
    #[error(
        "{location}: column `{column}` holds a picture, a sound or a film, and only text is trained on; leave the row or the \
         column out"
    )]
    Media { location: RowLocation, column: String },
    #[error(
        "`data.columns` renames `{key}`, which format {format} does not have{}; it has {}",
        nearest(.key, .known), listed(.known)
    )]
    UnknownColumnKey {
        key: String,
        format: &'static str,
        known: Vec<String>,
    },
    #[error(
        "{location}: cannot tell the format from the columns {}; set `data.format`, or rename columns with \
         `data.columns` (alpaca: instruction, output; messages: messages; sharegpt: conversations; \
         prompt_completion: prompt, completion; text: text; tokenized: input_ids){}",
        listed(.found), preferences(.found)
    )]
    UnknownFormat { location: RowLocation, found: Vec<String> },
    #[error("{path} is plain text and cannot have format {format}; set `data.format: text`, or give JSONL or CSV")]
    PlainText { path: PathBuf, format: &'static str },
    #[error(
        "{location}: unknown role `{role}` in message {message}; use system, user, assistant or tool (ShareGPT: system, \
         human, gpt)"
    )]
    UnknownRole {
        location: RowLocation,
        message: usize,
        role: String,
    },
    #[error("{location}: message {message} {problem}; correct it or remove the row")]
    BadMessage {
        location: RowLocation,
        /// Number of the message, from 1.
        message: usize,
        problem: &'static str,
    },
    #[error("{location}: `chosen` and `rejected` do not begin alike, so that there is no prompt; give it as `prompt`")]
    NoCommonPrompt { location: RowLocation },
    #[error(
        "{location}: a chat needs a chat template and the model has none; name a Jinja file as `data.chat_template`, or \
         use an instruction-tuned model's tokenizer"
    )]
    NoChatTemplate { location: RowLocation },
    #[error(
        "{location}: this row is text, and the model has no tokenizer.json; save the model's tokenizer into its directory \
         with transformers' AutoTokenizer, or give rows that are tokenised already (`input_ids`, `labels`)"
    )]
    NoTokenizer { location: RowLocation },
    #[error("{location}: token id {id} is not in the vocabulary of {vocabulary}; was it made with another tokenizer?")]
    TokenOutOfRange {
        location: RowLocation,
        id: i64,
        vocabulary: u32,
    },
    #[error(
        "the {set} data hold token {token}, and the model's vocabulary ends at {vocabulary}: the tokenizer belongs to \
         another model, or tokens were added to it and not to the model"
    )]
    TokenBeyondModel {
        set: &'static str,
        token: usize,
        vocabulary: usize,
    },
    #[error(
        "the {set} data hold documents of {tokens} tokens, longer than the {max_positions} positions of the model; \
         lower `sequence_length` to at most {max_positions}"
    )]
    DocumentTooLong {
        set: &'static str,
        tokens: usize,
        max_positions: usize,
    },
    #[error(
        "{location}: {labels} labels for {tokens} input_ids; give one label per token, -100 where there is no target"
    )]
    LabelCount {
        location: RowLocation,
        tokens: usize,
        labels: usize,
    },
    #[error("{location}: the line has more than {mebibytes} MiB; split the row")]
    LineTooLong { location: RowLocation, mebibytes: u64 },
    #[error("{location}: the row has {tokens} tokens, more than can be counted; split it")]
    RowTooLong { location: RowLocation, tokens: usize },
    #[error("{location}: {source}")]
    Tokenize {
        location: RowLocation,
        source: TokenizerError,
    },
    #[error(
        "{location}: {source}; the `arguments` of this row's calls are JSON text: where the template wants objects, write \
         them so"
    )]
    ArgumentsAsText {
        location: RowLocation,
        source: TokenizerError,
    },
    #[error("{0}")]
    Tokenizer(#[from] TokenizerError),
    #[error(transparent)]
    Architecture(Box<ArchitectureError>),
    #[error("`data.held_out` is {fraction}; give a fraction between 0 and 1, or a file")]
    BadFraction { fraction: f64 },
    #[error(
        "{rows} row(s) cannot be split into training and held-out rows; add rows or give a file as `data.held_out`"
    )]
    TooFewRows { rows: usize },
    #[error(
        "none of the {rows} {set} rows has a token to learn{}{why}",
        nothing_left(*dropped, *sequence_length, why)
    )]
    NothingLeft {
        set: &'static str,
        rows: u64,
        /// Rows whose targets all lie behind `sequence_length`.
        dropped: u64,
        sequence_length: usize,
        /// Why rows were left out, where reasons are known; begins with `; `.
        why: String,
    },
    #[error("`{key}` is {value}; it must be at least {least}")]
    TooSmall {
        key: &'static str,
        value: usize,
        least: usize,
    },
    #[error(
        "the files hold {found} rows where {expected} were counted a moment ago: they changed, or say wrongly how many \
         rows they have; run it again, or write them anew"
    )]
    OtherCount { expected: usize, found: usize },
    #[error(
        "cannot write the tokens into {folder}: {source}; free some space, name a folder on another disk as \
         PEFT_TUNE_CACHE, or read fewer rows with `data.max_rows`"
    )]
    CacheNotWritten { folder: PathBuf, source: std::io::Error },
    #[error(
        "the tokens of all rows take about {} by the first of them, and {folder} has room for {}; free some space, name a \
         folder on another disk as PEFT_TUNE_CACHE, or read fewer rows with `data.max_rows`",
        size_text(*needed_bytes), size_text(*free_bytes)
    )]
    NoRoom {
        folder: PathBuf,
        needed_bytes: u64,
        free_bytes: u64,
    },
    #[error("the rows cannot become a table of tokens: {source}; split the data into smaller sets")]
    Unwritten { source: std::io::Error },
    #[error("`data.tokenizing_workers` is {count}, and so many threads cannot be started: {message}; write fewer")]
    Workers { count: usize, message: String },
    #[error("cannot start the thread that prepares batches: {source}")]
    Thread { source: std::io::Error },
}

impl DataError {
    /// Names the set of the mixture that the error is of, where the error does not name a file itself.
    pub(super) fn of_set(self, set: Option<&String>) -> Self {
        let names_none = matches!(
            self,
            Self::TooFewRows { .. } | Self::NothingLeft { .. } | Self::OtherCount { .. }
        );
        match set.filter(|_| names_none) {
            Some(set) => Self::OfSet {
                set: set.clone(),
                source: Box::new(self),
            },
            None => self,
        }
    }
}

/// Advice where no row is left: a greater length helps only rows that are cut; where reasons follow, they say it.
fn nothing_left(dropped: u64, sequence_length: usize, why: &str) -> String {
    match (dropped, why) {
        (0, "") => "; check the format and `data.loss_on`".to_owned(),
        (0, _) => String::new(),
        (rows, _) => {
            format!(
                " within {sequence_length} tokens: the answers of {rows} begin behind them; raise `sequence_length`"
            )
        }
    }
}

/// `7.42 GiB`, `310.5 MiB`.
fn size_text(bytes: u64) -> String {
    match bytes as f64 / f64::from(1 << 20) {
        large if large >= 1024.0 => format!("{:.2} GiB", large / 1024.0),
        some => format!("{some:.1} MiB"),
    }
}

/// Advice for answers in pairs, one better than the other.
fn preferences(found: &[String]) -> &'static str {
    let has = |name: &str| found.iter().any(|column| column == name);
    match (has("chosen") && has("rejected"), has("prompt")) {
        (true, true) => {
            "; to compare the answers, set `trainer: dpo` and search with `--backend trl`; to learn the chosen ones alone, rename: \
             `data.columns: {completion: chosen}`"
        }
        (true, false) => {
            "; to compare the answers, set `trainer: dpo` and search with `--backend trl`; to learn the chosen ones alone, rename: \
             `data.columns: {messages: chosen}`"
        }
        (false, _) => "",
    }
}

/// `` (did you mean `instruction`?)``, where one of `names` is near.
fn nearest(name: &str, names: &[String]) -> String {
    let near = names
        .iter()
        .map(|candidate| (strsim::jaro_winkler(name, candidate), candidate))
        .filter(|(similarity, _)| *similarity > 0.85)
        .max_by(|a, b| a.0.total_cmp(&b.0));
    near.map_or_else(String::new, |(_, candidate)| format!(" (did you mean `{candidate}`?)"))
}

/// `` `a`, `b` ``, shortened where there are many.
fn listed(names: &[String]) -> String {
    const SHOWN: usize = 12;
    if names.is_empty() {
        return "none".to_owned();
    }
    let shown: Vec<String> = names.iter().take(SHOWN).map(|name| format!("`{name}`")).collect();
    let more = names.len().saturating_sub(SHOWN);
    if more > 0 {
        return format!("{} and {more} more", shown.join(", "));
    }
    shown.join(", ")
}
