//! Kernels and copies that an NVIDIA GPU ran, with their times by its own clock, from CUPTI.
//!
//! CUPTI comes with CUDA and with the wheel `nvidia-cuda-cupti`. It is loaded when a profile asks for it; where it is missing,
//! the profile has no kernels and says why.

mod activity;
mod cupti;
mod record;
mod timeline;

pub use activity::{Activity, ActivityKind, FunctionCalls};
pub use cupti::{Collector, CuptiError};
pub(in crate::profile) use timeline::GpuRanges;
pub use timeline::{DriverCalls, GpuTimeline, KernelTime};
