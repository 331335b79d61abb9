//! Time that a step would take if it were nothing but its products, at the rate of one product alone.

use std::time::Instant;

use candle_core::{DType, Device, Tensor};
use peft_tune_core::architecture::{Architecture, LinearRole};
use peft_tune_core::recipe::{Checkpointing, Precision};
use peft_tune_engine::profile::median;
use peft_tune_kernels::ops::loss_head;
use peft_tune_kernels::ops::matmul;

use super::{LENGTH, RANK, ROWS};

/// Repetitions of what is measured.
const TIMES: usize = 7;

/// Floating-point operations of a step on ROWS x LENGTH tokens.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Operations {
    /// All layers, without the head.
    pub forward: f64,
    pub head: f64,
    pub backward: f64,
}

impl Operations {
    /// Products with the base weights and the adapters, and attention.
    pub(crate) fn of(architecture: &Architecture, checkpointing: Checkpointing) -> Self {
        let tokens = (ROWS * LENGTH) as f64;
        let layers = architecture.layers.len() as f64;
        let (modules, mut down) = (architecture.linear_modules(), 0.0);
        let (mut base, mut adapters) = (0.0, 0.0);
        for module in &modules {
            let weights = (module.in_features * module.out_features) as f64;
            base += 2.0 * tokens * layers * weights;
            adapters += 2.0 * tokens * layers * (RANK * (module.in_features + module.out_features)) as f64;
            if module.role == LinearRole::Down {
                down = 2.0 * tokens * layers * weights;
            }
        }
        let pairs = (ROWS * LENGTH * (LENGTH + 1) / 2) as f64;
        let attention = 4.0 * pairs * layers * (architecture.heads * architecture.head_dim) as f64;
        let forward = base + adapters + attention;
        // The gradient of the input takes as much as the forward, that of an adapter's weights as much again; scores
        // are made once more.
        let backward = base + 2.0 * adapters + 2.5 * attention;
        let again = match checkpointing {
            Checkpointing::Full => forward - down,
            _ => 0.0,
        };
        Self {
            forward,
            head: 4.0 * tokens * (architecture.vocabulary * architecture.hidden_size) as f64,
            backward: backward + again,
        }
    }
}

/// GFLOP/s of the model's largest product alone, in the dtype that `precision` computes in.
pub(crate) fn product_rate(architecture: &Architecture, precision: Precision) -> f64 {
    let (tokens, inner, outer) = (ROWS * LENGTH, architecture.hidden_size, architecture.intermediate_size);
    let (x, w) = (random(&[tokens, inner], precision), random(&[outer, inner], precision));
    let seconds = middle(|| drop(matmul::nt(&x, &w).expect("shapes agree")));
    2.0 * (tokens * inner * outer) as f64 / seconds / 1e9
}

/// Seconds of the loss head alone, with the gradient of its input.
pub(crate) fn head_seconds(architecture: &Architecture, precision: Precision, chunk_tokens: usize) -> f64 {
    let (tokens, vocabulary, width) = (ROWS * LENGTH, architecture.vocabulary, architecture.hidden_size);
    let (hidden, weight) = (
        random(&[tokens, width], precision),
        random(&[vocabulary, width], precision),
    );
    let targets: Vec<i64> = (0..tokens)
        .map(|position| (position * 37 % vocabulary) as i64)
        .collect();
    let settings = loss_head::Settings {
        soft_cap: None,
        chunk_tokens,
        gradient_scale: Some(1.0 / tokens as f32),
    };
    middle(|| drop(loss_head::forward(&hidden, &weight, &targets, &settings).expect("shapes agree")))
}

fn random(shape: &[usize], precision: Precision) -> Tensor {
    let dtype = match precision {
        Precision::Fp32 => DType::F32,
        Precision::Fp16 => DType::F16,
        _ => DType::BF16,
    };
    let values = Tensor::randn(0f32, 0.3, shape, &Device::Cpu).expect("the shape is small");
    values.to_dtype(dtype).expect("every float dtype converts")
}

/// Median seconds of `run`, after a first time.
fn middle(run: impl Fn()) -> f64 {
    run();
    let seconds: Vec<f64> = (0..TIMES)
        .map(|_| {
            let start = Instant::now();
            run();
            start.elapsed().as_secs_f64()
        })
        .collect();
    median(seconds).expect("there is a time")
}
