//! The text of a study around one setting: its neighbours are searched, and all else stays as it is.

use std::convert::Infallible;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use super::machine::Machine;
use super::study_text::{engine, near, one_line, quoted, study_name};
use crate::report::bytes;
use crate::tools::import::Imported;
use peft_tune_core::recipe::settings::settings;
use peft_tune_core::recipe::{
    AdapterSettings, Checkpointing, DataSettings, EpochSteps, HeldOut, LongRows, ParamValue, Recipe, TargetModules,
    TargetPreset, TrainingLength,
};

/// What the file is written from.
pub(crate) struct Around<'a> {
    pub from: &'a Path,
    pub imported: &'a Imported,
    pub output: &'a Path,
    pub memory_bytes: u64,
    pub machine: &'a Machine,
    /// Rows of the data, about, where that is quick to say.
    pub rows: Option<u64>,
    /// The built-in engine lacks the model's family or the trainer, and TRL has it.
    pub trains_in_trl: bool,
}

/// Settings that are written even where they have their usual value.
const SHOWN: [&str; 8] = [
    "method",
    "precision",
    "dropout",
    "optimizer",
    "schedule",
    "warmup",
    "max_grad_norm",
    "beta",
];

/// Times that the searched learning rates lie below and above the own one.
const RATE_FACTOR: f64 = 4.0;

/// A parameter that is searched: its values, and the own one.
struct Searched {
    name: &'static str,
    values: String,
    own: Value,
}

/// The whole file.
pub(crate) fn study_around(around: &Around<'_>) -> String {
    let recipe = &around.imported.recipe;
    let data_file = recipe
        .data
        .train
        .files()
        .next()
        .map_or(Path::new("data"), PathBuf::as_path);
    let name = study_name(around.output, &recipe.model, data_file);
    let limit = around.memory_bytes >> 20;
    let searched = searched(recipe, around.trains_in_trl);
    [
        heading(around),
        format!("study: {}\n\n", quoted(&name)),
        format!("model: {}\n", quoted(&near(&recipe.model, around.output))),
        match recipe.trainer.is_sft() {
            true => engine(around.trains_in_trl),
            false => "backend: trl              # the built-in engine learns no preferences\n",
        }
        .to_owned(),
        data(&recipe.data, around.output),
        format!(
            "objectives: [throughput, peak_memory, loss]\nconstraints:\n  peak_memory: \"<= {limit} MiB\"\n\
             # target_stack: {}     # memory by what it needs there; see docs/space-file.md\n\n",
            around.imported.tool.name()
        ),
        space(around, &searched),
        baseline(&searched),
        trial(around),
    ]
    .concat()
}

/// Settings of the recipe that a study leaves out, with what to do: of PyTorch's kernels where trials train in the built-in engine.
pub(crate) fn left_out(recipe: &Recipe, trains_in_trl: bool) -> Vec<String> {
    let of_torch = settings().filter(|row| row.is_of_torch() && !trains_in_trl);
    let of_torch = of_torch.filter(|row| (row.get)(recipe) != row.legal.off());
    let of_torch = of_torch.map(|row| {
        format!(
            "the built-in engine has no `{}`: trials do without; write it under `space` to search with `backend: trl`",
            row.name
        )
    });
    let mut all: Vec<String> = of_torch.collect();
    let Some(adapter) = &recipe.adapter else {
        return all;
    };
    let fields = [
        ("adapter.modules_to_save", !adapter.modules_to_save.is_empty()),
        ("adapter.target_parameters", !adapter.target_parameters.is_empty()),
        ("adapter.rank_pattern", !adapter.rank_pattern.is_empty()),
        ("adapter.alpha_pattern", !adapter.alpha_pattern.is_empty()),
        ("adapter.layers_to_transform", adapter.layers_to_transform.is_some()),
        ("adapter.adapter_init", adapter.adapter_init.is_some()),
    ];
    let set = fields.into_iter().filter(|(_, is_set)| *is_set);
    all.extend(set.map(|(field, _)| {
        format!(
            "a study has no key for `{field}`: trials do without; add it to the recipe that `export --format recipe` writes"
        )
    }));
    all
}

fn heading(around: &Around<'_>) -> String {
    let from = around.from.display().to_string();
    format!(
        "# Around the setting of {} ({}), on {} with {}.\n\
         # Written by `peft-tune init --from`; change what you know better, then: peft-tune search FILE\n",
        one_line(&from),
        around.imported.tool.name(),
        one_line(&around.machine.device),
        bytes(around.memory_bytes as f64),
    )
}

