//! [`StackPlan`]: a plan for a tool, before it is text or JSON.

use serde::Serialize;
use serde_json::{Map, Value, json};

use super::words::setting_text;
use super::{AskedSetting, FrontierPoint, PlanError, Predicted, Searched};
use peft_tune_core::predict::Scaling;
use peft_tune_core::predict::stack::{Lever, Limits, StackDevice, StackPrediction};

/// Plan for a stack, with all that it says.
#[derive(Debug)]
pub struct StackPlan {
    pub stack: &'static str,
    pub model: String,
    pub parameters: u64,
    /// The setting in words, for people; scripts read `setting`.
    pub setting_text: String,
    pub setting: Value,
    pub device: Option<StackDevice>,
    pub prediction: StackPrediction,
    /// Speed on several devices against that on one.
    pub scaling: Option<Scaling>,
    pub limits: Option<Limits>,
    pub frontier: Vec<FrontierPoint>,
    pub levers: Vec<Lever>,
    pub assumed: Assumed,
    pub notes: Vec<String>,
}

/// Grounds of a verdict that its input need not say, in words.
#[derive(Debug, Serialize)]
pub struct Assumed {
    /// The tool that trains, and what told it.
    pub tool: String,
    /// Tokens of a row, and how far rows are filled.
    pub rows: String,
    /// The devices, and who named them.
    pub device: String,
}

impl Assumed {
    /// Devices of a plan: one kind and their number, which `--devices` says where it is said.
    pub fn devices(device: Option<StackDevice>, count: u64, is_said: bool) -> String {
        let Some(device) = device else {
            return "none, and so no verdict and no speed: --device names one".to_owned();
        };
        let name = device.sheet.name;
        match (count, is_said) {
            (1, false) => format!("one {name}; --devices says how many"),
            (count, _) => format!("{count} x {name}"),
        }
    }
}

impl StackPlan {
    /// The plan of a setting that was predicted and searched around, for a model of that name.
    ///
    /// # Errors
    /// A setting that no JSON can hold.
    pub fn new(
        model: String,
        asked: AskedSetting,
        predicted: Predicted,
        searched: Searched,
    ) -> Result<Self, PlanError> {
        let Predicted {
            shape,
            setting,
            device,
            prediction,
            notes,
        } = predicted;
        let Searched {
            scaling,
            limits,
            frontier,
            levers,
        } = searched;
        Ok(Self {
            stack: setting.stack.name,
            model,
            parameters: shape.parameters(),
            setting_text: setting_text(&setting),
            setting: serde_json::to_value(&setting).map_err(PlanError::Written)?,
            scaling,
            limits,
            frontier,
            levers,
            assumed: Assumed {
                tool: asked.tool,
                rows: asked.rows,
                device: Assumed::devices(device, setting.devices, asked.counts_devices),
            },
            device,
            prediction,
            notes,
        })
    }

    /// The plan for scripts, with raw numbers; `data` says what is known of the rows.
    pub fn to_json(&self, data: Value) -> Value {
        let components: Map<_, _> = self
            .prediction
            .memory
            .components
            .iter()
            .map(|(name, size)| ((*name).to_owned(), json!(size)))
            .collect();
        json!({
            "stack": self.stack,
            "model": self.model,
            "parameters": self.parameters,
            "setting": self.setting,
            "device": self.device.map(|device| device.sheet.name),
            "verdict": self.prediction.verdict,
            "peak_tensors_bytes": self.prediction.memory.tensors_bytes,
            "peak_reserved_bytes": self.prediction.memory.reserved_bytes,
            "peak_process_bytes": self.prediction.process_bytes,
            "phases": self.prediction.memory.phases,
            "components": components,
            "step_s": self.prediction.step_s(),
            "tokens_per_s": self.prediction.tokens_per_s,
            "scaling": self.scaling,
            "limits": self.limits,
            "frontier": self.frontier,
            "levers": self.levers,
            "data": data,
            "assumed": self.assumed,
            "notes": self.notes,
        })
    }
}
