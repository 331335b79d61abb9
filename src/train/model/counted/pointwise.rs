//! Ops that pass over memory and multiply no matrices: their cost is their bytes.

/// See [`crate::train::ops::residual`].
pub(in crate::train::model) mod residual {
    use candle_core::{Result, Tensor};

    use crate::train::model::counted::pass;
    use crate::train::ops::residual;
    use crate::train::span::op;

    pub(in crate::train::model) fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let _span = op("residual_add", || pass(x, 3));
        residual::add(x, y)
    }
}

/// See [`crate::train::ops::rounding`].
pub(in crate::train::model) mod rounding {
    use candle_core::{Result, Tensor};

    use crate::train::model::counted::{bytes, pass};
    use crate::train::ops::rounding;
    use crate::train::span::{Work, op};

    pub(in crate::train::model) fn round(values: &Tensor, copy: &Tensor) -> Result<()> {
        let _span = op("round", || Work {
            bytes: bytes(values) + bytes(copy),
            ..pass(copy, 1)
        });
        rounding::round(values, copy)
    }
}

/// See [`crate::train::ops::bias`].
pub(in crate::train::model) mod bias {
    use candle_core::{Result, Tensor};

    use crate::train::model::counted::pass;
    use crate::train::ops::bias;
    use crate::train::span::op;

    pub(in crate::train::model) fn add(y: &Tensor, bias: &Tensor, scale: f64) -> Result<()> {
        let _span = op("bias_add", || pass(y, 2));
        bias::add(y, bias, scale)
    }
}

/// See [`crate::train::ops::gain`].
pub(in crate::train::model) mod gain {
    use candle_core::{Result, Tensor};

    use crate::train::model::counted::pass;
    use crate::train::ops::gain;
    use crate::train::span::op;

    pub(in crate::train::model) use crate::train::ops::gain::NormParts;

    pub(in crate::train::model) fn scale(y: &Tensor, gain: &Tensor, shift: f32) -> Result<()> {
        let _span = op("gain", || pass(y, 2));
        gain::scale(y, gain, shift)
    }

    pub(in crate::train::model) fn backward(
        dz: &Tensor,
        y: &Tensor,
        gain: &Tensor,
        norm: &Tensor,
        d_magnitude: &Tensor,
    ) -> Result<()> {
        let _span = op("gain_backward", || pass(y, 3));
        gain::backward(dz, y, gain, norm, d_magnitude)
    }
}

/// See [`crate::train::ops::dropout`].
pub(in crate::train::model) mod dropout {
    use candle_core::{Result, Tensor};

    use crate::train::model::counted::pass;
    use crate::train::ops::dropout;
    use crate::train::ops::dropout::MaskKey;
    use crate::train::span::op;

    pub(in crate::train::model) fn apply(x: &Tensor, key: &MaskKey, number: u64, p: f64) -> Result<Tensor> {
        let _span = op("dropout", || pass(x, 2));
        dropout::apply(x, key, number, p)
    }
}

/// See [`crate::train::ops::rope`].
pub(in crate::train::model) mod rope {
    use candle_core::{Result, Tensor};

    use crate::train::model::counted::{bytes, pass};
    use crate::train::ops::rope;
    use crate::train::ops::rope::RopeTable;
    use crate::train::span::{Work, op};

    pub(in crate::train::model) use crate::train::ops::rope::HeadNorms;

    pub(in crate::train::model) fn forward_both(
        both: [Tensor; 2],
        table: &RopeTable,
        positions: &Tensor,
    ) -> Result<[Tensor; 2]> {
        let _span = op("rope", || work(&both));
        rope::forward_both(both, table, positions)
    }

    pub(in crate::train::model) fn backward_both(
        both: [Tensor; 2],
        table: &RopeTable,
        positions: &Tensor,
    ) -> Result<[Tensor; 2]> {
        let _span = op("rope_backward", || work(&both));
        rope::backward_both(both, table, positions)
    }

