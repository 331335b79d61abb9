//! How an adapter starts.
//!
//! | init | lora_a (r, in) | lora_b (out, r) |
//! |---|---|---|
//! | kaiming | uniform in [-1/sqrt(in), 1/sqrt(in)) (He et al. with a = sqrt 5, PEFT's default) | zero |
//! | gaussian | normal, deviation 1/r | zero |
//!
//! Every parameter has a generator of its own, seeded by the recipe's seed and the parameter's name: its values do not
//! depend on which other parameters there are, nor on their order.

use candle_core::{Device, Tensor};
use rand::{Rng, RngExt, SeedableRng};
use rand_distr::StandardNormal;
use rand_pcg::Pcg64;
use sha2::{Digest, Sha256};

use crate::Parameters;
use peft_tune_core::plan::{AdaptedLinear, AdapterPlan, AdapterSlots, ParameterSlot};
use peft_tune_core::recipe::AdapterInit;

use super::error::AdapterError;

/// Fills the adapters' slots with their start values. Slots of whole base parameters and magnitudes are left alone:
/// they start from the base model's weights.
///
/// [`AdapterInit::Pissa`] starts as [`AdapterInit::Kaiming`] here; [`fill_pissa`](super::fill_pissa) continues from
/// there.
pub fn fill(plan: &AdapterPlan, slots: &AdapterSlots, parameters: &Parameters, seed: u64) -> Result<(), AdapterError> {
    for (linear, slots) in plan.linears.iter().zip(&slots.linears) {
        let slot = &parameters.layout.slots()[slots.lora_a];
        let values = lora_a(plan.settings.init, linear, slot, seed);
        set(parameters, slots.lora_a, values)?;
        for zeroed in [Some(slots.lora_b), slots.lora_bias].into_iter().flatten() {
            let elements = parameters.layout.slots()[zeroed].elements();
            set(parameters, zeroed, vec![0.0; elements])?;
        }
    }
    Ok(())
}

/// Writes `values` over parameter `index` of the flat buffer.
pub(super) fn set(parameters: &Parameters, index: usize, values: Vec<f32>) -> Result<(), AdapterError> {
    let offset = parameters.layout.slots()[index].offset;
    let values = Tensor::from_vec(values, parameters.layout.slots()[index].elements(), &Device::Cpu)?;
    let values = values.to_device(parameters.values.device())?;
    Ok(parameters.values.slice_set(&values, 0, offset)?)
}

fn lora_a(init: AdapterInit, linear: &AdaptedLinear, slot: &ParameterSlot, seed: u64) -> Vec<f32> {
    let mut generator = generator(seed, &slot.name);
    let elements = slot.elements();
    match init {
        AdapterInit::Kaiming | AdapterInit::Pissa => {
            let bound = 1.0 / (linear.linear.inputs as f64).sqrt();
            (0..elements).map(|_| uniform(&mut generator, bound)).collect()
        }
        AdapterInit::Gaussian => {
            let deviation = 1.0 / linear.rank as f64;
            let mut normal = || deviation * generator.sample::<f64, _>(StandardNormal);
            (0..elements).map(|_| normal() as f32).collect()
        }
    }
}

/// Uniform in [-bound, bound) from the upper 53 bits of one draw.
fn uniform(generator: &mut Pcg64, bound: f64) -> f32 {
    let unit = (generator.next_u64() >> 11) as f64 / (1u64 << 53) as f64;
    ((2.0 * unit - 1.0) * bound) as f32
}

fn generator(seed: u64, name: &str) -> Pcg64 {
    let mut digest = Sha256::new();
    digest.update(seed.to_le_bytes());
    digest.update(name.as_bytes());
    Pcg64::from_seed(digest.finalize().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::plan::{BaseShape, LinearShape, ParameterLayout};
    use peft_tune_core::recipe::{AdapterSettings, TargetModules};

    fn start(init: AdapterInit, targets: &[&str], seed: u64) -> (AdapterPlan, AdapterSlots, Parameters) {
        let linear = |name: &str| LinearShape {
            name: format!("model.layers.0.{name}"),
            inputs: 64,
            outputs: 48,
            bias: false,
            ..LinearShape::default()
        };
        let base = BaseShape {
            within: None,
            layers: 1,
            linears: vec![linear("q_proj"), linear("k_proj")],
            ..BaseShape::default()
        };
        let settings = AdapterSettings {
            init,
            rank: 16,
            target_modules: TargetModules::Named(targets.iter().map(|&name| name.to_owned()).collect()),
            ..Default::default()
        };
        let plan = AdapterPlan::new(&settings, &base).unwrap();
        let mut layout = ParameterLayout::default();
        let slots = plan.push_slots(&mut layout);
        let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
        fill(&plan, &slots, &parameters, seed).unwrap();
        (plan, slots, parameters)
    }

    fn values(parameters: &Parameters, index: usize) -> Vec<f32> {
        parameters
            .value(index)
            .unwrap()
            .flatten_all()
            .unwrap()
            .to_vec1()
            .unwrap()
    }

    #[test]
    fn kaiming_fills_its_interval_and_lora_b_is_zero() {
        let (_, slots, parameters) = start(AdapterInit::Kaiming, &["q_proj"], 1);
        let a = values(&parameters, slots.linears[0].lora_a);
        let largest = a.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
        let variance = a.iter().map(|value| value * value).sum::<f32>() / a.len() as f32;
        assert!((0.12..=0.125).contains(&largest), "{largest}");
        assert!((variance * 3.0 * 64.0 - 1.0).abs() < 0.1, "{variance}");
        assert!(
            values(&parameters, slots.linears[0].lora_b)
                .iter()
                .all(|value| *value == 0.0)
        );
    }

    #[test]
    fn gaussian_has_the_deviation_one_over_rank() {
        let (_, slots, parameters) = start(AdapterInit::Gaussian, &["q_proj"], 1);
        let a = values(&parameters, slots.linears[0].lora_a);
        let variance = a.iter().map(|value| value * value).sum::<f32>() / a.len() as f32;
        assert!((variance.sqrt() * 16.0 - 1.0).abs() < 0.06, "{variance}");
    }

    #[test]
    fn values_depend_on_seed_and_name_only() {
        let (_, alone, first) = start(AdapterInit::Kaiming, &["k_proj"], 7);
        let (_, both, second) = start(AdapterInit::Kaiming, &["q_proj", "k_proj"], 7);
        let (_, other, third) = start(AdapterInit::Kaiming, &["k_proj"], 8);
        let k = values(&first, alone.linears[0].lora_a);
        assert_eq!(k, values(&second, both.linears[1].lora_a));
        assert_ne!(k, values(&second, both.linears[0].lora_a));
        assert_ne!(k, values(&third, other.linears[0].lora_a));
    }
}
