//! Choices of the page: tools, devices with their listed prices, and settings with their legal values.

use serde_json::{Value, json};

use super::form;
use peft_tune_core::predict::{DEVICES, DevicePrice};
use peft_tune_core::recipe::settings::{Legal, SettingRow};
use peft_tune_core::recipe::{Checkpointing, TargetPreset};
use peft_tune_tools::Tool;

/// All choices.
pub(crate) fn menu() -> Value {
    let tools = Tool::ALL
        .iter()
        .map(|tool| json!({"name": tool.name(), "title": tool.title()}));
    let devices = DEVICES.iter().map(|sheet| {
        json!({
            "name": sheet.name,
            "memory_bytes": sheet.memory_bytes,
            "source": sheet.source,
            "price": DevicePrice::listed(sheet.name),
        })
    });
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "tools": tools.collect::<Vec<_>>(),
        "devices": devices.collect::<Vec<_>>(),
        "settings": form::rows().map(setting).collect::<Vec<_>>(),
    })
}

/// A setting with its usual value: a list to choose from, a number between bounds, or a switch.
fn setting(row: &SettingRow) -> Value {
    let mut value = json!({
        "name": row.name,
        "about": row.about,
        "legal": row.legal.to_string(),
        "usual": (row.get)(&form::usual()),
    });
    match row.legal {
        Legal::Choice(names) => value["choices"] = json!(names),
        Legal::Targets => value["choices"] = json!(TargetPreset::NAMES),
        Legal::Checkpointing => {
            let names = Checkpointing::FORMS.map(|form| form.to_string());
            value["choices"] = json!(names);
        }
        Legal::Int { least, most } => value["between"] = json!([least, most]),
        Legal::Bool => value["is_switch"] = json!(true),
        Legal::Float(_) | Legal::FloatOrNone(_) | Legal::PrecisionSchedule => {}
    }
    value
}
