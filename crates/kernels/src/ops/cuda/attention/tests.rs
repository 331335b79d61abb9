//! The attention kernels, run on the emulator, against the F64 form.

use candle_core::{DType, Device};

use super::Form;
use super::first_use::difference;
use super::forms::Shared;
use crate::gpu::{emulated, has_compiler};
use crate::ops::attention::{Settings, both_passes, reference};
use crate::ops::cuda::tests::DTYPES;
use crate::ops::oracle::{error, random, rounded, tolerance};

/// One case: documents, heads and the layer's constants.
struct Case {
    offsets: Vec<u32>,
    query_heads: usize,
    key_heads: usize,
    head_dim: usize,
    window: Option<usize>,
    soft_cap: Option<f64>,
}

impl Case {
    /// Checks the form that is chosen for the tensors, on a GPU that is none of Hopper's.
    fn check(&self, dtype: DType) {
        self.check_by(None, dtype);
    }

    fn check_hopper(&self, dtype: DType) {
        self.check_by(Form::hopper(self.head_dim), dtype);
    }

    fn check_with_scarce_memory(&self, dtype: DType) {
        self.check_by(Form::tiled_with(Shared::Scarce, self.head_dim), dtype);
    }

    fn check_by(&self, form: Option<Form>, dtype: DType) {
        let tokens = *self.offsets.last().unwrap() as usize;
        let settings = Settings {
            scale: 1.5 / (self.head_dim as f64).sqrt(),
            window: self.window,
            soft_cap: self.soft_cap,
        };
        let tensor = |heads, seed| rounded(&(random(&[tokens, heads, self.head_dim], seed) * 2.0).unwrap(), dtype);
        let ((q, q64), (d_o, d_o64)) = (tensor(self.query_heads, 1), tensor(self.query_heads, 4));
        let ((k, k64), (v, v64)) = (tensor(self.key_heads, 2), tensor(self.key_heads, 3));
        let actual = emulated(|| both_passes(form, [&q, &k, &v, &d_o], &self.offsets, &settings)).unwrap();
        let expected = reference::both_passes([&q64, &k64, &v64, &d_o64], &self.offsets, &settings).unwrap();
        // Weights and their gradients are rounded once more, as operands of the second products.
        let allowed = if dtype == DType::F32 {
            2e-5
        } else {
            3.0 * tolerance(dtype)
        };
        for (name, (actual, expected)) in ["o", "lse", "dq", "dk", "dv"].iter().zip(actual.iter().zip(&expected)) {
            let error = error(actual, expected);
            assert!(
                error <= allowed,
                "{name} of head {} in {dtype:?}: {error:.2e}",
                self.head_dim
            );
        }
    }
}

fn case(offsets: &[u32], heads: (usize, usize), head_dim: usize) -> Case {
    Case {
        offsets: offsets.to_vec(),
        query_heads: heads.0,
        key_heads: heads.1,
        head_dim,
        window: None,
        soft_cap: None,
    }
}

#[test]
fn one_document_of_several_tiles_matches_f64() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        case(&[0, 150], (2, 1), 64).check(dtype);
    }
}

#[test]
fn packed_documents_do_not_see_each_other() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        case(&[0, 3, 70, 70, 71, 140], (3, 3), 32).check(dtype);
    }
}

#[test]
fn windows_and_soft_caps_match_f64() {
    if !has_compiler() {
        return;
    }
    for dtype in DTYPES {
        // With one key a gradient is zero, and its error has no measure.
        for window in [5, 20, 65] {
            let case = Case {
                window: Some(window),
                soft_cap: Some(2.0),
                ..case(&[0, 90, 160], (2, 1), 16)
            };
            case.check(dtype);
        }
    }
}

#[test]
fn blocks_of_several_tiles_pass_over_what_nobody_sees() {
    if !has_compiler() {
        return;
    }
    for (head_dim, window) in [(64, None), (64, Some(40)), (128, Some(100)), (256, Some(33))] {
        let case = Case {
            window,
            ..case(&[0, 1, 100, 290], (3, 1), head_dim)
        };
        case.check(DType::F16);
    }
}

#[test]
fn every_size_of_head_matches_f64() {
    if !has_compiler() {
        return;
    }
    for head_dim in [80, 96, 128, 192, 256] {
        case(&[0, 20, 170], (2, 1), head_dim).check(DType::BF16);
    }
    // Heads that no tile copies: the plain form.
    for head_dim in [20, 6] {
        case(&[0, 20, 70], (4, 2), head_dim).check(DType::F16);
    }
    case(&[0, 20, 70], (2, 2), 256).check(DType::F32);
}

#[test]
fn tiles_for_little_shared_memory_match_f64() {
    if !has_compiler() {
        return;
    }
    for head_dim in [64, 96, 128, 256] {
        case(&[0, 1, 100, 290], (2, 1), head_dim).check_with_scarce_memory(DType::BF16);
        let case = Case {
            window: Some(40),
            soft_cap: Some(2.0),
            ..case(&[0, 20, 170], (3, 1), head_dim - 8)
        };
        case.check_with_scarce_memory(DType::F16);
    }
}

#[test]
fn warpgroups_match_f64() {
    if !has_compiler() {
        return;
    }
    for (head_dim, dtype) in [
        (64, DType::BF16),
        (48, DType::F16),
        (128, DType::BF16),
        (80, DType::F16),
    ] {
        case(&[0, 1, 100, 100, 290], (3, 1), head_dim).check_hopper(dtype);
        // A single tile.
        case(&[0, 9], (1, 1), head_dim).check_hopper(dtype);
    }
}

#[test]
fn warpgroups_take_windows_and_soft_caps() {
    if !has_compiler() {
        return;
    }
    for (head_dim, window, soft_cap) in [(64, Some(40), None), (128, Some(150), Some(2.0)), (64, None, Some(2.0))] {
        let case = Case {
            window,
            soft_cap,
            ..case(&[0, 270, 300], (4, 2), head_dim)
        };
        case.check_hopper(DType::F16);
    }
}

#[test]
fn a_form_is_tried_against_the_tiled_one() {
    if !has_compiler() {
        return;
    }
    for head_dim in [64, 128] {
        for dtype in [DType::BF16, DType::F16] {
            let form = Form::hopper(head_dim).unwrap();
            let difference = emulated(|| difference(form, head_dim, dtype, &Device::Cpu)).unwrap();
            assert!(difference < 0.01, "{difference}");
        }
    }
}
