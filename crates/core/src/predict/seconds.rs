//! Seconds of a list of ops on a machine: from its measured ceilings, or by a roofline over its data sheet.

use super::ceilings::{Ceilings, OpTimes, WeightProducts};
use super::data_sheet::DataSheet;
use super::op::{Op, Product, Right, Work, delta_rule_flops};
use super::stream::StreamShape;
use crate::plan::Form;
use crate::plan::attention::Heads;
use crate::recipe::Precision;

/// Parts of a step's time whose ceilings are learned apart from each other.
pub(super) const TIME_PARTS: usize = 4;

/// Seconds of a step by what limits them.
#[derive(Clone, Copy, Debug, Default, PartialEq, serde::Serialize)]
pub struct Seconds {
    /// Products with base weights.
    pub products: f64,
    /// Products of adapters and gradients.
    pub adapters: f64,
    pub attention: f64,
    /// Passes over memory, the update included.
    pub passes: f64,
}

impl Seconds {
    pub fn total(&self) -> f64 {
        self.parts().iter().sum()
    }

    /// The parts in the order of their fields.
    pub fn parts(&self) -> [f64; TIME_PARTS] {
        [self.products, self.adapters, self.attention, self.passes]
    }

    /// Seconds of a step of which `share` are spent as in `other`.
    pub(super) fn mixed(&self, other: &Self, share: f64) -> Self {
        let mix = |own: f64, other: f64| (1.0 - share) * own + share * other;
        Self {
            products: mix(self.products, other.products),
            adapters: mix(self.adapters, other.adapters),
            attention: mix(self.attention, other.attention),
            passes: mix(self.passes, other.passes),
        }
    }

    fn add(&mut self, work: &Work, seconds: f64) {
        let part = match work {
            Work::Product(product) if product.right == Right::Adapter || product.form == Form::Tn => &mut self.adapters,
            Work::Product(_) => &mut self.products,
            Work::Attention { .. } | Work::DeltaRule { .. } => &mut self.attention,
            Work::Pass { .. } => &mut self.passes,
        };
        *part += seconds;
    }
}

/// Facts that an op's time depends on besides the op.
#[derive(Clone, Copy, Debug)]
pub(super) struct Context<'a> {
    pub precision: Precision,
    /// Whether two of each four values of base weights are left out.
    pub is_sparse: bool,
    /// The storage of the codes that are multiplied in place of base weights, where a training makes some.
    pub aware: Option<Precision>,
    /// Width of most heads.
    pub head_width: usize,
    pub stream: &'a StreamShape,
}

/// Seconds of `ops` on a measured machine; `None` where the precision was not measured.
pub(super) fn measured(ceilings: &Ceilings, context: Context<'_>, ops: &[Op]) -> Option<Seconds> {
    let times = Times {
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
    };
    let whole = ceilings.whole_steps.get(&context.precision).copied().unwrap_or(1.0);
    let mut seconds = Seconds::default();
    for op in ops {
        seconds.add(&op.work, whole * op.times * times.of(&op.work)?);
    }
    Some(seconds)
}

struct Times<'a> {
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

impl Times<'_> {
    fn of(&self, work: &Work) -> Option<f64> {
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

/// Keys that a query of a document of `length` tokens sees on average.
pub(super) fn mean_keys(length: f64, window: Option<usize>) -> f64 {
    match window.map(|window| window as f64).filter(|window| *window < length) {
        Some(window) => window - window * window / (2.0 * length),
        None => length / 2.0,
    }
}

/// Share of attention's rate at which a delta rule runs, token by token.
const DELTA_RULE_SHARE: f64 = 0.3;
/// Share of the data sheet's rate that large products reach.
const REACHED: f64 = 0.6;
/// Share of the data sheet's bandwidth that a pass reaches.
const BANDWIDTH_REACHED: f64 = 0.75;
/// Seconds to launch a kernel.
const LAUNCH_S: f64 = 8e-6;
/// Rows and columns of a tile of a product: smaller results leave units idle.
const TILE: f64 = 128.0;

/// Share of the data sheet's rate in bytes that large products reach: half of the time of those in 16 bits leaves less to hide behind.
const BYTES_REACHED: f64 = 0.5;

/// Seconds of a product of bytes with the passes around it: the weight from one or half a byte to one, twice read; 16 bits of activations
/// read twice and one byte written; sums of 4 bytes written, read, and added to 16 bits.
fn in_bytes(product: &Product, rate: f64, bandwidth: f64) -> f64 {
    let sizes = [product.rows, product.columns].map(|size| (size / TILE).ceil() * TILE);
    let flops = 2.0 * sizes[0] * sizes[1] * product.depth;
    let (weight, left) = (product.columns * product.depth, product.rows * product.depth);
    let results = product.rows * product.columns;
    let operands = (left + weight + 4.0 * results) / bandwidth;
    let around = (3.0 * weight + 5.0 * left + 8.0 * results) / bandwidth + 3.0 * LAUNCH_S;
    (flops / rate).max(operands) + around + LAUNCH_S * product.launches
}

/// Seconds of `ops` by a roofline over a data sheet.
pub(super) fn roofline(sheet: &DataSheet, context: Context<'_>, ops: &[Op]) -> Seconds {
    let element = context.precision.compute_bytes() as f64;
    let rate = REACHED * sheet.peak_flops(context.precision);
    let bandwidth = BANDWIDTH_REACHED * sheet.bandwidth;
    let of = |work: &Work| match work {
        Work::Product(product) => {
            let depth = product.depth + product.adapter_depth;
            let whole = |size: f64| (size / TILE).ceil() * TILE;
            if product.in_bytes {
                return in_bytes(product, BYTES_REACHED * sheet.byte_rate * sheet.matrix, bandwidth)
                    + product.adapter_flops() / rate;
            }
            let flops = 2.0 * whole(product.rows) * whole(product.columns) * depth;
            let bytes = element * (product.rows * depth + product.columns * depth + product.rows * product.columns);
            let launch = LAUNCH_S * product.launches;
            let widened = match (product.right, context.precision) {
                // A quantized or sparse weight is widened as a whole: codes are read, values written.
                (Right::Weight, precision) if precision.is_quantized() || context.is_sparse => {
                    2.5 * product.columns * product.depth / bandwidth + launch
                }
                _ => 0.0,
            };
            (flops / rate).max(bytes / bandwidth) + widened + launch
        }
        Work::Attention {
            heads,
            window,
            chunk,
            backward,
        } => {
            let documents = context.stream.in_chunks(*chunk).into_iter();
            let pairs: f64 = documents
                .map(|documents| {
                    let length = documents.tokens as f64;
                    documents.count * length * mean_keys(length, *window)
                })
                .sum();
            let flops = pairs * heads.pair_flops(*backward);
            flops / (0.5 * rate) + LAUNCH_S
        }
        Work::DeltaRule { state, backward } => {
            let flops = delta_rule_flops(*backward) * context.stream.tokens() * *state as f64;
            flops / (DELTA_RULE_SHARE * 0.5 * rate) + LAUNCH_S
        }
        Work::Pass { pass, elements, .. } => pass.bytes(element) * elements / bandwidth + LAUNCH_S,
    };
    let mut seconds = Seconds::default();
    for op in ops {
        seconds.add(&op.work, op.times * of(&op.work));
    }
    seconds
}
