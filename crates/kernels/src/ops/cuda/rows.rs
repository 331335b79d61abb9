//! Rows of tokens on their way to experts and back, and what experts have of their own.

use candle_core::{DType, Result, Tensor};

use crate::gpu::{Argument, GROUPS, Source, arguments, element_name, empty, pack_size, source};
use crate::ops::offsets::Offsets;

static SOURCE: Source = source!("rows", GROUPS);

const THREADS: usize = 256;
/// Rows of a block where a warp has one.
const WARPS: usize = THREADS / 32;

/// Launches `kernel` with a thread for each pack of `like` (rows, width), whose pack size goes by `tensors`; the number of packs, and of
/// those of a row, go behind `arguments`, then `rest`.
fn run(
    kernel: &str,
    (like, tensors): (&Tensor, &[&Tensor]),
    arguments: &[Argument<'_>],
    rest: &[Argument<'_>],
) -> Result<()> {
    let width = like.dims2()?.1;
    let pack = pack_size(width, tensors);
    let packs = like.elem_count() / pack;
    let name = format!("{kernel}_{}_{pack}", element_name(like.dtype()).unwrap_or_default());
    let mut all = arguments.to_vec();
    all.extend(arguments! { packs as u64, (width / pack) as u32 });
    all.extend_from_slice(rest);
    let launch = SOURCE.launch(&name, [packs.div_ceil(THREADS), 1, 1], [THREADS, 1, 1]);
    launch.run(like.device(), &all)
}

/// Rows `index` of x.
pub(crate) fn gather(x: &Tensor, index: &Tensor) -> Result<Tensor> {
    let (x, index) = (x.contiguous()?, index.contiguous()?);
    let y = empty((index.dims1()?, x.dims2()?.1), x.dtype(), x.device())?;
    run("gather", (&y, &[&y, &x]), &arguments! { &x, &index, &y }, &[])?;
    Ok(y)
}

/// `onto` plus each token's rows of y.
pub(crate) fn sum(onto: Option<&Tensor>, y: &Tensor, rows: &Tensor) -> Result<Tensor> {
    let onto = onto.map(|onto| onto.to_dtype(y.dtype())?.contiguous()).transpose()?;
    let (y, rows) = (y.contiguous()?, rows.contiguous()?);
    let (tokens, chosen) = rows.dims2()?;
    let sums = empty((tokens, y.dims2()?.1), y.dtype(), y.device())?;
    let mut tensors = vec![&sums, &y];
    tensors.extend(&onto);
    let arguments = arguments! { onto.as_ref(), &y, &rows, &sums };
    run(
        "sum_rows",
        (&sums, &tensors),
        &arguments,
        &[Argument::U32(chosen as u32)],
    )?;
    Ok(sums)
}

/// Each row of y times its weight, in place.
pub(crate) fn scale(y: &Tensor, weights: &Tensor) -> Result<()> {
    let weights = weights.to_dtype(DType::F32)?.contiguous()?;
    run("scale_rows", (y, &[y]), &arguments! { y, &weights }, &[])
}

/// Each row of y plus the bias of its expert, times its weight where there are weights, in place.
pub(crate) fn add_of_experts(y: &Tensor, biases: &Tensor, offsets: &Offsets, weights: Option<&Tensor>) -> Result<()> {
    let biases = biases.to_dtype(DType::F32)?.contiguous()?;
    let on_device = offsets.on_device(y.device())?;
    let arguments = arguments! { y, &biases, &on_device.offsets, weights };
    let experts = [Argument::U32(offsets.groups() as u32)];
    run("add_biases", (y, &[y]), &arguments, &experts)
}

/// Launches `kernel` with a warp for each row of a (rows, width).
fn run_by_rows(kernel: &str, a: &Tensor, arguments: &[Argument<'_>]) -> Result<()> {
    let name = format!("{kernel}_{}", element_name(a.dtype()).unwrap_or_default());
    let launch = SOURCE.launch(&name, [a.dims2()?.0.div_ceil(WARPS), 1, 1], [THREADS, 1, 1]);
    launch.run(a.device(), arguments)
}

/// The sum over each row of a b.
pub(crate) fn dot(a: &Tensor, b: &Tensor) -> Result<Tensor> {
    let (a, b) = (a.contiguous()?, b.to_dtype(a.dtype())?.contiguous()?);
    let (rows, width) = a.dims2()?;
    let sums = empty(rows, DType::F32, a.device())?;
    run_by_rows("dot_rows", &a, &arguments! { &a, &b, &sums, rows as u32, width as u32 })?;
    Ok(sums)
}

/// The sum over each row of dy times the bias of its expert.
pub(crate) fn dot_of_experts(dy: &Tensor, biases: &Tensor, offsets: &Offsets) -> Result<Tensor> {
    let (dy, biases) = (dy.contiguous()?, biases.to_dtype(DType::F32)?.contiguous()?);
    let ((rows, width), on_device) = (dy.dims2()?, offsets.on_device(dy.device())?);
    let sums = empty(rows, DType::F32, dy.device())?;
    let experts = offsets.groups() as u32;
    let arguments = arguments! { &dy, &biases, &on_device.offsets, &sums, rows as u32, width as u32, experts };
    run_by_rows("dot_biases", &dy, &arguments)?;
    Ok(sums)
}

/// The factors b (N, r E) of each expert, (E, N, r).
pub(crate) fn split_experts(b: &Tensor, experts: usize) -> Result<Tensor> {
    let b = b.contiguous()?;
    let (outputs, columns) = b.dims2()?;
    let rank = columns / experts;
    let split = empty((experts, outputs, rank), b.dtype(), b.device())?;
    let name = format!("split_experts_{}", element_name(b.dtype()).unwrap_or_default());
    let launch = SOURCE.launch(&name, [b.elem_count().div_ceil(THREADS), 1, 1], [THREADS, 1, 1]);
    let arguments = arguments! { &b, &split, b.elem_count() as u64, rank as u32, experts as u32 };
    launch.run(b.device(), &arguments)?;
    Ok(split)
}

/// `into` (N, r E) += the experts' parts (E, N, r); both are F32.
pub(crate) fn join_experts_add(parts: &Tensor, into: &Tensor) -> Result<()> {
    let parts = parts.contiguous()?;
    let (experts, _, rank) = parts.dims3()?;
    let launch = SOURCE.launch(
        "join_experts",
        [into.elem_count().div_ceil(THREADS), 1, 1],
        [THREADS, 1, 1],
    );
    let arguments = arguments! { &parts, into, into.elem_count() as u64, rank as u32, experts as u32 };
    launch.run(into.device(), &arguments)
}

/// Brings o (T, H, d) and lse (T, H) in place to what they are with the sinks (H,).
pub(crate) fn add_sinks(o: &Tensor, lse: &Tensor, sinks: &Tensor) -> Result<()> {
    let sinks = sinks.to_dtype(DType::F32)?.contiguous()?;
    let (tokens, heads, width) = o.dims3()?;
    let (rows, pack) = (tokens * heads, pack_size(width, &[o]));
    let name = format!("add_sinks_{}_{pack}", element_name(o.dtype()).unwrap_or_default());
    let launch = SOURCE.launch(&name, [rows.div_ceil(WARPS), 1, 1], [THREADS, 1, 1]);
    let arguments = arguments! { o, lse, &sinks, rows as u32, heads as u32, (width / pack) as u32 };
    launch.run(o.device(), &arguments)
}
