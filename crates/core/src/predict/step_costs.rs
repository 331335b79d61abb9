//! Costs of a step, part by part: what each computes, moves, launches and keeps, and its least seconds.

use std::fmt;

use serde::ser::SerializeStruct;
use serde::{Serialize, Serializer};

use super::clock::Clock;
use super::error::PredictError;
use super::expert_load::ExpertLoad;
use super::host_update::{HostQueues, HostUpdate};
use super::machine::Machine;
use super::memory_category::MemoryCategory;
use super::op::{Op, OpKind, Stage, Work};
use super::op_context::Context;
use super::prediction::Setting;
use super::predictor::{Predictor, step};
use super::roofline::Traffic;
use super::seconds::Seconds;
use super::segment::Segment;
use super::step::{SegmentTraces, StepTrace};
use super::step_ops::{OpsOfPart, StepOps, StepPart};
use super::stream::StreamShape;
use super::trace::Trace;
use crate::plan::{LayerKeep, Memory};

/// Costs of a step of one GPU, or of all devices of a host, part by part.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct StepCosts {
    /// Tokens of a step, of all trainings and devices.
    pub tokens: f64,
    /// Parts in the order in which they first run.
    pub parts: Vec<PartCosts>,
}

/// Costs of a part of a step.
#[derive(Clone, Debug, PartialEq)]
pub struct PartCosts {
    pub part: StepPart,
    /// Times that the part runs in a step.
    pub times: f64,
    /// Bytes that one time keeps for the backward pass; below zero where it lets go of some.
    pub kept_bytes: i64,
    /// Most bytes above those at its beginning.
    pub rise_bytes: u64,
    /// Kinds that it has ops of, all times together.
    pub kinds: Vec<KindCosts>,
}

/// Costs of the ops of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct KindCosts {
    pub kind: OpKind,
    pub ops: f64,
    pub flops: f64,
    /// Bytes read and written: operands and results once, and those of weights that are widened.
    pub bytes: f64,
    /// Kernels that a GPU is asked for; 0 on a host.
    pub launches: f64,
    /// Least seconds on the machine; 0 where its speed is not known.
    pub seconds: f64,
}

impl KindCosts {
    fn new(kind: OpKind) -> Self {
        Self {
            kind,
            ops: 0.0,
            flops: 0.0,
            bytes: 0.0,
            launches: 0.0,
            seconds: 0.0,
        }
    }

    /// The sum of `all`, which are of one kind, or are to be called one.
    pub fn sum<'a>(kind: OpKind, all: impl Iterator<Item = &'a Self>) -> Self {
        all.fold(Self::new(kind), |sum, one| Self {
            kind,
            ops: sum.ops + one.ops,
            flops: sum.flops + one.flops,
            bytes: sum.bytes + one.bytes,
            launches: sum.launches + one.launches,
            seconds: sum.seconds + one.seconds,
        })
    }
}

impl StepCosts {
    /// The kinds of all parts, in the order in which they are shown; those without ops are left out.
    pub fn kinds(&self) -> Vec<KindCosts> {
        let of_kind = |kind| {
            let all = self.parts.iter().flat_map(|part| &part.kinds);
            KindCosts::sum(kind, all.filter(move |one| one.kind == kind))
        };
        OpKind::all()
            .map(of_kind)
            .filter(|sum| sum.ops > 0.0 || sum.seconds > 0.0)
            .collect()
    }

    /// Least seconds of the step; 0 where the machine's speed is not known.
    pub fn seconds(&self) -> f64 {
        self.parts.iter().map(PartCosts::seconds).sum()
    }
}

impl PartCosts {
    /// Costs of a part that runs so many times, with the bytes of one time by its trace.
    fn new(
        part: StepPart,
        times: f64,
        kinds: Vec<KindCosts>,
        traces: &mut SegmentTraces<'_>,
    ) -> Result<Self, PredictError> {
        let trace = match part {
            StepPart::Segment(segment) => Some(traces.get(segment)?),
            StepPart::Begin | StepPart::Gather | StepPart::Sum | StepPart::HostUpdate => None,
        };
        Ok(Self {
            part,
            times,
            kept_bytes: trace.map_or(0, |trace| trace.change(MemoryCategory::SavedActivations)),
            rise_bytes: trace.map_or(0, Trace::rise),
            kinds,
        })
    }

    /// Least seconds of all times.
    pub fn seconds(&self) -> f64 {
        self.kinds.iter().map(|one| one.seconds).sum()
    }

    fn is_empty(&self) -> bool {
        self.kinds.is_empty() && self.kept_bytes == 0 && self.rise_bytes == 0
    }
}

