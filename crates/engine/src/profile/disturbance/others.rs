//! Load of other programs while this one waits.

use super::counters::Window;
use super::{Counters, Load, MachineCounters};

/// Tells how busy others keep the processors that this process may use.
pub struct OtherLoad {
    counters: Box<dyn MachineCounters>,
    last: Counters,
}

impl OtherLoad {
    /// Begins to watch.
    pub fn start(mut counters: Box<dyn MachineCounters>) -> Self {
        let last = counters.read();
        Self { counters, last }
    }

    /// Processors that others kept busy since the last call; `None` where the system does not count them.
    pub fn cores(&mut self) -> Option<f64> {
        let now = self.counters.read();
        let alone = Load {
            threads: 1,
            cores: 1,
            ranks: 1,
        };
        let others = Window::between(&self.last, &now, alone).other_cores;
        self.last = now;
        others
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads these one after the other.
    struct Readings(std::vec::IntoIter<Counters>);

    impl MachineCounters for Readings {
        fn read(&mut self) -> Counters {
            self.0.next().unwrap_or_default()
        }
    }

    #[test]
    fn each_look_is_at_what_happened_since_the_last_one() {
        let reading = |at_s: f64, busy_s: Option<f64>, own_s: f64| Counters {
            at_s,
            busy_s,
            own_s: Some(own_s),
            ..Counters::default()
        };
        let readings = vec![
            reading(0.0, Some(0.0), 0.0),
            reading(1.0, Some(2.0), 0.5),
            reading(2.0, Some(2.5), 1.0),
            reading(3.0, None, 1.0),
        ];
        let mut others = OtherLoad::start(Box::new(Readings(readings.into_iter())));
        assert_eq!(
            [others.cores(), others.cores(), others.cores()],
            [Some(1.5), Some(0.0), None]
        );
    }
}
