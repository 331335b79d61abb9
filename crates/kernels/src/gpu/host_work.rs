//! Flat buffers that a device sends to the host part by part, has worked on there, and gets back, beside its computing.
//!
//! ```text
//! device     | computes .. part 3 ready | .. part 2 ready | .. part 1 ready | waits for the last part
//! to host    |                          | part 3          | part 2          | part 1
//! thread     |                                            | work on 3       | work on 2 | work on 1
//! to device  |                                                              | part 3    | part 2 | part 1
//! ```
//!
//! A copy to the host begins behind all that the device had been given when the part was ready. A thread of the host waits for it, does
//! the work, on all threads of the pool where that has loops, and sends the result back through a queue of its own. Parts keep their
//! order. In the tests' emulation all of this is done as late as it may, by the thread that waits ([`super::transfer_stream`]); on a
//! GPU without a transfer stream at once.

use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::{self, JoinHandle};

use candle_core::{Device, Result, Tensor, bail};

use super::transfer_stream::{Copied, Pinned, TransferStream};

/// Work on a part between its copies.
pub type HostWork = Box<dyn FnOnce() -> Result<()> + Send>;

/// A flat buffer on the device, and one of the same elements in pinned memory of the host.
#[derive(Debug)]
struct Ends {
    device: Tensor,
    host: Pinned,
}

/// Two buffers: what is sent, and what comes back.
#[derive(Debug)]
pub struct RoundTrips {
    sent: Ends,
    returned: Ends,
    way: Way,
}

/// How parts go.
#[derive(Debug)]
enum Way {
    /// Work at once: each trip is over when it has been asked for.
    AtOnce,
    #[cfg(any(test, feature = "emulator"))]
    Emulated(emulated::Late),
    Beside(Worker),
}

impl Ends {
    fn new(device: &Tensor) -> Result<Self> {
        let zeros = Tensor::zeros(device.shape(), device.dtype(), &Device::Cpu)?;
        Ok(Self {
            host: Pinned::new(zeros, device.device())?,
            device: device.clone(),
        })
    }

    /// Views of the same elements on the device and on the host.
    fn part(&self, range: &Range<usize>) -> Result<(Tensor, Tensor)> {
        let part = |tensor: &Tensor| tensor.narrow(0, range.start, range.len());
        Ok((part(&self.device)?, part(self.host.tensor())?))
    }

    fn bring(&self) -> Result<()> {
        self.host
            .tensor()
            .slice_set(&self.device.to_device(&Device::Cpu)?, 0, 0)
    }

    fn give(&self) -> Result<()> {
        let values = self.host.tensor().to_device(self.device.device())?;
        self.device.slice_set(&values, 0, 0)
    }
}

impl RoundTrips {
    /// Prepares trips for two flat buffers on one device, of which parts of `sent` go to the host and the same parts of
    /// `returned` come back. On the host both are zero.
    ///
    /// # Errors
    /// Memory, a thread that cannot be started.
    pub fn new(sent: &Tensor, returned: &Tensor) -> Result<Self> {
        let device = returned.device();
        let way = match super::has_transfer_stream(device) {
            false => Way::AtOnce,
            #[cfg(any(test, feature = "emulator"))]
            true if device.is_cpu() => Way::Emulated(emulated::Late::default()),
            true => Way::Beside(Worker::start(device)?),
        };
        Ok(Self {
            sent: Ends::new(sent)?,
            returned: Ends::new(returned)?,
            way,
        })
    }

    /// The host's ends: of what is sent, and of what comes back. Nobody may touch a part between [`begin`](Self::begin) and
    /// [`finish`](Self::finish) but the work itself.
    pub fn on_host(&self) -> [&Tensor; 2] {
        [self.sent.host.tensor(), self.returned.host.tensor()]
    }

    /// Takes over what comes back from the device, where somebody else has written it there.
    ///
    /// # Errors
    /// Those of candle.
    pub fn bring_returned(&self) -> Result<()> {
        self.returned.bring()
    }

    /// Gives the device all of what comes back, as it is on the host.
    ///
    /// # Errors
    /// Those of candle.
    pub fn give_returned(&self) -> Result<()> {
        self.returned.give()
    }

    /// Begins with the part in `ranges`: sends it to the host, has `work` done there, and sends the result back. From now on the device may
    /// read the part of what is sent, and nothing of what comes back in it, until [`finish`](Self::finish).
    ///
    /// # Errors
    /// Those of the driver. What the work meets is an error of [`finish`](Self::finish).
    pub fn begin(&mut self, ranges: &[Range<usize>], work: HostWork) -> Result<()> {
        let parts = |ends: &Ends| ranges.iter().map(|range| ends.part(range)).collect::<Result<Vec<_>>>();
        let (there, back) = (parts(&self.sent)?, parts(&self.returned)?);
        match &mut self.way {
            Way::AtOnce => {
                for (device, host) in &there {
                    host.slice_set(&device.to_device(&Device::Cpu)?, 0, 0)?;
                }
                #[cfg(any(test, feature = "emulator"))]
                super::not_emulated(work)?;
                #[cfg(not(any(test, feature = "emulator")))]
                work()?;
                back.iter()
                    .try_for_each(|(device, host)| device.slice_set(&host.to_device(device.device())?, 0, 0))
            }
            #[cfg(any(test, feature = "emulator"))]
            Way::Emulated(late) => late.begin(there, work, back),
            Way::Beside(worker) => worker.begin(&there, work, back),
        }
    }

