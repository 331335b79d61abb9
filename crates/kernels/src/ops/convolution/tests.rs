//! Convolutions against their definition and autograd.

use super::super::oracle::{assert_close, autograd, error, random, rounded};
use super::*;
use candle_core::DType;

const OFFSETS: [u32; 5] = [0, 1, 45, 45, 90];

fn of(weight: &Tensor) -> Convolution<'_> {
    Convolution {
        weight,
        offsets: &OFFSETS,
    }
}

#[test]
fn fused_forms_match_f64() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        for taps in [1, 3, 4] {
            let (w, w64) = rounded(&random(&[70, 1, taps], 9), dtype);
            let input = |seed| rounded(&(random(&[90, 70], seed) * 3.0).unwrap(), dtype);
            let ((b, b64), (c, c64), (x, x64), (dy, dy64)) = (input(1), input(2), input(3), input(4));
            let old = rounded(&random(&[4, taps - 1, 70], 5), dtype);
            for older in [None, Some(&old)].into_iter().take(taps) {
                let (narrow, exact) = (older.map(|older| &older.0), older.map(|older| &older.1));
                let y64 = reference::forward(&x64, of(&w64), exact).unwrap();
                assert_close(&forward(&x, of(&w), narrow).unwrap(), &y64, "y");
                let y64 = reference::gated_forward([&b64, &c64, &x64], of(&w64), exact).unwrap();
                let y = gated_forward([&b, &c, &x], of(&w), narrow).unwrap();
                assert_close(&y, &y64, "gated y");
            }
            let d_x64 = reference::backward(&x64, of(&w64), &dy64).unwrap();
            assert_close(&backward(&x, of(&w), &dy).unwrap(), &d_x64, "dx");
            let all = gated_backward([&b, &c, &x], of(&w), &dy).unwrap();
            let all64 = reference::gated_backward([&b64, &c64, &x64], of(&w64), &dy64).unwrap();
            for ((got, expected), what) in all.iter().zip(&all64).zip(["db", "dc", "gated dx"]) {
                assert_close(got, expected, what);
            }
        }
    }
}

/// Plain loops over what the formula says.
#[test]
fn a_token_reads_itself_and_those_before_it_in_its_document() {
    let (x, w) = (random(&[90, 2], 1), random(&[2, 1, 3], 2));
    let (values, taps) = (
        x.to_vec2::<f64>().unwrap(),
        w.squeeze(1).unwrap().to_vec2::<f64>().unwrap(),
    );
    let u = reference::convolved(&x, of(&w), None)
        .unwrap()
        .to_vec2::<f64>()
        .unwrap();
    for pair in OFFSETS.windows(2) {
        for token in pair[0]..pair[1] {
            for channel in 0..2 {
                let seen = (0..3).filter(|back| token >= pair[0] + back);
                let term = |back: u32| taps[channel][2 - back as usize] * values[(token - back) as usize][channel];
                let expected: f64 = seen.map(term).sum();
                assert!((u[token as usize][channel] - expected).abs() < 1e-12);
            }
        }
    }
}

#[test]
fn gradients_match_autograd() {
    let w = random(&[5, 1, 3], 9);
    let (b, c, x, dy) = (
        random(&[90, 5], 1),
        random(&[90, 5], 2),
        random(&[90, 5], 3),
        random(&[90, 5], 4),
    );
    let expected = autograd(&[&x], &dy, |inputs| {
        let u = reference::convolved(&inputs[0], of(&w), None)?;
        &u * (u.neg()?.exp()? + 1.0)?.recip()?
    });
    assert!(error(&reference::backward(&x, of(&w), &dy).unwrap(), &expected[0]) < 1e-12);
    let expected = autograd(&[&b, &c, &x], &dy, |inputs| {
        &inputs[1] * reference::convolved(&(&inputs[0] * &inputs[2])?, of(&w), None)?
    });
    let all = reference::gated_backward([&b, &c, &x], of(&w), &dy).unwrap();
    for (got, expected) in all.iter().zip(&expected) {
        assert!(error(got, expected) < 1e-12);
    }
}

#[test]
fn a_document_goes_on_from_what_was_before_it() {
    let (x, w) = (random(&[9, 4], 1).to_dtype(DType::F32).unwrap(), random(&[4, 1, 3], 2));
    let w = w.to_dtype(DType::F32).unwrap();
    let run = |x: &Tensor, before: Option<&Tensor>| {
        let offsets = [0, x.dim(0).unwrap() as u32];
        let of = Convolution {
            weight: &w,
            offsets: &offsets,
        };
        forward(x, of, before).unwrap().to_vec2::<f32>().unwrap()
    };
    let whole = run(&x, None);
    let before = x.narrow(0, 3, 2).unwrap().unsqueeze(0).unwrap();
    assert_eq!(run(&x.narrow(0, 5, 4).unwrap(), Some(&before)), whole[5..]);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let (x, w) = (random(&[90, 4], 1), random(&[5, 1, 3], 2));
    assert!(forward(&x, of(&w), None).is_err());
    let w = random(&[4, 1, 3], 2);
    let short = Convolution {
        weight: &w,
        offsets: &[0, 80],
    };
    assert!(forward(&x, short, None).is_err());
}
