//! Searches on a model that the built-in engine lacks: what is not known of it is said, and what only the engine's table of
//! families could tell is refused.

use std::path::Path;

use crate::cli::CliError;
use crate::cli::data::model_family::{ModelFamily, OtherFamily};
use crate::cli::terminal::output::tell;
use crate::space::{Loader, SpaceError, Study};
use peft_tune_core::recipe::TargetPreset;
use peft_tune_core::study::ParamValue;
use peft_tune_engine::Checkpoint;

/// Parameter that names linear layers.
const TARGETS: &str = "target_modules";

/// Says what is not known of a model, and refuses names of linear layers that mean nothing of it. `folder` has its checkpoint.
///
/// # Errors
/// Bad input: a name for some of the layers that is neither PEFT's own nor that of a module.
pub(super) fn check(study: &Study, family: &OtherFamily, folder: &Path) -> Result<(), CliError> {
    let name = &family.model_type;
    tell(format_args!(
        "the built-in engine does not train this model ({}): TRL trains it as transformers loads it, and `target_modules: all-linear` \
         is what PEFT takes that for",
        family.lack
    ));
    if family.is_within {
        tell(format_args!(
            "`{name}` is more than a language model: all-linear, and names of modules, reach what is beside it too, where rows of text \
             teach nothing"
        ));
    }
    if let Err(reason) = &family.shape {
        tell(format_args!(
            "warning: the dimensions of `{name}` cannot be read ({reason}): nothing is predicted of it, and rows are not held against \
             its vocabulary and its positions"
        ));
    }
    let modules = modules_of(folder);
    let ends = ends_of(&modules);
    check_presets(study, family, &ends)?;
    if modules.is_empty() && values(study).any(|(_, value)| matches!(value, ParamValue::List(_))) {
        tell(format_args!(
            "warning: the matrices of the checkpoint cannot be listed here, as its weights are no safetensors: names in `{TARGETS}` are \
             not held against them, and PEFT refuses those that it does not find"
        ));
    }
    for absent in absent_names(study, &modules) {
        tell(format_args!(
            "warning: no matrix of the checkpoint is called `{absent}`, and PEFT may find none either; it has {}",
            ends.join(", ")
        ));
    }
    Ok(())
}

/// Refuses a model that the engine lacks where trials on models of this loader do not have it, and names for some of its linear layers
/// elsewhere, by its `config.json` and the matrices beside it.
///
/// # Errors
/// Bad input: a file that cannot be read; such a model; such a name.
pub(in crate::cli) fn check_config(study: &Study, loader: Loader, config: &Path) -> Result<(), CliError> {
    let ModelFamily::Other(family) = ModelFamily::read(config)? else {
        return Ok(());
    };
    family.check_for(loader)?;
    let modules = config.parent().map(modules_of).unwrap_or_default();
    Ok(check_presets(study, &family, &ends_of(&modules))?)
}

/// Names of the modules whose weights are matrices; none where the files do not tell.
fn modules_of(folder: &Path) -> Vec<String> {
    let checkpoint = Checkpoint::open(folder);
    checkpoint.map_or_else(
        |_| Vec::new(),
        |checkpoint| checkpoint.matrix_modules().map(str::to_owned).collect(),
    )
}

/// The last parts of the names, each once.
fn ends_of(modules: &[String]) -> Vec<&str> {
    let mut ends: Vec<&str> = modules.iter().filter_map(|name| name.rsplit('.').next()).collect();
    ends.sort_unstable();
    ends.dedup();
    ends
}

/// Values that trials may have, each with the section of the file that has it.
fn values(study: &Study) -> impl Iterator<Item = (&'static str, ParamValue)> {
    let sampled = study.values(TARGETS).into_iter().map(|value| ("space", value));
    let baseline = study.baseline.get(TARGETS).cloned();
    sampled.chain(baseline.map(|value| ("baseline", value)))
}

fn check_presets(study: &Study, family: &OtherFamily, ends: &[&str]) -> Result<(), SpaceError> {
    for (section, value) in values(study) {
        if let ParamValue::Text(preset) = &value
            && preset.as_str() != TargetPreset::AllLinear.name()
        {
            return Err(study.reject(&[section, TARGETS], family.refusal_of(preset, ends)));
        }
    }
    Ok(())
}

/// Names in the file that no module ends in; none where the modules are not known.
fn absent_names(study: &Study, modules: &[String]) -> Vec<String> {
    let is_there = |name: &str| {
        let has_end = |module: &String| {
            module
                .strip_suffix(name)
                .is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
        };
        modules.iter().any(has_end)
    };
    let lists = values(study).filter_map(|(_, value)| match value {
        ParamValue::List(names) => Some(names),
        _ => None,
    });
    let mut absent: Vec<String> = lists
        .flat_map(|names| names.to_vec())
        .filter(|name| !modules.is_empty() && !is_there(name))
        .collect();
    absent.sort_unstable();
    absent.dedup();
    absent
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::space::{ReadOptions, StudyFile};

    fn study(targets: &str) -> Study {
        let head = "model: m\ndata: {train: [a.jsonl]}\nbackend: trl";
        let text = format!("{head}\nspace: {{rank: [4, 8], target_modules: {targets}}}\n");
        StudyFile::parse(Path::new("space.yaml"), &text, ReadOptions { check_files: false }).unwrap()
    }

    #[test]
    fn names_that_no_module_ends_in_are_found() {
        let modules = ["model.layers.0.mamba.in_proj", "model.layers.0.self_attn.q_proj"].map(str::to_owned);
        let absent = |targets: &str| absent_names(&study(targets), &modules);
        assert_eq!(
            absent("[[in_proj, self_attn.q_proj], [proj, gate_proj]]"),
            ["gate_proj", "proj"]
        );
        assert_eq!(absent("all-linear"), [""; 0]);
        assert_eq!(absent_names(&study("[[gate_proj], [in_proj]]"), &[]), [""; 0]);
        assert_eq!(ends_of(&modules), ["in_proj", "q_proj"]);
    }
}