    /// Makes each part be over when it has been asked for from now on, for tests: in the emulation all else is as late
    /// as it may be.
    #[cfg(any(test, feature = "emulator"))]
    pub fn hurry(&mut self) {
        self.way = Way::AtOnce;
    }

    /// Waits until the work on all parts is done; the device continues when it has them back.
    ///
    /// # Errors
    /// What the work met, and those of the driver.
    pub fn finish(&mut self) -> Result<()> {
        match &mut self.way {
            Way::AtOnce => Ok(()),
            #[cfg(any(test, feature = "emulator"))]
            Way::Emulated(late) => late.finish(),
            Way::Beside(worker) => worker.finish(),
        }
    }
}

impl Drop for RoundTrips {
    fn drop(&mut self) {
        // What is under way reads and writes the host's ends.
        if let Err(error) = self.finish() {
            tracing::warn!(%error, "work of the host that nobody waited for");
        }
    }
}

/// A part on its way to the thread.
struct Trip {
    there: Vec<Copied>,
    work: HostWork,
    /// Device's and host's end of each range.
    back: Vec<(Tensor, Tensor)>,
}

/// A part on its way back to the device, with the copies to the host, which are kept so long.
type Returning = Result<(Vec<Copied>, Vec<Copied>)>;

/// The thread that waits for copies and works.
#[derive(Debug)]
struct Worker {
    queue: TransferStream,
    /// Sender of trips; absent when no more follow.
    trips: Option<Sender<Trip>>,
    returning: Receiver<Returning>,
    under_way: usize,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(device: &Device) -> Result<Self> {
        let (trips, coming) = channel::<Trip>();
        let (done, returning) = channel();
        let back = TransferStream::back_to(device)?;
        let work = move || {
            for trip in coming {
                // Whoever has gone needs nothing back.
                if done.send(trip.run(&back)).is_err() {
                    return;
                }
            }
        };
        let thread = thread::Builder::new().name("host-updates".to_owned()).spawn(work)?;
        Ok(Self {
            queue: TransferStream::of(device)?,
            trips: Some(trips),
            returning,
            under_way: 0,
            thread: Some(thread),
        })
    }

    fn begin(&mut self, there: &[(Tensor, Tensor)], work: HostWork, back: Vec<(Tensor, Tensor)>) -> Result<()> {
        let send = |(device, host): &(Tensor, Tensor)| self.queue.send(device, host);
        let there = there.iter().map(send).collect::<Result<_>>()?;
        let trip = Trip { there, work, back };
        match self.trips.as_ref().map(|trips| trips.send(trip)) {
            Some(Ok(())) => self.under_way += 1,
            _ => bail!("the thread of the host's work has ended"),
        }
        Ok(())
    }

    fn finish(&mut self) -> Result<()> {
        let mut result = Ok(());
        while self.under_way > 0 {
            self.under_way -= 1;
            let Ok(returning) = self.returning.recv() else {
                bail!("the thread of the host's work has ended");
            };
            let arrived =
                returning.and_then(|(_there, back)| back.into_iter().try_for_each(|copy| copy.wait().map(drop)));
            // The first that failed says why; the others are waited for all the same.
            result = result.and(arrived);
        }
        result
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.trips = None;
        if let Some(thread) = self.thread.take() {
            // It reports what it meets, panics included.
            let _ = thread.join();
        }
    }
}

impl Trip {
    fn run(self, queue: &TransferStream) -> Returning {
        self.there.iter().try_for_each(Copied::arrive)?;
        match catch_unwind(AssertUnwindSafe(self.work)) {
            Ok(result) => result?,
            Err(_) => bail!("the host's work on a part panicked"),
        }
        // The part was on its way to the host behind all that reads it.
        let give = |(device, host): &(Tensor, Tensor)| queue.fetch_at_once(host, device);
        let back = self.back.iter().map(give).collect::<Result<_>>()?;
        Ok((self.there, back))
    }
}

/// Parts in the emulation: copies and work wait in one queue until somebody waits for the last of them.
#[cfg(any(test, feature = "emulator"))]
mod emulated {
    use std::sync::{Arc, Mutex, PoisonError};

    use super::super::emulation::not_emulated;
    use super::super::transfer_stream::late;
    use super::{Copied, HostWork, Result, Tensor, TransferStream};

    /// Trips that are under way.
    #[derive(Debug, Default)]
    pub(super) struct Late {
        copies: Vec<Copied>,
        failure: Failure,
    }

    /// Failure that the first work that failed met.
    type Failure = Arc<Mutex<Option<candle_core::Error>>>;

