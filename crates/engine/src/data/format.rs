//! Formats of rows, how one is recognised, and how rows become examples.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::path::Path;

use serde_json::Value;

use super::columns::Columns;
use super::example::{Chat, Example, RunningText};
use super::messages::{Message, message, of_messages, read_messages, without_null};
use super::meter::Meter;
use super::preference;
use super::readers::{Record, kind_of, read_rows};
use super::said::Said;
use super::{DataError, RowLocation};
use peft_tune_core::recipe::DataFormat;

/// Turns the rows of one file into examples.
pub(super) struct RowParser<'a> {
    /// Format as the user set it.
    pub format: DataFormat,
    pub renames: &'a BTreeMap<String, String>,
    /// Whether alpaca rows can become chats.
    pub has_chat_template: bool,
    /// Format that the first row was recognised as.
    recognised: Option<DataFormat>,
    /// Columns that nothing read, with the number of rows that held something there.
    pub unread: BTreeMap<String, u64>,
    /// Columns that are read.
    read: BTreeSet<String>,
}

/// Format of a file's rows, by its first one; `None` where it has none.
///
/// # Errors
/// Where the file cannot be read, or its columns are of no known format.
pub fn recognise(path: &Path, renames: &BTreeMap<String, String>) -> Result<Option<DataFormat>, DataError> {
    let parser = RowParser::new(DataFormat::Auto, renames, true);
    let mut found = None;
    read_rows(path, &Meter::default(), &mut |location, record| {
        found = Some(match record {
            Record::Text { .. } => DataFormat::Text,
            Record::Columns(values) => parser.recognise(&location, &Columns::new(&location, renames, values))?,
        });
        Ok(ControlFlow::Break(()))
    })?;
    Ok(found)
}

/// Reads the first row of a file as one of this format; `false` where it has none.
///
/// # Errors
/// Where the file cannot be read, or its first row is of another format.
pub fn check_first_row(path: &Path, format: DataFormat, renames: &BTreeMap<String, String>) -> Result<bool, DataError> {
    let mut parser = RowParser::new(format, renames, true);
    let mut has_rows = false;
    read_rows(path, &Meter::default(), &mut |location, record| {
        has_rows = true;
        parser.parse(&location, record)?;
        Ok(ControlFlow::Break(()))
    })?;
    Ok(has_rows)
}

impl<'a> RowParser<'a> {
    pub(super) fn new(format: DataFormat, renames: &'a BTreeMap<String, String>, has_chat_template: bool) -> Self {
        Self {
            format,
            renames,
            has_chat_template,
            recognised: None,
            unread: BTreeMap::new(),
            read: BTreeSet::new(),
        }
    }

    /// The format of the file, once its first row is read.
    pub(super) fn recognised_as(&self) -> Option<String> {
        self.recognised.map(|format| format.name().to_owned())
    }

    /// The columns that were read so far.
    pub(super) fn read_columns(&mut self) -> BTreeSet<String> {
        std::mem::take(&mut self.read)
    }

    /// The example in a row.
    pub(super) fn parse(&mut self, location: &RowLocation, record: Record) -> Result<Example, DataError> {
        let values = match record {
            Record::Text { text, piece, is_last } => {
                return self.plain_text(location, text, piece, is_last);
            }
            Record::Columns(values) => values,
        };
        let mut columns = Columns::new(location, self.renames, values);
        let format = match self.recognised {
            Some(format) => format,
            None => *self.recognised.insert(self.recognise(location, &columns)?),
        };
        for key in columns_of(format) {
            if columns.has(key) && !self.read.contains(columns.name(key)) {
                self.read.insert(columns.name(key).to_owned());
            }
        }
        if format != DataFormat::Tokenized {
            columns.refuse_media()?;
        }
        let example = match format {
            DataFormat::Alpaca => self.alpaca(location, &mut columns),
            DataFormat::Sharegpt => chat(location, &mut columns, "conversations"),
            DataFormat::Messages => chat(location, &mut columns, "messages"),
            DataFormat::PromptCompletion => prompt_completion(location, &mut columns),
            DataFormat::Text | DataFormat::Auto => Ok(Example::Text(RunningText {
                text: columns.text("text")?,
                piece: None,
                is_last: true,
            })),
            DataFormat::Tokenized => tokenized(location, &mut columns),
            DataFormat::Preference => preference::pair(location, &mut columns),
            DataFormat::UnpairedPreference => preference::answer(location, &mut columns),
        }?;
        for name in columns.unread() {
            match self.unread.get_mut(name) {
                Some(rows) => *rows += 1,
                None => _ = self.unread.insert(name.clone(), 1),
            }
        }
        Ok(example)
    }

    fn plain_text(
        &self,
        location: &RowLocation,
        text: String,
        piece: u64,
        is_last: bool,
    ) -> Result<Example, DataError> {
        if !matches!(self.format, DataFormat::Auto | DataFormat::Text) {
            return Err(DataError::PlainText {
                path: location.path(),
                format: self.format.name(),
            });
        }
        Ok(Example::Text(RunningText {
            text,
            piece: Some(piece),
            is_last,
        }))
    }

