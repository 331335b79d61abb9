//! The rows of each expert, when they are sorted by expert.

use std::ops::Range;

use candle_core::Result;

use super::Tensor;
use peft_tune_core::predict::ExpertRows;
use peft_tune_kernels::ops::offsets;

/// The rows of each expert.
#[derive(Clone, Debug)]
pub(in crate::model) enum Offsets {
    Real(offsets::Offsets),
    Paper(PaperOffsets),
}

/// The rows of each expert on paper.
#[derive(Clone, Debug)]
pub(in crate::model) struct PaperOffsets {
    pub of_experts: ExpertRows,
    /// Table that tells a GPU's kernels where the rows are.
    pub(super) table: Option<Tensor>,
}

impl Offsets {
    /// First rows of the experts, as they are off paper.
    ///
    /// # Errors
    /// On paper there are none.
    pub(super) fn real(&self) -> Result<&offsets::Offsets> {
        match self {
            Self::Real(offsets) => Ok(offsets),
            Self::Paper(_) => candle_core::bail!("the rows of experts on paper have no places"),
        }
    }

    /// The rows of each expert. The host has to know them: one small copy from a GPU.
    pub(in crate::model) fn parts(&self) -> Result<Vec<Range<usize>>> {
        let offsets = self.real()?.host()?;
        Ok(offsets.windows(2).map(|pair| pair[0]..pair[1]).collect())
    }

    /// Experts that have rows; all that may have some, where the device alone knows.
    pub(super) fn used(&self) -> u64 {
        match self {
            Self::Real(offsets) => match offsets.on_host() {
                Some(offsets) => offsets.windows(2).filter(|pair| pair[0] < pair[1]).count() as u64,
                None => offsets.groups().min(offsets.rows()) as u64,
            },
            Self::Paper(paper) => paper.of_experts.experts.min(paper.of_experts.rows) as u64,
        }
    }

    /// Table that is kept with the rows on paper.
    pub(in crate::model) fn table(&self) -> Option<&Tensor> {
        match self {
            Self::Real(_) => None,
            Self::Paper(paper) => paper.table.as_ref(),
        }
    }
}