    impl Late {
        pub(super) fn begin(
            &mut self,
            there: Vec<(Tensor, Tensor)>,
            work: HostWork,
            back: Vec<(Tensor, Tensor)>,
        ) -> Result<()> {
            let queue = TransferStream::of(back[0].0.device())?;
            for (device, host) in there {
                self.copies.push(queue.send(&device, &host)?);
            }
            let failure = Arc::clone(&self.failure);
            late::push(Box::new(move || {
                // Threads of the host are no GPU's.
                if let Err(error) = not_emulated(work) {
                    let mut first = failure.lock().unwrap_or_else(PoisonError::into_inner);
                    first.get_or_insert(error);
                }
            }));
            for (device, host) in back {
                self.copies.push(queue.fetch(&host, &device)?);
            }
            Ok(())
        }

        pub(super) fn finish(&mut self) -> Result<()> {
            self.copies.drain(..).try_for_each(|copy| copy.wait().map(drop))?;
            let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
            failure.take().map_or(Ok(()), Err)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::flat::{with_f32, with_f32_mut};
    use crate::gpu::emulated as on_emulator;

    fn buffer(values: &[f32]) -> Tensor {
        Tensor::new(values, &Device::Cpu).unwrap()
    }

    fn values(tensor: &Tensor) -> Vec<f32> {
        tensor.to_vec1().unwrap()
    }

    /// Adds what was sent to what goes back.
    fn adds(trips: &RoundTrips, range: Range<usize>) -> HostWork {
        let [sent, returned] = trips
            .on_host()
            .map(|tensor| tensor.narrow(0, range.start, range.len()).unwrap());
        Box::new(move || {
            with_f32(&sent, |sent| {
                with_f32_mut(&returned, |returned| {
                    returned.iter_mut().zip(sent).for_each(|(sum, more)| *sum += more);
                    Ok(())
                })
            })
        })
    }

    fn trips_of_two_parts() -> (Tensor, Tensor) {
        let (sent, returned) = (buffer(&[1.0, 2.0, 3.0, 4.0]), buffer(&[10.0, 20.0, 30.0, 40.0]));
        let mut trips = RoundTrips::new(&sent, &returned).unwrap();
        trips.bring_returned().unwrap();
        let ranges = [0..1, 1..2, 2..4];
        for ranges in [&ranges[2..], &ranges[..2]] {
            let whole = ranges[0].start..ranges[ranges.len() - 1].end;
            let work = adds(&trips, whole);
            trips.begin(ranges, work).unwrap();
        }
        trips.finish().unwrap();
        (trips.on_host()[1].clone(), returned)
    }

    #[test]
    fn parts_come_back_as_the_work_left_them_however_late_they_are() {
        let both = on_emulator(trips_of_two_parts);
        for (host, device) in [both, trips_of_two_parts()] {
            assert_eq!(values(&device), [11.0, 22.0, 33.0, 44.0]);
            assert_eq!(values(&host), values(&device));
        }
    }

    #[test]
    fn in_emulation_nothing_is_back_before_somebody_waits() {
        on_emulator(|| {
            let (sent, returned) = (buffer(&[1.0]), buffer(&[10.0]));
            let mut trips = RoundTrips::new(&sent, &returned).unwrap();
            trips.bring_returned().unwrap();
            let work = adds(&trips, 0..1);
            trips.begin(std::slice::from_ref(&(0..1)), work).unwrap();
            assert_eq!(values(&returned), [10.0]);
            trips.finish().unwrap();
            assert_eq!(values(&returned), [11.0]);
        });
    }

    #[test]
    fn what_the_work_meets_is_an_error_of_the_end() {
        let run = || {
            let (sent, returned) = (buffer(&[1.0]), buffer(&[10.0]));
            let mut trips = RoundTrips::new(&sent, &returned).unwrap();
            let begun = trips.begin(std::slice::from_ref(&(0..1)), Box::new(|| bail!("no room")));
            begun.and_then(|()| trips.finish()).unwrap_err().to_string()
        };
        assert!(run().contains("no room"));
        assert!(on_emulator(run).contains("no room"));
    }

    #[test]
    fn a_thread_works_on_parts_in_their_order_and_reports_panics() {
        let (sent, returned) = (buffer(&[1.0, 2.0]), buffer(&[10.0, 20.0]));
        let mut trips = RoundTrips::new(&sent, &returned).unwrap();
        trips.bring_returned().unwrap();
        trips.way = Way::Beside(Worker::start(&Device::Cpu).unwrap());
        for place in [1, 0] {
            let work = adds(&trips, place..place + 1);
            trips.begin(std::slice::from_ref(&(place..place + 1)), work).unwrap();
        }
        trips.finish().unwrap();
        assert_eq!(values(&returned), [11.0, 22.0]);
        trips
            .begin(std::slice::from_ref(&(0..1)), Box::new(|| panic!("on purpose")))
            .unwrap();
        assert!(trips.finish().unwrap_err().to_string().contains("panicked"));
        // The thread is still there.
        let work = adds(&trips, 0..1);
        trips.begin(std::slice::from_ref(&(0..1)), work).unwrap();
        trips.finish().unwrap();
        assert_eq!(values(&returned)[0], 12.0);
    }
}
