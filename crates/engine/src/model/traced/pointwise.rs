//! Ops that pass over memory and multiply no matrices: their cost is their bytes.

/// See [`peft_tune_kernels::ops::residual`].
pub(in crate::model) mod residual {
    use candle_core::{Result, Tensor};

    use crate::model::traced::pass;
    use crate::span::op;
    use peft_tune_kernels::ops::residual;

    pub(in crate::model) fn add(x: &Tensor, y: &Tensor) -> Result<Tensor> {
        let _span = op("residual_add", || pass(x, 3));
        residual::add(x, y)
    }
}

/// See [`peft_tune_kernels::ops::rounding`].
pub(in crate::model) mod rounding {
    use candle_core::{Result, Tensor};

    use crate::model::traced::{bytes, pass};
    use crate::span::{Work, op};
    use peft_tune_kernels::ops::rounding;

    pub(in crate::model) fn round(values: &Tensor, copy: &Tensor) -> Result<()> {
        let _span = op("round", || Work {
            bytes: bytes(values) + bytes(copy),
            ..pass(copy, 1)
        });
        rounding::round(values, copy)
    }
}

/// See [`peft_tune_kernels::ops::bias`].
pub(in crate::model) mod bias {
    use candle_core::{Result, Tensor};

    use crate::model::traced::pass;
    use crate::span::op;
    use peft_tune_kernels::ops::bias;

    pub(in crate::model) fn add(y: &Tensor, bias: &Tensor, scale: f64) -> Result<()> {
        let _span = op("bias_add", || pass(y, 2));
        bias::add(y, bias, scale)
    }
}

/// See [`peft_tune_kernels::ops::gain`].
pub(in crate::model) mod gain {
    use candle_core::{Result, Tensor};

    use crate::model::traced::pass;
    use crate::span::op;
    use peft_tune_kernels::ops::gain;

    pub(in crate::model) use peft_tune_kernels::ops::gain::NormParts;

    pub(in crate::model) fn scale(y: &Tensor, gain: &Tensor, shift: f32) -> Result<()> {
        let _span = op("gain", || pass(y, 2));
        gain::scale(y, gain, shift)
    }

    pub(in crate::model) fn backward(
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

/// See [`peft_tune_kernels::ops::dropout`].
pub(in crate::model) mod dropout {
    use candle_core::{Result, Tensor};

    use crate::model::traced::pass;
    use crate::span::op;
    use peft_tune_kernels::ops::dropout;
    use peft_tune_kernels::ops::dropout::MaskKey;

    pub(in crate::model) fn apply(x: &Tensor, key: &MaskKey, number: u64, p: f64) -> Result<Tensor> {
        let _span = op("dropout", || pass(x, 2));
        dropout::apply(x, key, number, p)
    }
}

/// See [`peft_tune_kernels::ops::rope`].
pub(in crate::model) mod rope {
    use candle_core::{Result, Tensor};

    use crate::model::traced::{bytes, pass};
    use crate::span::{Work, op};
    use peft_tune_kernels::ops::rope;
    use peft_tune_kernels::ops::rope::RopeTable;

    pub(in crate::model) use peft_tune_kernels::ops::rope::HeadNorms;

    pub(in crate::model) fn forward_both(
        both: [Tensor; 2],
        table: &RopeTable,
        positions: &Tensor,
    ) -> Result<[Tensor; 2]> {
        let _span = op("rope", || work(&both));
        rope::forward_both(both, table, positions)
    }

    pub(in crate::model) fn backward_both(
        both: [Tensor; 2],
        table: &RopeTable,
        positions: &Tensor,
    ) -> Result<[Tensor; 2]> {
        let _span = op("rope_backward", || work(&both));
        rope::backward_both(both, table, positions)
    }

    pub(in crate::model) fn forward_normed(
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

/// See [`peft_tune_kernels::ops::rms_norm`].
pub(in crate::model) mod rms_norm {
    use candle_core::{Result, Tensor};

    use crate::model::traced::pass;
    use crate::span::op;
    use peft_tune_kernels::ops::rms_norm;

    pub(in crate::model) fn forward(
        x: &Tensor,
        weight: &Tensor,
        epsilon: f64,
        offset: f32,
    ) -> Result<(Tensor, Tensor)> {
        let _span = op("rms_norm", || pass(x, 2));
        rms_norm::forward(x, weight, epsilon, offset)
    }

    pub(in crate::model) fn backward(
        x: &Tensor,
        weight: &Tensor,
        rstd: &Tensor,
        dy: &Tensor,
        offset: f32,
    ) -> Result<Tensor> {
        let _span = op("rms_norm_backward", || pass(x, 3));
        rms_norm::backward(x, weight, rstd, dy, offset)
    }

    pub(in crate::model) fn backward_onto(
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

    pub(in crate::model) fn weight_gradient(x: &Tensor, rstd: &Tensor, dy: &Tensor) -> Result<Tensor> {
        let _span = op("rms_norm_weight_gradient", || pass(x, 2));
        rms_norm::weight_gradient(x, rstd, dy)
    }
}

/// See [`peft_tune_kernels::ops::glu`].
pub(in crate::model) mod glu {
    use candle_core::{Result, Tensor};

    use crate::model::traced::pass;
    use crate::span::op;
    use peft_tune_kernels::ops::glu;
    pub(in crate::model) use peft_tune_kernels::ops::glu::Activation;

    pub(in crate::model) fn forward(gate: &Tensor, up: &Tensor, activation: Activation) -> Result<Tensor> {
        let _span = op("glu", || pass(gate, 3));
        glu::forward(gate, up, activation)
    }

    pub(in crate::model) fn backward(
        gate: Tensor,
        up: &Tensor,
        dy: Tensor,
        activation: Activation,
    ) -> Result<(Tensor, Tensor)> {
        let _span = op("glu_backward", || pass(&gate, 5));
        glu::backward(gate, up, dy, activation)
    }
}

/// See [`peft_tune_kernels::ops::embedding`].
pub(in crate::model) mod embedding {
    use candle_core::{Result, Tensor};

    use crate::model::traced::pass;
    use crate::span::{Work, op};
    use peft_tune_kernels::ops::embedding;

    pub(in crate::model) fn forward(table: &Tensor, ids: &Tensor) -> Result<Tensor> {
        let _span = op("embedding", || rows_of(table, ids, 2));
        embedding::forward(table, ids)
    }

    pub(in crate::model) fn backward_add(dy: &Tensor, ids: &Tensor, into: &Tensor) -> Result<()> {
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