    pub(in crate::train::model) fn forward_normed(
        both: [Tensor; 2],
        norms: &HeadNorms<'_>,
        table: &RopeTable,
        positions: &Tensor,
    ) -> Result<[(Tensor, Tensor); 2]> {
        let _span = op("rope_normed", || work(&both));
        rope::forward_normed([&both[0], &both[1]], norms, table, positions)
    }

    fn work([q, k]: &[Tensor; 2]) -> Work {
        Work {
            bytes: 2 * (bytes(q) + bytes(k)),
            ..pass(q, 2)
        }
    }
}

/// See [`crate::train::ops::rms_norm`].
pub(in crate::train::model) mod rms_norm {
    use candle_core::{Result, Tensor};

    use crate::train::model::counted::pass;
    use crate::train::ops::rms_norm;
    use crate::train::span::op;

    pub(in crate::train::model) fn forward(
        x: &Tensor,
        weight: &Tensor,
        epsilon: f64,
        offset: f32,
    ) -> Result<(Tensor, Tensor)> {
        let _span = op("rms_norm", || pass(x, 2));
        rms_norm::forward(x, weight, epsilon, offset)
    }

    pub(in crate::train::model) fn backward(
        x: &Tensor,
        weight: &Tensor,
        rstd: &Tensor,
        dy: &Tensor,
        offset: f32,
    ) -> Result<Tensor> {
        let _span = op("rms_norm_backward", || pass(x, 3));
        rms_norm::backward(x, weight, rstd, dy, offset)
    }

    pub(in crate::train::model) fn backward_onto(
        x: &Tensor,
        weight: &Tensor,
        rstd: &Tensor,
        dy: &Tensor,
        offset: f32,
        more: &Tensor,
    ) -> Result<Tensor> {
        let _span = op("rms_norm_backward", || pass(x, 4));
        rms_norm::backward_onto(x, weight, rstd, dy, offset, Some(more))
    }

    pub(in crate::train::model) fn weight_gradient(x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let _span = op("rms_norm_weight_gradient", || pass(x, 2));
        rms_norm::weight_gradient(x, rstd, dy)
    }
}

/// See [`crate::train::ops::glu`].
pub(in crate::train::model) mod glu {
    use candle_core::{Result, Tensor};

    use crate::train::model::counted::pass;
    use crate::train::ops::glu;
    pub(in crate::train::model) use crate::train::ops::glu::Activation;
    use crate::train::span::op;

    pub(in crate::train::model) fn forward(gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        let _span = op("glu", || pass(gate, 3));
        glu::forward(gate, up, activation)
    }

    pub(in crate::train::model) fn backward(
        gate: Tensor,
        up: &Tensor,
        dy: Tensor,
        activation: Activation,
    ) -> Result<(Tensor, Tensor)> {
        let _span = op("glu_backward", || pass(&gate, 5));
        glu::backward(gate, up, dy, activation)
    }
}

/// See [`crate::train::ops::embedding`].
pub(in crate::train::model) mod embedding {
    use candle_core::{Result, Tensor};

    use crate::train::model::counted::pass;
    use crate::train::ops::embedding;
    use crate::train::span::{Work, op};

    pub(in crate::train::model) fn forward(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let _span = op("embedding", || rows_of(table, ids, 2));
        embedding::forward(table, ids)
    }

    pub(in crate::train::model) fn backward_add(dy: &Tensor, ids: &Tensor, into: &Tensor) -> Result<()> {
        let _span = op("embedding_backward", || pass(dy, 3));
        embedding::backward_add(dy, ids, into)
    }

    /// A row of the table for each id, `times` read or written.
    fn rows_of(table: &Tensor, ids: &Tensor, times: u64) -> Work {
        let row = table
            .dims2()
            .map_or(0, |(_, width)| width * table.dtype().size_in_bytes());
        Work {
            bytes: times * (ids.elem_count() * row) as u64,
            ..pass(ids, 1)
        }
    }
}
