//! A file for another tool as it grows, with what it cannot say.
//!
//! A draft knows which fields of the recipe have been said. At the end it warns of every other one that means something,
//! so that an exporter cannot leave a setting out without a word: not one that was added to the recipe after it either.

use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::target_yaml::TargetYaml;
use super::{ExportInput, RenderError, Rendered, Warning};
use crate::Tool;
pub(crate) use crate::Word;
use peft_tune_core::recipe::settings::{SettingRow, setting, settings, unsearched};
use peft_tune_core::recipe::{DataSettings, HubDataSet, HubPart, ParamValue, Recipe};

/// The fields that say which rows are read, and how.
pub(crate) const ROWS: [&str; 6] = [
    "data.train",
    "data.format",
    "data.columns",
    "data.loss_on",
    "data.chat_template",
    "data.max_rows",
];

/// The file so far.
pub(crate) struct Draft<'a> {
    pub input: &'a ExportInput<'a>,
    pub yaml: TargetYaml,
    tool: Tool,
    warnings: Vec<Warning>,
    said: BTreeSet<&'static str>,
}

/// What to do about a setting that a tool has no key for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Advice {
    /// Advice about a setting of the adapter.
    pub adapter: &'static str,
    pub other: &'static str,
}

impl Advice {
    pub(crate) const TRAIN_HERE: Self = Self {
        adapter: "leave it out, or train with `peft-tune train`",
        other: "set it by hand, or train with `peft-tune train`",
    };
}

impl<'a> Draft<'a> {
    pub(crate) fn new(tool: Tool, input: &'a ExportInput<'a>) -> Self {
        // torchtune builds the model from dimensions, and reads no config.json.
        let reads_config = tool != Tool::Torchtune;
        let dropout = input
            .known
            .architecture
            .and_then(|model| model.dropout_warning())
            .filter(|_| reads_config);
        Self {
            input,
            yaml: TargetYaml::default(),
            tool,
            warnings: dropout.into_iter().map(|told| Warning::new("model", told)).collect(),
            // Every header says how many processes to start, and nothing is trained on retained rows.
            said: ["batch.devices", "data.retain"].into(),
        }
    }

