//! Steps and evaluations that the ranks of a training do next: rank 0 decides, and the others do what it tells them.

use super::RunError;
use crate::parallel::{Collective, CollectiveError};

/// Work that all ranks do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Next {
    Step,
    Evaluate,
    /// Losses of the rows of steps `first` to `last`, on the values of rank 0.
    Rows {
        first: u64,
        last: u64,
    },
    /// Return to the checkpoint of this step, which holds the rate to go on with.
    Return {
        step: u64,
    },
    End,
}

impl Next {
    /// Tells the other ranks.
    ///
    /// # Errors
    /// A rank that is gone or hangs.
    pub(super) fn tell(self, collective: &dyn Collective) -> Result<(), CollectiveError> {
        let (kind, first, last) = match self {
            Self::Step => (0.0, 0, 0),
            Self::Evaluate => (1.0, 0, 0),
            Self::End => (2.0, 0, 0),
            Self::Rows { first, last } => (3.0, first, last),
            Self::Return { step } => (4.0, step, step),
        };
        collective.sum_numbers(&mut [kind, first as f64, last as f64])
    }

    /// Hears what rank 0 tells.
    ///
    /// # Errors
    /// Errors of [`Next::tell`].
    pub(super) fn hear(collective: &dyn Collective) -> Result<Self, CollectiveError> {
        let mut told = [0.0; 3];
        collective.sum_numbers(&mut told)?;
        let [kind, first, last] = told;
        let (first, last) = (first as u64, last as u64);
        Ok(match kind {
            0.0 => Self::Step,
            1.0 => Self::Evaluate,
            3.0 => Self::Rows { first, last },
            4.0 => Self::Return { step: first },
            _ => Self::End,
        })
    }
}

/// Makes sure that all ranks are of one training, which `own` numbers stand for ([`Identity::numbers`](super::identity::Identity::numbers)),
/// and returns the step of the checkpoint that rank 0 resumes from.
///
/// # Errors
/// A rank that has other data; one that is gone or hangs.
pub(super) fn meet(collective: &dyn Collective, own: &[f64], resumed_at: Option<u64>) -> Result<Option<u64>, RunError> {
    // The highest of all and the lowest of all are one's own.
    let mut both: Vec<f64> = own.iter().flat_map(|number| [*number, -number]).collect();
    collective.highest(&mut both)?;
    if !own.iter().flat_map(|number| [*number, -number]).eq(both) {
        return Err(RunError::RanksDiffer);
    }
    let mut step = match (collective.rank(), resumed_at) {
        (0, Some(step)) => [1.0, step as f64],
        _ => [0.0; 2],
    };
    collective.sum_numbers(&mut step)?;
    Ok((step[0] > 0.0).then_some(step[1] as u64))
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use super::*;
    use crate::parallel::{Segment, SharedMemory};

    /// Results of `work` on each of two ranks.
    fn on_both<R: Send>(work: impl Fn(&SharedMemory) -> R + Sync) -> [R; 2] {
        let segment = Segment::create(2).unwrap();
        std::thread::scope(|scope| {
            let start = |rank| {
                let view = Arc::new(segment.share().unwrap());
                let work = &work;
                scope.spawn(move || work(&SharedMemory::new(view, rank, Duration::from_secs(60)).unwrap()))
            };
            [0, 1].map(start).map(|rank| rank.join().unwrap())
        })
    }

    #[test]
    fn ranks_hear_what_the_first_one_tells() {
        let all = [
            Next::Step,
            Next::Evaluate,
            Next::Rows {
                first: 3,
                last: 1 << 40,
            },
            Next::Return { step: 7 },
            Next::Step,
            Next::End,
        ];
        let [_, heard] = on_both(|ranks| match ranks.rank() {
            0 => {
                all.iter().for_each(|next| next.tell(ranks).unwrap());
                Vec::new()
            }
            _ => all.iter().map(|_| Next::hear(ranks).unwrap()).collect(),
        });
        assert_eq!(heard, all);
    }

    #[test]
    fn ranks_begin_where_the_first_one_does_and_notice_other_data() {
        let steps = on_both(|ranks| {
            let resumed = (ranks.rank() == 0).then_some(7);
            [None, resumed].map(|resumed_at| meet(ranks, &[3.0, -1.0], resumed_at).unwrap())
        });
        assert_eq!(steps, [[None, Some(7)]; 2]);
        for other in [[4.0, 5.0], [3.0, 6.0]] {
            let met = on_both(|ranks| {
                let own = if ranks.rank() == 0 { [3.0, 5.0] } else { other };
                matches!(meet(ranks, &own, None), Err(RunError::RanksDiffer))
            });
            assert_eq!(met, [true; 2]);
        }
    }
}
