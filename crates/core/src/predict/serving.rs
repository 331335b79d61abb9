//! Seconds of a token that a served model answers with: a forward pass of one token of each sequence, whose attention reads the keys and
//! values of all tokens before it.
//!
//! The ops are those of a step's forward pass, on a stream of so many tokens that attend to so many others in the mean. An adapter that
//! is folded in takes none of them, and several adapters take the thin products of all of them together, as [`ServeMode`] says.

use super::clock::Clock;
use super::error::PredictError;
use super::expert_load::ExpertLoad;
use super::machine::Machine;
use super::op::{Module, Op, Pass, Product, Right, Work};
use super::op_context::Context;
use super::prediction::Setting;
use super::predictor::{Predictor, step};
use super::roofline::BANDWIDTH_REACHED;
use super::segment::Segment;
use super::step::SegmentTraces;
use super::stream::{Documents, StreamShape, Workload};
use crate::plan::{Form, LayerKeep, alike_layers, first_like};
use crate::recipe::Recipe;
use crate::study::{ServeMode, ServePlan};

impl Predictor {
    /// Seconds from one token of every sequence to the next; `None` where the machine's speed is not known, or where the model has no
    /// room for the load.
    ///
    /// # Errors
    /// A recipe that does not fit the model.
    pub(super) fn serve_s(&self, recipe: &Recipe, plan: &ServePlan) -> Result<Option<f64>, PredictError> {
        let positions = self.architecture().max_positions;
        let (context, batch) = (plan.context_in(positions), plan.batch.max(1));
        if context + plan.new_tokens > positions {
            return Ok(None);
        }
        let served = counted(recipe, plan.mode);
        let workload = Workload::full(batch, 1);
        let setting = Setting {
            recipe: &served,
            workload: &workload,
        };
        let networks = self.networks_of(&[setting])?;
        let model = self.model_of(&[setting], &networks)?;
        // Tokens of a document attend to half of it in the mean.
        let tokens = 2 * context;
        let stream = StreamShape {
            documents: vec![Documents {
                tokens,
                count: batch as f64 / tokens as f64,
            }],
            targets: batch as f64,
        };
        let on_tokens = step(model.as_ref(), &[&stream], ExpertLoad::Even)?;
        let mut traces = SegmentTraces::of(on_tokens.as_ref());
        let layers = alike_layers(&[&networks[0].plan]);
        let forward = (0..layers.len()).map(|index| Segment::Forward {
            layer: first_like(&layers, index),
            keep: LayerKeep::Nothing,
        });
        let segments = std::iter::once(Segment::Embed).chain(forward);
        let mut ops: Vec<Op> = Vec::new();
        for segment in segments.chain([Segment::Head]) {
            let of_segment = traces.get(segment)?.ops.iter();
            ops.extend(of_segment.filter_map(|op| served_op(op, plan.mode, segment == Segment::Head)));
        }
        let context_of_ops = Context {
            precision: served.precision,
            is_sparse: !served.weight_sparsity.is_none(),
            aware: served.quantization_aware.row().precision,
            head_width: self.architecture().head_dim,
            stream: &stream,
        };
        let Some((clock, bandwidth)) = Clock::of(&self.machine, context_of_ops).zip(self.bandwidth()) else {
            return Ok(None);
        };
        let element = served.precision.compute_bytes() as f64;
        let mut seconds = 0.0;
        for op in &ops {
            let Some(own) = clock.of_op(op) else {
                return Ok(None);
            };
            let cached = op.times * element * batch as f64 * cached_values(&op.work, context);
            seconds += own.max(cached / bandwidth);
        }
        Ok(Some(seconds))
    }

    /// Bytes a second that reading large memory reaches; `None` where the machine's speed is not known.
    fn bandwidth(&self) -> Option<f64> {
        match &self.machine {
            Machine::Measured(ceilings) => Some(ceilings.memory_bytes_per_s),
            Machine::DataSheet(sheet) => Some(BANDWIDTH_REACHED * sheet.bandwidth),
            Machine::Unmeasured(_) => None,
        }
    }
}

/// The recipe whose passes over memory are counted. They do not tell whose they are, so the least adapter stands for one that is folded
/// in.
fn counted(recipe: &Recipe, mode: ServeMode) -> Recipe {
    let mut served = ServePlan::served(recipe);
    if let (ServeMode::Merged, Some(adapter)) = (mode, &mut served.adapter) {
        adapter.rank = 1;
        adapter.rank_pattern.clear();
        adapter.dora = false;
        adapter.lora_bias = false;
    }
    served
}

/// Values of keys and values before a token that an op reads for it.
fn cached_values(work: &Work, context: usize) -> f64 {
    let Work::Attention {
        heads, window, chunk, ..
    } = work
    else {
        return 0.0;
    };
    let most = [*window, *chunk].into_iter().flatten().min();
    let keys = most.map_or(context, |most| context.min(most));
    (keys * (heads.key_size() + heads.value_size())) as f64
}

/// The op as serving has it; `None` for what it has not. Of the loss head it has the logits alone.
fn served_op(op: &Op, mode: ServeMode, is_head: bool) -> Option<Op> {
    let mut op = *op;
    match &mut op.work {
        Work::Product(product) if is_head && product.form != Form::Nt => return None,
        Work::Product(product) => served_product(product, mode)?,
        Work::Pass {
            pass: Pass::NormForward,
            ..
        } => {}
        _ if is_head => return None,
        _ => {}
    }
    Some(op)
}

/// Makes a product that of a served model; `None` where it has none.
fn served_product(product: &mut Product, mode: ServeMode) -> Option<()> {
    let is_thin = product.right == Right::Adapter || product.module == Module::Adapters;
    match mode {
        ServeMode::Merged if is_thin => return None,
        ServeMode::Merged => product.adapter_depth = 0.0,
        ServeMode::Beside => {}
        ServeMode::Together(adapters) => {
            let count = adapters as f64;
            product.adapter_depth *= count;
            // The rank is the narrow side.
            match product.columns <= product.depth {
                _ if !is_thin => {}
                true => product.columns *= count,
                false => product.depth *= count,
            }
        }
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::Stage;

    fn thin(columns: f64, depth: f64) -> Op {
        let product = Product {
            module: Module::Adapters,
            right: Right::Adapter,
            in_bytes: false,
            form: Form::Nt,
            rows: 4.0,
            columns,
            depth,
            adapter_depth: 0.0,
            launches: 1.0,
            kernels: 1.0,
            weights: 1.0,
        };
        Op {
            stage: Stage::Forward,
            work: Work::Product(product),
            times: 1.0,
        }
    }

    fn flops(op: Option<Op>) -> f64 {
        match op.map(|op| op.work) {
            Some(Work::Product(product)) => product.flops(),
            _ => 0.0,
        }
    }

    #[test]
    fn adapters_cost_by_their_ranks_and_nothing_where_they_are_merged() {
        for (columns, depth) in [(8.0, 64.0), (64.0, 8.0)] {
            let op = thin(columns, depth);
            let of = |mode| flops(served_op(&op, mode, false));
            assert_eq!(of(ServeMode::Beside), 2.0 * 4.0 * 8.0 * 64.0);
            assert_eq!(of(ServeMode::Together(3)), 3.0 * of(ServeMode::Beside));
            assert_eq!(of(ServeMode::Merged), 0.0);
        }
        let mut backward = thin(8.0, 64.0);
        if let Work::Product(product) = &mut backward.work {
            product.form = Form::Nn;
        }
        assert_eq!(flops(served_op(&backward, ServeMode::Beside, true)), 0.0);
    }
}
