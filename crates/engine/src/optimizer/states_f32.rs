//! Element rules whose states are F32, one of each for each element.
//!
//! Paged states (`paged_adamw`) lie in host memory, whatever the device, and come there page by page ([`super::pages`]), so
//! that it never holds more than two pages of them. On the CPU nothing differs.

use std::ops::Range;

use candle_core::{DType, Device, Result, Tensor};

use crate::Parameters;
use peft_tune_kernels::gpu::{Argument, Pinned};
use peft_tune_kernels::thread_pool;

use super::cuda::{GroupRange, GroupRanges, Kernel};
use super::group::{Group, common};
use super::pages::{self, Home, Page};
use super::rule::{ElementRule, RepeatedUpdate, StateHome, Step, UpdateRule};
use crate::tensor::Ledger;
use peft_tune_core::plan::{Memory, PAGE_ELEMENTS};
use peft_tune_core::predict::MemoryCategory;
use peft_tune_kernels::flat::{CHUNK, with_f32, with_f32_mut, with_f32_muts};

/// Elements of a page of one state. In tests small parameters have several.
const PAGE: usize = if cfg!(test) { 1024 } else { PAGE_ELEMENTS };

/// A rule with its states.
pub(super) struct StatesF32<R, const N: usize> {
    rule: R,
    pub(super) groups: Vec<Group>,
    /// (elements of all groups,) each; the groups lie one behind the other.
    states: [Tensor; N],
    places: GroupRanges,
    paged: Option<Paged>,
}

/// States that lie in the host's memory.
struct Paged {
    homes: Vec<Home>,
    pages: Vec<Page<PageUpdate>>,
}

/// A page of one group.
struct PageUpdate {
    /// Index of the page's group.
    group: usize,
    places: GroupRanges,
}

impl<R: ElementRule<N>, const N: usize> StatesF32<R, N> {
    /// States of zero for `groups`, kept on `home`.
    pub(super) fn new(rule: R, groups: Vec<Group>, home: StateHome<'_>) -> Result<Self> {
        let elements: usize = groups.iter().map(|group| group.range.len()).sum();
        let mut states = Vec::with_capacity(N);
        for _ in 0..N {
            states.push(home.zeros(elements, DType::F32)?);
        }
        let mut next = 0;
        let place = |group: &Group| {
            let (start, length) = (group.range.start, group.range.len());
            next += length;
            GroupRange::of_f32(start, length, next - length)
        };
        Ok(Self {
            rule,
            places: GroupRanges::new(groups.iter().map(place)),
            groups,
            states: to_array(states),
            paged: None,
        })
    }

    /// States of zero for `groups`, in the host's memory, for parameters on `device`.
    pub(super) fn paged(rule: R, groups: Vec<Group>, device: StateHome<'_>) -> Result<Self> {
        let (mut all, homes) = match device {
            StateHome::Paper => (Self::new(rule, groups, device)?, Vec::new()),
            StateHome::On(device) => {
                let all = Self::new(rule, groups, StateHome::On(&Device::Cpu))?;
                let home = |state: &Tensor| {
                    let pinned = Pinned::new(state.clone(), device)?;
                    Ok(Home { pinned, per_unit: 1 })
                };
                let homes = all.states.iter().map(home).collect::<Result<_>>()?;
                (all, homes)
            }
        };
        let pages_of = |(group, (range, start)): (usize, (&Group, usize))| {
            let first = range.range.start;
            pages::cut(start..start + range.range.len(), PAGE)
                .map(move |units| Page {
                    update: PageUpdate {
                        group,
                        places: GroupRanges::new([GroupRange::of_f32(first + units.start - start, units.len(), 0)]),
                    },
                    units,
                })
                .collect::<Vec<_>>()
        };
        let pages = all.placed().enumerate().flat_map(pages_of).collect();
        all.paged = Some(Paged { homes, pages });
        Ok(all)
    }

