//! The text of the study file, with comments that say why each line is there.

use std::path::Path;

use super::answers::Answers;
use super::answers::Renames;
use super::answers::column;
use super::long_rows::LongerRows;
use super::plan::Plan;
use super::trial_size::{PROFILE_STEPS, TrialSize};
use crate::report::bytes;
use peft_tune_core::recipe::Precision;

/// The whole file; `longer` are the rows that the sequence length is too short for, where there are any.
pub(crate) fn study_file(answers: &Answers, plan: &Plan, longer: Option<&LongerRows>, output: &Path) -> String {
    let name = study_name(output, &answers.model, &answers.data);
    let limit = answers.memory_bytes;
    [
        heading(answers, plan),
        format!("study: {}\n\n", quoted(&name)),
        format!("model: {}\n", quoted(&near(&answers.model, output))),
        engine(plan.trains_in_trl).to_owned(),
        data(answers, longer, output),
        format!(
            "objectives: [throughput, peak_memory, loss]\nconstraints:\n  peak_memory: \"<= {} MiB\"\n\n",
            limit >> 20
        ),
        space(plan),
        trial(plan, longer, limit, answers.machine.is_gpu),
    ]
    .concat()
}

/// The study's name: the file's where it has one of its own, else the model's and the data's, so that studies can be told apart.
pub(super) fn study_name(output: &Path, model: &str, data: &Path) -> String {
    let stem = |path: &Path| path.file_stem().map(|stem| stem.to_string_lossy().into_owned());
    match stem(output) {
        Some(name) if name != "space" => name,
        _ => {
            // A hub id or a folder may have dots in its name: `Qwen2.5-0.5B`.
            let model = Path::new(model)
                .file_name()
                .map(|name| name.to_string_lossy().into_owned());
            let parts: Vec<String> = [model, stem(data)].into_iter().flatten().collect();
            parts.join("-")
        }
    }
}

/// The line that names the engine, where it is not the built-in one.
pub(super) fn engine(trains_in_trl: bool) -> &'static str {
    match trains_in_trl {
        true => "backend: trl              # the built-in engine lacks the model's family\n",
        false => "",
    }
}

fn heading(answers: &Answers, plan: &Plan) -> String {
    let parameters = plan
        .parameters
        .map_or(String::new(), |count| format!(" ({})", parameters_text(count)));
    let mut text = format!(
        "# LoRA settings for {}{parameters} on {} with {}.\n# Written by `peft-tune init`; change what you know better, then: peft-tune search FILE\n",
        one_line(&answers.model),
        one_line(&answers.machine.device),
        bytes(answers.memory_bytes as f64),
    );
    if let Some(smallest) = plan.smallest_bytes {
        text.push_str(&format!(
            "# The smallest setting below needs about {}, as predicted; each trial measures its own.\n",
            bytes(smallest as f64)
        ));
    }
    for left_out in &plan.left_out {
        text.push_str(&format!("# Left out: {left_out}.\n"));
    }
    text
}

/// `134.5 million parameters`.
pub(super) fn parameters_text(count: u64) -> String {
    match count as f64 / 1e6 {
        millions if millions < 999.95 => format!("{millions:.1} million parameters"),
        millions => format!("{:.2} billion parameters", millions / 1e3),
    }
}

fn data(answers: &Answers, longer: Option<&LongerRows>, output: &Path) -> String {
    let name = answers.format.name();
    let train = quoted(&near(&answers.data.to_string_lossy(), output));
    format!(
        "data:\n  train: {train}\n  held_out: 0.1             # a tenth of the rows measures the loss; or a file of its own\n  \
         format: {name}\n{}{}  loss_on: completions      # or all: train on the questions too\n{}\n",
        as_plain(answers),
        columns(&answers.columns).map_or_else(String::new, |columns| format!("  columns: {columns}\n")),
        long_rows(longer)
    )
}

/// How rows that are trained as chats would be trained as plain text.
fn as_plain(answers: &Answers) -> String {
    let Some(plain) = &answers.as_plain else {
        return String::new();
    };
    let names = ["prompt", "completion"];
    let all: Renames = names.map(|name| (name.to_owned(), column(plain, name))).into();
    let columns = columns(&all).unwrap_or_default();
    format!(
        "  # That is a chat of two messages, by the model's chat template. As plain text, without it:\n  \
         # format: prompt_completion, and columns: {columns}\n"
    )
}

/// Leaves out rows that would lose their end, where these are few.
fn long_rows(longer: Option<&LongerRows>) -> String {
    let few = longer.filter(|longer| longer.are_few());
    few.map_or_else(String::new, |few| {
        format!(
            "  # {few} are longer than {} tokens and are left out: an answer that is cut teaches no end.\n  \
             long_rows: drop\n",
            few.sequence_length
        )
    })
}

