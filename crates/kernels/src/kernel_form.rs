//! Which form of the ops runs: fused or plain candle.

use candle_core::{DType, Tensor};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// The form of the ops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[derive(strum::EnumString, strum::IntoStaticStr)]
#[strum(serialize_all = "snake_case")]
pub enum Kernels {
    /// Own loops and kernels where they exist for the device and dtype, plain candle ops elsewhere.
    #[default]
    Fused,
    /// Plain candle ops only: slower, and the way to tell whether a fault lies in a fused form.
    Reference,
    /// As `Fused`; on an NVIDIA GPU, passes whose shapes were met before, and updates, are replayed from CUDA graphs.
    Graphs,
}

impl Kernels {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        self.into()
    }

    /// Whether own loops and kernels run.
    pub fn are_own(self) -> bool {
        self != Self::Reference
    }

    /// The form with this name.
    pub fn from_name(name: &str) -> Option<Self> {
        name.parse().ok()
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
        _ => Kernels::Fused,
    }
}

/// Dtype in which the reference forms keep statistics and sums of `dtype` values: F64 stays, all else is widened to F32.
pub(super) fn wide(dtype: DType) -> DType {
    if dtype == DType::F64 { DType::F64 } else { DType::F32 }
}

/// `tensor` in the dtype of [`wide`].
pub(super) fn widen(tensor: &Tensor) -> candle_core::Result<Tensor> {
    tensor.to_dtype(wide(tensor.dtype()))
}
