//! Ranks that are processes of one machine, and meet in shared memory.
//!
//! Notation: n ranks, slot k is rank k's part of the [`Segment`]. A sum of a long buffer goes through the slots in pieces:
//!
//! 1. every rank copies its piece into its own slot, and all meet;
//! 2. rank k adds up the k-th n-th of all slots, slot 0 first, into slot 0, and all meet;
//! 3. every rank copies slot 0 into its buffer, and all meet, since the next piece overwrites it.
//!
//! A gather of every rank's part goes the same way:
//!
//! 1. every rank writes into its slot how many bytes it gives, all meet, look whether those are the same, and meet again;
//! 2. piece by piece, every rank copies its piece into its slot, all meet, copy the pieces from all slots, and meet.
//!
//! The order of the sums depends on nothing but the ranks, so every rank ends with the same bits, every time. Tensors of a
//! GPU go through the host's memory; NCCL (the feature `nccl`) knows better ways.

use std::ops::{Add, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use candle_core::{Device, Tensor};

use super::meeting::{arrive, has_arrived};
use super::segment::{self, SLOT_BYTES, Segment};
use super::{Collective, CollectiveError};
use peft_tune_kernels::flat::{with_bytes, with_bytes_mut, with_f32_mut};

/// Looks at the others' arrivals before the thread lets others run.
const SPINS: u32 = 2_000;
/// How long a rank that waits lets others run before it sleeps in between.
const YIELDING: Duration = Duration::from_millis(2);
/// How long it sleeps then.
const NAP: Duration = Duration::from_micros(100);

/// Time between two looks that counts as waiting: what is beyond it, this process was stopped or the machine slept.
const LONGEST_LOOK: Duration = Duration::from_millis(100);

/// One rank, in shared memory with the others.
#[derive(Debug)]
pub struct SharedMemory {
    segment: Arc<Segment>,
    rank: usize,
    /// How long the others may take to arrive.
    patience: Duration,
}

impl SharedMemory {
    /// Rank `rank` of those that share `segment`. A rank that has not arrived at a meeting within `patience` counts as
    /// hanging; the slowest evaluation or the load of the model must fit into it.
    ///
    /// # Errors
    /// A rank that is none of the segment's.
    pub fn new(segment: Arc<Segment>, rank: usize, patience: Duration) -> Result<Self, CollectiveError> {
        segment::check(rank, segment.ranks())?;
        Ok(Self {
            segment,
            rank,
            patience,
        })
    }

    /// Sums `values` over all ranks, piece by piece.
    fn sum<T: Number + Add<Output = T>>(&self, values: &mut [T]) -> Result<(), CollectiveError> {
        let ranks = self.ranks();
        for piece in values.chunks_mut(SLOT_BYTES / size_of::<T>()) {
            self.mine(self.rank, 0..piece.len()).copy_from_slice(piece);
            self.barrier()?;
            let share = piece.len().div_ceil(ranks);
            let part = (share * self.rank).min(piece.len())..(share * (self.rank + 1)).min(piece.len());
            self.add_up::<T>(part);
            self.barrier()?;
            piece.copy_from_slice(self.given(0, 0..piece.len()));
            self.barrier()?;
        }
        Ok(())
    }

    /// Adds elements `part` of all slots, in the order of the ranks, into slot 0.
    fn add_up<T: Number + Add<Output = T>>(&self, part: Range<usize>) {
        let sums = self.mine::<T>(0, part.clone());
        for rank in 1..self.ranks() {
            for (sum, value) in sums.iter_mut().zip(self.given::<T>(rank, part.clone())) {
                *sum = *sum + *value;
            }
        }
    }

    /// Copies the values of rank 0 to all ranks.
    fn copy_first(&self, values: &mut [f32]) -> Result<(), CollectiveError> {
        for piece in values.chunks_mut(SLOT_BYTES / size_of::<f32>()) {
            if self.rank == 0 {
                self.mine(0, 0..piece.len()).copy_from_slice(piece);
            }
            self.barrier()?;
            piece.copy_from_slice(self.given(0, 0..piece.len()));
            self.barrier()?;
        }
        Ok(())
    }

    /// Puts what each rank has in `own` behind each other into `all`.
    fn gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), CollectiveError> {
        self.check_sizes(own.len())?;
        if all.len() != own.len() * self.ranks() {
            return Err(CollectiveError::Size {
                rank: self.rank,
                ranks: self.ranks(),
                got: (own.len() * self.ranks()) as u64,
                expected: all.len() as u64,
            });
        }
        for (index, piece) in own.chunks(SLOT_BYTES).enumerate() {
            self.mine(self.rank, 0..piece.len()).copy_from_slice(piece);
            self.barrier()?;
            for (rank, part) in all.chunks_mut(own.len()).enumerate() {
                let part = &mut part[index * SLOT_BYTES..][..piece.len()];
                part.copy_from_slice(self.given(rank, 0..piece.len()));
            }
            self.barrier()?;
        }
        Ok(())
    }

    /// Finds out whether all ranks give as many bytes; all come to the same answer.
    fn check_sizes(&self, own: usize) -> Result<(), CollectiveError> {
        self.mine::<u64>(self.rank, 0..1)[0] = own as u64;
        self.barrier()?;
        let sizes: Vec<u64> = (0..self.ranks()).map(|rank| self.given(rank, 0..1)[0]).collect();
        self.barrier()?;
        match sizes.iter().position(|size| *size != sizes[0]) {
            None => Ok(()),
            Some(rank) => Err(CollectiveError::Size {
                rank,
                ranks: self.ranks(),
                got: sizes[rank],
                expected: sizes[0],
            }),
        }
    }

    /// Hands the elements of an F32 tensor to `change`: those themselves on the CPU, a copy of them elsewhere.
    fn change(
        tensor: &Tensor,
        change: impl FnOnce(&mut [f32]) -> Result<(), CollectiveError>,
    ) -> Result<(), CollectiveError> {
        if tensor.device().is_cpu() {
            return with_f32_mut(tensor, |values| Ok(change(values)))?;
        }
        let mut values = tensor.flatten_all()?.to_vec1::<f32>()?;
        change(&mut values)?;
        let changed = Tensor::from_vec(values, tensor.shape(), tensor.device())?;
        Ok(tensor.slice_set(&changed, 0, 0)?)
    }

    /// Elements of a rank's slot that this rank writes to until the next meeting.
    #[expect(clippy::mut_from_ref, reason = "the meetings say who may write to which elements")]
    fn mine<T: Number>(&self, rank: usize, elements: Range<usize>) -> &mut [T] {
        let start = self.start::<T>(rank, &elements);
        // SAFETY: as for `given`; and between two meetings no other rank reads or writes these elements (see the steps at
        // the head of this file), and this one holds no other slice of them.
        unsafe { std::slice::from_raw_parts_mut(start, elements.len()) }
    }

    /// Elements of a rank's slot that nobody writes to until the next meeting.
    fn given<T: Number>(&self, rank: usize, elements: Range<usize>) -> &[T] {
        let start = self.start::<T>(rank, &elements);
        // SAFETY: the slot is mapped as long as the segment, aligned to a cache line, and any bits are a number.
        unsafe { std::slice::from_raw_parts(start, elements.len()) }
    }

    /// Address at which elements of a slot begin.
    fn start<T: Number>(&self, rank: usize, elements: &Range<usize>) -> *mut T {
        assert!(
            elements.start <= elements.end && elements.end <= SLOT_BYTES / size_of::<T>(),
            "{elements:?} of a slot"
        );
        // SAFETY: the elements lie in the slot.
        unsafe { self.segment.slot(rank).cast::<T>().add(elements.start) }
    }

    /// Waits until `rank` has reached meeting number `meeting`.
    fn wait_for(&self, rank: usize, meeting: u64) -> Result<(), CollectiveError> {
        let (arrivals, ranks) = (self.segment.arrivals(rank), self.ranks());
        let has_arrived = || has_arrived(arrivals, meeting);
        for _ in 0..SPINS {
            if has_arrived() {
                return Ok(());
            }
            std::hint::spin_loop();
        }
        let (mut waited, mut looked) = (Duration::ZERO, Instant::now());
        while !has_arrived() {
            if let Some(rank) = self.segment.gone() {
                return Err(CollectiveError::Gone { rank, ranks });
            }
            // Where all processes were stopped for a while, nobody is late.
            let now = Instant::now();
            waited += now.duration_since(looked).min(LONGEST_LOOK);
            looked = now;
            if waited > self.patience {
                // The others wait for the same rank, and need not find out one after the other.
                self.segment.tell_gone(rank);
                let waited_s = waited.as_secs_f64();
                return Err(CollectiveError::Late { rank, ranks, waited_s });
            }
            match waited < YIELDING {
                true => std::thread::yield_now(),
                false => std::thread::sleep(NAP),
            }
        }
        Ok(())
    }
}

