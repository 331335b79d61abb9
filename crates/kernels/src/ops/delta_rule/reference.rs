//! The op in plain candle ops: token by token, with autograd for the gradients.

use super::inputs::{Gradients, Inputs};
use super::unit_rows::EPSILON;
use crate::kernel_form::widen;
use candle_core::{D, Result, Tensor, Var};

/// See [`super::forward`].
pub fn forward(inputs: &Inputs<'_>, states: Option<&Tensor>) -> Result<Tensor> {
    let dtype = inputs.mixed.dtype();
    let wide = [inputs.mixed, inputs.a, inputs.b].map(widen);
    let [mixed, a, b] = wide;
    rule([&mixed?, &a?, &b?], inputs, states)?.to_dtype(dtype)
}

/// See [`super::backward`].
pub fn backward(inputs: &Inputs<'_>, d_o: &Tensor) -> Result<Gradients> {
    let dtype = inputs.mixed.dtype();
    let variable = |tensor: &Tensor| Var::from_tensor(&widen(tensor)?.copy()?);
    let all = [variable(inputs.mixed)?, variable(inputs.a)?, variable(inputs.b)?];
    let o = rule(
        [all[0].as_tensor(), all[1].as_tensor(), all[2].as_tensor()],
        inputs,
        None,
    )?;
    let gradients = (o * widen(d_o)?)?.sum_all()?.backward()?;
    let of = |variable: &Var| match gradients.get(variable) {
        Some(gradient) => gradient.to_dtype(dtype),
        None => variable.zeros_like()?.to_dtype(dtype),
    };
    Ok(Gradients {
        mixed: of(&all[0])?,
        a: of(&all[1])?,
        b: of(&all[2])?,
    })
}

fn rule([mixed, a, b]: [&Tensor; 3], inputs: &Inputs<'_>, states: Option<&Tensor>) -> Result<Tensor> {
    let (heads, tokens, dtype) = (inputs.heads, mixed.dim(0)?, mixed.dtype());
    let keys = heads.keys * heads.key_width;
    let of_heads = |start: usize| -> Result<Tensor> {
        let rows = mixed
            .narrow(1, start, keys)?
            .reshape((tokens, heads.keys, 1, heads.key_width))?;
        let length = (rows.sqr()?.sum_keepdim(D::Minus1)? + f64::from(EPSILON))?.sqrt()?;
        let unit = rows.broadcast_div(&length)?;
        unit.repeat((1, 1, heads.group(), 1))?
            .reshape((tokens, heads.values, heads.key_width, 1))
    };
    let (q, k) = ((of_heads(0)? / (heads.key_width as f64).sqrt())?, of_heads(keys)?);
    let v = mixed.narrow(1, 2 * keys, heads.output_width())?;
    let v = v.reshape((tokens, heads.values, 1, heads.value_width))?;
    let [rate, shift] = [inputs.rate, inputs.shift].map(|one| one.to_dtype(dtype));
    // log(1 + exp(x)) = max(x, 0) + log(1 + exp(-|x|))
    let x = a.broadcast_add(&shift?)?;
    let softplus = (x.relu()? + (x.abs()?.neg()?.exp()? + 1.0)?.log()?)?;
    let alpha = softplus.broadcast_mul(&rate?.exp()?)?.neg()?.exp()?;
    let beta = (b.neg()?.exp()? + 1.0)?.recip()?;
    let gate = |of: &Tensor, token: usize| of.get(token)?.reshape((heads.values, 1, 1));
    let mut all = Vec::with_capacity(tokens);
    for (document, pair) in inputs.offsets.windows(2).enumerate() {
        let mut state = match states {
            Some(states) => states.get(document)?.to_dtype(dtype)?,
            None => Tensor::zeros(
                (heads.values, heads.key_width, heads.value_width),
                dtype,
                mixed.device(),
            )?,
        };
        for token in pair[0] as usize..pair[1] as usize {
            let (q, k, v) = (q.get(token)?, k.get(token)?, v.get(token)?);
            let decayed = state.broadcast_mul(&gate(&alpha, token)?)?;
            let rest = (v - decayed.broadcast_mul(&k)?.sum_keepdim(1)?)?;
            let write = rest.broadcast_mul(&gate(&beta, token)?)?;
            state = (decayed + k.broadcast_mul(&write)?)?;
            all.push(state.broadcast_mul(&q)?.sum(1)?.reshape((1, heads.output_width()))?);
        }
        if let Some(states) = states {
            states.slice_set(&state.to_dtype(states.dtype())?.unsqueeze(0)?, 0, document)?;
        }
    }
    match all.as_slice() {
        [] => Tensor::zeros((0, heads.output_width()), dtype, mixed.device()),
        all => Tensor::cat(all, 0),
    }
}