impl Serialize for PartCosts {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let Self {
            part,
            times,
            kept_bytes,
            rise_bytes,
            kinds,
        } = self;
        let mut fields = serializer.serialize_struct("PartCosts", 6)?;
        fields.serialize_field("part", &part.to_string())?;
        fields.serialize_field("layer", &part.layer())?;
        fields.serialize_field("times", times)?;
        fields.serialize_field("kept_bytes", kept_bytes)?;
        fields.serialize_field("rise_bytes", rise_bytes)?;
        fields.serialize_field("kinds", kinds)?;
        fields.end()
    }
}

impl StepPart {
    /// The first of the layers that it stands for.
    pub fn layer(self) -> Option<usize> {
        match self {
            Self::Segment(
                Segment::Refresh { layer } | Segment::Forward { layer, .. } | Segment::Backward { layer, .. },
            ) => Some(layer),
            _ => None,
        }
    }
}

impl fmt::Display for StepPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let segment = match self {
            Self::Begin => return f.write_str("batch"),
            Self::Gather => return f.write_str("weights from other devices"),
            Self::Sum => return f.write_str("gradients of other devices"),
            Self::HostUpdate => return f.write_str("wait for updates on the host"),
            Self::Segment(segment) => segment,
        };
        match *segment {
            Segment::Refresh { layer } => write!(f, "layer {layer} before the pass"),
            Segment::Embed => f.write_str("embedding"),
            Segment::Forward { layer, keep } => {
                let kept = match keep {
                    LayerKeep::Nothing => ", nothing kept",
                    LayerKeep::Input => ", input kept",
                    LayerKeep::HostInput => ", input to the host",
                    LayerKeep::Saved => "",
                };
                write!(f, "layer {layer} forward{kept}")
            }
            Segment::Head => f.write_str("head"),
            Segment::Backward { layer, keep, wants_dx } => {
                let again = match keep {
                    LayerKeep::Input | LayerKeep::HostInput => " and forward again",
                    LayerKeep::Nothing | LayerKeep::Saved => "",
                };
                let dx = if wants_dx { "" } else { ", without dx" };
                write!(f, "layer {layer} backward{again}{dx}")
            }
            Segment::EmbedBackward => f.write_str("embedding backward"),
            Segment::Update => f.write_str("update"),
        }
    }
}

/// Ops of a whole step, and the seconds in which it does something else.
struct WholeStep {
    ops: StepOps,
    /// Micro-batches that run one after the other.
    micro_batches: f64,
    gather_s: f64,
    sum_s: f64,
    host_update_s: f64,
}

