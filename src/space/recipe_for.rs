//! Making a recipe from sampled values.

use super::Study;
use peft_tune_core::recipe::settings::{SetError, SettingRow, setting, settings};
use peft_tune_core::recipe::{BadOptimizerOffload, BadPrecisionSchedule, BadSharding, Precision, Recipe};
use peft_tune_core::study::{ParamValue, Params};

/// Why there is no recipe for some values: the trial is invalid, and is recorded without being run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum RecipeError {
    #[error("a command backend has no recipe")]
    NoRecipe,
    #[error("there is no parameter `{name}`")]
    UnknownParameter { name: String },
    #[error("{value} is not legal for `{name}`; write {legal}")]
    IllegalValue { name: String, value: String, legal: String },
    #[error(
        "`global_batch` {global_batch} is not a multiple of `micro_batch` {micro_batch}{}; lower `micro_batch`",
        times_devices(*.devices)
    )]
    Indivisible {
        global_batch: usize,
        micro_batch: usize,
        devices: usize,
    },
    #[error(
        "full fine-tuning cannot train quantized weights; search the quantized precisions with `method: lora` only"
    )]
    QuantizedWhole,
    #[error(
        "`activation_quantization` rounds what quantized weights are multiplied with, and `precision` is {precision}; search it with \
         `when: {{precision: [int8, nf4, nf4_double]}}`"
    )]
    ActivationsOfDense { precision: Precision },
    #[error(
        "`quantization_aware` rounds weights that are not quantized, and `precision` is {precision}; search it with \
         `when: {{precision: [fp32, bf16, fp16]}}`"
    )]
    AwareOfCodes { precision: Precision },
    #[error("{0}; or give `precision_schedule` the condition `when: {{precision: [bf16, fp16]}}`")]
    PrecisionSchedule(BadPrecisionSchedule),
    #[error("{0}; or give `sharding` a condition, such as `when: {{devices: [2]}}`")]
    Sharding(BadSharding),
    #[error("{0}; or give `optimizer_offload` the condition `when: {{optimizer: [adamw]}}`")]
    OptimizerOffload(BadOptimizerOffload),
    #[error(
        "`weight_sparsity` keeps values of dense weights, and `precision` is {precision}; search it with \
         `when: {{precision: [fp32, bf16, fp16]}}`"
    )]
    SparseCodes { precision: Precision },
    #[error(
        "`weight_sparsity` leaves out weights that full fine-tuning trains; search it with `when: {{method: [lora]}}`"
    )]
    SparseWhole,
}

/// The recipe of one trial: the study's base with its fixed and the sampled values.
///
/// # Errors
/// Where the values do not make a recipe (see [`RecipeError`]): `global_batch` that `micro_batch` does not divide is
/// the one that a sound study can run into.
pub fn recipe_for(study: &Study, sampled: &Params) -> Result<Recipe, RecipeError> {
    let mut recipe = study.base.clone().ok_or(RecipeError::NoRecipe)?;
    let params = study.all_params(sampled);
    if let Some(name) = params.keys().find(|name| setting(name).is_none()) {
        return Err(RecipeError::UnknownParameter { name: name.clone() });
    }
    let full = params.get("method") == Some(&"full".into());
    let means_nothing = |row: &SettingRow| full && row.field.starts_with("adapter.");
    for row in settings().filter(|row| !means_nothing(row)) {
        if let Some(value) = params.get(row.name) {
            apply(row, value, &mut recipe)?;
        }
    }
    if recipe.adapter.is_none() && recipe.precision.is_quantized() {
        return Err(RecipeError::QuantizedWhole);
    }
    if !recipe.activation_quantization.is_none() && !recipe.precision.is_quantized() {
        let precision = recipe.precision;
        return Err(RecipeError::ActivationsOfDense { precision });
    }
    if !recipe.weight_sparsity.is_none() {
        let precision = recipe.precision;
        match (precision.is_quantized(), &recipe.adapter) {
            (true, _) => return Err(RecipeError::SparseCodes { precision }),
            (false, None) => return Err(RecipeError::SparseWhole),
            (false, Some(_)) => {}
        }
    }
    if !recipe.quantization_aware.is_none() && recipe.precision.is_quantized() {
        let precision = recipe.precision;
        return Err(RecipeError::AwareOfCodes { precision });
    }
    let sound = recipe.precision_schedule.check(recipe.precision);
    sound.map_err(RecipeError::PrecisionSchedule)?;
    recipe.check_sharding().map_err(RecipeError::Sharding)?;
    let updates = recipe.check_optimizer_offload();
    updates.map_err(RecipeError::OptimizerOffload)?;
    Ok(recipe)
}

/// Sets one value on a recipe.
pub(crate) fn apply(row: &SettingRow, value: &ParamValue, recipe: &mut Recipe) -> Result<(), RecipeError> {
    let illegal = || RecipeError::IllegalValue {
        name: row.name.to_owned(),
        value: value.to_string(),
        legal: row.legal.to_string(),
    };
    if !row.legal.allows(value) {
        return Err(illegal());
    }
    (row.set)(recipe, value).map_err(|error| match error {
        SetError::Inapplicable => illegal(),
        SetError::Indivisible {
            global_batch,
            micro_batch,
            devices,
        } => RecipeError::Indivisible {
            global_batch,
            micro_batch,
            devices,
        },
    })
}

/// What multiplies the micro-batch, where there is more than one device.
fn times_devices(devices: usize) -> String {
    match devices {
        0 | 1 => String::new(),
        devices => format!(" times {devices} `devices`"),
    }
}

/// The values that a recipe gives to each setting, derived ones included.
pub fn params_of(recipe: &Recipe) -> Params {
    settings()
        .filter_map(|row| Some((row.name.to_owned(), (row.get)(recipe)?)))
        .collect()
}
