//! Measuring a training: memory, steady state, throughput, and one setting in depth: phases, modules, ops, trace,
//! diagnosis.

mod aggregate;
mod ceiling;
pub mod ceilings;
mod comparison;
mod data_facts;
mod device_memory;
pub mod diagnosis;
pub mod disturbance;
#[cfg(any(test, feature = "fixtures"))]
pub mod fixtures;
mod gpu_watch;
mod inference;
mod kernels;
mod libraries;
mod measure;
mod memory;
#[expect(clippy::module_inception, reason = "the noun of the folder is its main value")]
mod profile;
mod profile_error;
mod profile_inputs;
mod reference;
mod requests;
mod resident;
pub mod sample;
mod session;
mod setting_facts;
mod steady;
mod tensorboard;
mod torch_trace;
mod trace;
mod variant_name;
mod write_error;

pub use ceiling::{Ceiling, CeilingSource};
pub use comparison::{ChangedSetting, Comparison, Difference};
pub use device_memory::DeviceMemory;
pub use inference::{InferenceLoad, InferencePoint, Latency, measure_inference};
pub use kernels::{Activity, ActivityKind, Collector, CuptiError, DriverCalls, FunctionCalls, GpuTimeline, KernelTime};
pub use libraries::LibraryFolders;
pub use measure::{Measured, profile};
pub use memory::{CountingAllocator, HostMemory, OUT_OF_MEMORY_EXIT};
pub use profile::{
    AdapterCost, Arithmetic, DataFacts, DataWaits, EvaluationCost, MemoryFacts, MemoryPart, MemoryPoint, ModuleTime,
    OpTime, PhaseTime, PreparingThread, Profile, Setting, SpanTiming, SpannedSteps, StepFacts, TraceFile,
};
pub use profile_error::ProfileError;
pub use profile_inputs::{ProfileInputs, ProfileSettings, StepLog};
pub use reference::Reference;
pub use requests::{RequestLoad, RequestPoint, measure_requests};
pub use resident::{field_bytes, own_status_bytes, peak_resident_bytes, reset_peak_resident, resident_bytes};
pub use sample::DeviceSample;
pub use steady::{Median, Throughput, WarmupDetector};
pub use tensorboard::{BrokenRecord, EventReader, HparamValue, ScalarEvent, TensorBoard, TrialLog, TrialStart};
pub use torch_trace::{TraceError, read_torch_trace};
pub use trace::Trace;
pub use write_error::WriteError;

pub use peft_tune_core::median;
