//! The loss head of a step.

use super::super::memory_category::MemoryCategory;
use super::super::op::{Module, Pass, Right, Stage, Work};
use super::super::trace::Trace;
use super::super::tracer::StepTracer;
use super::StepTrace;
use crate::plan::products::Call;
use crate::plan::{Form, Memory, STREAMED_ROWS, chunk_tokens, chunk_tokens_on_gpu, even_chunks, streamed_columns};
use crate::recipe::Precision;

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
        let ([rows, columns], buffers, growing) = match self.host.memory() {
            Memory::Device => self.logits_on_gpu(tracer, targets),
            _ if self.network.plan.head_trains => self.logits_on_host(tracer, targets),
            _ => self.streamed_logits(tracer, targets),
        };
        trace.hold(MemoryCategory::Logits, buffers);
        trace.hold(MemoryCategory::Scratch, x);
        if self.sharers.trainings > 1 {
            // That of one training's rows, before it has its place.
            trace.spike(MemoryCategory::Scratch, x / self.sharers.trainings as u64);
        }
        trace.spike(MemoryCategory::Logits, growing);
        self.head_products(tracer, &mut trace, targets, [rows, columns]);
        trace.free(MemoryCategory::Logits, buffers);
        trace.free(MemoryCategory::Scratch, x);
        trace.stage = Stage::Backward;
        scaled(&mut trace);
        trace.hold(MemoryCategory::Scratch, x);
        trace.spike(MemoryCategory::Scratch, tracer.wide(1));
        tracer.norm_pass(&mut trace, Pass::NormBackward, hidden);
        trace.free(MemoryCategory::Scratch, x);
        trace.free(MemoryCategory::SavedActivations, x + tracer.wide(1));
        trace
    }

    /// (rows and columns of the logits that exist at a time, bytes of the buffers, bytes that are there for a moment).
    fn logits_on_host(&self, tracer: &StepTracer<'_>, targets: usize) -> ([usize; 2], u64, u64) {
        let architecture = &self.network.plan.architecture;
        let (vocabulary, row) = (architecture.vocabulary, architecture.hidden_size as u64 * tracer.c());
        let chunk = even_chunks(targets, chunk_tokens(vocabulary, true));
        let inputs = chunk.next_power_of_two() as u64 * row;
        let buffers = 4 * (targets.next_power_of_two() + chunk * vocabulary) as u64 + chunk as u64 * row + inputs;
        // The inputs' buffer doubles as the first chunk is gathered: for a moment its last two sizes exist.
        ([chunk, vocabulary], buffers, inputs / 2)
    }

    /// Likewise where the head is not trained: beside a group's logits there are inputs and F32 sums, and of each target its
    /// position, its token and the state of its row.
    fn streamed_logits(&self, tracer: &StepTracer<'_>, targets: usize) -> ([usize; 2], u64, u64) {
        let architecture = &self.network.plan.architecture;
        let (vocabulary, hidden) = (architecture.vocabulary, architecture.hidden_size);
        let rows = even_chunks(targets, STREAMED_ROWS);
        let columns = streamed_columns(rows, chunk_tokens(vocabulary, false), vocabulary);
        let of_rows = rows as u64 * (hidden as u64 * (4 + tracer.c()) + 8 + 24);
        let positions = 4 * targets.next_power_of_two() as u64;
        ([rows, columns], 4 * (rows * columns) as u64 + of_rows + positions, 0)
    }

    /// Likewise on a GPU, with the rows of a chunk twice where not every position is a target.
    fn logits_on_gpu(&self, tracer: &StepTracer<'_>, targets: usize) -> ([usize; 2], u64, u64) {
        let architecture = &self.network.plan.architecture;
        let (vocabulary, row) = (architecture.vocabulary, architecture.hidden_size as u64 * tracer.c());
        let chunk = chunk_tokens_on_gpu(vocabulary, self.host.device_bytes).min(targets);
        let gathered = if targets < tracer.tokens {
            2 * chunk as u64 * row
        } else {
            0
        };
        ([chunk, vocabulary], 4 * (chunk * vocabulary) as u64, gathered)
    }

    /// The products of all targets, in blocks of `most` and the rest, with `columns` of the vocabulary at a time.
    fn head_products(&self, tracer: &StepTracer<'_>, trace: &mut Trace, targets: usize, [most, columns]: [usize; 2]) {
        let groups = self.network.plan.architecture.vocabulary as f64 / columns as f64;
        for (rows, blocks) in [(most, targets / most), (targets % most, 1)] {
            if rows > 0 && blocks > 0 {
                let first = trace.ops.len();
                self.block_products(tracer, trace, rows, columns);
                trace.ops[first..]
                    .iter_mut()
                    .for_each(|op| op.times = blocks as f64 * groups);
            }
        }
    }

    fn block_products(&self, tracer: &StepTracer<'_>, trace: &mut Trace, rows: usize, columns: usize) {
        let hidden = self.network.plan.architecture.hidden_size;
        trace.stage = Stage::Forward;
        let product = |trace: &mut Trace, form, shape, left_bytes, f32_result| {
            let call = Call {
                left_bytes,
                f32_result,
                ..tracer.call(Right::Dense, form, shape)
            };
            tracer.product(trace, Module::Head, Right::Dense, call);
        };
        product(trace, Form::Nt, [rows, columns, hidden], tracer.c(), true);
        trace.run(Work::Pass {
            module: Module::Head,
            pass: Pass::CrossEntropy,
            elements: rows as f64 * columns as f64,
        });
        trace.stage = Stage::Backward;
        // Gradients of logits are F32, or pairs of BF16 in the same place.
        let is_pairs = tracer.c() == 2 && tracer.precision != Precision::Fp16 && columns.is_multiple_of(2);
        let left = if is_pairs && self.host.vectors.multiplies_pairs() {
            2
        } else {
            4
        };
        let is_streamed = self.host.memory() == Memory::Host && !self.network.plan.head_trains;
        let is_f32 = tracer.c() == 4 || is_streamed;
        product(trace, Form::Nn, [rows, hidden, columns], left, is_f32);
        if self.network.plan.head_trains {
            product(trace, Form::Tn, [columns, hidden, rows], left, true);
        }
    }
}