    /// One page after the other, each with a launch of its own.
    fn update_pages(&self, paged: &Paged, parameters: &Parameters, step: Step) -> Result<()> {
        let device = parameters.values.device();
        let homes: Vec<&Home> = paged.homes.iter().collect();
        pages::for_each(&homes, &paged.pages, device, |page, states| {
            let factors = R::for_kernel(&self.rule.factors(&self.groups[page.group], step));
            page.places.prepare(std::iter::once(factors), device)?;
            let tensors = [
                Argument::Tensor(&parameters.values),
                Argument::Tensor(&parameters.gradients),
                Argument::Maybe(states.first()),
                Argument::Maybe(states.get(1)),
            ];
            page.places.run(Kernel::new(R::KERNEL, 256), &tensors, None, device)
        })
    }

    /// The groups with the place of their states.
    fn placed(&self) -> impl Iterator<Item = (&Group, usize)> {
        self.groups.iter().scan(0, |next, group| {
            let start = *next;
            *next += group.range.len();
            Some((group, start))
        })
    }

    fn update_page(&self, parameters: &Parameters, factors: &R::Factors, page: Range<usize>, at: usize) -> Result<()> {
        let device = parameters.values.device();
        let part = |tensor: &Tensor, start: usize| tensor.narrow(0, start, page.len());
        let value = part(&parameters.values, page.start)?;
        let gradient = part(&parameters.gradients, page.start)?;
        let mut states = Vec::with_capacity(N);
        for state in &self.states {
            states.push(part(state, at)?.to_device(device)?);
        }
        let (value, states) = R::apply_plain(factors, &value, &gradient, &to_array(states))?;
        parameters.values.slice_set(&value, 0, page.start)?;
        for (home, state) in self.states.iter().zip(&states) {
            home.slice_set(&state.to_device(home.device())?, 0, at)?;
        }
        Ok(())
    }
}

impl<R: ElementRule<N>, const N: usize> UpdateRule for StatesF32<R, N> {
    fn update_fused(&self, parameters: &Parameters, step: Step, elements: Range<usize>) -> Result<()> {
        let [values, gradients] = parameters.part(&elements)?;
        with_f32(&gradients, |gradients| {
            with_f32_mut(&values, |values| {
                with_f32_muts(&self.states, |mut states| {
                    for (group, start) in self.placed() {
                        let (whole, range) = (&group.range, common(&group.range, &elements));
                        if range.is_empty() {
                            continue;
                        }
                        let factors = self.rule.factors(group, step);
                        let (start, length) = (start + range.start - whole.start, range.len());
                        let range = range.start - elements.start..range.end - elements.start;
                        let states = states.each_mut().map(|state| &mut state[start..start + length]);
                        update_split::<R, N>(&factors, &mut values[range.clone()], &gradients[range], states);
                    }
                    Ok(())
                })
            })
        })
    }

    fn update_plain(&self, parameters: &Parameters, step: Step) -> Result<()> {
        for (group, start) in self.placed() {
            let factors = self.rule.factors(group, step);
            for from in (0..group.range.len()).step_by(PAGE) {
                let first = group.range.start + from;
                let page = first..(first + PAGE).min(group.range.end);
                self.update_page(parameters, &factors, page, start + from)?;
            }
        }
        Ok(())
    }

    fn repeated(&self) -> Option<&dyn RepeatedUpdate> {
        self.paged.is_none().then_some(self as &dyn RepeatedUpdate)
    }

    fn update_gpu(&self, parameters: &Parameters, step: Step) -> Result<()> {
        match &self.paged {
            Some(paged) => self.update_pages(paged, parameters, step),
            None => self.update_plain(parameters, step),
        }
    }

    fn update_on_paper(&self, ledger: &Ledger) -> Result<()> {
        if let (Some(paged), Memory::Device) = (&self.paged, ledger.host().memory()) {
            ledger.spike(MemoryCategory::Scratch, pages::room_bytes(&paged.pages, 4 * N));
        }
        Ok(())
    }