    pub(crate) fn recipe(&self) -> &'a Recipe {
        self.input.recipe
    }

    /// Whose file it is.
    pub(crate) fn tool(&self) -> Tool {
        self.tool
    }

    /// The tool as messages call it.
    pub(crate) fn title(&self) -> &'static str {
        self.tool.title()
    }

    /// Says of a field of the recipe what is different in the tool.
    pub(crate) fn warn(&mut self, field: &'static str, message: impl Into<String>) {
        self.said.insert(field);
        self.warnings.push(Warning::new(field, message));
    }

    /// Notes that the file says these fields in words of its own.
    pub(crate) fn said(&mut self, fields: &[&'static str]) {
        self.said.extend(fields);
    }

    /// Notes that the file is not the place for some fields.
    pub(crate) fn leaves(&mut self, fields: impl Fn(&str) -> bool) {
        let rows = settings().map(|row| row.field);
        let all = rows.chain(unsearched(self.recipe()).into_iter().map(|field| field.field));
        self.said.extend(all.filter(|field| fields(field)));
    }

    pub(crate) fn key(&mut self, key: &str, value: impl Into<Value>) {
        self.yaml.key(key, value);
    }

    pub(crate) fn keys(&mut self, words: impl IntoIterator<Item = Word>) {
        words.into_iter().for_each(|(key, value)| self.key(key, value));
    }

    /// Writes a setting under the tool's key for it. Nothing where the tool has none, or the recipe never reads it.
    pub(crate) fn say(&mut self, name: &str) {
        let word = self.word(name);
        self.keys(word);
    }

    /// Writes several settings, each under the tool's key for it.
    pub(crate) fn say_each(&mut self, names: &[&str]) {
        names.iter().for_each(|name| self.say(name));
    }

    /// Writes a setting like [`Draft::say`], with another value than the recipe's.
    pub(crate) fn say_as(&mut self, name: &str, value: impl Into<Value>) {
        let word = self.word_as(name, value);
        self.keys(word);
    }

    /// The tool's key for a setting, and the value of the recipe.
    pub(crate) fn word(&mut self, name: &str) -> Option<Word> {
        let value = (setting(name)?.get)(self.recipe())?;
        match value {
            ParamValue::Text(none) if none.as_str() == "none" => None,
            value => self.word_as(name, json!(value)),
        }
    }

    /// The tool's key for a setting that the recipe reads, and this value.
    pub(crate) fn word_as(&mut self, name: &str, value: impl Into<Value>) -> Option<Word> {
        let row = setting(name).filter(|row| row.is_read(self.recipe()))?;
        let key = self.tool.key_of(row.name)?;
        self.said.insert(row.field);
        Some((key, value.into()))
    }

    /// Warns of every field that was not said, means something to the recipe and is not off.
    pub(crate) fn warn_of_unsaid(&mut self, advice: Advice) {
        let recipe = self.recipe();
        let means_something = |row: &&SettingRow| {
            let value = (row.get)(recipe).filter(|_| row.derived_from.is_none() && row.is_read(recipe));
            value.is_some_and(|value| row.legal.off() != Some(value))
        };
        let rows = settings().filter(means_something).map(|row| row.field);
        let others = unsearched(recipe).into_iter().filter(|field| !field.is_off());
        let fields = rows.chain(others.map(|field| field.field));
        let unsaid: Vec<_> = fields.filter(|field| !self.said.contains(field)).collect();
        let title = self.title();
        for field in unsaid {
            let elsewhere = match field {
                "batch.sharding" => self.tool.export().sharding,
                "data.long_rows" => Some(LONG_ROWS_ELSEWHERE),
                _ => None,
            };
            if let Some(message) = elsewhere {
                self.warn(field, message);
                continue;
            }
            let what = if field.starts_with("adapter.") {
                advice.adapter
            } else {
                advice.other
            };
            self.warn(field, format!("has no key in {title}'s file; {what}"));
        }
    }

    /// The file, headed by what could not be said; `body` stands below the YAML.
    pub(crate) fn finish(mut self, usage: &str, advice: Advice, body: &str) -> Rendered {
        self.warn_of_unsaid(advice);
        let name = self.tool.file_for(self.recipe().trainer);
        let name = name.unwrap_or(self.tool.file_name());
        let usage = format!("{usage} {name}");
        let text = self.input.header(&usage, &self.warnings) + &self.yaml.finish() + body;
        Rendered::new(name, text, self.warnings)
    }

    /// Finishes a file that has no comments: what could not be said stands in a note beside it.
    pub(crate) fn finish_with_note(
        mut self,
        usage: &str,
        advice: Advice,
        text: String,
        note: &'static str,
    ) -> Rendered {
        self.warn_of_unsaid(advice);
        let notes = self.input.notes(usage, &self.warnings).join("\n") + "\n";
        let mut rendered = Rendered::new(self.tool.file_name(), text, self.warnings);
        rendered.files.push((note, notes));
        rendered
    }

    /// Says alpha as a whole number, which some tools insist on; a rounded one is told.
    pub(crate) fn say_whole_alpha(&mut self, alpha: f64) {
        let whole = (alpha.round() as i64).max(1);
        if (whole as f64 - alpha).abs() > 1e-9 * alpha.abs() {
            let change = 100.0 * (whole as f64 / alpha - 1.0);
            let tool = self.tool;
            self.warn(
                "adapter.alpha",
                format!("{tool} takes whole numbers, so {alpha} became {whole} ({change:+.1}% scaling); adjust the learning rate"),
            );
        }
        self.say_as("alpha", whole);
    }

    /// Refuses sets that are mixed, for tools that cannot.
    pub(crate) fn refuse_mixture(&self, reason: &'static str) -> Result<(), RenderError> {
        match self.recipe().data.train.sets() {
            [] => Ok(()),
            _ => Err(RenderError::Refused {
                tool: self.tool,
                field: "data.train",
                reason,
            }),
        }
    }

    /// Says the seed.
    pub(crate) fn say_seed(&mut self, key: &str) {
        self.said(&["training.seed"]);
        self.key(key, self.recipe().training.seed);
    }

    /// Notes that the tool recomputes all layers or none.
    pub(crate) fn warn_of_every_layer(&mut self) {
        let title = self.title();
        self.warn(
            "gradient_checkpointing",
            format!("{title} recomputes every layer: slower, and less memory"),
        );
    }

    /// Notes that the tool picks the held-out rows itself.
    pub(crate) fn warn_of_other_rows(&mut self) {
        let title = self.title();
        self.warn(
            "data.held_out",
            format!("{title} holds out other rows than were measured; its loss differs a little"),
        );
    }
}

/// What becomes of long rows in a tool that has no key for leaving them out.
const LONG_ROWS_ELSEWHERE: &str =
    "rows longer than the sequence length are cut there; take them out of the file, or train with `peft-tune train`";

/// A column of the file, under the name the file has for it.
pub(crate) fn column(data: &DataSettings, name: &str) -> String {
    data.columns.get(name).cloned().unwrap_or_else(|| name.to_owned())
}

/// What the `datasets` library loads a data set of the hub by: its id, then configuration, file and revision; and its split, of
/// which only the first `rows` are wanted. `None` for a file of this machine.
pub(crate) fn on_hub(path: &std::path::Path, rows: Option<usize>) -> Option<(Vec<(&'static str, Value)>, String)> {
    let set = HubDataSet::of(path)?.ok()?;
    let split = set.split().unwrap_or("train");
    let split = rows.map_or(split.to_owned(), |rows| format!("{split}[:{rows}]"));
    let mut words = vec![("path", Value::from(set.id.clone()))];
    words.extend(set.configuration().map(|name| ("name", name.into())));
    if let HubPart::File(file) = &set.part {
        words.push(("data_files", file.clone().into()));
    }
    words.extend(set.revision.map(|revision| ("revision", revision.into())));
    Some((words, split))
}

/// The `datasets` builder that reads a file.
pub(crate) fn builder_of(path: &std::path::Path) -> &'static str {
    let extension = path
        .extension()
        .map(|extension| extension.to_string_lossy().to_lowercase());
    match extension.as_deref() {
        Some("csv" | "tsv") => "csv",
        Some("parquet") => "parquet",
        Some("txt" | "text" | "md") => "text",
        _ => "json",
    }
}
