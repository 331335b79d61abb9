//! Whether a tool reads the rows of a file as the trials did, and how it is given them where it does not.

use super::{ExportInput, TokenFiles};
use crate::Tool;
use peft_tune_core::recipe::{DataFormat, DataSettings, HubDataSet, RowOddities, TemplateTargets};

impl Tool {
    /// How tokens are written for this tool; `None` where its file says nothing of data.
    pub fn token_files(self) -> Option<TokenFiles> {
        self.export().reading.map(|reading| reading.tokens)
    }

    /// Whether the tool's file has weights for sets of tokens that are mixed.
    pub fn mixes_tokens(self) -> bool {
        self.export().reading.is_some_and(|reading| reading.mixes_tokens)
    }

    /// Whether the tool divides losses by the labels of first tokens too, which nothing predicts.
    pub fn counts_first_tokens(self) -> bool {
        self.export().reading.is_some_and(|reading| reading.counts_first_tokens)
    }

    /// Which of the tokens that a chat template writes the tool learns; `None` where its file says nothing of data.
    pub fn template_targets(self) -> Option<TemplateTargets> {
        self.export().reading.map(|reading| reading.template_targets)
    }

    /// Why the tool would train something else if it read the files of `input` by itself; `None` where it reads them as the trials did.
    /// `alters` says that the chat template which is written for it learns other tokens.
    pub fn misreads(self, input: &ExportInput<'_>, rows: RowOddities, alters: bool) -> Option<String> {
        let reading = self.export().reading?;
        let (data, format, title) = (&input.recipe.data, input.data_format(), self.title());
        let one_or_many = |count: u64, what: &str| match count {
            1 => format!("1 {what}"),
            count => format!("{count} {what}s"),
        };
        let is_chat = format == DataFormat::Messages;
        let why = [
            (!reading.formats.contains(&format))
                .then(|| format!("it does not read {} as the trials did", spoken(format))),
            (is_chat && data.template_targets != reading.template_targets).then(|| {
                let learns = match reading.template_targets {
                    TemplateTargets::All => "all that belongs to what `data.loss_on` names",
                    TemplateTargets::StopTokens => {
                        "the tokens that end turns alone (`data.template_targets: stop_tokens`)"
                    }
                };
                format!("of what the chat template writes around texts it learns {learns}")
            }),
            (!data.columns.is_empty() && !reading.renames_columns).then(|| "it renames no columns".to_owned()),
            (!all_json(data)).then(|| "it reads such files its own way".to_owned()),
            (data.max_rows.is_some() && data.train.files().count() > 1)
                .then(|| "it counts the rows of each file by themselves".to_owned()),
            // Of sets that are mixed it would not evaluate rows that are written, either.
            (data.train.sets().is_empty() && !data.held_out.files().is_empty() && !(reading.evaluates)(data))
                .then(|| "it would not evaluate held-out files beside such data".to_owned()),
            (rows.beyond_texts > 0).then(|| {
                let rows = one_or_many(rows.beyond_texts, "row");
                match is_chat {
                    true => format!("{rows} hold more than roles and texts, or answers that are not learnt"),
                    false => format!("prompt and completion of {rows} share a token"),
                }
            }),
            // Trainers of preferences take the columns that they know.
            (rows.unread_columns > 0 && !reading.passes_over_columns && !format.is_of_preferences())
                .then(|| "it would look at columns that the trials passed over".to_owned()),
            (is_chat && rows.chosen_stops > 0).then(|| {
                format!(
                    "the chat template does not end {} itself",
                    one_or_many(rows.chosen_stops, "answer")
                )
            }),
            (is_chat && alters).then(|| "its chat template would learn other tokens".to_owned()),
            (rows.left_out > 0).then(|| format!("it would not leave out {}", one_or_many(rows.left_out, "row"))),
            (rows.cut > 0 && !reading.cuts)
                .then(|| format!("it does not cut {} where the trials did", one_or_many(rows.cut, "row"))),
            (rows.split > 0).then(|| "it does not split long texts where the trials did".to_owned()),
        ];
        why.into_iter()
            .flatten()
            .next()
            .map(|why| format!("{title} would train something else: {why}"))
    }
}

/// Whether all files are such that the `datasets` library finds in them what was read here.
fn all_json(data: &DataSettings) -> bool {
    let mut files = data.train.files().chain(data.held_out.files());
    files.all(|path| {
        let ending = path.extension().map(|ending| ending.to_string_lossy().to_lowercase());
        HubDataSet::is_written(path) || matches!(ending.as_deref(), Some("jsonl" | "json" | "parquet"))
    })
}

/// A format as sentences call it.
fn spoken(format: DataFormat) -> &'static str {
    match format {
        DataFormat::Auto => "rows of files that differ",
        DataFormat::Alpaca => "alpaca rows",
        DataFormat::Sharegpt => "ShareGPT rows",
        DataFormat::Messages => "chats",
        DataFormat::PromptCompletion => "prompts and completions",
        DataFormat::Text => "texts",
        DataFormat::Tokenized => "token ids",
        DataFormat::Preference => "pairs of answers",
        DataFormat::UnpairedPreference => "good and bad answers",
    }
}
