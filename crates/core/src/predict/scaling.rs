//! Speed of a setting on several devices against that on one of them.
//!
//! | n | devices |
//! |---|---|
//! | v(n) | tokens a second of all n, each with the same micro-batch and accumulation |
//!
//! The speed-up is v(n) / v(1), and the efficiency v(n) / (n v(1)): tokens a second of a device over those of one alone. Processes
//! that divide one processor have a speed-up of 1 at best.

use std::fmt;

use serde::Serialize;

use super::link::{Link, LinkKind};
use super::prediction::Prediction;

/// Share of a step's time from which on waits for other devices are called the bottleneck.
pub const LINK_BOUND: f64 = 0.1;
/// Help where waits for other devices are the bottleneck: fewer of them for each token.
pub const LINK_BOUND_HELP: &str = "take larger micro-batches, or more of them in a step";

/// Speed of a step on some devices.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct StepSpeed {
    pub tokens_per_s: f64,
    pub step_s: f64,
    /// Seconds of the step in which devices wait for their link.
    pub link_s: f64,
}

/// Speed of a setting on its devices against that on one.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Scaling {
    pub devices: u64,
    pub speedup: f64,
    pub efficiency: f64,
    /// Share of a step in which devices wait for their link.
    pub link_share: f64,
    /// Link between the devices; `None` where they are processes that divide one processor.
    pub link: Option<Link>,
}

impl From<&Prediction> for StepSpeed {
    fn from(prediction: &Prediction) -> Self {
        Self {
            tokens_per_s: prediction.tokens_per_s(),
            step_s: prediction.seconds.total(),
            link_s: prediction.link_s,
        }
    }
}

impl Scaling {
    /// The speed of `all` of so many devices, which `link` connects, against that of `one`; `None` for one device, and where a speed
    /// is not known.
    pub fn new(devices: u64, link: Option<Link>, one: StepSpeed, all: StepSpeed) -> Option<Self> {
        let is_known = one.tokens_per_s > 0.0 && all.tokens_per_s > 0.0;
        let speedup = all.tokens_per_s / one.tokens_per_s;
        (devices > 1 && is_known).then(|| Self {
            devices,
            speedup,
            efficiency: speedup / devices as f64,
            link_share: all.link_s / all.step_s,
            link: link.filter(|link| link.kind != LinkKind::HostMemory),
        })
    }

    /// Whether waits for the link are the bottleneck.
    pub fn is_link_bound(&self) -> bool {
        self.link.is_some() && self.link_share >= LINK_BOUND
    }
}

impl fmt::Display for Scaling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            devices,
            speedup,
            efficiency,
            link_share,
            link,
        } = self;
        write!(
            f,
            "{devices} are {speedup:.2} times as fast as one, an efficiency of {:.0}%: ",
            100.0 * efficiency
        )?;
        let Some(link) = link else {
            return f.write_str("they are processes that divide one processor");
        };
        write!(f, "{:.1}% of a step waits for {link}", 100.0 * link_share)?;
        match self.is_link_bound() {
            true => write!(f, "; the link is the bottleneck: {LINK_BOUND_HELP}"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::predict::device;

    fn speed(tokens_per_s: f64, link_s: f64) -> StepSpeed {
        StepSpeed {
            tokens_per_s,
            step_s: 2.0,
            link_s,
        }
    }

    fn scaling(name: &str, link_s: f64) -> Scaling {
        let link = device(name).unwrap().link();
        Scaling::new(4, Some(link), speed(1000.0, 0.0), speed(3000.0, link_s)).unwrap()
    }

    #[test]
    fn a_share_of_a_tenth_of_the_step_makes_the_link_the_bottleneck() {
        let quick = scaling("H100 SXM", 0.1);
        assert_eq!((quick.speedup, quick.efficiency, quick.link_share), (3.0, 0.75, 0.05));
        assert_eq!(
            quick.to_string(),
            "4 are 3.00 times as fast as one, an efficiency of 75%: 5.0% of a step waits for NVLink 4 at 338 GB/s one way"
        );
        let slow = scaling("L4", 0.5);
        assert!(slow.is_link_bound() && slow.to_string().contains("the link is the bottleneck: take larger"));
    }

    #[test]
    fn one_device_and_one_of_unknown_speed_have_no_scaling() {
        assert_eq!(Scaling::new(1, None, speed(1.0, 0.0), speed(1.0, 0.0)), None);
        assert_eq!(Scaling::new(2, None, speed(0.0, 0.0), speed(1.0, 0.0)), None);
        let processes = Scaling::new(2, None, speed(10.0, 0.0), speed(9.0, 1.0)).unwrap();
        assert!(!processes.is_link_bound(), "{processes}");
        assert!(processes.to_string().ends_with("divide one processor"), "{processes}");
    }
}
