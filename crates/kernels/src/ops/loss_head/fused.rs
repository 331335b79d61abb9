//! The form with a gradient of the head: for each chunk of target positions one product into logits, one pass over them, one product
//! back, one for the head.
//!
//! The logits and their gradient share one buffer, which all chunks reuse. Where the compute dtype is BF16 and the
//! processor multiplies pairs of it, the gradient is rounded to BF16 within that buffer (PyTorch rounds it too).

use super::head::{Head, element_values};
use super::{Output, Settings};
use super::{softmax, streamed};
use crate::ops::element::Element;
use crate::ops::matmul::Guard;
use crate::ops::matmul::engine;
use crate::ops::matmul::operand::{Old, Product, Result as Target, Side};
use crate::ops::matmul::order::Order;
use crate::ops::matmul::terms::multiplies_pairs;
use crate::ops::storage::{Elements, Unwritten, update};
use crate::thread_pool;
use candle_core::{DType, Device, Result, Tensor};
use peft_tune_core::plan::even_chunks;

/// Loss of one chunk.
#[derive(Default)]
struct Sums {
    loss: f64,
    correct: u64,
}

/// See [`super::forward`] and [`super::forward_with_weight_gradient`]; contiguous tensors on the CPU, hidden states of
/// elements `T`.
pub(super) fn forward<T: Element>(
    hidden: &Tensor,
    weight: &Tensor,
    targets: &[i64],
    settings: &Settings,
    weight_gradient: Option<&Tensor>,
) -> Result<Output> {
    let (vocabulary, width) = weight.dims2()?;
    let (values, guard) = (Elements::<T>::new(hidden)?, Guard::new(weight)?);
    let pairs = T::DTYPE == DType::BF16 && width % 2 == 0 && vocabulary % 2 == 0 && multiplies_pairs();
    let head = Head {
        weight: guard.values(),
        vocabulary,
        width,
        settings,
        pairs,
    };
    let (Some(into), Some(scale)) = (weight_gradient, settings.gradient_scale) else {
        return streamed::forward::<T>(&head, hidden, &values, targets);
    };
    let positions = super::settings::target_positions(targets);
    let chunk_tokens = even_chunks(positions.len(), settings.chunk_tokens);
    let mut logits = Unwritten::<f32>::new(chunk_tokens * vocabulary);
    let mut d_hidden = vec![T::narrow(0.0); values.len()];
    let (mut inputs, mut d_inputs) = (Vec::new(), vec![T::narrow(0.0); chunk_tokens * width]);
    let mut sums = Sums::default();
    for chunk in positions.chunks(chunk_tokens) {
        head.gather(&values, chunk, &mut inputs);
        let logits = head.logits::<T>(&inputs, 0..vocabulary, logits.slots());
        head.losses(chunk, targets, logits, scale, &mut sums);
        update(into, "loss_head", |into| {
            head.add_d_weight::<T>(logits, &inputs, into);
            Ok(())
        })?;
        // Rounding twice to F16 would lose more than this gains.
        let at_targets = match T::DTYPE {
            DType::F32 => head.take_targets(chunk, targets, logits),
            _ => Vec::new(),
        };
        head.d_inputs(logits, 0..vocabulary, &mut d_inputs, Old::Nothing);
        for ((target, factor), row) in at_targets.into_iter().zip(d_inputs.chunks_exact_mut(width.max(1))) {
            head.add_weight(row, [1.0, factor], target);
        }
        for (row, position) in d_inputs.chunks_exact(width.max(1)).zip(chunk) {
            d_hidden[head.place(*position)].copy_from_slice(row);
        }
    }
    Ok(Output {
        sums: super::Sums::Known {
            loss: sums.loss,
            correct: sums.correct,
            each: Vec::new(),
        },
        target_tokens: positions.len() as u64,
        d_hidden: Some(Tensor::from_vec(d_hidden, hidden.shape(), &Device::Cpu)?),
    })
}

impl Head<'_> {
    /// Adds up the losses of a chunk, and turns its logits into the gradient of `scale` times their sum.
    fn losses(&self, positions: &[u32], targets: &[i64], logits: &mut [f32], scale: f32, sums: &mut Sums) {
        let cap = self.cap();
        let mut rows = vec![softmax::RowLoss::default(); positions.len()];
        thread_pool::for_chunks2((logits, self.vocabulary), (&mut rows, 1), |index, logits, row| {
            let target = targets[positions[index] as usize] as usize;
            let loss = softmax::loss(logits, target, cap);
            softmax::gradient(logits, target, loss.lse, cap, scale);
            if self.pairs {
                softmax::narrow_in_place(logits);
            }
            row.fill(loss);
        });
        for row in rows {
            sums.loss += row.loss;
            sums.correct += u64::from(row.correct);
        }
    }

    /// Takes each row's gradient at its target out of d_logits: (target, gradient). It is larger than all others, often a thousand
    /// times, and a product of F32 on AMX is as exact as the largest value of a row allows.
    fn take_targets(&self, positions: &[u32], targets: &[i64], d_logits: &mut [f32]) -> Vec<(usize, f32)> {
        let rows = positions.iter().zip(d_logits.chunks_exact_mut(self.vocabulary));
        rows.map(|(position, row)| {
            let target = targets[*position as usize] as usize;
            (target, std::mem::take(&mut row[target]))
        })
        .collect()
    }

    /// Adds the transpose of d_logits (n, V) times inputs (n, H) to `into` (V, H).
    fn add_d_weight<T: Element>(&self, d_logits: &[f32], inputs: &[T], into: &mut [f32]) {
        let (left, stride) = self.d_logits(d_logits, self.vocabulary);
        let tokens = d_logits.len() / self.vocabulary.max(1);
        let right = element_values(inputs).right(Order::Straight, (self.width, tokens), self.width, 1.0);
        let product = Product {
            left,
            side: Side::Transposed,
            stride,
            right,
        };
        let target = Target {
            start: into.as_mut_ptr(),
            stride: self.width,
            old: Old::Itself(1.0),
        };
        // SAFETY: the gradient has (vocabulary, width).
        unsafe { engine::multiply(&[product], (self.vocabulary, self.width), target) };
    }
}