    /// The format of a file by its first row, and a check of the renaming against it.
    fn recognise(&self, location: &RowLocation, columns: &Columns) -> Result<DataFormat, DataError> {
        let format = match self.format {
            DataFormat::Auto => {
                let all = |keys: &&[&str]| keys.iter().all(|key| columns.has(key));
                SIGNS
                    .iter()
                    .find(|(keys, _)| all(keys))
                    .map(|(_, format)| *format)
                    .ok_or_else(|| DataError::UnknownFormat {
                        location: location.clone(),
                        found: columns.names(),
                    })?
            }
            format => format,
        };
        let known = columns_of(format);
        match self.renames.keys().find(|key| !known.contains(&key.as_str())) {
            None => Ok(format),
            Some(key) => Err(DataError::UnknownColumnKey {
                key: key.clone(),
                format: format.name(),
                known: known.iter().map(|name| (*name).to_owned()).collect(),
            }),
        }
    }

    fn alpaca(&self, location: &RowLocation, columns: &mut Columns) -> Result<Example, DataError> {
        let instruction = columns.text("instruction")?;
        let input = columns.optional_text("input")?;
        let output = columns.text("output")?;
        let system = columns.optional_text("system")?;
        let history = columns.optional_list("history")?.unwrap_or_default();
        if !self.has_chat_template {
            if !history.is_empty() {
                return Err(DataError::NoChatTemplate {
                    location: location.clone(),
                });
            }
            return Ok(Example::Completion {
                prompt: alpaca_prompt(&system, &instruction, &input),
                completion: output,
            });
        }
        let mut messages = Vec::new();
        if !system.trim().is_empty() {
            messages.push(message("system", system));
        }
        for turn in history {
            match turn.as_array().map(Vec::as_slice) {
                Some([Value::String(user), Value::String(assistant)]) => {
                    messages.extend([message("user", user), message("assistant", assistant)]);
                }
                _ => return Err(columns.wrong_type("history", "a list of [question, answer] pairs", kind_of(&turn))),
            }
        }
        let question = if input.trim().is_empty() {
            instruction
        } else {
            format!("{instruction}\n{input}")
        };
        let is_empty = output.trim().is_empty();
        messages.extend([message("user", question), message("assistant", output)]);
        let targets = messages.iter().map(|m| m["role"] == "assistant" && !is_empty).collect();
        Ok(Example::Chat(Chat {
            call_texts: vec![None; messages.len()],
            messages,
            tools: None,
            targets,
            said: Vec::new(),
            is_plain: false,
        }))
    }
}

/// The prompt of the Alpaca project (Taori et al. 2023), which models without a chat template were trained with. A
/// system text stands in place of its first sentence.
fn alpaca_prompt(system: &str, instruction: &str, input: &str) -> String {
    let (system, input) = (system.trim(), input.trim_end());
    let opening = match (system.is_empty(), input.trim().is_empty()) {
        (false, _) => system,
        (true, false) => {
            "Below is an instruction that describes a task, paired with an input that provides further context. Write \
             a response that appropriately completes the request."
        }
        (true, true) => {
            "Below is an instruction that describes a task. Write a response that appropriately completes the request."
        }
    };
    let context = if input.trim().is_empty() {
        String::new()
    } else {
        format!("### Input:\n{input}\n\n")
    };
    format!("{opening}\n\n### Instruction:\n{instruction}\n\n{context}### Response:\n")
}

fn chat(location: &RowLocation, columns: &mut Columns, key: &'static str) -> Result<Example, DataError> {
    let mut messages = read_messages(location, columns.list(key)?)?;
    let system = columns.optional_text("system")?;
    let is_bad = columns.is_bad();
    let tools = tools(location, columns)?;
    if is_bad {
        return Ok(Example::Refused(BAD_ANSWER));
    }
    let mut said = Vec::new();
    if !system.trim().is_empty() {
        // The messages' own goes first, and two of them no template expects.
        let own = messages.first().filter(|first| first.value["role"] == "system");
        match own.map(|own| own.value["content"].as_str() == Some(system.as_str())) {
            None => messages.insert(0, Message::known(message("system", system))),
            Some(true) => {}
            Some(false) => said.push(Said::TwoSystems),
        }
        messages.iter_mut().for_each(|message| message.is_plain = false);
    }
    Ok(of_messages(messages, tools, said))
}

/// Why a row with `label: false` is left out.
const BAD_ANSWER: &str = "`label` says that the answer is not to be learnt";

