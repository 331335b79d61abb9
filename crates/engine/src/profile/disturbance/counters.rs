//! Counters of a machine, and the share of the processor time that a program lacked between two readings.
//!
//! | symbol | meaning |
//! |---|---|
//! | w | seconds between the readings |
//! | t, c | threads that compute; processors that they may use |
//! | u | own processor time over w min(t, c) |
//! | p | share of w in which something that could run waited for a processor (Linux' pressure) |
//! | o | processors that others kept busy, this program's other ranks not counted |
//! | s | processor time that the hypervisor gave to another machine, over w min(t, c) |
//!
//! The lost share is min(1 - u, e + s). Of e, what others did, there are two readings: p where the system counts pressure,
//! else (o + t - c) / t, which is what others took beyond the processors that were free. Both sides have to agree: a program
//! that waits for its data uses less than it could on a quiet machine, and one that has processors left is not disturbed by
//! neighbours.

/// Counters of a machine and of this process, all since some moment in the past; what is not counted is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Wall clock.
    pub at_s: f64,
    /// Processor time of this process.
    pub own_s: Option<f64>,
    /// Time in which something waited for a processor.
    pub waiting_s: Option<f64>,
    /// Processor time of all processes, on the processors that this one may use.
    pub busy_s: Option<f64>,
    /// Processor time that the hypervisor gave away, on the same processors.
    pub stolen_s: Option<f64>,
    /// Mean clock of these processors now.
    pub clock_mhz: Option<f64>,
}

/// Readers of counters: the host, or a stand-in.
pub trait MachineCounters {
    /// The counters now.
    fn read(&mut self) -> Counters;
}

/// Load that a measurement puts on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// Threads that compute in this process.
    pub threads: usize,
    /// Processors that they may use.
    pub cores: usize,
    /// Processes like this one that compute together.
    pub ranks: usize,
}

/// Differences between two readings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Window {
    pub seconds: f64,
    /// Share of the processor time that the threads could use which was their own.
    pub own_share: Option<f64>,
    /// Share of the time in which something waited for a processor.
    pub waiting_share: Option<f64>,
    /// Processors that others kept busy.
    pub other_cores: Option<f64>,
    /// Share of the processor time that was missing and that others had, in [0, 1].
    pub lost: f64,
}

impl Window {
    pub(super) fn between(first: &Counters, last: &Counters, load: Load) -> Self {
        let seconds = last.at_s - first.at_s;
        if seconds <= 0.0 {
            return Self::default();
        }
        let passed = |of: fn(&Counters) -> Option<f64>| Some(((of(last)? - of(first)?) / seconds).max(0.0));
        let (threads, cores) = (load.threads.max(1) as f64, load.cores.max(1) as f64);
        let usable = threads.min(cores);
        let own = passed(|counters| counters.own_s);
        let own_share = own.map(|own| own / usable);
        let waiting_share = passed(|counters| counters.waiting_s).map(|share| share.min(1.0));
        let busy = passed(|counters| counters.busy_s);
        let other_cores = busy.map(|busy| (busy - own.unwrap_or(0.0) * load.ranks.max(1) as f64).max(0.0));
        let stolen = passed(|counters| counters.stolen_s).unwrap_or(0.0) / usable;
        let taken = other_cores.map(|others| (others + threads - cores).max(0.0) / threads);
        let by_others = waiting_share.or(taken).unwrap_or(0.0) + stolen;
        let missing = own_share.map_or(1.0, |share| (1.0 - share).max(0.0));
        Self {
            seconds,
            own_share,
            waiting_share,
            other_cores,
            lost: missing.min(by_others).min(1.0),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: Load = Load {
        threads: 2,
        cores: 2,
        ranks: 1,
    };

    /// Two seconds later.
    fn lost(own_s: f64, others: Counters, load: Load) -> f64 {
        let zero = Some(0.0);
        let first = Counters {
            own_s: zero,
            waiting_s: others.waiting_s.and(zero),
            busy_s: others.busy_s.and(zero),
            stolen_s: others.stolen_s.and(zero),
            ..Counters::default()
        };
        let last = Counters {
            at_s: 2.0,
            own_s: Some(own_s),
            ..others
        };
        Window::between(&first, &last, load).lost
    }

    #[test]
    fn processor_time_is_lost_where_it_is_missing_and_something_waited() {
        let waited = Counters {
            waiting_s: Some(1.0),
            ..Counters::default()
        };
        assert_eq!(lost(2.0, waited, TWO), 0.5);
        // All of it was had, whoever else waited; and nobody waited where the program only waited for its data.
        assert_eq!(lost(4.0, waited, TWO), 0.0);
        let calm = Counters {
            waiting_s: Some(0.0),
            ..Counters::default()
        };
        assert_eq!(lost(2.0, calm, TWO), 0.0);
    }

    #[test]
    fn without_pressure_others_count_beyond_the_free_processors() {
        let busy = |seconds: f64| Counters {
            busy_s: Some(seconds),
            ..Counters::default()
        };
        assert_eq!(lost(2.0, busy(4.0), TWO), 0.5);
        let eight = Load { cores: 8, ..TWO };
        assert_eq!(lost(2.0, busy(8.0), eight), 0.0);
        // Two ranks that do the same are no neighbours of each other.
        let ranks = Load { ranks: 2, ..TWO };
        assert_eq!(lost(2.0, busy(4.0), ranks), 0.0);
    }

    #[test]
    fn what_the_hypervisor_took_is_lost() {
        let stolen = Counters {
            stolen_s: Some(1.0),
            waiting_s: Some(0.0),
            ..Counters::default()
        };
        assert_eq!(lost(3.0, stolen, TWO), 0.25);
    }

    #[test]
    fn a_machine_that_counts_nothing_shows_nothing() {
        let (first, last) = (
            Counters::default(),
            Counters {
                at_s: 1.0,
                ..Counters::default()
            },
        );
        assert_eq!(Window::between(&first, &last, TWO).lost, 0.0);
        assert_eq!(Window::between(&last, &first, TWO), Window::default());
    }
}
