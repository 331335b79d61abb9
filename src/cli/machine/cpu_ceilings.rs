//! Ceilings of this machine: measured once, kept in the results database, and measured again where something else
//! slowed the measurement down.

use std::time::{Duration, Instant};

use super::record::machine;
use crate::cli::CliError;
use crate::cli::terminal::output::tell;
use crate::store::{CeilingRecord, Store};
use peft_tune_core::predict::Ceilings;
use peft_tune_core::recipe::Precision;
use peft_tune_engine::TrainError;
use peft_tune_engine::profile::ceilings;
use peft_tune_engine::profile::ceilings::Effort;
use peft_tune_engine::profile::disturbance::{DisturbanceWatch, HostCounters, Load};

/// Measurements in a row until one is quiet.
const ATTEMPTS: usize = 3;
/// Wait between two measurements.
const PAUSE: Duration = Duration::from_secs(2);
/// Time after which no further measurement begins: a slow machine takes minutes for each.
const PATIENCE: Duration = Duration::from_secs(20);
/// Share of a budget of time after which no further measurement begins.
const SHARE_OF_BUDGET: f64 = 0.05;

/// How this machine is measured.
#[derive(Clone, Copy, Debug)]
pub(in crate::cli) struct Measuring {
    threads: usize,
    patience: Duration,
}

impl Measuring {
    /// Measures on so many threads, or on as many as there are.
    pub(in crate::cli) fn on(threads: Option<usize>) -> Self {
        Self {
            threads: threads.unwrap_or_else(rayon::current_num_threads),
            patience: PATIENCE,
        }
    }

    /// Measuring with less patience beside a budget of time, of which waiting for a quiet moment takes little.
    pub(in crate::cli) fn within(self, budget_s: Option<f64>) -> Self {
        let share = budget_s.map_or(PATIENCE, |budget| {
            Duration::from_secs_f64((SHARE_OF_BUDGET * budget).min(1e6))
        });
        Self {
            patience: self.patience.min(share),
            ..self
        }
    }
}

/// Ceilings with what the moment of their measurement took from them.
#[derive(Clone, Debug, PartialEq)]
pub(in crate::cli) struct MeasuredCeilings {
    pub ceilings: Ceilings,
    /// Share of the speed that may have been lost to other programs; 0 where it was quiet.
    pub disturbed: f64,
}

impl MeasuredCeilings {
    /// Whether settings of these precisions may be predicted from these ceilings.
    pub(super) fn serves(&self, precisions: &[Precision]) -> bool {
        self.disturbed == 0.0 && self.covers(precisions)
    }

    fn covers(&self, precisions: &[Precision]) -> bool {
        precisions.iter().all(|precision| self.ceilings.covers(*precision))
    }
}

/// Reads this machine's ceilings from the database where they cover `precisions` and were measured in peace, else
/// measures them now and, with a database, keeps them.
pub(in crate::cli) async fn stored_or_measured(
    store: Option<&Store>,
    how: Measuring,
    precisions: &[Precision],
) -> Result<MeasuredCeilings, CliError> {
    let stored = match store {
        Some(store) => stored(store, how.threads).await?,
        None => None,
    };
    if let Some(known) = stored.as_ref().filter(|known| known.serves(precisions)) {
        return Ok(known.clone());
    }
    tell(format_args!("measuring this machine once, a few seconds"));
    let found = measured(stored, how, precisions)?;
    if let Some(store) = store {
        keep(store, how.threads, &found).await?;
    }
    Ok(found)
}

/// What the database has of this machine; something that this version cannot read counts as nothing.
pub(in crate::cli) async fn stored(store: &Store, threads: usize) -> Result<Option<MeasuredCeilings>, CliError> {
    let found = store.ceilings().of(&machine(), &build(), threads as u64).await?;
    Ok(found.and_then(|(grids, disturbed)| {
        let ceilings = serde_json::from_str(&grids).ok()?;
        Some(MeasuredCeilings { ceilings, disturbed })
    }))
}

/// Measures `precisions` on top of what is known. What was measured in a busy moment is measured again as a
/// whole; where no moment is quiet the least disturbed counts, and what is missing is said.
pub(super) fn measured(
    known: Option<MeasuredCeilings>,
    how: Measuring,
    precisions: &[Precision],
) -> Result<MeasuredCeilings, CliError> {
    let pool = rayon::ThreadPoolBuilder::new()
        .num_threads(how.threads)
        .build()
        .map_err(CliError::failed)?;
    let effort = Effort::of_this_build();
    let quiet = known.as_ref().filter(|known| known.disturbed == 0.0);
    let once = || pool.install(|| measure(quiet.map(|known| &known.ceilings), how.threads, precisions, effort));
    let began = Instant::now();
    let pause = || {
        let goes_on = began.elapsed() < how.patience;
        if goes_on {
            std::thread::sleep(PAUSE);
        }
        goes_on
    };
    let found = quietest(once, pause).map_err(CliError::failed)?;
    let found = match known.filter(|known| known.covers(precisions) && known.disturbed < found.disturbed) {
        Some(known) => known,
        None => found,
    };
    if found.disturbed > 0.0 {
        tell(format_args!(
            "other programs slowed the measurement of this machine down: predicted throughputs may be too low by up to {:.0}%; the \
             next start measures again",
            100.0 * found.disturbed
        ));
    }
    Ok(found)
}

