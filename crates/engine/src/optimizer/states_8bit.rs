//! Element rules whose states are 8-bit codes (arXiv:2110.02861), as in bitsandbytes.
//!
//! A parameter's states are cut into blocks of 256 elements; a block holds its largest absolute value and, for each
//! element, the code of the nearest fraction of it in the dynamic map. A block is widened, updated and quantized again in one
//! go. Small parameters and embeddings keep F32 states ([`is_coded`](crate::ParameterSlot::is_coded)): which ones is asked of each
//! tensor of the model, wherever it lies in the flat buffers, as bitsandbytes asks it.
//!
//! What was widened goes through [`ElementRule::restored`] before the update: bitsandbytes leaves that out, and diverges where
//! gradients are now and then 0 ([`super::adamw`]). Of what else its optimizers can do, `skip_zeros` and `max_unorm` are off unless
//! asked for, and release 0.50 has no percentile clipping any more. Its CUDA kernel leaves out elements whose gradient is not finite;
//! here that is the trainer's business, which looks at the norm.
//!
//! | buffer | layout |
//! |---|---|
//! | `codes` U8 | block after block: 256 codes of the first state, 256 of the second; the last block is filled up |
//! | `absmax` F32 | block after block: one for each state |
//!
//! As bitsandbytes' CUDA kernel, this takes the nearest code; its CPU kernel rounds to a grid of 65536 steps first,
//! which drops the small values that the map is made for.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};
use rayon::prelude::*;

use crate::Parameters;
use peft_tune_kernels::gpu::{Argument, Pinned, constant};
use peft_tune_kernels::quant::DynamicMap;

use super::cuda::{GroupRange, GroupRanges, Kernel};
use super::group::{Group, SlotGroups, is_in};
use super::pages::{self, Home, Page};
use super::rule::{ElementRule, RepeatedUpdate, StateHome, Step, UpdateRule};
use super::states_f32::{StatesF32, to_array};
use crate::tensor::Ledger;
use peft_tune_core::plan;
use peft_tune_core::plan::Memory;
use peft_tune_core::predict::MemoryCategory;
use peft_tune_kernels::flat::{with_f32, with_f32_mut, with_u8_mut};

/// Elements of a block.
const BLOCK: usize = plan::CODED_ELEMENTS;
/// Blocks of a page of paged states. In tests small parameters have several.
const PAGE_BLOCKS: usize = if cfg!(test) { 4 } else { plan::PAGE_BLOCKS };
/// Blocks that one thread takes at a time.
const BLOCKS_AT_ONCE: usize = 32;

/// A rule with its states.
pub(super) struct States8bit<R, const N: usize> {
    rule: R,
    /// Parameters with 8-bit states, and their first block.
    large: Vec<(Group, usize)>,
    codes: Tensor,
    absmax: Tensor,
    small: StatesF32<R, N>,
    places: GroupRanges,
    paged: Option<Paged>,
}

/// States that lie in the host's memory.
struct Paged {
    /// Codes and absmax.
    homes: Vec<Home>,
    pages: Vec<Page<PageUpdate>>,
}

/// A page of one parameter.
struct PageUpdate {
    /// Index of the parameter among the large ones.
    parameter: usize,
    places: GroupRanges,
}

impl<R: ElementRule<N> + Copy, const N: usize> States8bit<R, N> {
    /// States of zero, kept on `home`.
    pub(super) fn new(rule: R, groups: SlotGroups, home: StateHome<'_>) -> Result<Self> {
        let mut blocks = 0;
        let placed = |group: Group| {
            let first = blocks;
            blocks += group.range.len().div_ceil(BLOCK);
            (group, first)
        };
        let large: Vec<_> = groups.coded.into_iter().map(placed).collect();
        let codes = match home {
            StateHome::Paper => home.zeros(N * BLOCK * blocks.max(1), DType::U8)?,
            StateHome::On(device) => {
                let zeros = maps::<R, N>().map(|map| [map.zero(); BLOCK]);
                let codes = zeros.as_flattened().repeat(blocks.max(1));
                let length = codes.len();
                Tensor::from_vec(codes, length, device)?
            }
        };
        let places = large
            .iter()
            .map(|(group, first)| GroupRange::of_8bit(group.range.start, group.range.len(), *first));
        Ok(Self {
            rule,
            places: GroupRanges::new(places),
            large,
            codes,
            absmax: home.zeros(blocks.max(1) * N, DType::F32)?,
            small: StatesF32::new(rule, groups.plain, home)?,
            paged: None,
        })
    }

