//! Dropout whose mask is a function of (seed, element index) only.
//!
//! Element i of a tensor is dropped with probability p and multiplied by 1 / (1 - p) otherwise. Its index counts from the first
//! element of a larger tensor, of which x holds some rows: [`MaskKey`] says which. Kernels read the key from the device's memory, so
//! that the same launch draws the masks of another step. With i = 64 g + 16 w + l
//! (w < 4, l < 16), its random number is word w of Philox 4x32-7 (Salmon et al. 2011,
//! <https://doi.org/10.1145/2063384.2063405>) at counter 16 g + l with the seed as key: sixteen neighbours take the same
//! word of sixteen counters, so that a vector register computes them at once. Nothing is stored: recomputation, the
//! backward (the same op on the gradient), any split into micro-batches and any number of threads see the same mask.

use super::cuda;
use super::element::{Element, with_element};
use super::simd::{LANES, multiversion};
use super::storage::{Elements, Unwritten, is_fused, rows_per_task};
use crate::gpu;
use crate::thread_pool;
use candle_core::{Result, Tensor};
use std::mem::MaybeUninit;

/// Rounds of Philox: the fewest that pass BigCrush (table 2 of the paper); a mask needs no safety margin beyond that.
const ROUNDS: usize = 7;

/// Elements that share sixteen counters.
const GROUP: u64 = 64;

/// Key that decides the masks of some rows.
#[derive(Clone, Debug)]
pub struct MaskKey {
    pub seed: u64,
    /// Row of the larger tensor that the rows begin with.
    pub first_row: u64,
    /// [`MaskKey::words`] (4,) U32 in the device's memory, where present.
    pub on_device: Option<Tensor>,
}

impl MaskKey {
    /// A key that lies nowhere yet.
    pub fn new(seed: u64, first_row: u64) -> Self {
        Self {
            seed,
            first_row,
            on_device: None,
        }
    }

    /// The key as kernels read it: both numbers, their lower half first.
    pub fn words(&self) -> [u32; 4] {
        [
            self.seed as u32,
            (self.seed >> 32) as u32,
            self.first_row as u32,
            (self.first_row >> 32) as u32,
        ]
    }

    /// Seed of mask `number`.
    fn seed_of(&self, number: u64) -> u64 {
        mix(self.seed ^ number)
    }

    /// Index of the first element of `x`; a one-dimensional tensor has rows of one element.
    fn first_element(&self, x: &Tensor) -> u64 {
        self.first_row * (x.elem_count() / x.dims().first().copied().unwrap_or(1).max(1)) as u64
    }
}

