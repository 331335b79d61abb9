//! The decoder of several trainings on one base: frozen layers with the adapters of all, and the losses of each.

use candle_core::Result;

use super::decoder::Decoder;
use super::stream::Stream;
use crate::tensor::Tensor;
use peft_tune_kernels::ops::loss_head::Sums;

impl Decoder {
    /// Joins the adapters of `members` to this decoder, which trains nothing: decoders on the same base, of which each
    /// has its own rows.
    ///
    /// # Errors
    /// Decoders of other layers, or with adapters beside the linear layers of attention and MLP.
    pub(crate) fn joined(mut self, members: &[&Self]) -> Result<Self> {
        for (index, layer) in self.layers.iter_mut().enumerate() {
            for member in members {
                layer.mixer.pass_gradients_of(&member.layers[index].mixer);
                let (groups, own) = (layer.groups_mut(), member.layers[index].groups());
                if groups.len() != own.len() {
                    candle_core::bail!("layer {index} has parts that no trainings share yet");
                }
                for (group, own) in groups.into_iter().zip(own) {
                    if group.adapted.projections.len() != own.adapted.projections.len() {
                        candle_core::bail!("layer {index} has other projections in one training");
                    }
                    group.members.push(own.adapted.clone());
                }
            }
        }
        let first = members.iter().map(|member| member.first_on_tape).min();
        self.first_on_tape = first.unwrap_or(self.first_on_tape);
        self.rounded = members.iter().flat_map(|member| member.rounded.clone()).collect();
        Ok(self)
    }

    /// Outputs of the loss head on each training's rows, as it would find them alone: `None` where there are none.
    /// Where the parts have factors for their gradients, those of all rows (T, H).
    pub(crate) fn losses_of_parts(
        &self,
        stream: &Stream<'_>,
        normed: &Tensor,
        scales: &[Option<f32>],
    ) -> Result<(Vec<Option<Sums>>, Option<Tensor>)> {
        let wants_gradient = scales.iter().any(Option::is_some);
        let gradients = wants_gradient.then(|| normed.zeros_like()).transpose()?;
        let mut all = Vec::with_capacity(scales.len());
        for (index, (part, scale)) in stream.pass.parts.iter().zip(scales).enumerate() {
            if part.rows.is_empty() {
                all.push(None);
                continue;
            }
            let rows = normed.narrow(0, part.rows.start, part.rows.len())?;
            let output = self.loss_of(&rows, stream.targets_of(index)?, *scale)?;
            if let (Some(gradients), Some(of_part)) = (&gradients, &output.d_hidden) {
                gradients.slice_set(of_part, 0, part.rows.start)?;
            }
            all.push(Some(output.sums));
        }
        Ok((all, gradients))
    }
}
