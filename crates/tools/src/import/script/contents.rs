//! [`Script`]: what the script of a training says.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::calls::{Library, ModelKind, is_of_transformers, model_kind};
use super::columns::ReadOfRow;
use super::keys::{ScriptKeys, ScriptNote};
use super::parse::parse;
use super::rows::{FoundRows, RowsOf};
use super::run::{Bound, Called, Run};
use super::source::Source;
use super::trainer::environment;
use super::training::Training;
use super::value::Known;
use crate::import::StackFileError;
use crate::import::data::located;
use peft_tune_core::recipe::{DataFormat, HeldOut, TrainerKind};

/// Functions that give a tokenizer a chat template.
const SET_TEMPLATES: &[&str] = &["get_chat_template", "setup_chat_format", "clone_chat_template"];

/// A training as a script says it.
#[derive(Debug)]
pub(crate) struct Script {
    /// Arguments of the calls that make the training, by the names of settings files.
    pub keys: Map<String, Value>,
    /// Arguments of the call that loads the model.
    pub of_model: Map<String, Value>,
    /// Places of the keys in the file, as messages have them.
    pub locations: BTreeMap<String, String>,
    pub library: Library,
    pub trainer: TrainerKind,
    pub has_adapter: bool,
    /// Whether settings that are not said are those of transformers, and not those of TRL.
    pub has_usual_of_transformers: bool,
    /// Whether the model is loaded by transformers, in the dtype of its files, and not by the trainer.
    pub loads_as_stored: bool,
    /// Whether the model is told to recompute layers, whatever the trainer's settings say.
    pub recomputes: bool,
    /// Whether the model is told so where its weights are quantized.
    pub recomputes_quantized: bool,
    /// Whether the answers alone are learnt, by marks around the questions or around the answers.
    pub is_masked: bool,
    pub rows: ScriptRows,
    /// Variables of the environment that the script sets before it trains.
    pub environment: BTreeMap<String, String>,
    pub chat_template: Option<PathBuf>,
    /// What had to be assumed, or could not be taken over.
    pub notes: Vec<ScriptNote>,
}

/// Rows that a script trains on.
#[derive(Debug)]
pub(crate) struct ScriptRows {
    /// Files or addresses of each set.
    pub sets: Vec<Vec<PathBuf>>,
    /// Shares of the sets, where they are mixed.
    pub weights: Option<Vec<f64>>,
    pub max_rows: Option<usize>,
    /// A share of the rows, from the beginning.
    pub share: Option<f64>,
    /// Held-out rows; no file where there are none.
    pub held_out: HeldOut,
    pub format: DataFormat,
    pub columns: BTreeMap<String, String>,
    /// What is not as in the script, with what to do.
    pub notes: Vec<String>,
}

impl Script {
    /// Reads a script or a notebook.
    ///
    /// # Errors
    /// A notebook without code, a script that is too long, and one that trains nothing or something else than is read.
    pub(crate) fn read(path: &Path, text: &str) -> Result<Self, StackFileError> {
        let source = Source::read(path, text)?;
        let parsed = parse(&source.code).ok_or_else(|| StackFileError::LongScript { path: path.to_owned() })?;
        let run = Run::of(&source, &parsed.statements);
        let training = Training::of(&run)?;
        let ScriptKeys {
            values,
            of_model,
            locations,
            mut notes,
        } = ScriptKeys::of(&run, &training);
        let chat_template = chat_template(&run, path, &mut notes);
        let general = |text: String| ScriptNote {
            key: String::new(),
            text,
        };
        notes.extend(training.notes.iter().cloned().map(general));
        notes.extend(parsed.wrong_line.map(|line| {
            let location = source.location(line);
            general(format!(
                "{location}: no Python that can be read: what stands there is passed over"
            ))
        }));
        if run.is_cut() {
            let file = source.file();
            notes.push(general(format!(
                "{file}: has more statements than are looked at: the rest is passed over"
            )));
        }
        let is_plain = training.model.and_then(model_kind) == Some(ModelKind::Plain);
        Ok(Self {
            rows: ScriptRows::of(&run, path, &training, &values),
            keys: values,
            of_model,
            locations,
            library: training.library,
            trainer: training.kind,
            has_adapter: training.has_adapter,
            has_usual_of_transformers: training
                .config
                .map_or(training.library == Library::Transformers, is_of_transformers),
            loads_as_stored: is_plain && training.library != Library::Unsloth,
            recomputes: recomputes(&run),
            recomputes_quantized: recomputes_quantized(&run),
            is_masked: training.is_masked || has_marks(&run, &training),
            environment: environment(&run),
            chat_template,
            notes,
        })
    }
}

/// Whether the trainer is given what finds answers by marks around them.
fn has_marks(run: &Run<'_>, training: &Training<'_>) -> bool {
    let collator = training.argument("data_collator");
    let call = collator.and_then(|bound| run.result(&bound.value));
    call.is_some_and(|call| call.short_name() == "DataCollatorForCompletionOnlyLM")
}

/// Whether a method of the model turns recomputing on, and none behind it turns that off.
fn recomputes(run: &Run<'_>) -> bool {
    const ON: &str = "gradient_checkpointing_enable";
    let mut names = run.calls.iter().rev().map(Called::short_name);
    names.find(|name| [ON, "gradient_checkpointing_disable"].contains(name)) == Some(ON)
}

/// Whether PEFT's function for quantized models is called, which turns recomputing on unless it is told not to.
fn recomputes_quantized(run: &Run<'_>) -> bool {
    let turns_on = |call: &Called| {
        let said = call.argument("use_gradient_checkpointing", Some(1));
        call.short_name() == "prepare_model_for_kbit_training"
            && said.is_none_or(|bound| bound.value.truth() != Some(false))
    };
    run.calls.iter().any(turns_on)
}

