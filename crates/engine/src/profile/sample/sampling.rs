//! Samples on a thread of their own.

use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::{DeviceSample, DeviceSampler};

/// Sampling under way.
#[derive(Debug)]
pub struct Sampling {
    stop: Sender<()>,
    thread: JoinHandle<Vec<DeviceSample>>,
}

impl Sampling {
    /// Looks at the device every `interval` from now on; times count from `start`.
    pub fn start(mut sampler: Box<dyn DeviceSampler>, start: Instant, interval: Duration) -> std::io::Result<Self> {
        let (stop, stopped) = channel::<()>();
        let work = move || {
            let mut samples = Vec::new();
            // Most counters tell what happened since the last look, so the first one only begins.
            sampler.sample();
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                samples.push(DeviceSample {
                    at_s: start.elapsed().as_secs_f64(),
                    ..sampler.sample()
                });
            }
            // What was measured may have been shorter than the interval.
            if samples.is_empty() && sampler.tells_at_once() {
                samples.push(DeviceSample {
                    at_s: start.elapsed().as_secs_f64(),
                    ..sampler.sample()
                });
            }
            samples
        };
        let thread = std::thread::Builder::new().name("sampling".to_owned()).spawn(work)?;
        Ok(Self { stop, thread })
    }

    /// Ends it; what was seen so far.
    pub fn finish(self) -> Vec<DeviceSample> {
        drop(self.stop);
        // A panic in it costs the samples, not the profile.
        self.thread.join().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Counter(u64, bool);

    impl DeviceSampler for Counter {
        fn device(&self) -> &str {
            "counter"
        }

        fn tells_at_once(&self) -> bool {
            self.1
        }

        fn sample(&mut self) -> DeviceSample {
            self.0 += 1;
            DeviceSample {
                memory_bytes: Some(self.0),
                ..DeviceSample::default()
            }
        }
    }

    #[test]
    fn samples_come_in_order_until_it_ends() {
        let sampling = Sampling::start(Box::new(Counter(0, false)), Instant::now(), Duration::from_millis(5)).unwrap();
        std::thread::sleep(Duration::from_millis(120));
        let samples = sampling.finish();
        assert!(samples.len() >= 2, "{samples:?}");
        assert!(samples.windows(2).all(|pair| pair[0].at_s < pair[1].at_s));
        // The first look is not kept.
        assert_eq!(samples[0].memory_bytes, Some(2));
    }

    #[test]
    fn a_short_measurement_has_a_sample_where_one_look_tells_something() {
        for (at_once, expected) in [(true, 1), (false, 0)] {
            let sampler = Box::new(Counter(0, at_once));
            let sampling = Sampling::start(sampler, Instant::now(), Duration::from_secs(600)).unwrap();
            assert_eq!(sampling.finish().len(), expected);
        }
    }
}
