//! Dropout whose mask is a function of (seed, element index) only.
//!
//! Element i of a tensor is dropped with probability p and multiplied by 1 / (1 - p) otherwise. The random number of
//! element i is word i mod 4 of Philox 4x32-10 (Salmon et al. 2011, <https://doi.org/10.1145/2063384.2063405>) at counter
//! i / 4 with the seed as key. Nothing is stored: recomputation, the backward (the same op on the gradient), any split
//! into micro-batches and any number of threads see the same mask.

use candle_core::{Result, Tensor};

/// Drops elements of `x` (any shape) with probability `p` in [0, 1); element i of `x` has index i.
///
/// The gradient is the same op with the same seed on the gradient.
pub fn apply(x: &Tensor, seed: u64, p: f64) -> Result<Tensor> {
    apply_from(x, seed, 0, p)
}

/// As [`apply`] where `x` is part of a larger tensor, in which its first element has index `first_element`.
pub fn apply_from(x: &Tensor, seed: u64, first_element: u64, p: f64) -> Result<Tensor> {
    if !(0.0..1.0).contains(&p) {
        candle_core::bail!("dropout: probability {p} is not in [0, 1)");
    }
    if p == 0.0 {
        return Ok(x.clone());
    }
    reference::apply_from(x, seed, first_element, p)
}

/// Random words below this are dropped.
fn threshold(p: f64) -> u32 {
    (p * 4_294_967_296.0) as u32
}

/// Philox 4x32 with ten rounds.
#[inline(always)]
fn philox(counter: u64, key: u64) -> [u32; 4] {
    const MULTIPLIERS: (u64, u64) = (0xD251_1F53, 0xCD9E_8D57);
    let (mut key0, mut key1) = (key as u32, (key >> 32) as u32);
    let mut words = [counter as u32, (counter >> 32) as u32, 0, 0];
    for _ in 0..10 {
        let (first, second) = (MULTIPLIERS.0 * u64::from(words[0]), MULTIPLIERS.1 * u64::from(words[2]));
        words = [
            (second >> 32) as u32 ^ words[1] ^ key0,
            second as u32,
            (first >> 32) as u32 ^ words[3] ^ key1,
            first as u32,
        ];
        key0 = key0.wrapping_add(0x9E37_79B9);
        key1 = key1.wrapping_add(0xBB67_AE85);
    }
    words
}

/// The op in plain candle ops; the mask is made on the host.
pub mod reference {
    use super::{philox, threshold};
    use candle_core::{Result, Tensor};

    /// See [`super::apply_from`].
    pub fn apply_from(x: &Tensor, seed: u64, first_element: u64, p: f64) -> Result<Tensor> {
        let (threshold, scale) = (threshold(p), (1.0 / (1.0 - p)) as f32);
        let mask: Vec<f32> = (first_element..first_element + x.elem_count() as u64)
            .map(|index| philox(index / 4, seed)[(index % 4) as usize])
            .map(|word| if word < threshold { 0.0 } else { scale })
            .collect();
        x * Tensor::from_vec(mask, x.shape(), x.device())?.to_dtype(x.dtype())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    fn ones(count: usize) -> Tensor {
        Tensor::ones(count, DType::F32, &Device::Cpu).unwrap()
    }

    /// First line of the known answers in Random123's `kat_vectors` for philox4x32-10.
    #[test]
    fn philox_gives_the_published_words() {
        assert_eq!(philox(0, 0), [0x6627_E8D5, 0xE169_C58D, 0xBC57_AC4C, 0x9B00_DBD8]);
    }

    #[test]
    fn the_mask_does_not_depend_on_the_split() {
        let whole = apply(&ones(1000), 7, 0.3).unwrap().to_vec1::<f32>().unwrap();
        for split in [1, 37, 999] {
            let first = apply(&ones(split), 7, 0.3).unwrap().to_vec1::<f32>().unwrap();
            let rest = apply_from(&ones(1000 - split), 7, split as u64, 0.3).unwrap();
            assert_eq!(whole, [first, rest.to_vec1::<f32>().unwrap()].concat());
        }
    }

    #[test]
    fn the_mean_is_kept_and_other_seeds_give_other_masks() {
        let p = 0.25;
        let first = apply(&ones(100_000), 1, p).unwrap();
        let mean = first.mean_all().unwrap().to_scalar::<f32>().unwrap();
        // Standard error of the mean: sqrt(p / (1 - p) / n) = 0.0018.
        assert!((mean - 1.0).abs() < 0.009, "{mean}");
        let second = apply(&ones(100_000), 2, p).unwrap();
        assert_ne!(first.to_vec1::<f32>().unwrap(), second.to_vec1::<f32>().unwrap());
    }

    #[test]
    fn zero_keeps_everything_and_one_is_refused() {
        assert_eq!(apply(&ones(3), 1, 0.0).unwrap().to_vec1::<f32>().unwrap(), [1.0; 3]);
        assert!(apply(&ones(3), 1, 1.0).is_err());
    }
}
