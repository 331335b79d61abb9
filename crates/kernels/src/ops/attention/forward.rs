//! The fused forward: a span of queries passes over its keys block by block, with an online softmax.

use super::Settings;
use super::block::{Rows, Shared, Span, gather, key_rows, query_rows};
use super::softmax::{self, ScoreBlock, State};
use crate::ops::element::Element;
use crate::ops::matmul::serial::{Exactness, multiply};
use crate::ops::matmul::view::{Old, View};
use crate::ops::scratch::resize;
use crate::ops::storage::{Elements, Unwritten};
use crate::thread_pool;
use candle_core::{Result, Tensor};
use peft_tune_core::plan::attention::{Heads, KEYS, SPAN_FORWARD};
use std::cell::RefCell;
use std::ops::Range;

/// Inputs that all tasks read.
struct Inputs<'a, T> {
    q: &'a [T],
    k: &'a [T],
    v: &'a [T],
    heads: Heads,
    settings: &'a Settings,
}

/// Memory that a thread keeps from one task to the next.
#[derive(Default)]
struct Scratch {
    queries: Vec<f32>,
    keys: Vec<f32>,
    values: Vec<f32>,
    scores: Vec<f32>,
    result: Vec<f32>,
    states: Vec<State>,
    lse: Vec<f32>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}

/// Releases what this thread keeps.
pub(super) fn forget() {
    SCRATCH.take();
}

/// See [`super::forward`]; contiguous tensors of elements `T` on the CPU.
pub(super) fn forward<T: Element>(
    (q, k, v): (&Tensor, &Tensor, &Tensor),
    offsets: &[u32],
    settings: &Settings,
) -> Result<(Tensor, Tensor)> {
    let (tokens, query_heads, head_dim) = q.dims3()?;
    let heads = Heads {
        query: query_heads,
        key: k.dim(1)?,
        width: head_dim,
        value: v.dim(2)?,
    };
    let results = tokens * query_heads * heads.value;
    let (q, k, v) = (Elements::<T>::new(q)?, Elements::<T>::new(k)?, Elements::<T>::new(v)?);
    let inputs = Inputs {
        q: &q,
        k: &k,
        v: &v,
        heads,
        settings,
    };
    let (mut o, mut lse) = (
        Unwritten::<T>::new(results),
        Unwritten::<f32>::new(tokens * query_heads),
    );
    let (o_rows, lse_rows) = (
        Shared::new(&mut o.slots()[..results]),
        Shared::new(&mut lse.slots()[..tokens * query_heads]),
    );
    let spans = Span::all(offsets, heads.key, SPAN_FORWARD);
    thread_pool::for_each(spans.len(), |index| {
        SCRATCH.with_borrow_mut(|scratch| inputs.run(&spans[index], scratch, &o_rows, &lse_rows));
    });
    // SAFETY: the spans cover every token and head, and a task writes all of its rows.
    unsafe {
        Ok((
            o.into_tensor(&[tokens, query_heads, heads.value])?,
            lse.into_tensor(&[tokens, query_heads])?,
        ))
    }
}

impl<T: Element> Inputs<'_, T> {
    fn run(&self, span: &Span, scratch: &mut Scratch, o: &Shared<'_, T>, lse: &Shared<'_, f32>) {
        let keys = Span::keys(&span.queries, self.settings);
        let Heads { width, value, .. } = self.heads;
        let rows = |width| key_rows(self.heads, span.start + keys.start, span.key_head, width);
        resize(&mut scratch.keys, keys.len() * width, 0.0);
        resize(&mut scratch.values, keys.len() * value, 0.0);
        gather(self.k, rows(width), 1.0, &mut scratch.keys);
        gather(self.v, rows(value), 1.0, &mut scratch.values);
        let step = self.heads.block_queries();
        for first in span.queries.clone().step_by(step) {
            let queries = first..(first + step).min(span.queries.end);
            self.block(span, &queries, keys.start, scratch);
            self.finish(span, &queries, scratch, o, lse);
        }
    }

    /// Unnormalised result and softmax state of one block of queries; the scratch has the keys from `first_key` on.
    fn block(&self, span: &Span, queries: &Range<usize>, first_key: usize, scratch: &mut Scratch) {
        let (Heads { width, value, .. }, group) = (self.heads, self.heads.group());
        let rows = queries.len() * group;
        resize(&mut scratch.queries, rows * width, 0.0);
        gather(self.q, self.query_rows(span, queries, width), 1.0, &mut scratch.queries);
        resize(&mut scratch.scores, rows * KEYS, 0.0);
        scratch.result.clear();
        resize(&mut scratch.result, rows * value, 0.0);
        scratch.states.clear();
        resize(&mut scratch.states, rows, State::EMPTY);
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
            let block = |width: usize| (keys.start - first_key) * width..(keys.end - first_key) * width;
            let scores = &mut scratch.scores[..rows * keys.len()];
            let key_block = View::new(&scratch.keys[block(width)], keys.len(), width);
            multiply(
                View::new(&scratch.queries, rows, width),
                key_block.t(),
                scores,
                Old::Overwrite,
                exactness,
            );
            softmax::forward(scores, &place, &mut scratch.states, &mut scratch.result, value);
            let value_block = View::new(&scratch.values[block(value)], keys.len(), value);
            multiply(
                View::new(scores, rows, keys.len()),
                value_block,
                &mut scratch.result,
                Old::Add,
                exactness,
            );
        }
    }

    /// Normalises and writes one block.
    fn finish(
        &self,
        span: &Span,
        queries: &Range<usize>,
        scratch: &mut Scratch,
        o: &Shared<'_, T>,
        lse: &Shared<'_, f32>,
    ) {
        let width = self.heads.value;
        for (row, state) in scratch.result.chunks_exact_mut(width).zip(&scratch.states) {
            let factor = 1.0 / state.sum;
            row.iter_mut().for_each(|value| *value *= factor);
        }
        scratch.lse.clear();
        scratch
            .lse
            .extend(scratch.states.iter().map(|state| state.max + state.sum.ln()));
        // SAFETY: these rows belong to this task alone.
        unsafe {
            o.scatter(&scratch.result, self.query_rows(span, queries, width), 1.0);
            lse.scatter(&scratch.lse, self.query_rows(span, queries, 1), 1.0);
        }
    }

    /// The rows of a block of queries in a (T, Hq, `width`) tensor: all heads of the group at once.
    fn query_rows(&self, span: &Span, queries: &Range<usize>, width: usize) -> Rows {
        query_rows(self.heads, span.start + queries.start, span.key_head, width)
    }
}
