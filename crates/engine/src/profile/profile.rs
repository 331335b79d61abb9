//! A profile: what one setting's steps did, where their time went and what held their memory. Plain values.

use serde::{Deserialize, Serialize};

use super::ceiling::CeilingSource;
use super::kernels::GpuTimeline;
use super::sample::{DeviceSample, EnergyUse};
use crate::span::StepPhase;

/// One setting, measured in depth.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    pub setting: Setting,
    pub data: DataFacts,
    pub steps: StepFacts,
    /// Phases in their order, idle time last.
    pub phases: Vec<PhaseTime>,
    /// Modules by path, in the order in which they run.
    pub modules: Vec<ModuleTime>,
    /// Ops, the longest first.
    pub ops: Vec<OpTime>,
    pub memory: MemoryFacts,
    /// Cost of the adapters; `None` where what times the ops does not tell which are theirs.
    #[serde(default)]
    pub adapter: Option<AdapterCost>,
    pub arithmetic: Arithmetic,
    pub evaluation: Option<EvaluationCost>,
    pub samples: Vec<DeviceSample>,
    pub energy: Option<EnergyUse>,
    /// Timeline of an NVIDIA GPU, where CUPTI tells it.
    #[serde(default)]
    pub gpu: Option<GpuTimeline>,
    /// File that the profile was read from; `None` where steps were run for it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub trace: Option<TraceFile>,
}

/// File of PyTorch's profiler that a profile was read from.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TraceFile {
    pub path: String,
    /// Facts that it does not tell, and what its numbers are of.
    pub notes: Vec<String>,
}

/// Setting that was profiled: the facts that tables, comparison and diagnosis name.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    pub model: String,
    pub base_parameters: u64,
    pub trained_parameters: u64,
    /// `cpu`, or the GPU's name.
    pub device: String,
    pub threads: usize,
    /// Logical cores of the machine.
    pub cores: usize,
    pub precision: String,
    /// Number type of the activations.
    pub compute_dtype: String,
    /// Rank of the adapter; absent in full fine-tuning.
    pub rank: Option<usize>,
    pub dropout: f64,
    pub optimizer: String,
    pub checkpointing: String,
    pub micro_batch: usize,
    pub gradient_accumulation: usize,
    pub sequence_length: usize,
    pub packing: bool,
    /// Steps of which one is logged; 0 where none was.
    #[serde(default)]
    pub log_every: u64,
    /// Form of the ops, as `--kernels` has it; `fused` is `auto`.
    #[serde(default)]
    pub kernels: String,
    /// Fastest kernels that attention ran in on a GPU.
    #[serde(default)]
    pub attention: Option<String>,
    /// Whether products of quantized weights took those of adapters along, on a GPU.
    #[serde(default)]
    pub longer_sums: bool,
    /// Device memory that may be used, in bytes.
    pub memory_limit_bytes: Option<u64>,
    /// Packages that trained, with their versions; `None` for the built-in engine.
    #[serde(default)]
    pub stack: Option<String>,
}

/// The rows that a step is made of.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataFacts {
    pub rows: u64,
    pub mean_tokens_per_row: f64,
    pub mean_documents_per_row: f64,
    /// Tokens of the largest micro-batch that the data can make.
    pub largest_micro_batch_tokens: u64,
    /// Share of tokens that count in the loss.
    pub target_share: f64,
    /// Steps of the whole training, and evaluations in it.
    pub training_steps: u64,
    pub training_evaluations: u64,
    /// Waits for data; absent in profiles that are older than it.
    #[serde(default)]
    pub waits: Option<DataWaits>,
}

/// Who waited for whom, the model or its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DataWaits {
    /// Steps that may be ready ahead.
    pub prefetch_depth: usize,
    /// Mean seconds in which a step's rows are read and laid end to end.
    pub preparing_s: f64,
    /// Part of the measured steps in which the model waited for its data, in [0, 1].
    pub compute_waits: f64,
    /// Part in which the data waited for the model: as many steps were ready as may be.
    pub data_waits: f64,
    /// What the thread that prepares rows did meanwhile; absent where nobody tells it.
    #[serde(default)]
    pub thread: Option<PreparingThread>,
}