fn data(data: &DataSettings, output: &Path) -> String {
    let mut data = data.clone();
    let seen = |path: &mut PathBuf| *path = near(&path.to_string_lossy(), output).into();
    let near = |path: &Path| vec![PathBuf::from(near(&path.to_string_lossy(), output))];
    let Ok(train) = data.train.replaced(|_, path| Ok::<_, Infallible>(near(path)));
    data.train = train;
    match &mut data.held_out {
        HeldOut::Fraction(_) => {}
        HeldOut::File(path) => seen(path),
        HeldOut::Files(paths) => paths.iter_mut().for_each(seen),
    }
    data.retain.iter_mut().for_each(seen);
    data.chat_template.iter_mut().for_each(seen);
    format!("data:\n{}\n", lines(&json!(data)))
}

/// Keys and values below a key; a JSON value is a YAML value.
fn lines(value: &Value) -> String {
    let entries = value.as_object().into_iter().flatten();
    entries
        .filter(|(_, value)| !value.is_null())
        .map(|(key, value)| format!("  {key}: {value}\n"))
        .collect()
}

fn searched(recipe: &Recipe, trains_in_trl: bool) -> Vec<Searched> {
    let batch = &recipe.batch;
    let mut all = Vec::new();
    if let Some(adapter) = &recipe.adapter {
        all.push(Searched {
            name: "rank",
            values: format!("{:?}", neighbours(adapter.rank, 4096)),
            own: json!(adapter.rank),
        });
        all.push(targets(adapter, trains_in_trl));
    }
    let rate = recipe.optimizer.learning_rate;
    all.push(Searched {
        name: "learning_rate",
        values: format!(
            "{{low: {:e}, high: {:e}, scale: log}}",
            rounded(rate / RATE_FACTOR),
            rounded(rate * RATE_FACTOR)
        ),
        own: json!(rate),
    });
    let rows = batch.micro_batch * batch.gradient_accumulation;
    let mut micro_batches = neighbours(batch.micro_batch, rows);
    let least = recipe.trainer.row().least_micro_batch;
    micro_batches.retain(|micro_batch| rows.is_multiple_of(*micro_batch) && *micro_batch >= least);
    all.push(Searched {
        name: "micro_batch",
        values: format!("{micro_batches:?}"),
        own: json!(batch.micro_batch),
    });
    all.push(Searched {
        name: "packing",
        // Filled rows take flash-attn in TRL.
        values: match trains_in_trl {
            true => format!("[{}]", batch.packing),
            false => "[false, true]".to_owned(),
        },
        own: json!(batch.packing),
    });
    let form = recipe.gradient_checkpointing;
    let mut forms = vec![Checkpointing::None, Checkpointing::Full];
    if !forms.contains(&form) {
        forms.push(form);
    }
    let names: Vec<String> = forms.iter().map(ToString::to_string).collect();
    all.push(Searched {
        name: "gradient_checkpointing",
        values: format!("[{}]", names.join(", ")),
        own: json!(form.to_string()),
    });
    all
}

/// Half, once and twice a number, from 1 to `most`.
fn neighbours(own: usize, most: usize) -> Vec<usize> {
    let mut all = vec![own / 2, own, own.saturating_mul(2)];
    all.retain(|value| (1..=most).contains(value));
    all.dedup();
    all
}

/// Three digits are enough for a bound.
fn rounded(value: f64) -> f64 {
    format!("{value:.2e}").parse().unwrap_or(value)
}

/// The own modules, those of attention, and all; of a family that is not known the own ones alone.
fn targets(adapter: &AdapterSettings, trains_in_trl: bool) -> Searched {
    let own = json!(adapter.target_modules);
    let mut values = vec![own.clone()];
    for preset in [TargetPreset::Attention, TargetPreset::AllLinear] {
        let is_own = match &adapter.target_modules {
            TargetModules::Preset(own) => *own == preset,
            TargetModules::Named(names) => names
                .iter()
                .map(String::as_str)
                .eq(preset.row().modules.iter().copied()),
        };
        if !is_own && !trains_in_trl {
            values.push(json!(preset.name()));
        }
    }
    Searched {
        name: "target_modules",
        values: Value::Array(values).to_string(),
        own,
    }
}

