//! Seconds of a step in a stack: its ops on a GPU or on the host, and the waits of its devices for each other.

use super::Number;
use super::device::StackDevice;
use super::memory::{Traced, trained_tensors};
use super::model::Model;
use super::setting::Sharing;
use super::tape::Cost;
use crate::predict::{OpKind, Seconds};

/// Seconds of a step: micro-batches, update, and what devices tell each other.
#[derive(Clone, Copy, Debug)]
pub(super) struct StepSeconds {
    pub(super) all: Seconds,
    /// Seconds of all in which devices wait for their link.
    pub(super) link_s: f64,
}

impl StepSeconds {
    pub(super) fn of(model: &Model, traced: &Traced, device: StackDevice) -> Self {
        let setting = &model.setting;
        let micro_batch = seconds_of(model, &traced.micro_batch, device);
        let update = seconds_of(model, &traced.update, device);
        // Processes on a host divide its processor.
        let processes = if device.is_host() { setting.devices as f64 } else { 1.0 };
        let times = setting.gradient_accumulation as f64;
        let link_s = link_seconds(model, device);
        let all = Seconds {
            products: processes * (times * micro_batch.products + update.products),
            passes: processes * (times * micro_batch.passes + update.passes) + link_s,
            ..Seconds::default()
        };
        Self { all, link_s }
    }
}

/// Seconds of a step in which devices wait for each other's weights and gradients.
fn link_seconds(model: &Model, device: StackDevice) -> f64 {
    let setting = &model.setting;
    let [shared, ..] = setting.shares();
    // Weights are gathered in each pass, forward or backward; gradients are added up once a step.
    let passes = 2 + setting.comparison.own_passes + setting.comparison.reference_passes;
    let trained: u64 = trained_tensors(model)
        .iter()
        .map(|(elements, width)| elements * width)
        .sum();
    let times = setting.gradient_accumulation as f64;
    let gathered = passes as f64 * times * (model.layer_bytes() * model.shape.layers) as f64;
    let link = device.sheet.link();
    // What computing does not hide.
    let uncovered = if setting.sharing == Sharing::Copies { 0.3 } else { 0.5 };
    uncovered * (link.gather_s(gathered, shared) + link.sum_s(trained as f64, setting.devices))
}

/// Part of a step's time that an op belongs to.
fn kind_of(cost: &Cost) -> OpKind {
    if cost.flops > 0.0 {
        OpKind::Products
    } else {
        OpKind::Passes
    }
}

/// Rows at which a product reaches half of the rate of a large one.
const HALF_FILLED: f64 = 160.0;
/// Rows at which a product on the host, whose vectors are short, reaches half of the rate of a large one.
const HALF_FILLED_HOST: f64 = 16.0;

fn seconds_of(model: &Model, costs: &[Cost], device: StackDevice) -> Seconds {
    if device.is_host() {
        return host_seconds(model, costs, device);
    }
    let row = model.setting.stack;
    let narrow = device.sheet.matrix * row.product_share * device.row().matrix_share;
    // Beside products of 16 bits those in F32 (adapters, a raised head) run on the matrix units where these take TF32.
    let takes_tf32 = device.sheet.has_bf16 && model.setting.computes != Number::F32;
    let wide = match takes_tf32 {
        true => narrow / 2.0,
        false => device.sheet.f32 * row.product_share,
    };
    let bandwidth = device.sheet.bandwidth * row.bandwidth_share;
    let mut seconds = Seconds::default();
    let mut launches = 0.0;
    for cost in costs {
        let filled = cost.rows as f64 / (cost.rows as f64 + HALF_FILLED);
        let peak = if cost.is_wide { wide } else { narrow };
        let product = if cost.flops > 0.0 {
            cost.flops / (peak * filled.max(1e-3))
        } else {
            0.0
        };
        let kernels = if model.setting.compiled { 0.5 } else { 1.0 };
        seconds.add(kind_of(cost), product.max(cost.bytes / bandwidth));
        launches += cost.launches * kernels;
    }
    // The device waits where Python takes longer to launch the ops than they run.
    seconds.passes += (launches * row.launch_s - seconds.total()).max(0.0);
    seconds
}

/// Seconds on the host: its ceilings were measured, and nothing runs while Python makes the next op.
fn host_seconds(model: &Model, costs: &[Cost], device: StackDevice) -> Seconds {
    let row = model.setting.stack;
    let mut seconds = Seconds::default();
    for cost in costs {
        let filled = cost.rows as f64 / (cost.rows as f64 + HALF_FILLED_HOST);
        let is_wide = cost.is_wide || model.setting.computes == Number::F32;
        let peak = if is_wide { device.sheet.f32 } else { device.sheet.matrix };
        let product = match cost.flops > 0.0 {
            true => cost.flops / (peak * filled.max(1e-3)),
            false => 0.0,
        };
        seconds.add(kind_of(cost), product.max(cost.bytes / device.sheet.bandwidth));
        seconds.passes += cost.launches * row.launch_s;
    }
    seconds
}
