//! Gathers the weights of layers that ranks share out, before each is computed (`sharding: full`).
//!
//! While a layer is computed, the one that comes next is gathered into the other window, on a thread of its own where the
//! collective allows that. Every rank goes through the layers in the same order, and nothing is under way when a pass has
//! ended: so gathers and sums of gradients follow each other in one order on all ranks.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use candle_core::{Error, Result};

use crate::TrainError;
use crate::base::ShardedLayers;
use crate::parallel::Collective;
use peft_tune_core::plan::{WINDOWS, window_of};

/// Location of the weights of a decoder's layers.
#[derive(Clone, Debug)]
pub(super) enum LayerWeights {
    /// Weights in this process.
    Whole,
    /// Weights that are shared out among ranks that this one is not linked with.
    Unlinked,
    Gathered(Arc<LayerGather>),
}

impl LayerWeights {
    /// Has the weights of `layer` where they are read; those of `ahead` come next.
    pub(super) fn bring(&self, layer: usize, ahead: Option<usize>) -> Result<()> {
        match self {
            Self::Whole => Ok(()),
            Self::Unlinked => candle_core::bail!(
                "the weights of this model are shared out among ranks (`sharding: full`), and this one is linked with no other"
            ),
            Self::Gathered(gather) => gather.bring(layer, ahead),
        }
    }
}

/// A rank's way to the weights of all layers.
#[derive(Debug)]
pub(crate) struct LayerGather {
    layers: Arc<ShardedLayers>,
    collective: Arc<dyn Collective>,
    state: Mutex<State>,
    /// Thread for gathers beside the computing one.
    beside: Option<Beside>,
}

#[derive(Debug, Default)]
struct State {
    /// The layer that lies in each window.
    there: [Option<usize>; WINDOWS],
    /// The one that is on its way, on the thread of its own.
    under_way: Option<usize>,
    /// Layers that were gathered.
    gathers: u64,
    /// Why a gather failed.
    failed: Option<TrainError>,
}

/// A thread that gathers.
#[derive(Debug)]
struct Beside {
    orders: Option<Sender<usize>>,
    done: Mutex<Receiver<std::result::Result<(), TrainError>>>,
    thread: Option<JoinHandle<()>>,
}

impl LayerGather {
    /// All ranks make one at the same time: nothing lies in any window then.
    pub(crate) fn new(layers: Arc<ShardedLayers>, collective: Arc<dyn Collective>) -> Self {
        let beside = match collective.gathers_beside() {
            true => Beside::start(Arc::clone(&layers), Arc::clone(&collective)),
            false => None,
        };
        Self {
            layers,
            collective,
            state: Mutex::default(),
            beside,
        }
    }

    /// Has the weights of `layer` in their window, and begins to gather those of `ahead` into the other.
    ///
    /// # Errors
    /// Those of the collective; [`LayerGather::take_failure`] tells which.
    fn bring(&self, layer: usize, ahead: Option<usize>) -> Result<()> {
        let mut state = self.state();
        self.settle(&mut state)?;
        if state.there[window_of(layer)] != Some(layer) {
            state.there[window_of(layer)] = None;
            let gathered = self.layers.gather(layer, self.collective.as_ref());
            self.arrived(&mut state, layer, gathered)?;
        }
        let (Some(beside), Some(ahead)) = (&self.beside, ahead) else {
            return Ok(());
        };
        let window = window_of(ahead);
        if window != window_of(layer) && state.there[window] != Some(ahead) {
            state.there[window] = None;
            state.under_way = beside.order(ahead).then_some(ahead);
        }
        Ok(())
    }

    /// Waits for the layer that is on its way.
    fn settle(&self, state: &mut State) -> Result<()> {
        let (Some(beside), Some(layer)) = (&self.beside, state.under_way.take()) else {
            return Ok(());
        };
        let gathered = beside.wait();
        self.arrived(state, layer, gathered)
    }

    fn arrived(&self, state: &mut State, layer: usize, gathered: std::result::Result<(), TrainError>) -> Result<()> {
        match gathered {
            Ok(()) => {
                state.there[window_of(layer)] = Some(layer);
                state.gathers += 1;
                Ok(())
            }
            Err(error) => {
                let message = error.to_string();
                state.failed = Some(error);
                Err(Error::Msg(message))
            }
        }
    }

    /// Why the last pass failed, where that was a gather.
    pub(crate) fn take_failure(&self) -> Option<TrainError> {
        self.state().failed.take()
    }

    /// How many layers were gathered so far.
    pub(crate) fn gathers(&self) -> u64 {
        self.state().gathers
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for LayerGather {
    fn drop(&mut self) {
        let is_idle = self.state().under_way.is_none();
        if let Some(beside) = &mut self.beside {
            beside.orders = None;
            // A gather that other ranks never come to ends when they are found to be gone: nobody waits for that here.
            if let (true, Some(thread)) = (is_idle, beside.thread.take()) {
                let _ = thread.join();
            }
        }
    }
}

impl Beside {
    /// The thread; `None` where there can be none: then layers are gathered when they are needed.
    fn start(layers: Arc<ShardedLayers>, collective: Arc<dyn Collective>) -> Option<Self> {
        let (orders, ordered) = channel::<usize>();
        let (tell, done) = channel();
        let gather = move || {
            for layer in ordered {
                if tell.send(layers.gather(layer, collective.as_ref())).is_err() {
                    return;
                }
            }
        };
        let started = std::thread::Builder::new().name("gather".to_owned()).spawn(gather);
        match started {
            Ok(thread) => Some(Self {
                orders: Some(orders),
                done: Mutex::new(done),
                thread: Some(thread),
            }),
            Err(error) => {
                tracing::warn!(%error, "no thread to gather weights on: each layer waits for its own");
                None
            }
        }
    }

    /// Whether the thread gathers `layer` now.
    fn order(&self, layer: usize) -> bool {
        self.orders.as_ref().is_some_and(|orders| orders.send(layer).is_ok())
    }

    fn wait(&self) -> std::result::Result<(), TrainError> {
        let done = self.done.lock().unwrap_or_else(PoisonError::into_inner);
        let ended = || TrainError::Candle(Error::Msg("the thread that gathers weights has ended".to_owned()));
        done.recv().unwrap_or_else(|_| Err(ended()))
    }
}