fn space(around: &Around<'_>, searched: &[Searched]) -> String {
    let (recipe, rows_of_data) = (&around.imported.recipe, around.rows);
    let mut text = "space:\n  # Searched: what you have, and its neighbours.\n".to_owned();
    for Searched { name, values, .. } in searched {
        text.push_str(&format!("  {name}: {values}\n"));
    }
    text.push_str("  # As you have it.\n");
    if let Some(adapter) = &recipe.adapter {
        let ratio = adapter.alpha / adapter.rank as f64;
        text.push_str(&format!("  alpha_ratio: {ratio}     # alpha = ratio x rank\n"));
    }
    let rows = recipe.batch.global_batch();
    text.push_str(&format!(
        "  global_batch: {rows}     # rows of a step, whatever the micro-batch\n"
    ));
    let is_written = |name: &str| {
        ["alpha", "sequence_length", "gradient_accumulation", "devices"].contains(&name)
            || searched.iter().any(|one| one.name == name)
    };
    let usual = Recipe::new("", DataSettings::default());
    let rows = settings().filter(|row| row.derived_from.is_none() && row.is_read(recipe));
    let rows = rows.filter(|row| around.trains_in_trl || !row.is_of_torch());
    for row in rows.filter(|row| !is_written(row.name)) {
        let Some(value) = (row.get)(recipe) else { continue };
        if let Some((share, steps)) = as_share(row.name, &value, recipe, rows_of_data) {
            text.push_str(&format!(
                "  {}: {share}     # {value} of about {steps} steps\n",
                row.name
            ));
        } else if (row.get)(&usual).as_ref() != Some(&value) || SHOWN.contains(&row.name) {
            text.push_str(&format!("  {}: {}\n", row.name, json!(value)));
        }
    }
    text + "\n"
}

/// A number of steps as a share of all of them, and their number: trials are shorter than the training that it was set for.
fn as_share(name: &str, value: &ParamValue, recipe: &Recipe, rows: Option<u64>) -> Option<(f64, u64)> {
    let counted = value
        .as_f64()
        .filter(|steps| *steps >= 1.0 && ["warmup", "lr_decay"].contains(&name))?;
    let steps = match recipe.training.length {
        TrainingLength::Steps(steps) => steps,
        TrainingLength::Epochs(epochs) => EpochSteps::new(rows?, &recipe.batch).of_epochs(epochs),
        TrainingLength::Tokens(_) => return None,
    };
    let counted = counted as u64;
    (counted < steps).then(|| (share_of(counted, steps), steps))
}

/// The shortest share from three digits on that is so many of these steps again, as a schedule rounds it up.
fn share_of(counted: u64, steps: u64) -> f64 {
    let share = counted as f64 / steps as f64;
    let mut shorter = (3..=12).map(|digits| {
        let unit = 10_f64.powi(digits);
        (share * unit).floor() / unit
    });
    let is_it = |share: &f64| *share > 0.0 && (share * steps as f64).ceil() as u64 == counted;
    // Between two numbers of steps none is rounded to another.
    shorter.find(is_it).unwrap_or((counted as f64 - 0.5) / steps as f64)
}

fn baseline(searched: &[Searched]) -> String {
    let lines = searched.iter().map(|one| format!("  {}: {}\n", one.name, one.own));
    format!(
        "# What you have: the first trial, which the recommended one is compared with.\nbaseline:\n{}\n",
        lines.collect::<String>()
    )
}

fn trial(around: &Around<'_>) -> String {
    let recipe = &around.imported.recipe;
    let long_rows = match recipe.data.long_rows {
        LongRows::Cut => "cut",
        LongRows::Drop => "left out",
    };
    let (trials, time) = if around.machine.is_gpu { (60, "8h") } else { (40, "2h") };
    format!(
        "trial:\n  \
         sequence_length: {}     # longer rows are {long_rows}\n  \
         profile_steps: 5\n  \
         training_tokens: 100k\n  \
         evaluation: {{rows: 128, times: 2}}\n  \
         memory_limit: {} MiB\n  \
         timeout: 30m\n\
         training:     # of the recipe that `export` writes\n{}\n\
         budget: {{trials: {trials}, time: {time}}}   # whichever comes first; a search can be resumed with more\n\
         seed: {}\n\
         sampler: auto\n",
        recipe.batch.sequence_length,
        around.memory_bytes >> 20,
        lines(&json!(recipe.training)),
        recipe.training.seed,
    )
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_share_of_steps_is_the_same_steps_again(steps in 2_u64..1_000_000, part in 0.0_f64..1.0) {
            let counted = ((steps as f64 * part) as u64).clamp(1, steps - 1);
            let mut recipe = Recipe::new("m", DataSettings::default());
            recipe.schedule.warmup = share_of(counted, steps);
            prop_assert!(recipe.schedule.warmup < 1.0);
            prop_assert_eq!(recipe.schedule.warmup_steps(steps), counted);
        }
    }

    #[test]
    fn shares_are_as_short_as_they_can_be() {
        assert_eq!(
            (share_of(5, 30), share_of(10, 100), share_of(1, 30_000)),
            (0.166, 0.1, 0.00003)
        );
    }
}
