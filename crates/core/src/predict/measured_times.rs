//! Seconds of ops on a measured machine.

use super::ceilings::{Ceilings, OpTimes, WeightProducts};
use super::flops::mean_keys;
use super::op::{Product, Right, Work, delta_rule_flops};
use super::op_context::{Context, DELTA_RULE_SHARE};
use crate::plan::Form;
use crate::plan::attention::Heads;
use crate::recipe::Precision;

/// Times of ops between the measured sizes.
pub(super) struct MeasuredTimes<'a> {
    /// Time of whole steps over the sum of their ops.
    pub whole_step: f64,
    weights: &'a WeightProducts,
    /// Products with base weights and activations in 8 bits, where they were measured.
    bytes: Option<&'a WeightProducts>,
    dense: &'a WeightProducts,
    /// Products in F32, where they were measured.
    single: Option<&'a WeightProducts>,
    /// Products with codes of merged weights, and with dense weights in their compute dtype, where a training makes
    /// such codes.
    codes: Option<[&'a WeightProducts; 2]>,
    ops: &'a OpTimes,
    ceilings: &'a Ceilings,
    context: Context<'a>,
}

impl<'a> MeasuredTimes<'a> {
    /// Times of the ops of a step; `None` where its precision was not measured.
    pub(super) fn new(ceilings: &'a Ceilings, context: Context<'a>) -> Option<Self> {
        Some(Self {
            whole_step: ceilings.whole_steps.get(&context.precision).copied().unwrap_or(1.0),
            weights: match context.is_sparse {
                true => ceilings.sparse_products.get(&context.precision)?,
                false => ceilings.products.get(&context.precision)?,
            },
            bytes: ceilings.byte_products.get(&context.precision),
            dense: ceilings.products.get(&context.precision.compute())?,
            single: ceilings.products.get(&Precision::Fp32),
            codes: match context.aware {
                Some(storage) => {
                    let of = |storage| ceilings.products.get(&storage);
                    Some([of(storage)?, of(storage.compute())?])
                }
                None => None,
            },
            ops: ceilings.ops.get(&context.precision.compute())?,
            ceilings,
            context,
        })
    }

    /// Seconds of an op that runs once; `None` where it was not measured.
    pub(super) fn of(&self, work: &Work) -> Option<f64> {
        match work {
            Work::Product(product) => self.product(product),
            Work::Attention {
                heads,
                window,
                chunk,
                backward,
            } => self.attention(*heads, [*window, *chunk], *backward),
            Work::DeltaRule { state, backward } => self.delta_rule(*state, *backward),
            Work::Pass { pass, elements, .. } => {
                let grid = self.ops.passes.get(pass).or_else(|| self.ceilings.updates.get(pass))?;
                grid.at(&[elements.max(1.0)])
            }
        }
    }

    fn product(&self, product: &Product) -> Option<f64> {
        let Product {
            right,
            in_bytes,
            form,
            rows,
            columns,
            depth,
            adapter_depth,
            ..
        } = *product;
        let weights = match right {
            Right::Weight if in_bytes => self.bytes?,
            Right::Weight => self.weights,
            Right::Dense => self.dense,
            Right::Adapter => self.single.unwrap_or(self.dense),
        };
        match (form, right) {
            (Form::Tn, _) if rows <= columns => self.ops.gradient_a.at(&[rows, columns, depth]),
            (Form::Tn, _) => self.ops.gradient_b.at(&[columns, rows, depth]),
            (Form::Nt, Right::Adapter) if columns <= depth => self.ops.adapter_nt.at(&[rows, columns, depth]),
            (Form::Nn, Right::Adapter) if columns <= depth => self.ops.adapter_nn.at(&[rows, columns, depth]),
            (Form::Nt | Form::Nn, _) => {
                let of = |weights: &WeightProducts| {
                    let grid = if form == Form::Nt { &weights.nt } else { &weights.nn };
                    grid.at(&[rows, columns, depth + adapter_depth])
                };
                let seconds = of(weights)?;
                match self.codes.filter(|_| right == Right::Weight) {
                    // What the codes cost is known in their own compute dtype.
                    Some([codes, dense]) => Some(seconds + (of(codes)? - of(dense)?).max(0.0)),
                    None => Some(seconds),
                }
            }
        }
    }

    /// Seconds at a share of the rate of attention, since the delta rule is not measured itself.
    fn delta_rule(&self, state: usize, backward: bool) -> Option<f64> {
        const KEYS: f64 = 256.0;
        let Context { head_width, stream, .. } = self.context;
        let width = head_width as f64;
        let rate = 4.0 * KEYS * width / self.ops.attention_forward.at(&[2.0 * KEYS, width])?;
        Some(delta_rule_flops(backward) * stream.tokens() * state as f64 / (DELTA_RULE_SHARE * rate))
    }

    fn attention(&self, heads: Heads, [window, chunk]: [Option<usize>; 2], backward: bool) -> Option<f64> {
        let grid = if backward {
            &self.ops.attention_backward
        } else {
            &self.ops.attention_forward
        };
        let Context { stream, .. } = self.context;
        let mut seconds = 0.0;
        for documents in stream.in_chunks(chunk) {
            let length = documents.tokens as f64;
            let each = grid.at(&[2.0 * mean_keys(length, window), heads.mean_width(backward)])?;
            seconds += documents.count * length * heads.query as f64 * each;
        }
        Some(seconds)
    }
}
