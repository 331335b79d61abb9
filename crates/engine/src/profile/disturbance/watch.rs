//! Watching the machine while steps are measured.
//!
//! The counters are read between steps, at most once in [`CHUNK_S`]. The share that a step lost is that of its chunk, and
//! the share that counts is the median over the steps: as the throughput is a median too, a disturbance that reaches less
//! than half of the steps moves neither.

use super::counters::Window;
use super::{Counters, Load, MachineCounters};
use peft_tune_core::study::{Metrics, mark_disturbed};

/// Shortest time between two readings: the coarsest counter has ticks of 10 ms.
const CHUNK_S: f64 = 0.1;
/// Lost shares from here on are a disturbance: less is what every system does beside.
const NOTICED: f64 = 0.08;

/// Watches the machine during one measurement.
pub struct DisturbanceWatch {
    counters: Box<dyn MachineCounters>,
    load: Load,
    first: Counters,
    last: Counters,
    /// Lost share of each step of the chunks that are over.
    lost: Vec<f64>,
    /// Steps since the last reading.
    waiting: usize,
    /// Sum and number of the clocks that were read.
    clocks: (f64, f64),
}

/// Disturbance of a measurement by its surroundings.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Disturbance {
    /// Share of the processor time that was lost to others, in the median over the steps.
    pub lost: f64,
    /// Threads that had to wait for each other.
    pub threads: usize,
    /// Share of the processor time that the threads could use which was their own.
    pub own_share: Option<f64>,
    /// Share of the time in which something waited for a processor.
    pub waiting_share: Option<f64>,
    /// Processors that others kept busy.
    pub other_cores: Option<f64>,
    pub clock_mhz: Option<f64>,
}

impl DisturbanceWatch {
    /// Begins to watch.
    pub fn start(mut counters: Box<dyn MachineCounters>, load: Load) -> Self {
        let first = counters.read();
        Self {
            counters,
            load,
            first,
            last: first,
            lost: Vec::new(),
            waiting: 0,
            clocks: (0.0, 0.0),
        }
    }

    /// Takes note that a measured step is over.
    pub fn step_ended(&mut self) {
        self.waiting += 1;
        let now = self.counters.read();
        if now.at_s - self.last.at_s >= CHUNK_S {
            self.end_chunk(now);
        }
    }

    fn end_chunk(&mut self, now: Counters) {
        let lost = Window::between(&self.last, &now, self.load).lost;
        self.lost.extend(std::iter::repeat_n(lost, self.waiting));
        if let Some(clock) = now.clock_mhz {
            self.clocks = (self.clocks.0 + clock, self.clocks.1 + 1.0);
        }
        (self.last, self.waiting) = (now, 0);
    }

    /// Disturbance by the surroundings; without steps, over the whole time.
    pub fn finish(mut self) -> Disturbance {
        let now = self.counters.read();
        // Too few seconds to tell are told with the chunk before, where there is one.
        if self.lost.is_empty() || now.at_s - self.last.at_s >= CHUNK_S {
            self.waiting = self.waiting.max(usize::from(self.lost.is_empty()));
            self.end_chunk(now);
        }
        let whole = Window::between(&self.first, &now, self.load);
        self.lost.sort_by(f64::total_cmp);
        Disturbance {
            lost: self.lost.get(self.lost.len() / 2).copied().unwrap_or(0.0),
            threads: self.load.threads,
            own_share: whole.own_share,
            waiting_share: whole.waiting_share,
            other_cores: whole.other_cores,
            clock_mhz: (self.clocks.1 > 0.0).then(|| self.clocks.0 / self.clocks.1),
        }
    }
}

impl Disturbance {
    /// Share of the throughput that may have been lost; 0 for less than can be noticed.
    ///
    /// A loop on several threads ends with its last thread, so that what one of them lacks all of them wait for: with shares
    /// lost at different times, both factors of two threads count. More than two are not counted on to be that unlucky.
    pub fn share(&self) -> f64 {
        match self.lost >= NOTICED {
            true => 1.0 - (1.0 - self.lost.min(1.0)).powi(if self.threads > 1 { 2 } else { 1 }),
            false => 0.0,
        }
    }

    /// Writes the readings down, and marks the measurement where it was disturbed.
    pub fn keep(&self, metrics: &mut Metrics) {
        let readings = [
            ("own_cpu_share", self.own_share),
            ("cpu_pressure", self.waiting_share),
            ("other_cores", self.other_cores),
            ("clock_mhz", self.clock_mhz),
        ];
        for (name, value) in readings {
            if let Some(value) = value {
                metrics.insert(name, value);
            }
        }
        mark_disturbed(metrics, self.share());
    }
}

/// A stand-in for a machine on which another program takes half of each processor. For tests.
#[derive(Debug, Default)]
pub struct Busy {
    read: f64,
}

impl MachineCounters for Busy {
    fn read(&mut self) -> Counters {
        self.read += 1.0;
        Counters {
            at_s: self.read,
            // Of two processors.
            own_s: Some(self.read),
            waiting_s: Some(self.read),
            ..Counters::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use peft_tune_core::study::disturbed;

    const LOAD: Load = Load {
        threads: 2,
        cores: 2,
        ranks: 1,
    };

    /// A machine whose steps take a second each, with the own share and the pressure of each.
    struct Scripted {
        at: usize,
        steps: Vec<(f64, f64)>,
    }

    impl MachineCounters for Scripted {
        fn read(&mut self) -> Counters {
            let passed = &self.steps[..self.at.min(self.steps.len())];
            let sum = |of: fn(&(f64, f64)) -> f64| passed.iter().map(of).sum::<f64>();
            let counters = Counters {
                at_s: passed.len() as f64,
                own_s: Some(2.0 * sum(|step| step.0)),
                waiting_s: Some(sum(|step| step.1)),
                ..Counters::default()
            };
            self.at += 1;
            counters
        }
    }

    fn of(steps: &[(f64, f64)]) -> Disturbance {
        let counters = Scripted {
            at: 0,
            steps: steps.to_vec(),
        };
        let mut watch = DisturbanceWatch::start(Box::new(counters), LOAD);
        steps.iter().for_each(|_| watch.step_ended());
        watch.finish()
    }

    #[test]
    fn a_disturbance_of_most_steps_counts_and_one_of_few_does_not() {
        let (quiet, busy) = ((1.0, 0.01), (0.5, 0.9));
        assert_eq!(of(&[quiet; 5]).share(), 0.0);
        assert_eq!(of(&[quiet, quiet, busy, quiet, busy]).share(), 0.0);
        let most = of(&[busy, quiet, busy, quiet, busy]);
        assert!((most.lost - 0.5).abs() < 1e-9 && (most.share() - 0.75).abs() < 1e-9);
        assert!((most.own_share.unwrap() - 0.7).abs() < 1e-9);
    }

    #[test]
    fn readings_are_metrics_and_a_disturbance_is_a_mark() {
        let mut metrics = Metrics::from([("throughput", 100.0)]);
        of(&[(1.0, 0.0); 3]).keep(&mut metrics);
        assert_eq!((disturbed(&metrics), metrics.value("own_cpu_share")), (None, Some(1.0)));
        let mut watch = DisturbanceWatch::start(Box::new(Busy::default()), LOAD);
        watch.step_ended();
        watch.finish().keep(&mut metrics);
        assert!(disturbed(&metrics).unwrap() > 0.7, "{metrics:?}");
    }

    #[test]
    fn what_has_no_steps_is_watched_as_a_whole() {
        let watch = DisturbanceWatch::start(Box::new(Busy::default()), LOAD);
        assert!(watch.finish().share() > 0.7);
    }
}
