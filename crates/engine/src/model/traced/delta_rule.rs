//! The gated delta rule, with the products of its states.

use candle_core::Result;

use super::{Documents, Tensor, bytes, storage};
use crate::span::{Shape, Work, op};
use crate::tensor::PaperTensor;
use peft_tune_core::architecture::DeltaRule;
use peft_tune_core::predict::{self, MemoryCategory, delta_rule_flops};
use peft_tune_kernels::ops::delta_rule;
pub(in crate::model) use peft_tune_kernels::ops::delta_rule::Heads;

/// See [`delta_rule::Inputs`].
#[derive(Clone, Copy, Debug)]
pub(in crate::model) struct Inputs<'a> {
    pub mixed: &'a Tensor,
    pub a: &'a Tensor,
    pub b: &'a Tensor,
    pub rate: &'a candle_core::Tensor,
    pub shift: &'a candle_core::Tensor,
    pub heads: Heads,
    pub documents: Documents<'a>,
}

/// See [`delta_rule::Gradients`].
#[derive(Debug)]
pub(in crate::model) struct Gradients {
    pub mixed: Tensor,
    pub a: Tensor,
    pub b: Tensor,
}

impl<'a> Inputs<'a> {
    fn kernel(&self) -> Result<delta_rule::Inputs<'a>> {
        Ok(delta_rule::Inputs {
            mixed: self.mixed.real()?,
            a: self.a.real()?,
            b: self.b.real()?,
            rate: self.rate,
            shift: self.shift,
            heads: self.heads,
            offsets: self.documents.real()?.offsets,
        })
    }
}

/// Returns o; see [`delta_rule::forward`].
pub(in crate::model) fn forward(inputs: &Inputs<'_>, states: Option<&candle_core::Tensor>) -> Result<Tensor> {
    // What a state is multiplied with: k, the write and q.
    let _span = op("delta_rule", || Work {
        flops: flops(inputs, Direction::Forward),
        bytes: 2 * bytes(inputs.mixed),
        ..described(inputs.mixed)
    });
    if let Some(paper) = inputs.mixed.paper() {
        let o = of_width(paper, inputs.heads.output_width())?;
        run_on_paper(paper, inputs, Direction::Forward)?;
        return Ok(o);
    }
    Ok(delta_rule::forward(&inputs.kernel()?, states)?.into())
}

/// See [`delta_rule::backward`].
pub(in crate::model) fn backward(inputs: &Inputs<'_>, d_o: &Tensor) -> Result<Gradients> {
    let _span = op("delta_rule_backward", || Work {
        flops: flops(inputs, Direction::Backward),
        recomputed_flops: 8 * states_passed(inputs),
        bytes: 3 * bytes(inputs.mixed) + bytes(d_o),
        ..described(inputs.mixed)
    });
    if let Some(paper) = inputs.mixed.paper() {
        let gradients = Gradients {
            mixed: of_width(paper, inputs.heads.input_width())?,
            a: of_width(paper, inputs.heads.values)?,
            b: of_width(paper, inputs.heads.values)?,
        };
        run_on_paper(paper, inputs, Direction::Backward)?;
        return Ok(gradients);
    }
    let delta_rule::Gradients { mixed, a, b } = delta_rule::backward(&inputs.kernel()?, d_o.real()?)?;
    Ok(Gradients {
        mixed: mixed.into(),
        a: a.into(),
        b: b.into(),
    })
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Direction {
    Forward,
    Backward,
}

/// A tensor of as many rows.
fn of_width(paper: &PaperTensor, width: usize) -> Result<Tensor> {
    Ok(paper.fresh((paper.shape().dims2()?.0, width), paper.dtype()).into())
}

/// Tells the ledger of the rule, and takes what that takes besides its results: decays and strengths in F32, and what each task holds.
fn run_on_paper(paper: &PaperTensor, inputs: &Inputs<'_>, direction: Direction) -> Result<()> {
    let Heads {
        keys,
        values,
        key_width,
        value_width,
    } = inputs.heads;
    let rule = DeltaRule {
        taps: 0,
        key_heads: keys,
        value_heads: values,
        key_width,
        value_width,
    };
    let work = predict::Work::DeltaRule {
        state: values * rule.state(),
        backward: direction == Direction::Backward,
    };
    paper.ledger().run(work, 1.0);
    let (count, longest) = (inputs.documents.sum(|_| 1.0), inputs.documents.longest());
    let task = match direction {
        Direction::Forward => rule.forward_bytes(longest),
        Direction::Backward => rule.backward_bytes(longest),
    };
    let tasks = (count.ceil() as usize * keys).min(paper.ledger().host().threads) as u64;
    let wide = (4 * inputs.mixed.dims2()?.0 * 2 * values) as u64;
    paper
        .ledger()
        .spike(MemoryCategory::AttentionWorkspace, wide + tasks * task);
    Ok(())
}

fn flops(inputs: &Inputs<'_>, direction: Direction) -> u64 {
    delta_rule_flops(direction == Direction::Backward) as u64 * states_passed(inputs)
}

/// Values of all states that the tokens pass.
fn states_passed(inputs: &Inputs<'_>) -> u64 {
    let tokens = inputs.mixed.dims2().map_or(0, |(tokens, _)| tokens);
    (tokens * inputs.heads.values * inputs.heads.state()) as u64
}

fn described(mixed: &Tensor) -> Work {
    Work {
        storage: storage(mixed.dtype()),
        shape: Shape::with_tokens(mixed.dims(), 0),
        ..Work::default()
    }
}
