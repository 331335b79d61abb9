//! The loss head of a step.

use super::super::memory_category::MemoryCategory;
use super::super::op::{Module, Pass, Right, Stage, Work};
use super::super::trace::Trace;
use super::super::tracer::StepTracer;
use super::StepTrace;
use crate::plan::products::Call;
use crate::plan::{HeadCall, Logits, Memory};

impl StepTrace<'_> {
    /// The last norm, the loss head and the last norm's backward: x in the scratch becomes dx.
    pub(super) fn head(&self, tracer: &StepTracer<'_>) -> Trace {
        let architecture = &self.network.plan.architecture;
        let hidden = architecture.hidden_size;
        let x = tracer.act(hidden);
        let mut trace = Trace::new(Stage::Forward);
        trace.hold(MemoryCategory::Scratch, x);
        trace.hold(MemoryCategory::SavedActivations, tracer.wide(1));
        trace.rename(MemoryCategory::Scratch, MemoryCategory::SavedActivations, x);
        tracer.norm_pass(&mut trace, Pass::NormForward, hidden);
        let scaled = |trace: &mut Trace| {
            if architecture.logit_scale.is_some() {
                trace.spike(MemoryCategory::Scratch, x);
                tracer.pass(trace, Module::Head, Pass::Copy, hidden);
            }
        };
        scaled(&mut trace);
        let targets = (tracer.stream.targets.round() as usize / self.sharers.trainings).max(1);
        let call = self.head_call(tracer, targets);
        let logits = call.logits();
        // A GPU has the head in the precision that it computes in.
        let weight = match self.host.memory() == Memory::Device && self.stored(call.head_trains) != tracer.c() {
            true => (call.vocabulary * hidden) as u64 * tracer.c(),
            false => 0,
        };
        trace.hold(MemoryCategory::Scratch, weight);
        trace.hold(MemoryCategory::Logits, logits.bytes);
        trace.hold(MemoryCategory::Scratch, x);
        let of_one = match self.sharers.trainings {
            1 => 0,
            // That of one training's rows, before it has its place.
            trainings => x / trainings as u64,
        };
        trace.hold(MemoryCategory::Scratch, of_one);
        trace.spike(MemoryCategory::Logits, logits.growing);
        self.head_products(tracer, &mut trace, (&call, &logits));
        trace.free(MemoryCategory::Logits, logits.bytes);
        trace.free(MemoryCategory::Scratch, weight);
        trace.free(MemoryCategory::Scratch, x + of_one);
        trace.stage = Stage::Backward;
        scaled(&mut trace);
        tracer.norm_weight(&mut trace, [tracer.tokens, hidden]);
        trace.hold(MemoryCategory::Scratch, x);
        trace.spike(MemoryCategory::Scratch, tracer.wide(1));
        tracer.norm_pass(&mut trace, Pass::NormBackward, hidden);
        trace.free(MemoryCategory::Scratch, x);
        trace.free(MemoryCategory::SavedActivations, x + tracer.wide(1));
        trace
    }

    fn head_call(&self, tracer: &StepTracer<'_>, targets: usize) -> HeadCall {
        let architecture = &self.network.plan.architecture;
        HeadCall {
            tokens: tracer.tokens / self.sharers.trainings,
            targets,
            hidden: architecture.hidden_size,
            vocabulary: architecture.vocabulary,
            element_bytes: tracer.c(),
            bf16: tracer.is_bf16(),
            head_trains: self.network.plan.head_trains,
            vectors: self.host.vectors,
            device_bytes: self.host.device_bytes,
        }
    }

    /// The products of all targets, block by block, with some of the vocabulary at a time.
    fn head_products(&self, tracer: &StepTracer<'_>, trace: &mut Trace, (call, logits): (&HeadCall, &Logits)) {
        let groups = call.vocabulary as f64 / logits.columns as f64;
        for (rows, blocks) in call.blocks(logits) {
            let first = trace.ops.len();
            self.block_products(tracer, trace, call.products(rows, logits.columns));
            trace.ops[first..]
                .iter_mut()
                .for_each(|op| op.times = blocks as f64 * groups);
        }
    }

    fn block_products(&self, tracer: &StepTracer<'_>, trace: &mut Trace, products: Vec<Call>) {
        trace.stage = Stage::Forward;
        for (place, call) in products.into_iter().enumerate() {
            let elements = call.rows as f64 * call.columns as f64;
            tracer.product(trace, Module::Head, Right::Dense, call);
            if place == 0 {
                trace.run(Work::Pass {
                    pass: Pass::CrossEntropy,
                    elements,
                });
                trace.stage = Stage::Backward;
            }
        }
    }
}
