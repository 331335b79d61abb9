//! The `dataset` of the file: a component of torchtune, or of the module beside the file where rows are token ids.

use serde_json::json;

use super::length::{Length, Repeats};
use super::refused::refused;
use crate::export::RenderError;
use crate::export::draft::{Draft, ROWS, Word, builder_of, column, on_hub};
use peft_tune_core::recipe::{BatchSettings, DataFormat, DataSettings, HeldOut, HubDataSet, LossOn, Recipe};

/// The module beside the file, which reads rows of token ids.
pub(super) const MODULE: (&str, &str) = ("peft_tune_rows.py", include_str!("peft_tune_rows.py"));

/// Writes `dataset`, and says of its rows what is different there.
pub(super) fn write(draft: &mut Draft<'_>, length: Length) -> Result<(), RenderError> {
    draft.said(&ROWS);
    draft.refuse_mixture("it puts data sets together whole and knows no weights; use --format trl or llamafactory, or train with `peft-tune train`")?;
    let recipe = draft.recipe();
    let (data, format) = (&recipe.data, draft.input.data_format());
    let mut keys = vec![("_component_", json!(component(format)))];
    keys.extend(source(data)?);
    keys.extend(columns(data, format));
    if !matches!(format, DataFormat::Text | DataFormat::Tokenized) {
        keys.push(("train_on_input", json!(data.loss_on == LossOn::All)));
    }
    keys.extend(length.repeats.map(|repeats| order(repeats, recipe)).unwrap_or_default());
    keys.extend(draft.word("packing"));
    draft.yaml.map("dataset", &keys);
    tell_reading(draft, format);
    tell_order(draft, length);
    Ok(())
}

/// The order of rows that the data set repeats, which no other shuffles then, and the size of a step, to fill its last ones.
fn order(repeats: Repeats, recipe: &Recipe) -> Vec<Word> {
    let often = match repeats {
        Repeats::Passes(passes) => ("passes", json!(passes)),
        Repeats::Fills { steps } => ("steps", json!(steps)),
    };
    let mut keys = vec![
        often,
        ("shuffle", json!(recipe.training.shuffle)),
        ("seed", json!(recipe.training.seed)),
        ("batch_size", json!("${batch_size}")),
        ("accumulation", json!("${gradient_accumulation_steps}")),
    ];
    let devices = recipe.batch.devices;
    keys.extend((devices > 1).then(|| ("devices", json!(devices))));
    keys
}

fn component(format: DataFormat) -> &'static str {
    match format {
        DataFormat::Messages | DataFormat::Sharegpt => "torchtune.datasets.chat_dataset",
        // Recipes that compare answers are refused before.
        DataFormat::Alpaca | DataFormat::Auto | DataFormat::Preference | DataFormat::UnpairedPreference => {
            "torchtune.datasets.alpaca_dataset"
        }
        DataFormat::PromptCompletion => "torchtune.datasets.instruct_dataset",
        DataFormat::Text => "torchtune.datasets.text_completion_dataset",
        DataFormat::Tokenized => "peft_tune_rows.token_rows",
    }
}

/// What the `datasets` library loads.
fn source(data: &DataSettings) -> Result<Vec<Word>, RenderError> {
    let train: Vec<_> = data.train.files().collect();
    let (mut keys, name) = match &train[..] {
        [set] if HubDataSet::is_written(set) => {
            let (words, name) = on_hub(set, None).unwrap_or_default();
            let as_source = |(word, value)| (if word == "path" { "source" } else { word }, value);
            (words.into_iter().map(as_source).collect(), name)
        }
        many if many.iter().any(|path| HubDataSet::is_written(path)) => {
            return Err(refused(
                "data.train",
                "it loads one data set of the hub; download the others and name files only",
            ));
        }
        _ => {
            let builder = train.first().map_or("json", |path| builder_of(path));
            let files: Vec<_> = train.iter().map(|path| path.to_string_lossy()).collect();
            let keys = vec![("source", json!(builder)), ("data_files", json!(files))];
            (keys, "train".to_owned())
        }
    };
    keys.push(("split", json!(split(data, &name))));
    Ok(keys)
}

/// Which of the rows are read: as many as were asked for, without the last ones where a part is held out.
fn split(data: &DataSettings, name: &str) -> String {
    match (&data.held_out, data.max_rows) {
        (_, Some(rows)) => format!("{name}[:{rows}]"),
        (HeldOut::Fraction(fraction), None) => format!("{name}[:{}%]", (100.0 * (1.0 - fraction)).round()),
        (HeldOut::File(_) | HeldOut::Files(_), None) => name.to_owned(),
    }
}

/// What the columns are called.
fn columns(data: &DataSettings, format: DataFormat) -> Vec<Word> {
    let chats = |name, style| {
        vec![
            ("conversation_column", json!(column(data, name))),
            ("conversation_style", json!(style)),
        ]
    };
    match format {
        DataFormat::Messages => chats("messages", "openai"),
        DataFormat::Sharegpt => chats("conversations", "sharegpt"),
        DataFormat::PromptCompletion => {
            let map = json!({"input": column(data, "prompt"), "output": column(data, "completion")});
            vec![("column_map", map)]
        }
        DataFormat::Text => vec![("column", json!(column(data, "text")))],
        DataFormat::Tokenized => vec![],
        DataFormat::Alpaca | DataFormat::Auto | DataFormat::Preference | DataFormat::UnpairedPreference => {
            let names = ["instruction", "input", "output"].map(|name| (name.to_owned(), json!(column(data, name))));
            vec![("column_map", json!(serde_json::Map::from_iter(names)))]
        }
    }
}

/// What torchtune makes of rows other than the trials did.
fn tell_reading(draft: &mut Draft<'_>, format: DataFormat) {
    if format == DataFormat::Auto {
        draft.warn(
            "data.format",
            "the rows were not recognised, so they are taken for alpaca; set `dataset`",
        );
    }
    if format == DataFormat::Tokenized {
        return;
    }
    if draft.recipe().data.chat_template.is_some() {
        draft.warn(
            "data.chat_template",
            "torchtune has chat templates of its own; set `tokenizer.prompt_template`",
        );
    } else if matches!(format, DataFormat::Messages | DataFormat::Sharegpt) {
        draft.warn(
            "data.chat_template",
            "torchtune writes chats with its own template of the family; let the rows be written for it, without --no-data",
        );
    }
}

/// What is different in how rows come one after the other.
fn tell_order(draft: &mut Draft<'_>, length: Length) {
    let batch = &draft.recipe().batch;
    match batch.prefetch_depth {
        0 | BatchSettings::USUAL_PREFETCH_DEPTH => draft.said(&["batch.prefetch_depth"]),
        _ => draft.warn(
            "batch.prefetch_depth",
            "torchtune reads the rows of a step when it begins",
        ),
    }
    if batch.group_by_length {
        draft.warn(
            "batch.group_by_length",
            "torchtune orders rows by chance only: more padding, less throughput",
        );
    }
    if batch.packing {
        let steps = match length.is_in_steps() {
            true => "so the same steps hold fewer rows",
            false => {
                "and an epoch has other steps, the last one left out where it is not whole; set `max_steps_per_epoch`"
            }
        };
        draft.warn(
            "batch.packing",
            format!("torchtune packs rows in their order, not where they fit best: more padding, {steps}"),
        );
    }
}
