//! Builds groups of linear layers with their adapters.

use candle_core::{DType, Tensor};

use super::adapted_group::AdaptedGroup;
use super::adapter_pass::ColumnOwners;
use super::builder::Builder;
use super::dora::{Dora, squared_row_norms};
use super::group_input::AdapterInput;
use super::linear::LinearGroup;
use super::matrix::Matrix;
use super::merged_weight::MergedWeight;
use super::parameter::Trained;
use super::projection::{AdapterOutput, Projection};
use crate::TrainError;
use crate::span::Module;
use crate::tensor;
use peft_tune_core::plan::{AdaptedLinear, GroupPlan, LinearSlots, ProjectionPlan};
use peft_tune_core::predict::Right;

/// The name of `module` in `layer`, or of one beside all layers where that is empty.
fn inside(layer: &str, module: &str) -> String {
    match layer {
        "" => module.to_owned(),
        layer => format!("{layer}.{module}"),
    }
}

impl Builder<'_> {
    /// Projections of one input, whether they have a tensor each or share one.
    pub(super) fn group(&self, layer: &str, module: Module, plan: &GroupPlan) -> Result<LinearGroup, TrainError> {
        self.group_of(layer, module, plan, Right::Weight)
    }

    /// The group of [`Builder::group`], whose weights are stored as `right` says.
    fn group_of(&self, layer: &str, module: Module, plan: &GroupPlan, right: Right) -> Result<LinearGroup, TrainError> {
        let (mut slots, mut parts) = (Vec::with_capacity(plan.adapters.len()), Vec::new());
        for adapter in &plan.adapters {
            let (linear, of_linear) = self.adapter_of(&inside(layer, adapter.module))?;
            slots.push(of_linear.lora_a);
            parts.push(linear.parts.as_slice());
        }
        let input = |slot: &usize| {
            Ok(AdapterInput {
                a: self.slot(*slot)?,
                number: *slot as u64,
            })
        };
        let projections = plan.projections.iter();
        let adapted = AdaptedGroup {
            projections: projections
                .map(|projection| self.projection(&inside(layer, projection.module), projection, right))
                .collect::<Result<_, _>>()?,
            adapters: slots.iter().map(input).collect::<candle_core::Result<_>>()?,
            stacked: self.stacked(&slots)?,
            owners: ColumnOwners::of_ranks(parts.into_iter(), self.base.device())?,
        };
        Ok(LinearGroup {
            module,
            adapted,
            members: Vec::new(),
        })
    }

    /// Builds the group of [`Builder::group`] from layers that multiply F32 whatever the rest does: nothing is rounded.
    pub(super) fn exact_group(&self, layer: &str, module: Module, plan: &GroupPlan) -> Result<LinearGroup, TrainError> {
        let exact = Builder { rounded: None, ..*self };
        exact.group_of(layer, module, plan, Right::Adapter)
    }

    /// The adapter that the plan has on `module`.
    pub(super) fn adapter_of(&self, module: &str) -> candle_core::Result<(&AdaptedLinear, &LinearSlots)> {
        let found = self.trainables.adapters.get(module).copied();
        found.ok_or_else(|| candle_core::Error::Msg(format!("no adapter on {module}")))
    }

    fn projection(&self, module: &str, plan: &ProjectionPlan, right: Right) -> Result<Projection, TrainError> {
        let (name, rows) = (format!("{module}.weight"), &plan.rows);
        let weight = self.matrix(&name)?.rows(rows.start, rows.len())?;
        let bias = match plan.bias {
            true => Some(
                self.parameter(&format!("{module}.bias"))?
                    .rows(rows.start, rows.len())?,
            ),
            false => None,
        };
        let adapter = match plan.adapter {
            Some(input) => Some(self.adapter(&weight, module, plan, input)?),
            None => None,
        };
        let (weight, merged) = self.merged(weight, adapter.is_some())?;
        Ok(Projection {
            module: plan.module,
            weight,
            right,
            bias,
            adapter,
            merged,
        })
    }

    /// The weight and the codes of it with its adapter, where the training rounds what is merged; without an adapter the weight is the
    /// codes, once for all.
    fn merged(&self, weight: Matrix, has_adapter: bool) -> Result<(Matrix, Option<MergedWeight>), TrainError> {
        let form = self.trainables.plan.quantization_aware;
        let shape = weight.factor().dims2()?;
        let Some(merged) = MergedWeight::new(shape, form, self.dtype, self.base)? else {
            return Ok((weight, None));
        };
        if has_adapter {
            return Ok((weight, Some(merged)));
        }
        if self.base.paper().is_none() {
            merged.refresh(&weight, None, |rows| rows.clone().into())?;
        }
        Ok((merged.into_frozen(), None))
    }

    fn adapter(
        &self,
        weight: &Matrix,
        module: &str,
        plan: &ProjectionPlan,
        input: usize,
    ) -> Result<AdapterOutput, TrainError> {
        let (linear, slots) = self.adapter_of(module)?;
        let rows = |slot: usize| self.slot(slot)?.rows(plan.rows.start, plan.rows.len());
        let dora = match slots.magnitude {
            Some(slot) => Some(Dora::new(rows(slot)?, self.squared_row_norms(weight)?)?),
            None => None,
        };
        Ok(AdapterOutput {
            input,
            b: rows(slots.lora_b)?,
            bias: slots.lora_bias.map(rows).transpose()?,
            dora,
            scaling: linear.scaling,
        })
    }

    /// |W_j|^2 of each row of a weight; nothing is read on paper.
    fn squared_row_norms(&self, weight: &Matrix) -> candle_core::Result<Tensor> {
        match self.base.paper() {
            Some(_) => tensor::on_paper(weight.factor().dims2()?.0, DType::F32),
            None => squared_row_norms(&weight.dense()?),
        }
    }

    /// One view over several lora_a, where each follows the one before in the flat buffer.
    fn stacked(&self, slots: &[usize]) -> Result<Option<Trained>, TrainError> {
        let parameters = self.trainables.parameters;
        let layout = parameters.layout.slots();
        let (Some(first), true) = (slots.first(), slots.len() > 1) else {
            return Ok(None);
        };
        let neighbours = slots
            .windows(2)
            .all(|pair| layout[pair[0]].offset + layout[pair[0]].elements() == layout[pair[1]].offset);
        if !neighbours {
            return Ok(None);
        }
        let rows = slots.iter().map(|slot| layout[*slot].shape[0]).sum();
        let shape = [rows, layout[*first].shape[1]];
        Ok(Some(self.trained(layout[*first].offset, &shape)?))
    }
}
