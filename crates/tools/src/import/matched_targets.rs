//! A regular expression for the target modules of a file, held against the names of the model.

use super::{Imported, StackFileError};
use peft_tune_core::architecture::Architecture;
use peft_tune_core::plan::matched_modules;
use peft_tune_core::recipe::TargetModules;

impl Imported {
    /// Puts the modules that the expression selects in its place, where the file has one, and says which.
    ///
    /// # Errors
    /// No expression, or one that selects no module of the model.
    pub fn match_targets(&mut self, architecture: Option<&Architecture>) -> Result<Option<String>, StackFileError> {
        let found = self.expression.take().zip(self.recipe.adapter.as_mut());
        let Some((expression, adapter)) = found else {
            return Ok(None);
        };
        let Some(architecture) = architecture else {
            return Ok(Some(format!(
                "the modules of the model are not known here, so that nothing can be held against `{expression}`: all-linear is \
                 taken (`target_modules`)"
            )));
        };
        let matched = match matched_modules(&expression, architecture) {
            Ok(matched) => matched,
            Err(reason) => return Err(StackFileError::Expression { expression, reason }),
        };
        let layers = match &matched.layers {
            Some(layers) => format!(", in {} of {} layers", layers.len(), architecture.layers.len()),
            None => String::new(),
        };
        let told = format!("`{expression}` selects {}{layers}", matched.names.join(", "));
        adapter.target_modules = TargetModules::Named(matched.names);
        adapter.layers_to_transform = matched.layers;
        Ok(Some(told))
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::parse_recipe;

    #[test]
    fn an_expression_without_a_model_is_told() {
        let file = r#"{"peft_type": "LORA", "r": 4, "target_modules": ".*(q|v)_proj"}"#;
        let mut imported = parse_recipe(Path::new("adapter_config.json"), file, None).unwrap();
        let told = imported.match_targets(None).unwrap().unwrap();
        assert!(told.contains("all-linear is taken"), "{told}");
    }
}