    fn look_ahead(&self) -> Option<(&Tensor, f32)> {
        self.states.first().zip(self.rule.look_ahead())
    }

    fn state(&self) -> Vec<(String, Tensor)> {
        let names = R::STATES.iter().zip(&self.states);
        names.map(|(name, state)| ((*name).to_owned(), state.clone())).collect()
    }
}

impl<R: ElementRule<N>, const N: usize> RepeatedUpdate for StatesF32<R, N> {
    fn prepare(&self, step: Step, device: &Device) -> Result<()> {
        let factors = |group| R::for_kernel(&self.rule.factors(group, step));
        self.places.prepare(self.groups.iter().map(factors), device)
    }

    fn launch(&self, parameters: &Parameters, norm: Option<&Tensor>) -> Result<()> {
        let tensors = [
            Argument::Tensor(&parameters.values),
            Argument::Tensor(&parameters.gradients),
            Argument::Maybe(self.states.first()),
            Argument::Maybe(self.states.get(1)),
        ];
        self.places
            .run(Kernel::new(R::KERNEL, 256), &tensors, norm, parameters.values.device())
    }
}

/// Slice of the values, and those of their gradients and states that belong to it.
struct StateSlice<'a, const N: usize> {
    values: &'a mut [f32],
    gradients: &'a [f32],
    states: [&'a mut [f32]; N],
}

/// Updates part by part, each of which fits a thread's cache.
fn update_split<R: ElementRule<N>, const N: usize>(
    factors: &R::Factors,
    values: &mut [f32],
    gradients: &[f32],
    states: [&mut [f32]; N],
) {
    let mut parts = Vec::with_capacity(values.len().div_ceil(CHUNK));
    let mut chunks = states.map(|state| state.chunks_mut(CHUNK));
    for (values, gradients) in values.chunks_mut(CHUNK).zip(gradients.chunks(CHUNK)) {
        parts.push(StateSlice {
            values,
            gradients,
            states: chunks.each_mut().map(|chunks| chunks.next().unwrap_or_default()),
        });
    }
    thread_pool::for_chunks(&mut parts, 1, |_, parts| {
        for StateSlice {
            values,
            gradients,
            states,
        } in parts
        {
            let states = states.each_mut().map(|state| &mut **state);
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx512f") {
                // SAFETY: the processor has the feature that the function is compiled for.
                unsafe { update_slice_avx512::<R, N>(factors, values, gradients, states) };
                continue;
            }
            update_slice::<R, N>(factors, values, gradients, states);
        }
    });
}

/// [`update_slice`] compiled to wider vector instructions: the arithmetic, and so every bit, is the same.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn update_slice_avx512<R: ElementRule<N>, const N: usize>(
    factors: &R::Factors,
    values: &mut [f32],
    gradients: &[f32],
    states: [&mut [f32]; N],
) {
    update_slice::<R, N>(factors, values, gradients, states);
}

#[inline(always)]
fn update_slice<R: ElementRule<N>, const N: usize>(
    factors: &R::Factors,
    values: &mut [f32],
    gradients: &[f32],
    states: [&mut [f32]; N],
) {
    // Equal lengths, so that the loop needs no bounds checks and becomes vector instructions.
    let length = values.len();
    let gradients = &gradients[..length];
    let states = states.map(|state| &mut state[..length]);
    for index in 0..length {
        let state = std::array::from_fn(|which| states[which][index]);
        let state = R::apply(factors, &mut values[index], gradients[index], state);
        for (which, state) in state.into_iter().enumerate() {
            states[which][index] = state;
        }
    }
}

/// N tensors that were pushed one by one.
pub(super) fn to_array<const N: usize>(tensors: Vec<Tensor>) -> [Tensor; N] {
    tensors.try_into().expect("one tensor was pushed for each state")
}
