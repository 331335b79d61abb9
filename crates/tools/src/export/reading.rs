//! [`Reading`]: how a tool reads the rows of a file.

use peft_tune_core::recipe::{DataFormat, DataSettings, TemplateTargets};

/// How a tool reads rows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reading {
    /// Formats of which the tool makes the tokens and targets that are trained on here.
    pub formats: &'static [DataFormat],
    /// What the tool learns of chats beside their texts.
    pub template_targets: TemplateTargets,
    /// Whether the file has keys for columns of other names.
    pub renames_columns: bool,
    /// Whether the tool takes only the columns that it was told of.
    pub passes_over_columns: bool,
    /// Whether the tool cuts what is too long where the trials did.
    pub cuts: bool,
    /// Whether the tool evaluates the held-out files of data that it reads.
    pub evaluates: fn(&DataSettings) -> bool,
    /// Whether the tool mixes sets of tokens by weights.
    pub mixes_tokens: bool,
    /// Whether the tool divides losses by the labels of first tokens too, which nothing predicts.
    pub counts_first_tokens: bool,
    pub tokens: TokenFiles,
}

/// How token ids and labels are written for a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TokenFiles {
    /// Rows of `input_ids`, `attention_mask` and `labels` in JSONL.
    Jsonl,
    /// A folder that the `datasets` library loads.
    SavedDataset,
}