/// Measures until a measurement is quiet, some times at most and while `pause` says to go on; the least disturbed of them.
fn quietest<E>(
    mut once: impl FnMut() -> Result<MeasuredCeilings, E>,
    mut pause: impl FnMut() -> bool,
) -> Result<MeasuredCeilings, E> {
    let mut best = once()?;
    for _ in 1..ATTEMPTS {
        if best.disturbed == 0.0 || !pause() {
            break;
        }
        let next = once()?;
        if next.disturbed < best.disturbed {
            best = next;
        }
    }
    Ok(best)
}

fn measure(
    known: Option<&Ceilings>,
    threads: usize,
    precisions: &[Precision],
    effort: Effort,
) -> Result<MeasuredCeilings, TrainError> {
    let host = HostCounters::default();
    let load = Load {
        threads,
        cores: host.cores(),
        ranks: 1,
    };
    let watch = DisturbanceWatch::start(Box::new(host), load);
    let ceilings = match known.cloned() {
        Some(mut ceilings) => ceilings::add(&mut ceilings, precisions, effort).map(|()| ceilings),
        None => ceilings::measure(precisions, effort),
    }?;
    let disturbed = match effort {
        Effort::Full => watch.finish().share(),
        // What a program without optimisation reaches says nothing of the machine, however quiet it was.
        Effort::Coarse => 0.0,
    };
    Ok(MeasuredCeilings { ceilings, disturbed })
}

/// Writes ceilings to the database.
pub(super) async fn keep(store: &Store, threads: usize, found: &MeasuredCeilings) -> Result<(), CliError> {
    let MeasuredCeilings { ceilings, disturbed } = found;
    let record = CeilingRecord {
        build: build(),
        threads: threads as u64,
        memory_bytes_per_s: ceilings.memory_bytes_per_s,
        wake_s: ceilings.wake_s,
        grids: serde_json::to_string(ceilings).map_err(CliError::failed)?,
        disturbed: *disturbed,
    };
    Ok(store.ceilings().record(&machine(), &record).await?)
}

/// What a measurement belongs to besides the machine.
pub(super) fn build() -> String {
    let kind = if cfg!(debug_assertions) { "debug" } else { "release" };
    format!("{} {kind}", env!("CARGO_PKG_VERSION"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::convert::Infallible;

    const ONE: [Precision; 1] = [Precision::Fp32];

    fn ceilings() -> Ceilings {
        ceilings::measure(&ONE, Effort::Coarse).unwrap()
    }

    #[test]
    fn a_busy_moment_is_waited_out_and_the_least_disturbed_counts() {
        let ceilings = ceilings();
        let run = |shares: &[f64], patience: usize| {
            let (mut pauses, mut at) = (0, 0);
            let once = || {
                at += 1;
                let ceilings = ceilings.clone();
                let disturbed = shares[at - 1];
                Ok::<_, Infallible>(MeasuredCeilings { ceilings, disturbed })
            };
            let pause = || {
                pauses += 1;
                pauses <= patience
            };
            let found = quietest(once, pause).unwrap();
            (found.disturbed, pauses)
        };
        assert_eq!(run(&[0.0], 9), (0.0, 0));
        assert_eq!(run(&[0.7, 0.0], 9), (0.0, 1));
        assert_eq!(run(&[0.7, 0.3, 0.5], 9), (0.3, 2));
        // A slow machine.
        assert_eq!(run(&[0.7, 0.3, 0.5], 1), (0.3, 2));
        assert_eq!(run(&[0.7, 0.3, 0.5], 0), (0.7, 1));
    }

    #[tokio::test]
    async fn what_was_measured_in_a_busy_moment_is_measured_again_at_the_next_start() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(&folder.path().join("a.db")).await.unwrap();
        let mut wrong = ceilings();
        wrong.memory_bytes_per_s = 7.0;
        for (disturbed, kept) in [(0.0, true), (0.4, false)] {
            let found = MeasuredCeilings {
                ceilings: wrong.clone(),
                disturbed,
            };
            keep(&store, 1, &found).await.unwrap();
            assert_eq!(stored(&store, 1).await.unwrap().unwrap(), found);
            let used = stored_or_measured(Some(&store), Measuring::on(Some(1)), &ONE)
                .await
                .unwrap();
            assert_eq!(used.ceilings.memory_bytes_per_s == 7.0, kept);
        }
        let now = stored(&store, 1).await.unwrap().unwrap();
        assert!(now.disturbed == 0.0 && now.ceilings.memory_bytes_per_s > 7.0);
    }
}
