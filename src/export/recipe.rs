//! `recipe.yaml`: the recipe as peft-tune reads it.

use super::write::Rendered;
use super::{ExportError, ExportFormat, ExportInput};
use crate::space::RecipeFile;

pub(super) fn render(input: &ExportInput<'_>) -> Result<Rendered, ExportError> {
    let mut text = String::from("# One fine-tuning, for `peft-tune train recipe.yaml`\n");
    for line in input.origin() {
        text.push_str(&format!("# {line}\n"));
    }
    text.push_str(&RecipeFile::to_yaml(input.recipe)?);
    Ok(Rendered::new(ExportFormat::Recipe, text, Vec::new()))
}