/// Columns as YAML; `None` where none has another name than the format's.
fn columns(columns: &Renames) -> Option<String> {
    let pairs = columns
        .iter()
        .map(|(name, column)| format!("{name}: {}", quoted(column)));
    let pairs: Vec<String> = pairs.collect();
    (!pairs.is_empty()).then(|| format!("{{{}}}", pairs.join(", ")))
}

fn space(plan: &Plan) -> String {
    let precisions: Vec<&str> = plan
        .precisions
        .iter()
        .map(|precision| match precision {
            Precision::Nf4 => "nf4",
            _ => "bf16",
        })
        .collect();
    let checkpointing = if plan.can_keep_activations {
        "[none, full]"
    } else {
        "full"
    };
    let quantized = plan.precisions.contains(&Precision::Nf4);
    let optimizers = if plan.trains_in_trl {
        "adamw"
    } else if quantized {
        "[adamw, paged_adamw_8bit]"
    } else {
        "[adamw, adamw_8bit]"
    };
    let targets = match plan.trains_in_trl {
        // Which layers are those of attention, the table of families says, and this one is not in it.
        true => "all-linear",
        false => "[attention, all-linear]",
    };
    let size = &plan.size;
    let rates = &plan.learning_rates;
    format!(
        "space:\n  \
         # What the adapter can learn.\n  \
         rank: {:?}\n  \
         alpha_ratio: [1, 2]       # alpha = ratio x rank\n  \
         target_modules: {targets}\n  \
         dropout: 0.0\n  \
         # How it learns.\n  \
         # The range widens by itself when the best rate lies at its edge; `fixed: true` in the braces keeps it.\n  \
         learning_rate: {{low: {:e}, high: {:e}, scale: log}}\n  \
         schedule: cosine\n  \
         warmup: 0.03              # a share of all steps\n  \
         optimizer: {optimizers}\n  \
         global_batch: {}          # rows of a step{}, held fixed: micro_batch then changes only speed and memory\n  \
         # What it costs.\n  \
         micro_batch: {:?}\n  \
         packing: {}\n  \
         gradient_checkpointing: {checkpointing}\n  \
         precision: [{}]\n\n",
        plan.ranks,
        rates.low,
        rates.high,
        size.global_batch,
        smaller_batch(size),
        plan.micro_batches,
        packing(plan),
        precisions.join(", ")
    )
}

/// Words that a larger global batch is usual, where it takes too long here.
fn smaller_batch(size: &TrialSize) -> &'static str {
    match size.usual_seconds() {
        Some(_) => " (16 where time allows)",
        None => "",
    }
}

/// Filled rows are tried where a trial has steps enough of them.
fn packing(plan: &Plan) -> String {
    if plan.trains_in_trl {
        return "false            # filled rows take a GPU and flash-attn in TRL".to_owned();
    }
    match plan.too_few_packed_steps() {
        None => "[false, true]".to_owned(),
        Some(steps) => format!("false            # filled rows would leave a trial {steps} steps"),
    }
}

fn trial(plan: &Plan, longer: Option<&LongerRows>, limit: u64, is_gpu: bool) -> String {
    let long_rows = match longer {
        None => "longer rows are cut".to_owned(),
        Some(few) if few.are_few() => "longer rows are left out".to_owned(),
        Some(many) => format!("{many} are longer and are cut: raise it, or leave them out by `data.long_rows: drop`"),
    };
    let (trials, time) = if is_gpu { (60, "8h") } else { (40, "2h") };
    let size = &plan.size;
    format!(
        "trial:\n  \
         sequence_length: {}     # {long_rows}\n  \
         profile_steps: {PROFILE_STEPS}\n  \
         training_tokens: {}     # {}\n  \
         evaluation: {{rows: {}, times: {}}}\n  \
         memory_limit: {} MiB\n  \
         timeout: {}m\n\
         training: {{length: {{epochs: 1}}}}   # of the recipe that `export` writes\n\n\
         budget: {{trials: {trials}, time: {time}}}   # whichever comes first; a search can be resumed with more\n\
         seed: 0\n\
         sampler: auto\n",
        plan.sequence_length,
        size.training_tokens,
        size.steps_text(),
        size.evaluation_rows,
        size.evaluation_times,
        limit >> 20,
        size.timeout_min()
    )
}

/// A path as it is seen from the file's folder: made absolute where the file is written elsewhere.
pub(super) fn near(path: &str, output: &Path) -> String {
    let is_here = output.parent().is_none_or(|folder| folder.as_os_str().is_empty());
    let exists = Path::new(path).exists();
    match exists && !is_here {
        true => std::path::absolute(path).map_or_else(|_| path.to_owned(), |path| path.to_string_lossy().into_owned()),
        // A folder that looks like a hub id is named as a folder.
        false if exists && !path.starts_with(['.', '/']) => format!("./{path}"),
        false => path.to_owned(),
    }
}

/// A JSON string is a YAML string.
pub(super) fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

pub(super) fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
