use super::super::oracle::{assert_close, error, random, rounded};
use super::unit_rows::EPSILON;
use super::*;
use candle_core::{DType, Device};

const HEADS: Heads = Heads {
    keys: 2,
    values: 4,
    key_width: 6,
    value_width: 20,
};
const OFFSETS: [u32; 5] = [0, 1, 12, 12, 30];

/// mixed, a, b, rate, shift, d_o.
fn tensors(dtype: DType) -> Vec<(Tensor, Tensor)> {
    let shapes: [&[usize]; 6] = [
        &[30, HEADS.input_width()],
        &[30, 4],
        &[30, 4],
        &[4],
        &[4],
        &[30, HEADS.output_width()],
    ];
    let each = shapes.iter().enumerate();
    each.map(|(seed, shape)| rounded(&random(shape, seed as u64), dtype))
        .collect()
}

fn inputs<'a>(all: &[&'a Tensor]) -> Inputs<'a> {
    Inputs {
        mixed: all[0],
        a: all[1],
        b: all[2],
        rate: all[3],
        shift: all[4],
        heads: HEADS,
        offsets: &OFFSETS,
    }
}

fn split(all: &[(Tensor, Tensor)]) -> (Vec<&Tensor>, Vec<&Tensor>) {
    (
        all.iter().map(|one| &one.0).collect(),
        all.iter().map(|one| &one.1).collect(),
    )
}

#[test]
fn fused_form_and_its_gradients_match_autograd_in_f64() {
    for dtype in [DType::F32, DType::BF16, DType::F16] {
        let all = tensors(dtype);
        let (narrow, exact) = split(&all);
        let expected = reference::forward(&inputs(&exact), None).unwrap();
        assert_close(&forward(&inputs(&narrow), None).unwrap(), &expected, "o");
        let got = backward(&inputs(&narrow), narrow[5]).unwrap();
        let expected = reference::backward(&inputs(&exact), exact[5]).unwrap();
        assert_close(&got.mixed, &expected.mixed, "d_mixed");
        assert_close(&got.a, &expected.a, "d_a");
        assert_close(&got.b, &expected.b, "d_b");
    }
}

/// Plain loops over what the formulas say, one head of one document.
#[test]
fn the_reference_does_what_the_formulas_say() {
    let all = tensors(DType::F64);
    let (_, exact) = split(&all);
    let o = reference::forward(&inputs(&exact), None)
        .unwrap()
        .to_vec2::<f64>()
        .unwrap();
    let rows = |index: usize| exact[index].to_vec2::<f64>().unwrap();
    let (mixed, a, b) = (rows(0), rows(1), rows(2));
    let (rate, shift) = (exact[3].to_vec1::<f64>().unwrap(), exact[4].to_vec1::<f64>().unwrap());
    let (head, dk, dv) = (3, HEADS.key_width, HEADS.value_width);
    let unit = |row: &[f64]| -> Vec<f64> {
        let length = (row.iter().map(|x| x * x).sum::<f64>() + f64::from(EPSILON)).sqrt();
        row.iter().map(|x| x / length).collect()
    };
    let mut state = vec![vec![0.0; dv]; dk];
    for token in 12..30 {
        let (q, k) = (unit(&mixed[token][dk..2 * dk]), unit(&mixed[token][3 * dk..4 * dk]));
        let v = &mixed[token][4 * dk + head * dv..][..dv];
        let alpha = (-rate[head].exp() * (1.0 + (a[token][head] + shift[head]).exp()).ln()).exp();
        let beta = 1.0 / (1.0 + (-b[token][head]).exp());
        for column in 0..dv {
            let kept: f64 = (0..dk).map(|row| alpha * state[row][column] * k[row]).sum();
            for row in 0..dk {
                state[row][column] = alpha * state[row][column] + beta * k[row] * (v[column] - kept);
            }
            let expected: f64 = (0..dk)
                .map(|row| state[row][column] * q[row] / (dk as f64).sqrt())
                .sum();
            assert!((o[token][head * dv + column] - expected).abs() < 1e-9, "{token}");
        }
    }
}

#[test]
fn documents_do_not_see_each_other() {
    let all = tensors(DType::F32);
    let (narrow, _) = split(&all);
    let whole = forward(&inputs(&narrow), None).unwrap();
    let alone: Vec<Tensor> = narrow
        .iter()
        .map(|one| match one.rank() {
            1 => (*one).clone(),
            _ => one.narrow(0, 12, 18).unwrap().contiguous().unwrap(),
        })
        .collect();
    let alone: Vec<&Tensor> = alone.iter().collect();
    let last = Inputs {
        offsets: &[0, 18],
        ..inputs(&alone)
    };
    let bits = |tensor: &Tensor| tensor.flatten_all().unwrap().to_vec1::<f32>().unwrap();
    assert_eq!(
        bits(&forward(&last, None).unwrap()),
        bits(&whole.narrow(0, 12, 18).unwrap())
    );
    let (whole, last) = (
        backward(&inputs(&narrow), narrow[5]).unwrap(),
        backward(&last, alone[5]).unwrap(),
    );
    assert_eq!(bits(&last.mixed), bits(&whole.mixed.narrow(0, 12, 18).unwrap()));
}

#[test]
fn a_document_goes_on_from_its_state() {
    let all = tensors(DType::F32);
    let (narrow, _) = split(&all);
    let whole = Inputs {
        offsets: &[0, 30],
        ..inputs(&narrow)
    };
    let expected = forward(&whole, None).unwrap();
    let states = Tensor::zeros((1, 4, 6, 20), DType::F32, &Device::Cpu).unwrap();
    let mut parts = Vec::new();
    for (start, length) in [(0, 17), (17, 1), (18, 12)] {
        let part: Vec<Tensor> = narrow
            .iter()
            .map(|one| match one.rank() {
                1 => (*one).clone(),
                _ => one.narrow(0, start, length).unwrap().contiguous().unwrap(),
            })
            .collect();
        let part: Vec<&Tensor> = part.iter().collect();
        let offsets = [0, length as u32];
        let going_on = Inputs {
            offsets: &offsets,
            ..inputs(&part)
        };
        parts.push(forward(&going_on, Some(&states)).unwrap());
    }
    let together = Tensor::cat(&parts, 0).unwrap();
    assert!(error(&together, &expected) < 1e-6);
}

#[test]
fn what_does_not_go_together_is_refused() {
    let all = tensors(DType::F32);
    let (narrow, _) = split(&all);
    let wrong = |change: fn(&mut Inputs<'_>)| {
        let mut inputs = inputs(&narrow);
        change(&mut inputs);
        forward(&inputs, None).is_err()
    };
    assert!(wrong(|inputs| inputs.heads.values = 3));
    assert!(wrong(|inputs| inputs.heads.key_width = 0));
    assert!(wrong(|inputs| inputs.offsets = &[0, 12]));
    assert!(wrong(|inputs| inputs.a = inputs.shift));
}
