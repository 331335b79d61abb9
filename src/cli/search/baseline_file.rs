//! A baseline read from a config that people have: of TRL, axolotl, LLaMA-Factory, torchtune, unsloth or PEFT, or a recipe of this
//! program.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::space::{ReadOptions, RecipeFile};
use crate::tools::Tool;
use crate::tools::import::{self, StackFileError};
use peft_tune_core::recipe::Recipe;
use peft_tune_core::recipe::settings::{setting, settings};
use peft_tune_core::study::{ParamValue, Params};

/// The settings that the file at `path` says, which is one of `stack` where that is given.
///
/// # Errors
/// Bad input where the file cannot be read or is none of a tool, or where it says no setting at all.
pub(super) fn read(path: &Path, stack: Option<Tool>) -> Result<Params, CliError> {
    let imported = match import::read_recipe(path, stack) {
        Ok(imported) => imported,
        Err(StackFileError::UnknownTool { known, .. }) => {
            return of_recipe(path).ok_or_else(|| {
                CliError::bad(format!(
                    "{file} has no key that tells its tool, and is no recipe: give a file of {known}, or name its tool by `--stack`",
                    file = path.display()
                ))
            });
        }
        Err(error) => return Err(CliError::bad_input(error)),
    };
    let mut params = imported.params();
    if imported.expression.is_some() {
        params.remove("target_modules");
    }
    if params.is_empty() {
        return Err(CliError::bad_input(anyhow::anyhow!(
            "{}: none of its keys is a setting: give a config of TRL, axolotl, LLaMA-Factory, torchtune or PEFT",
            path.display()
        )));
    }
    tell_params(path, &params);
    if let Some(expression) = &imported.expression {
        tell(format_args!(
            "warning: the expression `{expression}` is held against no model here: write `target_modules` of the baseline in the study"
        ));
    }
    let notes = imported.told.iter().chain(&imported.notes).cloned();
    for note in notes.chain(imported.warmup_note()).chain(imported.unread_note()) {
        tell(format_args!("warning: {note}"));
    }
    Ok(params)
}

/// All settings of a recipe of this program; `None` of other files.
fn of_recipe(path: &Path) -> Option<Params> {
    let recipe = RecipeFile::read_with(path, ReadOptions { check_files: false }).ok()?;
    let rows = settings().filter(|row| row.derived_from.is_none() && row.is_read(&recipe));
    let params: Params = rows
        .filter_map(|row| Some((row.name.to_owned(), (row.get)(&recipe)?)))
        .collect();
    tell_params(path, &params);
    Some(params)
}

/// Takes the trainer of a file out of its values: a study has one, which has to be the same.
///
/// # Errors
/// Bad input: another trainer than the study's.
pub(super) fn settle_trainer(path: &Path, params: &mut Params, base: Option<&Recipe>) -> Result<(), CliError> {
    let own = params.remove("trainer");
    let of_study = base.map(|base| ParamValue::from(base.trainer.name()));
    match own.zip(of_study) {
        Some((own, of_study)) if own != of_study => Err(CliError::bad(format!(
            "{}: its setting is of `trainer: {own}`, and the study's trials are of `trainer: {of_study}`, whose losses do not compare; \
             give a file of that trainer",
            path.display()
        ))),
        _ => Ok(()),
    }
}

/// Takes out what chooses among kernels and loaders of PyTorch, and says so: the built-in engine does without.
pub(super) fn leave_torch_out(params: &mut Params) {
    params.retain(|name, value| {
        let Some(row) = setting(name).filter(|row| row.is_of_torch()) else {
            return true;
        };
        if row.legal.off().as_ref() != Some(value) {
            tell(format_args!(
                "warning: the baseline is trained without `{name}: {value}`, which the built-in engine does without; search with \
                 `backend: trl` to have it"
            ));
        }
        false
    });
}

fn tell_params(path: &Path, params: &Params) {
    let shown: Vec<String> = params.iter().map(|(name, value)| format!("{name} {value}")).collect();
    tell(format_args!("the baseline of {}: {}", path.display(), shown.join(", ")));
}

#[cfg(test)]
mod tests {
    use super::*;

    use peft_tune_core::recipe::DataSettings;

    fn of(text: &str) -> Result<Params, CliError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config");
        std::fs::write(&path, text).unwrap();
        read(&path, None)
    }

    fn shown(text: &str) -> String {
        let params = of(text).unwrap();
        let parts: Vec<String> = params.iter().map(|(name, value)| format!("{name}={value}")).collect();
        parts.join(" ")
    }

    #[test]
    fn configs_of_other_tools_say_settings() {
        let trl = "model_name_or_path: m\nlora_r: 64\nlora_alpha: 16\nlearning_rate: 2e-4\noptim: adamw_torch\n\
                   per_device_train_batch_size: 2\ngradient_accumulation_steps: 8\ngradient_checkpointing: true\n";
        let said = shown(trl);
        for part in [
            "rank=64",
            "alpha=16",
            "learning_rate=2e-4",
            "optimizer=adamw",
            "micro_batch=2",
            "gradient_checkpointing=full",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let peft = r#"{"peft_type": "LORA", "r": 8, "lora_alpha": 32, "lora_dropout": 0.05, "target_modules": ["q_proj", "v_proj"]}"#;
        let said = shown(peft);
        for part in ["rank=8", "alpha=32", "dropout=0.05", "target_modules="] {
            assert!(said.contains(part), "{part}: {said}");
        }
    }

    #[test]
    fn choices_among_pytorchs_kernels_are_read_and_no_baseline_of_the_built_in_engine() {
        let trl = "model_name_or_path: m\nlora_r: 64\nattn_implementation: eager\ntorch_compile: true\nuse_liger_kernel: true\n\
                   dataloader_num_workers: 4\n";
        let said = shown(trl);
        for part in [
            "attn_implementation=eager",
            "torch_compile=true",
            "use_liger_kernel=true",
            "dataloader_num_workers=4",
        ] {
            assert!(said.contains(part), "{part}: {said}");
        }
        let mut params = of(trl).unwrap();
        leave_torch_out(&mut params);
        assert!(
            params.contains_key("rank") && !params.contains_key("torch_compile"),
            "{params:?}"
        );
    }

    #[test]
    fn a_file_without_settings_is_refused_with_its_name() {
        for text in ["a: 1\n", "[1, 2]\n", "a: [", "\u{0}"] {
            let error = of(text).unwrap_err();
            assert!(format!("{error:?}").contains("config"), "{error:?}");
        }
    }

    #[test]
    fn a_recipe_is_a_baseline_too() {
        let data = DataSettings {
            train: "train.jsonl".into(),
            ..DataSettings::default()
        };
        let said = shown(&RecipeFile::to_yaml(&Recipe::new("m", data)).unwrap());
        assert!(
            said.contains("rank=16") && said.contains("learning_rate=2e-4"),
            "{said}"
        );
    }
}