impl Collective for SharedMemory {
    fn rank(&self) -> usize {
        self.rank
    }

    fn ranks(&self) -> usize {
        self.segment.ranks()
    }

    fn all_reduce_sum(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        Self::change(tensor, |values| self.sum(values))
    }

    fn sum_numbers(&self, numbers: &mut [f64]) -> Result<(), CollectiveError> {
        self.sum(numbers)
    }

    fn broadcast(&self, tensor: &Tensor) -> Result<(), CollectiveError> {
        Self::change(tensor, |values| self.copy_first(values))
    }

    fn all_gather(&self, own: &Tensor, all: &Tensor) -> Result<(), CollectiveError> {
        if own.dtype() != all.dtype() {
            let message = format!("a gather of {:?} into {:?}", own.dtype(), all.dtype());
            return Err(candle_core::Error::Msg(message).into());
        }
        if all.device().is_cpu() {
            return with_bytes(own, |own| with_bytes_mut(all, |all| Ok(self.gather(own, all))))?;
        }
        // Through the host's memory, on both sides.
        let (own, whole) = (
            own.to_device(&Device::Cpu)?,
            all.flatten_all()?.to_device(&Device::Cpu)?,
        );
        with_bytes(&own, |own| with_bytes_mut(&whole, |all| Ok(self.gather(own, all))))??;
        Ok(all.slice_set(&whole.to_device(all.device())?, 0, 0)?)
    }

