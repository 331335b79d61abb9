//! A regular expression for the target modules of another tool's file, held against the names of the model.

use crate::cli::CliError;
use crate::tools::import::Imported;
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::matched_modules;
use peft_tune_core::recipe::TargetModules;

/// Puts the modules that the expression selects in its place, where the file has one, and says which.
///
/// # Errors
/// Bad input: no expression, or one that selects no module of the model.
pub(in crate::cli) fn match_targets(
    imported: &mut Imported,
    architecture: Option<&Architecture>,
) -> Result<Option<String>, CliError> {
    let found = imported.expression.take().zip(imported.recipe.adapter.as_mut());
    let Some((expression, adapter)) = found else {
        return Ok(None);
    };
    let Some(architecture) = architecture else {
        return Ok(Some(format!(
            "the modules of the model are not known here, so that nothing can be held against `{expression}`: all-linear is taken \
             (`target_modules`)"
        )));
    };
    let matched = matched_modules(&expression, architecture)
        .map_err(|error| CliError::bad(format!("the expression `{expression}` of the target modules: {error}")))?;
    let layers = match &matched.layers {
        Some(layers) => format!(", in {} of {} layers", layers.len(), architecture.layers.len()),
        None => String::new(),
    };
    let told = format!("`{expression}` selects {}{layers}", matched.names.join(", "));
    adapter.target_modules = TargetModules::Named(matched.names);
    adapter.layers_to_transform = matched.layers;
    Ok(Some(told))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tools::import::parse_recipe;
    use std::path::Path;

    #[test]
    fn an_expression_without_a_model_is_told() {
        let file = r#"{"peft_type": "LORA", "r": 4, "target_modules": ".*(q|v)_proj"}"#;
        let mut imported = parse_recipe(Path::new("adapter_config.json"), file, None).unwrap();
        let told = match_targets(&mut imported, None).unwrap().unwrap();
        assert!(told.contains("all-linear is taken"), "{told}");
    }
}