/// The tools of a row, each an object: files have them as JSON text too. Parquet has the keys of all tools in each, which are null
/// where a tool has none; in other files a null was written.
fn tools(location: &RowLocation, columns: &mut Columns) -> Result<Option<Value>, DataError> {
    let Some(tools) = columns.optional_list("tools")?.filter(|tools| !tools.is_empty()) else {
        return Ok(None);
    };
    let parsed = tools.into_iter().map(|tool| match &tool {
        Value::String(text) => serde_json::from_str(text).ok().filter(Value::is_object).unwrap_or(tool),
        _ => tool,
    });
    let mut tools = Value::Array(parsed.collect());
    let path = location.path();
    if path
        .extension()
        .is_some_and(|ending| ending == "parquet" || ending == "pq")
    {
        without_null(&mut tools);
    }
    Ok(Some(tools))
}

/// Two texts, or two lists of messages of which only the second is learnt.
fn prompt_completion(location: &RowLocation, columns: &mut Columns) -> Result<Example, DataError> {
    let prompt = columns.take("prompt").unwrap_or_else(|| Value::from(""));
    let completion = columns.required("completion", "text or a list of messages")?;
    if columns.is_bad() {
        return Ok(Example::Refused(BAD_ANSWER));
    }
    match (prompt, completion) {
        (Value::Array(prompt), Value::Array(completion)) => {
            let mut messages = read_messages(location, prompt)?;
            // What comes before the completion is known.
            messages.iter_mut().for_each(|message| {
                message.is_target = false;
                message.is_plain = false;
            });
            messages.extend(read_messages(location, completion)?);
            Ok(of_messages(messages, tools(location, columns)?, Vec::new()))
        }
        (Value::String(prompt), Value::String(completion)) => Ok(Example::Completion { prompt, completion }),
        (Value::String(prompt), completion @ (Value::Number(_) | Value::Bool(_))) => Ok(Example::Completion {
            prompt,
            completion: completion.to_string(),
        }),
        (Value::Array(_), other) => Err(columns.wrong_type("completion", "a list, as `prompt` is", kind_of(&other))),
        (Value::String(_), other) => Err(columns.wrong_type("completion", "text, as `prompt` is", kind_of(&other))),
        (other, _) => Err(columns.wrong_type("prompt", "text or a list of messages", kind_of(&other))),
    }
}

fn tokenized(location: &RowLocation, columns: &mut Columns) -> Result<Example, DataError> {
    let mut ids = columns
        .optional_integers("input_ids")?
        .ok_or_else(|| columns.missing("input_ids"))?;
    let mut labels = columns.optional_integers("labels")?;
    let mask = columns.optional_integers("attention_mask")?;
    let mut learnt = Vec::new();
    for key in LEARNT {
        learnt.extend(columns.optional_integers(key)?);
    }
    for column in labels.iter().chain(&mask).chain(&learnt) {
        if column.len() != ids.len() {
            return Err(DataError::LabelCount {
                location: location.clone(),
                tokens: ids.len(),
                labels: column.len(),
            });
        }
    }
    if !learnt.is_empty() {
        let labels = labels.get_or_insert_with(|| ids.clone());
        for mask in &learnt {
            let others = labels.iter_mut().zip(mask).filter(|(_, is_learnt)| **is_learnt == 0);
            others.for_each(|(label, _)| *label = peft_tune_kernels::ops::loss_head::IGNORE);
        }
    }
    // Padding is not data.
    if let Some(mask) = mask {
        let masked = |values: &mut Vec<i64>| {
            let mut kept = mask.iter().map(|mask| *mask != 0);
            values.retain(|_| kept.next().unwrap_or(false));
        };
        masked(&mut ids);
        labels.iter_mut().for_each(masked);
    }
    Ok(Example::Tokenized { ids, labels })
}

/// Columns that say which tokens of a row are learnt, as TRL writes them.
const LEARNT: [&str; 3] = ["completion_mask", "assistant_masks", "loss_mask"];

/// Columns by which a format is recognised, the most telling first.
const SIGNS: &[(&[&str], DataFormat)] = &[
    (&["input_ids"], DataFormat::Tokenized),
    (&["messages"], DataFormat::Messages),
    (&["conversations"], DataFormat::Sharegpt),
    (&["prompt", "completion"], DataFormat::PromptCompletion),
    (&["instruction", "output"], DataFormat::Alpaca),
    (&["text"], DataFormat::Text),
];

/// The columns that a format reads.
fn columns_of(format: DataFormat) -> &'static [&'static str] {
    match format {
        DataFormat::Alpaca => &["instruction", "input", "output", "system", "history"],
        DataFormat::Sharegpt => &["conversations", "system", "tools", "label"],
        DataFormat::Messages => &["messages", "system", "tools", "label"],
        DataFormat::PromptCompletion => &["prompt", "completion", "tools", "label"],
        DataFormat::Text | DataFormat::Auto => &["text"],
        DataFormat::Tokenized => &[
            "input_ids",
            "labels",
            "attention_mask",
            "completion_mask",
            "assistant_masks",
            "loss_mask",
        ],
        DataFormat::Preference => &["prompt", "chosen", "rejected", "tools", "chat_template_kwargs"],
        DataFormat::UnpairedPreference => &["prompt", "completion", "label", "tools", "chat_template_kwargs"],
    }
}
