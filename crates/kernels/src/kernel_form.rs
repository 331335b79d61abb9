//! Forms of the ops: own kernels, some of them or all, or plain candle.

use candle_core::{DType, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering::Relaxed};
use strum::IntoEnumIterator;

/// The form of the ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::EnumString, strum::IntoStaticStr, strum::EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum Kernels {
    /// Own loops and kernels where they exist for the device and dtype, plain candle ops elsewhere.
    #[default]
    Fused,
    /// Plain candle ops only: slower, and the way to tell whether a fault lies in a fused form.
    Reference,
    /// Own kernels, and CUDA graphs on an NVIDIA GPU: passes whose shapes were met before, and updates, are replayed
    /// from them.
    Graphs,
    /// Own kernels on an NVIDIA GPU, where attention never takes those that only Hopper has.
    Tiled,
    /// Own kernels on a GPU of the Hopper generation; refused where the GPU is of another.
    Hopper,
}

/// The kernels of attention on an NVIDIA GPU. The fastest is first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::EnumString, strum::IntoStaticStr, strum::EnumIter)]
#[strum(serialize_all = "snake_case")]
pub enum AttentionKernels {
    /// Tensor cores, four warps together.
    Hopper,
    /// Tensor cores, each warp by itself.
    Tiled,
    /// Kernels without tensor cores: F32, and sizes of heads that the others do not take.
    Plain,
}

impl AttentionKernels {
    /// Name for people.
    pub fn name(self) -> &'static str {
        self.into()
    }
}

impl Kernels {
    /// Name in results.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Name on the command line.
    pub fn flag(self) -> &'static str {
        match self {
            Self::Fused => "auto",
            other => other.name(),
        }
    }

    /// Whether own loops and kernels run.
    pub fn are_own(self) -> bool {
        self != Self::Reference
    }

    /// The form with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
    }

    /// The form that leaves out what a kernel's fault may lie in, where this one met it and attention ran in `attention`: first
    /// without Hopper's kernels and graphs, then without any kernels of our own.
    pub fn safer(self, attention: Option<AttentionKernels>) -> Option<Self> {
        match self {
            Self::Hopper | Self::Graphs => Some(Self::Tiled),
            Self::Fused if attention == Some(AttentionKernels::Hopper) => Some(Self::Tiled),
            Self::Fused | Self::Tiled => Some(Self::Reference),
            Self::Reference => None,
        }
    }
}

// Design note: a process-wide switch, set once from the command line. It changes no result beyond rounding, and passing
// it through every layer would put an argument for bisecting faults into every signature.
static FORM: AtomicU8 = AtomicU8::new(Kernels::Fused as u8);

/// Selects the form of the ops for the whole process.
pub fn set_kernels(kernels: Kernels) {
    FORM.store(kernels as u8, Relaxed);
}

/// The form that [`set_kernels`] selected.
pub fn kernels() -> Kernels {
    match FORM.load(Relaxed) {
        form if form == Kernels::Reference as u8 => Kernels::Reference,
        form if form == Kernels::Graphs as u8 => Kernels::Graphs,
        form if form == Kernels::Tiled as u8 => Kernels::Tiled,
        form if form == Kernels::Hopper as u8 => Kernels::Hopper,
        _ => Kernels::Fused,
    }
}

/// The kernels of attention that were launched, a bit for each.
static LAUNCHED: AtomicU8 = AtomicU8::new(0);

/// Notes that attention was launched in these kernels.
pub(crate) fn note_attention(kernels: AttentionKernels) {
    LAUNCHED.fetch_or(1 << kernels as u8, Relaxed);
}

/// The fastest kernels that attention was launched in since [`forget_launched`]; `None` where it did not run on a GPU, or in plain
/// tensor ops only.
pub fn attention_kernels() -> Option<AttentionKernels> {
    let launched = LAUNCHED.load(Relaxed);
    AttentionKernels::iter().find(|kernels| launched & (1 << *kernels as u8) != 0)
}

/// Runs something whose launches are no part of a training.
pub(crate) fn unnoted<T>(run: impl FnOnce() -> T) -> T {
    let launched = LAUNCHED.load(Relaxed);
    let result = run();
    LAUNCHED.store(launched, Relaxed);
    result
}

/// Whether adapters' products were parts of the weights'.
static LONGER_SUMS: AtomicBool = AtomicBool::new(false);

/// Notes that a weight's product took an adapter's along.
pub(crate) fn note_longer_sums() {
    LONGER_SUMS.store(true, Relaxed);
}

/// Whether products of quantized weights took those of adapters along since [`forget_launched`].
pub fn longer_sums() -> bool {
    LONGER_SUMS.load(Relaxed)
}

/// Forgets what attention was launched in and how sums were made: another training begins.
pub fn forget_launched() {
    LAUNCHED.store(0, Relaxed);
    LONGER_SUMS.store(false, Relaxed);
}

/// Dtype in which the reference forms keep statistics and sums of `dtype` values: F64 stays, all else is widened to F32.
pub(super) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// `tensor` in the dtype of [`wide`].
pub(super) fn widen(tensor: &Tensor) -> candle_core::Result<Tensor> {
    tensor.to_dtype(wide(tensor.dtype()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_lead_from_hoppers_kernels_to_tiled_ones_to_plain_ops() {
        let hopper = Some(AttentionKernels::Hopper);
        let tiled = Some(AttentionKernels::Tiled);
        assert_eq!(Kernels::Fused.safer(hopper), Some(Kernels::Tiled));
        assert_eq!(Kernels::Hopper.safer(hopper), Some(Kernels::Tiled));
        assert_eq!(Kernels::Graphs.safer(tiled), Some(Kernels::Tiled));
        assert_eq!(Kernels::Fused.safer(tiled), Some(Kernels::Reference));
        assert_eq!(Kernels::Fused.safer(None), Some(Kernels::Reference));
        assert_eq!(Kernels::Tiled.safer(tiled), Some(Kernels::Reference));
        assert_eq!(Kernels::Reference.safer(None), None);
    }

    #[test]
    fn every_form_has_its_name() {
        for kernels in Kernels::iter() {
            assert_eq!(Kernels::from_name(kernels.name()), Some(kernels));
        }
        assert_eq!(Kernels::from_name("fast"), None);
    }
}