/// The file of a chat template that the script gives its tokenizer. Templates of other forms are told.
fn chat_template(run: &Run<'_>, path: &Path, notes: &mut Vec<ScriptNote>) -> Option<PathBuf> {
    let mut tell = |line: usize, text: &str| {
        let location = run.location(line);
        notes.push(ScriptNote {
            key: "chat_template".to_owned(),
            text: format!(
                "{location}: `{text}` is not taken over: chats are written by the model's own template; name a file in \
                 `data.chat_template`"
            ),
        });
    };
    let sets = |call: &&Called| SET_TEMPLATES.contains(&call.short_name());
    if let Some(call) = run.calls.iter().find(sets) {
        let name = call.argument("chat_template", None);
        let name = name.map_or("..", |bound| bound.text.as_str());
        tell(call.line, &format!("{}(.., {name})", call.short_name()));
    }
    let assigned = run.assigned.iter().rev().find(|one| one.name == "chat_template")?;
    match run.result(&assigned.value) {
        // `open(path).read()`.
        Some(read) if read.short_name() == "read" => {
            let opened = read.receiver.as_ref().and_then(|file| run.result(file));
            let name = opened.and_then(|open| open.argument("file", Some(0)));
            let name = name.and_then(|name| name.value.text());
            if let Some(name) = name {
                return Some(located(path, name));
            }
            tell(assigned.line, "chat_template = ..");
        }
        _ if assigned.value.is_nothing() => {}
        _ => tell(assigned.line, "chat_template = .."),
    }
    None
}

impl ScriptRows {
    fn of(run: &Run<'_>, path: &Path, training: &Training<'_>, keys: &Map<String, Value>) -> Self {
        let of = |name: &str| {
            let bound = training.argument(name)?;
            (!bound.value.is_nothing()).then(|| RowsOf::follow(run, path, bound))
        };
        let train = of("train_dataset").unwrap_or_else(|| first_loaded(run, path, training));
        let held_out = of("eval_dataset");
        let (format, columns, told) = layout(run, training, &train, keys);
        let mut notes = train.notes.clone();
        notes.extend(told);
        let held_out = match (held_out, train.split_off) {
            // The part of the rows that is not trained on.
            (None, Some((share, is_rest))) => HeldOut::Fraction(if is_rest { 1.0 - share } else { share }),
            (Some(held_out), Some((share, false))) if held_out.split_off == Some((share, true)) => {
                HeldOut::Fraction(share)
            }
            (Some(held_out), _) => {
                notes.extend(held_out.notes.into_iter().filter(|note| !train.notes.contains(note)));
                if held_out.first.is_some() || held_out.share.is_some() {
                    notes.push("a part of the held-out rows is evaluated there, and here all of them".to_owned());
                }
                held_out.sets.concat().into()
            }
            (None, None) => HeldOut::Files(Vec::new()),
        };
        Self {
            weights: weights(&train),
            sets: train.sets,
            max_rows: train.first,
            share: train.share,
            held_out,
            format,
            columns,
            notes,
        }
    }
}

/// Shares of sets that are mixed: those of the script, or the same of each.
fn weights(rows: &FoundRows) -> Option<Vec<f64>> {
    let usual = || vec![1.0; rows.sets.len()];
    rows.is_mixed.then(|| rows.weights.clone().unwrap_or_else(usual))
}

/// Rows of a script that makes no trainer: those that it loads first.
fn first_loaded(run: &Run<'_>, path: &Path, training: &Training<'_>) -> FoundRows {
    let first = run.calls.iter().position(|call| call.short_name() == "load_dataset");
    match first.filter(|_| training.trainer.is_none()) {
        Some(id) => {
            let rows = Bound {
                value: Known::Result(id).into(),
                line: run.calls[id].line,
                text: "load_dataset(..)".to_owned(),
            };
            RowsOf::follow(run, path, &rows)
        }
        None => FoundRows::default(),
    }
}

/// The layout of the rows, the names of their columns, and what the script does to them that is not taken over.
fn layout(
    run: &Run<'_>,
    training: &Training<'_>,
    rows: &FoundRows,
    keys: &Map<String, Value>,
) -> (DataFormat, BTreeMap<String, String>, Option<String>) {
    let mut functions = rows.functions.clone();
    if let Some(bound) = training.argument("formatting_func")
        && let Known::Function(function) = &bound.value.known
    {
        functions.push((function.clone(), bound.line));
    }
    let mut columns = rows.renames.clone();
    if rows.chosen.iter().any(|column| column == "input_ids") {
        return (DataFormat::Tokenized, columns, None);
    }
    if functions.is_empty() {
        let field = keys.get("dataset_text_field").and_then(Value::as_str);
        let own = field.filter(|field| *field != "text");
        columns.extend(own.map(|own| ("text".to_owned(), own.to_owned())));
        let is_text = rows.is_text || own.is_some();
        return (if is_text { DataFormat::Text } else { DataFormat::Auto }, columns, None);
    }
    let mut read = ReadOfRow::default();
    for (function, _) in &functions {
        let own = ReadOfRow::of(run, function);
        read.columns.extend(own.columns);
        read.has_template |= own.has_template;
    }
    let format = read.format();
    let is_text = read.has_template || [DataFormat::PromptCompletion, DataFormat::Text].contains(&format);
    let is_same = is_text && !read.reads_no_text_alone();
    let told = functions.first().filter(|_| !is_same && training.kind.is_sft()).map(|(function, line)| {
        format!(
            "{}: what `{}` makes of a row is code, and is not taken over: rows are read by their columns (`data.format`)",
            run.location(*line),
            function.name
        )
    });
    (format, columns, told)
}
