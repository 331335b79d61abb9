//! Optimizers as the trainer sees them: forms that agree, states, and what an update takes.

use super::*;
use crate::ParameterKind;
use peft_tune_core::predict::{Host, Stage};

/// Parameters of every kind with values and gradients that a formula gives.
fn parameters() -> Parameters {
    let mut layout = ParameterLayout::default();
    layout.push("a", &[16, 300], ParameterKind::LoraA);
    layout.push("b", &[40, 16], ParameterKind::LoraB);
    layout.push("bias", &[40], ParameterKind::Bias);
    let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
    set(&parameters.values, 0.1, 0.37);
    set(&parameters.gradients, 1.0, 0.91);
    parameters
}

fn set(buffer: &Tensor, scale: f32, frequency: f32) {
    let elements = buffer.elem_count();
    let values: Vec<f32> = (0..elements)
        .map(|index| scale * (index as f32 * frequency).sin())
        .collect();
    buffer
        .slice_set(&Tensor::from_vec(values, elements, &Device::Cpu).unwrap(), 0, 0)
        .unwrap();
}

/// Leaves one of four values; the others become 0.
fn thin(buffer: &Tensor) {
    let mut values = buffer.to_vec1::<f32>().unwrap();
    for (index, value) in values.iter_mut().enumerate() {
        if !index.is_multiple_of(4) {
            *value = 0.0;
        }
    }
    let thinned = Tensor::from_vec(values, buffer.elem_count(), &Device::Cpu).unwrap();
    buffer.slice_set(&thinned, 0, 0).unwrap();
}

fn settings(kind: OptimizerKind) -> OptimizerSettings {
    OptimizerSettings {
        kind,
        weight_decay: 0.1,
        loraplus_ratio: Some(4.0),
        ..Default::default()
    }
}

#[test]
fn the_plain_form_agrees_with_the_fused_one() {
    for kind in OptimizerKind::ALL {
        let (fused, plain) = (parameters(), parameters());
        let new = || {
            Optimizer::new(&settings(kind), &fused.layout, &Device::Cpu)
                .unwrap()
                .rule
        };
        let (first, second) = (new(), new());
        for number in 1..=3 {
            let step = Step {
                number,
                learning_rate: 1e-2,
                share: 1.0 / number as f64,
            };
            first.update_fused(&fused, step, 0..fused.layout.elements()).unwrap();
            second.update_plain(&plain, step).unwrap();
            for buffer in [&fused.gradients, &plain.gradients] {
                set(buffer, 1.0, 0.5 + number as f32);
                // Where gradients are 0, squares that were coded as 0 count.
                if kind.has_8bit_states() && number == 1 {
                    thin(buffer);
                }
            }
        }
        let difference = (&fused.values - &plain.values)
            .unwrap()
            .abs()
            .unwrap()
            .max_all()
            .unwrap();
        let difference = difference.to_scalar::<f32>().unwrap();
        // A state near the bound of two 8-bit codes may take the other one.
        assert!(
            difference < if kind.has_8bit_states() { 1e-4 } else { 1e-6 },
            "{kind:?}: {difference:e}"
        );
    }
}

#[test]
fn an_update_part_by_part_is_that_of_the_whole_to_the_last_bit() {
    for kind in OptimizerKind::ALL {
        let (whole, parts) = (parameters(), Arc::new(parameters()));
        let new = || Optimizer::new(&settings(kind), &whole.layout, &Device::Cpu).unwrap();
        let (mut first, mut second) = (new(), new());
        let bounds: Vec<usize> = whole.layout.slots().iter().map(|slot| slot.offset).collect();
        for _ in 0..3 {
            first.step(&whole, 1e-2).unwrap();
            second.look_ahead(&parts).unwrap();
            // The last first, and two at once.
            let ranges = [0..bounds[1], bounds[1]..bounds[2], bounds[2]..whole.layout.elements()];
            for ranges in [&ranges[2..], &ranges[..2]] {
                second.update_of(&parts, ranges, 1e-2)().unwrap();
            }
            second.count_step(1e-2);
        }
        let values = |parameters: &Parameters| parameters.values.to_vec1::<f32>().unwrap();
        assert_eq!(values(&whole), values(&parts), "{kind:?}");
    }
}

#[test]
fn a_look_ahead_without_an_update_is_taken_back() {
    let parameters = parameters();
    let settings = settings(OptimizerKind::AdamWScheduleFree);
    let mut optimizer = Optimizer::new(&settings, &parameters.layout, &Device::Cpu).unwrap();
    for _ in 0..2 {
        optimizer.step(&parameters, 1e-2).unwrap();
    }
    let values = || parameters.values.to_vec1::<f32>().unwrap();
    let before = values();
    let distance = || {
        let pairs = before.iter().zip(values());
        pairs.fold(0f32, |most, (before, now)| most.max((before - now).abs()))
    };
    optimizer.look_ahead(&parameters).unwrap();
    assert!(distance() > 1e-4);
    optimizer.look_back(&parameters).unwrap();
    assert!(distance() < 1e-7);
}