    /// States as those of [`new`](Self::new) that lie in the host's memory, for parameters on `device`.
    pub(super) fn paged(rule: R, groups: SlotGroups, device: StateHome<'_>) -> Result<Self> {
        let home = match device {
            StateHome::Paper => device,
            StateHome::On(_) => StateHome::On(&Device::Cpu),
        };
        let mut all = Self::new(rule, groups, home)?;
        let small = std::mem::take(&mut all.small.groups);
        all.small = StatesF32::paged(rule, small, device)?;
        let pinned = |tensor: &Tensor, per_unit, device: &Device| {
            let pinned = Pinned::new(tensor.clone(), device)?;
            candle_core::Result::Ok(Home { pinned, per_unit })
        };
        let pages_of = |(parameter, (group, first)): (usize, &(Group, usize))| {
            let (first, range) = (*first, group.range.clone());
            let blocks = first..first + range.len().div_ceil(BLOCK);
            pages::cut(blocks, PAGE_BLOCKS)
                .map(move |units| {
                    let start = range.start + (units.start - first) * BLOCK;
                    let length = (units.len() * BLOCK).min(range.end - start);
                    Page {
                        update: PageUpdate {
                            parameter,
                            places: GroupRanges::new([GroupRange::of_8bit(start, length, 0)]),
                        },
                        units,
                    }
                })
                .collect::<Vec<_>>()
        };
        all.paged = Some(Paged {
            homes: match device {
                StateHome::Paper => Vec::new(),
                StateHome::On(device) => {
                    vec![pinned(&all.codes, BLOCK * N, device)?, pinned(&all.absmax, N, device)?]
                }
            },
            pages: all.large.iter().enumerate().flat_map(pages_of).collect(),
        });
        Ok(all)
    }

    /// One page after the other, each with a launch of its own.
    fn update_pages(&self, paged: &Paged, parameters: &Parameters, step: Step) -> Result<()> {
        let device = parameters.values.device();
        let (maps, kernel) = (maps_on::<R, N>(device)?, kernel::<R, N>());
        let homes: Vec<&Home> = paged.homes.iter().collect();
        pages::for_each(&homes, &paged.pages, device, |page, states| {
            let factors = R::for_kernel(&self.rule.factors(&self.large[page.parameter].0, step));
            page.places.prepare(std::iter::once(factors), device)?;
            let mut tensors = [&parameters.values, &parameters.gradients]
                .map(Argument::Tensor)
                .to_vec();
            tensors.extend(states.iter().chain([&maps]).map(Argument::Tensor));
            page.places.run(Kernel::new(&kernel, BLOCK), &tensors, None, device)
        })
    }

    fn update_large_plain(&self, parameters: &Parameters, step: Step, group: &Group, first: usize) -> Result<()> {
        let (device, home) = (parameters.values.device(), self.codes.device());
        let (start, length) = (group.range.start, group.range.len());
        let blocks = length.div_ceil(BLOCK);
        let padded = |tensor: &Tensor| {
            let part = tensor.narrow(0, start, length)?;
            part.pad_with_zeros(0, 0, blocks * BLOCK - length)?
                .reshape((blocks, BLOCK))
        };
        let codes = self.codes.narrow(0, first * BLOCK * N, blocks * BLOCK * N)?;
        let codes = codes.to_device(device)?.reshape((blocks, N, BLOCK))?;
        let absmax = self.absmax.narrow(0, first * N, blocks * N)?;
        let absmax = absmax.to_device(device)?.reshape((blocks, N, 1))?;
        let (mut states, mut most_of_zero) = (Vec::with_capacity(N), Vec::with_capacity(N));
        for (which, map) in maps::<R, N>().into_iter().enumerate() {
            let codes = codes.narrow(1, which, 1)?.reshape((blocks, BLOCK))?;
            let absmax = absmax.narrow(1, which, 1)?.reshape((blocks, 1))?;
            states.push(widen_plain(map, &codes)?.broadcast_mul(&absmax)?);
            most_of_zero.push((absmax * f64::from(map.most_of_zero()))?);
        }
        let (value, gradient) = (padded(&parameters.values)?, padded(&parameters.gradients)?);
        let factors = self.rule.factors(group, step);
        let states = R::restored_plain(&factors, to_array(states), &to_array(most_of_zero))?;
        let (value, states) = R::apply_plain(&factors, &value, &gradient, &states)?;
        parameters
            .values
            .slice_set(&value.flatten_all()?.narrow(0, 0, length)?, 0, start)?;
        let (mut codes, mut absmax) = (Vec::with_capacity(N), Vec::with_capacity(N));
        for (map, state) in maps::<R, N>().into_iter().zip(&states) {
            let largest = state.abs()?.max_keepdim(1)?;
            let divisor = largest.eq(0.0)?.to_dtype(DType::F32)?;
            codes.push(code_plain(map, &state.broadcast_div(&(&largest + divisor)?)?)?);
            absmax.push(largest);
        }
        let codes = Tensor::stack(&codes, 1)?.flatten_all()?.to_device(home)?;
        let absmax = Tensor::stack(&absmax, 1)?.flatten_all()?.to_device(home)?;
        self.codes.slice_set(&codes, 0, first * BLOCK * N)?;
        self.absmax.slice_set(&absmax, 0, first * N)
    }
}

