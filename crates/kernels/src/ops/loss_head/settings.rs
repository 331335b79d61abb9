//! Settings and results of the loss head.

use super::super::shape;
use candle_core::{Result, Tensor};

/// Target of a position that does not count in the loss (as in PyTorch and transformers).
pub const IGNORE: i64 = -100;

/// Constants of the loss head.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Bound c of the logits, which become c tanh(z / c); `None` for no bound.
    pub soft_cap: Option<f64>,
    /// Target positions whose logits exist at once; at least 1.
    pub chunk_tokens: usize,
    /// Factor on the gradient of the loss sum, usually 1 / target tokens of the global batch; `None` for evaluation only.
    pub gradient_scale: Option<f32>,
}

/// Targets that every position must predict.
#[derive(Clone, Copy, Debug)]
pub struct Targets<'a> {
    /// (T,): a token, or [`IGNORE`].
    pub values: &'a [i64],
    /// Targets in a GPU's memory, where present.
    pub placed: Option<&'a PlacedTargets>,
}

impl<'a, V: AsRef<[i64]> + ?Sized> From<&'a V> for Targets<'a> {
    fn from(values: &'a V) -> Self {
        Self {
            values: values.as_ref(),
            placed: None,
        }
    }
}

/// Targets in the memory of a GPU, and room for what is found of them. Kernels read all of it from there, so that the same
/// launches serve any other targets of the same number.
#[derive(Clone, Debug)]
pub struct PlacedTargets {
    /// (n,) U32: positions that have a target, ascending.
    pub rows: Tensor,
    /// (n,) U32: their targets.
    pub ids: Tensor,
    /// (1,): the bits of [`Settings::gradient_scale`] as F32; not read where there is none.
    pub scale: Tensor,
    /// (n,) F32 and U32, which the loss head writes.
    pub losses: Tensor,
    pub correct: Tensor,
}

/// Loss of one micro-batch.
#[derive(Clone, Debug)]
pub struct Output {
    pub sums: Sums,
    /// Positions with a target.
    pub target_tokens: u64,
    /// (T, H) in the dtype of the hidden states, zero where there is no target; `None` without a gradient scale.
    pub d_hidden: Option<Tensor>,
}

/// Loss and hits of a micro-batch. On a GPU they stay there until they are read, so that the host keeps giving it work.
#[derive(Clone, Debug)]
pub enum Sums {
    Known {
        /// Sum of the cross-entropy over the targets, in nats.
        loss: f64,
        /// Targets that are the most likely token.
        correct: u64,
        /// Cross-entropy of each target in nats, in the order of their positions; empty where a gradient was asked for.
        each: Vec<f64>,
    },
    /// Loss and hit of each target: (targets,) F32 and U32.
    OnDevice { losses: Tensor, correct: Tensor },
}

impl Sums {
    /// Sums over no targets.
    pub const NONE: Self = Self::Known {
        loss: 0.0,
        correct: 0,
        each: Vec::new(),
    };

    /// (Sum of the cross-entropy over the targets in nats, targets that are the most likely token); waits for the device.
    pub fn read(&self) -> Result<(f64, u64)> {
        match self {
            Self::Known { loss, correct, .. } => Ok((*loss, *correct)),
            Self::OnDevice { losses, correct } => {
                let (losses, correct): (Vec<f32>, Vec<u32>) = (losses.to_vec1()?, correct.to_vec1()?);
                let loss = losses.into_iter().map(f64::from).sum();
                Ok((loss, correct.into_iter().map(u64::from).sum()))
            }
        }
    }

    /// Cross-entropy of each target in nats, in the order of their positions; waits for the device. Of a pass with a gradient a CPU
    /// keeps none.
    pub fn of_targets(&self) -> Result<Vec<f64>> {
        match self {
            Self::Known { each, .. } => Ok(each.clone()),
            Self::OnDevice { losses, .. } => Ok(losses.to_vec1::<f32>()?.into_iter().map(f64::from).collect()),
        }
    }
}

/// Fails unless the shapes agree and every target is a token of the vocabulary or ignored.
pub(super) fn check(hidden: &Tensor, weight: &Tensor, targets: &[i64]) -> Result<()> {
    let (_, width) = hidden.dims2()?;
    let (vocabulary, _) = weight.dims2()?;
    shape::expect(weight, &[vocabulary, width], "loss_head: weight")?;
    shape::expect(hidden, &[targets.len(), width], "loss_head: hidden")?;
    let known = |target: i64| target == IGNORE || usize::try_from(target).is_ok_and(|index| index < vocabulary);
    if let Some(position) = targets.iter().position(|target| !known(*target)) {
        let target = targets[position];
        candle_core::bail!(
            "loss_head: target {target} at position {position} is outside the vocabulary of {vocabulary}"
        );
    }
    Ok(())
}

/// Positions that have a target.
pub fn target_positions(targets: &[i64]) -> Vec<u32> {
    let positions = targets.iter().enumerate().filter(|(_, target)| **target != IGNORE);
    positions.map(|(position, _)| position as u32).collect()
}
