//! Several adapters of one base model as one plan: their lora_a lie below each other and their lora_b beside each other, so that
//! rows of different adapters go through each product together.

use std::collections::HashMap;

use super::adapted_linear::AdaptedLinear;
use super::adapter::AdapterPlan;
use super::error::PlanError;
use super::model::ModelPlan;
use super::shape::{BaseShape, LinearKind};
use crate::architecture::Architecture;

impl ModelPlan {
    /// The adapters `plans`, whose ranks [`AdaptedLinear::parts`] tells. lora_b holds each adapter's times its scaling: the scaling of
    /// the whole is 1.
    ///
    /// # Errors
    /// [`PlanError::NotSideBySide`] for an adapter with more than lora_a and lora_b of linear layers.
    pub fn side_by_side(architecture: &Architecture, plans: &[Self]) -> Result<Self, PlanError> {
        let mut parts: HashMap<&str, Vec<usize>> = HashMap::new();
        let mut first: Option<&AdapterPlan> = None;
        for (index, plan) in plans.iter().enumerate() {
            let adapter = plan.adapter.as_ref().ok_or(PlanError::NotSideBySide {
                number: index + 1,
                what: "it is no adapter",
            })?;
            if let Some(what) = beyond_products(adapter) {
                let number = index + 1;
                return Err(PlanError::NotSideBySide { number, what });
            }
            for linear in &adapter.linears {
                let name = linear.linear.name.as_str();
                parts.entry(name).or_insert_with(|| vec![0; plans.len()])[index] = linear.rank;
            }
            first.get_or_insert(adapter);
        }
        let Some(first) = first else {
            return Ok(Self::frozen(architecture));
        };
        let base = BaseShape::new(architecture);
        let linears = base.linears.iter().filter_map(|linear| {
            let parts = parts.remove(linear.name.as_str())?;
            let rank = parts.iter().sum();
            Some(AdaptedLinear {
                linear: linear.clone(),
                module: linear.name.clone(),
                by_parameter: false,
                joined: 1,
                rank,
                alpha: rank as f64,
                scaling: 1.0,
                parts,
            })
        });
        let adapter = AdapterPlan {
            linears: linears.collect(),
            ..first.clone()
        };
        Ok(Self::of_adapter(architecture, adapter))
    }
}

/// Part of an adapter that is no product of rows.
fn beyond_products(adapter: &AdapterPlan) -> Option<&'static str> {
    let of_experts = |linear: &AdaptedLinear| linear.linear.kind != LinearKind::Layer;
    Some(match adapter {
        AdapterPlan { settings, .. } if settings.dora => "it has magnitudes (`use_dora`)",
        AdapterPlan { settings, .. } if settings.lora_bias => "its lora_B has biases (`lora_bias`)",
        AdapterPlan { whole, .. } if !whole.is_empty() => {
            "it has modules or biases of its own (`modules_to_save`, `bias`)"
        }
        AdapterPlan { linears, .. } if linears.iter().any(of_experts) => "it is on experts or a router",
        AdapterPlan { settings, .. } if settings.init == crate::recipe::AdapterInit::Pissa => {
            "it changes the base weights (`init_lora_weights: pissa`)"
        }
        _ => return None,
    })
}