impl Predictor {
    /// Costs of a step of all `settings`, which train together, on their mean micro-batches: in the recipes' own precision,
    /// where a schedule has some steps in another.
    ///
    /// # Errors
    /// Errors of [`Predictor::predict_group`].
    pub fn step_costs(&self, settings: &[Setting<'_>]) -> Result<StepCosts, PredictError> {
        let Some(first) = settings.first() else {
            return Ok(StepCosts::default());
        };
        let networks = self.networks_of(settings)?;
        let model = self.model_of(settings, &networks)?;
        let streams: Vec<&StreamShape> = settings.iter().map(|one| &one.workload.mean).collect();
        let on_mean = step(model.as_ref(), &streams, ExpertLoad::Even)?;
        let mut traces = SegmentTraces::of(on_mean.as_ref());
        let trainings = settings.iter().zip(&networks).map(|(setting, network)| StepTrace {
            trainings: settings.len(),
            ..self.trace(network, setting.recipe, &setting.workload.mean)
        });
        let trainings: Vec<StepTrace<'_>> = trainings.collect();
        let stream = StreamShape::end_to_end(&streams);
        let whole = StepTrace {
            stream: &stream,
            ..trainings[0]
        };
        let context = self.context(&whole);
        let step = self.whole_step(&whole, &trainings, &mut traces)?;
        // Where one op was not measured, the step's time is not known.
        let clock = Clock::of(&self.machine, context).filter(|clock| clock.of_all(&step.ops.ops).is_some());
        let mut costs = StepCosts {
            tokens: stream.tokens() * first.recipe.batch.micro_batches() as f64,
            parts: Vec::new(),
        };
        for OpsOfPart { part, times, ops } in step.ops.parts() {
            let kinds = self.kinds(ops, clock.as_ref(), context);
            costs.parts.push(PartCosts::new(part, times, kinds, &mut traces)?);
        }
        costs.wait(StepPart::Gather, step.micro_batches, step.gather_s);
        costs.wait(StepPart::Sum, 1.0, step.sum_s);
        costs.wait(StepPart::HostUpdate, 1.0, step.host_update_s);
        costs.parts.retain(|part| !part.is_empty());
        Ok(costs)
    }

    /// Seconds of a step; zero where the machine's speed is not known, or not in the step's precision.
    pub(super) fn seconds(
        &self,
        trace: &StepTrace<'_>,
        traces: &mut SegmentTraces<'_>,
    ) -> Result<Seconds, PredictError> {
        let Some(clock) = Clock::of(&self.machine, self.context(trace)) else {
            return Ok(Seconds::default());
        };
        let step = self.whole_step(trace, std::slice::from_ref(trace), traces)?;
        let Some(mut seconds) = clock.of_all(&step.ops.ops) else {
            return Ok(Seconds::default());
        };
        seconds.passes += step.gather_s + step.sum_s + step.host_update_s;
        Ok(seconds)
    }

    fn context<'a>(&self, trace: &StepTrace<'a>) -> Context<'a> {
        Context {
            precision: trace.compute,
            is_sparse: !trace.recipe.weight_sparsity.is_none(),
            aware: trace.recipe.quantization_aware.row().precision,
            head_width: self.architecture().head_dim,
            stream: trace.stream,
        }
    }

    /// A step of `trainings`, whose passes are those of `whole`.
    fn whole_step(
        &self,
        whole: &StepTrace<'_>,
        trainings: &[StepTrace<'_>],
        traces: &mut SegmentTraces<'_>,
    ) -> Result<WholeStep, PredictError> {
        let mut ops = whole.passes_of(trainings, traces)?;
        let (mut update, mut queues) = (Vec::new(), HostQueues::new());
        for training in trainings {
            let mut own = training.update_ops();
            if let Machine::DataSheet(sheet) = &self.machine
                && training.is_updated_on_host()
            {
                // The device has only the norm.
                let moved = own.split_off(own.len().min(1));
                let backward_s = self.backward_s(whole, &ops.ops);
                queues.push(&HostUpdate {
                    network: training.network,
                    recipe: training.recipe,
                    rates: self.host,
                    link: sheet.host_link(),
                    flops: product_flops(&moved),
                    backward_s,
                });
            }
            update.extend(own);
        }
        let micro_batches = self.machine.micro_batches_in_turn(whole.recipe);
        if let Some(gathers) = whole.gathers() {
            ops.push(StepPart::Gather, 1.0, [gathers]);
        }
        ops.repeat(micro_batches);
        ops.push(StepPart::Segment(Segment::Update), 1.0, update);
        Ok(WholeStep {
            ops,
            micro_batches,
            gather_s: micro_batches * whole.gather_link_s(),
            sum_s: whole.sum_link_s(),
            host_update_s: queues.seconds(),
        })
    }

    /// Seconds of a micro-batch's backward pass, whose ops are among `passes`; 0 where the machine's speed is not known.
    fn backward_s(&self, whole: &StepTrace<'_>, passes: &[Op]) -> f64 {
        let of_backward = |op: &&Op| op.stage != Stage::Forward;
        let backward: Vec<Op> = passes.iter().filter(of_backward).cloned().collect();
        let clock = Clock::of(&self.machine, self.context(whole));
        let seconds = clock.and_then(|clock| clock.of_all(&backward));
        seconds.unwrap_or_default().total()
    }

    /// Costs of `ops` by kind.
    fn kinds(&self, ops: &[Op], clock: Option<&Clock<'_>>, context: Context<'_>) -> Vec<KindCosts> {
        let on_gpu = self.machine.host().memory() == Memory::Device;
        let of_op = |op: &Op| {
            let (times, traffic) = (op.times, Traffic::of(&op.work, context));
            KindCosts {
                kind: op.work.kind(),
                ops: times,
                flops: times * op.work.flops(context.stream).total(),
                bytes: times * (traffic.bytes + traffic.around),
                launches: match on_gpu {
                    true => times * traffic.kernels,
                    false => 0.0,
                },
                seconds: clock.and_then(|clock| clock.of_op(op)).unwrap_or(0.0),
            }
        };
        let all: Vec<KindCosts> = ops.iter().map(of_op).collect();
        let of_kind = |kind| KindCosts::sum(kind, all.iter().filter(move |one| one.kind == kind));
        OpKind::all().map(of_kind).filter(|sum| sum.ops > 0.0).collect()
    }
}

impl StepCosts {
    /// Adds the seconds of all times that a part waits; none where there are none.
    fn wait(&mut self, part: StepPart, times: f64, seconds: f64) {
        if seconds > 0.0 {
            self.parts.push(PartCosts {
                part,
                times,
                kept_bytes: 0,
                rise_bytes: 0,
                kinds: vec![KindCosts {
                    seconds,
                    ..KindCosts::new(OpKind::Passes)
                }],
            });
        }
    }
}

/// FLOPs of the products among `ops`.
fn product_flops(ops: &[Op]) -> f64 {
    let products = ops.iter().filter_map(|op| match &op.work {
        Work::Product(product) => Some(op.times * product.flops()),
        _ => None,
    });
    products.sum()
}