    fn gathers_beside(&self) -> bool {
        true
    }

    fn barrier(&self) -> Result<(), CollectiveError> {
        let meeting = arrive(self.segment.arrivals(self.rank));
        (0..self.ranks()).try_for_each(|rank| self.wait_for(rank, meeting))
    }
}

/// Numbers, of which any bits are one.
trait Number: Copy {}

impl Number for u8 {}
impl Number for u64 {}
impl Number for f32 {}
impl Number for f64 {}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use candle_core::DType;
    use proptest::prelude::*;

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Runs `work` on every rank, each in a thread with its own view of the memory.
    fn on_all<R: Send>(ranks: usize, work: impl Fn(&SharedMemory) -> R + Sync) -> Vec<R> {
        let segment = Segment::create(ranks).unwrap();
        std::thread::scope(|scope| {
            let run = |rank| {
                let view = Arc::new(segment.share().unwrap());
                let work = &work;
                scope.spawn(move || work(&SharedMemory::new(view, rank, PATIENCE).unwrap()))
            };
            let threads: Vec<_> = (0..ranks).map(run).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// A value that differs by rank and place, with digits that rounding loses.
    fn value(rank: usize, place: usize) -> f32 {
        ((rank * 7919 + place * 104_729) % 10_007) as f32 / 3.0 - 1000.0
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn sums_are_those_of_the_ranks_in_order(ranks in 1_usize..5, elements in 1_usize..400_000) {
            let sums = on_all(ranks, |collective| {
                let own: Vec<f32> = (0..elements).map(|place| value(collective.rank(), place)).collect();
                let tensor = Tensor::new(own, &Device::Cpu).unwrap();
                collective.all_reduce_sum(&tensor).unwrap();
                tensor.to_vec1::<f32>().unwrap()
            });
            let expected: Vec<f32> =
                (0..elements).map(|place| (1..ranks).fold(value(0, place), |sum, rank| sum + value(rank, place))).collect();
            for sum in sums {
                prop_assert!(sum == expected, "bit for bit on every rank");
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(12))]
        #[test]
        fn every_rank_gets_what_all_have_in_their_order(ranks in 1_usize..5, elements in 0_usize..400_000) {
            let all = on_all(ranks, |collective| {
                let own = |rank| -> Vec<f32> { (0..elements).map(|place| value(rank, place)).collect() };
                let mine = Tensor::new(own(collective.rank()), &Device::Cpu).unwrap();
                let whole = Tensor::zeros(ranks * elements, DType::F32, &Device::Cpu).unwrap();
                collective.all_gather(&mine, &whole).unwrap();
                let expected: Vec<f32> = (0..ranks).flat_map(own).collect();
                whole.to_vec1::<f32>().unwrap() == expected
            });
            prop_assert!(all.into_iter().all(|is_same| is_same), "bit for bit on every rank");
        }
    }

    #[test]
    fn bytes_and_halves_are_gathered_as_they_are() {
        let all = on_all(3, |collective| {
            let (rank, device) = (collective.rank(), &Device::Cpu);
            let bytes = Tensor::zeros(9, DType::U8, device).unwrap();
            collective
                .all_gather(&Tensor::full(rank as u8 + 7, 3, device).unwrap(), &bytes)
                .unwrap();
            let halves = Tensor::zeros(3, DType::BF16, device).unwrap();
            let own = Tensor::full(half::bf16::from_f32(rank as f32 + 0.5), 1, device).unwrap();
            collective.all_gather(&own, &halves).unwrap();
            let halves: Vec<f32> = halves.to_dtype(DType::F32).unwrap().to_vec1().unwrap();
            (bytes.to_vec1::<u8>().unwrap(), halves)
        });
        for found in all {
            assert_eq!(found, (vec![7, 7, 7, 8, 8, 8, 9, 9, 9], vec![0.5, 1.5, 2.5]));
        }
    }

    #[test]
    fn a_rank_that_gives_another_number_of_bytes_is_named_to_all() {
        let errors = on_all(3, |collective| {
            let elements = if collective.rank() == 2 { 5 } else { 4 };
            let own = Tensor::zeros(elements, DType::F32, &Device::Cpu).unwrap();
            let all = Tensor::zeros(12, DType::F32, &Device::Cpu).unwrap();
            collective.all_gather(&own, &all).unwrap_err().to_string()
        });
        for error in errors {
            assert!(
                error.starts_with("rank 2 of 3 gave 20 bytes of weights where rank 0 gave 16;"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_gather_stops_waiting_once_a_rank_is_gone_or_late() {
        let errors = |patience, gone: bool| {
            let segment = Arc::new(Segment::create(2).unwrap());
            let collective = SharedMemory::new(segment.clone(), 0, patience).unwrap();
            if gone {
                segment.tell_gone(1);
            }
            let own = Tensor::zeros(4, DType::U8, &Device::Cpu).unwrap();
            let all = Tensor::zeros(8, DType::U8, &Device::Cpu).unwrap();
            collective.all_gather(&own, &all).unwrap_err()
        };
        assert!(matches!(errors(PATIENCE, true), CollectiveError::Gone { rank: 1, .. }));
        let late = errors(Duration::from_millis(100), false);
        assert!(matches!(late, CollectiveError::Late { rank: 1, .. }), "{late}");
    }

    #[test]
    fn many_short_sums_in_a_row_do_not_mix() {
        let all = on_all(3, |collective| {
            let mut sums = Vec::new();
            for round in 0..2_000 {
                let mut numbers = [f64::from(round), collective.rank() as f64];
                collective.sum_numbers(&mut numbers).unwrap();
                sums.push(numbers);
            }
            sums
        });
        for sums in all {
            for (round, sum) in sums.into_iter().enumerate() {
                assert_eq!(sum, [3.0 * round as f64, 3.0]);
            }
        }
    }

    #[test]
    fn every_rank_gets_what_the_first_has_and_the_highest_of_all() {
        let all = on_all(3, |collective| {
            let tensor = Tensor::full(collective.rank() as f32 + 0.5, 10, &Device::Cpu).unwrap();
            collective.broadcast(&tensor).unwrap();
            let mut highest = [collective.rank() as f64, -(collective.rank() as f64)];
            collective.highest(&mut highest).unwrap();
            (tensor.to_vec1::<f32>().unwrap(), highest)
        });
        for found in all {
            assert_eq!(found, (vec![0.5; 10], [2.0, 0.0]));
        }
    }

    #[test]
    fn a_rank_that_never_arrives_is_named_to_all_who_wait() {
        let segment = Segment::create(3).unwrap();
        let errors: Vec<_> = std::thread::scope(|scope| {
            let wait = |rank| {
                let view = Arc::new(segment.share().unwrap());
                scope.spawn(move || {
                    let collective = SharedMemory::new(view, rank, Duration::from_millis(200)).unwrap();
                    collective.barrier().unwrap_err().to_string()
                })
            };
            let threads: Vec<_> = (0..2).map(wait).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for error in errors {
            assert!(error.starts_with("rank 2 of 3"), "{error}");
        }
    }

    #[test]
    fn ranks_stop_waiting_once_one_is_gone() {
        let segment = Arc::new(Segment::create(2).unwrap());
        let collective = SharedMemory::new(segment.clone(), 0, PATIENCE).unwrap();
        segment.tell_gone(1);
        assert!(matches!(
            collective.barrier(),
            Err(CollectiveError::Gone { rank: 1, ranks: 2 })
        ));
    }
}