#[test]
fn state_bytes_are_those_of_the_buffers() {
    use OptimizerKind::{AdamW, AdamWScheduleFree, Sgd};

    let layout = parameters().layout;
    let bytes = |kind| {
        Optimizer::new(&settings(kind), &layout, &Device::Cpu)
            .unwrap()
            .state_bytes()
    };
    let elements = layout.elements() as u64;
    assert_eq!(
        [AdamW, Sgd, AdamWScheduleFree].map(bytes),
        [8 * elements, 4 * elements, 8 * elements]
    );
}

/// Pages and bands are those of tests.
#[test]
fn what_an_update_takes_on_a_gpu_follows_the_shapes() {
    let bytes = |kind, shapes: &[&[usize]]| {
        let mut layout = ParameterLayout::default();
        for (index, shape) in shapes.iter().enumerate() {
            layout.push(format!("{index}"), shape, ParameterKind::LoraA);
        }
        let (optimizer, ledger) = (
            Optimizer::on_paper(&settings(kind), &layout).unwrap(),
            Ledger::new(Host::GPU),
        );
        optimizer.update_on_paper(&ledger).unwrap();
        ledger.segment(Stage::Optimizer).rise()
    };
    let adapter: [&[usize]; 4] = [&[16, 896], &[16, 896], &[4864, 16], &[896]];
    // Sixteen rows, 896 columns as two strips of 512, 4864 as ten.
    assert_eq!(bytes(OptimizerKind::Muon, &adapter), 2 * 16 * (2 * 1024 + 5120));
    let full: [&[usize]; 4] = [&[200, 300], &[200, 300], &[200, 300], &[16, 896]];
    assert_eq!(bytes(OptimizerKind::Muon, &full), 4 * 3 * 200 * 300);
    let square: [&[usize]; 1] = [&[200, 210]];
    assert_eq!(bytes(OptimizerKind::Muon, &square), 4 * (200 * 210 + 3 * 200 * 200));
    // Pages of 1024 elements, two at once, of two states each.
    assert_eq!(bytes(OptimizerKind::PagedAdamW, &full), 2 * 2 * 4 * 1024);
    assert_eq!(bytes(OptimizerKind::PagedAdamW, &[&[16, 20]]), 2 * 2 * 4 * 16 * 20);
    assert_eq!(bytes(OptimizerKind::Adafactor, &[&[16, 100], &[896]]), 0);
    // Rows of 500 elements in bands of six, of which 13 rows make three.
    assert_eq!(
        bytes(OptimizerKind::Adafactor, &[&[13, 500], &[13, 500]]),
        8 * 2 * 3 * 501
    );
    assert_eq!(bytes(OptimizerKind::AdamW, &full), 0);
}

#[test]
fn embeddings_keep_states_of_32_bits() {
    let bytes = |name: &str| {
        let mut layout = ParameterLayout::default();
        layout.push(name, &[40, 128], ParameterKind::Base);
        let optimizer = Optimizer::new(&settings(OptimizerKind::AdamW8bit), &layout, &Device::Cpu).unwrap();
        optimizer.state_bytes()
    };
    // A block, or a value, is there for nothing: tensors have at least one element.
    assert_eq!(bytes("lm_head.weight"), 2 * 20 * (256 + 4) + 2 * 4);
    assert_eq!(bytes("model.embed_tokens.weight"), 8 * 40 * 128 + 2 * (256 + 4));
}

#[test]
fn a_gradient_of_zero_divides_no_mean_by_epsilon() {
    let moved = |kind| {
        let mut layout = ParameterLayout::default();
        layout.push("a", &[32, 128], ParameterKind::LoraA);
        let parameters = Parameters::zeros(layout, &Device::Cpu).unwrap();
        let elements = parameters.layout.elements();
        let settings = OptimizerSettings {
            weight_decay: 0.0,
            loraplus_ratio: None,
            ..settings(kind)
        };
        let mut optimizer = Optimizer::new(&settings, &parameters.layout, &Device::Cpu).unwrap();
        // Squares of 1/3000 of the largest gradient are coded as 0, means are not.
        let first: Vec<f32> = (0..elements)
            .map(|index| if index.is_multiple_of(256) { 1.0 } else { 1.0 / 3000.0 })
            .collect();
        let first = Tensor::from_vec(first, elements, &Device::Cpu).unwrap();
        parameters.gradients.slice_set(&first, 0, 0).unwrap();
        optimizer.step(&parameters, 1e-3).unwrap();
        let zeros = first.zeros_like().unwrap();
        parameters.gradients.slice_set(&zeros, 0, 0).unwrap();
        for _ in 0..20 {
            optimizer.step(&parameters, 1e-3).unwrap();
        }
        parameters.values.to_vec1::<f32>().unwrap()
    };
    let (wide, coded) = (moved(OptimizerKind::AdamW), moved(OptimizerKind::AdamW8bit));
    for (index, (wide, coded)) in wide.iter().zip(&coded).enumerate() {
        let ratio = coded / wide;
        assert!(ratio > 0.5 && ratio < 1.1, "{index}: {coded} {wide}");
    }
}