/// Work of the thread that prepares rows. Means of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PreparingThread {
    /// Seconds of processors.
    pub processor_s: f64,
    /// Bytes that a disk had to read for it: what lay in the page cache is not among them.
    pub read_bytes: f64,
}

/// The measured steps.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StepFacts {
    pub warmup_steps: u64,
    pub measured_steps: u64,
    /// Median tokens per second, padding not counted.
    pub tokens_per_s: f64,
    /// Relative half width of the median's 95% confidence interval.
    pub interval: f64,
    /// Relative spread of single steps.
    pub spread: f64,
    /// Median seconds of a step.
    pub step_s: f64,
    pub tokens_per_step: f64,
    /// Whether the interval became as small as was asked for before the time was spent.
    pub settled: bool,
    /// (seconds, tokens) of each measured step.
    pub each: Vec<(f64, u64)>,
    /// The steps that spans were taken from, where they are others: on a GPU.
    #[serde(default)]
    pub spanned: Option<SpannedSteps>,
}

/// Steps that ran for their spans alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpannedSteps {
    pub steps: u64,
    /// Median seconds of one.
    pub step_s: f64,
    /// Time of a token in them over that in steps that ran freely.
    pub slowdown: f64,
    /// Profiles that do not say it were taken with waits.
    #[serde(default)]
    pub timed_by: SpanTiming,
}

/// How the spans of a GPU were timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpanTiming {
    /// Waiting of each span for the GPU: ops ran one at a time.
    #[default]
    Waits,
    /// Events in the GPU's own queue, while steps ran as they do where nobody records.
    Events,
    /// PyTorch's profiler, which took ops alone: phases are of the steps that ran freely.
    Profiler,
}

impl StepFacts {
    /// Seconds of a step that phases, modules and ops are parts of.
    pub fn span_step_s(&self) -> f64 {
        self.spanned.map_or(self.step_s, |spanned| spanned.step_s)
    }

    /// Time of a token in steps that phases are of over that in free ones; 1 where they are the same steps.
    fn slowdown(&self) -> f64 {
        let spanned = self.spanned.filter(|spanned| spanned.timed_by != SpanTiming::Profiler);
        spanned.map_or(1.0, |spanned| spanned.slowdown)
    }
}

/// One phase of the measured steps.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Name of the phase; `idle` is what no phase holds.
    pub phase: String,
    /// Median seconds in a step.
    pub seconds: f64,
    /// Relative half width of the median's 95% confidence interval.
    pub interval: f64,
    /// Part of the step's time, in [0, 1].
    pub share: f64,
    /// Mean seconds in a step that ops took: on a GPU those of the device's clock. The rest is what the host does
    /// between them.
    pub op_seconds: f64,
    /// Whether it is a part of another phase (`recompute` of `backward`), and so no part of the sum.
    pub nested: bool,
}

/// A module of the model, summed over its calls. Means of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ModuleTime {
    /// Names from the outside in: `["layer 3", "attention", "qkv"]`.
    pub path: Vec<String>,
    pub calls: f64,
    /// Seconds in it, with those of the modules inside it.
    pub seconds: f64,
    /// Seconds in the forward pass, of all in the module; the rest is backward.
    pub forward_seconds: f64,
    /// FLOPs and bytes of its ops.
    pub flops: f64,
    pub bytes: f64,
    /// Seconds that its adapters took, as far as they can be told apart.
    pub adapter_seconds: f64,
}

/// An op, summed over the calls of one shape in one phase. Means of a step.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct OpTime {
    pub name: String,
    pub phase: String,
    /// Dimensions of the op; `T` counts tokens.
    pub shape: String,
    /// Storage of its largest operand.
    pub storage: String,
    pub calls: f64,
    pub seconds: f64,
    /// Part of the step's time, in [0, 1].
    pub share: f64,
    pub flops: f64,
    pub recomputed_flops: f64,
    pub adapter_flops: f64,
    pub bytes: f64,
    /// Seconds that the machine's ceilings allow, over the seconds taken; where the ceilings are known.
    pub roofline_share: Option<f64>,
}

impl OpTime {
    /// 10^9 FLOPs per second.
    pub fn gflop_per_s(&self) -> f64 {
        rate(self.flops, self.seconds)
    }

