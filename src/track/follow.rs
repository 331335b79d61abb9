//! The thread that looks at the results database and hands what changed to the trackers.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tokio::runtime::{Builder, Runtime};

use super::delivery::Delivery;
use super::{Missing, Told, TrackedStudy, TrackedTrial};
use crate::space::Destination;
use crate::store::{Store, StoreError, TrialRun};

/// How often the database is looked at, at most; and how many times as long as reading took at least: a study of thousands of
/// trials is not read all the time.
const LOOK: Duration = Duration::from_secs(2);
const PAUSE_PER_READ: u32 = 20;

/// Trials that are read and given at once: some trackers take all of them with one commit.
const AT_ONCE: usize = 32;

/// Looks that may be disturbed by a writer until one is taken as it is.
const LOOKS: usize = 3;

/// Keeps trackers up to date with a study of a database that this or another process writes, from a thread of its own.
pub struct Follower {
    stop: mpsc::Sender<Option<Duration>>,
    thread: JoinHandle<Vec<Missing>>,
}

impl Follower {
    /// Starts with what the study has so far. `tell` hears of failures.
    ///
    /// # Errors
    /// Where no thread can be started.
    pub fn start(
        database: &Path,
        study: &str,
        destinations: &[Destination],
        tell: impl Fn(Told) + Send + 'static,
    ) -> std::io::Result<Self> {
        let (stop, stopped) = mpsc::channel();
        let following = Following {
            database: database.to_owned(),
            study: study.to_owned(),
            deliveries: destinations.iter().cloned().map(Delivery::new).collect(),
            tell: Box::new(tell),
            runtime: Builder::new_current_thread().enable_all().build()?,
            seen: None,
            read_took: Duration::ZERO,
            deadline: None,
        };
        let thread = std::thread::Builder::new()
            .name("trackers".to_owned())
            .spawn(move || following.run(&stopped))?;
        Ok(Self { stop, thread })
    }

    /// Brings what is there now, in at most so much time (and that of the trials under way then) where a limit is given, and
    /// returns what is missing then.
    pub fn finish(self, within: Option<Duration>) -> Vec<Missing> {
        // It waits for this, or has panicked.
        let _ = self.stop.send(within);
        self.thread.join().unwrap_or_default()
    }
}

struct Following {
    database: PathBuf,
    study: String,
    deliveries: Vec<Delivery>,
    tell: Box<dyn Fn(Told) + Send>,
    /// Runtime for the database. No tracker is called inside of it: some have one of their own.
    runtime: Runtime,
    /// The study as it was last seen, and the database's mark then.
    seen: Option<(i64, TrackedStudy)>,
    /// How long it took to read.
    read_took: Duration,
    /// Time at which to give up.
    deadline: Option<Instant>,
}

impl Following {
    fn run(mut self, stopped: &mpsc::Receiver<Option<Duration>>) -> Vec<Missing> {
        let mut store = None;
        let within = loop {
            // What another process writes at the same moment, or a disk that is full, makes a look fail: the next one may not.
            let _ = self.look(&mut store);
            match stopped.recv_timeout(LOOK.max(self.read_took * PAUSE_PER_READ)) {
                Ok(within) => break within,
                Err(RecvTimeoutError::Disconnected) => return Vec::new(),
                Err(RecvTimeoutError::Timeout) => (),
            }
        };
        self.deadline = within.map(|within| Instant::now() + within);
        self.deliveries.iter_mut().for_each(Delivery::try_again);
        let looked = match self.look(&mut store) {
            Ok(()) => self.recommend(store.as_ref()),
            failed => failed,
        };
        let missing = match looked {
            Ok(()) => self.end(),
            Err(error) => self.all_missing(&error),
        };
        if let Some(store) = store {
            // Nothing was written to it.
            let _ = self.runtime.block_on(store.close());
        }
        missing
    }

    /// Looks once, and gives every tracker what it lacks. `store` stays open from look to look.
    fn look(&mut self, store: &mut Option<Store>) -> Result<(), StoreError> {
        let open = match store {
            Some(open) => open,
            None => store.insert(self.runtime.block_on(Store::open_read_only(&self.database))?),
        };
        let changed = self.read(open)?;
        let Some((mark, study)) = self.seen.take() else {
            return Ok(());
        };
        if changed || self.deliveries.iter().any(Delivery::fails) {
            self.give_lacking(open, &study)?;
        }
        self.seen = Some((mark, study));
        Ok(())
    }

    /// Gives every tracker the trials that it lacks.
    fn give_lacking(&mut self, store: &Store, study: &TrackedStudy) -> Result<(), StoreError> {
        let lacking = |run: &&TrialRun| self.deliveries.iter().any(|one| one.lacks(study, run));
        let lacking: Vec<&TrialRun> = study.runs.iter().filter(lacking).collect();
        lacking
            .chunks(AT_ONCE)
            .try_for_each(|runs| self.give(store, study, runs))
    }

    /// Reads the study where the database has changed; whether it has.
    fn read(&mut self, store: &Store) -> Result<bool, StoreError> {
        for look in 0..LOOKS {
            let mark = self.runtime.block_on(store.change_mark())?;
            if self.seen.as_ref().is_some_and(|(seen, _)| *seen == mark) {
                return Ok(look > 0);
            }
            let began = Instant::now();
            let study = self.runtime.block_on(TrackedStudy::read(store, Some(&self.study)))?;
            // Chosen at the beginning, which an earlier search may have marked, and at the end.
            let study = match &self.seen {
                Some((_, seen)) => TrackedStudy {
                    recommended: seen.recommended.clone(),
                    ..study
                },
                None => self.runtime.block_on(study.with_recommended(store))?,
            };
            self.read_took = began.elapsed();
            self.seen = Some((mark, study));
        }
        Ok(true)
    }

    fn give(&mut self, store: &Store, study: &TrackedStudy, runs: &[&TrialRun]) -> Result<(), StoreError> {
        let is_late = self.deadline.is_some_and(|deadline| Instant::now() > deadline);
        if is_late || self.deliveries.iter().all(Delivery::pauses) {
            return Ok(());
        }
        let mut trials = Vec::with_capacity(runs.len());
        for run in runs {
            trials.push(self.runtime.block_on(TrackedTrial::read(store, study, run))?);
        }
        for delivery in self.deliveries.iter_mut().filter(|one| !one.pauses()) {
            if let Some(told) = delivery.give(study, &trials) {
                (self.tell)(told);
            }
        }
        Ok(())
    }

    /// Chooses the trial to take, and gives it, and the one that was it before, to the trackers once more.
    fn recommend(&mut self, store: Option<&Store>) -> Result<(), StoreError> {
        if let (Some((mark, study)), Some(store)) = (self.seen.take(), store) {
            let study = self.runtime.block_on(study.with_recommended(store))?;
            self.give_lacking(store, &study)?;
            self.seen = Some((mark, study));
        }
        Ok(())
    }

    /// Ends every tracker's part; what they lack.
    fn end(&mut self) -> Vec<Missing> {
        let Some((_, study)) = &self.seen else {
            return Vec::new();
        };
        let working = self.deliveries.iter_mut().filter(|one| !one.fails());
        working.filter_map(|one| one.finish(study)).for_each(&self.tell);
        self.deliveries.iter().filter_map(|one| one.missing(study)).collect()
    }

    /// Trials that the trackers may lack where the database could not be read at the end.
    fn all_missing(&self, error: &StoreError) -> Vec<Missing> {
        self.deliveries
            .iter()
            .map(|one| one.unknown(error.to_string()))
            .collect()
    }
}
