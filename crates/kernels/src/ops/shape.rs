//! Shape checks that name the op, the expected shape and the shape that came.

use candle_core::{Error, Result, Shape, Tensor};

/// Fails unless `tensor` has exactly the dimensions `expected`; `what` names the op and its argument.
pub(super) fn expect(tensor: &Tensor, expected: &[usize], what: &str) -> Result<()> {
    if tensor.dims() == expected {
        return Ok(());
    }
    Err(Error::UnexpectedShape {
        msg: what.to_owned(),
        expected: Shape::from(expected),
        got: tensor.shape().clone(),
    }
    .bt())
}
