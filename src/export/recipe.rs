//! `recipe.yaml`: the recipe as peft-tune reads it.

use crate::space::{RecipeFile, RecipeFileError};
use crate::tools::export::{ExportInput, Rendered};

pub(super) const NAME: &str = "recipe";
pub(super) const ABOUT: &str = "recipe.yaml, for peft-tune itself";
pub(super) const FILE_NAME: &str = "recipe.yaml";

pub(super) fn render(input: &ExportInput<'_>) -> Result<Rendered, RecipeFileError> {
    let mut text = String::from("# One fine-tuning, for `peft-tune train recipe.yaml`\n");
    for line in input.origin() {
        text.push_str(&format!("# {line}\n"));
    }
    let devices = input.recipe.batch.devices;
    if devices > 1 {
        text.push_str(&format!(
            "# measured on {devices} devices; `peft-tune train` starts a process on each\n"
        ));
    }
    text.push_str(&RecipeFile::to_yaml(input.recipe)?);
    Ok(Rendered::new(FILE_NAME, text, Vec::new()))
}
