//! The fused backward: scores are computed again block by block from the saved log-sum-exp.
//!
//! A task takes a span of queries of one document and key head. It owns its rows of dq; its shares of dk and dv are kept
//! apart and added in the order of the spans, so that the result does not depend on the threads.

use super::block::{Shared, Span, gather, key_rows, query_rows};
use super::softmax::{self, ScoreBlock};
use super::{Saved, Settings};
use crate::ops::element::Element;
use crate::ops::matmul::serial::{Exactness, multiply};
use crate::ops::matmul::view::{Old, View};
use crate::ops::scratch::resize;
use crate::ops::storage::{Elements, Unwritten};
use crate::thread_pool;
use candle_core::{Result, Tensor};
use peft_tune_core::plan::attention::{Heads, KEYS, SPAN_BACKWARD};
use std::cell::RefCell;
use std::ops::Range;

/// Inputs that all tasks read.
struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    o: &'a [T],
    d_o: &'a [T],
    lse: &'a [f32],
    heads: Heads,
    settings: &'a Settings,
}

/// Memory that a thread keeps from one task to the next.
#[derive(Default)]
struct Scratch {
    keys: Vec<f32>,
    values: Vec<f32>,
    queries: Vec<f32>,
    result: Vec<f32>,
    d_result: Vec<f32>,
    lse: Vec<f32>,
    dots: Vec<f32>,
    scores: Vec<f32>,
    d_weights: Vec<f32>,
    d_queries: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    SCRATCH.take();
}

/// One span's shares of dk (without the scale) and dv, (keys, d) each.
struct Share {
    keys: Range<usize>,
    d_keys: Vec<f32>,
    d_values: Vec<f32>,
}

/// See [`super::backward`]; contiguous tensors of elements `T` on the CPU.
pub(super) fn backward<T: Element>(
    saved: Saved<'_>,
    d_o: &Tensor,
    offsets: &[u32],
    settings: &Settings,
) -> Result<(Tensor, Tensor, Tensor)> {
    let (_, query_heads, head_dim) = saved.q.dims3()?;
    let heads = Heads {
        query: query_heads,
        key: saved.k.dim(1)?,
        width: head_dim,
        value: saved.v.dim(2)?,
    };
    let read = |tensor| Elements::<T>::new(tensor);
    let (q, k, v, o, d_o) = (
        read(saved.q)?,
        read(saved.k)?,
        read(saved.v)?,
        read(saved.o)?,
        read(d_o)?,
    );
    let lse = Elements::<f32>::new(saved.lse)?;
    let inputs = Inputs {
        q: &q,
        k: &k,
        v: &v,
        o: &o,
        d_o: &d_o,
        lse: &lse,
        heads,
        settings,
    };
    let mut dq = Unwritten::<T>::new(q.len());
    let (mut dk, mut dv) = (Unwritten::<T>::new(k.len()), Unwritten::<T>::new(v.len()));
    let spans = Span::all(offsets, heads.key, SPAN_BACKWARD);
    let dq_rows = Shared::new(&mut dq.slots()[..q.len()]);
    let mut spans: Vec<(Span, Option<Share>)> = spans.into_iter().map(|span| (span, None)).collect();
    thread_pool::for_chunks(&mut spans, 1, |_, spans| {
        for (span, share) in spans {
            *share = Some(SCRATCH.with_borrow_mut(|scratch| inputs.run(span, scratch, &dq_rows)));
        }
    });
    let scale = settings.scale as f32;
    let (dk_rows, dv_rows) = (
        Shared::new(&mut dk.slots()[..k.len()]),
        Shared::new(&mut dv.slots()[..v.len()]),
    );
    // The spans of one document and key head stand next to each other.
    let groups: Vec<&[(Span, Option<Share>)]> = spans
        .chunk_by(|(a, _), (b, _)| a.key_head == b.key_head && a.queries.end == b.queries.start && a.start == b.start)
        .collect();
    thread_pool::for_each(groups.len(), |index| {
        add_up(groups[index], heads, scale, &dk_rows, &dv_rows)
    });
    // SAFETY: the spans cover every token and head, and the tasks write all of their rows.
    unsafe {
        let (dk, dv) = (dk.into_tensor(saved.k.dims())?, dv.into_tensor(saved.v.dims())?);
        Ok((dq.into_tensor(saved.q.dims())?, dk, dv))
    }
}

/// Adds the shares of one document and key head and writes them.
fn add_up<T: Element>(
    spans: &[(Span, Option<Share>)],
    heads: Heads,
    scale: f32,
    dk: &Shared<'_, T>,
    dv: &Shared<'_, T>,
) {
    let (Some((span, _)), Some((last, _))) = (spans.first(), spans.last()) else {
        return;
    };
    let rows = |width| key_rows(heads, span.start, span.key_head, width);
    let total = |part: fn(&Share) -> &Vec<f32>, width: usize| {
        let mut total = vec![0f32; last.queries.end * width];
        for share in spans.iter().filter_map(|(_, share)| share.as_ref()) {
            let keys = &mut total[share.keys.start * width..share.keys.end * width];
            keys.iter_mut()
                .zip(part(share))
                .for_each(|(total, part)| *total += part);
        }
        total
    };
    // SAFETY: the keys of one document and head belong to this task alone.
    unsafe {
        dk.scatter(&total(|share| &share.d_keys, heads.width), rows(heads.width), scale);
        dv.scatter(&total(|share| &share.d_values, heads.value), rows(heads.value), 1.0);
    }
}

