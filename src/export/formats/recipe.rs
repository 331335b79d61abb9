//! `recipe.yaml`: the recipe as peft-tune reads it.

use super::Format;
use crate::export::ExportFormat;
use crate::export::write::Rendered;
use crate::space::RecipeFile;

pub(super) const FORMAT: Format = Format {
    name: "recipe",
    about: "recipe.yaml, for peft-tune itself",
    file_name: "recipe.yaml",
    title: "peft-tune",
    tool: None,
    reading: None,
    render: |input, _| {
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
        Ok(Rendered::new(ExportFormat::Recipe, text, Vec::new()))
    },
};
