//! The answer to a plan's question.

use std::path::Path;

use serde_json::{Value, json};

use super::cost::{around, cost};
use super::error::PageError;
use super::form::recipe_of;
use super::numbers::Numbers;
use super::published::nearest;
use super::question::{AskedPlan, GivenFile};
use peft_tune_core::predict;
use peft_tune_core::predict::stack::{Sharing, StackDevice, StackPrediction};
use peft_tune_core::recipe::Recipe;
use peft_tune_tools::Tool;
use peft_tune_tools::import::parse_recipe;
use peft_tune_tools::plan::{
    AskedChanges, AskedSetting, MEMORY_WITHIN, ModelConfig, Predicted, StackPlan, phases_note,
};

/// The name of a model's file in messages.
const CONFIG: &str = "config.json";

/// A setting, the recipe that it is of, and what was read beside it.
struct Read {
    setting: AskedSetting,
    recipe: Recipe,
    /// Keys that change the training and that nothing here counts, and keys that the tool does not know.
    told: Vec<String>,
}

/// Plans a setting: the plan as `plan --json` prints it, its bounds, the whole training's cost, and published measurements of
/// settings like it.
///
/// # Errors
/// Whatever `plan` refuses as well.
pub(crate) fn planned(asked: &AskedPlan) -> Result<Value, PageError> {
    if asked.config.trim().is_empty() {
        return Err(PageError::NoModel);
    }
    let numbers = Numbers::of(asked)?;
    let config = ModelConfig::parse(Path::new(CONFIG), &asked.config)?;
    let device = asked.device.as_deref().map(predict::device).transpose()?;
    let device = device.map(|sheet| StackDevice { sheet });
    let stack = asked.stack.as_deref().map(Tool::from_name).transpose()?;
    let Read {
        mut setting,
        recipe,
        told,
    } = match &asked.file {
        Some(file) => of_file(file, &config, stack)?,
        None => of_form(asked, stack)?,
    };
    setting.change(changes(asked, numbers.devices)?);
    let predicted = Predicted::new(config.shape()?, &setting, device)?;
    let searched = predicted.searched()?;
    let cost = cost(&numbers, &recipe, &predicted);
    let published = nearest(&predicted);
    let model = match asked.model.as_str() {
        "" => recipe.model,
        given => given.to_owned(),
    };
    let plan = StackPlan::new(model, setting, predicted, searched)?;
    let printed = plan.to_json(Value::Null);
    Ok(json!({
        "plan_text": format!("{printed:#}"),
        "plan": printed,
        "setting_text": plan.setting_text,
        "phases_note": phases_note(&plan.prediction.memory.phases),
        "scaling_text": plan.scaling.map(|scaling| scaling.to_string()),
        "fit_words": plan.prediction.verdict.map(|verdict| verdict.fit.words()),
        "outside_bytes": plan.prediction.outside_bytes,
        "between": between(&plan.prediction),
        "cost": cost,
        "published": published,
        "told": told,
    }))
}

fn of_file(file: &GivenFile, config: &ModelConfig, stack: Option<Tool>) -> Result<Read, PageError> {
    let path = Path::new(&file.name);
    let imported = parse_recipe(path, &file.text, stack)?;
    let (recipe, mut told) = (imported.recipe.clone(), imported.told.clone());
    told.extend(imported.unread_note());
    // Rows are not here: none is the longest.
    let setting = AskedSetting::of_file(path, imported, config, None)?;
    Ok(Read { setting, recipe, told })
}

fn of_form(asked: &AskedPlan, stack: Option<Tool>) -> Result<Read, PageError> {
    let recipe = recipe_of(&asked.settings)?;
    let setting = AskedSetting::of_recipe(&recipe, stack.ok_or(PageError::NoStack)?)?;
    Ok(Read {
        setting,
        recipe,
        told: Vec::new(),
    })
}

fn changes(asked: &AskedPlan, devices: Option<u64>) -> Result<AskedChanges, PageError> {
    let of_name = |name: &str| Sharing::from_name(name).ok_or_else(|| PageError::Sharing(name.to_owned()));
    Ok(AskedChanges {
        devices,
        sharing: asked.sharing.as_deref().map(of_name).transpose()?,
        offload: asked.offload,
        rows_differ: asked.rows_differ,
    })
}

/// The numbers between which nine of ten published measurements of settings lie: the peak also by the reserve of a verdict.
fn between(prediction: &StackPrediction) -> Value {
    let peak = prediction.process_bytes as f64;
    let within = match prediction.verdict {
        Some(verdict) => verdict.reserve_bytes as f64,
        None => MEMORY_WITHIN * peak,
    };
    json!({
        "peak_process_bytes": [peak - within, peak, peak + within],
        "tokens_per_s": prediction.tokens_per_s.map(around),
        "step_s": prediction.step_s().map(around),
    })
}
