//! [`Predicted`]: a setting as it runs on its model, what that needs, and which settings around it fit.

use super::frontier::frontier;
use super::words::weights_text;
use super::{AskedSetting, FrontierPoint, PlanError};
use peft_tune_core::predict::Scaling;
use peft_tune_core::predict::stack::{
    self, Lever, Limits, ModelShape, StackDevice, StackError, StackPrediction, StackSetting,
};

/// A setting on its model, and what that needs.
#[derive(Clone, Debug)]
pub struct Predicted {
    pub shape: ModelShape,
    pub setting: StackSetting,
    pub device: Option<StackDevice>,
    pub prediction: StackPrediction,
    pub notes: Vec<String>,
}

/// Settings around one, as far as they fit, and the setting itself on one device.
#[derive(Clone, Debug)]
pub struct Searched {
    /// Speed on several devices against that on one.
    pub scaling: Option<Scaling>,
    pub limits: Option<Limits>,
    pub frontier: Vec<FrontierPoint>,
    pub levers: Vec<Lever>,
}

impl Predicted {
    /// Predicts a setting on a model, on a device or without one.
    ///
    /// # Errors
    /// A setting that is out of range or that the tool cannot run.
    pub fn new(shape: ModelShape, asked: &AskedSetting, device: Option<StackDevice>) -> Result<Self, StackError> {
        let setting = asked.setting.on(&shape).as_run(&shape);
        let prediction = stack::predict(&shape, &setting, device)?;
        let mut notes = asked.notes.clone();
        notes.extend(layout_note(&shape));
        if let Some(stored) = &shape.stored {
            let (method, form) = (&stored.method, weights_text(stored.form));
            notes.push(format!(
                "the model's config.json says that its weights are quantized ({method}): they are counted as {form}"
            ));
        }
        if let Some(most) = shape.max_positions.filter(|most| setting.sequence_length > *most) {
            let length = setting.sequence_length;
            notes.push(format!(
                "rows of {length} tokens are longer than the {most} positions of the model"
            ));
        }
        Ok(Self {
            shape,
            setting,
            device,
            prediction,
            notes,
        })
    }

    /// The speed on the setting's devices against that on one; `None` without a device, and on one alone.
    ///
    /// # Errors
    /// Errors of [`stack::predict`].
    pub fn scaling(&self) -> Result<Option<Scaling>, StackError> {
        match self.device {
            Some(device) => stack::scaling(&self.shape, &self.setting, device),
            None => Ok(None),
        }
    }

    /// The largest setting that fits; `None` without a device. Some dozen predictions, as the next two are.
    ///
    /// # Errors
    /// Errors of [`stack::predict`].
    pub fn limits(&self) -> Result<Option<Limits>, StackError> {
        let limits = |device| stack::limits(&self.shape, &self.alike(), device);
        self.device.map(limits).transpose()
    }

    /// The largest micro-batch at lengths around that of the setting; nothing without a device.
    ///
    /// # Errors
    /// Errors of [`stack::predict`].
    pub fn frontier(&self) -> Result<Vec<FrontierPoint>, StackError> {
        match self.device {
            Some(device) => frontier(&self.shape, &self.alike(), device),
            None => Ok(Vec::new()),
        }
    }

    /// What each change of one thing would save.
    ///
    /// # Errors
    /// Errors of [`stack::predict`].
    pub fn levers(&self) -> Result<Vec<Lever>, StackError> {
        stack::levers(&self.shape, &self.alike(), self.device)
    }

    /// All of these, one after another.
    ///
    /// # Errors
    /// Errors of [`stack::predict`].
    pub fn searched(&self) -> Result<Searched, PlanError> {
        Ok(Searched {
            scaling: self.scaling()?,
            limits: self.limits()?,
            frontier: self.frontier()?,
            levers: self.levers()?,
        })
    }

    /// The setting for verdicts, which do not count cached blocks, and for levers, which are compared with each other.
    fn alike(&self) -> StackSetting {
        StackSetting {
            rows_differ: false,
            ..self.setting.clone()
        }
    }
}

/// What is to be said of a model whose layers are taken for those of a plain decoder.
fn layout_note(shape: &ModelShape) -> Option<String> {
    let kind = &shape.model_type;
    (!shape.is_known).then(|| match shape.counted {
        Some(_) => format!(
            "the layers of `{kind}` are not all alike: their weights are counted, all else is that of a plain decoder, and the \
             reserve is wider"
        ),
        None => format!("the layout `{kind}` is not known: that of a plain decoder is assumed, and the reserve is wider"),
    })
}
