//! The machine that a prediction is for.

use super::ceilings::Ceilings;
use super::correction::Correction;
use super::data_sheet::DataSheet;
use super::host::Host;
use super::link::Link;
use super::stack::HOST;
use crate::plan::Memory;
use crate::recipe::Recipe;

/// The machine that a prediction is for.
#[derive(Clone, Debug)]
pub enum Machine {
    /// Machine whose ceilings were measured.
    Measured(Box<Ceilings>),
    /// Machine that is known from its data sheet only.
    DataSheet(&'static DataSheet),
    /// Machine whose memory alone is asked about.
    Unmeasured(Host),
}

impl Machine {
    /// Host, as far as memory depends on it.
    pub fn host(&self) -> Host {
        match self {
            Self::Measured(ceilings) => ceilings.host,
            Self::DataSheet(sheet) => Host::gpu(sheet.memory_bytes),
            Self::Unmeasured(host) => *host,
        }
    }

    /// Link between several such devices: for processes on the sheet of a host its memory. `None` where nothing is known of it, as on a
    /// machine that was measured.
    pub fn link(&self) -> Option<Link> {
        match self {
            Self::DataSheet(sheet) => Some(sheet.link()),
            Self::Measured(_) | Self::Unmeasured(_) => None,
        }
    }

    /// Whether several devices of it are processes that divide one processor.
    pub(super) fn is_divided(&self) -> bool {
        match self {
            Self::DataSheet(sheet) => sheet.name == HOST,
            Self::Measured(_) | Self::Unmeasured(_) => self.host().memory() == Memory::Host,
        }
    }

    /// Micro-batches of a step of `recipe` that run one after the other: devices work side by side, except those that divide a processor.
    pub(super) fn micro_batches_in_turn(&self, recipe: &Recipe) -> f64 {
        let batch = &recipe.batch;
        let count = match self.is_divided() {
            true => batch.micro_batches(),
            false => batch.gradient_accumulation,
        };
        count as f64
    }

    /// Correction that is believed before any trial.
    pub fn correction(&self) -> Correction {
        match self.host().memory() {
            // The ops of a GPU take scratch of their own, and data sheets say little of what is reached.
            Memory::Device => Correction::new(0.4, 0.1),
            Memory::Host => Correction::new(0.12, 0.01),
        }
    }

    /// Share by which predicted memory may miss the truth: beyond it a setting is certain not to fit.
    pub fn memory_margin(&self) -> f64 {
        match self.host().memory() {
            Memory::Device => 0.25,
            Memory::Host => 0.05,
        }
    }
}