impl<R: ElementRule<N> + Copy, const N: usize> UpdateRule for States8bit<R, N> {
    fn update_fused(&self, parameters: &Parameters, step: Step, elements: Range<usize>) -> Result<()> {
        self.small.update_fused(parameters, step, elements.clone())?;
        let [values, gradients] = parameters.part(&elements)?;
        with_f32(&gradients, |gradients| {
            with_f32_mut(&values, |values| {
                with_u8_mut(&self.codes, |codes| {
                    with_f32_mut(&self.absmax, |absmax| {
                        let inside = self.large.iter().filter(|(group, _)| is_in(&group.range, &elements));
                        for (group, first) in inside {
                            let factors = self.rule.factors(group, step);
                            let range = group.range.start - elements.start..group.range.end - elements.start;
                            let values = values[range.clone()].par_chunks_mut(BLOCKS_AT_ONCE * BLOCK);
                            let gradients = gradients[range].par_chunks(BLOCKS_AT_ONCE * BLOCK);
                            let codes = codes[first * BLOCK * N..].par_chunks_mut(BLOCKS_AT_ONCE * BLOCK * N);
                            let absmax = absmax[first * N..].par_chunks_mut(BLOCKS_AT_ONCE * N);
                            let elements = values.zip(gradients);
                            elements
                                .zip(codes.zip(absmax))
                                .for_each(|((values, gradients), (codes, absmax))| {
                                    update_blocks::<R, N>(&factors, values, gradients, codes, absmax);
                                });
                        }
                        Ok(())
                    })
                })
            })
        })
    }

    fn update_plain(&self, parameters: &Parameters, step: Step) -> Result<()> {
        self.small.update_plain(parameters, step)?;
        let mut large = self.large.iter();
        large.try_for_each(|(group, first)| self.update_large_plain(parameters, step, group, *first))
    }

    fn repeated(&self) -> Option<&dyn RepeatedUpdate> {
        self.paged.is_none().then_some(self as &dyn RepeatedUpdate)
    }

    fn update_gpu(&self, parameters: &Parameters, step: Step) -> Result<()> {
        match &self.paged {
            Some(paged) => {
                self.small.update_gpu(parameters, step)?;
                self.update_pages(paged, parameters, step)
            }
            None => self.update_plain(parameters, step),
        }
    }

    fn update_on_paper(&self, ledger: &Ledger) -> Result<()> {
        self.small.update_on_paper(ledger)?;
        if let (Some(paged), Memory::Device) = (&self.paged, ledger.host().memory()) {
            let bytes = pages::room_bytes(&paged.pages, (BLOCK + 4) * N);
            ledger.spike(MemoryCategory::Scratch, bytes);
        }
        Ok(())
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        let small = self.small.state().into_iter();
        let mut state: Vec<_> = small.map(|(name, tensor)| (format!("small.{name}"), tensor)).collect();
        state.push(("codes".to_owned(), self.codes.clone()));
        state.push(("absmax".to_owned(), self.absmax.clone()));
        state
    }
}

impl<R: ElementRule<N> + Copy, const N: usize> RepeatedUpdate for States8bit<R, N> {
    fn prepare(&self, step: Step, device: &Device) -> Result<()> {
        self.small.prepare(step, device)?;
        let factors = |(group, _): &(Group, usize)| R::for_kernel(&self.rule.factors(group, step));
        self.places.prepare(self.large.iter().map(factors), device)
    }