/// The finaliser of SplitMix64 (Steele et al. 2014): neighbouring inputs give unrelated outputs.
pub fn mix(value: u64) -> u64 {
    let mut z = value.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// Drops elements of `x` (any shape) with probability `p` in [0, 1), by mask `number` of those under `key`.
///
/// The gradient is the same op with the same key and number on the gradient.
pub fn apply(x: &Tensor, key: &MaskKey, number: u64, p: f64) -> Result<Tensor> {
    if !(0.0..1.0).contains(&p) {
        candle_core::bail!("dropout: probability {p} is not in [0, 1)");
    }
    if p == 0.0 {
        return Ok(x.clone());
    }
    let mask = Mask::new(key.seed_of(number), p);
    if gpu::takes(x) && x.elem_count() > 0 {
        return cuda::elementwise::dropout(x, key, number, mask.threshold, mask.scale);
    }
    if !is_fused(x) {
        return reference::apply(x, key, number, p);
    }
    let (x, first_element) = (x.contiguous()?, key.first_element(x));
    with_element!(x.dtype(), T => {
        let values = Elements::<T>::new(&x)?;
        let (task, mut y) = (rows_per_task(1), Unwritten::<T>::new(values.len()));
        thread_pool::for_chunks(&mut y.slots()[..values.len()], task, |block, y| {
            let start = block * task;
            apply_block(&values[start..start + y.len()], mask, first_element + start as u64, y);
        });
        // SAFETY: apply_block writes every element.
        unsafe { y.into_tensor(x.dims()) }
    })
}

/// Facts that the factor of an element depends on besides its index.
#[derive(Clone, Copy, Debug)]
struct Mask {
    seed: u64,
    /// Random words below this are dropped.
    threshold: u32,
    /// Factor on what is kept.
    scale: f32,
}

impl Mask {
    fn new(seed: u64, p: f64) -> Self {
        Self {
            seed,
            threshold: (p * 4_294_967_296.0) as u32,
            scale: (1.0 / (1.0 - p)) as f32,
        }
    }

    /// Factors of the 64 elements of group `group`.
    #[inline(always)]
    fn factors(self, group: u64) -> [[f32; LANES]; 4] {
        let words = philox(group * LANES as u64, self.seed);
        let mut factors = [[0.0; LANES]; 4];
        for (factors, words) in factors.iter_mut().zip(&words) {
            for (factor, word) in factors.iter_mut().zip(words) {
                *factor = if *word < self.threshold { 0.0 } else { self.scale };
            }
        }
        factors
    }
}

/// Philox 4x32 at the counters `first..first + 16`, `first` a multiple of 16: words by number and counter.
#[inline(always)]
fn philox(first: u64, key: u64) -> [[u32; LANES]; 4] {
    const MULTIPLIERS: (u32, u32) = (0xD251_1F53, 0xCD9E_8D57);
    let (mut key0, mut key1) = (key as u32, (key >> 32) as u32);
    let low = std::array::from_fn(|lane| first as u32 + lane as u32);
    let mut words = [low, [(first >> 32) as u32; LANES], [0; LANES], [0; LANES]];
    for _ in 0..ROUNDS {
        let mut next = [[0; LANES]; 4];
        for lane in 0..LANES {
            let first = u64::from(MULTIPLIERS.0) * u64::from(words[0][lane]);
            let second = u64::from(MULTIPLIERS.1) * u64::from(words[2][lane]);
            next[0][lane] = (second >> 32) as u32 ^ words[1][lane] ^ key0;
            next[1][lane] = second as u32;
            next[2][lane] = (first >> 32) as u32 ^ words[3][lane] ^ key1;
            next[3][lane] = first as u32;
        }
        words = next;
        key0 = key0.wrapping_add(0x9E37_79B9);
        key1 = key1.wrapping_add(0xBB67_AE85);
    }
    words
}

multiversion! {
    /// y = mask x for a block whose first element has index `first`.
    fn apply_block<T: Element>(x: &[T], mask: Mask, first: u64, y: &mut [MaybeUninit<T>]) {
        let mut done = 0;
        while done < x.len() {
            let index = first + done as u64;
            let factors = mask.factors(index / GROUP);
            let factors = &factors.as_flattened()[(index % GROUP) as usize..];
            let end = (done + factors.len()).min(x.len());
            for ((y, x), factor) in y[done..end].iter_mut().zip(&x[done..end]).zip(factors) {
                y.write(T::narrow(x.widen() * factor));
            }
            done = end;
        }
    }
}

/// The op in plain candle ops; the mask is made on the host.
pub mod reference {
    use super::{GROUP, Mask, MaskKey};
    use candle_core::{Result, Tensor};

    /// See [`super::apply`].
    pub fn apply(x: &Tensor, key: &MaskKey, number: u64, p: f64) -> Result<Tensor> {
        let (mask, first_element) = (Mask::new(key.seed_of(number), p), key.first_element(x));
        let end = first_element + x.elem_count() as u64;
        let groups = first_element / GROUP..end.div_ceil(GROUP);
        let factors: Vec<f32> = groups.flat_map(|group| mask.factors(group)).flatten().collect();
        let first = (first_element % GROUP) as usize;
        let factors = Tensor::from_slice(&factors[first..first + x.elem_count()], x.shape(), x.device())?;
        x * factors.to_dtype(x.dtype())?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use candle_core::{DType, Device};

    fn ones(count: usize) -> Tensor {
        Tensor::ones(count, DType::F32, &Device::Cpu).unwrap()
    }

    /// First line of the known answers in Random123's `kat_vectors` for philox4x32-7.
    #[test]
    fn philox_gives_the_published_words() {
        let first = philox(0, 0).map(|words| words[0]);
        assert_eq!(first, [0x5F6F_B709, 0x0D89_3F64, 0x4F12_1F81, 0x4F73_0A48]);
    }

    #[test]
    fn fused_and_reference_forms_draw_the_same_mask() {
        for dtype in [DType::F32, DType::BF16, DType::F16] {
            let x = ones(40_000).to_dtype(dtype).unwrap();
            let key = MaskKey::new(9, 77);
            let fused = apply(&x, &key, 3, 0.5).unwrap().to_dtype(DType::F32).unwrap();
            let plain = reference::apply(&x, &key, 3, 0.5)
                .unwrap()
                .to_dtype(DType::F32)
                .unwrap();
            assert_eq!(fused.to_vec1::<f32>().unwrap(), plain.to_vec1::<f32>().unwrap());
        }
    }

    #[test]
    fn the_mask_does_not_depend_on_the_split() {
        let drop = |rows: usize, width: usize, first: u64| {
            let x = ones(rows * width).reshape((rows, width)).unwrap();
            let y = apply(&x, &MaskKey::new(7, first), 1, 0.3).unwrap();
            y.flatten_all().unwrap().to_vec1::<f32>().unwrap()
        };
        for width in [1, 10] {
            let whole = drop(100, width, 0);
            for split in [1, 37, 99] {
                let parts = [drop(split, width, 0), drop(100 - split, width, split as u64)];
                assert_eq!(whole, parts.concat());
            }
        }
    }

    #[test]
    fn the_mean_is_kept_and_other_seeds_give_other_masks() {
        let p = 0.25;
        let drop = |seed, number| apply(&ones(100_000), &MaskKey::new(seed, 0), number, p).unwrap();
        let first = drop(1, 0);
        let mean = first.mean_all().unwrap().to_scalar::<f32>().unwrap();
        // Standard error of the mean: sqrt(p / (1 - p) / n) = 0.0018.
        assert!((mean - 1.0).abs() < 0.009, "{mean}");
        for other in [drop(2, 0), drop(1, 1)] {
            assert_ne!(first.to_vec1::<f32>().unwrap(), other.to_vec1::<f32>().unwrap());
        }
    }

    #[test]
    fn zero_keeps_everything_and_one_is_refused() {
        let key = MaskKey::new(1, 0);
        assert_eq!(
            apply(&ones(3), &key, 0, 0.0).unwrap().to_vec1::<f32>().unwrap(),
            [1.0; 3]
        );
        assert!(apply(&ones(3), &key, 0, 1.0).is_err());
    }
}