    /// 10^9 bytes per second.
    pub fn gb_per_s(&self) -> f64 {
        rate(self.bytes, self.seconds)
    }
}

fn rate(amount: f64, seconds: f64) -> f64 {
    if seconds > 0.0 { amount / seconds / 1e9 } else { 0.0 }
}

/// Memory of a step, at its peak and over time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemoryFacts {
    /// Highest bytes in use in a step, the process's own (`program`) left out.
    pub peak_bytes: u64,
    /// Mean bytes in use over the step with that peak, the process's own left out; `None` where single moments are not known.
    #[serde(default)]
    pub mean_bytes: Option<u64>,
    /// Spans that ran at the peak, from the outside in.
    pub peak_at: Vec<String>,
    /// Parts of the peak; they sum up to it.
    pub parts: Vec<MemoryPart>,
    /// Bytes that the process held beside the engine.
    pub program_bytes: u64,
    /// One step: moments with the bytes in use and those kept for the backward pass.
    pub timeline: Vec<MemoryPoint>,
}

/// One part of the peak.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryPart {
    /// `base`, `adapters`, `gradients`, `optimizer`, `activations` or `scratch`.
    pub part: String,
    pub bytes: u64,
}

/// Memory at one moment of a step.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct MemoryPoint {
    /// Seconds since the step began.
    pub at_s: f64,
    pub in_use_bytes: u64,
    /// Bytes that are kept for the backward pass.
    pub kept_bytes: u64,
}

/// Cost of the adapters by themselves. Means of a step.
///
/// An adapter's product that runs in one pass with its base layer's takes a part of that pass's time: that of its FLOPs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AdapterCost {
    pub seconds: f64,
    /// Seconds in ops that run for adapters alone, of all that adapters take.
    pub alone_seconds: f64,
    /// Part of the step's time.
    pub share: f64,
    pub flops: f64,
    /// Part of the step's FLOPs.
    pub flops_share: f64,
}

/// FLOPs of a step and what part of the machine's peak they use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Arithmetic {
    /// FLOPs of a step that the training needs: nothing that was computed before. `None` where that is not told apart.
    #[serde(default)]
    pub model_flops: Option<f64>,
    /// All FLOPs of a step.
    pub hardware_flops: f64,
    /// Peak FLOP/s of the device at the compute dtype, where it is known.
    pub peak_flops_per_s: Option<f64>,
    /// Source of the peak FLOP/s.
    #[serde(default)]
    pub peak_from: Option<CeilingSource>,
    /// Model FLOPs per second over the peak.
    pub mfu: Option<f64>,
    /// Hardware FLOPs per second over the peak.
    pub hfu: Option<f64>,
}

/// Cost of evaluating.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct EvaluationCost {
    /// Held-out rows that one evaluation of the training takes.
    pub rows: u64,
    /// Seconds of one, scaled up from the rows that were evaluated.
    pub seconds: f64,
    /// Evaluations' part of the whole training's time.
    pub share: f64,
}

impl Profile {
    /// Part of the step that a phase takes; 0 where it has none. What the host does by itself takes as long in a step that runs
    /// freely, and is a larger part of it.
    pub fn phase_share(&self, phase: StepPhase) -> f64 {
        let share = self.phase(phase.name()).map_or(0.0, |phase| phase.share);
        match phase {
            StepPhase::Data | StepPhase::HostToDevice | StepPhase::Logging => (share * self.steps.slowdown()).min(1.0),
            _ => share,
        }
    }

    /// The phase of this name.
    pub fn phase(&self, name: &str) -> Option<&PhaseTime> {
        self.phases.iter().find(|phase| phase.phase == name)
    }

    /// Bytes of a part of the peak.
    pub fn part_bytes(&self, part: &str) -> u64 {
        let found = self.memory.parts.iter().find(|entry| entry.part == part);
        found.map_or(0, |entry| entry.bytes)
    }

    /// Joules for a trained token, where the machine tells its energy.
    pub fn joules_per_token(&self) -> Option<f64> {
        let energy = self.energy?;
        (energy.tokens > 0).then(|| energy.joules / energy.tokens as f64)
    }
}