impl<T: Element> Inputs<'_, T> {
    fn run(&self, span: &Span, scratch: &mut Scratch, dq: &Shared<'_, T>) -> Share {
        let keys = Span::keys(&span.queries, self.settings);
        let Heads { width, value, .. } = self.heads;
        let rows = |width| key_rows(self.heads, span.start + keys.start, span.key_head, width);
        resize(&mut scratch.keys, keys.len() * width, 0.0);
        resize(&mut scratch.values, keys.len() * value, 0.0);
        gather(self.k, rows(width), 1.0, &mut scratch.keys);
        gather(self.v, rows(value), 1.0, &mut scratch.values);
        let mut share = Share {
            d_keys: vec![0.0; keys.len() * width],
            d_values: vec![0.0; keys.len() * value],
            keys,
        };
        let step = self.heads.block_queries();
        for first in span.queries.clone().step_by(step) {
            let queries = first..(first + step).min(span.queries.end);
            self.load(span, &queries, scratch);
            self.block(&queries, scratch, &mut share);
            let rows = query_rows(self.heads, span.start + queries.start, span.key_head, width);
            // SAFETY: these rows belong to this task alone.
            unsafe { dq.scatter(&scratch.d_queries, rows, self.settings.scale as f32) };
        }
        share
    }

    /// Brings the rows of one block of queries into the scratch.
    fn load(&self, span: &Span, queries: &Range<usize>, scratch: &mut Scratch) {
        let (Heads { width, value, .. }, rows) = (self.heads, queries.len() * self.heads.group());
        let place = |width| query_rows(self.heads, span.start + queries.start, span.key_head, width);
        resize(&mut scratch.queries, rows * width, 0.0);
        for block in [&mut scratch.result, &mut scratch.d_result] {
            resize(block, rows * value, 0.0);
        }
        resize(&mut scratch.lse, rows, 0.0);
        resize(&mut scratch.dots, rows, 0.0);
        gather(self.q, place(width), 1.0, &mut scratch.queries);
        gather(self.o, place(value), 1.0, &mut scratch.result);
        gather(self.d_o, place(value), 1.0, &mut scratch.d_result);
        gather(self.lse, place(1), 1.0, &mut scratch.lse);
        softmax::dots(&scratch.d_result, &scratch.result, value, &mut scratch.dots);
    }

    /// dq of one block of queries and its part of the share, dk without the scale as well.
    fn block(&self, queries: &Range<usize>, scratch: &mut Scratch, share: &mut Share) {
        let (Heads { width, value, .. }, group) = (self.heads, self.heads.group());
        let rows = queries.len() * group;
        resize(&mut scratch.scores, rows * KEYS, 0.0);
        resize(&mut scratch.d_weights, rows * KEYS, 0.0);
        scratch.d_queries.clear();
        resize(&mut scratch.d_queries, rows * width, 0.0);
        let (seen, exactness) = (Span::keys(queries, self.settings), Exactness::of(T::DTYPE));
        for start in seen.clone().step_by(KEYS) {
            let keys = start..(start + KEYS).min(seen.end);
            let place = ScoreBlock {
                query: queries.start,
                group,
                scale: self.settings.scale as f32,
                window: self.settings.window.unwrap_or(usize::MAX),
                cap: self.settings.soft_cap.map_or(f32::INFINITY, |cap| cap as f32),
                keys: keys.clone(),
            };
            let first = share.keys.start;
            let block = |width: usize| (keys.start - first) * width..(keys.end - first) * width;
            let key_block = View::new(&scratch.keys[block(width)], keys.len(), width);
            let value_block = View::new(&scratch.values[block(value)], keys.len(), value);
            let (queries, d_result) = (
                View::new(&scratch.queries, rows, width),
                View::new(&scratch.d_result, rows, value),
            );
            let elements = rows * keys.len();
            let (p, ds) = (&mut scratch.scores[..elements], &mut scratch.d_weights[..elements]);
            multiply(queries, key_block.t(), p, Old::Overwrite, exactness);
            multiply(d_result, value_block.t(), ds, Old::Overwrite, exactness);
            softmax::backward(p, ds, &place, &scratch.lse, &scratch.dots);
            let (p, ds) = (View::new(p, rows, keys.len()), View::new(ds, rows, keys.len()));
            multiply(ds, key_block, &mut scratch.d_queries, Old::Add, exactness);
            multiply(ds.t(), queries, &mut share.d_keys[block(width)], Old::Add, exactness);
            multiply(p.t(), d_result, &mut share.d_values[block(value)], Old::Add, exactness);
        }
    }
}
