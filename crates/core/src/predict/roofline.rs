//! Least seconds of ops on a GPU that is known from its data sheet, by what they compute and move.

use super::data_sheet::DataSheet;
use super::op::{Product, Right, Work};
use super::op_context::{Context, DELTA_RULE_SHARE};
use crate::plan::attention::Heads;

/// Share of the data sheet's rate that large products reach.
const REACHED: f64 = 0.6;
/// Share of the data sheet's rate in bytes that large products reach: half of the time of those in 16 bits leaves less to hide behind.
const BYTES_REACHED: f64 = 0.5;
/// Share of the rate of large products that attention reaches.
const ATTENTION_SHARE: f64 = 0.5;
/// Share of the data sheet's bandwidth that a pass reaches.
pub(super) const BANDWIDTH_REACHED: f64 = 0.75;
/// Seconds to launch a kernel.
const LAUNCH_S: f64 = 8e-6;
/// Rows and columns of a tile of a product: smaller results leave units idle.
const TILE: f64 = 128.0;

/// Passes around a product of bytes.
const PASSES_AROUND: f64 = 3.0;
/// Kernels of attention's backward pass: the sum of o d_o over each head, the gradient of queries, and that of keys and values.
const KERNELS_BACKWARD: f64 = 3.0;

/// Bytes that an op reads and writes, and what it asks a GPU for.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Traffic {
    /// Bytes of operands and results, each once.
    pub bytes: f64,
    /// Calls whose launches are waited for: a sum is one.
    pub launches: f64,
    /// Bytes of the passes that a product needs around it.
    pub around: f64,
    pub launches_around: f64,
    /// Kernels that are launched in all.
    pub kernels: f64,
}

impl Traffic {
    /// Traffic of an op that runs once.
    pub(super) fn of(work: &Work, context: Context<'_>) -> Self {
        let element = context.precision.compute_bytes() as f64;
        let once = |bytes| Self {
            bytes,
            launches: 1.0,
            kernels: 1.0,
            ..Self::default()
        };
        match work {
            Work::Product(product) if product.in_bytes => Self::in_bytes(product),
            Work::Product(product) => Self::of_product(product, context),
            Work::Attention { heads, backward, .. } => Self {
                kernels: if *backward { KERNELS_BACKWARD } else { 1.0 },
                ..once(element * attended(heads, *backward) as f64 * context.stream.tokens())
            },
            Work::DeltaRule { .. } => once(0.0),
            Work::Pass { pass, elements, .. } => once(pass.bytes(element) * elements),
        }
    }

    fn of_product(product: &Product, context: Context<'_>) -> Self {
        let element = context.precision.compute_bytes() as f64;
        let depth = product.depth + product.adapter_depth;
        // A quantized or sparse weight is widened as a whole: codes are read, values written.
        let is_widened = product.right == Right::Weight && (context.precision.is_quantized() || context.is_sparse);
        let (around, launches_around) = match is_widened {
            true => (2.5 * product.columns * product.depth, product.launches),
            false => (0.0, 0.0),
        };
        Self {
            bytes: element * (product.rows * depth + product.columns * depth + product.rows * product.columns),
            launches: product.launches,
            around,
            launches_around,
            kernels: product.launches * (product.kernels + if is_widened { product.weights } else { 0.0 }),
        }
    }

    /// Traffic of a product of bytes with the passes around it: the weight from one or half a byte to one, twice read; 16 bits of activations
    /// read twice and one byte written; sums of 4 bytes written, read, and added to 16 bits.
    fn in_bytes(product: &Product) -> Self {
        let (weight, left) = (product.columns * product.depth, product.rows * product.depth);
        let results = product.rows * product.columns;
        Self {
            bytes: left + weight + 4.0 * results,
            launches: product.launches,
            around: 3.0 * weight + 5.0 * left + 8.0 * results,
            launches_around: PASSES_AROUND,
            kernels: product.launches * product.kernels + PASSES_AROUND,
        }
    }
}

/// Elements of a token that attention reads and writes: q, k, v and its result; backward these, the result's gradient, and those of q, k and v.
fn attended(heads: &Heads, backward: bool) -> usize {
    let operands = heads.query_size() + heads.key_size() + heads.value_size();
    match backward {
        false => operands + heads.attended_size(),
        true => 2 * (operands + heads.attended_size()),
    }
}

/// The least seconds of ops by a data sheet.
pub(super) struct Roofline<'a> {
    context: Context<'a>,
    /// FLOP/s of large products.
    rate: f64,
    /// FLOP/s of large products of bytes.
    rate_in_bytes: f64,
    /// Bytes a second.
    bandwidth: f64,
}

impl<'a> Roofline<'a> {
    pub(super) fn new(sheet: &DataSheet, context: Context<'a>) -> Self {
        Self {
            context,
            rate: REACHED * sheet.peak_flops(context.precision),
            rate_in_bytes: BYTES_REACHED * sheet.byte_rate * sheet.matrix,
            bandwidth: BANDWIDTH_REACHED * sheet.bandwidth,
        }
    }

    /// Seconds of an op that runs once: its arithmetic or its bytes, whichever is more, and its launches.
    pub(super) fn of(&self, work: &Work) -> f64 {
        let traffic = Traffic::of(work, self.context);
        let launch = LAUNCH_S * traffic.launches;
        let flops = || work.flops(self.context.stream).own;
        match work {
            Work::Product(product) => self.product(product, &traffic),
            Work::Attention { .. } => flops() / (ATTENTION_SHARE * self.rate) + launch,
            Work::DeltaRule { .. } => flops() / (DELTA_RULE_SHARE * ATTENTION_SHARE * self.rate) + launch,
            Work::Pass { .. } => traffic.bytes / self.bandwidth + launch,
        }
    }

    fn product(&self, product: &Product, traffic: &Traffic) -> f64 {
        let whole = |size: f64| (size / TILE).ceil() * TILE;
        let tiles = 2.0 * whole(product.rows) * whole(product.columns);
        // The adapter's part of a sum is no product of bytes.
        let (arithmetic, behind) = match product.in_bytes {
            true => (
                tiles * product.depth / self.rate_in_bytes,
                product.adapter_flops() / self.rate,
            ),
            false => (tiles * (product.depth + product.adapter_depth) / self.rate, 0.0),
        };
        let around = traffic.around / self.bandwidth + LAUNCH_S * traffic.launches_around;
        arithmetic.max(traffic.bytes / self.bandwidth) + around + LAUNCH_S * traffic.launches + behind
    }
}