    fn launch(&self, parameters: &Parameters, norm: Option<&Tensor>) -> Result<()> {
        let device = parameters.values.device();
        self.small.launch(parameters, norm)?;
        let maps = maps_on::<R, N>(device)?;
        let tensors = [
            Argument::Tensor(&parameters.values),
            Argument::Tensor(&parameters.gradients),
            Argument::Tensor(&self.codes),
            Argument::Tensor(&self.absmax),
            Argument::Tensor(&maps),
        ];
        self.places
            .run(Kernel::new(&kernel::<R, N>(), BLOCK), &tensors, norm, device)
    }
}

/// Name of the kernel.
fn kernel<R: ElementRule<N>, const N: usize>() -> String {
    format!("{}_8bit", R::KERNEL)
}

/// Values, then bounds of each state's map.
fn maps_on<R: ElementRule<N>, const N: usize>(device: &Device) -> Result<Tensor> {
    constant(R::KERNEL, device, || {
        let both = |map: &'static DynamicMap| map.values().iter().chain(map.bounds()).copied();
        maps::<R, N>().into_iter().flat_map(both).collect()
    })
}

fn maps<R: ElementRule<N>, const N: usize>() -> [&'static DynamicMap; N] {
    R::SIGNED.map(|signed| {
        if signed {
            DynamicMap::signed()
        } else {
            DynamicMap::unsigned()
        }
    })
}

/// Widens, updates and codes the blocks of one thread.
fn update_blocks<R: ElementRule<N>, const N: usize>(
    factors: &R::Factors,
    values: &mut [f32],
    gradients: &[f32],
    codes: &mut [u8],
    absmax: &mut [f32],
) {
    let maps = maps::<R, N>();
    let blocks = values.chunks_mut(BLOCK).zip(gradients.chunks(BLOCK));
    let states = codes.chunks_mut(BLOCK * N).zip(absmax.chunks_mut(N.max(1)));
    for ((values, gradients), (codes, absmax)) in blocks.zip(states) {
        let mut states = [[0f32; BLOCK]; N];
        let most_of_zero = std::array::from_fn(|which| maps[which].most_of_zero() * absmax[which]);
        for (which, state) in states.iter_mut().enumerate() {
            let codes = &codes[which * BLOCK..][..BLOCK];
            for (value, code) in state.iter_mut().zip(codes).take(values.len()) {
                *value = maps[which].values()[usize::from(*code)] * absmax[which];
            }
        }
        for (index, (value, gradient)) in values.iter_mut().zip(gradients).enumerate() {
            let state = std::array::from_fn(|which| states[which][index]);
            let state = R::restored(factors, state, most_of_zero);
            let state = R::apply(factors, value, *gradient, state);
            for (which, state) in state.into_iter().enumerate() {
                states[which][index] = state;
            }
        }
        for (which, state) in states.iter().enumerate() {
            let largest = state.iter().fold(0f32, |largest, value| largest.max(value.abs()));
            let divisor = if largest == 0.0 { 1.0 } else { largest };
            absmax[which] = largest;
            for (code, value) in codes[which * BLOCK..][..BLOCK].iter_mut().zip(state) {
                *code = maps[which].nearest(value / divisor);
            }
        }
    }
}

fn widen_plain(map: &DynamicMap, codes: &Tensor) -> Result<Tensor> {
    let values = Tensor::from_slice(map.values(), BLOCK, codes.device())?;
    // candle takes the largest value of an index dtype as "no index": 255 in a U8 would select zeros.
    let indices = codes.to_dtype(DType::U32)?.flatten_all()?;
    values.index_select(&indices, 0)?.reshape(codes.shape())
}

/// The nearest codes by eight halvings of the sorted bounds.
fn code_plain(map: &DynamicMap, fractions: &Tensor) -> Result<Tensor> {
    let bounds = Tensor::from_slice(map.bounds(), BLOCK, fractions.device())?;
    let flat = fractions.flatten_all()?;
    let mut codes = Tensor::zeros(flat.elem_count(), DType::U32, fractions.device())?;
    for halving in (0..8).rev() {
        let step = 1u32 << halving;
        let probe = codes.affine(1.0, f64::from(step - 1))?;
        let above = flat.gt(&bounds.index_select(&probe, 0)?)?.to_dtype(DType::U32)?;
        codes = (codes + above.affine(f64::from(step), 0.0)?)?;
    }
    codes.to_dtype(DType::U8)?.reshape(fractions.shape())
}
