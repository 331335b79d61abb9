//! [`Question`]: what the page asks.

use std::collections::BTreeMap;

use peft_tune_core::recipe::ParamValue;
use serde::Deserialize;

/// One question.
#[derive(Debug, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub(crate) enum Question {
    /// Devices, stacks and settings that there are.
    Menu,
    /// What a setting needs.
    Plan(Box<AskedPlan>),
}

/// A setting to plan: of a tool's file, or of the form. Numbers are as they are written, within bounds or not.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct AskedPlan {
    /// Text of the model's `config.json`.
    pub config: String,
    /// Name of the model, for people; that of the file where it is empty.
    pub model: String,
    /// Tool's settings file; the form's settings where there is none.
    pub file: Option<GivenFile>,
    /// Settings of the form by name.
    pub settings: BTreeMap<String, ParamValue>,
    /// Tool that trains; the one that the file's keys tell where absent.
    pub stack: Option<String>,
    /// Name of a device; no verdict and no speed without one.
    pub device: Option<String>,
    /// Devices that share the work.
    pub devices: Option<f64>,
    /// What devices share out.
    pub sharing: Option<String>,
    /// What is shared out lies in the host's memory.
    pub offload: bool,
    /// Rows have lengths of their own and are not packed.
    pub rows_differ: bool,
    /// Rows that are trained on.
    pub rows: Option<f64>,
    /// Epochs, in place of the length that the file says.
    pub epochs: Option<f64>,
    /// Steps, in place of the length that the file says.
    pub steps: Option<f64>,
    /// US dollars of a device's hour, in place of the listed price.
    pub usd_per_h: Option<f64>,
}

/// A file as its text.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct GivenFile {
    pub name: String,
    pub text: String,
}
